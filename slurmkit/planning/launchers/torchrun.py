"""The torchrun launcher: one agent on each node, which starts a worker for each task there.

Options are those of torch.distributed.run ("torchrun (Elastic Launch)", docs.pytorch.org). Other
launchers with an agent on each node use the same checks and lines.
"""

from __future__ import annotations

import posixpath
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
    with_own_log,
)
from slurmkit.planning.launchers.srun import (
    check_exclusive_cpus,
    check_is_command,
    check_not_a_launcher,
    one_task_per_gpu,
)
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.jobspec import JobSpec

_SOURCE = "launcher torchrun"
_NAME = "torchrun"
_MODULE = "torch.distributed.run"
_PLACEMENT_OPTIONS = frozenset(
    (
        "--nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --standalone --node-rank"
        " --master-addr --master-port"
    ).split()
)
_OPTIONS_WITH_VALUE = frozenset(
    (
        "--nnodes --rdzv-conf --max-restarts --monitor-interval --start-method --event-log-handler"
        " --role --log-dir -r --redirects -t --tee --local-ranks-filter --local-addr --logs-specs"
        " --numa-binding --signals-to-handle"
    ).split()
)
_SCRIPT_OPTIONS = ("-m", "--module", "--no-python", "--run-path")
_ELASTIC = re.compile(r"([1-9]\d*):([1-9]\d*)", re.ASCII)
# The agents that are left go on without one that failed, or without its node.
_GO_ON_AFTER_FAILURE = ("--wait=0", "--kill-on-bad-exit=0", "--no-kill")
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
Words = tuple[str, ...]
# The step has one task per node, with the CPUs of all the job's tasks there: srun would warn, or
# refuse --ntasks-per-node together with --ntasks-per-gpu.
_FEWER_TASKS = "unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_GPU"


class TorchrunCommand(msgspec.Struct, frozen=True):
    """A command that is torchrun's own: `torchrun [OPTIONS] train.py ARGUMENTS`.

    Attributes:
        program: words that start the agent.
        options: torchrun's own options, without `--nnodes` and those about the script.
        about_script: torchrun's options about the script, such as `-m`.
        target: the script with its arguments.
        nodes: value of `--nnodes`; empty without it.
        wrong: options that slurmkit sets.
        unknown: options that torchrun does not have, and may have a value as the next word.
    """

    program: Words
    options: Words = ()
    about_script: Words = ()
    target: Words = ()
    nodes: str = ""
    wrong: Words = ()
    unknown: Words = ()

    @property
    def least_nodes(self) -> int:
        """MIN of `--nnodes MIN:MAX`; 0 if the number of nodes is fixed."""
        elastic = _ELASTIC.fullmatch(self.nodes)
        return int(elastic[1]) if elastic else 0

    @property
    def worker(self) -> Words:
        """The words of a worker alone, started by the same Python."""
        if "--no-python" in self.about_script:
            return self.target
        python = sibling_python(self.program[0]) if len(self.program) == 1 else self.program[0]
        module = ("-m",) if {"-m", "--module"} & set(self.about_script) else ()
        return (python, "-u", *module, *self.target)


class Torchrun:
    """The launcher that starts torchrun, or `python -m torch.distributed.run`.

    It uses the second form where the command names a Python. The command may be torchrun's own,
    with options such as `--max-restarts`.
    """

    def settle(self, spec: JobSpec) -> JobSpec:
        """Return the job with the same number of workers on each node."""
        return spread_evenly(spec)

    def needs(self, step: LaunchStep) -> Iterable[Finding]:
        own = parse_torchrun(step.spec.command)
        if own is None:
            yield from check_not_a_launcher(step.spec, _NAME)
        else:
            yield from check_exclusive_cpus(step.spec)
            yield from _check_own_options(step, own)
        yield from check_agents(step, _NAME)

    def lines(self, step: LaunchStep) -> Words:
        command, own = step.spec.command, parse_torchrun(step.spec.command)
        if own is not None:
            words = (*own.options, *own.about_script, *own.target)
            if step.spec.launch.log_per_rank:
                words = (*own.options, "--no-python", *with_own_log(step, own.worker))
            return torchrun_lines(step, own.program, words, least_nodes=own.least_nodes)
        python, target = split_python(command)
        if step.spec.launch.log_per_rank:
            python, worker = worker_words(command)
            target = ("--no-python", *with_own_log(step, worker))
        elif target is None:
            target = ("--no-python", *command)
        program = (python, "-m", _MODULE) if python else (_NAME,)
        return torchrun_lines(step, program, target)


def parse_torchrun(command: Words) -> TorchrunCommand | None:
    """Parse a command that starts torchrun itself; None for any other.

    torchrun takes each option with `-` and with `_`. Its first word without an option is the
    script, and all after it is the script's.
    """
    name = PurePosixPath(command[0]).name if command else ""
    length = 1 if name == _NAME else 3 if command[1:3] == ("-m", _MODULE) else 0
    if not length:
        return None
    more, nodes = list(command[length:]), ""
    options: list[str] = []
    script: list[str] = []
    wrong: list[str] = []
    unknown: list[str] = []
    while more and more[0].startswith("-"):
        word = more.pop(0)
        option, has_value, value = word.partition("=")
        option = option.replace("_", "-")
        if option in _SCRIPT_OPTIONS:
            script.append(option)
        elif option in _PLACEMENT_OPTIONS:
            wrong.append(option)
            if not has_value and option != "--standalone":
                more = more[1:]
        elif has_value or option in _OPTIONS_WITH_VALUE:
            value = value if has_value else "".join(more[:1])
            more = more if has_value else more[1:]
            nodes = value if option == "--nnodes" else nodes
            options += [] if option == "--nnodes" else [f"{option}={value}"]
        else:
            unknown.append(option)
    return TorchrunCommand(
        program=command[:length],
        options=tuple(_with_short_options(options)),
        about_script=tuple(script),
        target=tuple(more),
        nodes=nodes,
        wrong=tuple(wrong),
        unknown=tuple(unknown),
    )


def _with_short_options(options: Iterable[str]) -> Iterable[str]:
    """Yield the options; for a short one, `-t=3` would mean the value `=3`."""
    for each in options:
        option, _, value = each.partition("=")
        yield each if option.startswith("--") else f"{option}{value}"


def _check_own_options(step: LaunchStep, own: TorchrunCommand) -> Iterable[Finding]:
    """Report torchrun's own options that a job must not have, and what elastic training needs."""
    if own.wrong:
        message = f"slurmkit sets torchrun's {' and '.join(own.wrong)}; leave them out"
        yield error("torchrun-place", message, _SOURCE)
    if own.unknown:
        message = (
            f"{' and '.join(own.unknown)}: slurmkit does not know this option of torchrun; write"
            " its value in the same word: --option=value"
        )
        yield error("torchrun-option", message, _SOURCE)
    elif not own.target:
        message = "the command has no script; give: torchrun [OPTIONS] train.py ARGUMENTS"
        yield error("torchrun-option", message, _SOURCE)
    if not own.nodes:
        return
    most = step.layout.most or step.layout.least_nodes
    if not own.least_nodes:
        message = "slurmkit sets torchrun's --nnodes, but for MIN:MAX; leave it out"
        yield error("torchrun-place", message, _SOURCE)
    elif step.single_node or own.least_nodes > step.layout.least_nodes:
        message = (
            f"--nnodes {own.nodes} needs {max(2, own.least_nodes)} nodes or more; MAX is the"
            f" number of nodes of the job, which may be {step.layout.least_nodes}: give --nodes"
        )
        yield error("torchrun-elastic", message, _SOURCE)
    else:
        message = (
            f"elastic training: with {most} nodes at most, the others go on while {own.least_nodes}"
            " of them are left; the job then ends as failed"
        )
        yield note("torchrun-elastic", message, _SOURCE)
        if "no-kill" not in step.spec.options:
            message = "Slurm ends the whole job when a node fails; add --option no-kill"
            yield warning("torchrun-elastic", message, _SOURCE)


def torchrun_lines(
    step: LaunchStep, program: Words, target: Words, *, least_nodes: int = 0
) -> Words:
    """Return lines that start torchrun's agents.

    Args:
        step: the job.
        program: words of the agent.
        target: command of each worker, with its arguments.
        least_nodes: of elastic training; 0 if all nodes are needed.
    """
    first, workers = shlex.join((*step.prefix, *program)), step.tasks_per_node
    if step.single_node:
        words = f"{first} --standalone --nproc-per-node={workers} {shlex.join(target)}"
        return agent_lines(step, words)
    nodes = f"{least_nodes}:$SLURM_NNODES" if least_nodes else "$SLURM_NNODES"
    meet = (
        f'--nnodes="{nodes}" --nproc-per-node={workers} --rdzv-id={base.RENDEZVOUS_ID}'
        ' --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
    )
    failure = _GO_ON_AFTER_FAILURE if least_nodes else END_ALL_ON_FAILURE
    words = f"{first} {meet} {shlex.join(target)}"
    return (*base.RENDEZVOUS_LINES, "", *agent_lines(step, words, failure))


def worker_words(command: Words) -> tuple[str, Words]:
    """Return the Python of a command's agents, if it needs one, and the words of a worker.

    Only an agent knows which Python runs a script alone; so agent and worker both use the one in
    PATH.
    """
    python, target = split_python(command)
    if target is None:
        return python, command
    python = python or "python3"
    return python, (python, "-u", *target)


def sibling_python(program: str) -> str:
    """Return the Python next to a program that pip installed; `python3` if it has no path."""
    path = PurePosixPath(program)
    return str(path.with_name("python3")) if path.name != program else "python3"


def split_python(command: Words) -> tuple[str, Words | None]:
    """Return the Python that a command names, if any, and its script or `-m module` with arguments.

    The latter is None for any other program. It is also None for a Python with flags other than
    `-u`, which workers of an agent would not get.
    """
    first, *more = command
    if not _PYTHON.fullmatch(PurePosixPath(first).name):
        return "", command if first.endswith(".py") else None
    while more[:1] == ["-u"]:
        more.pop(0)
    is_plain = bool(more) and (not more[0].startswith("-") or (more[0] == "-m" and len(more) > 1))
    return first, tuple(more) if is_plain else None


def spread_evenly(spec: JobSpec) -> JobSpec:
    """Return the job with one task for each GPU by default, and its tasks spread evenly."""
    spec = one_task_per_gpu(spec)
    nodes = spec.nodes if isinstance(spec.nodes, int) else None
    counted = spec.ntasks_per_node or spec.ntasks_per_gpu
    if spec.ntasks and not counted and nodes and spec.ntasks % nodes == 0:
        spread = spec.ntasks // nodes
        return msgspec.structs.replace(spec, ntasks=None, ntasks_per_node=spread)
    return spec


def check_agents(step: LaunchStep, name: str) -> Iterable[Finding]:
    """Report what prevents the agents of launcher `name`, and options that they ignore."""
    yield from check_is_command(step.spec, name)
    yield from check_output_is_file(step)
    yield from _uneven(step, name)
    source = f"launcher {name}"
    yield from _unseen_files(step, name)
    if step.spec.launch.mpi not in (None, "none"):
        message = f"{name}'s workers do not use MPI; leave --mpi out, or give --launch mpi"
        yield error("launcher-no-mpi", message, source)
    if step.spec.gpus is not None and step.spec.gpus.bind:
        message = (
            f"GPU binding {step.spec.gpus.bind} is not used: a node's workers are one task to"
            " Slurm, and each takes the GPU of its LOCAL_RANK"
        )
        yield note("launcher-no-binding", message, source)


def _unseen_files(step: LaunchStep, name: str) -> Iterable[Finding]:
    """Warn of log files outside the container's mounts: workers write them inside it."""
    folder = step.spec.chdir or LOCAL_MACHINE.folder
    folder = posixpath.join(folder, posixpath.dirname(step.spec.output or ""))
    seen = step.view is not None and step.view.inside(folder) == posixpath.normpath(folder)
    if step.spec.launch.log_per_rank and step.spec.container and not seen:
        message = (
            f"{name}'s workers write their files in the container, and it may not see {folder};"
            f" mount the folder: --container-mounts {folder}"
        )
        yield warning("log-per-rank-container", message, f"launcher {name}")


def agent_lines(
    step: LaunchStep, words: str, failure: Words = END_ALL_ON_FAILURE
) -> tuple[str, ...]:
    """Return lines that start one agent on each node, with all CPUs that the job has there.

    Args:
        step: the job.
        words: command of the agent, quoted for the shell.
        failure: srun options about agents that fail.
    """
    workers = 1 if step.spec.overcommit else step.tasks_per_node
    options = (
        f"--cpus-per-task={workers * step.layout.cpus_per_task}",
        "--ntasks-per-node=1",
        *(option for option in step.options if not option.startswith("--gpu-bind")),
        "--mpi=none",
        *failure,
    )
    nodes = "1" if step.single_node else '"$SLURM_NNODES"'
    line = f"srun --nodes={nodes} --ntasks={nodes} {shlex.join(options)} -- {words}"
    # Without it torchrun would set 1, whatever CPUs a worker has, and print a banner.
    threads = f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{step.layout.cpus_per_task}}}"
    return (*rank_log_lines(step), threads, _FEWER_TASKS, line)


def _uneven(step: LaunchStep, name: str) -> Iterable[Finding]:
    layout, rule = step.layout, f"{name} starts the same number of workers on each node"
    if layout.gpus_in_all:
        message = f"{rule}; ask for GPUs with --gpus-per-node"
        yield error("launcher-uneven", message, f"launcher {name}")
    elif layout.ntasks and not step.single_node:
        message = (
            f"{rule}, and {layout.ntasks} tasks may be spread unevenly; give --nodes and"
            " --ntasks-per-node"
        )
        yield error("launcher-uneven", message, f"launcher {name}", _evenly(step, layout.ntasks))


def _evenly(step: LaunchStep, tasks: int) -> Pairs:
    """Return a fix that spreads the tasks evenly.

    It has one task for each GPU if the numbers match, else as few nodes as possible. If nothing
    divides, there are some tasks more.
    """
    layout, least = step.layout, step.layout.least_nodes
    counts = range(least, (layout.most or least) + 1)
    by_gpus = [count for count in counts if layout.gpus and tasks == count * layout.gpus]
    even = [count for count in counts if tasks % count == 0]
    nodes = (*by_gpus, *even, least)[0]
    return (("nodes", str(nodes)), ("ntasks", ""), ("ntasks-per-node", str(-(-tasks // nodes))))
