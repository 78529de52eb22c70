"""The options that describe a job on a command line, and the spec they make."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from slurmkit.chosen import chosen
from slurmkit.cli.containeroptions import container_from, container_options
from slurmkit.cli.defaults import defaults, notes, weakest
from slurmkit.cli.surviveoptions import survive_from, survive_options
from slurmkit.cli.tab import PluginNames
from slurmkit.errors import BadInput
from slurmkit.findings import Finding
from slurmkit.jobfile import asides, read_job_file, read_script
from slurmkit.machine import HERE, machine_of
from slurmkit.options import letters, merged, read_options
from slurmkit.spec import PREFLIGHTS, JobSpec, Launch
from slurmkit.survive.model import Survive
from slurmkit.sweeps.reading import sweep_from

_OPTIONS: tuple[tuple[str, str], ...] = (
    ("job-name", "Name of the job.  [default: the command's]"),
    ("nodes", "Number of nodes, or MIN-MAX.  [default: 1, or as many as the tasks need]"),
    ("ntasks", "Processes of the whole job."),
    ("ntasks-per-node", "Processes on each node.  [default: 1]"),
    ("cpus-per-task", "CPUs for each process.  [default: 1, or what the site gives each GPU]"),
    ("gpus-per-node", "GPUs on each node: 2, a100:2, 0.5, shard:3, mps:50, 3g.20gb:1."),
    ("gpus-per-task", "GPUs for each process, in the same forms."),
    ("gpus", "GPUs of the whole job, in the same forms."),
    ("gres", "Generic resources per node, NAME[:TYPE]:COUNT."),
    ("gpu-bind", "Which GPUs a task sees: none, closest, per_task:N, single:N, map:LIST."),
    ("mem", "Memory per node, e.g. 64G."),
    ("mem-per-cpu", "Memory per CPU."),
    ("mem-per-gpu", "Memory per GPU."),
    ("time", "Time limit: minutes, H:MM:SS or D-HH:MM:SS."),
    ("time-min", "The least time limit that will do."),
    ("partition", "Partition, or several with commas."),
    ("account", "Slurm account to charge."),
    ("qos", "Quality of service."),
    ("reservation", "Advance reservation to run in."),
    ("constraint", "Node features, e.g. 'a100&ib'."),
    ("licenses", "Licences, e.g. matlab:2."),
    ("nodelist", "Nodes the job must have, e.g. c[1-2]."),
    ("exclude", "Nodes the job must not have."),
    ("switches", "Most leaf switches, COUNT[@MAX-TIME]."),
    ("segment", "Nodes per segment, with topology/block."),
    ("array", "Indexes of a job array, e.g. 0-99%10."),
    ("array-throttle", "How many tasks of an array or a sweep run at once."),
    ("dependency", "Jobs to wait for, e.g. afterok:12:13."),
    ("begin", "Not before, e.g. 18:00 or now+1hour."),
    ("deadline", "Not later than."),
    ("nice", "Lower (positive) priority by so much."),
    ("signal", "Signal before the time limit, [B:]SIGNAL[@SECONDS]."),
    ("mail-type", "When to send mail, e.g. END,FAIL."),
    ("mail-user", "Where to send it."),
    ("comment", "A comment kept with the job."),
    ("chdir", "Directory the job starts in.  [default: the current one]"),
    ("output", "File for the job's output.  [default: slurm-%j.out]"),
    ("error", "File for its standard error.  [default: as --output]"),
    ("open-mode", "append or truncate the output files."),
)
_FLAGS = (
    ("hold", "Submit it held."),
    ("requeue", "Let Slurm requeue it after a node failure."),
    ("no-requeue", "Never requeue it."),
)

_LAUNCH = (
    "How COMMAND is started: srun (a task per GPU, told its rank), torchrun, accelerate, deepspeed,"
    " mpi, none (once)."
)
_ENV = "A variable of the job; without a value it has yours: a secret then stands in no argv."
_SWEEP = (
    "A parameter of a sweep: lr=1e-3,1e-4 or seed=0..9; each task has it in its environment and as"
    " {lr} in COMMAND. Several make a grid."
)
_POINTS = "The points of a sweep, from CSV with a header, or TOML."

HELP = dict((*_OPTIONS, *_FLAGS))
"""What each long option is, in a sentence."""


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a job and its COMMAND argument."""
    command = click.argument("command", nargs=-1, type=click.UNPROCESSED)(command)
    for option in reversed(_ours()):
        command = option(command)
    for name, text in reversed(_FLAGS):
        command = click.option(*_spelled(name), is_flag=True, default=None, help=text)(command)
    exclusive = "Share the nodes with no other job, or none of another user (=user)."
    command = click.option("--exclusive", is_flag=False, flag_value="", help=exclusive)(command)
    for name, text in reversed(_OPTIONS):
        command = click.option(*_spelled(name), help=text)(command)
    return command


def _spelled(name: str) -> list[str]:
    """An option as sbatch has it: `-N` and `--nodes`."""
    letter = letters().get(name)
    return [*([f"-{letter}"] if letter else []), f"--{name}"]


def _ours() -> list[Callable[..., Any]]:
    path = click.Path(path_type=Path)
    return [
        click.option("--job-file", type=path, help="A job in TOML; options here go before it."),
        click.option("--script", type=path, help="A batch script to run instead of COMMAND."),
        click.option("--sweep", multiple=True, metavar="NAME=VALUES", help=_SWEEP),
        click.option("--points", type=path, multiple=True, metavar="FILE", help=_POINTS),
        click.option("--env", multiple=True, metavar="NAME[=VALUE]", help=_ENV),
        click.option("--launch", type=PluginNames("launchers"), help=_LAUNCH),
        click.option("--mpi", help="MPI plugin of srun, e.g. pmix."),
        click.option("--label", is_flag=True, help="Put the task's number before its output."),
        click.option(
            "--log-per-rank", is_flag=True, help="Each task's output in its own file: OUTPUT.rankN."
        ),
        click.option(
            "--nccl-debug",
            is_flag=False,
            flag_value="INFO",
            metavar="[LEVEL]",
            help="What NCCL tells: VERSION, WARN, INFO or TRACE.  [without LEVEL: INFO]",
        ),
        click.option(
            "--preflight",
            type=click.Choice(PREFLIGHTS),
            help="Measure the nodes before COMMAND starts, and name a bad one.",
        ),
        *survive_options(),
        *container_options(),
        click.option(
            "--option",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Any other long option of sbatch, e.g. --option contiguous.",
        ),
    ]


class Asked(msgspec.Struct, frozen=True):
    """What a command line asks for.

    Attributes:
        spec: the job.
        notes: where parts of it come from that were not on the command line.
        waits: whether a script's own lines say `--wait`.
    """

    spec: JobSpec
    notes: tuple[Finding, ...]
    waits: bool


def spec_from(options: dict[str, Any]) -> Asked:
    """Make the spec of a command line; takes what `job_options` gave out of `options`.

    The user's defaults in the environment are weakest, then a script's own `#SBATCH` lines, then
    the job file, then the options.

    Raises:
        BadInput: naming the option, the variable, or the file and its key.
    """
    take = options.pop
    job_file, script, command = take("job_file"), take("script"), take("command")
    found = defaults(os.environ)
    in_script: dict[str, Any] = read_script(script) if script else {}
    files = merged(in_script, read_job_file(job_file) if job_file else {})
    below = merged(weakest(found, files), files)
    given = read_options([*_given(options), *map(_passed, take("option"))], below)
    own = merged(files, given | {"environment": dict(map(_variable, take("env")))})
    if script and command:
        raise BadInput("both --script and a COMMAND were given; give one of them")
    if command:
        own = {**own, "command": command, "script": None}
    fields = merged(weakest(found, own), own)
    if chdir := fields.get("chdir"):
        fields["chdir"] = os.path.normpath(Path(_folder(), chdir))
    launch = fields.get("launch", Launch())
    names = ("mpi", "label", "log_per_rank", "nccl_debug", "preflight")
    ways = {name: take(name) for name in names} | {"launcher": take("launch")}
    started = {name: value for name, value in ways.items() if value}
    fields["launch"] = msgspec.structs.replace(launch, **started)
    fields["survive"] = survive_from(take, fields.get("survive", Survive()))
    fields["container"] = container_from(take, fields.get("container"))
    if sweep := sweep_from(take("sweep"), take("points")):
        fields["sweep"] = sweep
    spec = JobSpec(**fields)
    aside = asides(script) if script else ()
    said = tuple(_aside(name) for name in aside)
    return Asked(spec, (*notes(found, in_script, own), *said), "wait" in aside)


def _folder() -> str:
    """What a path on the command line is relative to: on a cluster over SSH, the folder there."""
    if not chosen():
        return HERE.folder
    from slurmkit.cluster import Cluster  # noqa: PLC0415 - few need it

    return machine_of(Cluster().slurm).folder


def _aside(name: str) -> Finding:
    does = "slurmkit submit waits for the job" if name == "wait" else "it is not about the job"
    message = f"the script's --{name}: {does}{'' if name == 'wait' else ', and is left out'}"
    return Finding(severity="note", code="script-aside", message=message, source="#SBATCH")


def _given(options: dict[str, Any]) -> list[tuple[str, str]]:
    names = [name for name, _ in (*_OPTIONS, *_FLAGS)] + ["exclusive"]
    values = {name: options.pop(name.replace("-", "_")) for name in names}
    return [(n, "" if v is True else v) for n, v in values.items() if v is not None]


def _passed(text: str) -> tuple[str, str]:
    name, _, value = text.removeprefix("--").partition("=")
    return name, value


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise BadInput(
            f"--env {name}: no such variable is exported here; export it, or give --env NAME=VALUE"
        )
    return name, os.environ[name]


def refuse_unattended(names: Iterable[str]) -> None:
    """Refuse options that are for jobs which nobody sits before.

    Raises:
        BadInput: naming the first.
    """
    for name in names:
        raise BadInput(f"{name.replace('_', '-')} is for jobs that run by themselves; leave it out")
