"""A file of its own for the output of each rank, beside the job's: `slurm-42.out.rank3`.

The job's own file is known in the batch shell whatever pattern it was asked for by, so one rule
gives the names for every launcher, and for what reads them later.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from slurmkit.checks.say import error
from slurmkit.findings import Finding
from slurmkit.jobs.logpaths import RANK_MARK
from slurmkit.launchers.step import Step
from slurmkit.sweep import unmarked

_KNOWN = (
    "# Beside the file of the job's own output each rank has one.",
    "export slurmkit_output=$(readlink /proc/$$/fd/1)",
    "",
)
_NO_FILE = "--log-per-rank needs a file beside which there is room for more; give --output another"


def rank_logs(step: Step) -> tuple[str, ...]:
    """Lines before a step whose ranks have files; none where they have not."""
    return _KNOWN if step.spec.launch.log_per_rank else ()


def srun_output(step: Step) -> str:
    """Options of srun, quoted for the shell, that put each task's output into its file."""
    if not step.spec.launch.log_per_rank:
        return ""
    mode = " --open-mode=append" if step.spec.open_mode == "append" else ""
    return f' --output="${{slurmkit_output//%/%%}}{RANK_MARK}%t"{mode}'


def own_file(step: Step, words: Iterable[str]) -> tuple[str, ...]:
    """A worker that knows its `RANK`, started with its output in its file."""
    # Quoted twice, so each task's own shell puts in what its point of a sweep has.
    return ("sh", "-c", f"exec {unmarked(shlex.join(words))}{redirection(step)}")


def redirection(step: Step) -> str:
    """What stands after a worker's words in a shell."""
    if not step.spec.launch.log_per_rank:
        return ""
    mode = ">>" if step.spec.open_mode == "append" else ">"
    return f' {mode}"$slurmkit_output{RANK_MARK}$RANK" 2>&1'


def needs_file(step: Step) -> Iterable[Finding]:
    """An output that is no file has nothing beside it."""
    if step.spec.launch.log_per_rank and (step.spec.output or "").startswith("/dev/"):
        yield error("log-per-rank-output", _NO_FILE, "--log-per-rank")
