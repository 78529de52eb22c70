"""Calls that are sent over SSH: a real sshd, and jobs that are processes behind it."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from executor_lab import RunningSlurm
from ssh_lab import Spool, Sshd

from slurmkit import Executor
from slurmkit.backends.commands import CommandsBackend
from slurmkit.errors import BadInput, PythonDiffers, ResultLost, ResultRefused, SshError
from slurmkit.executor import resultfiles
from slurmkit.ssh.asking import nobody
from slurmkit.ssh.border import SshSlurm
from slurmkit.ssh.section import ClusterSection


class Border(SshSlurm):
    """Slurm's commands are the stand-in's; shells and files are those behind the real sshd."""

    def __init__(self, running: RunningSlurm, section: ClusterSection) -> None:
        super().__init__("lab", section, nobody)
        self._running = running.slurm

    def run(self, argv: Sequence[str], **more: Any) -> str:  # type: ignore[override]
        return self._running.run(argv, **more)


class FarSlurm(RunningSlurm):
    """The recorded cluster, behind an sshd."""

    def __init__(self, section: ClusterSection) -> None:
        super().__init__()
        self.name = "lab"
        self.slurm: Border = Border(self, section)
        self.backend = CommandsBackend(self.slurm)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    made = Sshd(tmp_path_factory.mktemp("sshd"))
    yield made
    made.close()


@pytest.fixture
def cluster(sshd: Sshd, tmp_path: Path) -> Iterator[FarSlurm]:
    sshd.configure(sshd.port)
    section = ClusterSection(ssh_config=str(sshd.config), path=str(Spool(tmp_path).bin))
    made = FarSlurm(section)
    yield made
    made.end()
    made.slurm.connection.close()


def sent(cluster: FarSlurm, **more: Any) -> Executor:
    return Executor(cluster, partition="cpu", python=sys.executable, **more)


def square(x: int) -> int:
    return x * x


def troubled(x: int) -> int:
    if x == 3:
        raise ValueError(x)
    return x


def listed(sshd: Sshd) -> list[str]:
    runs = sshd.folder / ".local/state/slurmkit/calls/runs"
    return sorted(each.name for each in runs.iterdir()) if runs.exists() else []


def test_calls_and_what_comes_of_them(cluster: FarSlurm, sshd: Sshd) -> None:
    with sent(cluster, max_workers=4) as made:
        future = made.submit(square, 7)
        assert future.result(60) == 49
        assert future.log.is_relative_to(sshd.folder / ".local/state/slurmkit/calls/runs")
        futures = made.submit_all(troubled, range(10))
        assert isinstance(futures[3].exception(60), ValueError)
        rest = [each for each in futures if each.index != 3]
        assert [each.result(60) for each in rest] == [each.index for each in rest]
        assert len(made.submit(lambda: b"x" * (3 << 20)).result(60)) == 3 << 20
    assert len(cluster.submits) == 3
    for folder in ("results", "calls", "."):
        assert (future.log.parent / folder).stat().st_mode & 0o777 == 0o700
    for path in (future.log.parent / "run.json", future.log.parent / "calls" / "0"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_found_again_and_forgotten(cluster: FarSlurm) -> None:
    with sent(cluster) as made:
        future = made.submit(square, 3)
        assert future.result(60) == 9
    (again,) = Executor.attach(future.job, cluster)
    assert again.result(60) == 9
    cluster.jobs.queue.clear()
    Executor.forget(future.job, cluster)
    assert not future.log.parent.exists()
    with pytest.raises(BadInput, match=f"no calls of a job {future.job} were sent"):
        Executor.attach(future.job, cluster)


def test_what_is_given_up_is_not_made(cluster: FarSlurm, tmp_path: Path) -> None:
    """The task goes on with its other calls."""
    wait, made_in = tmp_path / "wait", tmp_path / "made"
    wait.touch()
    made_in.mkdir()

    def call(x: int) -> int:
        while wait.exists():
            time.sleep(0.02)
        (made_in / str(x)).touch()
        return x

    with sent(cluster, max_workers=1) as made:
        futures = made.submit_all(call, range(3))
        assert futures[1].cancel()
        end = time.monotonic() + 30
        while not (futures[1].log.parent / "cancelled-1").exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        wait.unlink()
        assert [futures[0].result(60), futures[2].result(60)] == [0, 2]
    assert sorted(each.name for each in made_in.iterdir()) == ["0", "2"]


def test_a_line_that_breaks_costs_no_result(cluster: FarSlurm, sshd: Sshd, tmp_path: Path) -> None:
    proxy = CuttingProxy(sshd.port)
    sshd.trusted(proxy.port)
    sshd.configure(proxy.port)
    go = tmp_path / "go"

    def call(x: int) -> int:
        while not go.exists():
            time.sleep(0.02)
        return x

    with sent(cluster, max_workers=2) as made:
        futures = made.submit_all(call, range(6))
        for _ in range(3):
            proxy.arm("up", 100)
            end = time.monotonic() + 30
            before = proxy.cuts
            while proxy.cuts == before and time.monotonic() < end:
                time.sleep(0.05)
        go.touch()
        assert [each.result(60) for each in futures] == list(range(6))
    assert proxy.cuts >= 3
    proxy.close()


@pytest.mark.parametrize("after", [500, 20_000, 60_000])
def test_what_does_not_arrive_whole_is_not_sent(cluster: FarSlurm, sshd: Sshd, after: int) -> None:
    proxy = CuttingProxy(sshd.port)
    sshd.trusted(proxy.port)
    sshd.configure(proxy.port)
    made = sent(cluster)
    before = listed(sshd)
    proxy.arm("up", after)
    with pytest.raises(SshError):
        made.submit(len, os.urandom(200_000))
    assert proxy.cuts == 1
    assert cluster.submits == []
    assert listed(sshd) == before
    assert made.submit(len, os.urandom(200_000)).result(60) == 200_000
    proxy.close()


def test_a_file_that_others_may_change_is_refused(cluster: FarSlurm) -> None:
    cluster.starts = False
    future = sent(cluster).submit(square, 1)
    result = resultfiles.Result(0, resultfiles.VALUE, pickle.dumps(2))
    aside = future.log.parent / "forged"
    aside.write_bytes(resultfiles.sized(resultfiles.dumped(result)))
    aside.chmod(0o622)
    aside.rename(future.log.parent / "results" / "0-0-0")
    with pytest.raises(ResultRefused, match=r"others may use it \(mode 622\)"):
        future.result(30)


def test_a_link_is_no_result(cluster: FarSlurm, tmp_path: Path) -> None:
    cluster.starts = False
    future = sent(cluster).submit(square, 1)
    (future.log.parent / "results" / "0-0-0").symlink_to(tmp_path)
    with pytest.raises(ResultRefused, match="not a regular file"):
        future.result(30)


def test_a_folder_that_others_may_change_is_refused(cluster: FarSlurm) -> None:
    with tempfile.TemporaryDirectory() as public:
        Path(public).chmod(0o777)
        with pytest.raises(BadInput, match=f"others may write to {public}, so they could change"):
            sent(cluster, folder=public)
        Path(public).chmod(0o1777)
        with sent(cluster, folder=public) as made:
            assert made.submit(square, 2).result(60) == 4
        assert (Path(public) / ".slurmkit-calls").stat().st_mode & 0o777 == 0o700


def test_the_wrong_python_and_none_are_named(
    cluster: FarSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Executor(cluster, partition="cpu", python="/no/python3") as made,
        pytest.raises(ResultLost, match=r"ends with: .*/no/python3"),
    ):
        made.submit(square, 1).result(60)
    with monkeypatch.context() as patch, sent(cluster) as made:
        patch.setattr(sys, "version_info", (3, 99, 0))
        future = made.submit(square, 1)
        with pytest.raises(PythonDiffers, match=r"the call was made by 3\.99"):
            future.result(60)


def test_the_python_of_the_nodes_is_one_of_the_same_version(cluster: FarSlurm) -> None:
    made = Executor(cluster, partition="cpu")
    major, minor = sys.version_info[:2]
    assert made._spec.command == (f"python{major}.{minor}",)
