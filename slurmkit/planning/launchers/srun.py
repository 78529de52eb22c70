"""The launchers srun, which starts the command once per task, and none, for the batch shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from slurmkit.planning.launchers import base
from slurmkit.planning.launchers.base import (
    END_ALL_ON_FAILURE,
    LaunchStep,
    check_output_is_file,
    rank_log_lines,
    srun_line,
    srun_output,
)
from slurmkit.planning.layout import nodes_by_name
from slurmkit.spec.findings import Finding, error, note, warning
from slurmkit.spec.jobspec import JobSpec

_NO_PROGRAM = re.compile(
    r"=|^(if|then|elif|else|fi|time|for|in|until|while|do|done|case|esac|coproc|select|function)$"
)
_LAUNCHER_PROGRAMS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun")
# Variables that torch.distributed reads with `env://`, set by a shell in each task.
_EXPORT_RANKS = (
    "export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
    ' NODE_RANK=$SLURM_NODEID; exec "$@"'
)


def one_task_per_gpu(spec: JobSpec) -> JobSpec:
    """Return the job with one task for each GPU, if it has whole GPUs and gives no tasks."""
    counted = spec.ntasks or spec.ntasks_per_node or spec.ntasks_per_gpu
    has_tasks = counted or spec.launch.per_gpu is not None
    if has_tasks or spec.gpus is None or spec.gpus.is_part or spec.script is not None:
        return spec
    return msgspec.structs.replace(spec, launch=msgspec.structs.replace(spec.launch, per_gpu=True))


def check_is_command(spec: JobSpec, name: str) -> Iterable[Finding]:
    """Report a whole script, which cannot be started more than once."""
    if spec.script is not None:
        message = (
            f"the launcher {name} starts a command on each node, and this job is a whole script;"
            " leave --launch out, and start the tasks in the script itself"
        )
        yield error("launcher-needs-command", message, f"launcher {name}")


def check_not_a_launcher(spec: JobSpec, name: str) -> Iterable[Finding]:
    """Warn when the command is itself a launcher (mpirun, torchrun).

    srun would start it once per task.
    """
    program = PurePosixPath(spec.command[0]).name if spec.command else ""
    if program in _LAUNCHER_PROGRAMS:
        message = (
            f"{program} starts processes itself, and the launcher {name} would start it more than"
            " once; give the program alone, or --launch none"
        )
        yield warning("launcher-twice", message, f"launcher {name}")
    yield from check_exclusive_cpus(spec)


def check_exclusive_cpus(spec: JobSpec) -> Iterable[Finding]:
    """Note that a step gets the CPUs of its tasks only, even on exclusive nodes."""
    if spec.exclusive is True and spec.cpus_per_task is None:
        message = "--exclusive takes whole nodes, but each task gets only its --cpus-per-task"
        yield note("exclusive-cpus", message, "srun(1) --cpus-per-task")


def _options_of_ranks(step: LaunchStep) -> tuple[str, ...]:
    """Return the step's options; tasks that have a GPU each see all GPUs of their node.

    A program takes the GPU of its LOCAL_RANK (`torch.cuda.set_device`), and NCCL reaches the other
    GPUs. Bound to its GPU, as Slurm binds tasks with `--ntasks-per-gpu`, a task sees it as GPU 0.
    """
    if not _is_unbound(step.spec):
        return step.options
    return tuple(option for option in step.options if not option.startswith("--gpu-bind="))


def _is_unbound(spec: JobSpec) -> bool:
    """Return whether Slurm would bind each task to a GPU of its own, and this launcher does not."""
    return spec.ntasks_per_gpu == 1 and not (spec.gpus is not None and spec.gpus.bind)


def _local_rank_note(step: LaunchStep) -> Iterable[Finding]:
    """Note which GPUs a task sees, if these are not what its LOCAL_RANK or Slurm says."""
    if _is_unbound(step.spec):
        message = (
            "--ntasks-per-gpu=1: each task sees all GPUs of its node, so that GPU LOCAL_RANK is"
            " there; to bind each task to a GPU, as sbatch does, give --gpu-bind=single:1"
        )
        yield note("ranks-see-all-gpus", message, "launcher srun")
    bound = (option for option in _options_of_ranks(step) if option.startswith("--gpu-bind="))
    binding = next(bound, "").partition("=")[2]
    if binding in ("", "none"):
        return
    message = (
        f"with GPU binding {binding} a task sees only its own GPUs, numbered from 0, so GPU"
        " LOCAL_RANK may not be there; in PyTorch take LOCAL_RANK % torch.cuda.device_count()"
    )
    yield note("local-rank-gpu", message, "launcher srun")


class Srun:
    """The launcher that starts the command by one srun: once per task, on every node of the job.

    With `--launch srun` it also starts one task for each GPU, exports each task's rank, and ends
    all tasks when one fails.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        return one_task_per_gpu(spec) if spec.launch.launcher else spec

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        spec = step.spec
        yield from check_is_command(spec, "srun")
        yield from check_exclusive_cpus(spec)
        yield from check_output_is_file(step)
        if spec.launch.launcher:
            yield from _local_rank_note(step)

    def lines(self, step: LaunchStep) -> tuple[str, ...]:
        spec = step.spec
        mpi = (f"--mpi={spec.launch.mpi}",) if spec.launch.mpi else ()
        logs = rank_log_lines(step)
        if not spec.launch.launcher:
            options = (step.cpus, *step.options, *mpi)
            return (*logs, srun_line(options, (*step.prefix, *spec.command), srun_output(step)))
        options = (step.cpus, *_options_of_ranks(step), *mpi)
        ranked = ("sh", "-c", _EXPORT_RANKS, "sh", *step.prefix, *spec.command)
        started = srun_line((*options, *END_ALL_ON_FAILURE), ranked, srun_output(step))
        return (*base.RENDEZVOUS_LINES, "", *logs, started)


class BatchShell:
    """The launcher none: the batch shell runs the command once, on the first node.

    A whole script runs unchanged.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        return spec

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        """Warn of tasks that nothing would start."""
        spec, launch = step.spec, step.spec.launch
        named = {
            "--mpi": launch.mpi,
            "--cpu-bind": launch.cpu_bind,
            "--label": launch.label,
            "--log-per-rank": launch.log_per_rank,
        }
        if names := " and ".join(name for name, value in named.items() if value):
            message = (
                f"{names} works only with srun, and the launcher none does not start srun; give it"
                " to srun in the script"
            )
            yield warning("launcher-no-srun", message, "launcher none")
        if spec.script is None and spec.gpus is not None and spec.gpus.bind:
            message = (
                f"GPU binding {spec.gpus.bind} applies only to steps that the command itself starts"
                " with srun; the command sees all GPUs of its node"
            )
            yield note("launcher-no-binding", message, "launcher none")
        nodes = spec.most_nodes or nodes_by_name(spec)
        if spec.script is None and max(spec.ntasks or 1, spec.ntasks_per_node or 1, nodes) > 1:
            message = (
                "the launcher none runs the command once, on the first node: the other"
                " tasks and nodes are idle unless the command itself starts something there"
            )
            yield warning("launcher-runs-once", message, "launcher none")

    def lines(self, step: LaunchStep) -> tuple[str, ...]:
        """Return the command as one line; srun's options are not used."""
        first, *more = step.spec.command
        return (" ".join([_program(first), *map(shlex.quote, more)]),)


def _program(word: str) -> str:
    """Quote a command's first word, also where a shell would read an assignment or a keyword."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and _NO_PROGRAM.search(word) else quoted
