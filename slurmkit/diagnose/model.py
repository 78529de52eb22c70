"""Why a job waits, is slow or failed, as typed values. None means that it is not known."""

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


class RunningFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that keeps a running job from its usual pace.

    Attributes:
        kind: `stopped`, `blocked`, `throttled`, `data`, …: the order of `FINDING_KINDS`.
        text: what was found, with numbers.
        source: the command, file or service that reports it.
        taken: epoch seconds at which that was so; None if unknown.
        advice: what to do.
    """

    kind: str
    text: str
    source: str
    taken: float | None = None
    advice: str = ""


FINDING_KINDS = (
    "stopped", "blocked", "nccl", "asleep-all", "loader", "busy", "asleep", "throttled", "data",
    "idle", "uneven", "memory", "gpu-memory", "slower", "silent", "zombie",
)  # fmt: skip
"""Kinds of findings, the most telling first."""


class RunningFact(msgspec.Struct, frozen=True, kw_only=True):
    """What a running job does, or what is unknown about that.

    Attributes:
        about: `GPUs`, `CPUs`, `Memory`, `Log` or `Earlier runs`.
        text: the fact with its numbers; `unknown` and why, if it is not known.
        source: what reports it; empty if nothing does.
        taken: epoch seconds at which that was so; None if unknown.
    """

    about: str
    text: str
    source: str = ""
    taken: float | None = None


class WatchedRank(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank did while it was watched; None is unknown.

    Attributes:
        rank: its number; None for a process of no rank.
        step: step id; empty for the batch script.
        command: program and script, without further arguments.
        state: letter of ps: `R`, `S`, `D`, `T`, `Z`.
        does: what it did, in words.
        cpus: CPUs that its main process used.
        processes: number of its processes; `threads`, `rss` and `read_per_second` add them up.
        rss: resident memory in bytes. Memory that processes share counts once for each.
        read_per_second: bytes read from files, pipes and sockets.
    """

    rank: int | None
    node: str
    pid: int
    step: str
    command: str
    state: str
    does: str
    cpus: float | None = None
    processes: int = 1
    threads: int = 1
    rss: int | None = None
    read_per_second: float | None = None


class RankStack(msgspec.Struct, frozen=True, kw_only=True):
    """The Python stack of a process, from py-spy; `problem` says why there is none."""

    title: str
    lines: tuple[str, ...] = ()
    problem: str = ""


class RunningExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a running job is slow or stuck.

    Attributes:
        runs: where, since when and until when it runs.
        findings: what keeps it from its usual pace, the most telling first; empty if nothing does.
        facts: what is known and what is not.
        probed: whether its nodes were asked about its processes.
        ranks: its ranks or processes, as far as its nodes were asked.
        nccl: what NCCL says is wrong; empty if it was not asked or says nothing.
        stacks: Python stacks, if they were asked for.
    """

    runs: str
    findings: tuple[RunningFinding, ...] = ()
    facts: tuple[RunningFact, ...] = ()
    probed: bool = False
    ranks: tuple[WatchedRank, ...] = ()
    nccl: tuple[str, ...] = ()
    stacks: tuple[RankStack, ...] = ()


class ComparedFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about a run, compared with the same fact about earlier runs.

    Attributes:
        about: `GPU use`, `power of a GPU`, `node`, `CPUs`, `data read`, …
        now: of this run, in words; empty if unknown.
        earlier: of the earlier runs; empty if unknown.
        differs: whether this run lies outside of what the earlier ones had, numbers by at least
            10 %; None where one side is unknown.
        unknown: why it is unknown.
        source: the command, file or service that reports it.
    """

    about: str
    now: str = ""
    earlier: str = ""
    differs: bool | None = None
    unknown: str = ""
    source: str = ""


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A run compared with the completed runs of the same user and job name before it.

    Attributes:
        text: how its run time compares; in one or two sentences what else differs.
        longer: run time through the median of the earlier runs, minus 1: 0.3 is 30 % longer. None
            if there are none, or while it runs and has not run for longer.
        is_slower: whether it took at least 10 % longer than every one of them.
        earlier: job ids of the runs that it is compared with, newest first.
        facts: what was compared.
        source: where these facts are stored.
        taken: epoch seconds up to which the source knows what runs did; None if unknown.
    """

    text: str
    longer: float | None = None
    is_slower: bool = False
    earlier: tuple[str, ...] = ()
    facts: tuple[ComparedFact, ...] = ()
    source: str = ""
    taken: float | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job waits, whether it is slow or stuck while it runs, or why it ended as it did.

    Attributes:
        answer: the explanation in one sentence.
        waiting: set for a pending job.
        running: set for a running job.
        ended: set for a job that has ended.
        compared: a running or completed job compared with its earlier runs; None where no source
            stores them.
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
    running: RunningExplanation | None = None
    ended: EndExplanation | None = None
    compared: RunComparison | None = None
    notes: tuple[str, ...] = ()
    source: str
    taken: float
