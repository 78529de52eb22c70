"""How a job ended, as typed facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.ranks import RankFailure
from slurmkit.jobs.sacct import Step
from slurmkit.survive.history import RunEnd

Kind = Literal[
    "completed",
    "failed",
    "timeout",
    "preempted",
    "node_failure",
    "out_of_memory",
    "cancelled",
    "deadline",
    "boot_failure",
    "unknown",
]

NO_OUTPUT = 53
"""The signal slurmd ends a job with whose output path it could not open."""


class Run(msgspec.Struct, frozen=True):
    """One of the runs of a job that was requeued, or its only one; times are epoch seconds."""

    state: str
    submitted: int | None
    started: int | None
    ended: int | None
    nodes: str
    exit_code: str | None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended.

    Attributes:
        kind: what ended it.
        exit_code: of the batch script, 0 to 255; None where there is none or it is unknown.
        signal: number of the signal that ended it, also when that hit the step it waited for.
        signal_name: e.g. SIGSEGV.
        cancelled_by: name or number of the user who cancelled it; None when Slurm does not say.
        started: epoch seconds, like `ended`; of the last run.
        elapsed: seconds the last run took.
        nodes: node list of the last run.
        runs: every run, oldest first; more than one after requeues; empty when slurmdbd was not
            heard.
        restarts: of a job that survives its runs, and why each ended, by its own history.
        log: path of its output, None when unknown.
        first_failure: of several processes the one that failed first, where its log says.
        words: all that in one line; escape it before showing it.
        tally: of an array or het job, its parts by state; the rest is that of the worst of them.
        source: the command the facts were read from.
    """

    job_id: str
    kind: Kind
    exit_code: int | None = None
    signal: int | None = None
    signal_name: str | None = None
    cancelled_by: str | None = None
    started: int | None = None
    ended: int | None = None
    elapsed: int | None = None
    nodes: str = ""
    runs: tuple[Run, ...] = ()
    restarts: tuple[RunEnd, ...] = ()
    log: str | None = None
    first_failure: RankFailure | None = None
    words: str = ""
    tally: dict[str, int] = msgspec.field(default_factory=dict)
    source: Literal["squeue", "sacct"]

    @property
    def exit_status(self) -> int:
        """What a command that stands for the job ends with.

        Its own exit code, 128 + N for signal N, 1 for any other failure, 0 when it completed.
        """
        if self.kind == "completed":
            return 0
        if self.kind != "failed":
            return 1
        if self.signal is not None:
            return 1 if self.signal == NO_OUTPUT else 128 + self.signal
        return self.exit_code or 1


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an ended job beside its facts.

    Attributes:
        runs: its runs as sacct shows them, of this job only, oldest first.
        steps: allocation and steps of the last run.
        memory_said: whether its log holds slurmstepd's word that it used too much memory.
        first_failure: of its processes, as its log says.
        restarts: what its own history says of its runs.
        log: path of its output.
    """

    runs: Sequence[JobInfo] = ()
    restarts: tuple[RunEnd, ...] = ()
    steps: Sequence[Step] = ()
    memory_said: bool = False
    first_failure: RankFailure | None = None
    log: str | None = None
