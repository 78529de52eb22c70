"""`slurmkit tunnel --open` to a cluster over SSH, on a real sshd whose connections are cut."""

from __future__ import annotations

import getpass
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from ssh_lab import REPOSITORY, Spool, Sshd, shared_sshd
from waiting import PATIENCE, wait_until

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import SshError
from slurmkit.interactive import tunnel
from slurmkit.interactive.tunnel import NodePort, forward_until_job_ends
from slurmkit.jobs.poller import PollPace
from slurmkit.slurm.ssh.authentication import ask_nobody
from slurmkit.slurm.ssh.hosts import ClusterSection
from slurmkit.slurm.ssh.login import SshSlurmCommands

BROKE = "the connection to the login node broke; connecting again"
AGAIN = "connected again"
TEXT = b"ab" * 100_000

assert shared_sshd  # a fixture


@pytest.fixture
def upper() -> Iterator[int]:
    """A port that gives back in capitals what it was sent, once all is there."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            with suppress(OSError), line, line.makefile("rwb") as both:
                both.write(both.read().upper())

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


class Line:
    """A tunnel that a thread holds open, and the proxy before its login node.

    Attributes:
        said: the notices so far.
        raised: what ended it, if that was an error.
    """

    def __init__(self, sshd: Sshd, folder: Path, port: int) -> None:
        self.spool = Spool(folder)
        self.spool.add_job("100")
        self.proxy = CuttingProxy(sshd.port)
        sshd.trusted(self.proxy.port)
        sshd.configure(self.proxy.port)
        section = ClusterSection(ssh_config=str(sshd.config), path=str(self.spool.bin))
        self.slurm = SshSlurmCommands("lab", section, ask_nobody)
        pace = PollPace(first=0.5, longest=1.0, growth=1.5, floor=0.5)
        self._job = Cluster(self.slurm, pace=pace).job("100")
        self._job.info()  # as the command asks before it opens the port
        self.said, self.raised = list[str](), list[SshError]()
        self._place, self.local = NodePort("127.0.0.1", port), free_port()
        ready = threading.Event()
        self.thread = threading.Thread(target=self._hold, args=(ready,), daemon=True)
        self.thread.start()
        assert ready.wait(PATIENCE)

    def _hold(self, ready: threading.Event) -> None:
        try:
            forward_until_job_ends(self._place, self.local, self._job, ready.set, self.said.append)
        except SshError as error:
            self.raised.append(error)

    def shout(self) -> bytes:
        """Send a text through the tunnel, and return what comes back before the end or a cut."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.local)) as near:
            near.settimeout(PATIENCE)
            near.sendall(TEXT)
            near.shutdown(socket.SHUT_WR)
            return near.makefile("rb").read()
        return b""

    def close(self) -> None:
        self.spool.add_job("100", State="COMPLETED")
        self.thread.join(PATIENCE)
        self.proxy.close()
        self.slurm.connection.close()


@pytest.fixture
def line(sshd: Sshd, tmp_path: Path, upper: int) -> Iterator[Line]:
    made = Line(sshd, tmp_path, upper)
    yield made
    made.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "times", [5, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_each_cut_is_said_and_made_good(line: Line, times: int) -> None:
    """At rest, or in the middle of what goes through, either way."""
    chance = random.Random(26)
    for cut in range(1, times + 1):
        if way := chance.choice(("", "up", "down")):
            line.proxy.arm(way, chance.randrange(len(TEXT)))
            line.shout()
        else:
            line.proxy.cut()
        wait_until(lambda cut=cut: line.said.count(AGAIN) == cut, lambda: str(line.said))
        wait_until(lambda: line.shout() == TEXT.upper(), lambda: str(line.said))
    assert line.said == [BROKE, AGAIN] * times
    line.spool.add_job("100", State="COMPLETED")
    line.thread.join(PATIENCE)
    assert not line.thread.is_alive()
    assert line.raised == []


def test_a_channel_that_cannot_say_its_end_ends(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko raises EOFError when the connection breaks just then; no thread dies of it."""
    closed = threading.Event()

    def broken(self: object) -> None:
        closed.set()
        raise EOFError

    with monkeypatch.context() as patch:
        patch.setattr("paramiko.Channel.close", broken)
        assert line.shout() == TEXT.upper()
        assert closed.wait(PATIENCE)
    assert line.shout() == TEXT.upper()


def test_a_new_connection_waits_for_the_login_node(
    line: Line, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "RECONNECT_PAUSES", (0.1,))
    sshd.configure(free_port())  # nothing listens there
    line.proxy.cut()
    wait_until(lambda: line.said == [BROKE])
    came = list[bytes]()
    asking = threading.Thread(target=lambda: came.append(line.shout()))
    asking.start()
    sshd.configure(line.proxy.port)
    asking.join(PATIENCE)
    assert came == [TEXT.upper()]
    assert line.said == [BROKE, AGAIN]


def test_a_login_that_is_refused_ends_it(
    line: Line, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "RECONNECT_PAUSES", (0.1,))
    kept = (sshd.folder / "authorized").read_text("utf-8")
    (sshd.folder / "authorized").write_text("", "utf-8")
    try:
        line.proxy.cut()
        line.thread.join(PATIENCE)
    finally:
        (sshd.folder / "authorized").write_text(kept, "utf-8")
    (error,) = line.raised
    assert "the login needs an answer" in str(error)  # a password, after the key


def test_a_login_node_without_an_answer_is_left(line: Line) -> None:
    """The connection stands, and nothing comes: a laptop that slept, a router that forgot."""
    connection = line.slurm.connection
    connection.check(PATIENCE)
    assert connection.is_up
    line.proxy.hold = True
    try:
        connection.check(0.2)
        assert not connection.is_up
    finally:
        line.proxy.hold = False


def test_ctrl_c_ends_it_also_after_a_cut(sshd: Sshd, tmp_path: Path, upper: int) -> None:
    spool = Spool(tmp_path)
    spool.add_job("100", UserName=getpass.getuser(), NodeList="127.0.0.1")
    proxy = CuttingProxy(sshd.port)
    sshd.trusted(proxy.port)
    sshd.configure(proxy.port)
    config = tmp_path / "config.toml"
    config.write_text(
        f'[clusters.lab]\nssh_config = "{sshd.config}"\npath = "{spool.bin}"\n', "utf-8"
    )
    log, local = tmp_path / "log", free_port()
    words = ["--cluster", "lab", "tunnel", "100", str(upper), "--open", "--local-port", str(local)]
    environment = os.environ | {"SLURMKIT_CONFIG": str(config), "PYTHONPATH": str(REPOSITORY)}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "slurmkit", *words],
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    try:
        wait_until(lambda: f"127.0.0.1:{local} leads to" in log.read_text("utf-8"),
                   lambda: log.read_text("utf-8"))  # fmt: skip
        proxy.cut()
        wait_until(lambda: AGAIN in log.read_text("utf-8"), lambda: log.read_text("utf-8"))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.wait()
        proxy.close()
    assert log.read_text("utf-8").splitlines()[-3:] == [
        f"slurmkit: {BROKE}",
        f"slurmkit: {AGAIN}",
        "slurmkit: closed; job 100 goes on",
    ]
