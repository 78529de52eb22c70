"""What a node says on a screen: the same cells in the command line and in the TUI."""

from __future__ import annotations

from slurmkit.facts import clock
from slurmkit.nodes.read import NodeRow

_SHOWN_JOBS = 3


def gib(mebibytes: int) -> str:
    """Memory in GiB, with three digits."""
    return f"{mebibytes / 1024:.3g}" if mebibytes < 1024 * 100 else f"{mebibytes // 1024}"


def load(row: NodeRow) -> str:
    """Load of its operating system, `?` while unknown."""
    return "?" if row.load is None else f"{row.load:.1f}"


def counted_gpus(row: NodeRow) -> list[str]:
    """GPUs in use of those there are, by type, and the parts of GPUs: `a100:2/8`, `shard:3/16`."""
    whole = [f"{of.type + ':' if of.type else ''}{of.used}/{of.total}" for of in row.gpus]
    parts = (("shard", row.shards), ("mps", row.mps))
    shared = [f"{n}:{'?' if p.used is None else p.used}/{p.total}" for n, p in parts if p]
    return whole + shared


def jobs_on(row: NodeRow) -> str:
    """The first jobs on it, and how many more."""
    more = len(row.jobs) - _SHOWN_JOBS
    return " ".join(row.jobs[:_SHOWN_JOBS]) + (f" +{more}" if more > 0 else "")


def why(row: NodeRow) -> str:
    """Its reason, and who set it when."""
    if not row.reason_by:
        return row.reason
    return f"{row.reason} ({row.reason_by}, {clock(row.reason_since)})"
