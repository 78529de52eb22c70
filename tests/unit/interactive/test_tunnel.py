"""`slurmkit tunnel`: which jobs and nodes it is for, and what goes through one held open here."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs_lab import FakeJobs
from waiting import PATIENCE

from slurmkit.cli import shell as module
from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadConfig, BadInput, SlurmkitError
from slurmkit.interactive.tunnel import NodePort, forward_until_job_ends, ssh_command

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    made = FakeJobs()
    monkeypatch.setattr(module, "Cluster", made.cluster)
    monkeypatch.setattr(module, "is_reachable", lambda *_: True)
    monkeypatch.setattr(socket, "getfqdn", lambda: "login.site")
    return made


def run(*words: str) -> int:
    return run_to_exit_code(module.tunnel_command, list(words))


def test_the_command_for_ones_own_machine(
    jobs: FakeJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.runs_now("12", UserName=ME, NodeList="c[1-2]")
    assert run("12", "6006") == 0
    assert run("12", "80", "--local-port", "8080", "--node", "c2") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"ssh -N -L 6006:c1:6006 {ME}@login.site",
        f"ssh -N -L 8080:c2:80 {ME}@login.site",
    ]


def test_the_site_names_its_login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[tunnel]\nlogin = "hpc.example.org"\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert ssh_command(NodePort("c1", 6006), 6006).endswith(f" {ME}@hpc.example.org")


def test_the_site_names_the_port_of_its_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo cluster's sshd listens on a port of its host."""
    config = tmp_path / "config.toml"
    config.write_text('[tunnel]\nlogin = "127.0.0.1"\nport = 32768\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    found = ssh_command(NodePort("c1", 6006), 6006)
    assert found == f"ssh -N -L 6006:c1:6006 -p 32768 {ME}@127.0.0.1"
    config.write_text("[tunnel]\nport = 70000\n", "utf-8")
    with pytest.raises(BadConfig, match="65535"):
        ssh_command(NodePort("c1", 6006), 6006)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("12", "6006"), 2, "job 12 belongs to bob; a tunnel works only for your own jobs"),
        (("13", "6006"), 1, "slurmkit why 13"),
        (("14", "6006"), 1, "has ended (COMPLETED)"),
        (("15", "6006", "--node", "c3"), 2, "does not run on c3; it runs on c[1-2]"),
        (("15", "0"), 2, "0 is not in the range"),
        (("15", "x"), 2, "'x' is not a valid integer"),
        (("16", "6006"), 1, "no job 16"),
        (("x", "6006"), 2, "not a job id"),
    ],
)
def test_what_has_no_way_is_said(
    jobs: FakeJobs,
    words: tuple[str, ...],
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs.runs_now("12", UserName="bob")
    jobs.waits("13", UserName=ME)
    jobs.ends("14", User=ME)
    jobs.runs_now("15", UserName=ME, NodeList="c[1-2]")
    assert run(*words) == code
    shown = capsys.readouterr()
    assert not shown.out
    assert says in shown.err


def test_a_port_where_nothing_listens_is_told(
    jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(module, "Cluster", jobs.cluster)
    jobs.runs_now("12", UserName=ME, NodeList="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert run("12", str(free)) == 0
    assert (
        f"cannot connect to 127.0.0.1:{free} yet: nothing listens there" in capsys.readouterr().err
    )


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
            with line, line.makefile("rwb") as both:
                both.write(both.read().upper())

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


def test_all_goes_through_until_the_job_ends(jobs: FakeJobs, upper: int) -> None:
    jobs.runs_now("12", UserName=ME)
    with socket.create_server(("127.0.0.1", 0)) as server:
        local = server.getsockname()[1]
    said, job, text = list[bytes](), jobs.cluster().job("12"), b"ab" * 300_000

    def use() -> None:
        with socket.create_connection(("127.0.0.1", local), timeout=20) as line:
            threading.Thread(target=lambda: (line.sendall(text), line.shutdown(1))).start()
            said.append(line.makefile("rb").read())
        jobs.ends("12")

    def opened() -> None:
        threading.Thread(target=use, daemon=True).start()

    forward_until_job_ends(NodePort("127.0.0.1", upper), local, job, opened)
    assert said == [text.upper()]


def test_it_ends_with_a_word_when_slurm_cannot_be_asked(
    jobs: FakeJobs, upper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = jobs.cluster().job("12")

    def lost(*_: object, **__: object) -> None:
        raise SlurmkitError("lost")

    monkeypatch.setattr(type(job), "wait", lost)
    with socket.create_server(("127.0.0.1", 0)) as server:
        local = server.getsockname()[1]
    said = list[SlurmkitError]()

    def hold() -> None:
        try:
            forward_until_job_ends(NodePort("127.0.0.1", upper), local, job, lambda: None)
        except SlurmkitError as error:
            said.append(error)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert list(map(str, said)) == ["lost"]


def test_a_port_that_is_taken_is_refused(jobs: FakeJobs, upper: int) -> None:
    job = jobs.cluster().job("12")
    with pytest.raises(BadInput, match="choose another: --local-port"):
        forward_until_job_ends(NodePort("127.0.0.1", upper), upper, job, lambda: None)
