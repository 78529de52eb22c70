"""GPU metrics from Prometheus, asked of a server that answers as Prometheus does."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from slurmkit_plugins.prometheus import Prometheus

from slurmkit.errors import BadConfig, SlurmkitError


class Server(BaseHTTPRequestHandler):
    """Two GPUs of c1, one of another node, one that has no index."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
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


@pytest.fixture
def configure(monkeypatch, tmp_path):
    def write(text: str) -> None:
        (tmp_path / "x.toml").write_text(f"[gpu_metrics.prometheus]\n{text}\n")
        monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [tmp_path / "x.toml"])

    return write


def test_samples_are_of_the_nodes_asked_for(configure):
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    configure(f'url = "http://127.0.0.1:{server.server_port}/"')
    try:
        found = Prometheus().read(["c1", "c2"], seconds=1800)
    finally:
        server.shutdown()
        server.server_close()
    assert list(found) == ["c1"]
    assert [(one.index, one.utilisation) for one in found["c1"]] == [
        (0, 0),
        (0, 97.5),
        (1, 0),
        (1, 0),
    ]


@pytest.mark.parametrize("said", [b"no JSON", b"{}", b'{"data": null}'])
def test_an_answer_that_is_none_is_one_line(configure, said):
    configure('url = "http://prometheus"')
    with pytest.raises(SlurmkitError, match="Prometheus at http://prometheus gave no answer"):
        Prometheus(lambda url: said).read(["c1"])


def test_without_a_server_it_says_what_to_write(configure):
    configure('url = "file:///etc/passwd"')
    with pytest.raises(BadConfig, match="names no server"):
        Prometheus()
