"""Why a job waits or failed, as typed values. None means that Slurm does not say."""

from __future__ import annotations

from typing import Literal

import msgspec

BlockerKind = Literal["job", "user", "reservation", "node"]


class Blocker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job, user, reservation or node that a pending job waits for.

    Attributes:
        kind: which of these.
        name: job id, name of the user or reservation, or node list.
        holds: which resources it holds, or why it blocks the job, in words.
        until: latest end in epoch seconds; None if unknown or if there is no end.
    """

    kind: BlockerKind
    name: str
    user: str = ""
    account: str = ""
    state: str = ""
    holds: str = ""
    until: int | None = None


class Rank(msgspec.Struct, frozen=True):
    """A job's rank by priority among the eligible pending jobs of a partition.

    Attributes:
        place: 1 for the first.
        waiting: number of eligible jobs; an array counts once.
        out_of_it: pending jobs that cannot start: held, or with a dependency or begin time.
    """

    partition: str
    place: int
    waiting: int
    out_of_it: int = 0


class Factor(msgspec.Struct, frozen=True):
    """One factor of a job's priority.

    Attributes:
        name: `age`, `fairshare`, `qos`, …
        points: points it adds now.
        most: its weight, the most it can add; None if it has no weight.
    """

    name: str
    points: float
    most: float | None = None


class Priority(msgspec.Struct, frozen=True):
    """A job's priority in one partition, from sprio.

    Attributes:
        reading: one sentence about the weakest factor.
    """

    partition: str
    total: int
    factors: tuple[Factor, ...]
    reading: str


class StartEstimate(msgspec.Struct, frozen=True):
    """An estimate of when a job starts.

    Attributes:
        at: epoch seconds.
        source: which command or plan the estimate is from.
        taken: epoch seconds at which it was computed; None if unknown.
        nodes: node list; empty if unknown.
    """

    at: int
    source: str
    taken: int | None = None
    nodes: str = ""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A change with which a job would start sooner.

    Attributes:
        changes: sbatch's long options and their new values; an empty value removes the option.
        start: estimated start in epoch seconds, from current nodes, jobs and backfill plans.
        test_only: answer of `sbatch --test-only`, in epoch seconds. It adds the whole time limit
            of every job ahead in the partition, so it is often far too late.
        command: a shell line that makes the change.
        notes: other effects of the change.
    """

    changes: tuple[tuple[str, str], ...]
    start: int
    test_only: int
    command: str
    notes: tuple[str, ...] = ()


class WaitExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job waits.

    Attributes:
        reason: as Slurm prints it.
        meaning: the reason in words.
        who: who can change it.
        advice: what to do.
        details: current facts about the reason, with numbers.
        blockers: what blocks the job, earliest end first.
        more_blockers: number of blockers left out of `blockers`.
        priority: one entry for each partition the job waits in.
        start: None if unknown.
        alternatives: changes that would start sooner, soonest first.
        no_alternatives: why there are none.
    """

    reason: str
    meaning: str
    who: str
    advice: str
    details: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    more_blockers: int = 0
    ranks: tuple[Rank, ...] = ()
    priority: tuple[Priority, ...] = ()
    start: StartEstimate | None = None
    alternatives: tuple[Alternative, ...] = ()
    no_alternatives: str = ""


class FailedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that did not end well, from sacct.

    Attributes:
        step_id: `12.0`, `12.batch`.
        exit_code: `code:signal`.
        nodes: node list it ran on.
    """

    step_id: str
    name: str
    state: str
    exit_code: str
    nodes: str


class LogLine(msgspec.Struct, frozen=True):
    """A line of a job's log; `number` counts from 1, None if the log's start was not read."""

    text: str
    number: int | None = None


class EndExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended, and why.

    Attributes:
        kind: `completed`, `failed`, `signal`, `timeout`, `out of memory`, …
        meaning: the kind in words.
        advice: what to do.
        steps: steps that failed.
        first_error: the most telling line of the log.
        error_means: what that line means.
        log: path of the log; None if Slurm does not say.
        log_trouble: why the log could not be read; empty if it was read.
        last_lines: last lines of the log, not escaped.
    """

    kind: str
    meaning: str
    advice: str = ""
    details: tuple[str, ...] = ()
    exit_code: str | None = None
    ended: int | None = None
    steps: tuple[FailedStep, ...] = ()
    first_error: LogLine | None = None
    error_means: str = ""
    log: str | None = None
    log_trouble: str = ""
    last_lines: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job waits, or why it ended as it did.

    Attributes:
        answer: the explanation in one sentence.
        waiting: set for a pending job.
        ended: set for a job that has ended.
        notes: what could not be found out, and why.
        source: the command that gave the job's state.
        taken: epoch seconds at which Slurm was asked.
    """

    job_id: str
    name: str
    user: str
    account: str
    partition: str
    qos: str = ""
    state: str
    answer: str
    waiting: WaitExplanation | None = None
    ended: EndExplanation | None = None
    notes: tuple[str, ...] = ()
    source: str
    taken: float
