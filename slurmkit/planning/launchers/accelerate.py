"""The accelerate launcher: `accelerate launch` on each node, which runs torchrun's agent itself.

Options are those of `accelerate launch` ("The Command Line", huggingface.co/docs/accelerate).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from slurmkit.planning.launchers import base
from slurmkit.planning.launchers.base import LaunchStep, with_own_log
from slurmkit.planning.launchers.srun import check_exclusive_cpus, check_not_a_launcher
from slurmkit.planning.launchers.torchrun import (
    Words,
    agent_lines,
    check_agents,
    sibling_python,
    split_python,
    spread_evenly,
    worker_words,
)
from slurmkit.spec.findings import Finding, error, note
from slurmkit.spec.jobspec import JobSpec

_SOURCE = "launcher accelerate"
_MODULE = "accelerate.commands.launch"
_BY_MODULE = 3  # words: a Python, -m and the module
# Options that say how to train. Without any, accelerate asks PyTorch for the node's GPUs.
_TRAINING_OPTIONS = frozenset(
    ("--multi_gpu --cpu --tpu --use_deepspeed --use_fsdp --use_megatron_lm --config_file").split()
)
_PLACEMENT_OPTIONS = frozenset(
    (
        "--num_machines --num_processes --machine_rank --main_process_ip --main_process_port"
        " --gpu_ids --same_network --rdzv_backend --deepspeed_multinode_launcher"
    ).split()
)
# Without the second option DeepSpeed would start the other nodes by pdsh.
_MULTI_NODE_OPTIONS = ("--rdzv_backend=c10d", "--deepspeed_multinode_launcher=standard")
# Options of torch.distributed.run, whose agent accelerate starts.
_RENDEZVOUS = f"export PET_RDZV_ID={base.RENDEZVOUS_ID}"
_STANDALONE = "export PET_STANDALONE=1"
# accelerate/commands/launch.py: with `--cpu` the script is started once on each node, whatever
# --num_processes says, and each process is 0 of 1.
_NO_CPU = (
    "accelerate launch --cpu starts one process on each node, and none of them knows of the others"
    " (rank 0 of 1); leave --cpu out, or ask for one task: --nodes 1 --ntasks-per-node 1. To train"
    " on CPUs with several processes, give --launch torchrun -- python3 train.py"
)
_RANKED = '--machine_rank="$SLURM_NODEID" "$@"'


class Accelerate:
    """The launcher that starts `accelerate launch` with the job's nodes and processes.

    The command is a script, or its own `accelerate launch` with options for how to train.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        """Return the job with the same number of workers on each node."""
        return spread_evenly(spec)

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        spec, options = step.spec, _launch_options(step.spec.command)
        yield from check_agents(step, "accelerate")
        yield from (
            check_not_a_launcher(spec, "accelerate")
            if options is None
            else check_exclusive_cpus(spec)
        )
        if "--cpu" in (options or set()) and not _is_one_process(step):
            yield error("accelerate-cpu", _NO_CPU, _SOURCE)
        if wrong := sorted((options or set()) & _PLACEMENT_OPTIONS):
            message = f"slurmkit sets accelerate's {' and '.join(wrong)}; leave them out"
            yield error("accelerate-place", message, _SOURCE)
        length = _launch_length(spec.command)
        whole = _script_at(spec.command) == len(spec.command)
        if length and spec.launch.log_per_rank and whole:
            message = (
                "--log-per-rank needs the script in the command; give: accelerate launch … train.py"
            )
            yield error("log-per-rank-script", message, _SOURCE)
        if spec.command and not (options or set()) & _TRAINING_OPTIONS:
            message = (
                "the job trains plainly data-parallel, and ignores accelerate's default"
                " configuration; for FSDP or DeepSpeed give: accelerate launch --config_file FILE"
                " train.py"
            )
            yield note("accelerate-kind", message, _SOURCE)

    def lines(self, step: LaunchStep) -> Words:
        command = step.spec.command
        program, target = (
            _split_with_log(step) if step.spec.launch.log_per_rank else _split(command)
        )
        start = f"exec {shlex.join((*step.prefix, *program))} {_RANKED}"
        own_kind = bool((_launch_options(command) or set()) & _TRAINING_OPTIONS)
        kind = () if own_kind or _is_one_process(step) else ("--multi_gpu",)
        many = () if step.single_node else _MULTI_NODE_OPTIONS
        words = shlex.join(["sh", "-c", start, "sh", *kind, *many])
        started = agent_lines(step, f"{words} {_placement(step)} {shlex.join(target)}")
        if step.single_node:
            return (_STANDALONE, *started)
        return (*base.RENDEZVOUS_LINES, _RENDEZVOUS, "", *started)


def _is_one_process(step: LaunchStep) -> bool:
    return step.single_node and step.tasks_per_node == 1


def _placement(step: LaunchStep) -> str:
    """Return accelerate's placement options.

    `--gpu_ids=all` means all GPUs of the job, even if a configuration file names others.
    """
    workers = step.tasks_per_node
    if step.single_node:
        return f"--gpu_ids=all --num_machines=1 --num_processes={workers} --main_process_port=0"
    return (
        '--gpu_ids=all --num_machines="$SLURM_NNODES"'
        f' --num_processes="$((SLURM_NNODES * {workers}))"'
        ' --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT"'
    )


def _split(command: Words) -> tuple[Words, Words]:
    """Return the words that start accelerate's launcher, and the words after them."""
    if length := _launch_length(command):
        return command[:length], command[length:]
    python, target = split_python(command)
    program = (python, "-m", _MODULE) if python else ("accelerate", "launch")
    return program, ("--no_python", *command) if target is None else target


def _split_with_log(step: LaunchStep) -> tuple[Words, Words]:
    """Return the same as `_split`, with a log file for each worker."""
    command, length = step.spec.command, _launch_length(step.spec.command)
    if not length:
        python, words = worker_words(command)
        program = (python, "-m", _MODULE) if python else ("accelerate", "launch")
        return program, ("--no_python", *with_own_log(step, words))
    rest, at = command[length:], _script_at(command[length:])
    python = command[0] if length == _BY_MODULE else sibling_python(command[0])
    words = (python, "-u", *rest[at:])
    return command[:length], (*rest[:at], "--no_python", *with_own_log(step, words))


def _script_at(words: Words) -> int:
    return next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))


def _launch_length(command: Words) -> int:
    """Return how many words of a command are its own `accelerate launch`; 0 if it has none."""
    name = PurePosixPath(command[0]).name if command else ""
    if name == "accelerate-launch":
        return 1
    if name == "accelerate" and command[1:2] == ("launch",):
        return 2
    return _BY_MODULE if command[1:3] == ("-m", _MODULE) else 0


def _launch_options(command: Words) -> set[str] | None:
    """Return accelerate's options in a command, up to the script; None if it is not accelerate's.

    Both `--num-machines` and `--num_machines` are read.
    """
    length = _launch_length(command)
    if not length:
        return None
    options = command[length:][: _script_at(command[length:])]
    return {word.partition("=")[0].replace("-", "_").replace("__", "--", 1) for word in options}
