"""The job a user asks for (`JobSpec`): frozen, typed, without any I/O."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.durations import parse_time_limit
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.option_values import (
    CPU_BIND_FORM,
    OPTION_FORMS,
    HasParts,
    ValueForm,
    check_passed_through,
    check_text,
    format_dependency,
    join_dependencies,
)
from slurmkit.spec.survival import Survive
from slurmkit.spec.sweep import Sweep, check_placeholders

__all__ = ["Container", "Gpus", "JobSpec", "Launch", "Survive", "Sweep"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Slurm and pyxis read these variables as options, in the batch step too.
_OPTION_VARIABLES = ("SLURM_", "SBATCH_", "SRUN_", "PYXIS_")
_GPUS_IN_GRES = re.compile(r"(^|,)(gpu|shard|mps)(:|,|$)")
_NCCL_LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
PREFLIGHTS = ("nccl",)
"""Tests of a job's nodes before the command starts."""
_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh")
DIRECTIVE_PREFIXES = ("#SBATCH", "#SLURM")
"""Prefixes of option lines in a script; the second is an old one that sbatch still reads."""
_INDEX_RANGE = re.compile(r"(\d+)(?:-(\d+)(:\d+)?)?", re.ASCII)
_HIGHEST_INDEX = 4_000_000  # slurm.conf(5), the largest MaxArraySize less 1
_POSITIVE_FIELDS = (
    *("ntasks", "ntasks_per_node", "ntasks_per_gpu", "ntasks_per_socket", "ntasks_per_core"),
    *("cpus_per_task", "cpus_per_gpu", "mincpus", "segment", "array_throttle"),
    *("sockets_per_node", "cores_per_socket", "threads_per_core"),
)
EXCLUSIVE_FIELDS = (
    ("mem", "mem_per_cpu", "mem_per_gpu"),
    ("cpus_per_task", "cpus_per_gpu"),
    ("ntasks_per_node", "ntasks_per_gpu"),
)
"""Fields of which a job has one of each group (`validate_options_salloc_sbatch_srun` of sbatch)."""
_SIZE = r"[1-9]\d{0,8}(-[1-9]\d{0,8}(:[1-9]\d{0,8})?)?"
_NODES = re.compile(rf"{_SIZE}(,{_SIZE})*", re.ASCII)


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The way the command is started on the nodes.

    Attributes:
        launcher: name of a launcher; `none` starts the command once, in the batch shell on the
            first node. None means plain srun, once per task, for a command, and `none` for a
            script.
        mpi: srun's `--mpi` plugin, e.g. `pmix`.
        cpu_bind: srun's `--cpu-bind`, e.g. `none` or `cores`; None for the site's default.
        per_gpu: one task for each GPU of a node if the job sets no number of tasks; None for the
            launcher's default.
        label: put the task's number before each line of output.
        log_per_rank: write each task's output to its own file, the job's log with `.rankN` added.
        nccl_debug: NCCL's log level (`NCCL_DEBUG`): VERSION, WARN, INFO or TRACE.
        preflight: test of the nodes before the command starts: `nccl`; None for no test.
    """

    launcher: str | None = None
    mpi: str | None = None
    cpu_bind: str | None = None
    per_gpu: bool | None = None
    label: bool = False
    log_per_rank: bool = False
    nccl_debug: str | None = None
    preflight: str | None = None

    def __post_init__(self) -> None:
        if self.nccl_debug not in (None, *_NCCL_LEVELS):
            known = ", ".join(_NCCL_LEVELS)
            raise BadInput(f"launch.nccl-debug must be one of {known}, not {self.nccl_debug!r}")
        if self.preflight not in (None, *PREFLIGHTS):
            known = ", ".join(PREFLIGHTS)
            raise BadInput(f"launch.preflight must be {known}, not {self.preflight!r}")
        if self.cpu_bind is not None and not CPU_BIND_FORM.fits(self.cpu_bind):
            raise BadInput(f"--cpu-bind {self.cpu_bind!r} is not {CPU_BIND_FORM.meaning}")
        for name in ("launcher", "mpi"):
            value = getattr(self, name)
            if value is not None and not re.fullmatch(r"[a-z][\w.\-]*", value, re.ASCII):
                raise BadInput(f"launch.{name} {value!r} is not a name")


# sbatch's options that became fields with 0.2; they are taken from `options` for one release.
OPTIONS_OF_0_1: dict[str, type] = {
    "ntasks-per-gpu": int, "ntasks-per-socket": int, "ntasks-per-core": int, "cpus-per-gpu": int,
    "mincpus": int, "sockets-per-node": int, "cores-per-socket": int, "threads-per-core": int,
    "hint": str, "tmp": str, "overcommit": bool, "spread-job": bool, "use-min-nodes": bool,
}  # fmt: skip


class JobSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename="kebab",
):
    """One job as its user asks for it; fields have the names of sbatch's long options.

    Values have sbatch's forms and meanings (sbatch(1), "OPTIONS"). None leaves a value to Slurm.

    Attributes:
        command: argv to start; never a shell line.
        script: text of a batch script to run instead of a command.
        nodes: number of nodes; 1 unless `ntasks` is given. Or `MIN-MAX`, from which Slurm
            chooses, or a list of numbers (`1,2,4`) where the release allows it.
        cpus_per_task: CPUs of each task; 1 unless the site sets a number for each GPU.
        ntasks_per_gpu: tasks for each GPU of the job. Without `gpus`, `ntasks` gives their number.
        ntasks_per_socket: most tasks on each socket; the same for `ntasks_per_core`.
        cpus_per_gpu: CPUs for each GPU, instead of CPUs for each task.
        mincpus: fewest CPUs on each node.
        sockets_per_node: only nodes with at least so many sockets; the same for
            `cores_per_socket` and `threads_per_core`. Tasks use at most `threads_per_core` threads
            of a core. Without any number of tasks there is one for each thread asked for.
        hint: `compute_bound`, `memory_bound`, `multithread` or `nomultithread`.
        gpus: GPUs, or a part of one.
        gres: generic resources per node other than GPUs, `name[:type]:count`.
        mem: memory per node in Slurm's form (`64G`; MiB without a suffix).
        tmp: least local disk of each node, in the same form.
        overcommit: allocate CPUs as if each node had one task.
        spread_job: use as many of the nodes as possible; `use_min_nodes`: as few.
        time: time limit; `time_min` is the shortest that Slurm may reduce it to.
        array: indices of a job array; for a sweep, the points to run, by default all.
        array_throttle: how many tasks run at once; also set by `%N` in `array`.
        sweep: parameters of each task, as variables and as `{name}` in words of `command`.
        requeue: whether Slurm requeues the job after a node failure; `expedite` (Slurm 25.11) also
            after a failure with a failed epilog, at once and with the highest priority; after a
            failure on nodes that are fine, the job waits on hold.
        output: path of the log, relative to `chdir`; Slurm's patterns (`%j`) are allowed.
        chdir: folder where the job starts, absolute.
        environment: variables exported in the script, in order.
        launch: how the command is started.
        container: the container of its steps.
        survive: what happens when a run is ended early, e.g. by its time limit or preemption.
        options: other sbatch long options by name; an empty value for a flag.
    """

    command: tuple[str, ...] = ()
    script: str | None = None
    job_name: str | None = None
    nodes: int | str | None = None
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    ntasks_per_gpu: int | None = None
    ntasks_per_socket: int | None = None
    ntasks_per_core: int | None = None
    cpus_per_gpu: int | None = None
    mincpus: int | None = None
    sockets_per_node: int | None = None
    cores_per_socket: int | None = None
    threads_per_core: int | None = None
    hint: str | None = None
    overcommit: bool = False
    spread_job: bool = False
    use_min_nodes: bool = False
    gpus: Gpus | None = None
    gres: str | None = None
    mem: str | None = None
    mem_per_cpu: str | None = None
    mem_per_gpu: str | None = None
    tmp: str | None = None
    time: str | None = None
    time_min: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    licenses: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    exclusive: bool | str | None = None
    switches: str | None = None
    segment: int | None = None
    array: str | None = None
    array_throttle: int | None = None
    sweep: Sweep | None = None
    dependency: str | None = None
    begin: str | None = None
    deadline: str | None = None
    hold: bool = False
    nice: int | None = None
    requeue: bool | str | None = None
    signal: str | None = None
    mail_type: str | None = None
    mail_user: str | None = None
    comment: str | None = None
    chdir: str | None = None
    output: str | None = None
    error: str | None = None
    open_mode: str | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    launch: Launch = Launch()
    container: Container | None = None
    survive: Survive = Survive()
    options: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._take_options_of_0_1()
        _check_what_runs(self.command, self.script)
        for name in (*_POSITIVE_FIELDS, "nice"):
            _check_number(name, getattr(self, name))
        _check_nodes(self.nodes)
        for name, form in OPTION_FORMS.items():
            _check_form(name, getattr(self, name), form)
        _check_array(self.array)
        _check_tasks(self)
        for name in ("time", "time_min"):
            if (limit := getattr(self, name)) is not None:
                parse_time_limit(limit)
        _check_gpus(self.gpus, self.gres)
        _check_environment(self.environment)
        if self.environment and self.script is not None and not is_shell(self.script):
            raise BadInput(
                "environment works only with a shell script, and this script's interpreter is not"
                " a shell; set the variables in the script"
            )
        _check_texts("options", self.options)
        for name, value in self.options.items():
            check_passed_through(name, value)
        _check_exclusions(self)
        _check_sockets(self)
        _check_tasks_per_gpu(self)

    def _take_options_of_0_1(self) -> None:
        """Take fields from `options`, where slurmkit 0.1 had them: programs and records have."""
        old = {
            name: value
            for name, value in self.options.items()
            if name in OPTIONS_OF_0_1 and isinstance(value, str)
        }
        for name, text in old.items():
            kind, field = OPTIONS_OF_0_1[name], name.replace("-", "_")
            if getattr(self, field) in (None, False) and (kind is not int or text.isdecimal()):
                value = int(text) if kind is int else text if kind is str else True
                msgspec.structs.force_setattr(self, field, value)
        if old:
            rest = {name: value for name, value in self.options.items() if name not in old}
            msgspec.structs.force_setattr(self, "options", rest)

    def after(
        self, *jobs: HasParts | str | int, kind: str = "afterok", minutes: int = 0
    ) -> JobSpec:
        """Return the job with a dependency: `train.after(prepared)`, `clean.after(12)`.

        Args:
            jobs: handles or ids; the job waits for all of them.
            kind: `afterok`, `afterany`, `afternotok`, `aftercorr`, `after` or `afterburstbuffer`
                (sbatch(1) --dependency).
            minutes: to wait after their start; for `after` only.

        Raises:
            BadInput: for a malformed job id, an unknown kind, or a dependency that Slurm cannot
                join to the one the job has.
        """
        dependency = join_dependencies(self.dependency, format_dependency(jobs, kind, minutes))
        return msgspec.structs.replace(self, dependency=dependency)

    @property
    def seconds(self) -> int | None:
        """The time limit in seconds; None when it is left to the partition."""
        return None if self.time is None else parse_time_limit(self.time)

    @property
    def least_nodes(self) -> int | None:
        """The number of nodes, or the fewest of a range."""
        return min(node_sizes(self.nodes), default=None)

    @property
    def most_nodes(self) -> int | None:
        """The number of nodes, or the most of a range."""
        return max(node_sizes(self.nodes), default=None)


def with_array(spec: JobSpec) -> JobSpec:
    """Return the spec with sweep and throttle written into `array`, e.g. `0-19%4`."""
    if spec.sweep is None and spec.array_throttle is None:
        return spec
    array = spec.array or f"0-{len(spec.sweep or ()) - 1}"
    limit = f"%{spec.array_throttle}" if spec.array_throttle else ""
    return msgspec.structs.replace(spec, array=f"{array}{limit}", array_throttle=None)


def option(field: str) -> str:
    """Return the long option of a field: `--cpus-per-task` for `cpus_per_task`."""
    return "--" + field.replace("_", "-")


def _check_number(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadInput(f"{option(name)} must be a whole number, not {value!r}")
    if value < 1 and name in _POSITIVE_FIELDS:
        raise BadInput(f"{option(name)} must be at least 1, not {value}")


def node_sizes(nodes: int | str | None) -> list[int]:
    """Return the numbers in `1-4` or `1-9:2,12`, without the steps; none for None."""
    spans = str(nodes or "").split(",")
    return [int(n) for span in spans for n in span.partition(":")[0].split("-") if n]


def _check_nodes(nodes: object) -> None:
    if not isinstance(nodes, str):
        _check_number("nodes", nodes)
        if nodes is not None and int(str(nodes)) < 1:
            raise BadInput(f"--nodes must be at least 1, not {nodes}")
        return
    if not _NODES.fullmatch(nodes) or nodes.isdecimal():
        raise BadInput(f"--nodes must be a whole number, or a range such as '1-4', not {nodes!r}")
    if any(len(ends) > 1 and ends[0] > ends[1] for ends in map(node_sizes, nodes.split(","))):
        raise BadInput(f"--nodes={nodes}: the maximum is below the minimum; write MIN-MAX")


def _check_gpus(gpus: object, gres: str | None) -> None:
    if not isinstance(gpus, Gpus | None):
        raise BadInput(f"gpus must be Gpus(2, 'a100') or Gpus.parse('a100:2'), not {gpus!r}")
    if gres is not None and _GPUS_IN_GRES.search(gres):
        raise BadInput(
            f"gres {gres!r} asks for GPUs or parts of GPUs; give them as gpus, e.g."
            " Gpus.parse('a100:2') or Gpus.parse('shard:1')"
        )


def _check_exclusions(spec: JobSpec) -> None:
    """Check options that exclude each other, of fields and of options that are passed on."""
    for names in EXCLUSIVE_FIELDS:
        given = [option(name) for name in names if getattr(spec, name) is not None]
        if len(given) > 1:
            raise BadInput(f"{' and '.join(given)} cannot be combined; give one of them")
    by_task = spec.options.get("tres-per-task", "")
    wrong = (
        (spec.cpus_per_gpu and "cpu" in by_task, "--cpus-per-gpu and --tres-per-task=cpu"),
        (spec.ntasks_per_gpu and by_task, "--ntasks-per-gpu and --tres-per-task"),
        (spec.exclusive and "oversubscribe" in spec.options, "--exclusive and --oversubscribe"),
        ({"core-spec", "thread-spec"} <= {*spec.options}, "--core-spec and --thread-spec"),
    )
    if both := next((names for holds, names in wrong if holds), None):
        raise BadInput(f"{both} cannot be combined; give one of them")


def _check_sockets(spec: JobSpec) -> None:
    """Check options about sockets, cores and threads against each other."""
    wanted = spec.gpus.sockets if spec.gpus else None
    if wanted is not None and spec.sockets_per_node != wanted:
        raise BadInput(
            f"the GPUs are spread over {wanted} sockets, and --sockets-per-node is"
            f" {spec.sockets_per_node or 'not given'}; give --gpus-per-socket and"
            " --sockets-per-node together"
        )
    tasks, threads = spec.ntasks_per_core, spec.threads_per_core
    if tasks is not None and threads is not None and tasks > threads:
        raise BadInput(
            f"--ntasks-per-core={tasks} may not be greater than --threads-per-core={threads}"
        )


def _check_tasks_per_gpu(spec: JobSpec) -> None:
    """Check `--ntasks-per-gpu` (sbatch(1)): it needs GPUs or tasks, and one number of nodes."""
    each, gpus = spec.ntasks_per_gpu, spec.gpus
    if each is None:
        return
    if gpus is not None and (gpus.per == "task" or gpus.sockets or gpus.is_part):
        raise BadInput(
            "--ntasks-per-gpu needs whole GPUs of the nodes or the job; give --gpus-per-node or"
            " --gpus"
        )
    if isinstance(spec.nodes, str):
        raise BadInput(f"--ntasks-per-gpu does not go with --nodes={spec.nodes}; give one number")
    if gpus is None and (spec.ntasks is None or spec.ntasks % each):
        raise BadInput(
            f"--ntasks-per-gpu={each} needs GPUs; give e.g. --gpus-per-node=2, or --ntasks as a"
            f" multiple of {each}"
        )


def _check_texts(name: str, values: object) -> None:
    if not isinstance(values, dict):
        raise BadInput(f"{name} must be a table of names and texts, not {values!r}")
    wrong = next(
        (k for k, v in values.items() if not (isinstance(k, str) and isinstance(v, str))), None
    )
    if wrong is not None:
        raise BadInput(
            f"{name}: the value of {wrong} must be text, e.g. '8', not {values[wrong]!r}"
        )


def _check_form(name: str, value: object, form: ValueForm) -> None:
    if value is None or (name in ("exclusive", "requeue") and isinstance(value, bool)):
        return
    if not isinstance(value, str):
        raise BadInput(f"{option(name)} must be text, e.g. '{value}', not {value!r}")
    if value == "":
        raise BadInput(f"{option(name)} may not be empty; leave it out for the default")
    check_text(option(name), value)
    if not form.fits(value):
        raise BadInput(f"{option(name)} {value!r} is not {form.meaning}")


def _check_array(text: str | None) -> None:
    for first, last, step in _INDEX_RANGE.findall(_indices(text)):
        if int(last or first) < int(first) or step.strip(":") == "0":
            raise BadInput(
                f"--array={text}: {first}-{last}{step} contains no index; write FIRST-LAST,"
                " e.g. 0-9"
            )
    for number in re.findall(r"\d+", _indices(text)):
        if int(number) > _HIGHEST_INDEX:
            raise BadInput(
                f"--array index {number} is too high; the highest that Slurm can store is"
                f" {_HIGHEST_INDEX}"
            )


def _indices(array: str | None) -> str:
    return (array or "").partition("%")[0]


def _check_tasks(spec: JobSpec) -> None:
    """Check the throttle and the sweep of an array."""
    if spec.array_throttle is not None and "%" in (spec.array or ""):
        raise BadInput(
            f"--array={spec.array} and --array-throttle both set the throttle; give one of them"
        )
    if spec.sweep is not None:
        _check_sweep(spec, spec.sweep)
    elif spec.array_throttle is not None and spec.array is None:
        raise BadInput("--array-throttle needs an array; give --array or --sweep as well")


def _check_sweep(spec: JobSpec, sweep: Sweep) -> None:
    check_placeholders(spec.command, sweep)
    highest = max(map(int, re.findall(r"\d+", _indices(spec.array))), default=0)
    if highest >= len(sweep):
        last = len(sweep) - 1
        raise BadInput(
            f"--array={spec.array}: the sweep has no point {highest}, only the points 0 to {last}"
        )
    if both := [name for name in sweep.names if name in spec.environment]:
        raise BadInput(
            f"{both[0]} is both a parameter of the sweep and a variable in the environment;"
            " give one of them another name"
        )
    if spec.script is not None and not is_shell(spec.script):
        raise BadInput(
            "a sweep works only with a shell script, and this script's interpreter is not a shell;"
            " give the program as a command"
        )


def _check_what_runs(command: tuple[str, ...], script: str | None) -> None:
    if isinstance(command, str):
        raise BadInput(f"the command must be a tuple of words, not one text: {command!r}")
    if bool(command) == (script is not None):
        raise BadInput(
            "both a command and a script were given; give one of them"
            if command
            else "no command to run; give it after --, e.g. -- python train.py"
        )
    for word in command:
        if "\0" in word:
            raise BadInput(
                "an argument of the command contains a NUL, which no program can receive;"
                " remove the NUL"
            )
        if not is_utf8(word):
            raise BadInput(f"an argument of the command is not UTF-8 text: {word!r}")
    _check_script(script)


def _check_script(script: str | None) -> None:
    if script is None:
        return
    if "\0" in script or not is_utf8(script):
        raise BadInput("the script is not text: it contains a NUL or bytes that are not UTF-8")
    if "\r\n" in script:
        raise BadInput("the script has DOS line ends, which sbatch refuses; convert it: dos2unix")
    if not script.startswith("#!"):
        raise BadInput("the script's first line must name its interpreter, e.g. #!/bin/bash")

    if any(line.startswith(DIRECTIVE_PREFIXES) for line in script_header(script)):
        raise BadInput(
            "the script has #SBATCH lines, which slurmkit would not check; give options as fields,"
            " as slurmkit.spec.jobfile.load_script does"
        )


def script_header(script: str) -> list[str]:
    """Return the lines in which sbatch looks for options: all before the first command."""
    lines = script.split("\n")
    is_comment = (line.lstrip()[:1] in ("", "#") for line in lines)
    end = next((at for at, comment in enumerate(is_comment) if not comment), len(lines))
    return lines[:end]


def is_shell(script: str) -> bool:
    """Tell whether the interpreter of a script is a shell."""
    words = script.partition("\n")[0].removeprefix("#!").split()
    return any(PurePosixPath(word).name in _SHELLS for word in words)


def _check_environment(environment: dict[str, str]) -> None:
    _check_texts("environment", environment)
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name):
            raise BadInput(f"environment: {name!r} is not the name of a variable")
        if name.startswith(_OPTION_VARIABLES):
            raise BadInput(f"environment: Slurm reads {name} as an option; give the option itself")
        if "\0" in value or not is_utf8(value):
            raise BadInput(f"environment: the value of {name} contains a NUL or is not UTF-8")


def is_utf8(text: str) -> bool:
    """Tell whether `text` can be written as UTF-8; argv may hold bytes of another encoding."""
    return not any("\ud800" <= char <= "\udfff" for char in text)
