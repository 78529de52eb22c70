"""One thread that asks Slurm about all the jobs a process waits for.

It starts with the first watch, asks once for all ids together (squeue, then sacct for what is not
live in the queue), and less often while nothing changes. While Slurm does not answer it goes on
asking; nothing is ever guessed (`slurmkit.jobs.progress`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec

from slurmkit.errors import (
    ConnectionLost,
    ControllerDown,
    DatabaseDown,
    HostKeyRefused,
    SlurmError,
    SlurmkitError,
    SlurmMissing,
    SlurmTimeout,
    Unreachable,
)
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.lookup import in_database, in_queue
from slurmkit.jobs.progress import Known, Seen, learn
from slurmkit.jobs.watch import Watch
from slurmkit.plugins import Backend
from slurmkit.slurm import Slurm

_TOGETHER_SECONDS = 0.05  # jobs that are watched one right after the other are asked for at once
_REFUSALS = 5  # so often in a row, and it is no hiccup of a busy slurmctld
_OUTAGES = (ControllerDown, DatabaseDown, SlurmTimeout, Unreachable, ConnectionLost)
_FOR_GOOD = (SlurmMissing, HostKeyRefused)


class PollSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[poll]`.

    Attributes:
        floor_seconds: how long to wait at least between two looks at the queue, at this site.
    """

    floor_seconds: Annotated[float, msgspec.Meta(ge=0.1)] = 2.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often Slurm is asked, in seconds.

    Attributes:
        first: between two looks when something has just changed.
        longest: between two looks when nothing has changed for long.
        growth: how many times as long as the one before an interval is while nothing changes.
        floor: no interval is shorter.
    """

    first: float = 2.0
    longest: float = 30.0
    growth: float = 1.5
    floor: float = 2.0

    def after(self, interval: float, *, changed: bool) -> float:
        """The interval that follows one in which something changed, or nothing did."""
        longer = min(interval * self.growth, self.longest)
        return max(self.floor, self.first if changed else longer)


class Poller:
    """Looks at jobs for any number of watches.

    Args:
        backend: how slurmctld is asked.
        slurm: how slurmdbd is asked.
        pace: how often.

    Attributes:
        calls: looks at squeue and at sacct so far, each at least one RPC.
        trouble: why Slurm does not answer at the moment, in words; None when it does.
    """

    def __init__(self, backend: Backend, slurm: Slurm, pace: Pace | None = None) -> None:
        self._backend = backend
        self._slurm = slurm
        self._pace = pace or Pace()
        self.calls = 0
        self.trouble: str | None = None
        self._refusals = 0
        self._known: dict[str, Known] = {}
        self._watchers: dict[str, int] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._soon = False

    def watch(self, job_ids: Iterable[str]) -> Watch:
        """Look at jobs until the watch is closed; for a `with` statement."""
        ids = tuple(dict.fromkeys(job_ids))
        with self._changed:
            for job_id in ids:
                self._known.setdefault(job_id, Known())
                self._watchers[job_id] = self._watchers.get(job_id, 0) + 1
            self._soon = True
            if self._thread is None or not self._thread.is_alive():  # not alive after a fork
                self._thread = threading.Thread(target=self._run, name="slurmkit-poll", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return Watch(self, ids)

    def forget(self, job_ids: Iterable[str]) -> None:
        """Close a watch of these jobs."""
        with self._changed:
            for job_id in job_ids:
                self._watchers[job_id] -= 1
                if not self._watchers[job_id]:
                    del self._watchers[job_id], self._known[job_id]

    def known(self, job_ids: Iterable[str]) -> dict[str, Known]:
        """What is known of watched jobs."""
        with self._changed:
            return {job_id: self._known[job_id] for job_id in job_ids}

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Block until a look made `condition` true, or `timeout` seconds have passed."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def _run(self) -> None:
        interval, looked = self._pace.first, float("-inf")
        while True:
            self._rest(looked, interval)
            changed = self._look()
            looked = time.monotonic()
            interval = self._pace.after(interval, changed=changed)

    def _rest(self, looked: float, interval: float) -> None:
        """Sleep until it is time to look; what is new is looked at as soon as the floor allows."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._asked()))
            new = self._soon
            if not new:
                due = looked + interval
                new = self._changed.wait_for(lambda: self._soon, due - time.monotonic())
            if new:
                due = max(looked + self._pace.floor, time.monotonic() + _TOGETHER_SECONDS)
        if new:
            time.sleep(max(0, due - time.monotonic()))

    def _asked(self) -> list[str]:
        return [job_id for job_id, known in self._known.items() if not known.settled]

    def _look(self) -> bool:
        """Ask once about every job; returns whether anything has changed."""
        with self._changed:
            self._soon = False
            asked = {job_id: self._known[job_id] for job_id in self._asked()}
        try:
            seen = self._see(asked) if asked else {}
            after = {job_id: learn(job_id, asked[job_id], one) for job_id, one in seen.items()}
        except SlurmkitError as error:
            return self._troubled(error, asked)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            wrong = SlurmError(f"watching jobs failed: {type(error).__name__}: {error}")
            return self._tell({job_id: Known(error=wrong) for job_id in asked}, None)
        self._refusals = 0
        silent = next((one.silent for one in seen.values() if _is_outage(one.silent)), None)
        return self._tell(after, str(silent) if silent else None)

    def _see(self, asked: Mapping[str, Known]) -> dict[str, Seen]:
        self.calls += 1
        user = None if self._refusals else _only_user(asked.values())  # it may be that one
        rows = in_queue(self._backend, list(asked), user)
        gone = [job_id for job_id, own in rows.items() if all(row.ended for row in own)]
        runs: dict[str, list[JobInfo]] = {}
        silent: SlurmError | None = None
        if gone:
            self.calls += 1
            try:
                runs = in_database(self._slurm, gone)
            except SlurmMissing:
                raise
            except SlurmError as error:
                silent = error
        now = time.monotonic()
        return {
            job_id: Seen(own, runs.get(job_id, ()), silent, now) for job_id, own in rows.items()
        }

    def _troubled(self, error: SlurmkitError, asked: Mapping[str, Known]) -> bool:
        """Keep asking through an outage; give up what Slurm refuses again and again."""
        self._refusals += not isinstance(error, _OUTAGES)
        if isinstance(error, _FOR_GOOD) or self._refusals >= _REFUSALS:
            self._refusals = 0
            return self._tell({job_id: Known(error=error) for job_id in asked}, None)
        self._tell({}, str(error))
        return False

    def _tell(self, after: Mapping[str, Known], trouble: str | None) -> bool:
        with self._changed:
            changed = trouble is None and self.trouble is not None
            self.trouble = trouble
            for job_id, known in after.items():
                if job_id in self._known:
                    changed |= known.differs(self._known[job_id])
                    self._known[job_id] = known
            self._changed.notify_all()
        return changed


def _is_outage(error: SlurmError | None) -> bool:
    return isinstance(error, _OUTAGES)


def _only_user(known: Iterable[Known]) -> str | None:
    """Whose all these jobs are, once each was seen: slurmctld then sends only theirs."""
    users = {one.info.user if one.info else "" for one in known}
    (only,) = users if len(users) == 1 else ("",)
    return only if only and not only.isdigit() else None
