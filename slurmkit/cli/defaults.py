"""A user's own defaults in the environment: `SBATCH_ACCOUNT` and the like (sbatch(1))."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from slurmkit.errors import BadInput
from slurmkit.findings import Finding
from slurmkit.options import is_modelled, merged, read_options

_PREFIX = "SBATCH_"
_OTHER_NAMES = {
    "ARRAY_INX": "array",
    "MEM_PER_NODE": "mem",
    "REQ_SWITCH": "switches",
    "SEGMENT_SIZE": "segment",
    "TIMELIMIT": "time",
}
_PASSED_ON = (
    "acctg-freq batch core-spec delay-boot distribution gpu-freq gres-flags hint input mem-bind"
    " network profile thread-spec threads-per-core tres-bind wckey"
).split()
_FLAGS = ("no-kill", "no-requeue", "overcommit", "requeue", "spread-job", "use-min-nodes")
_ONE_OF = ("mem", "mem_per_cpu", "mem_per_gpu")
Fields = dict[str, Any]


class Default(msgspec.Struct, frozen=True):
    """One variable, and the fields of a JobSpec it means; None where it is not read."""

    variable: str
    value: str
    fields: Fields | None


def defaults(environ: Mapping[str, str]) -> tuple[Default, ...]:
    """What a user's `SBATCH_*` variables mean; inside a job they are taken for the job's own.

    Raises:
        BadInput: naming the variable whose value sbatch would refuse.
    """
    if "SLURM_JOB_ID" in environ:
        return ()
    names = sorted(name for name in environ if name.startswith(_PREFIX))
    return tuple(Default(name, environ[name], _fields(name, environ[name])) for name in names)


def _fields(variable: str, value: str) -> Fields | None:
    name = variable.removeprefix(_PREFIX)
    option = _OTHER_NAMES.get(name, name.lower().replace("_", "-"))
    if option in _FLAGS or (option == "exclusive" and value == "exclusive"):
        value = ""
    elif not (is_modelled(option) or option in _PASSED_ON):
        return None
    try:
        return read_options([(option, value)])
    except BadInput as error:
        raise BadInput(f"{variable}={value} in the environment: {error}") from error


def weakest(found: tuple[Default, ...], stronger: Fields) -> Fields:
    """The fields of all defaults that `stronger` leaves room for."""
    fields: Fields = {}
    for default in found:
        fields = merged(fields, default.fields or {})
    taken = _ONE_OF if any(name in stronger for name in _ONE_OF) else ()
    return {name: value for name, value in fields.items() if name not in taken}


def notes(found: tuple[Default, ...], script: Fields, stronger: Fields) -> Iterator[Finding]:
    """Which defaults count, and which do not though sbatch would take them.

    Args:
        found: all of them.
        script: fields of a batch script's own lines, over which sbatch takes the environment.
        stronger: fields of everything that goes before the environment.
    """
    for default in found:
        name, what = default.variable, f"{default.variable}={default.value}"
        if default.fields is None:
            yield _note(f"{name} in the environment is not taken over; give the option itself")
        elif not _given(default.fields, stronger):
            yield _note(f"taken from the environment: {what}")
        elif _given(default.fields, script):
            why = "the script's own line goes before it here, not with sbatch"
            yield _note(f"{what} in the environment does not count: {why}")


def _given(fields: Fields, stronger: Fields) -> bool:
    """Whether something stronger says what these fields say."""
    own = fields.get("options", {}).keys()
    names = {name for name in fields if name != "options"}
    if "gpus" in names and "gpus" in stronger:  # which may only have been given a binding
        return bool(msgspec.structs.replace(stronger["gpus"], bind=None) != fields["gpus"])
    excluded = _ONE_OF if names & set(_ONE_OF) else ()
    return bool(own & stronger.get("options", {}).keys()) or any(
        name in stronger for name in (*names, *excluded)
    )


def _note(message: str) -> Finding:
    return Finding(severity="note", code="environment", message=message, source="SBATCH_*")
