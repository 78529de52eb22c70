"""GPU metrics from Prometheus, asked of a server that answers as Prometheus does."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from gpu_lab import exporter
from prometheus_lab import FakePrometheus, Series
from slurmkit_plugins.prometheus import Prometheus

from slurmkit.diagnose import inside_job
from slurmkit.errors import BadConfig, SlurmkitError
from slurmkit.state.gpu_metrics import THROTTLE_REASONS, JobWindow, NoSamples


class Server(BaseHTTPRequestHandler):
    """Two GPUs of c1, one of another node, one that has no index."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "throttled" in query["query"][0]:
            self.wfile.write(b"HTTP/1.0 503 too much asked\r\n\r\n")
            return
        assert query["query"] == ["DCGM_FI_DEV_GPU_UTIL"]
        end = float(query["end"][0])
        assert end - float(query["start"][0]) == pytest.approx(1800)
        series = [
            {"metric": {"Hostname": host, "gpu": gpu}, "values": [[end - 60, "0"], [end, busy]]}
            for host, gpu, busy in (
                ("c1.example.org", "0", "97.5"),
                ("c1:9400", "1", "0"),
                ("c9", "0", "5"),
                ("c1", "x", "5"),
            )
        ]
        body = json.dumps({"status": "success", "data": {"result": series}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Empty(BaseHTTPRequestHandler):
    """Has no series."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": {"result": []}}')

    def log_message(self, *_: object) -> None:
        pass


def make_certificate(folder: Path) -> Path:
    """A key, and a certificate for 127.0.0.1 that nobody but itself vouches for, in one file."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    names = ("-subj", "/CN=prometheus", "-addext", "subjectAltName=IP:127.0.0.1")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names)
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run([*made, *files], check=True, capture_output=True)
    certificate.write_text(certificate.read_text() + key.read_text())
    return certificate


@pytest.fixture
def configure(monkeypatch, tmp_path):
    def write(text: str) -> None:
        (tmp_path / "x.toml").write_text(f"[gpu_metrics.prometheus]\n{text}\n")
        monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [tmp_path / "x.toml"])

    return write


def test_samples_are_of_the_nodes_asked_for(configure):
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    configure(f'url = "http://127.0.0.1:{server.server_port}/"\ngpu_label = "gpu"')
    try:
        found = Prometheus().read(["c1", "c2"], seconds=1800)
    finally:
        server.shutdown()
        server.server_close()
    assert list(found) == ["c1"]
    assert [(one.index, one.utilization) for one in found["c1"]] == [
        (0, 0),
        (0, 97.5),
        (1, 0),
        (1, 0),
    ]


def test_what_holds_clocks_back_is_of_the_newest_sample(configure):
    """Our exporter has a series for each reason, DCGM the bits of all."""
    now = time.time()

    def series(name: str, index: int, *values: float, **labels: str) -> Series:
        times = [(now - 60 * (len(values) - at), value) for at, value in enumerate(values)]
        return Series(name, times, node="c1", gpu=str(index), uuid=f"GPU-{index}", **labels)

    prometheus = FakePrometheus(
        *(series("slurmkit_gpu_utilization_ratio", index, 0.5, 0.9) for index in range(4)),
        series("slurmkit_gpu_throttled", 0, 0, 1, reason="hw_thermal"),
        series("slurmkit_gpu_throttled", 0, 1, 0, reason="sw_power_cap"),
        series("slurmkit_gpu_throttled", 1, 0, 0, reason="hw_thermal"),
        series("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 2, 0x24),
    )
    with prometheus.serving() as url:
        configure(f'url = "{url}"\nmetric = "slurmkit_gpu_utilization_ratio"')
        found = Prometheus().read(["c1"], seconds=900)["c1"]
    held = {(one.index, one.taken > now - 61): one.throttled for one in found}
    newest = {index: reasons for (index, is_newest), reasons in held.items() if is_newest}
    assert newest == {0: ("hw_thermal",), 1: (), 2: ("sw_power_cap", "sw_thermal"), 3: None}
    assert {reasons for (_, is_newest), reasons in held.items() if not is_newest} == {None}


def gpu(name: str, value: float, uuid: str, **labels: str) -> Series:
    """Samples of the last minutes of one GPU of c1."""
    now = time.time()
    values = [(now - seconds, value) for seconds in (90, 60, 30)]
    return Series(name, values, Hostname="c1", node="c1", **labels | {"UUID": uuid, "uuid": uuid})


def test_the_drivers_number_is_not_slurms_index(configure):
    """On c1 the driver counts the other way round; our exporter knows both."""
    prometheus = FakePrometheus(
        gpu("DCGM_FI_DEV_GPU_UTIL", 97, "GPU-a", gpu="0"),
        gpu("DCGM_FI_DEV_GPU_UTIL", 3, "GPU-b", gpu="1"),
    )
    with prometheus.serving() as url:
        configure(f'url = "{url}"')
        with pytest.raises(NoSamples, match=r"which GPU of .* is which of Slurm's"):
            Prometheus().read(["c1"], seconds=300)
        prometheus.series += [
            gpu("slurmkit_gpu_info", 1, "GPU-a", gpu="1"),
            gpu("slurmkit_gpu_info", 1, "GPU-b", gpu="0"),
        ]
        found = Prometheus().read(["c1"], seconds=300)["c1"]
        assert {(one.index, one.utilization) for one in found} == {(1, 97), (0, 3)}


def test_instances_of_one_gpu_are_not_taken_for_it(configure):
    """dcgm-exporter gives each MIG instance the number of its GPU."""
    prometheus = FakePrometheus(
        gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9, "GPU-a", gpu="0", GPU_I_ID="7"),
        gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.1, "GPU-a", gpu="0", GPU_I_ID="8"),
        gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, "GPU-b", gpu="1"),
    )
    with prometheus.serving() as url:
        configure(f'url = "{url}"\nmetric = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"\ngpu_label = "gpu"')
        found = Prometheus().read(["c1"], seconds=300)["c1"]
        assert {(one.index, one.utilization) for one in found} == {(1, 50)}


def test_an_index_that_two_gpus_have_is_of_neither(configure):
    prometheus = FakePrometheus(
        *(gpu("DCGM_FI_DEV_GPU_UTIL", 50, uuid, gpu="0") for uuid in ("GPU-a", "GPU-b")),
        gpu("DCGM_FI_DEV_GPU_UTIL", 20, "GPU-c", gpu="1"),
    )
    with prometheus.serving() as url:
        configure(f'url = "{url}"\ngpu_label = "gpu"')
        found = Prometheus().read(["c1"], seconds=300)["c1"]
        assert {one.index for one in found} == {1}


def test_what_was_before_a_gap_is_left_out(configure):
    now = time.time()
    times = [*range(1800, 1200, -60), *range(600, 0, -60)]
    values = [(now - ago, 0) for ago in times]
    labels = {"node": "c1", "uuid": "GPU-a", "gpu": "0"}
    prometheus = FakePrometheus(Series("slurmkit_gpu_utilization_ratio", values, **labels))
    with prometheus.serving() as url:
        configure(f'url = "{url}"\nmetric = "slurmkit_gpu_utilization_ratio"')
        found = Prometheus().read(["c1"], seconds=1800)["c1"]
    assert min(one.taken for one in found) == pytest.approx(now - 600)


@pytest.mark.parametrize("blank", [2619, 4294967295, -1])
def test_a_blank_is_no_utilization(configure, blank):
    """A driver writes such numbers where it does not know."""
    now = time.time()

    def series(uuid: str, *blanks: int) -> Series:
        values = [(now - ago * 60, blank if ago in blanks else 0) for ago in range(40, 0, -1)]
        labels = {"Hostname": "c1", "gpu": uuid[-1], "UUID": uuid}
        return Series("DCGM_FI_DEV_GPU_UTIL", values, **labels)

    some = FakePrometheus(
        series("GPU-0", 20), series("GPU-1", *range(41)), series("GPU-2", *range(10, 20))
    )
    with some.serving() as url:
        configure(f'url = "{url}"\ngpu_label = "gpu"')
        found = Prometheus().read(["c1"], seconds=2400)["c1"]
    assert {one.utilization for one in found} == {0}
    since = {index: min(one.taken for one in found if one.index == index) for index in (0, 2)}
    assert {one.index for one in found} == {0, 2}
    assert since[0] == pytest.approx(now - 39 * 60, abs=61)
    assert since[2] == pytest.approx(now - 9 * 60, abs=1)


@pytest.mark.parametrize("labelled", ["gpu01.example.org", "gpu01.example.org:9400", "gpu01"])
def test_a_node_of_slurm_may_have_a_domain(configure, labelled):
    """That is `NodeName=gpu01.example.org`; no other domain is taken for it."""
    now = time.time()
    names = {labelled: 40.0, "gpu02.example.org": 50.0, "gpu01.other.org": 60.0}
    some = FakePrometheus(
        *(
            Series("DCGM_FI_DEV_GPU_UTIL", [(now - 30, use)], Hostname=name, gpu="0", UUID=name)
            for name, use in names.items()
        )
    )
    nodes = ("gpu01.example.org", "gpu02")
    with some.serving() as url:
        configure(f'url = "{url}"\ngpu_label = "gpu"')
        metrics = Prometheus()
        found = {node: each[0].utilization for node, each in metrics.read(nodes).items()}
        window = JobWindow(job_id=7, nodes=nodes, begin=int(now) - 600, end=int(now), gpus=2)
        traces = {trace.node: trace.samples[0].utilization for trace in metrics.read_job(window)}
    assert found == traces == {"gpu01.example.org": 40, "gpu02": 50}


def test_the_token_is_sent_from_a_file_that_not_everybody_can_read(configure, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    sent = []

    def page(request: BaseHTTPRequestHandler) -> str:
        sent.append(request.headers["Authorization"])
        return '{"data": {"result": []}}'

    with exporter(page) as port:
        configure(f'url = "http://127.0.0.1:{port}"\ntoken_file = "{token}"')
        token.chmod(0o644)
        with pytest.raises(BadConfig, match="token_file: everybody can read"):
            Prometheus()
        token.chmod(0o600)
        assert Prometheus().read([]) == {}
        assert sent == ["Bearer s3cret"]


def test_another_server_does_not_get_the_token(configure, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    sent = []

    def other(request: BaseHTTPRequestHandler) -> str:
        sent.append(request.headers["Authorization"])
        return '{"data": {"result": []}}'

    with exporter(other) as there:

        def redirect(request: BaseHTTPRequestHandler) -> None:
            request.send_response(302)
            request.send_header("Location", f"http://127.0.0.1:{there}/")
            request.end_headers()

        with exporter(redirect) as port:
            configure(f'url = "http://127.0.0.1:{port}"\ntoken_file = "{token}"')
            Prometheus().read([])
    assert sent == [None]


def test_a_server_is_checked_with_the_sites_certificates(configure, tmp_path):
    certificate = make_certificate(tmp_path)
    server = HTTPServer(("127.0.0.1", 0), Empty)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f'url = "https://127.0.0.1:{server.server_port}"'
    try:
        configure(url)
        with pytest.raises(SlurmkitError, match="CERTIFICATE_VERIFY_FAILED"):
            Prometheus().read([])
        configure(f'{url}\nca_file = "{certificate}"')
        assert Prometheus().read([]) == {}
    finally:
        server.shutdown()
        server.server_close()
    configure(f'{url}\nca_file = "{tmp_path / "none.pem"}"')
    with pytest.raises(BadConfig, match="ca_file: cannot use"):
        Prometheus()


def test_bits_mean_the_same_everywhere():
    pynvml = pytest.importorskip("pynvml")
    assert inside_job._THROTTLED == THROTTLE_REASONS
    names = {
        "sw_power_cap": "SwPowerCap", "hw_slowdown": "HwSlowdown", "sync_boost": "SyncBoost",
        "sw_thermal": "SwThermalSlowdown", "hw_thermal": "HwThermalSlowdown",
        "hw_power_brake": "HwPowerBrakeSlowdown",
    }  # fmt: skip
    for bit, name in THROTTLE_REASONS.items():
        assert getattr(pynvml, f"nvmlClocksEventReason{names[name]}") == bit


@pytest.mark.parametrize("said", [b"no JSON", b"{}", b'{"data": null}'])
def test_an_answer_that_is_none_is_one_line(configure, said):
    configure('url = "http://prometheus"')
    with pytest.raises(SlurmkitError, match="Prometheus at http://prometheus gave no answer"):
        Prometheus(lambda url: said).read(["c1"])


def test_without_a_server_it_says_what_to_write(configure):
    configure('url = "file:///etc/passwd"')
    with pytest.raises(BadConfig, match="names no server"):
        Prometheus()
