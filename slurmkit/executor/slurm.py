"""The executor of a Slurm cluster: calls become jobs, and many together a job array."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from slurmkit.cluster import Cluster
from slurmkit.config import nearest
from slurmkit.container import Container
from slurmkit.errors import BadInput, SentUnknown, SlurmError, SlurmkitError, SshError
from slurmkit.executor.calls import CallExecutor
from slurmkit.executor.future import CallFuture
from slurmkit.executor.runs import Run
from slurmkit.executor.store import Here, Store
from slurmkit.gpus import Gpus
from slurmkit.jobs.ids import whole_id
from slurmkit.jobs.lookup import in_queue
from slurmkit.jobs.outcome import Evidence
from slurmkit.jobs.verdict import outcome_of
from slurmkit.machine import machine_of
from slurmkit.planner import Plan, plan
from slurmkit.spec import JobSpec, Launch, Survive

if TYPE_CHECKING:
    from slurmkit.jobs.job import Job
    from slurmkit.jobs.progress import Known
    from slurmkit.jobs.watch import Watch
    from slurmkit.planning.requests import Site
    from slurmkit.ssh.border import SshSlurm

MOST_TASKS = 32
"""Starting a task costs Slurm some 0.1 s, and a call often less."""
_SITE_SECONDS = 60.0  # for which limits and their use are not read anew
_MOST_LOOKS = 10  # for more than the poller saw of a lost task: each takes some commands
_STOP_SECONDS = 2.0  # between two tries to end tasks
_TASKS = {
    "nodes": "1",
    "ntasks": "1",
    "ntasks-per-node": "1",
    "ntasks-per-gpu": None,
}  # of one task
_OURS = ("array", "command", "error", "output", "script", "sweep")


class PlanWarning(UserWarning):
    """What is worth knowing of the jobs that calls become."""


class Executor(CallExecutor):
    """Makes calls in jobs of Slurm; a `concurrent.futures.Executor`.

        with Executor(partition="cpu", time="10", mem="2G") as executor:
            print(executor.submit(pow, 2, 10).result())
            print(list(executor.map(len, ["a", "bc"])))

    Args:
        cluster: where; that of this machine by default.
        max_workers: the most tasks of an array that a map is divided into.
        folder: one that the nodes share, where calls and results are kept; by default below the
            home directory, in ~/.local/state. Over SSH it is one of the login node.
        python: the interpreter of the jobs, of this one's version: a path on the nodes, or in the
            container; by default this one, in a container `python3`, and over SSH `python3.11`, or
            whatever the version here is.
        progress: show a bar while calls are waited for; None: where standard error is a terminal.
        options: fields of `JobSpec`, e.g. `time`, `mem`, `gpus` (also as text: `"a100:2"`), and of
            its `Survive`, e.g. `on_timeout="requeue"`.

    Raises:
        BadInput: for options that are none, and for a folder that others may change.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        *,
        max_workers: int = MOST_TASKS,
        folder: str | os.PathLike[str] | None = None,
        python: str | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> None:
        self._cluster = cluster or Cluster()
        store = _store(self._cluster, folder)
        super().__init__(_Jobs(self._cluster), store, max_workers, progress=progress)
        self._throttle: int | None = options.pop("array_throttle", None)
        self._spec = _spec(options, python, store)
        self._known: tuple[float, Site] | None = None

    @classmethod
    def attach(
        cls,
        job_id: str,
        cluster: Cluster | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
    ) -> list[CallFuture]:
        """The futures of calls that were sent before, in order, by their job's id.

        Args:
            job_id: of the job or array, as a future's `job` has it, or the queue.
            cluster: where they were sent.
            folder: where this process keeps calls of its own; theirs is remembered.

        Raises:
            BadInput: when they were not sent by this user.
        """
        return cls(cluster, folder=folder).found(whole_id(job_id))

    @classmethod
    def forget(cls, job_id: str, cluster: Cluster | None = None) -> None:
        """Remove calls and results of a job, for good: nothing else does.

        Args:
            job_id: of the job or array, as a future's `job` has it, or the queue.
            cluster: where they were sent.

        Raises:
            BadInput: when they were not sent by this user, or are not over.
            SlurmkitError: when Slurm does not say so, or they cannot be removed.
        """
        cls(cluster).forgotten(whole_id(job_id))

    @property
    def _where(self) -> str:
        if self._store.machine.is_here:
            known = self._known[1][0] if self._known else self._cluster.capabilities()
            return known.cluster_name
        return cast("SshSlurm", self._cluster.slurm).place

    def _send(self, run: Run, worker: str) -> Run:
        try:
            made = plan(self._job_of(run, worker), self._cluster, ask=False, known=self._site())
            _refuse_tasks(made)
            _tell(made)
            job = self._cluster.submit(made)
        except SentUnknown:  # there may be a job, and it would look there
            raise
        except BaseException:
            with suppress(OSError, SlurmkitError):
                self._store.remove(run.folder)
            raise
        ids = tuple(_ids(job, made, len(run.tasks)))
        return msgspec.structs.replace(run, ids=ids, first=whole_id(job.id))

    def _at_work(self, run: Run) -> str:
        whole = list(dict.fromkeys(map(whole_id, run.ids)))
        rows = in_queue(self._cluster.backend, whole)
        live = next((row for own in rows.values() for row in own if not row.ended), None)
        return f"job {live.job_id} is {live.state.lower()}" if live else ""

    def _job_of(self, run: Run, worker: str) -> JobSpec:
        count, spec = len(run.tasks), self._spec
        pattern = "log-%A_%a.out" if count > 1 else "log-%j.out"
        only = () if count > 1 else ("0",)  # whatever array this process may be of
        return msgspec.structs.replace(
            spec,
            command=(spec.command[0], worker, run.folder, *only),
            job_name=spec.job_name or run.name,
            array=f"0-{count - 1}" if count > 1 else None,
            array_throttle=self._throttle if count > 1 else None,
            output=str(Path(run.folder.replace("%", "%%")) / pattern),
        )

    def _site(self) -> Site:
        now = time.monotonic()
        if self._known is None or now - self._known[0] > _SITE_SECONDS:
            self._known = now, (self._cluster.capabilities(), self._cluster.standing())
        return self._known[1]


def _store(cluster: Cluster, folder: str | os.PathLike[str] | None) -> Store:
    if machine_of(cluster.slurm).is_here:
        return Here(folder)
    from slurmkit.ssh.calls import There  # noqa: PLC0415 - needs the extra

    slurm = cast("SshSlurm", cluster.slurm)
    return There(slurm, None if folder is None else os.fspath(folder))


def _spec(options: dict[str, Any], python: str | None, store: Store) -> JobSpec:
    """The job of every task; its command is but the interpreter yet."""
    known = [name for name in JobSpec.__struct_fields__ if name not in _OURS]
    policy = {name: options[name] for name in Survive.__struct_fields__ if name in options}
    for name in options.keys() - policy.keys():
        if name not in known:
            ways = [*known, *Survive.__struct_fields__]
            raise BadInput(f"a job has no option {name!r} here; {nearest(name, ways)}")
    own = {name: value for name, value in options.items() if name not in policy}
    own["survive"] = msgspec.structs.replace(own.get("survive") or Survive(), **policy)
    given = {"open_mode": "append", **own}  # a task that is requeued goes on
    if isinstance(given.get("gpus"), str):
        given["gpus"] = Gpus.parse(given["gpus"])
    container = given.get("container")
    if container is not None:
        given["container"] = _seeing(container, store.folder)
    elif not (own["survive"].on_oom or own["survive"].on_preempt):
        # A step costs time. It ends alone when it has too little memory, and hears of a preemption.
        given.setdefault("launch", Launch(launcher="none"))
    return JobSpec(command=(python or _python(store, container),), **given)


def _python(store: Store, container: Container | None) -> str:
    if container is not None:
        return "python3"
    return (
        sys.executable
        if store.machine.is_here
        else f"python{sys.version_info[0]}.{sys.version_info[1]}"
    )


def _seeing(container: Container, folder: str) -> Container:
    """A container that sees where calls are; what a bundle sees is its own to say."""
    if container.source is not None and container.source.kind == "bundle":
        return container
    return msgspec.structs.replace(container, mounts=(*container.mounts, folder))


def _refuse_tasks(made: Plan) -> None:
    """Each task of a step would make all of the calls, and write to the same files."""
    options = dict(made.submissions[0].options)
    more = next(
        (f"--{n}={options[n]}" for n in _TASKS if options.get(n, _TASKS[n]) != _TASKS[n]), ""
    )
    if more and made.spec.launch.launcher != "none":
        raise BadInput(
            f"a call is made by one task, and {more} would start it in each of several; for more"
            " CPUs say cpus_per_task=…, for a call that starts the other tasks itself"
            ' launch=Launch(launcher="none")'
        )


def _tell(made: Plan) -> None:
    """What the plan warns of, and what the site's policies changed in it."""
    changes = (f"{c.field} {c.before!r} is {c.after!r} by policy {c.policy}" for c in made.changes)
    # Our worker reads the index in the whole array, as it should.
    warned = (each.message for each in made.warnings if each.code != "array-index")
    for words in (*changes, *warned):
        warnings.warn(words, PlanWarning, stacklevel=6)


def _ids(job: Job, made: Plan, count: int) -> Iterator[str]:
    """The id that Slurm has for each task."""
    if count == 1:
        yield job.id
        return
    found: dict[int, str] = {}
    for part, sent in zip(job.parts, made.submissions, strict=True):
        tasks = sent.part.tasks if sent.part else range(count)
        offset = sent.part.offset if sent.part else 0
        found |= {task: f"{part.id}_{task - offset}" for task in tasks}
    yield from (found[task] for task in range(count))


class _Asked(NamedTuple):
    watch: Watch
    job_id: str

    @property
    def known(self) -> Known:
        return self.watch.known[self.job_id]


class _Jobs:
    """See `slurmkit.executor.follow.Place`; the poller asks about all tasks together."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._asked: dict[str, _Asked] = {}
        self._to_stop: set[str] = set()
        self._tried = 0.0
        self._looks = iter(range(_MOST_LOOKS))

    def look(self, job_ids: Iterable[str]) -> Mapping[str, bool | None]:
        """See `Place.look`."""
        self._try_to_stop()
        ids = set(job_ids)
        unknown = {i for i, each in self._asked.items() if isinstance(each.known.error, SshError)}
        for job_id in unknown | (self._asked.keys() - ids):  # of an outage nothing follows
            self._cluster.poller.forget(self._asked.pop(job_id).watch.job_ids)
        for job_id in ids - self._asked.keys():
            self._asked[job_id] = _Asked(self._cluster.poller.watch([job_id]), job_id)
        return {job_id: _state(each.known) for job_id, each in self._asked.items()}

    def words(self, job_id: str) -> str:
        """See `Place.words`."""
        known = self._asked[job_id].known
        if known.error is not None:
            return str(known.error)
        if next(self._looks, None) is not None:
            try:
                return self._cluster.job(job_id).outcome().words
            except SlurmkitError:
                pass  # what the poller saw is left
        return outcome_of(known.info, Evidence()).words if known.info else "it is over"

    def stop(self, job_ids: Iterable[str]) -> None:
        """See `Place.stop`."""
        self._to_stop |= set(job_ids)
        self._tried = 0.0
        self._try_to_stop()

    def _try_to_stop(self) -> None:
        """Slurm may be away: nothing is forgotten."""
        if not self._to_stop or time.monotonic() - self._tried < _STOP_SECONDS:
            return
        self._tried = time.monotonic()
        try:
            self._cluster.backend.cancel(sorted(self._to_stop))
        except SlurmError:
            return
        self._to_stop.clear()


def _state(known: Known) -> bool | None:
    if known.settled:
        return False
    return True if known.info and known.info.state == "RUNNING" else None
