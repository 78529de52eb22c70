"""The program of a job for ssh: real sockets and processes, `cat` or a real sshd behind them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from waiting import wait_until

from slurmkit.interactive import ssh_keeper

PROGRAM = Path(ssh_keeper.__file__)
SYSTEM_PYTHON = Path("/usr/bin/python3")
# The keeper with another program instead of sshd: it answers with what it gets.
WITH_CAT = f"""
import signal, sys
sys.path.insert(0, {str(PROGRAM.parent)!r})
import ssh_keeper
from pathlib import Path
ssh_keeper._LOOK, ssh_keeper._END, ssh_keeper._SUSPENDED = 0.1, 0.5, 1.0
signal.signal(signal.SIGTERM, ssh_keeper._end)
ssh_keeper.Keeper(Path(sys.argv[1]), ["cat"], float(sys.argv[2])).run()
"""
_JOBS = count(1)
Started = Callable[..., "tuple[subprocess.Popen[bytes], dict[str, str]]"]


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Started]:
    """Start a keeper; returns it and its address."""
    started = []
    job = f"{os.getpid()}{next(_JOBS)}"  # a keeper ends all processes of its job's id

    def start(idle: float = 0) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
        argv = [sys.executable, "-c", WITH_CAT, str(tmp_path), str(idle)]
        process = subprocess.Popen(argv, env={**os.environ, "SLURM_JOB_ID": job})
        started.append(process)
        address = tmp_path / ssh_keeper.ADDRESS
        wait_until(address.exists)
        return process, json.loads(address.read_text("utf-8"))

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_suspended_job_goes_on(keeper: Started) -> None:
    process, address = keeper(idle=1.5)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGCONT)
    assert bridge(address["socket"], b"still here").stdout == b"still here"


def bridge(socket: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = [sys.executable, str(PROGRAM), "bridge", socket]
    return subprocess.run(argv, input=data, capture_output=True, check=False)


def test_all_bytes_come_back_both_ways_at_once(keeper: Started) -> None:
    """More than fits into sockets and pipes together: neither way may wait for the other."""
    _, address = keeper()
    data = os.urandom(5_000_000)
    done = bridge(address["socket"], data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == data


def test_a_connection_that_is_cut_does_not_end_the_others(keeper: Started) -> None:
    process, address = keeper()
    argv = [sys.executable, str(PROGRAM), "bridge", address["socket"]]
    cut = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    cut.kill()
    cut.communicate()
    assert bridge(address["socket"], b"still here").stdout == b"still here"
    assert process.poll() is None


def test_the_job_ends_when_nobody_is_connected(keeper: Started, tmp_path: Path) -> None:
    process, address = keeper(idle=1.0)
    argv = [sys.executable, str(PROGRAM), "bridge", address["socket"]]
    held = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert held.stdin is not None
    assert held.stdout is not None
    held.stdin.write(b"x")
    held.stdin.flush()
    assert held.stdout.read(1) == b"x"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)  # somebody is connected
    held.communicate()
    assert process.wait(60) == 0
    assert not (tmp_path / ssh_keeper.ADDRESS).exists()
    gone = bridge(address["socket"], b"")
    assert gone.returncode == 1
    assert b"the job's sshd does not answer" in gone.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.skipif(not SYSTEM_PYTHON.exists(), reason="other users need the system's python3")
def test_another_user_gets_nothing(keeper: Started) -> None:
    _, address = keeper()

    def as_nobody(code: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        argv = [str(SYSTEM_PYTHON), "-c", code, *words]
        return subprocess.run(
            argv, input=b"hello", capture_output=True, check=False, user=65534, cwd="/"
        )

    other = as_nobody(PROGRAM.read_text("utf-8"), "bridge", address["socket"])
    assert other.returncode == 1
    assert other.stdout == b""
    assert b"belongs to another user" in other.stderr
    # Also without our program, which refuses by itself.
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + sys.argv[1]);"
        " s.sendall(b'hello'); print(s.recv(9))"
    )
    assert b"hello" not in as_nobody(code, address["socket"]).stdout


def test_what_was_started_in_the_job_ends_with_it(keeper: Started) -> None:
    """Also what has a session of its own, as under sshd, and does not heed SIGTERM."""
    process, address = keeper()
    argv = ["bash", "-c", "trap '' TERM; echo begun; while :; do sleep 0.1; done"]
    held, other = (
        subprocess.Popen(
            argv, env={**os.environ, "SLURM_JOB_ID": job}, stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for job in (address["job_id"], f"{address['job_id']}1")
    )  # fmt: skip
    for each in (held, other):
        assert each.stdout is not None
        assert each.stdout.readline() == b"begun\n"
    process.terminate()
    process.terminate()
    assert held.wait(60) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.communicate()
    held.communicate()


def test_the_address_of_a_later_job_stays(keeper: Started, tmp_path: Path) -> None:
    process, _ = keeper(idle=0.5)
    later = {"job_id": "13", "node": "c2", "socket": "other", "started": 1}
    (tmp_path / ssh_keeper.ADDRESS).write_text(json.dumps(later), "utf-8")
    assert process.wait(60) == 0
    assert json.loads((tmp_path / ssh_keeper.ADDRESS).read_text("utf-8")) == later


def test_sshd_takes_the_configuration(tmp_path: Path) -> None:
    """Also with values that a shell or a configuration file would read otherwise."""
    sshd = ssh_keeper.find_sshd()
    if sshd is None:
        pytest.skip("there is no sshd")
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "host_key")],
        check=True,
    )
    environment = {
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_NAME": "a job; rm -rf /",
        "SLURM_COMMENT": 'with "quotes" and \\',
        "SLURM_NEWLINE": "a\nPermitRootLogin yes",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HOME": "/root",
    }
    config = tmp_path / "sshd_config"
    config.write_text(ssh_keeper.config_text(tmp_path, environment), "utf-8")
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sshd, "-T", "-f", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "passwordauthentication no" in said
    assert "permitrootlogin yes" not in said
    setting = " ".join(line for line in said if line.startswith("setenv"))
    assert "SLURM_JOB_ID=12" in setting
    assert "SLURM_JOB_NAME=a job; rm -rf /" in setting
    assert "CUDA_VISIBLE_DEVICES=0,1" in setting
    assert "HOME" not in setting
    assert "quotes" not in setting


def test_a_node_without_sshd_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ssh_keeper, "_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ssh_keeper.keep(tmp_path, 1) == 127
    assert "it is in the package openssh-server" in capsys.readouterr().err


def test_sshd_is_found_though_users_do_not_have_its_folder_on_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which("sshd", path="/usr/sbin") is None:
        pytest.skip("there is no sshd")
    monkeypatch.setenv("PATH", "/bin")
    assert (ssh_keeper.find_sshd() or "").endswith("/sshd")
