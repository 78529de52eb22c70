"""Sbatch's options, parsed into fields of a JobSpec and written back as text.

Several GPU options, such as `--gpus` and `--gpus-per-node`, are combined into one request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from slurmkit.errors import BadInput
from slurmkit.spec.gpus import Gpus, Per
from slurmkit.spec.jobspec import JobSpec, node_sizes, option
from slurmkit.spec.option_values import (
    EXPORT_KEYWORDS,
    OPTION_FORMS,
    PASSED_ON_FORMS,
    check_passed_through,
)

__all__ = [
    "GPU_OPTIONS",
    "SBATCH_ONLY_OPTIONS",
    "has_foreign_options",
    "has_own_field",
    "is_flag",
    "long_name",
    "merge_fields",
    "needs_value",
    "option",
    "option_lines",
    "option_values",
    "parse_options",
    "with_options",
]

OptionPairs = Iterable[tuple[str, str]]

_NUMBERS = (
    *("nodes", "ntasks", "ntasks_per_node", "ntasks_per_gpu", "ntasks_per_socket"),
    *("ntasks_per_core", "cpus_per_task", "cpus_per_gpu", "mincpus", "segment", "nice"),
    *("sockets_per_node", "cores_per_socket", "threads_per_core", "array_throttle"),
)
GPU_OPTIONS: dict[str, Per] = {
    "gpus": "job",
    "gpus-per-node": "node",
    "gpus-per-task": "task",
    "gpus-per-socket": "node",
}
"""Options that ask for GPUs, and what they count for; per socket becomes per node."""
_FLAGS: dict[str, tuple[str, Any]] = {
    "hold": ("hold", True),
    "requeue": ("requeue", True),
    "no-requeue": ("requeue", False),
    "overcommit": ("overcommit", True),
    "spread-job": ("spread_job", True),
    "use-min-nodes": ("use_min_nodes", True),
}
_PER_SOCKET = "gpus-per-socket"
_NO_GPUS = re.compile(r"(gpu:|shard:|mps:)?([\w.\-+]+:)?0+", re.ASCII)  # slurmctld gives none
_SOCKETS_CORES_THREADS = ("sockets_per_node", "cores_per_socket", "threads_per_core")
_GPUS_BY_OPTION = (
    "GPUs as each option asks for them"  # a key, not a field, until all options are read
)
SBATCH_ONLY_OPTIONS = ("wait", "quiet", "parsable", "verbose", "ignore-pbs")
"""Options that sbatch also reads from a script, but that concern sbatch, not the job."""
_VALUE_ONLY_AFTER_EQUALS = (
    *("exclusive", "nice", "contiguous", "get-user-env", "no-kill", "oom-kill-step"),
    *("oversubscribe", "propagate", "reboot", "resv-ports", "stepmgr"),
)
_TABLES = ("options", "environment")
_ALIASES = {"tasks-per-node": "ntasks-per-node", "ntasks-per-tres": "ntasks-per-gpu"}
_SHORT = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
_NICE = 100  # sbatch(1) --nice without a number
_THOUSANDS = re.compile(r"(\d{1,9})([km])", re.ASCII | re.IGNORECASE)
_TIMES = {"k": 1024, "m": 1024 * 1024}
_INTEGER = re.compile(r"-?\d{1,9}", re.ASCII)
_AT_LEAST = re.compile(r"([1-9]\d{0,8})(-[1-9]\d{0,8})?", re.ASCII)  # of a range, the least
_EXPORTED = re.compile(r"""((?:[^,'"]|'[^']*'|"[^"]*")*)(?:,|$)""")
_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)

# The order of the lines in a script.
_OPTION_ORDER = (
    "job_name nodes ntasks ntasks_per_node ntasks_per_gpu ntasks_per_socket ntasks_per_core"
    " cpus_per_task cpus_per_gpu mincpus sockets_per_node cores_per_socket threads_per_core hint"
    " gres mem mem_per_cpu mem_per_gpu tmp time time_min partition account qos reservation"
    " constraint licenses nodelist exclude exclusive switches segment array dependency begin"
    " deadline nice signal mail_type mail_user comment chdir output error open_mode"
).split()
_SIZES = ("nodes", "ntasks", "ntasks_per_node")


def long_name(letter: str) -> str:
    """Return the long option of a one-letter option, e.g. `nodes` for `N`.

    Raises:
        BadInput: for a letter that sbatch or slurmkit does not know.
    """
    if letter not in _SHORT:
        raise BadInput(f"slurmkit does not know -{letter}; write the long option")
    return _SHORT[letter]


def short_options() -> dict[str, str]:
    """Return sbatch's one-letter options by long option, e.g. `N` for `nodes`."""
    return {name: letter for letter, name in _SHORT.items()}


def needs_value(name: str) -> bool:
    """Tell whether an option must have a value; for `exclusive`, `nice` and unknown ones it may."""
    valued = has_own_field(name) or name in PASSED_ON_FORMS or name == "export"
    return name in ("gpu-bind", "extra-node-info") or (valued and not is_flag(name))


def has_own_field(name: str) -> bool:
    """Tell whether an option has a field of its own in a JobSpec."""
    known = _ALIASES.get(name, name).replace("-", "_")
    return name in GPU_OPTIONS or name in _FLAGS or known in _NUMBERS or known in OPTION_FORMS


def is_flag(name: str) -> bool:
    """Tell whether an option never takes the next word as its value; some take one after `=`."""
    return name in (*_FLAGS, *_VALUE_ONLY_AFTER_EQUALS, *SBATCH_ONLY_OPTIONS)


def parse_options(pairs: OptionPairs, weaker: dict[str, Any] | None = None) -> dict[str, Any]:
    """Parse long options and their values into fields of a JobSpec; a flag's value is empty.

    Options without a field of their own go to `options`.

    Args:
        pairs: options and values.
        weaker: fields from elsewhere: GPUs for a `--gpu-bind` without any, and job sizes that
            several GPU options must agree with.

    Raises:
        BadInput: naming the option.
    """
    fields: dict[str, Any] = {}
    for name, value in pairs:
        _parse_option(fields, name, value)
    by_option: dict[str, Gpus | None] = fields.pop(_GPUS_BY_OPTION, {})
    asked = {name: gpus for name, gpus in by_option.items() if gpus is not None}
    if by_option and not asked:  # `--gpus=0` also takes back the GPUs of a script
        fields["gpus"] = None
    elif asked:
        if _PER_SOCKET in asked:
            sockets = {**(weaker or {}), **fields}.get("sockets_per_node")
            asked[_PER_SOCKET] = _on_sockets(asked[_PER_SOCKET], sockets)
        gpus, sizes = combine_gpu_options(asked, {**(weaker or {}), **fields})
        fields |= {"gpus": gpus, **sizes}
    if bind := fields.pop("gpu_bind", None):
        bound = fields.get("gpus") or (weaker or {}).get("gpus")
        if bound is None:
            raise BadInput("--gpu-bind needs GPUs; add e.g. --gpus-per-node=2")
        fields["gpus"] = msgspec.structs.replace(bound, bind=bind)
    return fields


def merge_fields(weaker: dict[str, Any], stronger: dict[str, Any]) -> dict[str, Any]:
    """Merge fields of a JobSpec; `options` and `environment` are merged name by name."""
    both = {name: {**weaker[name], **stronger[name]} for name in _TABLES if name in weaker
            and name in stronger}  # fmt: skip
    return {**weaker, **stronger, **both}


def _parse_option(fields: dict[str, Any], name: str, value: str) -> None:
    name = _ALIASES.get(name, name)
    known = name.replace("-", "_")
    if name in _READERS:
        _READERS[name](fields, value)
    elif name in GPU_OPTIONS:
        words = _with_colon(value)
        gpus = None if _NO_GPUS.fullmatch(words) else Gpus.parse(words, GPU_OPTIONS[name])
        _set_gpus(fields, gpus, name)  # the last one counts
    elif name == "requeue" and value:
        fields[known] = value
    elif name in _FLAGS:
        if value:
            raise BadInput(f"--{name} takes no value here; leave {value!r} out")
        field, meaning = _FLAGS[name]
        fields[field] = meaning
    elif name == "exclusive":
        fields["exclusive"] = value or True
    elif name == "nodes":
        fields[known] = _parse_nodes(value)
    elif known in _NUMBERS:
        fields[known] = _parse_number(name, value)
    elif known in OPTION_FORMS or name == "gpu-bind":
        fields[known] = value
    else:
        check_passed_through(name, value)
        fields.setdefault("options", {})[name] = value


def _parse_number(name: str, value: str) -> int:
    if name == "nice" and not value:
        return _NICE
    if not _INTEGER.fullmatch(value):
        raise BadInput(f"--{name} must be a whole number, not {value!r}")
    return int(value)


def _parse_nodes(value: str) -> int | str:
    """Parse one number, also as `2-2` or `1k`, or a range (str_to_nodes of sbatch)."""
    text = _THOUSANDS.sub(lambda k: str(int(k[1]) * _TIMES[k[2].lower()]), value)
    least, _, most = text.partition("-")
    return _parse_number("nodes", least) if most in ("", least) and "," not in text else text


def _parse_extra_node_info(fields: dict[str, Any], value: str) -> None:
    """Parse `-B SOCKETS[:CORES[:THREADS]]`; each is a number, a range or `*` for any."""
    parts = value.split(":")
    numbers = {name: _AT_LEAST.fullmatch(part) for name, part in zip(_SOCKETS_CORES_THREADS, parts,
               strict=False)}  # fmt: skip
    wrong = (part for part in parts if part != "*" and not _AT_LEAST.fullmatch(part))
    if len(parts) > len(_SOCKETS_CORES_THREADS) or next(wrong, None) is not None:
        raise BadInput(
            f"--extra-node-info {value!r} is not SOCKETS[:CORES[:THREADS]], e.g. 2:16 or '*:*:1'"
        )
    fields |= {name: int(number[1]) for name, number in numbers.items() if number}


def _parse_export(fields: dict[str, Any], value: str) -> None:
    """Read `--export` into variables of the job, and into names or a keyword that are passed on.

    A value never goes into an option: Slurm shows options to everybody. A job that gets only some
    variables also gets the user's login environment (`--export=NONE`, sbatch(1)).
    """
    items = [_without_quotes(item) for item in _EXPORTED.findall(value) if item]
    keywords = [item.upper() for item in items if item.upper() in EXPORT_KEYWORDS]
    pairs = dict(item.split("=", 1) for item in items if "=" in item)
    names = [item for item in items if "=" not in item and item.upper() not in EXPORT_KEYWORDS]
    wrong = [name for name in (*names, *pairs) if not _VARIABLE_NAME.fullmatch(name)]
    alone = len(items) > 1 and set(keywords) - {"ALL"}
    if wrong or alone or not items:
        raise BadInput(
            f"--export={value} is not ALL, NONE, NIL, or [ALL,]NAME[=VALUE],… with names of"
            " variables"
        )
    if pairs:
        fields["environment"] = {**fields.get("environment", {}), **pairs}
    passed = keywords[0] if keywords else ",".join(names) or "NONE"
    fields.setdefault("options", {})["export"] = passed


def _without_quotes(item: str) -> str:
    """Remove the quotes around a whole item, as sbatch does; others are of its value."""
    quoted = len(item) > 1 and item[0] == item[-1] and item[0] in "\"'"
    return item[1:-1] if quoted else item


def _on_sockets(gpus: Gpus, sockets: int | None) -> Gpus:
    """Return the GPUs per node of `--gpus-per-socket`."""
    if not sockets:
        raise BadInput("--gpus-per-socket needs --sockets-per-node, e.g. --sockets-per-node=2")
    if gpus.is_part:
        raise BadInput("ask for a part of a GPU per node: --gpus-per-node")
    return msgspec.structs.replace(gpus, count=gpus.count * sockets, sockets=sockets)


def _parse_gres(fields: dict[str, Any], value: str) -> None:
    """Read GPUs and parts of GPUs into fields; other generic resources stay text."""
    if value.lower() == "none":  # also takes back the resources of a weaker source
        _set_gpus(fields, None, "gres")
        fields["gres"] = None
        return
    items = _with_colon(value).split(",")
    ours = [item for item in items if re.match(r"(gres[:/])?(gpu|shard|mps)(:|$)", item)]
    rest = ",".join(item for item in items if item not in ours)
    for item in ours:
        if item is not ours[0]:
            raise BadInput(f"--gres={value}: a job has one kind of GPUs; name GPUs only once")
        words = re.sub(r"^gres[:/]", "", item)
        _set_gpus(fields, None if _NO_GPUS.fullmatch(words) else _parse_gres_gpus(words), "gres")
    if rest:
        fields["gres"] = rest


def _with_colon(gres: str) -> str:
    """Write `gpu=2` as `gpu:2`, which means the same and which all releases take."""
    return re.sub(r"=(?=\d)", ":", gres)


def _parse_gres_gpus(words: str) -> Gpus:
    kind, _, amount = words.partition(":")
    if kind == "gpu":
        return Gpus.parse(amount or "1")
    name, typed, count = amount.rpartition(":")
    if typed:  # `shard:h100:3`: a later check refuses the type; Slurm cannot run such a step
        return msgspec.structs.replace(Gpus.parse(f"{kind}:{count}"), type=name)
    return Gpus.parse(f"{kind}:{amount or 1}")


_READERS: dict[str, Callable[[dict[str, Any], str], None]] = {
    "export": _parse_export,
    "extra-node-info": _parse_extra_node_info,
    "gres": _parse_gres,
}


def _set_gpus(fields: dict[str, Any], gpus: Gpus | None, name: str) -> None:
    fields.setdefault(_GPUS_BY_OPTION, {})[name] = gpus


def with_options(spec: JobSpec, pairs: OptionPairs) -> JobSpec:
    """Return the spec with some options replaced; an empty value removes an option.

    The `fix` of a finding is applied with it.

    Raises:
        BadInput: when the result is not a valid spec.
    """
    changed = list(pairs)
    if passed := [n for n, value in changed if not value and n in spec.options]:
        remaining = {n: value for n, value in spec.options.items() if n not in passed}
        spec = msgspec.structs.replace(spec, options=remaining)
        changed = [pair for pair in changed if pair[0] not in passed]
    gone = {_field_name(name): _value_without(name) for name, value in changed if not value}
    given = parse_options((name, value) for name, value in changed if value)
    if given.get("gpus") and spec.gpus and not (given["gpus"].bind or given["gpus"].is_part):
        given["gpus"] = msgspec.structs.replace(given["gpus"], bind=spec.gpus.bind)
    fields = {**{name: getattr(spec, name) for name in spec.__struct_fields__}, **gone}
    return JobSpec(**merge_fields(fields, given))


def _field_name(name: str) -> str:
    return "gpus" if name in GPU_OPTIONS else _FLAGS.get(name, (name.replace("-", "_"),))[0]


def _value_without(name: str) -> bool | None:
    """Return the value of an option's field in a job that is not given the option."""
    return False if name in _FLAGS and _FLAGS[name][0] != "requeue" else None


def option_values(spec: JobSpec) -> dict[str, str]:
    """Return long options and values of all fields except GPUs, which depend on the cluster."""
    values: dict[str, object] = {}
    for name in _OPTION_ORDER:
        values[name.replace("_", "-")] = getattr(spec, name)
    values["requeue"] = "" if spec.requeue is True else spec.requeue or None
    values["no-requeue"] = "" if spec.requeue is False else None
    for flag in ("hold", "overcommit", "spread_job", "use_min_nodes"):
        values[flag.replace("_", "-")] = "" if getattr(spec, flag) else None
    values["exclusive"] = "" if spec.exclusive is True else spec.exclusive or None
    values |= dict(sorted(spec.options.items()))
    return {name: str(value) for name, value in values.items() if value is not None}


def combine_gpu_options(
    by_option: Mapping[str, Gpus], fields: Mapping[str, Any]
) -> tuple[Gpus, dict[str, int]]:
    """Combine GPU options into one request, and compute the job sizes that follow from it.

    Args:
        by_option: option without dashes to its GPUs; at least one.
        fields: of the JobSpec so far.

    Raises:
        BadInput: naming two options that do not agree.
    """
    first, *more = by_option
    counts: dict[Per, int] = {by_option[first].per: by_option[first].count}
    kind = by_option[first]
    for name in more:
        kind = _same_kind(first, kind, name, by_option[name])
        if counts.setdefault(by_option[name].per, by_option[name].count) != by_option[name].count:
            raise _disagreement(by_option, "")
    sizes = {name: fields[name] for name in _SIZES if isinstance(fields.get(name), int)}
    complete = _complete_sizes(counts, sizes) if more else sizes
    if more and not (_adds_up(counts, complete) and _in_range(fields.get("nodes"), complete)):
        raise _disagreement(by_option, _size_options(sizes))
    per = next(each for each in ("node", "task", "job") if each in counts)
    sockets = by_option[_PER_SOCKET].sockets if _PER_SOCKET in by_option else None
    gpus = msgspec.structs.replace(kind, count=counts[per], per=per, sockets=sockets)
    return gpus, {name: size for name, size in complete.items() if name not in sizes}


def per_socket_text(gpus: Gpus) -> str:
    """Return the value of `--gpus-per-socket` for GPUs that are spread over sockets."""
    return str(msgspec.structs.replace(gpus, count=gpus.count // (gpus.sockets or 1), sockets=None))


def _same_kind(name: str, gpus: Gpus, other_name: str, other: Gpus) -> Gpus:
    """Return the GPUs of the option that names a type; both must mean the same type."""
    types = {(g.mig or g.type or "").casefold() for g in (gpus, other)} - {""}
    if gpus.is_part or other.is_part or len(types) > 1:
        raise BadInput(
            f"--{other_name} asks for other GPUs than --{name}: {other} and {gpus}; a job has GPUs"
            " of one kind"
        )
    return gpus if gpus.mig or gpus.type else other


def _complete_sizes(counts: Mapping[Per, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Add the sizes that were not given, as far as the GPU counts determine them."""
    node, task, job = (counts.get(per) for per in ("node", "task", "job"))
    complete = dict(sizes)
    if node and task:  # set although it follows: Slurm might put 3 tasks and 1 on two nodes
        complete.setdefault("ntasks_per_node", node // task)
    if "nodes" in complete and "ntasks_per_node" in complete:
        complete.setdefault("ntasks", complete["nodes"] * complete["ntasks_per_node"])
    if task and job:
        complete.setdefault("ntasks", job // task)
    if node and job:
        complete.setdefault("nodes", job // node)
    if node and task and "ntasks" in complete:
        complete.setdefault("nodes", max(1, complete["ntasks"] * task // node))
    return complete


def _adds_up(counts: Mapping[Per, int], sizes: Mapping[str, int]) -> bool:
    """Tell whether all GPU counts come to the same number of GPUs in the job."""
    node, task, job = (counts.get(per) for per in ("node", "task", "job"))
    nodes, on_each = sizes.get("nodes", 1), sizes.get("ntasks_per_node", 1)
    tasks = sizes.get("ntasks", nodes * on_each)
    in_all = [node * nodes if node else None, task * tasks if task else None, job]
    whole_tasks = not (node and task and node % task)
    return whole_tasks and len({number for number in in_all if number is not None}) == 1


def _in_range(nodes: int | str | None, sizes: Mapping[str, int]) -> bool:
    ends = node_sizes(nodes)
    return not ends or min(ends) <= sizes.get("nodes", min(ends)) <= max(ends)


def _size_options(sizes: Mapping[str, int]) -> str:
    options = " ".join(f"--{name.replace('_', '-')}={size}" for name, size in sizes.items())
    return f" with {options}" if options else ""


def _disagreement(by_option: Mapping[str, Gpus], where: str) -> BadInput:
    words = {
        name: f"gpu:{gpus}" if name == "gres" else str(gpus) for name, gpus in by_option.items()
    }
    if _PER_SOCKET in by_option:
        words[_PER_SOCKET] = per_socket_text(by_option[_PER_SOCKET])
    options = " and ".join(f"--{name}={text}" for name, text in words.items())
    return BadInput(f"{options} do not agree{where}; give one of them, or numbers that agree")


def option_lines(options: Iterable[tuple[str, str]]) -> list[str]:
    """Return the `#SBATCH` lines of options and their values."""
    return [f"#SBATCH --{name}{_directive_value(value)}" for name, value in options]


def has_foreign_options(text: str) -> bool:
    """Return whether sbatch would read PBS or LSF options from a script, over its own."""
    return any(line.startswith(("#PBS", "#BSUB")) for line in text.split("\n"))


def _directive_value(value: str) -> str:
    return f"={_sbatch_quote(value)}" if value else ""


def _sbatch_quote(value: str) -> str:
    """Quote a value for a `#SBATCH` line, which sbatch splits itself (src/sbatch/opt.c)."""
    if value and all(char.isalnum() or char in "%+,-./:=@_" for char in value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
