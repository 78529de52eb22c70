"""What a mail says about a job or array that has ended: the words of `slurmkit why`, and its use.

The service reads a job's log only where its own account may, and only if the file belongs to the
job's owner: a user could put a link to a file of the service in the place of the log. It does not
wait for a log on a file system that hangs (`owners_files.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence

from sqlalchemy import select

from slurmkit.cluster.cluster import Cluster
from slurmkit.diagnose.failure import explain_end
from slurmkit.diagnose.model import EndExplanation
from slurmkit.errors import ControllerDown, DatabaseDown, SlurmkitError, SlurmTimeout
from slurmkit.formats.display import printable
from slurmkit.formats.durations import format_duration
from slurmkit.jobs.exit_codes import describe_end
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.lookup import (
    WORST_FIRST,
    count_states,
    count_tasks,
    merge_parts,
    read_database_runs,
)
from slurmkit.slurm.commands import SlurmCommands
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.ledger.coverage import is_covered, load_spans
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_accounting.notify.job_letter import FailedPart, JobLetter
from slurmkit_accounting.notify.owners_files import NO_ANSWER, FileReader, OwnersFiles
from slurmkit_accounting.notify.run_summary import (
    EndedRun,
    RunSummary,
    latest_run,
    load_ended_runs,
    summarize_runs,
)
from slurmkit_accounting.notify.spool import JobEvent
from slurmkit_accounting.reports.rates import Rates

_MOST_FAILURES = 5  # tasks of an array whose end is explained
_TITLES = {
    "completed": "completed",
    "failed": "failed",
    "timeout": "ran into its time limit",
    "preempted": "was preempted",
    "node_failure": "ended because a node failed",
    "out_of_memory": "ran out of memory",
    "cancelled": "was cancelled",
    "deadline": "missed its deadline",
    "boot_failure": "did not start: a node did not boot",
    # Slurm's states, where they have other names than the kinds of outcomes.
    "node_fail": "ended because a node failed",
    "boot_fail": "did not start: a node did not boot",
}
_NOT_BAD = ("COMPLETED", "CANCELLED")
_AWAY = (ControllerDown, DatabaseDown, SlurmTimeout)
_PATIENCE_SECONDS = 3600  # after the event, in which a daemon that is away is waited for


def state_words(state: str) -> str:
    """Return how a job with a final state ended, in words."""
    return _TITLES.get(state.lower(), state.lower())


def _of_tasks(state: str, number: int) -> str:
    words = state_words(state)
    return words if number == 1 else words.replace("was ", "were ", 1)


class OwnersSlurm:
    """Slurm's commands, as if the owner of an event's job ran them on this machine."""

    def __init__(self, slurm: SlurmCommands, event: JobEvent, reader: FileReader) -> None:
        self._slurm = slurm
        self.machine = OwnersFiles(event.user, event.uid, reader)

    @property
    def calls(self) -> int:
        return self._slurm.calls

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        return self._slurm.run(argv, stdin=stdin, timeout=timeout, errors=errors)

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        return self._slurm.stream(argv, timeout=timeout)


class EndedJobs:
    """Reads what mails say about jobs that have ended.

    Args:
        ledger: open for reading.
        slurm: runs Slurm's commands.
        cluster: name of the cluster that they ask; jobs of another one are not explained.
        zone: time zone of the times in mails, and of the days from which prices hold.
        reader: reads the logs.
    """

    def __init__(
        self, ledger: Ledger, slurm: SlurmCommands, cluster: str, zone: Zone, reader: FileReader
    ) -> None:
        self.reader = reader
        self._ledger = ledger
        self._slurm = slurm
        self._cluster = cluster
        self._zone = zone
        self._rates = Rates()

    def runs(self, cluster: str, job_ids: Collection[int]) -> dict[int, list[EndedRun]]:
        """Load the runs of jobs that have ended; see `load_ended_runs`."""
        with self._ledger.transaction() as connection:
            return load_ended_runs(connection, cluster, job_ids)

    def has_read(self, cluster: str, times: Iterable[int]) -> bool:
        """Return whether the ledger has read what sacct lists of some times, in epoch seconds."""
        with self._ledger.transaction() as connection:
            number = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
            covered = [] if number is None else load_spans(connection, number)
        return all(is_covered(covered, time) for time in times)

    def summary(self, cluster: str, ended: Sequence[EndedRun]) -> RunSummary:
        """Summarize runs of one job."""
        with self._ledger.transaction() as connection:
            query = select(clusters.c.tracks_gpus).where(clusters.c.name == cluster)
            tracked = connection.scalar(query) is not False
        return summarize_runs(ended, self._rates, self._zone, tracked=tracked)

    def explain(self, event: JobEvent, job_id: str) -> EndExplanation | None:
        """Explain how a job or task ended, as `slurmkit why` does; None if Slurm does not say.

        It quotes the job's log and names its files, so there is none where no such text is shown.

        Raises:
            SlurmError: when a daemon of Slurm does not answer, in the first hour after the event.
        """
        if event.cluster != self._cluster or not event.text_shown:
            return None
        try:
            return explain_end(Cluster(self._owners(event)), job_id).ended
        except _AWAY:
            if time.time() < event.at + _PATIENCE_SECONDS:
                raise
            return None
        except SlurmkitError:
            return None

    def _owners(self, event: JobEvent) -> OwnersSlurm:
        return OwnersSlurm(self._slurm, event, self.reader)

    def job_letter(self, event: JobEvent, ended: EndedRun | None) -> JobLetter:
        """Return what a mail says about one job that has ended."""
        found = self.explain(event, event.job_id)
        state = event.facts.get("state", "")
        kind = found.kind if found else state.lower()
        title = _TITLES.get(kind, "has ended")
        bad = event.kind == "fail" if found is None else kind != "completed"
        bad = bad and kind != "cancelled"  # the mail names who did it; mostly the user
        words = found.meaning if found else _event_words(event)
        return JobLetter(
            title=f"{event.title(event.job_id)} {title}",
            is_bad=bad,
            words=f"{words[:1].upper()}{words[1:]}",
            advice=found.advice if found else "",
            details=found.details if found else (),
            first_error=found.first_error.text if found and found.first_error else "",
            log_trouble=found.log_trouble if found and NO_ANSWER in found.log_trouble else "",
            facts=(*self._facts(event, ended), *_log_fact(found)),
            summary=self.summary(event.cluster, [ended]) if ended else RunSummary(),
            command=f"slurmkit why {event.job_id}" if bad else f"slurmkit job {event.job_id}",
        )

    def array_letter(self, event: JobEvent, arrays: Collection[int], *, is_over: bool) -> JobLetter:
        """Return what a mail says about an array: outcomes, the first failures, and its use.

        Args:
            event: one of its events, which names it.
            arrays: ids of the arrays that Slurm has of it: several if slurmkit split it.
            is_over: whether all of its tasks have ended.

        Raises:
            SlurmError: as `explain`.
        """
        array = str(min(arrays))
        parts = {
            task: info
            for slurms, found in self._runs_of_arrays(event, arrays).items()
            for task, info in merge_parts(slurms, [], found).items()
            if info.is_over
        }
        tally = _ordered(count_states(parts))
        bad = sorted(
            (info for info in parts.values() if info.state not in _NOT_BAD),
            key=lambda info: (info.ended or 0, info.job_id),
        )
        since = min((info.submitted or event.at for info in parts.values()), default=event.at)
        raw_ids = [int(info.raw_id) for info in parts.values() if info.raw_id.isdecimal()]
        found_runs = self.runs(event.cluster, raw_ids).values()
        ended = [run for each in found_runs if (run := latest_run(each, since)) is not None]
        failures = tuple(self._failure(event, info) for info in bad[:_MOST_FAILURES])
        # A line may be several tasks: those that never started are `12_[4-9]`.
        tasks = count_tasks(parts)
        more = sum(tasks[info.job_id] for info in bad[_MOST_FAILURES:])
        states = ", ".join(
            f"{number:,} {_of_tasks(state, number)}" for state, number in tally.items()
        )
        so_far = "" if is_over else ", the others have not ended yet"
        return JobLetter(
            title=f"{event.title(array)}: {states or 'tasks have ended'}{so_far}",
            is_bad=bool(bad)
            or (not parts and event.kind == "fail" and event.facts.get("state") not in _NOT_BAD),
            facts=_array_facts(event, ended, self._zone),
            tally=tally,
            failures=failures,
            more_failures=more,
            summary=self.summary(event.cluster, ended),
            command=f"slurmkit why {array}" if bad else f"slurmkit job {array}",
        )

    def _runs_of_arrays(self, event: JobEvent, arrays: Collection[int]) -> dict[str, list[JobInfo]]:
        if event.cluster != self._cluster:
            return {}
        try:
            return read_database_runs(self._slurm, list(map(str, sorted(arrays))))
        except _AWAY:
            if time.time() < event.at + _PATIENCE_SECONDS:
                raise
            return {}

    def _failure(self, event: JobEvent, info: JobInfo) -> FailedPart:
        found = self.explain(event, info.job_id)
        if found is None:
            where = f" on {info.node_list}" if info.node_list else ""
            return FailedPart(info.job_id, f"{state_words(info.state)}{where}")
        error = f": {found.first_error.text}" if found.first_error else ""
        return FailedPart(info.job_id, f"{found.meaning}{error}")

    def _facts(self, event: JobEvent, ended: EndedRun | None) -> tuple[tuple[str, str], ...]:
        run = ended.run if ended else None
        facts = {
            "Cluster, partition": f"{event.cluster}, {event.facts.get('partition', '')}",
            "Account": account_of(event),
            "Started": _moment(run.start if run else None, self._zone),
            "Ended": _moment(run.end if run else event.at, self._zone),
            "Waited": format_duration(run.start - run.submit) if run and run.start else "",
            "Ran": format_duration(ended.seconds) if ended else event.facts.get("run_time", ""),
            "Nodes": event.nodes,
        }
        return tuple((name, printable(value)) for name, value in facts.items() if value)


def _log_fact(found: EndExplanation | None) -> tuple[tuple[str, str], ...]:
    """Return where the log is, for a job that did not end well."""
    if found is None or not found.log or found.kind == "completed":
        return ()
    return (("Log", printable(found.log)),)


def account_of(event: JobEvent) -> str:
    """Return the account that a mail shows: where Slurm enforces none, it is the user's text."""
    return event.facts.get("account", "") if event.text_shown else ""


def _event_words(event: JobEvent) -> str:
    """Return how a job ended in slurmctld's words, where neither sacct nor the ledger knows."""
    facts = event.facts
    code = facts.get("exit_code", "0:0")
    how = "" if code == "0:0" else describe_end(code)
    code = f" with {how}" if how.startswith("exit") else f" by {how}" if how else ""
    after = f", after {facts['run_time']}" if "run_time" in facts else ""
    return f"{state_words(facts.get('state', 'unknown'))}{code}{after} (source: slurmctld)"


def _ordered(tally: Mapping[str, int]) -> dict[str, int]:
    """Return the counts with completed tasks first, then the worst."""
    ranks = {state: rank for rank, state in enumerate(WORST_FIRST)} | {"COMPLETED": -1}
    return dict(sorted(tally.items(), key=lambda item: ranks.get(item[0], len(ranks))))


def _array_facts(
    event: JobEvent, ended: Sequence[EndedRun], zone: Zone
) -> tuple[tuple[str, str], ...]:
    starts = [each.run.start for each in ended if each.run.start is not None]
    ends = [each.run.end for each in ended if each.run.end is not None]
    facts = {
        "Cluster, partition": f"{event.cluster}, {event.facts.get('partition', '')}",
        "Account": account_of(event),
        "First start": _moment(min(starts, default=None), zone),
        "Last end": _moment(max(ends, default=None), zone),
    }
    return tuple((name, printable(value)) for name, value in facts.items() if value)


def _moment(epoch: int | None, zone: Zone) -> str:
    return "" if epoch is None else zone.tell(epoch)
