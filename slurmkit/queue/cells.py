"""What a row of the queue says on a screen: the same cells in the command line and in the TUI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmkit.queue.rows import QueueRow
from slurmkit.text import printable
from slurmkit.tres import gpu_parts

COLUMNS = tuple("JOBID USER ACCOUNT PARTITION STATE TIME LIMIT NODES GPUS WHERE NAME".split())
NUMERIC = frozenset({"TIME", "LIMIT", "NODES", "GPUS"})


def cells(row: QueueRow, *, gpus_known: bool) -> tuple[str, ...]:
    """The texts of a row, safe to show, in the order of `COLUMNS`.

    Args:
        row: the job.
        gpus_known: whether the cluster counts GPUs; see `counts_gpus`.
    """
    return safe(
        row.job_id,
        row.user,
        row.account,
        row.partition,
        row.state,
        row.time_used,
        row.time_limit,
        str(row.nodes),
        gpus(row, known=gpus_known),
        where(row.node_list, waiting_for(row)),
        row.name,
    )


def safe(*texts: str) -> tuple[str, ...]:
    """Escape what would not show as itself."""
    return texts if "".join(texts).isprintable() else tuple(map(printable, texts))


def waiting_for(row: QueueRow) -> str:
    """Why a job has no nodes, in Slurm's word; empty for one that has, or that ended without."""
    return "" if row.node_list or (row.ended and row.reason == "None") else row.reason


def where(nodes: str, reasons: str) -> str:
    """Nodes and, in brackets, what is waited for."""
    return " ".join(filter(None, [nodes, f"({reasons})" if reasons else ""]))


def gpus(row: QueueRow, *, known: bool) -> str:
    """Number of GPUs, or `?`: a release that lists no TRES for a pending job counts nothing.

    Parts of GPUs are said as such: `2 shard`, `50 mps`.
    """
    if row.gpus:
        return str(row.gpus)
    parts = parts_in_words(gpu_parts(row.tres))
    return parts or ("0" if known and "=" in row.tres else "?")


def parts_in_words(parts: Mapping[str, int]) -> str:
    """Parts of GPUs by kind: `2 shard`."""
    return ", ".join(f"{count} {kind}" for kind, count in parts.items())


def counts_gpus(rows: Iterable[QueueRow], *, tracked: bool | None) -> bool:
    """Whether a job without GPUs has none, or its cluster only does not count them.

    Args:
        rows: the queue; one with GPUs proves that they are counted.
        tracked: whether AccountingStorageTRES has GPUs; None when that is not known.
    """
    return bool(tracked) or any(row.gpus for row in rows)
