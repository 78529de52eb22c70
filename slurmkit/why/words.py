"""Amounts and times in words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from slurmkit.durations import format_duration

_NAMES = {"cpu": "CPU", "node": "node", "gres/gpu": "GPU", "billing": "billing unit"}


def amount(name: str, value: int) -> str:
    """Say one TRES: `4 a100 GPUs`, `64 GiB memory`."""
    if name == "mem":
        return f"{memory(value)} memory"
    said = resource(name)
    plural = "" if value == 1 or name.startswith(("gres/shard", "gres/mps")) else "s"
    return f"{value} {said}{plural}"


def resource(name: str) -> str:
    """Say the name of a TRES, one of it: `a100 GPU`, `shard`."""
    if name.startswith("gres/gpu:"):
        return f"{name.removeprefix('gres/gpu:')} GPU"
    return _NAMES.get(name, name.removeprefix("gres/"))


def memory(mebibytes: int) -> str:
    """Say an amount of memory given in MiB."""
    for size, unit in ((1024 * 1024, "TiB"), (1024, "GiB")):
        if mebibytes >= size:
            return f"{mebibytes / size:.4g} {unit}"
    return f"{mebibytes} MiB"


def gpus(tres: Mapping[str, int]) -> str:
    """Say what GPUs, shards and MPS a TRES holds, `no GPU` for none."""
    typed = {name: n for name, n in tres.items() if name.startswith("gres/gpu:")}
    rest = tres.get("gres/gpu", 0) - sum(typed.values())
    found = [amount(name, n) for name, n in typed.items() if n]
    found += [amount("gres/gpu", rest)] if rest > 0 else []
    found += [amount(n, tres[n]) for n in ("gres/shard", "gres/mps") if tres.get(n)]
    return ", ".join(found) or "no GPU"


def holding(tres: Mapping[str, int]) -> str:
    """Say what a job holds that others may wait for: its GPUs, else its CPUs and memory."""
    said = gpus(tres)
    if said != "no GPU":
        return said
    return ", ".join(amount(name, tres[name]) for name in ("cpu", "mem") if name in tres) or "?"


def moment(epoch: int | None, now: float) -> str:
    """Say a time of this machine's zone with how far it is: `14:05 (in 0:12:00)`."""
    if epoch is None:
        return "unknown"
    if abs(epoch - now) < 60:
        return "now" if epoch - now > -1 else "just now"
    there = datetime.fromtimestamp(epoch, UTC).astimezone()
    today = there.date() == datetime.fromtimestamp(now, UTC).astimezone().date()
    said = there.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")
    return f"{said} ({distance(epoch - now)})"


def distance(seconds: float) -> str:
    """Say how far off a time is: `in 12 min`, `3 h ago`, `now`."""
    size = abs(seconds)
    if size < 90 * 60:
        said = f"{size / 60:.0f} min"
    else:
        said = f"{size / 3600:.0f} h" if size < 48 * 3600 else f"{size / 86400:.0f} days"
    return f"in {said}" if seconds > 0 else f"{said} ago"


def minutes(value: int) -> str:
    """Say a time limit given in minutes, as Slurm does."""
    return format_duration(value * 60)


def several(names: list[str], most: int = 4) -> str:
    """Say a list, cut after `most`."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def seconds(value: float) -> str:
    """Say a short length of time: `12 s`, `5 min`."""
    return f"{max(0, value):.0f} s" if value < 120 else distance(value).removeprefix("in ")
