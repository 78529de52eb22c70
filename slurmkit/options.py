"""Sbatch's options as text, and the fields of a JobSpec they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from slurmkit.errors import BadInput
from slurmkit.gpuasks import agreed
from slurmkit.gpus import Gpus, Per
from slurmkit.spec import JobSpec, option
from slurmkit.valueforms import FORMS, check_passed_through

Pairs = Iterable[tuple[str, str]]

_NUMBERS = (
    *("nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "segment", "nice"),
    "array_throttle",
)
GPU_OPTIONS: dict[str, Per] = {"gpus": "job", "gpus-per-node": "node", "gpus-per-task": "task"}
"""Options that ask for GPUs, and what their count is for."""
_FLAGS: dict[str, tuple[str, Any]] = {
    "hold": ("hold", True),
    "requeue": ("requeue", True),
    "no-requeue": ("requeue", False),
}
_ASKED = "GPUs as each option asks for them"  # no field: until all options are read
ASIDES = ("wait", "quiet", "parsable", "verbose", "ignore-pbs")
"""Options that sbatch takes in a script, too, and that are about sbatch, not the job."""
_TABLES = ("options", "environment")
_ALIASES = {"tasks-per-node": "ntasks-per-node"}
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


def long_name(letter: str) -> str:
    """The long option of a one-letter one, e.g. `nodes` of `N`.

    Raises:
        BadInput: for a letter that sbatch does not know or that is not modelled.
    """
    if letter not in _SHORT:
        raise BadInput(f"-{letter} is not understood here; write the long option")
    return _SHORT[letter]


def letters() -> dict[str, str]:
    """The one-letter options of sbatch by their long ones, e.g. `N` of `nodes`."""
    return {name: letter for letter, name in _SHORT.items()}


def needs_value(name: str) -> bool:
    """Whether an option must have a value; `exclusive` and `nice` may, and unknown ones too."""
    return name == "gpu-bind" or (is_modelled(name) and not is_flag(name))


def is_modelled(name: str) -> bool:
    """Whether an option has a field of its own in a JobSpec."""
    known = _ALIASES.get(name, name).replace("-", "_")
    return name in GPU_OPTIONS or name in _FLAGS or known in _NUMBERS or known in FORMS


def is_flag(name: str) -> bool:
    """Whether a word after an option is not its value: some have one only after `=`."""
    return name in _FLAGS or name in ("exclusive", "nice") or name in ASIDES


def read_options(pairs: Pairs, weaker: dict[str, Any] | None = None) -> dict[str, Any]:
    """Fields of a JobSpec from long options and their values; a flag's value is empty.

    What is not modelled goes to `options`.

    Args:
        pairs: options and values.
        weaker: fields from elsewhere: the GPUs that a `--gpu-bind` alone is for, and the sizes of
            the job with which several options for GPUs must agree.

    Raises:
        BadInput: naming the option.
    """
    fields: dict[str, Any] = {}
    for name, value in pairs:
        _read(fields, name, value)
    if asked := fields.pop(_ASKED, None):
        gpus, sizes = agreed(asked, {**(weaker or {}), **fields})
        fields |= {"gpus": gpus, **sizes}
    if bind := fields.pop("gpu_bind", None):
        bound = fields.get("gpus") or (weaker or {}).get("gpus")
        if bound is None:
            raise BadInput("--gpu-bind needs GPUs; add e.g. --gpus-per-node=2")
        fields["gpus"] = msgspec.structs.replace(bound, bind=bind)
    return fields


def merged(weaker: dict[str, Any], stronger: dict[str, Any]) -> dict[str, Any]:
    """Fields of a JobSpec from two places; of options and variables each is taken for itself."""
    both = {name: {**weaker[name], **stronger[name]} for name in _TABLES if name in weaker
            and name in stronger}  # fmt: skip
    return {**weaker, **stronger, **both}


def _read(fields: dict[str, Any], name: str, value: str) -> None:
    name = _ALIASES.get(name, name)
    known = name.replace("-", "_")
    if name in GPU_OPTIONS:
        _set_gpus(fields, Gpus.parse(value, GPU_OPTIONS[name]), name)  # of two the last counts
    elif name in _FLAGS:
        if value:
            raise BadInput(f"--{name} takes no value here, and was given {value!r}")
        field, meaning = _FLAGS[name]
        fields[field] = meaning
    elif name == "gres":
        _read_gres(fields, value)
    elif name == "exclusive":
        fields["exclusive"] = value or True
    elif name == "nodes":
        fields[known] = _nodes(value)
    elif known in _NUMBERS:
        fields[known] = _number(name, value)
    elif known in FORMS or name == "gpu-bind":
        fields[known] = value
    else:
        check_passed_through(name, value)
        fields.setdefault("options", {})[name] = value


def _number(name: str, value: str) -> int:
    if name == "nice" and not value:
        return _NICE
    if not _INTEGER.fullmatch(value):
        raise BadInput(f"--{name} is a whole number, not {value!r}")
    return int(value)


def _nodes(value: str) -> int | str:
    """One number, also of `2-2` and `1k`, or a range (str_to_nodes of sbatch)."""
    text = _THOUSANDS.sub(lambda k: str(int(k[1]) * _TIMES[k[2].lower()]), value)
    least, _, most = text.partition("-")
    return _number("nodes", least) if most in ("", least) and "," not in text else text


def _read_gres(fields: dict[str, Any], value: str) -> None:
    """GPUs and their parts are modelled; other generic resources stay as they are."""
    items = value.split(",")
    ours = [item for item in items if re.match(r"(gres[:/])?(gpu|shard|mps)(:|$)", item)]
    rest = ",".join(item for item in items if item not in ours)
    for item in ours:
        if item is not ours[0]:
            raise BadInput(f"--gres={value}: a job has GPUs of one kind, asked for once")
        _set_gpus(fields, _gres_gpus(re.sub(r"^gres[:/]", "", item)), "gres")
    if rest:
        fields["gres"] = rest


def _gres_gpus(words: str) -> Gpus:
    kind, _, amount = words.partition(":")
    if kind == "gpu":
        return Gpus.parse(amount or "1")
    name, typed, count = amount.rpartition(":")
    if typed:  # `shard:h100:3`: the type is kept apart, since Slurm cannot run such a step
        return msgspec.structs.replace(Gpus.parse(f"{kind}:{count}"), type=name)
    return Gpus.parse(f"{kind}:{amount or 1}")


def _set_gpus(fields: dict[str, Any], gpus: Gpus, name: str) -> None:
    fields.setdefault(_ASKED, {})[name] = gpus


def with_options(spec: JobSpec, pairs: Pairs) -> JobSpec:
    """The spec with some options given anew; an empty value takes one away.

    This is how the `fix` of a finding is applied.

    Raises:
        BadInput: when the result is not a valid spec.
    """
    changed = list(pairs)
    if passed := [n for n, value in changed if not value and n in spec.options]:
        kept = {n: value for n, value in spec.options.items() if n not in passed}
        spec = msgspec.structs.replace(spec, options=kept)
        changed = [pair for pair in changed if pair[0] not in passed]
    gone = {_field(name): None for name, value in changed if not value and name not in _FLAGS}
    given = read_options((name, value) for name, value in changed if value or name in _FLAGS)
    if "gpus" in given and spec.gpus and not (given["gpus"].bind or given["gpus"].is_part):
        given["gpus"] = msgspec.structs.replace(given["gpus"], bind=spec.gpus.bind)
    fields = {**{name: getattr(spec, name) for name in spec.__struct_fields__}, **gone}
    return JobSpec(**merged(fields, given))


def _field(name: str) -> str:
    return "gpus" if name in GPU_OPTIONS else name.replace("-", "_")


def option_values(spec: JobSpec) -> dict[str, str]:
    """Long options and values of all fields but those of GPUs, which depend on the cluster."""
    values: dict[str, object] = {}
    for name in _ORDER:
        values[name.replace("_", "-")] = getattr(spec, name)
    values["requeue"] = "" if spec.requeue else None
    values["no-requeue"] = "" if spec.requeue is False else None
    values["hold"] = "" if spec.hold else None
    values["exclusive"] = "" if spec.exclusive is True else spec.exclusive or None
    values |= dict(sorted(spec.options.items()))
    return {name: str(value) for name, value in values.items() if value is not None}


# The order of the lines in a script.
_ORDER = (
    "job_name nodes ntasks ntasks_per_node cpus_per_task gres mem mem_per_cpu mem_per_gpu"
    " time time_min partition account qos reservation constraint licenses nodelist exclude"
    " exclusive switches segment array dependency begin deadline nice signal mail_type mail_user"
    " comment chdir output error open_mode"
).split()

__all__ = [
    "ASIDES",
    "GPU_OPTIONS",
    "is_flag",
    "is_modelled",
    "long_name",
    "merged",
    "needs_value",
    "option",
    "option_values",
    "read_options",
    "with_options",
]
