"""Accelerate: `accelerate launch` on each node, which starts torchrun's agents in this process.

Options are those of `accelerate launch` ("The Command Line", huggingface.co/docs/accelerate).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import PurePosixPath

from slurmkit.checks.say import error, note
from slurmkit.findings import Finding
from slurmkit.launchers import rendezvous
from slurmkit.launchers.agents import agents, as_many_on_each_node, needs_agents
from slurmkit.launchers.plain import needs_cpus, needs_one_start
from slurmkit.launchers.ranklogs import own_file
from slurmkit.launchers.step import Step
from slurmkit.launchers.torchrun import Words, python_beside, split, worker
from slurmkit.spec import JobSpec

_SOURCE = "launcher accelerate"
_MODULE = "accelerate.commands.launch"
_BY_MODULE = 3  # words: a Python, -m and that
# What says how to train; one of them must, or it asks PyTorch how many GPUs this node has.
_KINDS = frozenset(
    ("--multi_gpu --cpu --tpu --use_deepspeed --use_fsdp --use_megatron_lm --config_file").split()
)
_OURS = frozenset(
    (
        "--num_machines --num_processes --machine_rank --main_process_ip --main_process_port"
        " --gpu_ids --same_network --rdzv_backend --deepspeed_multinode_launcher"
    ).split()
)
# From node to node DeepSpeed would go by pdsh.
_ON_MANY = ("--rdzv_backend=c10d", "--deepspeed_multinode_launcher=standard")
# It hands everything to an agent of torch.distributed.run, whose further options these are.
_RENDEZVOUS = f"export PET_RDZV_ID={rendezvous.ID}"
_STANDALONE = "export PET_STANDALONE=1"
_RANKED = '--machine_rank="$SLURM_NODEID" "$@"'


class Accelerate:
    """Starts `accelerate launch` with what it must know of the nodes.

    The command is a script, or an `accelerate launch` of its own with options for how to train.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        """See `slurmkit.plugins.Launcher`: as many workers on each node."""
        return as_many_on_each_node(spec)

    def needs(self, step: Step) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`."""
        spec, given = step.spec, _given(step.spec.command)
        yield from needs_agents(step, "accelerate")
        yield from needs_one_start(spec, "accelerate") if given is None else needs_cpus(spec)
        if wrong := sorted((given or set()) & _OURS):
            message = f"{' and '.join(wrong)} of accelerate come from the job; leave them out"
            yield error("accelerate-place", message, _SOURCE)
        length = _own(spec.command)
        whole = _script_at(spec.command) == len(spec.command)
        if length and spec.launch.log_per_rank and whole:
            message = "--log-per-rank must see what is started; give: accelerate launch … train.py"
            yield error("log-per-rank-script", message, _SOURCE)
        if spec.command and not (given or set()) & _KINDS:
            message = (
                "plain data-parallel training, whatever accelerate's default configuration says;"
                " for FSDP or DeepSpeed give: accelerate launch --config_file FILE train.py"
            )
            yield note("accelerate-kind", message, _SOURCE)

    def lines(self, step: Step) -> Words:
        """See `slurmkit.plugins.Launcher`."""
        command = step.spec.command
        program, target = _logged(step) if step.spec.launch.log_per_rank else _split(command)
        start = f"exec {shlex.join((*step.prefix, *program))} {_RANKED}"
        several = step.tasks_per_node > 1 or not step.single_node
        kind = ("--multi_gpu",) if several and not (_given(command) or set()) & _KINDS else ()
        many = () if step.single_node else _ON_MANY
        words = shlex.join(["sh", "-c", start, "sh", *kind, *many])
        started = agents(step, f"{words} {_where(step)} {shlex.join(target)}")
        if step.single_node:
            return (_STANDALONE, *started)
        return (*rendezvous.LINES, _RENDEZVOUS, "", *started)


def _where(step: Step) -> str:
    """Its place; of the GPUs that Slurm gives it all, though a file names those of elsewhere."""
    workers = step.tasks_per_node
    if step.single_node:
        return f"--gpu_ids=all --num_machines=1 --num_processes={workers} --main_process_port=0"
    return (
        '--gpu_ids=all --num_machines="$SLURM_NNODES"'
        f' --num_processes="$((SLURM_NNODES * {workers}))"'
        ' --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT"'
    )


def _split(command: Words) -> tuple[Words, Words]:
    """The words that start accelerate's launcher, and what follows: options, and what it starts."""
    if length := _own(command):
        return command[:length], command[length:]
    python, target = split(command)
    program = (python, "-m", _MODULE) if python else ("accelerate", "launch")
    return program, ("--no_python", *command) if target is None else target


def _logged(step: Step) -> tuple[Words, Words]:
    """The same where each worker has a file for its output."""
    command, length = step.spec.command, _own(step.spec.command)
    if not length:
        python, words = worker(command)
        program = (python, "-m", _MODULE) if python else ("accelerate", "launch")
        return program, ("--no_python", *own_file(step, words))
    rest, at = command[length:], _script_at(command[length:])
    python = command[0] if length == _BY_MODULE else python_beside(command[0])
    words = (python, "-u", *rest[at:])
    return command[:length], (*rest[:at], "--no_python", *own_file(step, words))


def _script_at(words: Words) -> int:
    return next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))


def _own(command: Words) -> int:
    """How many words of a command are an `accelerate launch` of its own; 0 where it is none."""
    name = PurePosixPath(command[0]).name if command else ""
    if name == "accelerate-launch":
        return 1
    if name == "accelerate" and command[1:2] == ("launch",):
        return 2
    return _BY_MODULE if command[1:3] == ("-m", _MODULE) else 0


def _given(command: Words) -> set[str] | None:
    """Accelerate's options in a command, as far as its script; None where it is not accelerate's.

    Both `--num-machines` and `--num_machines` are read.
    """
    length = _own(command)
    if not length:
        return None
    options = command[length:][: _script_at(command[length:])]
    return {word.partition("=")[0].replace("-", "_").replace("__", "--", 1) for word in options}
