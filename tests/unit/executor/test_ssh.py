"""Calls that are sent over SSH: a real sshd, and jobs that are processes behind it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from executor_lab import RunningSlurm
from ssh_lab import Spool, Sshd, shared_sshd
from waiting import PATIENCE, wait_until

from slurmkit.errors import (
    BadInput,
    PythonDiffers,
    ResultLost,
    ResultRefused,
    SlurmkitError,
    SshError,
    Unreachable,
)
from slurmkit.executor import follower, resultfiles
from slurmkit.executor.remote_store import RemoteStore
from slurmkit.executor.slurm import Executor
from slurmkit.jobs.backends.commands import CommandsBackend
from slurmkit.slurm.ssh.authentication import ask_nobody
from slurmkit.slurm.ssh.hosts import ClusterSection
from slurmkit.slurm.ssh.login import SshSlurmCommands


class Border(SshSlurmCommands):
    """Slurm's commands are the stand-in's; shells and files are those behind the real sshd."""

    def __init__(self, running: RunningSlurm, section: ClusterSection) -> None:
        super().__init__("lab", section, ask_nobody)
        self._running = running.slurm

        self.away: SshError | None = None
        self.refused = 0

    def run(self, argv: Sequence[str], **more: Any) -> str:  # type: ignore[override]
        self._try()
        return self._running.run(argv, **more)

    def stream(self, argv: Sequence[str], **more: Any) -> Generator[str, None, None]:
        self._try()
        yield from self._running.stream(argv, **more)

    def _try(self) -> None:
        if self.away is not None:
            self.refused += 1
            raise self.away


class FarSlurm(RunningSlurm):
    """The recorded cluster, behind an sshd."""

    def __init__(self, section: ClusterSection) -> None:
        super().__init__()
        self.name = "lab"
        self.slurm: Border = Border(self, section)
        self.backend = CommandsBackend(self.slurm)


assert shared_sshd  # a fixture


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
        assert future.result(PATIENCE) == 49
        assert future.log.is_relative_to(sshd.folder / ".local/state/slurmkit/calls/runs")
        futures = made.submit_all(troubled, range(10))
        assert isinstance(futures[3].exception(PATIENCE), ValueError)
        rest = [each for each in futures if each.index != 3]
        assert [each.result(PATIENCE) for each in rest] == [each.index for each in rest]
        assert len(made.submit(lambda: b"x" * (3 << 20)).result(PATIENCE)) == 3 << 20
    assert len(cluster.submits) == 3
    for folder in ("results", "calls", "."):
        assert (future.log.parent / folder).stat().st_mode & 0o777 == 0o700
    for path in (future.log.parent / "run.json", future.log.parent / "calls" / "0"):
        assert path.stat().st_mode & 0o777 == 0o600


def test_found_again_and_forgotten(cluster: FarSlurm) -> None:
    with sent(cluster) as made:
        future = made.submit(square, 3)
        assert future.result(PATIENCE) == 9
    (again,) = Executor.attach(future.job, cluster)
    assert again.result(PATIENCE) == 9
    cluster.jobs.queue.clear()
    Executor.forget(future.job, cluster)
    assert not future.log.parent.exists()
    words = f"no record of calls that you sent to .* as job {future.job} from"
    with pytest.raises(BadInput, match=words):
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
        wait_until((futures[1].log.parent / "cancelled-1").exists)
        wait.unlink()
        assert [futures[0].result(PATIENCE), futures[2].result(PATIENCE)] == [0, 2]
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
            before = proxy.cuts
            wait_until(lambda before=before: proxy.cuts > before)
        go.touch()
        assert [each.result(PATIENCE) for each in futures] == list(range(6))
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
    assert made.submit(len, os.urandom(200_000)).result(PATIENCE) == 200_000
    proxy.close()


def test_a_file_that_others_may_change_is_refused(cluster: FarSlurm) -> None:
    cluster.starts = False
    future = sent(cluster).submit(square, 1)
    result = resultfiles.StoredResult(0, resultfiles.VALUE, pickle.dumps(2))
    aside = future.log.parent / "forged"
    aside.write_bytes(resultfiles.sized(resultfiles.dumped(result)))
    aside.chmod(0o622)
    aside.rename(future.log.parent / "results" / "0-0-0")
    with pytest.raises(ResultRefused, match=r"others may read or change it \(mode 622\)"):
        future.result(PATIENCE)


def test_a_link_is_no_result(cluster: FarSlurm, tmp_path: Path) -> None:
    cluster.starts = False
    future = sent(cluster).submit(square, 1)
    (future.log.parent / "results" / "0-0-0").symlink_to(tmp_path)
    with pytest.raises(ResultRefused, match="not a regular file"):
        future.result(PATIENCE)


def test_a_folder_that_others_may_change_is_refused(cluster: FarSlurm) -> None:
    with tempfile.TemporaryDirectory() as public:
        Path(public).chmod(0o777)
        with pytest.raises(BadInput, match=f"others may write to {public}, so they could change"):
            sent(cluster, folder=public)
        Path(public).chmod(0o1777)
        with sent(cluster, folder=public) as made:
            assert made.submit(square, 2).result(PATIENCE) == 4
        assert (Path(public) / ".slurmkit-calls").stat().st_mode & 0o777 == 0o700


def test_the_wrong_python_and_none_are_named(
    cluster: FarSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Executor(cluster, partition="cpu", python="/no/python3") as made,
        pytest.raises(ResultLost, match=r"ends with: .*/no/python3"),
    ):
        made.submit(square, 1).result(PATIENCE)
    with monkeypatch.context() as patch, sent(cluster) as made:
        patch.setattr(sys, "version_info", (3, 99, 0))
        future = made.submit(square, 1)
        with pytest.raises(PythonDiffers, match=r"the call was made with Python 3\.99"):
            future.result(PATIENCE)


@pytest.mark.parametrize("kind", [Unreachable, SshError])
def test_an_outage_that_lasts_loses_nothing(
    cluster: FarSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[SshError]
) -> None:
    """Not even when nobody can log in anew for longer than a result may be late."""
    monkeypatch.setattr(follower, "_GRACE", 0.1)
    monkeypatch.setattr(follower, "_CUT", (0.05, 0.1))
    go = tmp_path / "go"

    def call(x: int) -> int:
        while not go.exists():
            time.sleep(0.02)
        return x

    with sent(cluster) as made:
        future = made.submit(call, 3)
        wait_until(future.running)
        cluster.slurm.away = kind("the line is away")
        wait_until(lambda: cluster.slurm.refused >= 12)
        cluster.slurm.away = None
        time.sleep(1)
        assert not future.done()
        go.touch()
        assert future.result(PATIENCE) == 3


def test_an_outage_without_end_is_told_to_all_at_once(
    cluster: FarSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_HICCUP", 1.0)
    monkeypatch.setattr(follower, "_CUT", (0.05, 0.1))
    cluster.starts = False
    made = sent(cluster)
    futures = [made.submit(square, x) for x in range(4)]

    def away(store: RemoteStore, paths: list[str], *, fresh: bool) -> dict[str, list[str]]:
        del store, paths, fresh
        raise Unreachable("cannot reach lab")

    monkeypatch.setattr(RemoteStore, "names", away)
    for future in futures:
        words = str(future.exception(PATIENCE))
        assert "cannot follow the job: Unreachable: cannot reach lab" in words


def test_what_is_lost_is_said_with_the_last_words(cluster: FarSlurm) -> None:
    with sent(cluster) as made:
        future = made.submit(lambda: print("so far", flush=True) or time.sleep(60))
        wait_until(lambda: future.log.exists() and "so far" in future.log.read_text())
        cluster.processes[future.job_id].kill()
        with pytest.raises(ResultLost, match="ends with: so far"):
            future.result(PATIENCE)


def test_ctrl_c_in_an_upload_leaves_a_line_that_works(cluster: FarSlurm, sshd: Sshd) -> None:
    def pressed(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, pressed)
    made = sent(cluster)
    known = listed(sshd)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            made.submit(len, os.urandom(200_000_000))
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert cluster.submits == []
    assert listed(sshd) == known
    assert made.submit(square, 4).result(PATIENCE) == 16


def test_files_are_closed_while_others_are_read(cluster: FarSlurm, tmp_path: Path) -> None:
    """A log's end is read beside an upload."""
    machine, failed = cluster.slurm.machine, []
    (tmp_path / "log").write_bytes(b"x" * 5000)

    def again(act: Callable[[], object]) -> None:
        try:
            for _ in range(60):
                act()
        except Exception as error:  # noqa: BLE001 - any is one too many
            failed.append(error)

    def reads() -> None:
        with machine.open(str(tmp_path / "log")) as file:
            file.read(100)

    acts = (reads, lambda: machine.files.call(lambda sftp: sftp.listdir(str(tmp_path))))
    threads = [threading.Thread(target=again, args=(act,), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert failed == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small filesystem")
def test_a_full_disk_is_named(cluster: FarSlurm, tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no filesystem can be mounted here")
    try:
        made = sent(cluster, folder=tmp_path)
        with pytest.raises(SlurmkitError, match=r"cannot write calls to .*: .*; make room there"):
            made.submit(len, os.urandom(30_000_000))
        assert cluster.submits == []
        with made:
            assert made.submit(square, 3).result(PATIENCE) == 9
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_folders_are_listed_together(cluster: FarSlurm, tmp_path: Path) -> None:
    store = RemoteStore(cluster.slurm, str(tmp_path))
    names = ["none", "one", "gone", "two and more", "empty"]
    folders = [str(tmp_path / name) for name in names]
    for folder in folders[:2] + folders[3:]:
        Path(folder).mkdir()
    (tmp_path / "one" / "0-0-0").touch()
    for name in ("1-0-0", "1-0-1", ".aside"):
        (tmp_path / "two and more" / name).touch()
    for fresh in (False, True):
        calls = cluster.slurm.calls
        found = store.names(folders, fresh=fresh)
        assert cluster.slurm.calls - calls <= 1
        assert [found[folders[at]] for at in (0, 1, 4)] == [[], ["0-0-0"], []]
        assert sorted(found[folders[3]]) == [".aside", "1-0-0", "1-0-1"]  # type: ignore[arg-type]
        assert isinstance(found[folders[2]], FileNotFoundError)
    assert store.names([], fresh=True) == {}


def test_what_is_sent_is_of_today(cluster: FarSlurm) -> None:
    """Some sites remove what is old."""
    cluster.starts = False
    folder = sent(cluster).submit(square, 1).log.parent
    worker = next(folder.parent.parent.glob("worker-*"))
    sent_files = (folder / "run.json", folder / "calls" / "0", worker / "slurmkit_call.py")
    for path in (folder, *sent_files):
        assert time.time() - path.stat().st_mtime < 600


def test_it_is_the_same_cluster_however_it_is_used() -> None:
    plain = SshSlurmCommands("lab", ClusterSection(host="h"), ask_nobody)
    assert SshSlurmCommands(
        "lab", ClusterSection(host="h", folder="p", path="/x"), ask_nobody
    ).place == (plain.place)
    assert SshSlurmCommands("lab", ClusterSection(host="other"), ask_nobody).place != plain.place


PACKAGE = {
    "__init__.py": """
        import threading
        import farproject.shapes
        LOCK = threading.Lock()
    """,
    "shapes.py": """
        import functools
        import threading
        import farproject.errors
        LOCK = threading.Lock()

        class Point:
            def __init__(self, x):
                self.x = x
            def __eq__(self, other):
                return type(other) is type(self) and other.x == self.x

        @functools.lru_cache
        def cached(x):
            return x + 1

        def moved(x):
            from farproject import later
            with LOCK:
                return Point(cached(x) + later.STEP)

        def failing(x):
            raise farproject.errors.Wrong(x)
    """,
    "errors.py": """
        import farproject.shapes

        class Wrong(Exception):
            pass
    """,
    "later.py": "STEP = 10\n",
}


def test_own_modules_travel(
    cluster: FarSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are: packages that import each other, what is imported late, classes, locks."""
    folder = tmp_path / "farproject"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(textwrap.dedent(text), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from farproject import errors, shapes  # type: ignore[import-not-found]  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "an_alias", shapes)
    monkeypatch.setattr(shapes, "unpicklable", threading.Lock(), raising=False)
    with sent(cluster) as made:
        sys_path = made.submit(lambda: list(sys.path)).result(PATIENCE)
        assert str(tmp_path) not in sys_path
        point = made.submit(shapes.moved, 1).result(PATIENCE)
        assert point == shapes.Point(12)
        with pytest.raises(errors.Wrong) as caught:
            made.submit(shapes.failing, 1).result(PATIENCE)
        assert caught.value.args == (1,)
    for name in [name for name in sys.modules if name.partition(".")[0] == "farproject"]:
        monkeypatch.delitem(sys.modules, name)


def test_the_python_of_the_nodes_is_one_of_the_same_version(cluster: FarSlurm) -> None:
    made = Executor(cluster, partition="cpu")
    major, minor = sys.version_info[:2]
    assert made._spec.command == (f"python{major}.{minor}",)
