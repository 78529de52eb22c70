"""Mails about jobs, in place of Slurm's own: one for a job, one for a whole array, one for a day.

A round takes slurmctld's events over from the spool, and sends the mails that are due. An event is
finished only once its mail is sent, so a round can be cut off anywhere. A mail that the server does
not take is tried again for a day.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select

from slurmkit.errors import BadInput, NotSent
from slurmkit.formats.durations import format_duration
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.capabilities import read_slurm_config
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.config import JobMailSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.notices import mailings
from slurmkit_accounting.notify.delivery import DeliveryOutcome, NoticeKey, send_by_each
from slurmkit_accounting.notify.ended_job import EndedJobs, account_of, state_words
from slurmkit_accounting.notify.job_events import (
    KIND,
    EventsTakenError,
    WaitingEvent,
    begin_mailing,
    finish_events,
    forget_finished,
    load_waiting_events,
    load_waiting_users,
    take_over,
)
from slurmkit_accounting.notify.job_letter import (
    DigestLine,
    JobLetter,
    digest_as_html,
    digest_as_text,
    letter_as_html,
    letter_as_text,
)
from slurmkit_accounting.notify.mail import check_address
from slurmkit_accounting.notify.mail_settings import MailSettings, settings_of
from slurmkit_accounting.notify.mailings import (
    ENDS,
    MOST_OF_USER,
    OF_THE_DAY,
    Mailing,
    MailingPlan,
    is_of_the_day,
)
from slurmkit_accounting.notify.notices import mail_address_of
from slurmkit_accounting.notify.owners_files import FileReader
from slurmkit_accounting.notify.spool import EventKind, JobEvent
from slurmkit_accounting.plugins import Notice, Notifier, notifier

_BAD: frozenset[EventKind] = frozenset(("fail", "requeue", "time", "depend"))
_NOT_IN_DIGEST: frozenset[EventKind] = frozenset(("begin", "time", "stage_out", "other"))
_MOST_MAILS = 200  # in one round of mails at once, so that new ones are seen meanwhile
# Mails of one user that are not taken in a round: the others wait. So many users in a row: the
# server is away.
_MOST_FAILURES = 3
_FORGET_SECONDS = 3600  # between two times that what is long over is forgotten
_MOST_ADDRESSES = 5
_GIVE_UP_SECONDS = 86400
_FIRST_PAUSE, _LONGEST_PAUSE = 60, 3600  # seconds before a mail is tried again
_MOST_EXPLAINED = 10  # jobs of a day whose failure is explained
_NEWS = {
    "begin": "started",
    "requeue": "was requeued",
    "stage_out": "has staged out its data",
    "depend": "can never start: its dependency cannot be met",
}
_NOT_SHOWN = ("Not shown", "job name and log: this is not its owner's address in the directory")


class _Retry(NamedTuple):
    """When to try a mail again, how long the pause before that is (seconds), and why."""

    at: int
    pause: int
    why: str


class RoundResult(msgspec.Struct):
    """What a round did: mails sent, mails to try again (and why the first), mails given up."""

    sent: int = 0
    damaged: int = 0
    to_try_again: int = 0
    why: str = ""
    given_up: list[str] = []

    def add_failure(self, why: str) -> None:
        """Add a mail that is to be tried again."""
        self.to_try_again += 1
        self.why = self.why or why

    def summary(self) -> str:
        """Return one line about the round; empty if nothing happened."""
        parts = [f"{self.sent} mails sent"] if self.sent else []
        parts += [f"{self.damaged} damaged files removed from the spool"] * bool(self.damaged)
        parts += [f"given up: {each}" for each in self.given_up]
        return "; ".join(parts)


class JobMailer:
    """Sends the mails about jobs.

    Args:
        open_ledger: opens the ledger for writing.
        slurm: runs Slurm's commands.
        check: raises when the service shall stop; called between two mails.
        zone: time zone of the times in mails.
        section: the settings.
    """

    def __init__(
        self,
        open_ledger: Callable[[], AbstractContextManager[Ledger]],
        slurm: SlurmCommands,
        check: Callable[[], None],
        zone: Zone,
        section: JobMailSection,
    ) -> None:
        self._open_ledger = open_ledger
        self._slurm = slurm
        self._check = check
        self._zone = zone
        self._section = section
        self._cluster = ""
        self._notifiers: dict[str, Notifier] = {}
        self._again: dict[str, _Retry] = {}
        self._forgotten = 0  # when, epoch seconds
        self._reader = FileReader()

    def run(self, now: int | None = None) -> str:
        """Take over the spool and send the mails that are due.

        Args:
            now: epoch seconds; None for the current time.

        Returns:
            What was done, in one line.

        Raises:
            BadConfig: when the spool cannot be read.
            LedgerError: when another process is sending, or the ledger cannot be used.
            SlurmError: when slurmctld has not answered since the start.
            NotSent: when mails were not taken; they are tried again.
        """
        moment = int(time.time()) if now is None else now
        with self._open_ledger() as ledger, hold_ledger_lock(ledger, "job mail"):
            taken = take_over(ledger, Path(self._section.spool))
            self._forget(ledger, moment)
            at_once, _ = self._wanted(ledger, only_at_once=True)
            jobs, plan = self._readers(ledger)
            due = plan.at_once(at_once, moment)
            result = self._send_all(ledger, jobs, due, moment, most=_MOST_MAILS)
        result.damaged = taken.damaged
        if taken.trouble:
            result.add_failure(taken.trouble)
        return _result_or_raise(result)

    def digest(self, now: int | None = None) -> str:
        """Send the mail of the day to everybody who wants one; see `run`.

        It may run in parallel with `run` of another object, so that no mail waits for thousands of
        others. An event belongs to the object that has recorded its mail first.
        """
        moment = int(time.time()) if now is None else now
        with self._open_ledger() as ledger, hold_ledger_lock(ledger, "job digest"):
            take_over(ledger, Path(self._section.spool))
            _, daily = self._wanted(ledger)
            jobs, plan = self._readers(ledger)
            result = self._send_all(ledger, jobs, plan.of_the_day(daily, moment), moment)
        return _result_or_raise(result)

    def _forget(self, ledger: Ledger, now: int) -> None:
        if now - self._forgotten >= _FORGET_SECONDS:
            with ledger.transaction() as connection:
                forget_finished(connection, now)
            self._forgotten = now

    def _readers(self, ledger: Ledger) -> tuple[EndedJobs, MailingPlan]:
        self._notifiers = {}  # so that they read their settings again
        self._cluster = self._cluster or read_slurm_config(self._slurm).cluster_name or ""
        jobs = EndedJobs(ledger, self._slurm, self._cluster, self._zone, self._reader)
        return jobs, MailingPlan(jobs, self._slurm, self._section)

    def _wanted(
        self, ledger: Ledger, *, only_at_once: bool = False
    ) -> tuple[list[WaitingEvent], list[WaitingEvent]]:
        """Return the events for mails at once and for the mail of a day; finish all others.

        Args:
            ledger: open for writing.
            only_at_once: load no events that wait for the mail of the day, which may be very many.
        """
        at_once: list[WaitingEvent] = []
        daily: list[WaitingEvent] = []
        unwanted: list[int] = []
        known: dict[tuple[int | None, str], MailSettings] = {}
        with ledger.transaction() as connection:
            later: set[str] = set()
            if only_at_once:
                for who in load_waiting_users(connection):
                    known[who] = settings_of(connection, *who)
                at_once_too = {user for (_, user), each in known.items() if each.mails != "daily"}
                later = {user for _, user in known} - at_once_too
            begun = OF_THE_DAY if only_at_once else None
            for each in load_waiting_events(connection, but_new_of=later, but_begun=begun):
                event = each.event
                who = (event.uid, event.user)
                if who not in known:
                    known[who] = settings_of(connection, *who)
                settings = known[who]
                never = settings.mails == "never" or (
                    settings.about == "failures" and event.kind not in _BAD
                )
                is_daily = is_of_the_day(each) or (
                    each.mailing is None and settings.mails == "daily"
                )
                if never or (settings.mails == "daily" and event.kind in _NOT_IN_DIGEST):
                    unwanted.append(each.row)
                else:
                    (daily if is_daily else at_once).append(each)
            finish_events(connection, unwanted)
        return at_once, daily

    def _send_all(
        self,
        ledger: Ledger,
        jobs: EndedJobs,
        due: Iterable[Mailing],
        now: int,
        *,
        most: int | None = None,
    ) -> RoundResult:
        """Send mails until all are sent, the round has sent enough, or the server is away.

        With a limit for the round, a user with mails to very many addresses has a limit, too:
        nobody's new mails wait for all of them.
        """
        result = RoundResult()
        tries: Counter[str] = Counter()  # by user
        failures: Counter[str] = Counter()  # by user
        in_a_row: set[str] = set()  # users
        for mailing in due:
            self._check()
            user, known = mailing.first.user, self._again.get(mailing.about)
            if known is not None and known.at > now:
                result.add_failure(known.why)
                continue
            if failures[user] >= _MOST_FAILURES:
                result.add_failure("")
                continue
            if most is not None and tries[user] >= MOST_OF_USER:
                continue
            tries[user] += 1
            why = self._send(ledger, jobs, mailing, result)
            if not why:
                in_a_row.clear()
                self._again.pop(mailing.about, None)
            elif self._is_too_late(ledger, mailing, now):
                self._give_up(ledger, mailing, why, result)
            else:
                failures[user] += 1
                in_a_row.add(user)
                result.add_failure(why)
                pause = min(known.pause * 2, _LONGEST_PAUSE) if known else _FIRST_PAUSE
                self._again[mailing.about] = _Retry(now + pause, pause, why)
            if len(in_a_row) >= _MOST_FAILURES or (most is not None and result.sent >= most):
                break
        return result

    def _send(self, ledger: Ledger, jobs: EndedJobs, mailing: Mailing, result: RoundResult) -> str:
        """Send one mail by all notifiers; return why one of them could not, empty if all could."""
        try:
            with ledger.transaction() as connection:
                to, trouble = _recipients(connection, mailing.first)
                mailing = _for_recipients(connection, mailing, to)
                if mailing.events[0].mailing is None:
                    begin_mailing(connection, mailing.rows, mailing.about)
        except EventsTakenError:
            return ""
        if not to and self._section.by == ("mail",):
            self._give_up(ledger, mailing, trouble, result)
            return ""
        made: list[Notice] = []
        failed: list[str] = []

        def notice(_: NoticeKey) -> Notice:
            if not made:
                made.append(_notice(jobs, mailing, to))
            return made[0]

        notifiers = {name: self._notifier(name) for name in self._section.by}
        once = NoticeKey(KIND, mailing.about, mailing.first.address)
        for by, outcome, why in send_by_each(ledger, notifiers, once, notice):
            if outcome is DeliveryOutcome.FAILED:
                failed.append(f"{by}: {why}")
                continue
            result.sent += outcome is DeliveryOutcome.SENT
            if why:  # it may have arrived, so it is not sent again
                result.given_up.append(f"{_of(mailing)} may have arrived: {why}")
        if not failed:
            with ledger.transaction() as connection:
                finish_events(connection, mailing.rows)
        return "; ".join(failed)

    def _notifier(self, name: str) -> Notifier:
        if name not in self._notifiers:
            self._notifiers[name] = notifier(name)
        return self._notifiers[name]

    def _is_too_late(self, ledger: Ledger, mailing: Mailing, now: int) -> bool:
        """Return whether a mail was first tried more than a day ago."""
        with ledger.transaction() as connection:
            tried = select(mailings.c.intended).where(
                mailings.c.kind == KIND, mailings.c.about == mailing.about
            )
            return any(now - at > _GIVE_UP_SECONDS for at in connection.scalars(tried))

    def _give_up(self, ledger: Ledger, mailing: Mailing, why: str, result: RoundResult) -> None:
        result.given_up.append(f"{_of(mailing)}: {why}")
        self._again.pop(mailing.about, None)
        with ledger.transaction() as connection:
            finish_events(connection, mailing.rows)


def _result_or_raise(result: RoundResult) -> str:
    if not result.to_try_again:
        return result.summary()
    sent = f"; {result.summary()}" if result.summary() else ""
    why = f", the first: {result.why}" if result.why else ""
    raise NotSent(f"{result.to_try_again} mails are to be tried again{why}{sent}")


def _of(mailing: Mailing) -> str:
    return f"job {mailing.first.job_id} of {mailing.first.user}"


def _recipients(connection: Connection, event: JobEvent) -> tuple[tuple[str, ...], str]:
    """Return the addresses of a mail, and why there are none.

    slurmctld gives what `--mail-user` says, or the user's name.
    """
    to: list[str] = []
    trouble = ""
    for part in event.address.split(",")[:_MOST_ADDRESSES]:
        name = part.strip()
        address = name if "@" in name else mail_address_of(connection, name)
        try:
            to.append(check_address(address))
        except BadInput as error:
            trouble = (
                str(error) if "@" in name else f"the directory has no mail address of {name!r}"
            )
    return tuple(dict.fromkeys(to)), trouble


def _for_recipients(connection: Connection, mailing: Mailing, to: tuple[str, ...]) -> Mailing:
    """Return the mail without text of its user, unless it goes to the user's own address alone.

    Else anybody could write to others in the site's name.
    """
    own = mail_address_of(connection, mailing.first.user).lower()
    return mailing if all(each.lower() == own for each in to) else _without_users_text(mailing)


def _without_users_text(mailing: Mailing) -> Mailing:
    replace = msgspec.structs.replace
    return replace(
        mailing,
        events=tuple(
            replace(each, event=replace(each.event, text_shown=False)) for each in mailing.events
        ),
        parts=tuple(map(_without_users_text, mailing.parts)),
    )


def _notice(jobs: EndedJobs, mailing: Mailing, to: tuple[str, ...]) -> Notice:
    content = _content(jobs, mailing)
    event = mailing.first
    facts = {"event": event.kind, "cluster": event.cluster, "user": event.user}
    if isinstance(content, JobLetter):
        if not event.text_shown:
            content = msgspec.structs.replace(content, facts=(*content.facts, _NOT_SHOWN))
        subject, text, html = content.title, letter_as_text(content), letter_as_html(content)
        facts |= {"job_id": mailing.job_id, "job": msgspec.to_builtins(content)}
    else:
        failed = sum(each.is_bad for each in content)
        subject = f"{len(content)} job{'s' * (len(content) != 1)}, {failed} failed"
        text, html = digest_as_text(content, subject), digest_as_html(content, subject)
        facts |= {"event": "digest", "jobs": msgspec.to_builtins(content)}
    return Notice(
        kind=KIND,
        identity=f"{mailing.about}/{event.address}",
        to=to,
        subject=subject,
        text=text,
        html=html,
        facts=facts,
    )


def _news_letter(mailing: Mailing) -> JobLetter:
    """Return what a mail says about a job that has not ended."""
    event, facts = mailing.first, mailing.first.facts
    mail_type = facts.get("said", "")
    news = _NEWS.get(event.kind) or f"{mail_type[:1].lower()}{mail_type[1:]}"
    number = len({each.event.job_id_raw for each in mailing.events})
    if event.array:
        news = (
            "started: its first task runs" if event.kind == "begin" else f"{number} tasks: {news}"
        )
    shown = {
        "Cluster, partition": f"{event.cluster}, {facts.get('partition', '')}",
        "Account": account_of(event),
        "Nodes": facts.get("nodes", ""),
        "Waited": facts.get("queued_time", ""),
        "Ran": facts.get("run_time", "") if event.kind == "time" else "",
    }
    return JobLetter(
        title=f"{mailing.title} {news}",
        is_bad=event.kind in _BAD,
        facts=tuple((name, value) for name, value in shown.items() if value),
        command=f"slurmkit job {mailing.job_id}",
    )


def _content(jobs: EndedJobs, mailing: Mailing) -> JobLetter | list[DigestLine]:
    """Return what a mail says; lines for a mail about several jobs."""
    if mailing.parts:
        return [
            _digest_line(jobs, part, explain=number < _MOST_EXPLAINED)
            for number, part in enumerate(mailing.parts)
        ]
    event = mailing.first
    if event.kind not in ENDS:
        return _news_letter(mailing)
    if event.array:
        return jobs.array_letter(event, mailing.arrays, is_over=mailing.is_over)
    return jobs.job_letter(event, mailing.ended.get(event.job_id_raw))


def _digest_line(jobs: EndedJobs, mailing: Mailing, *, explain: bool) -> DigestLine:
    """Return the line of a job or array in the mail of a day."""
    event = mailing.first
    if event.kind not in ENDS:
        news = _news_letter(mailing)
        outcome, summary, seconds = news.title.removeprefix(f"{mailing.title} "), news.summary, 0
        is_bad = news.is_bad
    elif event.array:
        letter = jobs.array_letter(event, mailing.arrays, is_over=mailing.is_over)
        outcome, summary, seconds = (
            letter.title.removeprefix(f"{mailing.title}: "),
            letter.summary,
            0,
        )
        is_bad = letter.is_bad
    else:
        run = mailing.ended.get(event.job_id_raw)
        found = jobs.explain(event, event.job_id) if explain and event.kind == "fail" else None
        state = run.run.state if run else event.facts.get("state", "unknown")
        outcome = found.meaning if found else state_words(state)
        summary = jobs.summary(event.cluster, [run] if run else [])
        seconds = run.seconds if run else 0
        is_bad = event.kind == "fail" and state != "CANCELLED"
    return DigestLine(
        job_id=mailing.job_id,
        name=event.facts.get("name", "") if event.text_shown else "its name is not shown",
        outcome=outcome,
        elapsed=format_duration(seconds) if seconds else "",
        gpu_hours=f"{summary.gpu_hours:,.2f} GPU-hours" if summary.gpu_hours else "",
        cost=summary.cost,
        is_bad=is_bad,
    )
