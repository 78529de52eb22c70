"""The command started by srun, once per task, or once by the batch shell itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from slurmkit.findings import Finding
from slurmkit.launchers import rendezvous
from slurmkit.launchers.ranklogs import needs_file, rank_logs, srun_output
from slurmkit.launchers.step import PATIENCE, Step, srun
from slurmkit.spec import JobSpec

_NO_PROGRAM = re.compile(
    r"=|^(if|then|elif|else|fi|time|for|in|until|while|do|done|case|esac|coproc|select|function)$"
)
_STARTERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun")
# What torch.distributed and its like read with `env://`. A shell in each task knows its numbers.
_RANKS = (
    "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    ' NODE_RANK=$SLURM_NODEID; exec "$@"'
)


def one_per_gpu(spec: JobSpec) -> JobSpec:
    """A job of whole GPUs that gives no tasks has one for each GPU."""
    given = spec.ntasks or spec.ntasks_per_node or spec.launch.per_gpu is not None
    if given or spec.gpus is None or spec.gpus.is_part or spec.script is not None:
        return spec
    return msgspec.structs.replace(spec, launch=msgspec.structs.replace(spec.launch, per_gpu=True))


def needs_command(spec: JobSpec, name: str) -> Iterable[Finding]:
    """A whole script is no command that could be started more than once."""
    if spec.script is not None:
        message = (
            f"the launcher {name} starts a command on each node, and this job is a whole script;"
            " leave --launch out and start it in the script where tasks begin"
        )
        yield Finding(
            severity="error",
            code="launcher-needs-command",
            message=message,
            source=f"launcher {name}",
        )


def needs_one_start(spec: JobSpec, name: str) -> Iterable[Finding]:
    """What starts processes itself would be started by each of them, and whole nodes lie idle."""
    program = PurePosixPath(spec.command[0]).name if spec.command else ""
    if program in _STARTERS:
        message = (
            f"{program} starts processes itself, and the launcher {name} would start it more than"
            " once; give the program alone, or --launch none"
        )
        yield Finding(
            severity="warning", code="launcher-twice", message=message, source=f"launcher {name}"
        )
    yield from needs_cpus(spec)


def needs_cpus(spec: JobSpec) -> Iterable[Finding]:
    """A step has the CPUs of its tasks only, also on nodes of its own."""
    if spec.exclusive is True and spec.cpus_per_task is None:
        yield Finding(
            severity="note",
            code="exclusive-cpus",
            message="--exclusive takes whole nodes, but a task only its --cpus-per-task",
            source="srun(1) --cpus-per-task",
        )


class Srun:
    """One srun for the command: once per task, on every node of the job.

    Asked for by name, it also starts one task for each GPU, tells each its rank, and ends all
    when one fails.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `slurmkit.plugins.Launcher`."""
        return one_per_gpu(spec) if spec.launch.launcher else spec

    def needs(self, step: Step) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`."""
        spec = step.spec
        yield from needs_command(spec, "srun")
        yield from needs_cpus(spec)
        yield from needs_file(step)

    def lines(self, step: Step) -> tuple[str, ...]:
        """See `slurmkit.plugins.Launcher`."""
        spec = step.spec
        mpi = (f"--mpi={spec.launch.mpi}",) if spec.launch.mpi else ()
        options, logs = (step.cpus, *step.options, *mpi), rank_logs(step)
        if not spec.launch.launcher:
            return (*logs, srun(options, (*step.prefix, *spec.command), srun_output(step)))
        ranked = ("sh", "-c", _RANKS, "sh", *step.prefix, *spec.command)
        started = srun((*options, *PATIENCE), ranked, srun_output(step))
        return (*rendezvous.LINES, "", *logs, started)


class Batch:
    """The batch shell runs the command once, on the first node; a script stands as it is."""

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `slurmkit.plugins.Launcher`."""
        return spec

    def needs(self, step: Step) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`: what several tasks are for, unless a script says."""
        spec, launch = step.spec, step.spec.launch
        named = {
            "--mpi": launch.mpi,
            "--label": launch.label,
            "--log-per-rank": launch.log_per_rank,
        }
        if given := " and ".join(name for name, value in named.items() if value):
            yield Finding(
                severity="warning",
                code="launcher-no-srun",
                message=f"{given} is for srun, which the launcher none does not start; give it to"
                " srun in the script",
                source="launcher none",
            )
        if spec.script is None and spec.gpus is not None and spec.gpus.bind:
            yield Finding(
                severity="note",
                code="launcher-no-binding",
                message=f"GPU binding {spec.gpus.bind} is for what the command itself starts with"
                " srun; the command sees all GPUs of its node",
                source="launcher none",
            )
        tasks = (spec.ntasks or 1, spec.ntasks_per_node or 1, spec.most_nodes or 1)
        if spec.script is None and max(tasks) > 1:
            yield Finding(
                severity="warning",
                code="launcher-runs-once",
                message="the launcher none runs the command once, on the first node: the other"
                " tasks and nodes are idle unless the command itself starts something there",
                source="launcher none",
            )

    def lines(self, step: Step) -> tuple[str, ...]:
        """See `slurmkit.plugins.Launcher`; srun is not used, so neither are its options."""
        first, *more = step.spec.command
        return (" ".join([_program(first), *map(shlex.quote, more)]),)


def _program(word: str) -> str:
    """A command's first word, quoted where a shell would take it for an assignment or a keyword."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and _NO_PROGRAM.search(word) else quoted
