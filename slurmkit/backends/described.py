"""A submission as the fields of PySlurm's JobSubmitDescription, where they say exactly the same.

What sbatch makes of its options stands in Slurm's src/common/slurm_opt.c and src/sbatch/opt.c, what
PySlurm makes of its fields in its core/job/submission.pyx: both of 26.05 and 25.11, which
`tests/cluster/test_pyslurm.py` compares job by job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from signal import Signals

from slurmkit.backends.beside import Beside
from slurmkit.durations import parse_time_limit
from slurmkit.errors import BadInput
from slurmkit.planning.script import Options, Submission, has_foreign_options, option_lines

Fields = dict[str, object]

# "Not set" in slurm.h. PySlurm has numbers of its own where a field is not given.
_NO_VAL, _NO_VAL16 = 0xFFFFFFFE, 0xFFFE
# Where sbatch says 0 PySlurm says "not set" or, of an empty list that counts as one, 0.
_ZERO, _EMPTY = ("mail_types", "profile_types"), iter(())
_SIZE = re.compile(r"(\d{1,9})([KMGT]?)B?", re.ASCII | re.IGNORECASE)
_MIB = {"": 1, "M": 1, "G": 1024, "T": 1024 * 1024}
_NODES = re.compile(r"([1-9]\d{0,5})(?:-([1-9]\d{0,5}))?", re.ASCII)
_COUNT = re.compile(r"[1-9]\d{0,4}", re.ASCII)
_GRES = re.compile(r"[A-Za-z_][\w.\-]*(?::[A-Za-z_][\w.\-]*)?:[1-9]\d{0,4}", re.ASCII)
_SIGNAL = re.compile(r"(?:([RB]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@(\d{1,5}))?", re.ASCII)
_MAILS = frozenset("ARRAY_TASKS BEGIN END FAIL REQUEUE STAGE_OUT".split())


class Inexpressible(Exception):
    """Why PySlurm cannot say what is asked for, in words."""


@lru_cache(maxsize=64)  # loops send the same again and again
def described(submission: Submission, beside: Beside) -> Fields:
    """The fields of a submission, without its environment; not to be changed.

    Raises:
        Inexpressible: for what sbatch alone can say.
        BadInput: when its own dependency cannot be joined with that of `beside`.
    """
    if why := _hidden(submission.script, submission.options):
        raise Inexpressible(why)
    options = merged(submission, beside)
    fields: Fields = {"script": submission.script, **dict.fromkeys(_ZERO, _EMPTY)}
    for name, value in options.items():
        fields |= _said(name, value)
    if "hold" in options:  # over --priority
        fields["priority"] = 0
    return fields | _sizes(options) | _gres(options) | _files(options)


def merged(submission: Submission, beside: Beside) -> dict[str, str]:
    """All options of a submission; raises as `Beside.over`."""
    options = dict(submission.options)
    return options | beside.over(options)


def _hidden(script: str, options: Options) -> str | None:
    """Why sbatch would find more in a script than its options say."""
    if [line for line in script.split("\n") if line.startswith("#SBATCH")] != option_lines(options):
        return "its #SBATCH lines say other than its options"
    if has_foreign_options(script) and not any(name == "ignore-pbs" for name, _ in options):
        return "it has options of PBS or LSF"
    return None


def _said(name: str, value: str) -> Fields:
    if name in _ELSEWHERE and value:
        return {}
    if name in _TEXTS and value:
        return {_TEXTS[name]: value}
    known = _READ.get(name)
    found = known(value) if known else None
    if found is None:
        said = f"--{name}={value}" if known and value else f"--{name}"
        raise Inexpressible(f"PySlurm has nothing that says exactly {said}")
    return found


# Set together with others below.
_ELSEWHERE = frozenset(
    "nodes ntasks ntasks-per-node cpus-per-task gres gpus gpus-per-node"
    " chdir output error input".split()
)
_TEXTS = {
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


def _size(field: str) -> Callable[[str], Fields | None]:
    """Of 0, which means all the memory there is, PySlurm makes nothing."""

    def read(value: str) -> Fields | None:
        match = _SIZE.fullmatch(value)
        if match is None:
            return None
        number, unit = int(match[1]), match[2].upper()
        mib = -(-number // 1024) if unit == "K" else number * _MIB[unit]
        return {field: mib} if mib else None

    return read


def _minutes(field: str) -> Callable[[str], Fields | None]:
    def read(value: str) -> Fields | None:
        try:
            return {field: -(-parse_time_limit(value) // 60)}
        except BadInput:  # without an end, or no time
            return None

    return read


def _date(field: str) -> Callable[[str], Fields | None]:
    """Both read it with the same function of libslurm, but PySlurm takes a number for seconds."""
    return lambda value: {field: value} if value and not value.isdigit() else None


def _integer(field: str, least: int) -> Callable[[str], Fields | None]:
    """Of 0 PySlurm makes nothing, where it is not `least`."""

    def read(value: str) -> Fields | None:
        if not re.fullmatch(r"-?\d{1,9}", value, re.ASCII):
            return None
        number = int(value)
        return {field: number} if number >= least and (number or not least) else None

    return read


def _flag(field: str, *, to: object) -> Callable[[str], Fields | None]:
    return lambda value: None if value else {field: to}


def _word(field: str, words: Mapping[str, object]) -> Callable[[str], Fields | None]:
    return lambda value: {field: words[value.lower()]} if value.lower() in words else None


def _signal(value: str) -> Fields | None:
    match = _SIGNAL.fullmatch(value.upper())
    if match is None:
        return None
    flags, name, seconds = match[1] or "", match[2], int(match[3] or 60)
    number = int(name) if name.isdigit() else getattr(Signals, f"SIG{name}", 0)
    if not number or not seconds:  # PySlurm makes 60 seconds of 0
        return None
    at = {"signal": int(number), "time": seconds, "batch_only": "B" in flags}
    return {"signal": at | {"allow_reservation_overlap": "R" in flags}}


def _mail(value: str) -> Fields | None:
    """Of ALL PySlurm knows less than sbatch."""
    words = value.upper().split(",")
    return {"mail_types": words} if _MAILS.issuperset(words) else None


_READ: dict[str, Callable[[str], Fields | None]] = {
    "begin": _date("begin_time"),
    "deadline": _date("deadline"),
    "exclude": lambda value: {"excluded_nodes": value} if "/" not in value else None,
    "exclusive": _word("resource_sharing", {"": "exclusive", "user": "user", "mcs": "mcs"}),
    "export": lambda value: {} if value.upper() == "ALL" else None,
    "hold": _flag("priority", to=0),
    "ignore-pbs": lambda value: None if value else {},  # it is about sbatch
    "kill-on-invalid-dep": _word("kill_on_invalid_dependency", {"yes": True}),
    "mail-type": _mail,
    "mem": _size("memory_per_node"),
    "mem-per-cpu": _size("memory_per_cpu"),
    "nice": _integer("nice", -(2**31) + 3),
    "no-requeue": _flag("is_requeueable", to=False),
    "open-mode": _word("log_files_open_mode", {"append": "append", "truncate": "truncate"}),
    "priority": _integer("priority", 1),
    "signal": _signal,
    "requeue": _flag("is_requeueable", to=True),
    "time": _minutes("time_limit"),
    "time-min": _minutes("time_limit_min"),
}


def _sizes(options: Mapping[str, str]) -> Fields:
    """Nodes, tasks and CPUs, which PySlurm would set to one each where they are not given."""
    least, most = _nodes(options)
    tasks, per_node, cpus = (_count(options, n) for n in ("ntasks", "ntasks-per-node", _CPUS))
    if least and tasks and tasks < most:
        raise Inexpressible("sbatch takes fewer nodes than --nodes for fewer --ntasks")
    if cpus and "mem-per-cpu" in options:
        raise Inexpressible("PySlurm cannot say that --cpus-per-task of --mem-per-cpu was given")
    if not least and tasks and per_node:
        least = -(-tasks // per_node)
    guessed = tasks or (1 if least < most else (least or 1) * (per_node or 1))
    return {
        "nodes": f"{least or _NO_VAL}-{most or _NO_VAL}",
        "ntasks": tasks or _NO_VAL,
        "ntasks_per_node": per_node or _NO_VAL16,
        "cpus_per_task": cpus or _NO_VAL16,
        "min_cpus_per_node": _within(guessed * (cpus or 1)),  # PySlurm sends it as those of the job
    }


_CPUS = "cpus-per-task"


def _nodes(options: Mapping[str, str]) -> tuple[int, int]:
    value = options.get("nodes")
    if value is None:
        return 0, 0
    match = _NODES.fullmatch(value)
    if match is None:
        raise Inexpressible(f"PySlurm has nothing that says exactly --nodes={value}")
    return int(match[1]), int(match[2] or match[1])


def _count(options: Mapping[str, str], name: str) -> int:
    value = options.get(name)
    if value is None:
        return 0
    if not _COUNT.fullmatch(value):
        raise Inexpressible(f"PySlurm has nothing that says exactly --{name}={value}")
    return _within(int(value))


def _within(number: int) -> int:
    if number >= _NO_VAL16:
        raise Inexpressible(f"PySlurm can count to {_NO_VAL16 - 1}, not to {number}")
    return number


def _gres(options: Mapping[str, str]) -> Fields:
    per_node = [*_of_gpus(options.get("gpus-per-node")), *filter(None, [options.get("gres")])]
    in_all = _of_gpus(options.get("gpus"))
    fields = {"gres_per_node": _kinds(per_node), "gpus": _kinds(in_all)}
    return {name: kinds for name, kinds in fields.items() if kinds}


def _of_gpus(said: str | None) -> list[str]:
    return [f"gpu:{each}" for each in said.split(",")] if said else []


def _kinds(said: list[str]) -> dict[str, int]:
    """Each kind's count, by name and type."""
    parts = ",".join(said).split(",") if said else []
    for part in parts:
        if not _GRES.fullmatch(part):
            raise Inexpressible(f"PySlurm has nothing that says exactly {part!r}")
    found = {kind: int(count) for kind, _, count in (part.rpartition(":") for part in parts)}
    if len(found) < len(parts):
        raise Inexpressible(f"PySlurm takes each kind once: {','.join(parts)}")
    return found


def _files(options: Mapping[str, str]) -> Fields:
    """Paths are whole, as sbatch makes them."""
    chdir = options.get("chdir") or os.getcwd()  # noqa: PTH109 - text, as sbatch has it
    if not chdir.startswith("/"):
        raise Inexpressible(f"PySlurm does not make a whole path of --chdir={chdir}")
    fields: Fields = {"working_directory": chdir, "standard_in": "/dev/null"}
    for name, field in _FILES.items():
        if options.get(name):
            file = options[name]
            fields[field] = file if file.startswith("/") else f"{chdir}/{file}"
    return fields


_FILES = {"input": "standard_in", "output": "standard_output", "error": "standard_error"}
