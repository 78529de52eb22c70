"""Which events become one mail, and which mails are due: a job, a whole array, or a day.

Before a mail is sent for the first time, its events are marked with it. Whatever is tried again,
also by a service that was killed, is then the same mail about the same events.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator

import msgspec

from slurmkit.errors import SlurmkitError
from slurmkit.jobs.backends.commands import CommandsBackend
from slurmkit.jobs.lookup import read_queued_ids
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.arrays import parse_array_tag
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit_accounting.config import JobMailSection
from slurmkit_accounting.notify.ended_job import EndedJobs, OwnersSlurm
from slurmkit_accounting.notify.job_events import WaitingEvent
from slurmkit_accounting.notify.run_summary import EndedRun, latest_run
from slurmkit_accounting.notify.spool import EventKind, JobEvent

ENDS: frozenset[EventKind] = frozenset(("end", "fail"))
_GATHER_SECONDS = 600  # in which the same news of an array's tasks are one mail
_QUIET_SECONDS = 60  # without a further end of an array's tasks, before its mail
MOST_OF_USER = 20  # mails for one user in a round; more to an address become one, as of a day
_SEVERAL = "several/"
_DAY = "day/"  # a mail of the day

_Groups = dict[tuple[object, ...], list[WaitingEvent]]
_Runs = dict[tuple[str, int], list[EndedRun]]
_UsersArrays = set[tuple[str, str]]  # user and array
_OfUser = dict[tuple[str, str], list["Mailing"]]  # by user and address


class Mailing(msgspec.Struct, frozen=True, kw_only=True):
    """Events that become one mail.

    Attributes:
        about: identity of the mail, in addition to its recipients.
        events: at least one, in the order in which they came.
        ended: the runs that have ended, as far as the ledger has them, by Slurm's own job id.
        is_over: for an array: whether all of its tasks have ended.
        parts: of a mail about several jobs, what each job's own mail would be.
    """

    about: str
    events: tuple[WaitingEvent, ...]
    ended: dict[int, EndedRun] = {}
    is_over: bool = True
    parts: tuple[Mailing, ...] = ()

    @property
    def first(self) -> JobEvent:
        """The oldest event."""
        return self.events[0].event

    @property
    def arrays(self) -> set[int]:
        """The ids of the arrays that Slurm has of an array; several if slurmkit split it."""
        ids = (each.event.array_id for each in self.events)
        return {array for array in ids if array is not None}

    @property
    def job_id(self) -> str:
        """The id that people use; of an array that slurmkit split, that of its first part."""
        return str(min(self.arrays, default=0) or self.first.job_id)

    @property
    def title(self) -> str:
        """The job with its name, as mails begin."""
        return self.first.title(self.job_id)

    @property
    def rows(self) -> list[int]:
        """The rows of the events."""
        return [each.row for each in self.events]


class MailingPlan:
    """Finds the mails that are due.

    Args:
        jobs: reads what the ledger has of jobs that have ended.
        slurm: runs Slurm's commands.
        section: how long mails wait.
    """

    def __init__(self, jobs: EndedJobs, slurm: SlurmCommands, section: JobMailSection) -> None:
        self._jobs = jobs
        self._slurm = slurm
        self._section = section

    def at_once(self, waiting: Iterable[WaitingEvent], now: int) -> Iterator[Mailing]:
        """Yield the mails that are due: in turn one for each user, in the order of the events.

        So a user with very many mails delays nobody else's. Of very many jobs of a user, there is
        one mail for all.
        """
        begun, fresh = _split(waiting)
        tried = list(self._begun(begun))
        of_user: _OfUser = defaultdict(list)
        for mailing in (*self._news(fresh, now), *self._ends(fresh, now)):
            of_user[mailing.first.user, mailing.first.address].append(mailing)
        found = [each for mailings in of_user.values() for each in _joined(mailings)]
        # A mail about events of long ago comes first.
        yield from _in_turn(tried + sorted(found, key=lambda each: each.events[0].row))

    def of_the_day(self, waiting: Iterable[WaitingEvent], now: int) -> Iterator[Mailing]:
        """Yield one mail for each user and address, in turn as `at_once`."""
        begun, fresh = _split(waiting)
        tried = list(self._begun(begun))
        of_user: _OfUser = defaultdict(list)
        for mailing in self._ends(fresh, now):
            of_user[mailing.first.user, mailing.first.address].append(mailing)
        for events in _grouped(each for each in fresh if each.event.kind not in ENDS).values():
            mailing = Mailing(about=_about(events[0].event), events=tuple(events))
            of_user[mailing.first.user, mailing.first.address].append(mailing)
        yield from _in_turn(tried + [_several(mailings, _DAY) for mailings in of_user.values()])

    def _begun(self, begun: dict[str, list[WaitingEvent]]) -> Iterator[Mailing]:
        """Yield the mails that were tried before, with the same events."""
        groups = {about: _grouped(events) for about, events in begun.items()}
        every = [events for found in groups.values() for events in found.values()]
        unfinished, runs = self._unfinished_arrays(every), self._runs(every)
        for about, found in groups.items():
            parts = [self._mailing(events, runs, unfinished) for events in found.values()]
            if about.startswith((_SEVERAL, _DAY)):
                yield msgspec.structs.replace(_several(parts, _DAY), about=about)
            else:
                yield msgspec.structs.replace(parts[0], about=about)

    def _news(self, waiting: Iterable[WaitingEvent], now: int) -> Iterator[Mailing]:
        """Yield the mails about jobs that have not ended; of an array's tasks one for all."""
        for events in _grouped(each for each in waiting if each.event.kind not in ENDS).values():
            first = events[0].event
            about = _about(first)
            if first.array and first.kind == "begin":
                # Only the first task's start is news. An id may be used again, but not before
                # this mail is forgotten.
                about = f"{first.cluster}/{first.array}/begin/{first.user}"
            elif first.array and now - first.at < _GATHER_SECONDS:
                continue
            yield Mailing(about=about, events=tuple(events))

    def _ends(self, waiting: Iterable[WaitingEvent], now: int) -> Iterator[Mailing]:
        """Yield the mails about jobs and arrays that have ended.

        A mail waits until the ledger has the end, so that it can tell what was used.
        """
        groups = list(_grouped(each for each in waiting if each.event.kind in ENDS).values())
        unfinished = self._unfinished_arrays(groups)
        runs = self._runs(groups)
        for events in groups:
            mailing = self._mailing(events, runs, unfinished)
            if mailing.is_over:
                since_last = now - max(each.event.at for each in events)
                waited = since_last >= self._section.ledger_minutes * 60
                # slurmctld may take minutes to tell the ends of very many tasks.
                is_quiet = _says_it_is_over(events) or since_last >= _QUIET_SECONDS
                due = is_quiet and (waited or self._is_known(mailing))
            else:
                due = now - mailing.first.at >= self._section.array_hours * 3600
            if due:
                yield mailing

    def _is_known(self, mailing: Mailing) -> bool:
        """Return whether the ledger has all ends that sacct lists.

        It lists no jobs that were held until they were cancelled.
        """
        missing = [
            each.event for each in mailing.events if each.event.job_id_raw not in mailing.ended
        ]
        return not missing or (
            all(event.never_started for event in missing)
            and self._jobs.has_read(mailing.first.cluster, [event.at for event in missing])
        )

    def _mailing(
        self, events: list[WaitingEvent], runs: _Runs, unfinished: _UsersArrays
    ) -> Mailing:
        first = events[0].event
        found = {
            each.event.job_id_raw: latest_run(
                runs.get((first.cluster, each.event.job_id_raw), ()), each.event.ended_since
            )
            for each in events
        }
        return Mailing(
            about=_about(first),
            events=tuple(events),
            ended={job: run for job, run in found.items() if run is not None},
            is_over=_says_it_is_over(events) or (first.user, first.array) not in unfinished,
        )

    def _runs(self, groups: Iterable[list[WaitingEvent]]) -> _Runs:
        """Return the runs of all jobs that have ended, by cluster and Slurm's own job id."""
        wanted: dict[str, set[int]] = defaultdict(set)
        for events in groups:
            for each in events:
                if each.event.kind in ENDS:
                    wanted[each.event.cluster].add(each.event.job_id_raw)
        return {
            (cluster, job): found
            for cluster, jobs in wanted.items()
            for job, found in self._jobs.runs(cluster, jobs).items()
        }

    def _unfinished_arrays(self, groups: Iterable[list[WaitingEvent]]) -> _UsersArrays:
        """Return which arrays have tasks that wait or run, or may have: Slurm does not answer."""
        unsure = [
            events[0].event
            for events in groups
            if events[0].event.kind in ENDS and not _says_it_is_over(events)
        ]
        of_slurm = {(event.user, event.array) for event in unsure if not _is_split(event)}
        split: dict[str, list[JobEvent]] = defaultdict(list)
        for event in unsure:
            if _is_split(event):
                split[event.user].append(event)
        try:
            queued = read_queued_ids(CommandsBackend(self._slurm), {array for _, array in of_slurm})
            unfinished = {each for each in of_slurm if each[1] in queued}
        except SlurmkitError:
            unfinished = of_slurm
        for user, events in split.items():
            arrays = {event.array for event in events}
            try:
                # The parts of an array that was split are known by their comments alone, which
                # count in a user's own jobs.
                own = OwnersSlurm(self._slurm, events[0], self._jobs.reader)
                rows = read_queue(own, QueueFilter(users=(user,))).rows
                tags = (parse_array_tag(row.comment) for row in rows)
                arrays &= {tag.token for tag in tags if tag is not None}
            except SlurmkitError:  # also of a user whom Slurm does not know any more
                pass
            unfinished |= {(user, array) for array in arrays}
        return unfinished


def _split(
    waiting: Iterable[WaitingEvent],
) -> tuple[dict[str, list[WaitingEvent]], list[WaitingEvent]]:
    """Return the events of mails that were tried before, by mail, and all others."""
    begun: dict[str, list[WaitingEvent]] = defaultdict(list)
    fresh = []
    for each in waiting:
        if each.mailing is None:
            fresh.append(each)
        else:
            begun[each.mailing].append(each)
    return begun, fresh


def _grouped(waiting: Iterable[WaitingEvent]) -> _Groups:
    """Group the events of an array: its ends, and other news by their kind.

    slurmctld ends the tasks that still wait as one job that has the array's id, and does not say
    that it is of the array.
    """
    groups: _Groups = defaultdict(list)
    every = list(waiting)
    arrays = {
        (each.event.cluster, each.event.user, each.event.array_id): each.event.array
        for each in every
        if each.event.array
    }
    for each in every:
        event = each.event
        kind = "end" if event.kind in ENDS else event.kind
        array = event.array or arrays.get((event.cluster, event.user, event.job_id_raw), "")
        one = (array, kind) if array else ("row", each.row)
        groups[event.cluster, event.user, event.address, *one].append(each)
    for events in groups.values():
        events.sort(key=lambda each: not each.event.array)  # the first one names the array
    return groups


def _says_it_is_over(events: list[WaitingEvent]) -> bool:
    """Return whether slurmctld's events alone say that the job, or all of its array, has ended."""
    if not events[0].event.array:
        return True
    return not _is_split(events[0].event) and any(each.event.whole_array for each in events)


def _is_split(event: JobEvent) -> bool:
    """Return whether slurmkit sent the array as several arrays of Slurm."""
    return "array_token" in event.facts


OF_THE_DAY = _DAY
"""How the names of the mails of a day begin."""


def is_of_the_day(waiting: WaitingEvent) -> bool:
    """Return whether an event is in a mail of the day that was begun."""
    return waiting.mailing is not None and waiting.mailing.startswith(_DAY)


def _in_turn(mailings: Iterable[Mailing]) -> Iterator[Mailing]:
    """Yield the first mail of each user, then the second of each, and so on."""
    of_user: dict[str, deque[Mailing]] = defaultdict(deque)
    for mailing in mailings:
        of_user[mailing.first.user].append(mailing)
    while of_user:
        for user in list(of_user):
            yield of_user[user].popleft()
            if not of_user[user]:
                del of_user[user]


def _joined(mailings: list[Mailing]) -> list[Mailing]:
    """Join very many mails of a user to one for all; the start of an array has its own."""
    single = [each for each in mailings if _is_array_news(each.first)]
    others = [each for each in mailings if not _is_array_news(each.first)]
    return [*single, _several(others, _SEVERAL)] if len(others) > MOST_OF_USER else mailings


def _is_array_news(event: JobEvent) -> bool:
    return bool(event.array) and event.kind not in ENDS


def _several(mailings: list[Mailing], kind: str) -> Mailing:
    """Return one mail in place of several for the same user."""
    events = sorted((each for one in mailings for each in one.events), key=lambda each: each.row)
    about = f"{kind}{events[0].event.digest[:16]}"
    return Mailing(about=about, events=tuple(events), parts=tuple(mailings))


def _about(event: JobEvent) -> str:
    return f"{event.cluster}/{event.job_id}/{event.digest[:16]}"
