"""Slurm's way of writing a time limit."""

from __future__ import annotations

import re

from slurmkit.errors import BadInput

_FORMS = "minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]"
# Slurm keeps minutes in 32 bits, the last two values of which mean no limit.
_LONGEST = (2**32 - 3) * 60
_ENDLESS = ("UNLIMITED", "INFINITE", "-1")
_LIMIT = re.compile(
    r"(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)"
    r"|(?P<m>\d+)(?::(?P<s>\d+))?)"
)


def parse_time_limit(text: str) -> int:
    """Seconds in a Slurm time limit, by the forms of sbatch(1) `--time`.

    Raises:
        BadInput: for any other form, and for zero, which Slurm takes as no limit at all.
    """
    match = _LIMIT.fullmatch("0" if text.strip().upper() in _ENDLESS else text.strip())
    if match is None:
        raise BadInput(f"time limit {text!r} is not one of Slurm's forms: {_FORMS}")
    part = {name: int(value or 0) for name, value in match.groupdict().items()}
    seconds = (
        part["days"] * 86400
        + (part["dh"] + part["h"]) * 3600
        + (part["dm"] + part["hm"] + part["m"]) * 60
        + part["ds"]
        + part["hs"]
        + part["s"]
    )
    if seconds > _LONGEST:
        raise BadInput(f"time limit {text!r} is more than Slurm can hold")
    if seconds == 0:
        raise BadInput(
            f"time limit {text} would mean no limit; give the time the job needs, e.g. 1:00:00"
        )
    return seconds


def parse_elapsed(text: str) -> int | None:
    """Seconds in a time as squeue prints it: `1-02:03:04`, `2:03`, `0:00`.

    None for what is no time: UNLIMITED, Partition_Limit, NOT_SET, INVALID.
    """
    days, dash, clock = text.rpartition("-")
    try:
        seconds = 0
        for part in clock.split(":"):
            seconds = seconds * 60 + int(part)
        return seconds + int(days) * 86400 if dash else seconds
    except ValueError:
        return None


def as_squeue_does(text: str) -> str:
    """A time as sacct prints it, `00:02:03`, in squeue's form, `2:03`; what is none is left."""
    seconds = parse_elapsed(text)
    return text if seconds is None else format_duration(seconds)


def format_duration(seconds: int) -> str:
    """Write seconds as squeue does: `M:SS`, `H:MM:SS` or `D-HH:MM:SS`."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"
