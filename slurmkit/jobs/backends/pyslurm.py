"""The PySlurm backend: submits in this process where PySlurm sends exactly what sbatch would.

The options become fields of PySlurm's job description, and the job gets the environment that
sbatch would give it. Jobs that PySlurm cannot express, and every other call, go through Slurm's
commands.
"""

from __future__ import annotations

import logging
import os
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from signal import Signals
from types import ModuleType

from slurmkit.errors import BadInput, BrokenPlugin
from slurmkit.formats.durations import parse_time_limit
from slurmkit.formats.memory import parse_mib
from slurmkit.jobs.backends.commands import NO_OVERRIDES, CommandsBackend, SubmitOverrides
from slurmkit.jobs.backends.pyslurm_usable import check_pyslurm, import_pyslurm
from slurmkit.slurm.commands import SlurmCommands, environment_for, slurm_error
from slurmkit.spec.sbatch_options import has_foreign_options, option_lines
from slurmkit.spec.submission import Options, Submission
from slurmkit.state.cache import load_capabilities

SENT: Counter[str] = Counter()
"""Jobs this process submitted, by way: `libslurm`, or `sbatch: ` and why."""

_LOG = logging.getLogger(__name__)
_REFUSALS = range(2000, 3000)  # ESLURM_… of slurm_errno.h: slurmctld refuses the job

DescriptionFields = dict[str, object]
# "Not set" in slurm.h. Without a field PySlurm would send numbers of its own.
_NO_VAL, _NO_VAL16 = 0xFFFFFFFE, 0xFFFE
# sbatch sends 0 here. PySlurm sends "not set", but 0 for an empty list that is true, like iter(()).
_ZERO_FIELDS, _EMPTY = ("mail_types", "profile_types"), iter(())
_SIZE = re.compile(r"(\d{1,9})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_NODES = re.compile(r"([1-9]\d{0,5})(?:-([1-9]\d{0,5}))?", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,4}", re.ASCII)
_GRES = re.compile(r"[A-Za-z_][\w.\-]*(?::[A-Za-z_][\w.\-]*)?:[1-9]\d{0,4}", re.ASCII)
_SIGNAL = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@(\d{1,5}))?", re.ASCII)
_MAIL_TYPES = frozenset("ARRAY_TASKS BEGIN END FAIL REQUEUE STAGE_OUT".split())
_CPUS_PER_TASK = "cpus-per-task"

# In the order of src/common/slurm_rlimits_info.c.
_RESOURCE_LIMITS = {
    name: getattr(resource, f"RLIMIT_{name}")
    for name in "CPU FSIZE DATA STACK CORE RSS NPROC NOFILE MEMLOCK AS".split()
}
_OPTION_VARIABLES = {  # variables that srun in the job reads as its own options
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "dependency": ("SLURM_JOB_DEPENDENCY",),
    "gpus": ("SLURM_GPUS",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
}
_LAUNCHER_VARIABLES = {
    "OMPI_MCA_plm_slurm_args": "--external-launcher",
    "PRTE_MCA_plm_slurm_args": "--external-launcher",
}
_HYDRA_VARIABLES = {  # set unless another launcher is chosen
    "HYDRA_BOOTSTRAP": "HYDRA_LAUNCHER_EXTRA_ARGS",
    "I_MPI_HYDRA_BOOTSTRAP": "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
}


class PyslurmBackend(CommandsBackend):
    """The backend that submits through the PySlurm library; the plugin `pyslurm`."""

    def __init__(self, slurm: SlurmCommands) -> None:
        super().__init__(slurm)
        self._library: ModuleType | None = None
        self._config: dict[str, str] = {}

    def submit(self, submission: Submission, overrides: SubmitOverrides = NO_OVERRIDES) -> str:
        """Submit with PySlurm, or with sbatch where PySlurm lacks an option.

        Raises:
            BrokenPlugin: when PySlurm cannot be used here.
        """
        pyslurm = self._library or self._open()
        try:
            job_id = self._send(pyslurm, submission, overrides)
        except Inexpressible as why:
            SENT[f"sbatch: {why}"] += 1
            _LOG.info("sbatch is used instead of PySlurm: %s", why)
            return super().submit(submission, overrides)
        SENT["libslurm"] += 1
        return job_id

    def _open(self) -> ModuleType:
        """Import PySlurm and read the cluster's configuration, once."""
        check = check_pyslurm(self._slurm)
        if check.why_not:
            raise BrokenPlugin(f"PySlurm cannot be used: {check.why_not}; {check.fix}")
        self._config = load_capabilities(self._slurm).config
        self._library = import_pyslurm()
        return self._library

    def _send(self, pyslurm: ModuleType, submission: Submission, overrides: SubmitOverrides) -> str:
        """Submit through libslurm; raises Inexpressible where sbatch has to do it."""
        fields = describe_submission(submission, overrides)
        environment = job_environment(submission_options(submission, overrides), self._config)
        try:
            description = pyslurm.JobSubmitDescription(**fields, environment=environment)
            return str(description.submit())
        except pyslurm.RPCError as error:
            if error.errno in _REFUSALS:  # sbatch retries where that helps; its message is fuller
                raise Inexpressible(f"slurmctld refused it ({error})") from error
            return self._find_sent(submission, overrides, slurm_error("sbatch", str(error), 1))
        except (ValueError, TypeError, OverflowError) as error:
            raise Inexpressible(f"PySlurm did not accept it ({error})") from error


class Inexpressible(Exception):
    """A request that PySlurm cannot express; its text says why."""


@lru_cache(maxsize=64)  # loops submit the same job again and again
def describe_submission(submission: Submission, overrides: SubmitOverrides) -> DescriptionFields:
    """Return the fields of a submission, without its environment. Callers must not change them.

    Raises:
        Inexpressible: for a request that only sbatch can send.
        BadInput: when the job's own dependency cannot be joined with the one in `overrides`.
    """
    if why := _differs_from_script(submission.script, submission.options):
        raise Inexpressible(why)
    options = submission_options(submission, overrides)
    fields: DescriptionFields = {"script": submission.script, **dict.fromkeys(_ZERO_FIELDS, _EMPTY)}
    for name, value in options.items():
        fields |= _option_fields(name, value)
    if "hold" in options:  # overrides --priority
        fields["priority"] = 0
    return fields | _task_fields(options) | _gres_fields(options) | _file_fields(options)


def submission_options(submission: Submission, overrides: SubmitOverrides) -> dict[str, str]:
    """Return all options of a submission; raises as `SubmitOverrides.over`."""
    options = dict(submission.options)
    return options | overrides.over(options)


def _differs_from_script(script: str, options: Options) -> str | None:
    """Return why sbatch would read more from a script than its options; None if it would not."""
    if [line for line in script.split("\n") if line.startswith("#SBATCH")] != option_lines(options):
        return "its #SBATCH lines differ from its options"
    if has_foreign_options(script) and not any(name == "ignore-pbs" for name, _ in options):
        return "its script has options of PBS or LSF"
    return None


def _option_fields(name: str, value: str) -> DescriptionFields:
    """Return the fields of one option; raises Inexpressible if there are none."""
    if name in _READ_TOGETHER and value:
        return {}
    if name in _TEXT_FIELDS and value:
        return {_TEXT_FIELDS[name]: value}
    read = _READERS.get(name)
    fields = read(value) if read else None
    if fields is None:
        option = f"--{name}={value}" if read and value else f"--{name}"
        raise Inexpressible(f"PySlurm cannot express {option} exactly")
    return fields


# Options that are set together, by `_task_fields`, `_gres_fields` and `_file_fields`.
_READ_TOGETHER = frozenset(
    "nodes ntasks ntasks-per-node cpus-per-task gres gpus gpus-per-node"
    " chdir output error input".split()
)
_TEXT_FIELDS = {
    "account": "account",
    "array": "array",
    "comment": "comment",
    "constraint": "constraints",
    "dependency": "dependencies",
    "job-name": "name",
    "licenses": "licenses",
    "mail-user": "mail_user",
    "partition": "partitions",
    "qos": "qos",
    "reservation": "reservations",
    "wckey": "wckey",
}


def _memory_reader(field: str) -> Callable[[str], DescriptionFields | None]:
    """Return a reader of memory sizes, in MiB; PySlurm drops 0, which means all memory."""

    def read(value: str) -> DescriptionFields | None:
        match = _SIZE.fullmatch(value)
        if match is None:
            return None
        mib = parse_mib(match[1] + match[2], rounding="up")
        return {field: mib} if mib else None

    return read


def _minutes_reader(field: str) -> Callable[[str], DescriptionFields | None]:
    """Return a reader of time limits, in minutes."""

    def read(value: str) -> DescriptionFields | None:
        try:
            return {field: -(-parse_time_limit(value) // 60)}
        except BadInput:  # unlimited, or not a time
            return None

    return read


def _date_reader(field: str) -> Callable[[str], DescriptionFields | None]:
    """Return a reader of dates; both use one libslurm function, but PySlurm reads 5 as seconds."""
    return lambda value: {field: value} if value and not value.isdigit() else None


def _integer_reader(field: str, least: int) -> Callable[[str], DescriptionFields | None]:
    """Return a reader of integers from `least` on; PySlurm drops 0 unless that is `least`."""

    def read(value: str) -> DescriptionFields | None:
        if not re.fullmatch(r"-?\d{1,9}", value, re.ASCII):
            return None
        number = int(value)
        return {field: number} if number >= least and (number or not least) else None

    return read


def _flag_reader(field: str, *, to: object) -> Callable[[str], DescriptionFields | None]:
    """Return a reader of an option without a value, which sets a field to `to`."""
    return lambda value: None if value else {field: to}


def _word_reader(
    field: str, words: Mapping[str, object]
) -> Callable[[str], DescriptionFields | None]:
    """Return a reader of an option whose value is one of `words`."""
    return lambda value: {field: words[value.lower()]} if value.lower() in words else None


def _read_signal(value: str) -> DescriptionFields | None:
    """Read `[{R|B}:]SIGNAL[@SECONDS]`, as sbatch(1) --signal takes it."""
    match = _SIGNAL.fullmatch(value.upper())
    if match is None:
        return None
    flags, name, seconds = match[1] or "", match[2], int(match[3] or 60)
    number = int(name) if name.isdigit() else getattr(Signals, f"SIG{name}", 0)
    if not number or not seconds:  # PySlurm turns 0 seconds into 60
        return None
    at = {"signal": int(number), "time": seconds, "batch_only": "B" in flags}
    return {"signal": at | {"allow_reservation_overlap": "R" in flags}}


def _read_mail_types(value: str) -> DescriptionFields | None:
    """Read mail types; not ALL, which has fewer types in PySlurm than in sbatch."""
    words = value.upper().split(",")
    return {"mail_types": words} if _MAIL_TYPES.issuperset(words) else None


_READERS: dict[str, Callable[[str], DescriptionFields | None]] = {
    "begin": _date_reader("begin_time"),
    "deadline": _date_reader("deadline"),
    "exclude": lambda value: {"excluded_nodes": value} if "/" not in value else None,
    "exclusive": _word_reader("resource_sharing", {"": "exclusive", "user": "user", "mcs": "mcs"}),
    "export": lambda value: {} if value.upper() == "ALL" else None,
    "hold": _flag_reader("priority", to=0),
    "ignore-pbs": lambda value: None if value else {},  # it concerns sbatch alone
    "kill-on-invalid-dep": _word_reader("kill_on_invalid_dependency", {"yes": True}),
    "mail-type": _read_mail_types,
    "mem": _memory_reader("memory_per_node"),
    "mem-per-cpu": _memory_reader("memory_per_cpu"),
    "nice": _integer_reader("nice", -(2**31) + 3),
    "no-requeue": _flag_reader("is_requeueable", to=False),
    "open-mode": _word_reader("log_files_open_mode", {"append": "append", "truncate": "truncate"}),
    "priority": _integer_reader("priority", 1),
    "signal": _read_signal,
    "requeue": _flag_reader("is_requeueable", to=True),
    "time": _minutes_reader("time_limit"),
    "time-min": _minutes_reader("time_limit_min"),
}


def _task_fields(options: Mapping[str, str]) -> DescriptionFields:
    """Return nodes, tasks and CPUs; PySlurm would set each missing one to 1."""
    least, most = _node_range(options)
    tasks, per_node, cpus = (
        _count(options, n) for n in ("ntasks", "ntasks-per-node", _CPUS_PER_TASK)
    )
    if least and tasks and tasks < most:
        raise Inexpressible("with fewer --ntasks than --nodes, sbatch takes fewer nodes")
    if cpus and "mem-per-cpu" in options:
        raise Inexpressible("PySlurm cannot express --cpus-per-task together with --mem-per-cpu")
    if not least and tasks and per_node:
        least = -(-tasks // per_node)
    guessed = tasks or (1 if least < most else (least or 1) * (per_node or 1))
    return {
        "nodes": f"{least or _NO_VAL}-{most or _NO_VAL}",
        "ntasks": tasks or _NO_VAL,
        "ntasks_per_node": per_node or _NO_VAL16,
        "cpus_per_task": cpus or _NO_VAL16,
        "min_cpus_per_node": _check_count(
            guessed * (cpus or 1)
        ),  # PySlurm sends it as the job's CPUs
    }


def _node_range(options: Mapping[str, str]) -> tuple[int, int]:
    """Return the fewest and the most nodes; zeros if none are given."""
    value = options.get("nodes")
    if value is None:
        return 0, 0
    match = _NODES.fullmatch(value)
    if match is None:
        raise Inexpressible(f"PySlurm cannot express --nodes={value} exactly")
    return int(match[1]), int(match[2] or match[1])


def _count(options: Mapping[str, str], name: str) -> int:
    """Return the count that an option gives; 0 if it is not given."""
    value = options.get(name)
    if value is None:
        return 0
    if not _COUNT.fullmatch(value):
        raise Inexpressible(f"PySlurm cannot express --{name}={value} exactly")
    return _check_count(int(value))


def _check_count(number: int) -> int:
    """Return the number; raises Inexpressible if it does not fit into 16 bits."""
    if number >= _NO_VAL16:
        raise Inexpressible(f"PySlurm takes numbers up to {_NO_VAL16 - 1}, not {number}")
    return number


def _gres_fields(options: Mapping[str, str]) -> DescriptionFields:
    """Return the GRES per node and the GPUs of the whole job."""
    per_node = [*_gpu_gres(options.get("gpus-per-node")), *filter(None, [options.get("gres")])]
    in_all = _gpu_gres(options.get("gpus"))
    fields = {"gres_per_node": _gres_counts(per_node), "gpus": _gres_counts(in_all)}
    return {name: kinds for name, kinds in fields.items() if kinds}


def _gpu_gres(value: str | None) -> list[str]:
    """Return `a100:2,1` as `gpu:a100:2` and `gpu:1`."""
    return [f"gpu:{each}" for each in value.split(",")] if value else []


def _gres_counts(lists: list[str]) -> dict[str, int]:
    """Return the count of each GRES, by name and type."""
    parts = ",".join(lists).split(",") if lists else []
    for part in parts:
        if not _GRES.fullmatch(part):
            raise Inexpressible(f"PySlurm cannot express {part!r} exactly")
    counts = {kind: int(count) for kind, _, count in (part.rpartition(":") for part in parts)}
    if len(counts) < len(parts):
        raise Inexpressible(f"PySlurm takes each GRES type only once: {','.join(parts)}")
    return counts


def _file_fields(options: Mapping[str, str]) -> DescriptionFields:
    """Return the job's directory and files as absolute paths, as sbatch sends them."""
    chdir = options.get("chdir") or os.getcwd()  # noqa: PTH109 - text, as sbatch has it
    if not chdir.startswith("/"):
        raise Inexpressible(f"PySlurm needs an absolute path, not --chdir={chdir}")
    fields: DescriptionFields = {"working_directory": chdir, "standard_in": "/dev/null"}
    for name, field in _FILE_FIELDS.items():
        if options.get(name):
            file = options[name]
            fields[field] = file if file.startswith("/") else f"{chdir}/{file}"
    return fields


_FILE_FIELDS = {"input": "standard_in", "output": "standard_output", "error": "standard_error"}


def job_environment(options: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str]:
    """Return all environment variables of a job.

    Args:
        options: the job's, as sbatch's long names without dashes.
        config: the cluster's settings, as `scontrol show config` prints them.
    """
    variables = environment_for(["sbatch"], os.environ)
    if "export" not in options:
        variables.pop("SLURM_JWT", None)
    variables |= {
        "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "SLURM_SUBMIT_DIR": os.getcwd(),  # noqa: PTH109 - text
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_UMASK": _umask(),
    }
    variables |= dict(_limit_variables(config))
    for option, names in _OPTION_VARIABLES.items():
        if option in options:
            variables |= dict.fromkeys(names, options[option])
    if "cpus-per-task" in options:  # sbatch of 26.05 sets a second variable for it
        variables["SLURM_TRES_PER_TASK"] = f"cpu={options['cpus-per-task']}"
    return _launcher_variables(config) | variables


def _umask() -> str:
    """Read the umask from /proc; calling `os.umask` would change it for other threads."""
    status = os.open("/proc/self/status", os.O_RDONLY)  # runs for each job, so it must be fast
    try:
        return os.read(status, 4096).partition(b"\nUmask:")[2].split(None, 1)[0].decode()
    finally:
        os.close(status)


def _limit_variables(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the soft resource limits that slurm.conf propagates."""
    named = config.get("PropagateResourceLimits", "ALL")
    for variable, number in _propagated_limits(
        named, config.get("PropagateResourceLimitsExcept", "")
    ):
        soft, _ = resource.getrlimit(number)
        yield variable, str(soft % 2**64)  # unlimited is -1


@lru_cache(maxsize=8)
def _propagated_limits(named: str, but: str) -> tuple[tuple[str, int], ...]:
    """Return the variable and number of each limit in `named`, or of all but those in `but`."""
    names, excepted = _setting_words(named), _setting_words(but)
    return tuple(
        (f"SLURM_RLIMIT_{name}", number)
        for name, number in _RESOURCE_LIMITS.items()
        if (name not in excepted if excepted else names & {name, "ALL"})
    )


def _setting_words(value: str) -> set[str]:
    return set(value.upper().split(",")) - {"", "(NULL)"}


def _launcher_variables(config: Mapping[str, str]) -> dict[str, str]:
    """Return variables for MPI launchers, which start their processes with srun."""
    variables = dict(_LAUNCHER_VARIABLES)
    off = "disable_slurm_hydra_bootstrap" in config.get("MpiParams", "")
    for bootstrap, arguments in _HYDRA_VARIABLES.items():
        if os.environ.get(bootstrap, "" if off else "slurm") == "slurm":
            variables |= {bootstrap: "slurm", arguments: "--external-launcher"}
    return variables
