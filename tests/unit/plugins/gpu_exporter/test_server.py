"""`slurmkit gpu-exporter` as a process, and its server with clients that are slow or strangers."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import GPU_0, ROOT, Stub, build, start
from slurmkit_plugins.gpu_exporter import server
from slurmkit_plugins.gpu_exporter.cli import gpu_exporter_command
from slurmkit_plugins.gpu_exporter.readings import NoDriver
from waiting import PATIENCE, wait_until

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadInput, SlurmkitError

UNIT = ROOT / "plugins/slurmkit_plugins/assets/slurmkit-gpu-exporter.service"
MOST_MEMORY = 60 << 10  # KiB
SCRAPES = 40


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    for line in process.stderr:
        if found := re.match(r"serving (http://\S+?),? ?(without a token)?$", line):
            return found[1]
    raise AssertionError(process.wait())


def fetch(url: str, **headers: str) -> bytes:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=PATIENCE) as page:  # noqa: S310
        return bytes(page.read())


def status(url: str, method: str = "GET", **headers: str) -> int:
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as page:  # noqa: S310
            return int(page.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_port_that_a_job_could_take_is_said(stub: Stub, library: Path, tmp_path: Path) -> None:
    """A token would be sent to whoever listens there while the exporter is stopped."""
    token = tmp_path / "token"
    token.write_text("secret\n", "ascii")
    token.chmod(0o600)
    for words in ((), ("--token-file", str(token))):
        with start(library, "--listen", "127.0.0.1:0", *words) as process:
            assert process.stderr
            said = [process.stderr.readline()]
            while said[-1] and not said[-1].startswith("serving"):
                said.append(process.stderr.readline())
            process.kill()
            process.communicate()
        found = re.search(r"://127.0.0.1:(\d+)/", said[-1])
        assert found
        risk = f"a job can listen on port {found[1]} and be sent the token; use a port below 1024"
        assert (risk in "".join(said)) == bool(words)


def test_a_port_that_needs_root_names_the_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)  # the tests may run as root
    with pytest.raises(SlurmkitError, match="CAP_NET_BIND_SERVICE"):
        server.listen("127.0.0.1:332")


def test_it_serves_until_sigterm_within_its_budget(stub: Stub, library: Path) -> None:
    """60 MB, and 1 % of a core at a scrape each 15 seconds."""
    stub.set_up_node(ROOT / "docker/conf/nvml/c2")
    with start(library, "--listen", "127.0.0.1:0", "--node", "c2") as process:
        url = address_of(process)
        began = _cpu_seconds(process.pid)
        for _ in range(SCRAPES):
            assert b"slurmkit_gpu_utilization_ratio{" in fetch(url)
        assert _cpu_seconds(process.pid) - began < SCRAPES * 15 / 100
        memory = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        assert memory
        assert int(memory[1]) < MOST_MEMORY
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert said.splitlines()[-1] == "stopped"


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_once_prints_the_page(stub: Stub, library: Path) -> None:
    stub.play(0, "busy", "80")
    with start(library, "--once", "--node", "n1") as process:
        page, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert re.search(rf'^slurmkit_gpu_utilization_ratio{{.*"{GPU_0}"}} 0.8$', page, re.MULTILINE)


def test_with_an_old_driver_the_older_calls_are_used(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    old = build(tmp_path / "old", "-DOLD_DRIVER")
    stub.play(0, "throttled", "sw_power_cap", "temperature", "61", "memory", "1G")
    with subprocess.Popen(["sleep", "600"], env={"SLURM_JOB_ID": "41"}) as job:
        stub.play(0, "process", f"{job.pid},1048576,50")
        with start(old, "--once") as process:
            page, said = process.communicate(timeout=PATIENCE)
        job.kill()
    lines = [line for line in page.splitlines() if GPU_0 in line]
    found = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
    assert found["slurmkit_gpu_temperature_celsius"] == "61.0"
    assert found["slurmkit_gpu_memory_used_bytes"] == "1.073741824e+09"
    assert next(line for line in lines if "sw_power_cap" in line).endswith(" 1.0")
    assert any(line.startswith("slurmkit_gpu_job{") and 'job="41"' in line for line in lines)
    assert "slurmkit_gpu_exporter_errors_total{" not in page, said


@pytest.mark.skipif(find_library("nvidia-ml") is not None, reason="this machine has the driver")
def test_without_a_driver_it_ends_with_one_line() -> None:
    with start(None) as process:
        page, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, page) == (NoDriver.exit_code, "")
    assert said.startswith("slurmkit: the NVIDIA driver cannot be used: library_not_found;")
    assert said.count("\n") == 1


def test_wrong_options_end_with_2(tmp_path: Path, stub: Stub) -> None:
    token = tmp_path / "token"
    for words in (["--token-file", str(token)], ["--gpu-map", str(token)], ["--listen", "6832"]):
        assert run_to_exit_code(gpu_exporter_command, words) == 2


def test_the_unit_starts_what_there_is_and_does_not_loop() -> None:
    settings = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line)
    _, _, *words = settings["ExecStart"].split()
    assert run_to_exit_code(gpu_exporter_command, [*words, "--help"]) == 0
    codes = {BadInput("").exit_code, NoDriver("").exit_code}
    assert {int(code) for code in settings["RestartPreventExitStatus"].split()} == codes


@contextmanager
def serving(
    token: str | None = None,
    body: bytes = b"page\n",
    page: server.Page | None = None,
    log: list[str] | None = None,
) -> Iterator[str]:
    """Serve a page from a thread of this process."""
    make = page or (lambda _: ("text/x", body))
    said = [] if log is None else log
    listening = server.listen("127.0.0.1:0")
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/metrics"
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stopped = asyncio.Event()
        begun.append((asyncio.get_running_loop(), stopped))
        await server.serve_until(stopped, listening, make, token, said.append)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    wait_until(lambda: begun)
    yield url
    loop, stopped = begun[0]
    loop.call_soon_threadsafe(stopped.set)
    thread.join()


def is_dropped(client: socket.socket) -> bool:
    """Wait until the server closes the connection without an answer."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_there_is_one_page_and_no_other() -> None:
    with serving() as url:
        assert fetch(url) == b"page\n"
        assert fetch(f"{url}?x=1") == b"page\n"
        assert status(url, "HEAD") == 200
        assert [status(url.replace("metrics", path)) for path in ("", "x", "metrics/")] == [404] * 3
        assert [status(url, method) for method in ("POST", "DELETE")] == [405, 405]


def test_who_has_the_token_may_read() -> None:
    with serving("secret-7") as url:
        assert fetch(url, Authorization="Bearer secret-7") == b"page\n"
        for wrong in ("Bearer secret-8", "Bearer ", "secret-7", "Basic c2VjcmV0", "Bearer \xff"):
            assert status(url, Authorization=wrong) == 401
        assert status(url) == 401
        assert status(url.replace("metrics", "x")) == 404


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [
        (0o640, "secret", "run: chmod 600"),
        (0o604, "secret", "run: chmod 600"),
        (0o600, "", "must hold one word"),
        (0o600, "two words", "must hold one word"),
        (0o600, "schlüssel", "cannot be read"),
    ],
)
def test_a_token_file_that_others_can_read_or_without_token(
    tmp_path: Path, mode: int, text: str, why: str
) -> None:
    path = tmp_path / "token"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    with pytest.raises(BadInput, match=why):
        server.load_token(path)


def test_a_token_is_taken_from_systemd_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n", "utf-8")
    path.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert server.load_token(path) == "secret"


@pytest.mark.parametrize(
    "address", ["6832", "localhost", ":6832", "127.0.0.1:x", "127.0.0.1:70000"]
)
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(BadInput, match="write HOST:PORT"):
        server.listen(address)


def test_an_address_that_is_taken() -> None:
    with server.listen("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SlurmkitError, match=f"cannot listen on 127.0.0.1:{port}: "):
            server.listen(f"127.0.0.1:{port}")


def connect(url: str, source: str = "127.0.0.1") -> socket.socket:
    port = int(url.rpartition(":")[2].partition("/")[0])
    return socket.create_connection(("127.0.0.1", port), PATIENCE, source_address=(source, 0))


def test_who_sends_no_whole_request_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.2)
    with serving() as url, connect(url) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        assert is_dropped(client)
        assert fetch(url) == b"page\n"


def test_a_request_without_end_is_dropped() -> None:
    with serving() as url, connect(url) as client:
        with suppress(ConnectionResetError, BrokenPipeError):
            client.sendall(b"x" * (4 << 20))
        assert is_dropped(client)
        assert fetch(url) == b"page\n"


def test_who_reads_no_answer_keeps_nobody_waiting() -> None:
    with serving(body=b"x" * (64 << 20)) as url, connect(url) as idle:
        idle.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert len(fetch(url)) == 64 << 20


def test_who_reads_no_answer_is_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[server._Responder] = []

    class Responder(server._Responder):
        def __init__(self, *what: Any) -> None:
            super().__init__(*what)
            made.append(self)

    monkeypatch.setattr(server, "_Responder", Responder)
    monkeypatch.setattr(server, "_ANSWER_SECONDS", 0.2)
    with serving(body=b"x" * (64 << 20)) as url, connect(url) as idle:
        idle.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert idle.recv(4) == b"HTTP"
        wait_until(lambda: not made[0]._open)


def test_while_the_driver_hangs_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request waited in a thread of its own, and nobody said why."""
    monkeypatch.setattr(server, "_PAGE_SECONDS", 0.3)
    answers, calls, log = threading.Event(), [], list[str]()

    def page(_: str) -> tuple[str, bytes]:
        calls.append(1)
        answers.wait(PATIENCE)
        return "text/x", b"page\n"

    with serving(page=page, log=log) as url:
        assert [status(url) for _ in range(5)] == [503] * 5
        assert (len(calls), log) == (1, ["the driver has not answered for 0.3 s; waiting for it"])
        answers.set()
        wait_until(lambda: len(log) == 2)
        assert fetch(url) == b"page\n"
    assert log[1] == "the driver answers again"


def test_idle_connections_of_one_host_keep_no_other_host_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any user of the node can open more than there may be, and open them again."""
    monkeypatch.setattr(server, "_CONNECTIONS", 3)
    monkeypatch.setattr(server, "_host_of", lambda writer: writer.get_extra_info("peername")[0])
    request = b"GET /metrics HTTP/1.0\r\n\r\n"
    with serving() as url, ExitStack() as opened:
        prometheus = opened.enter_context(connect(url, "127.0.0.2"))
        idle = [opened.enter_context(connect(url)) for _ in range(3)]
        assert is_dropped(idle[0])
        assert fetch(url) == b"page\n"
        assert is_dropped(idle[1])
        prometheus.sendall(request)
        assert prometheus.recv(100).startswith(b"HTTP/1.1 200")
        idle[2].sendall(request)
        assert idle[2].recv(100).startswith(b"HTTP/1.1 200")


def test_all_addresses_of_the_loopback_are_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[str] = []
    host_of = server._host_of
    monkeypatch.setattr(server, "_host_of", lambda writer: hosts.append(host_of(writer)) or "x")
    with serving() as url, connect(url, "127.0.0.2"), connect(url, "127.9.9.9"):
        fetch(url)
    assert hosts == ["127.0.0.1"] * 3


def test_for_a_client_that_was_dropped_no_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else their requests would wait before those of others."""
    monkeypatch.setattr(server, "_CONNECTIONS", 1)
    answers, calls = threading.Event(), list[str]()

    def page(accept: str) -> tuple[str, bytes]:
        calls.append(accept)
        answers.wait(PATIENCE)
        return "text/x", b"page\n"

    with serving(page=page) as url, ExitStack() as opened:
        clients = []
        for number in range(4):
            clients.append(opened.enter_context(connect(url)))
            head = f"GET /metrics HTTP/1.0\r\nAccept: {number}\r\n\r\n"
            clients[-1].sendall(head.encode())
            if number == 0:
                wait_until(lambda: calls)
        assert all(is_dropped(client) for client in clients[:3])
        answers.set()
        assert clients[3].recv(100).startswith(b"HTTP/1.1 200")
    assert calls == ["0", "3"]


def test_files_are_not_kept_open() -> None:
    with serving() as url:
        fetch(url)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(50):
            fetch(url)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1  # the last may be closing
