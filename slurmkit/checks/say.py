"""The words of findings: amounts with their units, and what Slurm would do."""

from __future__ import annotations

from slurmkit.durations import format_duration
from slurmkit.findings import Finding

Pairs = tuple[tuple[str, str], ...]

_PLURAL = {"cpu": "CPU", "node": "node", "gres/gpu": "GPU", "gres/shard": "shard"}
_HOURS_FROM = 600  # minutes; below, minutes are the easier number


def error(code: str, message: str, source: str, fix: Pairs = ()) -> Finding:
    """A reason not to send the request."""
    return Finding(severity="error", code=code, message=message, source=source, fix=fix)


def warning(code: str, message: str, source: str, fix: Pairs = ()) -> Finding:
    """Something that is likely not meant, or that could not be checked."""
    return Finding(severity="warning", code=code, message=message, source=source, fix=fix)


def note(code: str, message: str, source: str, fix: Pairs = ()) -> Finding:
    """Something worth knowing."""
    return Finding(severity="note", code=code, message=message, source=source, fix=fix)


def amount(tres: str, count: int) -> str:
    """An amount of one TRES: `8 GPUs`, `1 a100 GPU`, `600 GiB of memory`."""
    if tres == "mem":
        return f"{memory(count)} of memory"
    if tres.startswith("gres/gpu:"):
        return f"{count} {tres.removeprefix('gres/gpu:')} GPU{_s(count)}"
    if tres in _PLURAL:
        return f"{count} {_PLURAL[tres]}{_s(count)}"
    return f"{count} of {tres}"


def memory(mebibytes: int) -> str:
    """`600 GiB`, `512 MiB`."""
    for unit, size in (("TiB", 1024 * 1024), ("GiB", 1024)):
        if mebibytes >= size:
            return f"{mebibytes / size:.4g} {unit}"
    return f"{mebibytes} MiB"


def memory_option(mebibytes: int) -> str:
    """A size as `--mem` takes it, in whole G where it can be."""
    whole, rest = divmod(mebibytes, 1024)
    return f"{mebibytes}M" if rest or not whole else f"{whole}G"


def tres_minutes(tres: str, minutes: float) -> str:
    """TRES × time: `90 GPU-minutes`, `480 CPU-hours`."""
    name = _PLURAL.get(tres) or tres.removeprefix("gres/").replace("gpu:", "GPU ")
    name = "MiB of memory" if tres == "mem" else name
    if minutes < _HOURS_FROM:
        return f"{max(minutes, 0):.0f} {name}-minutes"
    return f"{minutes / 60:.0f} {name}-hours"


def wall(minutes: float) -> str:
    """A time in Slurm's form: `1-00:00:00`."""
    return format_duration(round(minutes * 60))


def _s(count: int) -> str:
    return "" if count == 1 else "s"
