"""Why a job waits or failed, as typed values. None is what Slurm does not say."""

from __future__ import annotations

from typing import Literal

import msgspec

BlockerKind = Literal["job", "user", "reservation", "node"]


class Blocker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds something that a job waits for.

    Attributes:
        kind: what it is; `name` is a job's id, a user's or reservation's name, or nodes.
        holds: what it holds or why it is in the way, in words.
        until: epoch seconds at which it ends at the latest; None when it has no end, or unknown.
    """

    kind: BlockerKind
    name: str
    user: str = ""
    account: str = ""
    state: str = ""
    holds: str = ""
    until: int | None = None


class Rank(msgspec.Struct, frozen=True):
    """A job's place by priority among those that wait in a partition and could start.

    Attributes:
        place: 1 for the first.
        waiting: how many there are; an array counts once.
        out_of_it: jobs that wait there and cannot start: held, or with a dependency or begin time.
    """

    partition: str
    place: int
    waiting: int
    out_of_it: int = 0


class Factor(msgspec.Struct, frozen=True):
    """One part of a job's priority.

    Attributes:
        name: `age`, `fairshare`, `qos`, …
        points: what it adds now.
        most: what it could add at best (its weight); None for one without.
    """

    name: str
    points: float
    most: float | None = None


class Priority(msgspec.Struct, frozen=True):
    """A job's priority in one partition, from sprio.

    Attributes:
        reading: the factors in one sentence.
    """

    partition: str
    total: int
    factors: tuple[Factor, ...]
    reading: str


class Start(msgspec.Struct, frozen=True):
    """When a job may start.

    Attributes:
        at: epoch seconds.
        source: who says so.
        taken: epoch seconds at which that was worked out; None when unknown.
        nodes: where, empty when unknown.
    """

    at: int
    source: str
    taken: int | None = None
    nodes: str = ""


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A change with which a job would start sooner.

    Attributes:
        changes: sbatch's long options and the values to give them; an empty one takes it away.
        start: epoch seconds at which there is room for it, by the nodes, jobs and plans of now.
        test_only: what `sbatch --test-only` answers, in epoch seconds. It adds the whole time of
            all jobs that wait before one in its partition, so it is often far too late.
        command: a shell line that makes the change.
        notes: what else it means.
    """

    changes: tuple[tuple[str, str], ...]
    start: int
    test_only: int
    command: str
    notes: tuple[str, ...] = ()


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job waits.

    Attributes:
        reason: as Slurm prints it.
        meaning: that in words; `who` can change it, and `advice` is what to do.
        details: what is known of it now, with numbers.
        blockers: what is in the way, nearest end first; `more_blockers` are left out.
        priority: for each partition it waits in.
        start: None when unknown.
        alternatives: what would start sooner, soonest first.
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
    start: Start | None = None
    alternatives: tuple[Alternative, ...] = ()
    no_alternatives: str = ""


class FailedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that did not end well, from sacct.

    Attributes:
        step_id: `12.0`, `12.batch`.
        exit_code: `code:signal`.
        nodes: where it ran.
    """

    step_id: str
    name: str
    state: str
    exit_code: str
    nodes: str


class LogLine(msgspec.Struct, frozen=True):
    """A line of a job's log; `number` counts from 1, None where the beginning was not read."""

    text: str
    number: int | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended, and why.

    Attributes:
        kind: `completed`, `failed`, `signal`, `timeout`, `out of memory`, …
        meaning: that in words, and `advice` what to do.
        steps: those that did not end well.
        first_error: the line of the log that tells most, and `error_means` what it says.
        log: path of the log; None when Slurm does not say.
        log_trouble: why the log could not be read; empty when it was.
        last_lines: of the log, not escaped.
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
    """Why a job is where it is.

    Attributes:
        answer: in one sentence.
        waiting: of a pending job.
        ended: of one that ended.
        notes: what could not be found out, and why.
        source: the command its state was read from.
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
    waiting: Waiting | None = None
    ended: Ended | None = None
    notes: tuple[str, ...] = ()
    source: str
    taken: float
