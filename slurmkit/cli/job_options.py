"""The options that describe a job, from the command line and from the environment, as a JobSpec.

The user's defaults in the environment are those of sbatch(1), for example `SBATCH_ACCOUNT`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import default_cluster_name, did_you_mean, similar_names
from slurmkit.errors import BadInput
from slurmkit.slurm.machine import LOCAL_MACHINE, machine_of
from slurmkit.spec.containers import Container
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobfile import load_job_file, load_script, sbatch_only_options
from slurmkit.spec.jobspec import EXCLUSIVE_FIELDS, PREFLIGHTS, JobSpec, Launch
from slurmkit.spec.option_values import SBATCH_OPTIONS
from slurmkit.spec.sbatch_options import has_own_field, merge_fields, parse_options, short_options
from slurmkit.spec.survival import ACTIONS, SIGNALS, Survive
from slurmkit.spec.sweep import parse_sweep_options

_OPTIONS: tuple[tuple[str, str], ...] = (
    ("job-name", "Name of the job.  [default: the name of COMMAND]"),
    ("nodes", "Number of nodes, or MIN-MAX.  [default: 1, or as many as the tasks need]"),
    ("ntasks", "Number of processes (tasks) in the whole job."),
    ("ntasks-per-node", "Number of processes on each node.  [default: 1]"),
    ("ntasks-per-gpu", "Number of processes for each GPU. Each sees one GPU."),
    ("cpus-per-task", "CPUs for each process.  [default: 1, or what the site gives each GPU]"),
    ("cpus-per-gpu", "CPUs for each GPU, instead of --cpus-per-task."),
    ("mincpus", "Fewest CPUs on each node."),
    ("sockets-per-node", "Use only nodes with at least this many sockets."),
    ("cores-per-socket", "Use only nodes with at least this many cores per socket."),
    ("threads-per-core", "Use at most this many threads of each core, of nodes that have them."),
    ("extra-node-info", "These three in one: SOCKETS[:CORES[:THREADS]], each may be '*'."),
    ("ntasks-per-socket", "Most processes on each socket."),
    ("ntasks-per-core", "Most processes on each core."),
    ("hint", "What the program needs: compute_bound, memory_bound, multithread, nomultithread."),
    ("distribution", "How processes are placed: NODES[:SOCKETS[:CORES]], e.g. block:cyclic."),
    ("mem-bind", "Bind processes to memory, e.g. local."),
    ("gpus-per-node", "GPUs on each node: 2, a100:2, 0.5, shard:3, mps:50, 3g.20gb:1."),
    ("gpus-per-task", "GPUs for each process, in the same forms."),
    ("gpus", "GPUs for the whole job, in the same forms."),
    ("gpus-per-socket", "GPUs on each socket; give --sockets-per-node, too."),
    ("gres", "Generic resources per node, NAME[:TYPE]:COUNT."),
    ("gpu-bind", "Which GPUs a task sees: none, closest, per_task:N, single:N, map:LIST."),
    ("gres-flags", "Binding of GPUs to CPUs: enforce-binding, disable-binding, …"),
    ("mem", "Memory per node, e.g. 64G."),
    ("mem-per-cpu", "Memory per CPU."),
    ("mem-per-gpu", "Memory per GPU."),
    ("tmp", "Local disk on each node, e.g. 100G."),
    ("time", "Time limit: minutes, H:MM:SS or D-HH:MM:SS."),
    ("time-min", "Shortest time limit you accept. Slurm may use it to start the job sooner."),
    ("partition", "Partition, or several separated by commas."),
    ("account", "Slurm account to charge."),
    ("qos", "Quality of service."),
    ("wckey", "Workload characterization key, for the site's accounting."),
    ("reservation", "Advance reservation to run in."),
    ("constraint", "Node features, e.g. 'a100&ib'."),
    ("licenses", "Licences, e.g. matlab:2."),
    ("nodelist", "Nodes the job must have, e.g. c[1-2]."),
    ("exclude", "Nodes the job must not have."),
    ("switches", "Most leaf switches, and how long to wait for them: COUNT[@MAX-TIME]."),
    ("segment", "Nodes per segment, on clusters with topology/block."),
    ("array", "Task indexes of a job array. 0-99%10: 100 tasks, at most 10 at once."),
    ("array-throttle", "Run at most this many tasks of an array or a sweep at once."),
    ("dependency", "Jobs to wait for, e.g. afterok:12:13."),
    ("begin", "Start the job no earlier than this, e.g. 18:00 or now+1hour."),
    ("deadline", "Remove the job if it cannot end before this time."),
    ("nice", "Lower the job's priority by this much."),
    ("signal", "Signal to send before the time limit: [B:]SIGNAL[@SECONDS], e.g. USR1@120."),
    ("mail-type", "When to send mail, e.g. END,FAIL."),
    ("mail-user", "Mail address for --mail-type."),
    ("export", "Your variables that the job gets: ALL, NONE, or NAME[=VALUE],…  [default: ALL]"),
    ("comment", "Comment that Slurm stores with the job."),
    ("chdir", "Directory the job starts in.  [default: the current one]"),
    ("output", "File for the job's output.  [default: slurm-%j.out]"),
    ("error", "File for the job's standard error.  [default: the file of --output]"),
    ("open-mode", "What to do with existing output files: append or truncate."),
)
_FLAGS = (
    ("hold", "Submit the job held. It waits for slurmkit release."),
    ("no-requeue", "Never requeue the job."),
    ("overcommit", "Take the CPUs of one process on each node, however many there are."),
    ("spread-job", "Use as many nodes as possible."),
    ("use-min-nodes", "Of a range of nodes, use as few as possible."),
)

_REQUEUE_HELP = (
    "Let Slurm requeue the job after a node failure. With =expedite (Slurm 25.11), also after a"
    " failed epilog, at once and with the highest priority; if only its script failed, the job is"
    " held."
)
_LAUNCH_HELP = (
    "How to start COMMAND: srun (one task per GPU, which knows its rank), torchrun, accelerate,"
    " deepspeed, mpi, none (once)."
)
_ENV_HELP = (
    "Set a variable in the job. NAME alone copies your own value, so that a secret never appears on"
    " a command line."
)
_WRAP_HELP = "Shell code to run once in the batch script, as with sbatch. It is not changed."
_CPU_BIND_HELP = "Bind processes to CPUs with srun, e.g. none, cores, threads, map_cpu:0,8."
_WRAPPED = "#!/bin/sh\n# This script was made from --wrap.\n\n{}\n"
_SWEEP_HELP = (
    "Add a parameter to a sweep: lr=1e-3,1e-4 or seed=0..9. Each task gets its own value in its"
    " environment and for {lr} in COMMAND. Several parameters make a grid."
)
_POINTS_HELP = "File with the points of a sweep: CSV with a header line, or TOML."

OPTION_HEADINGS: dict[str, tuple[str, ...]] = {
    "GPUs": (
        "gpus-per-node", "gpus-per-task", "gpus", "gpus-per-socket", "gres", "gpu-bind",
        "gres-flags",
    ),
    "Nodes, CPUs and memory": (
        "nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu",
        "mincpus", "mem", "mem-per-cpu", "mem-per-gpu", "tmp", "exclusive", "overcommit",
    ),
    "Sockets, cores and threads": (
        "sockets-per-node", "cores-per-socket", "threads-per-core", "extra-node-info",
        "ntasks-per-socket", "ntasks-per-core", "hint", "distribution", "cpu-bind", "mem-bind",
    ),
    "Time and order": (
        "time", "time-min", "begin", "deadline", "dependency", "nice", "hold",
    ),
    "Where, and on whose account": (
        "partition", "account", "qos", "wckey", "reservation", "constraint", "licenses", "nodelist",
        "exclude", "switches", "segment", "spread-job", "use-min-nodes",
    ),
    "What runs": (
        "script", "wrap", "job-file", "chdir", "env", "export", "launch", "mpi", "nccl-debug",
        "preflight", "job-name", "comment", "option",
    ),
    "Arrays and sweeps": ("array", "array-throttle", "sweep", "points"),
    "Output and mail": (
        "output", "error", "open-mode", "label", "log-per-rank", "mail-type", "mail-user",
    ),
    "After a time limit, a preemption or a failure": (
        "on-timeout", "on-preempt", "on-node-fail", "on-oom", "oom-max-mem", "checkpoint-signal",
        "grace", "max-restarts", "restart-delay", "signal", "requeue", "no-requeue",
    ),
    "Containers": (
        "container-image", "container-mounts", "container-workdir", "container-name",
        "container-save", "container-env", "container-unshare", "container-runtime",
        "container-mount-home", "container-remap-root", "container-entrypoint",
        "container-writable", "container-entrypoint-log",
    ),
}  # fmt: skip
"""Each heading of the help -> the options under it."""

OPTION_HELP = dict((*_OPTIONS, *_FLAGS, ("requeue", _REQUEUE_HELP)))
"""The help text of each long option."""

_CONTAINER_OPTIONS = (
    ("image", "Image: ubuntu:24.04, pytorch (slurmkit image search), ./x.sqsh, ./x.sif, a bundle."),
    ("mounts", "Files and folders of the node to mount in the container: SRC[:DST[:FLAG+FLAG]],…"),
    ("workdir", "Folder in the container where COMMAND starts."),
    ("name", "Keep the container on the nodes under this name."),
    ("save", "Save the container to this squashfs file at the end."),
    ("env", "Variables that keep the node's value, not the image's: NAME,…"),
    ("unshare", "Namespaces that the container does not share with the node: net, ipc, uts."),
    ("runtime", "pyxis, enroot, apptainer or oci.  [default: one that suits image and cluster]"),
)
_CONTAINER_SWITCHES = (
    ("mount-home", "Mount your home directory in the container, or do not."),
    ("remap-root", "Appear as root inside the container, or do not."),
    ("entrypoint", "Run the image's entry point before COMMAND, or do not."),
)
_LIST_OPTIONS = ("mounts", "env", "unshare")
_CONTAINER_FIELDS = {"env": "environment"}
_VALUE_OPTIONS = {f"container-{name}": name for name, _ in _CONTAINER_OPTIONS}
_FLAG_OPTIONS = {
    **{f"container-{name}": (name, True) for name, _ in _CONTAINER_SWITCHES},
    **{f"no-container-{name}": (name, False) for name, _ in _CONTAINER_SWITCHES},
    "container-writable": ("writable", True),
    "container-readonly": ("writable", False),
    "container-entrypoint-log": ("entrypoint-log", True),
}

_ENDING_OPTIONS = (
    ("on-timeout", "At the time limit: requeue the job, requeue it held (hold), or let it fail."),
    ("on-preempt", "When the job is preempted: the same choices."),
    ("on-node-fail", "When a node is lost: the same choices."),
    ("on-oom", "When the job runs out of memory: the same choices."),
)
_SURVIVE_NUMBERS = (
    ("max-restarts", "Requeue the job at most this often.  [default: 20]"),
    (
        "restart-delay",
        "Seconds to wait after a run of less than 10 minutes, doubled each time.  [default: 60]",
    ),
    ("grace", "Seconds for the checkpoint, between signal and time limit.  [default: 60]"),
)
_SIGNAL_HELP = (
    "Signal that asks your program for a checkpoint. Only processes that catch it get it."
)
_MEMORY_HELP = "With --on-oom requeue: double the memory each time, up to this much, e.g. 256G."


COMMAND_IS_MARKED = "slurmkit.cli.job_options.command_is_marked"
"""Key in the context's `meta`: whether `--` stands before COMMAND."""


class _ValueAfterEquals(click.Option):
    """An option that has no value, or one after `=`; the next word is never its value."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser take a value after `=` alone, as sbatch does."""
        super().add_to_parser(parser, ctx)
        match = parser._match_long_opt  # noqa: SLF001 - click would take the next word

        def match_own(opt: str, value: str | None, state: Any) -> None:
            if opt not in self.opts:
                match(opt, value, state)
                return
            state.opts[self.name] = value or ""
            state.order.append(self)

        parser._match_long_opt = match_own  # noqa: SLF001


class JobCommand(click.Command):
    """A command with the options of a job, which its help lists under headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options and COMMAND, and note whether `--` stands before COMMAND."""
        words = tuple(args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = {name for param in self.get_params(ctx) for name in param.opts}
            name, similar = error.option_name, error.possibilities
            message = f"No such option: {name}; {_how_to_pass_on(name, known)}"
            raise click.NoSuchOption(name, message, similar, error.ctx) from None
        before = len(words) - len(ctx.params.get("command") or ())
        ctx.meta[COMMAND_IS_MARKED] = words[:before][-1:] == ("--",)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options under `OPTION_HEADINGS`, and at the end those that are under none."""
        options = (param for param in self.get_params(ctx) if isinstance(param, click.Option))
        params = {option.name: option for option in options}
        for heading, names in OPTION_HEADINGS.items():
            headed = [params.pop(name.replace("-", "_")) for name in names]
            _write_options(ctx, formatter, heading, headed)
        _write_options(ctx, formatter, "This command", params.values())


def _how_to_pass_on(name: str, known: set[str]) -> str:
    """Return how an option of sbatch is given that slurmkit has no option for."""
    others = [option for option in SBATCH_OPTIONS if f"--{option}" not in known]
    near = similar_names(name.removeprefix("--"), others, cutoff=0.8)
    example = f", e.g. --option {near[0]}" if near else ""
    return f"give any other option of sbatch as --option NAME=VALUE{example}"


def _write_options(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    heading: str,
    options: Iterable[click.Option],
) -> None:
    rows = [row for option in options if (row := option.get_help_record(ctx))]
    with formatter.section(heading):
        formatter.write_dl(rows)


def job_options(metavar: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that gives a command the options of a job and the COMMAND argument.

    Args:
        metavar: how the help names the argument; COMMAND by default.
    """
    argument = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar=metavar)
    exclusive = "Share the nodes with no other job; with --exclusive=user, only with your own jobs."

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = argument(command)
        for option in reversed(_slurmkit_options()):
            command = option(command)
        for name, text in reversed(_FLAGS):
            flag = click.option(*_spellings(name), is_flag=True, default=None, help=text)
            command = flag(command)
        command = click.option(
            "--requeue",
            cls=_ValueAfterEquals,
            is_flag=False,
            flag_value="",
            metavar="[=expedite]",
            help=_REQUEUE_HELP,
        )(command)
        command = click.option("--exclusive", is_flag=False, flag_value="", help=exclusive)(command)
        for name, text in reversed(_OPTIONS):
            command = click.option(*_spellings(name), help=text)(command)
        return command

    return decorate


def _spellings(name: str) -> list[str]:
    """Return an option's spellings as in sbatch: `-N` and `--nodes`."""
    letter = short_options().get(name)
    return [*([f"-{letter}"] if letter else []), f"--{name}"]


def _slurmkit_options() -> list[Callable[..., Any]]:
    """Return the options that sbatch does not have, as decorators."""
    path = click.Path(path_type=Path)
    return [
        click.option(
            "--job-file",
            type=path,
            help="Read the job from a TOML file. Options on the command line override it.",
        ),
        click.option("--script", type=path, help="A batch script to run instead of COMMAND."),
        click.option("--wrap", metavar="SHELL_CODE", help=_WRAP_HELP),
        click.option("--sweep", multiple=True, metavar="NAME=VALUES", help=_SWEEP_HELP),
        click.option("--points", type=path, multiple=True, metavar="FILE", help=_POINTS_HELP),
        click.option("--env", multiple=True, metavar="NAME[=VALUE]", help=_ENV_HELP),
        click.option("--launch", help=_LAUNCH_HELP),
        click.option("--mpi", help="MPI plugin of srun, e.g. pmix."),
        click.option("--cpu-bind", help=_CPU_BIND_HELP),
        click.option(
            "--label", is_flag=True, help="Put the task's number before each line of its output."
        ),
        click.option(
            "--log-per-rank",
            is_flag=True,
            help="Write each task's output to its own file, OUTPUT.rankN.",
        ),
        click.option(
            "--nccl-debug",
            is_flag=False,
            flag_value="INFO",
            metavar="[LEVEL]",
            help="How much NCCL logs: VERSION, WARN, INFO or TRACE.  [without LEVEL: INFO]",
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


class CommandLineJob(msgspec.Struct, frozen=True):
    """The job that a command line describes.

    Attributes:
        spec: the job.
        notes: the sources of the parts that are not on the command line.
        waits: whether the script's own #SBATCH lines say `--wait`.
    """

    spec: JobSpec
    notes: tuple[Finding, ...]
    waits: bool


def parse_job_options(options: dict[str, Any]) -> CommandLineJob:
    """Make the spec of a command line; removes the options of `job_options` from `options`.

    Each source overrides the ones before it: the user's defaults in the environment, the script's
    own `#SBATCH` lines, the job file, the options.

    Raises:
        BadInput: naming the option, the variable, or the file and its key.
    """
    take = options.pop
    job_file, script, command = take("job_file"), take("script"), take("command")
    wrapped = take("wrap")
    environment = sbatch_variables(os.environ)
    in_script: dict[str, Any] = load_script(script) if script else {}
    files = merge_fields(in_script, load_job_file(job_file) if job_file else {})
    below = merge_fields(default_fields(environment, files), files)
    others = [text.removeprefix("--").partition("=") for text in take("option")]
    passed_on = [(name, value) for name, _, value in others]
    given = parse_options([*_take_sbatch_options(options), *passed_on], below)
    variables = {"environment": dict(map(_parse_variable, take("env")))}
    own = merge_fields(files, merge_fields(given, variables))
    sources = (("--wrap", wrapped), ("--script", script), ("a COMMAND", command))
    named = [name for name, source in sources if source]
    if len(named) > 1:
        raise BadInput(f"both {' and '.join(named)} were given; give one of them")
    if wrapped:
        own = {"job_name": "wrap", **own, "command": (), "script": _WRAPPED.format(wrapped)}
    if command:
        own = {**own, "command": command, "script": None}
    fields = merge_fields(default_fields(environment, own), own)
    if chdir := fields.get("chdir"):
        fields["chdir"] = os.path.normpath(Path(_base_folder(), chdir))
    launch = fields.get("launch", Launch())
    names = ("mpi", "cpu_bind", "label", "log_per_rank", "nccl_debug", "preflight")
    changes = {name: take(name) for name in names} | {"launcher": take("launch")}
    changes = {name: value for name, value in changes.items() if value}
    fields["launch"] = msgspec.structs.replace(launch, **changes)
    fields["survive"] = take_survive_options(take, fields.get("survive", Survive()))
    fields["container"] = take_container_options(take, fields.get("container"))
    sweep_words, point_files = take("sweep"), take("points")
    if sweep_words or point_files:
        fields["sweep"] = parse_sweep_options(sweep_words, point_files)
    spec = JobSpec(**fields)
    aside = sbatch_only_options(script) if script else ()
    about_script = tuple(_aside_note(name) for name in aside)
    return CommandLineJob(
        spec, (*default_notes(environment, in_script, own), *about_script), "wait" in aside
    )


def _base_folder() -> str:
    """Return the folder that --chdir is relative to: this one, or over SSH the cluster's."""
    if not default_cluster_name():
        return LOCAL_MACHINE.folder
    return machine_of(Cluster().slurm).folder


def _aside_note(name: str) -> Finding:
    """Return a note about an option of the script that is not part of the job."""
    if name == "wait":
        message = "the script has --wait: slurmkit submit waits for the job"
    else:
        message = f"the script's --{name} is left out, because it does not describe the job"
    return Finding(severity="note", code="script-aside", message=message, source="#SBATCH")


def _take_sbatch_options(options: dict[str, Any]) -> list[tuple[str, str]]:
    """Remove sbatch's options from `options`; return those given, flags with an empty value."""
    names = [name for name, _ in (*_OPTIONS, *_FLAGS)] + ["exclusive", "requeue"]
    values = {name: options.pop(name.replace("-", "_")) for name in names}
    return [(n, "" if v is True else v) for n, v in values.items() if v is not None]


def _parse_variable(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`, or `NAME` for a variable of this process, to its name and value."""
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise BadInput(
            f"--env {name}: no such variable is exported here; export it, or give --env NAME=VALUE"
        )
    return name, os.environ[name]


def refuse_batch_options(names: Iterable[str]) -> None:
    """Refuse options that make no sense for interactive jobs.

    Raises:
        BadInput: naming the first option in `names`.
    """
    for name in names:
        raise BadInput(
            f"{name.replace('_', '-')} does not work in an interactive job; leave it out"
        )


def container_options() -> list[Callable[..., Any]]:
    """Return the options of a container as decorators."""
    texts = [
        click.option(
            f"--container-{name}",
            help=text,
            multiple=name in _LIST_OPTIONS,
        )
        for name, text in _CONTAINER_OPTIONS
    ]
    switches = [
        click.option(f"--container-{name}/--no-container-{name}", default=None, help=text)
        for name, text in _CONTAINER_SWITCHES
    ]
    writable = "Allow changes to the container's own files, or do not."
    return [
        *texts,
        *switches,
        click.option("--container-writable/--container-readonly", default=None, help=writable),
        click.option(
            "--container-entrypoint-log", is_flag=True, help="Show the output of the entry point."
        ),
    ]


def take_container_options(take: Callable[[str], Any], below: Container | None) -> Container | None:
    """Return the container that the options describe; they override the job file's.

    Args:
        take: removes an option and returns its value.
        below: the container of the job file.

    Raises:
        BadInput: for an impossible value.
    """
    names = [name for name, _ in (*_CONTAINER_OPTIONS, *_CONTAINER_SWITCHES)]
    given = {name: take(f"container_{name.replace('-', '_')}") for name in names}
    given |= {"writable": take("container_writable")}
    given |= {"entrypoint-log": take("container_entrypoint_log") or None}
    fields = {
        _container_field(name): _split_list(name, value)
        for name, value in given.items()
        if value not in (None, ())
    }
    if not fields and below is None:
        return None
    base = msgspec.structs.asdict(below) if below else {}
    return Container(**{**base, **fields}).at(str(Path.cwd()))


def parse_container_options(given: Mapping[str, str]) -> Container | None:
    """Return the container that options describe, given by name; a flag has an empty value.

    Raises:
        BadInput: for an unknown option or an impossible value.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _FLAG_OPTIONS and not value:
            field, values[field] = _FLAG_OPTIONS[name]
        elif name in _VALUE_OPTIONS and value:
            values[_VALUE_OPTIONS[name]] = value
        elif name in (*_FLAG_OPTIONS, *_VALUE_OPTIONS):
            raise BadInput(f"--{name} {'takes no' if value else 'needs a'} value")
        else:
            raise BadInput(
                f"no option --{name}; {did_you_mean(name, [*_VALUE_OPTIONS, *_FLAG_OPTIONS])}"
            )
    named = {f"container_{name.replace('-', '_')}": value for name, value in values.items()}
    return take_container_options(named.get, None)


def format_container_options(container: Container) -> list[str]:
    """Return the options from which `parse_container_options` makes this container."""
    fields = {name: _container_field(name) for name in _VALUE_OPTIONS.values()}
    given = {name: getattr(container, field) for name, field in fields.items()}
    texts = {n: ",".join(v) if isinstance(v, tuple) else v for n, v in given.items() if v}
    flags = [
        f"--{name}"
        for name, (field, value) in _FLAG_OPTIONS.items()
        if getattr(container, _container_field(field)) is value
    ]
    return [*(f"--container-{name}={text}" for name, text in texts.items()), *flags]


def _container_field(name: str) -> str:
    """Return the field of Container that an option sets."""
    return _CONTAINER_FIELDS.get(name, name.replace("-", "_"))


def _split_list(name: str, value: Any) -> Any:
    """Split a list option, which may have commas, be repeated as for pyxis, or both."""
    if name not in _LIST_OPTIONS:
        return value
    texts = (value,) if isinstance(value, str) else value
    return tuple(item for text in texts for item in text.split(","))


def survive_options() -> list[Callable[..., Any]]:
    """Return the options of survival as decorators."""
    signal = click.Choice(SIGNALS, case_sensitive=False)
    return [
        *(
            click.option(f"--{name}", type=click.Choice(ACTIONS), help=text)
            for name, text in _ENDING_OPTIONS
        ),
        *(
            click.option(f"--{name}", type=int, metavar="N", help=text)
            for name, text in _SURVIVE_NUMBERS
        ),
        click.option("--checkpoint-signal", type=signal, help=_SIGNAL_HELP),
        click.option("--oom-max-mem", metavar="SIZE", help=_MEMORY_HELP),
    ]


def take_survive_options(take: Callable[[str], Any], below: Survive) -> Survive:
    """Return the policy that the options describe; they override the job file's.

    Args:
        take: removes an option and returns its value.
        below: the policy of the job file.

    Raises:
        BadInput: for an impossible value.
    """
    base = {name: getattr(below, name) for name in Survive.__struct_fields__}
    options = {name: take(name) for name in Survive.__struct_fields__}
    return Survive(**base | {name: value for name, value in options.items() if value is not None})


_PREFIX = "SBATCH_"
_OTHER_NAMES = {
    "ARRAY_INX": "array",
    "MEM_PER_NODE": "mem",
    "REQ_SWITCH": "switches",
    "SEGMENT_SIZE": "segment",
    "TIMELIMIT": "time",
}
_PASSED_ON = (
    "acctg-freq batch core-spec delay-boot distribution export gpu-freq gres-flags input mem-bind"
    " network profile thread-spec tres-bind wckey"
).split()
_FLAG_NAMES = (
    "no-kill",
    "no-requeue",
    "overcommit",
    "requeue",
    "spread-job",
    "use-min-nodes",
)
Fields = dict[str, Any]


class SbatchVariable(msgspec.Struct, frozen=True):
    """One variable, and the JobSpec fields it sets; None if slurmkit does not read it."""

    variable: str
    value: str
    fields: Fields | None


def sbatch_variables(environ: Mapping[str, str]) -> tuple[SbatchVariable, ...]:
    """Return the user's `SBATCH_*` variables; none inside a job, where they belong to the job.

    Raises:
        BadInput: naming the variable whose value sbatch would refuse.
    """
    if "SLURM_JOB_ID" in environ:
        return ()
    names = sorted(name for name in environ if name.startswith(_PREFIX))
    return tuple(
        SbatchVariable(name, environ[name], _variable_fields(name, environ[name])) for name in names
    )


def _variable_fields(variable: str, value: str) -> Fields | None:
    """Return the JobSpec fields that a variable sets; None if slurmkit does not read it."""
    name = variable.removeprefix(_PREFIX)
    option = _OTHER_NAMES.get(name, name.lower().replace("_", "-"))
    if (option, value) == ("requeue", "expedite"):
        return {"requeue": value}
    if option in _FLAG_NAMES or (option == "exclusive" and value == "exclusive"):
        value = ""
    elif not (has_own_field(option) or option in _PASSED_ON):
        return None
    try:
        return parse_options([(option, value)])
    except BadInput as error:
        raise BadInput(f"{variable}={value} in the environment: {error}") from error


def default_fields(variables: tuple[SbatchVariable, ...], stronger: Fields) -> Fields:
    """Return the fields of all defaults, without those that `stronger` sets or excludes."""
    fields: Fields = {}
    for default in variables:
        fields = merge_fields(fields, default.fields or {})
    excluding = (group for group in EXCLUSIVE_FIELDS if not stronger.keys().isdisjoint(group))
    taken = {name for group in excluding for name in group}
    return {name: value for name, value in fields.items() if name not in taken}


def default_notes(
    variables: tuple[SbatchVariable, ...], script: Fields, stronger: Fields
) -> Iterator[Finding]:
    """Yield a note for each default that is used, or that sbatch would use and slurmkit does not.

    Args:
        variables: all defaults.
        script: fields of a batch script's #SBATCH lines, which the environment overrides in sbatch.
        stronger: fields of everything that overrides the environment here.
    """
    for default in variables:
        name, what = default.variable, f"{default.variable}={default.value}"
        if default.fields is None:
            yield _note(f"{name} in the environment is ignored; give the option itself")
        elif not _already_set(default.fields, stronger):
            yield _note(f"taken from the environment: {what}")
        elif _already_set(default.fields, script):
            why = "the script's own #SBATCH line overrides it here; sbatch would use the variable"
            yield _note(f"{what} in the environment is ignored: {why}")


def _already_set(fields: Fields, stronger: Fields) -> bool:
    """Return whether `stronger` already sets these fields."""
    own = fields.get("options", {}).keys()
    names = fields.keys() - {"options", "environment"}
    if "gpus" in names and "gpus" in stronger:  # stronger may have set only the binding
        return bool(msgspec.structs.replace(stronger["gpus"], bind=None) != fields["gpus"])
    excluded = [name for group in EXCLUSIVE_FIELDS if names & set(group) for name in group]
    return bool(own & stronger.get("options", {}).keys()) or any(
        name in stronger for name in (*names, *excluded)
    )


def _note(message: str) -> Finding:
    return Finding(severity="note", code="environment", message=message, source="SBATCH_*")
