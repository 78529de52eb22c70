"""Mails about idle GPUs: the warning, and what was done after it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, func, or_, select

from slurmkit.config.files import load_section
from slurmkit.formats.display import printable
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.config import NotifySection
from slurmkit_accounting.gpu_use.store import load_uses
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.locks import hold_ledger_lock
from slurmkit_accounting.ledger.schema.notices import mailings
from slurmkit_accounting.notify.delivery import DeliveryOutcome, NoticeKey, send_by_each
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.plugins import Notice, notifier
from slurmkit_accounting.reclaim.acts import OpenAct, load_keeps
from slurmkit_accounting.reclaim.letter import (
    ReclaimLetter,
    begin_of_strips,
    letter_as_html,
    letter_as_text,
    make_strips,
)
from slurmkit_accounting.reclaim.policy import ReclaimJob, ReclaimPolicy
from slurmkit_accounting.usage.tables import load_eras

KIND = "reclaim"
Follows = Literal["requeue", "cancel", "nothing", "unknown"]
"""What a policy does to a job whose GPUs stay idle after the warning."""


class ReclaimNotices:
    """Sends the mails about a cluster's jobs.

    Args:
        cluster: name of the cluster.
        zone: time zone of the times in the mails.
    """

    def __init__(self, cluster: str, zone: Zone) -> None:
        self._cluster = cluster
        self._zone = zone

    def warn(self, ledger: Ledger, act: OpenAct, policy: ReclaimPolicy, then: Follows) -> str:
        """Tell the user that GPUs are idle; return why nothing was sent, empty if it was.

        Args:
            ledger: open for writing.
            act: the recorded act.
            policy: the policy that decides about the job.
            then: what follows if the GPUs stay idle.

        Raises:
            BadConfig: when the settings of a notifier are missing.
            LedgerError: when another process is sending.
        """
        job = printable(act.job.job_id)
        letter = ReclaimLetter(
            title=f"job {job}: {_idle_words(act)}",
            colour=_WARNING,
            seen=self._describe_samples(act),
            words=_WHAT_FOLLOWS[then].format(
                job=job, at=self._zone.tell(act.at + 60 * policy.warn_minutes)
            ),
            commands=(
                (
                    "When the GPUs work again, this is settled. To end the job now:",
                    f"slurmkit cancel {job}",
                ),
                (
                    f"To have it left alone for {policy.keep_hours} hours, once:",
                    f'slurmkit reclaim keep {job} --reason "why it needs idle GPUs"',
                ),
                ("What its GPUs do:", f"slurmkit job {job} --gpus"),
            ),
        )
        return self._send(ledger, act, letter, policy.below)

    def tell(self, ledger: Ledger, act: OpenAct, outcome: str, below: float = 1.0) -> str:
        """Tell the user what was done; return and raise as `warn`."""
        job = printable(act.job.job_id)
        words, what, command = _DONE[outcome]
        letter = ReclaimLetter(
            title=f"job {job} was {_SUBJECT[outcome]}",
            colour=_TAKEN,
            seen=self._describe_samples(act),
            words=words,
            commands=((what, command.format(job=job)),),
        )
        return self._send(ledger, act, letter, below)

    def was_sent(self, ledger: Ledger, act: OpenAct) -> bool:
        """Return whether the notice of an act was handed over before, as far as one can know."""
        query = select(func.count()).where(
            mailings.c.kind == KIND,
            mailings.c.about == self._about(act),
            or_(mailings.c.done.is_not(None), mailings.c.sending.is_not(None)),
        )
        with ledger.transaction() as connection:
            return bool(connection.scalar(query))

    def _about(self, act: OpenAct) -> str:
        return f"{self._cluster}/{act.id}"

    def _describe_samples(self, act: OpenAct) -> tuple[str, ...]:
        """Return the samples in words."""
        return (
            (
                f"Job {printable(act.job.job_id)} of {printable(act.job.user)} on"
                f" {printable(self._cluster)}: {_idle_words(act)}."
            ),
            (
                f"From {self._zone.tell(act.window_begin)} to {self._zone.tell(act.at)} their mean"
                f" utilization was {act.mean:.1f} %, by {act.samples:,} samples that cover"
                f" {act.covered:.0%} of this time (policy {printable(act.policy)})."
            ),
        )

    def _send(self, ledger: Ledger, act: OpenAct, letter: ReclaimLetter, below: float) -> str:
        with ledger.transaction() as connection:
            to, keep = _recipients(connection, act), _load_keep(connection, act)
            letter = self._with_strips(connection, act, letter)
        if keep is not None:
            at, reason = keep
            note = f"On {self._zone.tell(at)} the user asked to leave it: {printable(reason)}"
            letter = _with_note(letter, note)
        if act.to_pi:
            letter = _with_note(letter, "This mail also goes to the PI.")
        names = load_section("notify", NotifySection).by
        notifiers = {name: notifier(name) for name in names if name != "mail" or to}
        once = NoticeKey(KIND, self._about(act), act.job.user)
        make = partial(_notice, to, letter, below, msgspec.to_builtins(act))
        with hold_ledger_lock(ledger, "mail"):
            tried = list(send_by_each(ledger, notifiers, once, make))
        if any(each.outcome is not DeliveryOutcome.FAILED for each in tried):
            return ""
        failures = [f"{each.by}: {each.why}" for each in tried]
        if "mail" in names and not to:
            failures.append(f"no mail address of {act.job.user} is known")
        return "; ".join(failures) or "[notify] by names no notifier"

    def _with_strips(
        self, connection: Connection, act: OpenAct, letter: ReclaimLetter
    ) -> ReclaimLetter:
        job = act.job
        uses = [
            use
            for use in load_uses(connection, job_ids=[job.job_id_raw])
            if (use.cluster_id, use.start) == (job.cluster_id, job.start)
        ]
        begin = begin_of_strips(job.start, act.window_begin, act.at)
        strips, more = make_strips(uses, begin, act.window_begin, act.at)
        tell = self._zone.tell
        return msgspec.structs.replace(
            letter, strips=strips, more_gpus=more, begin=tell(begin), end=tell(act.at)
        )


def _with_note(letter: ReclaimLetter, note: str) -> ReclaimLetter:
    return msgspec.structs.replace(letter, notes=(*letter.notes, note))


_WHAT_FOLLOWS: dict[Follows, str] = {
    "nothing": "Nothing else is done about it.",
    "unknown": (
        "What follows is not known yet: Slurm does not show the job's script to this service."
        " If they stay idle, the job may lose its GPUs from {at} on."
    ),
    "requeue": (
        "If they stay idle, then from {at} on the job is asked for its checkpoint and requeued"
        " held: it waits until you run `slurmkit release {job}`, and goes on from its checkpoint."
    ),
    "cancel": "If they stay idle, the job is cancelled from {at} on.",
}
_DONE = {
    "held": (
        "The job was asked for its checkpoint, and is back in the queue, held.",
        "To let it go on:",
        "slurmkit release {job}",
    ),
    "cancelled": (
        "The job was cancelled.",
        "A job that survives is asked for its checkpoint instead, and requeued. To submit one:",
        "slurmkit submit --on-timeout requeue …",
    ),
}
_WARNING, _TAKEN = "#b26a00", "#37474f"  # colours of headings
_SUBJECT = {"held": "requeued and held: idle GPUs", "cancelled": "cancelled: idle GPUs"}


def _idle_words(act: OpenAct) -> str:
    minutes = (act.at - act.window_begin) // 60
    return f"{act.idle_gpus} of {act.job.gpus} GPUs idle for {minutes} minutes"


def _recipients(connection: Connection, act: OpenAct) -> tuple[str, ...]:
    """Return the addresses of the user and, if wanted, of the PI; empty without the user's."""
    people, job = People.load(connection), act.job
    era = load_eras(connection).of(job.submit)
    user = people.person(job.user, job.uid, era)
    own = "" if user is None else people.mail(user).strip()
    if not own:
        return ()
    pi = _pi(people, job, era) if act.to_pi else None
    other = "" if pi is None else people.mail(pi).strip()
    return tuple(dict.fromkeys(filter(None, (own, other))))


def _pi(people: People, job: ReclaimJob, era: int) -> int | None:
    return people.pi(job.cluster_id, job.account, job.user, job.uid, era).person_id


def _load_keep(connection: Connection, act: OpenAct) -> tuple[int, str] | None:
    """Return when and why the user asked before to leave the job."""
    job = act.job
    if job.uid is None:
        return None
    return load_keeps(connection, job.cluster_id, [job.job_id_raw]).get((job.job_id_raw, job.uid))


def _notice(
    to: tuple[str, ...],
    letter: ReclaimLetter,
    below: float,
    facts: Mapping[str, Any],
    once: NoticeKey,
) -> Notice:
    return Notice(
        kind=KIND,
        identity=once.identity,
        to=to,
        subject=letter.title,
        text=letter_as_text(letter),
        html=letter_as_html(letter, below),
        facts=facts,
    )
