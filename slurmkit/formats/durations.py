"""Time limits and elapsed times as Slurm writes them."""

from __future__ import annotations

import re

from slurmkit.errors import BadInput

_FORMS = "minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]"
# Slurm keeps minutes in 32 bits, the last two values of which mean no limit.
_LONGEST = (2**32 - 3) * 60
_ENDLESS = ("UNLIMITED", "INFINITE", "-1")
_LIMIT = re.compile(
    r"(?:(?P<days>\d+)-(?:(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?)?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)"
    r"|(?P<m>\d+)(?::(?P<s>\d+))?)"
)
_UNIT = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?)\s*(d(?:ays?)?|h(?:rs?|ours?)?|m(?:ins?|inutes?)?|s(?:ecs?|econds?)?)",
    re.ASCII,
)
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_ELAPSED = re.compile(
    r"(?:(\d{1,18})-)?(?:(?:(\d{1,18}):)?(\d{1,18}):)?(\d{1,18})(?:\.(\d*))?", re.ASCII
)


def parse_time_limit(text: str) -> int:
    """Parse a time limit into seconds, in the forms of sbatch(1) `--time`.

    Raises:
        BadInput: for any other form, and for zero, which Slurm takes as no limit.
    """
    match = _LIMIT.fullmatch("0" if text.strip().upper() in _ENDLESS else text.strip())
    if match is None:
        meant = _parse_units(text)
        forms = f"; write {format_duration(meant)}" if meant else f": {_FORMS}"
        raise BadInput(f"time limit {text!r} is not one of Slurm's forms{forms}")
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
        raise BadInput(f"time limit {text!r} is longer than Slurm can store")
    if seconds == 0:
        raise BadInput(
            f"time limit {text} would mean no limit; give the time the job needs, e.g. 1:00:00"
        )
    return seconds


def _parse_units(text: str) -> int | None:
    """Parse a time such as `2h` or `1 day 12 hours`, which Slurm refuses, into seconds."""
    if not re.fullmatch(rf"(?:\s*{_UNIT.pattern})+\s*", text):
        return None
    parts = _UNIT.findall(text)
    return round(sum(float(number) * _SECONDS[unit[0]] for number, unit in parts))


def parse_elapsed(text: str) -> int | None:
    """Parse a time as squeue prints it into seconds: `1-02:03:04`, `2:03`, `0:00`.

    Returns None for text that is no time: UNLIMITED, Partition_Limit, NOT_SET, INVALID.
    """
    milliseconds = parse_elapsed_milliseconds(text)
    return None if milliseconds is None else milliseconds // 1000


def parse_elapsed_milliseconds(text: str) -> int | None:
    """Parse a time as squeue or sacct prints it, such as `00:02.357`; None for text that is none.

    sacct prints CPU time below a day with milliseconds.
    """
    match = _ELAPSED.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds, fraction = match.groups("0")
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(f"{fraction}000"[:3])


def reformat_elapsed(text: str) -> str:
    """Rewrite sacct's `00:02:03` as squeue's `2:03`; text that is no time stays as it is."""
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


def format_minutes(minutes: float) -> str:
    """Write minutes in the same form, e.g. a time limit as `1-00:00:00`."""
    return format_duration(round(minutes * 60))
