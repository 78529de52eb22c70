"""`Executor`: Python calls as Slurm jobs, and many calls as a job array."""

from __future__ import annotations

import inspect
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, SentUnknown, SlurmError, SlurmkitError, SshError
from slurmkit.executor.base import CallExecutor
from slurmkit.executor.futures import AttachRun, CallFuture
from slurmkit.executor.options import ExecutorOptions, task_spec
from slurmkit.executor.runs import CallRun
from slurmkit.executor.store import LocalStore, Store
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.exit_codes import is_in_doubt
from slurmkit.jobs.lookup import read_queue_rows
from slurmkit.jobs.outcome import OutcomeEvidence, judge_outcome
from slurmkit.jobs.poller import settle_watched_codes
from slurmkit.planning.planner import Plan, plan
from slurmkit.planning.request import SiteState
from slurmkit.slurm.machine import machine_of
from slurmkit.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from slurmkit.jobs.info import JobInfo
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.poller import Watch, WatchedJob
    from slurmkit.slurm.ssh.login import SshSlurmCommands

MOST_TASKS = 32
"""Default number of tasks: Slurm needs some 0.1 s to start one, often more than a call takes."""
_SITE_SECONDS = 60.0  # time for which limits and their use are not read again
_MOST_LOOKS = 10  # lost tasks whose outcome is read in full; each takes several commands
_STOP_SECONDS = 2.0  # between two tries to cancel tasks
_PAUSE = 0.05  # seconds between two looks whether tasks are cancelled
_TASKS = {
    "nodes": "1",
    "ntasks": "1",
    "ntasks-per-node": "1",
}  # of one task


class PlanWarning(UserWarning):
    """A warning of the plan of the jobs that make calls, or a change by a site policy."""


class Executor(CallExecutor):
    """A `concurrent.futures.Executor` that makes calls in Slurm jobs.

        with Executor(partition="cpu", time="10", mem="2G") as executor:
            print(executor.submit(pow, 2, 10).result())
            print(list(executor.map(len, ["a", "bc"])))

    Args:
        cluster: the cluster; by default the one of this machine.
        max_workers: most array tasks that a map is divided into.
        folder: a folder shared by the nodes for calls and results; by default in ~/.local/state.
            Over SSH it is a folder of the login node.
        python: the jobs' interpreter, a path on the nodes or in the container, of the same version
            as this one. Default: this one; in a container `python3`; over SSH e.g. `python3.11`.
        progress: show a progress bar while waiting; None: if standard error is a terminal.
        options: fields of `JobSpec`, e.g. `time`, `mem`, `gpus` (also as text: `"a100:2"`), and of
            its `Survive`, e.g. `on_timeout="requeue"`.

    Raises:
        BadInput: for unknown options, and for a folder that others can change.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        max_workers: int = MOST_TASKS,
        folder: str | os.PathLike[str] | None = None,
        python: str | None = None,
        progress: bool | None = None,
        **options: Unpack[ExecutorOptions],
    ) -> None:
        self._cluster = cluster or Cluster()
        self._made: dict[str, Any] = {
            "max_workers": max_workers, "folder": folder, "python": python, "progress": progress,
            **options,
        }  # fmt: skip
        store = _store(self._cluster, folder)
        super().__init__(SlurmMonitor(self._cluster), store, max_workers, progress=progress)
        self._throttle = options.get("array_throttle")
        self._spec = task_spec(options, python, store)
        self._known: tuple[float, SiteState] | None = None

    @classmethod
    def attach(
        cls,
        job_id: str,
        cluster: Cluster | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> list[CallFuture[Any]]:
        """Return the futures of calls that were sent before, in order, by their job id.

        Args:
            job_id: id of the job or array, from a future's `job` or from the queue.
            cluster: the cluster they were sent to.
            folder: folder for this process's own calls; the folder of the others is on record.

        Raises:
            BadInput: when this user did not send them.
        """
        return cls(cluster, folder=folder).attach_run(whole_id(job_id))

    @classmethod
    def forget(cls, job_id: str, cluster: Cluster | None = None) -> None:
        """Remove the calls and results of a job for good. Nothing else removes them.

        Args:
            job_id: id of the job or array, from a future's `job` or from the queue.
            cluster: the cluster they were sent to.

        Raises:
            BadInput: when this user did not send them, or a task has not ended.
            SlurmkitError: when Slurm does not answer, or they cannot be removed.
        """
        cls(cluster).forget_run(whole_id(job_id))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle how the executor was made; its calls are found by their futures."""
        return partial(Executor, **self._made), (self._cluster,)

    @property
    def _attach(self) -> AttachRun:
        return _AttachOn(self._cluster)

    @property
    def _where(self) -> str:
        if self._store.machine.is_here:
            known = self._known[1].capabilities if self._known else self._cluster.capabilities()
            return known.cluster_name
        return cast("SshSlurmCommands", self._cluster.slurm).place

    def _send(self, run: CallRun, worker: str) -> CallRun:
        try:
            planned = plan(self._job_of(run, worker), self._cluster, ask=False, known=self._site())
            _refuse_tasks(planned)
            _warn_of_plan(planned)
            job = self._cluster.submit(planned)
        except SentUnknown:  # if there is a job, it needs the folder
            raise
        except BaseException:
            with suppress(OSError, SlurmkitError):
                self._store.remove(run.folder)
            raise
        ids = tuple(_task_ids(job, planned, len(run.tasks)))
        return msgspec.structs.replace(run, ids=ids, first=whole_id(job.id))

    def _unfinished(self, run: CallRun) -> str:
        whole = list(dict.fromkeys(map(whole_id, run.ids)))
        rows = read_queue_rows(self._cluster.backend, whole)
        live = next((row for own in rows.values() for row in own if not row.ended), None)
        return f"job {live.job_id} is {live.state.lower()}" if live else ""

    def _job_of(self, run: CallRun, worker: str) -> JobSpec:
        count, spec = len(run.tasks), self._spec
        pattern = "log-%A_%a.out" if count > 1 else "log-%j.out"
        # Without the number, a worker in an array would take the index of that array.
        task_number = () if count > 1 else ("0",)
        return msgspec.structs.replace(
            spec,
            command=(spec.command[0], worker, run.folder, *task_number),
            job_name=spec.job_name or run.name,
            array=f"0-{count - 1}" if count > 1 else None,
            array_throttle=self._throttle if count > 1 else None,
            output=str(Path(run.folder.replace("%", "%%")) / pattern),
        )

    def _site(self) -> SiteState:
        """Read the cluster's capabilities and this user's limits, at most once a minute."""
        now = time.monotonic()
        if self._known is None or now - self._known[0] > _SITE_SECONDS:
            self._known = now, SiteState(self._cluster.capabilities(), self._cluster.standing())
        return self._known[1]


class _AttachOn(msgspec.Struct, frozen=True):
    """`Executor.attach` on a cluster."""

    cluster: Cluster

    def __call__(self, job_id: str) -> list[CallFuture[Any]]:
        return Executor.attach(job_id, self.cluster)


def _store(cluster: Cluster, folder: str | os.PathLike[str] | None) -> Store:
    if machine_of(cluster.slurm).is_here:
        return LocalStore(folder)
    from slurmkit.executor.remote_store import RemoteStore  # noqa: PLC0415 - needs the extra

    slurm = cast("SshSlurmCommands", cluster.slurm)
    return RemoteStore(slurm, None if folder is None else os.fspath(folder))


def _refuse_tasks(made: Plan) -> None:
    """Refuse several tasks per step: each would make all calls and write to the same files."""
    options = dict(made.submissions[0].options)
    more = next(
        (f"--{n}={options[n]}" for n in _TASKS if options.get(n, _TASKS[n]) != _TASKS[n]), ""
    )
    if more and made.spec.launch.launcher != "none":
        raise BadInput(
            f"{more} would make each call in several tasks, and a call is for one task; for more"
            " CPUs use cpus_per_task=…; if the call itself starts the other tasks, use"
            ' launch=Launch(launcher="none")'
        )


def _warn_of_plan(made: Plan) -> None:
    """Issue the plan's warnings, and the changes that site policies made."""
    changes = (
        f"policy {c.policy} changed {c.field} from {c.before!r} to {c.after!r}"
        for c in made.changes
    )
    # Our worker reads the user's array index, as that warning demands.
    warned = (each.message for each in made.warnings if each.code != "array-index")
    for words in (*changes, *warned):
        warnings.warn(words, PlanWarning, stacklevel=_level_of_caller())


def _level_of_caller() -> int:
    """Return the `stacklevel` with which a warning names the line outside slurmkit that led here.

    `submit` and `map` are a different number of frames away. From Python 3.12 on
    `skip_file_prefixes` would do it.
    """
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("slurmkit."):
        level, frame = level + 1, frame.f_back
    return level


def _task_ids(job: Job, made: Plan, count: int) -> Iterator[str]:
    """Yield Slurm's id of each task."""
    if count == 1:
        yield job.id
        return
    ids: dict[int, str] = {}
    for part, sent in zip(job.parts, made.submissions, strict=True):
        tasks = sent.part.tasks if sent.part else range(count)
        offset = sent.part.offset if sent.part else 0
        ids |= {task: f"{part.id}_{task - offset}" for task in tasks}
    yield from (ids[task] for task in range(count))


class _WatchedTask(NamedTuple):
    watch: Watch
    job_id: str

    @property
    def known(self) -> WatchedJob:
        return self.watch.known[self.job_id]


class SlurmMonitor:
    """The `JobMonitor` of Slurm jobs; the cluster's poller asks about all tasks at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._watched: dict[str, _WatchedTask] = {}
        self._to_stop: set[str] = set()
        self._tried = 0.0
        self._looks = iter(range(_MOST_LOOKS))
        self._whole: dict[str, WatchedJob] = {}  # ended tasks, once their codes were looked up

    def look(self, job_ids: Iterable[str]) -> Mapping[str, bool | None]:
        self._try_to_stop()
        ids = set(job_ids)
        # An SSH outage tells nothing about a task: watch such tasks again.
        watched = self._watched.items()
        unknown = {job_id for job_id, each in watched if isinstance(each.known.error, SshError)}
        for job_id in unknown | (self._watched.keys() - ids):
            self._cluster.poller.forget(self._watched.pop(job_id).watch.job_ids)
        for job_id in ids - self._watched.keys():
            self._watched[job_id] = _WatchedTask(self._cluster.poller.watch([job_id]), job_id)
        return {job_id: _state(each.known) for job_id, each in self._watched.items()}

    def describe_end(self, job_id: str) -> str:
        known = self._watched[job_id].known
        if known.error is not None:
            return str(known.error)
        if next(self._looks, None) is not None:
            try:
                return self._cluster.job(job_id).outcome().words
            except SlurmkitError:
                pass  # fall back on the poller's facts
        info = self._with_whole_code(job_id, known.info)
        return judge_outcome(info, OutcomeEvidence()).words if info else "it has ended"

    def _with_whole_code(self, job_id: str, info: JobInfo | None) -> JobInfo | None:
        """Return the facts of an ended task with its whole exit code, where Slurm still tells it.

        All tasks whose codes are in doubt are asked about together, and once.
        """
        if info is None or not is_in_doubt(info):
            return info
        if job_id not in self._whole:
            known = {each.job_id: each.known for each in self._watched.values()}
            self._whole |= settle_watched_codes(self._cluster.slurm, known)
        return self._whole[job_id].info

    def stop(self, job_ids: Iterable[str]) -> None:
        self._to_stop |= set(job_ids)
        self._tried = 0.0
        self._try_to_stop()

    def is_busy(self) -> bool:
        return bool(self._to_stop)

    def finish(self, seconds: float) -> None:
        """Wait for some seconds until Slurm has taken every `scancel`; it starts jobs by itself."""
        end = time.monotonic() + seconds
        while self._to_stop and time.monotonic() < end:
            time.sleep(_PAUSE)
        if left := sorted(self._to_stop):
            words = f"slurmkit: not cancelled; do it yourself: scancel {' '.join(left)}"
            print(words, file=sys.stderr)

    def _try_to_stop(self) -> None:
        """Cancel the tasks of `_to_stop`; if Slurm does not answer, keep them for a later try."""
        if not self._to_stop or time.monotonic() - self._tried < _STOP_SECONDS:
            return
        self._tried = time.monotonic()
        try:
            self._cluster.backend.cancel(sorted(self._to_stop))
        except SlurmError:
            return
        self._to_stop.clear()


def _state(known: WatchedJob) -> bool | None:
    """Return the state that `JobMonitor.look` gives."""
    if known.settled:
        return False
    return True if known.info and known.info.state == "RUNNING" else None
