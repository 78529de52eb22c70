"""Table cells and sort order of the queue, the same in the command line and in the TUI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit.formats.durations import parse_elapsed
from slurmkit.formats.tres import gpu_parts
from slurmkit.state.queue_rows import QueueRow

QUEUE_COLUMNS = tuple("JOBID USER ACCOUNT PARTITION STATE TIME LIMIT NODES GPUS WHERE NAME".split())
NUMERIC_QUEUE_COLUMNS = frozenset({"TIME", "LIMIT", "NODES", "GPUS"})
_SortKey = Callable[[QueueRow], "str | float | None"]


def queue_cells(row: QueueRow, *, gpus_known: bool) -> tuple[str, ...]:
    """Return the escaped cells of a row, in the order of `QUEUE_COLUMNS`.

    Args:
        row: the job.
        gpus_known: whether the cluster counts GPUs in TRES; see `counts_gpus`.
    """
    return escape_cells(
        row.job_id,
        row.user,
        row.account,
        row.partition,
        row.state,
        row.time_used,
        row.time_limit,
        str(row.nodes),
        format_gpu_count(row, known=gpus_known),
        format_where(row.node_list, pending_reason(row)),
        row.name,
    )


def escape_cells(*texts: str) -> tuple[str, ...]:
    """Escape unprintable characters in texts."""
    return texts if "".join(texts).isprintable() else tuple(map(printable, texts))


def pending_reason(row: QueueRow) -> str:
    """Return the reason why a job has no nodes; empty if it has nodes, or ended without."""
    return "" if row.node_list or (row.ended and row.reason == "None") else row.reason


def format_where(nodes: str, reasons: str) -> str:
    """Format the nodes, and the pending reason in brackets."""
    return " ".join(filter(None, [nodes, f"({reasons})" if reasons else ""]))


def format_gpu_count(row: QueueRow, *, known: bool) -> str:
    """Format the number of GPUs; `?` if the release prints no TRES of a pending job.

    Shards and MPS are named: `2 shard`, `50 mps`.
    """
    if row.gpus:
        return str(row.gpus)
    parts = format_gpu_parts(gpu_parts(row.tres))
    return parts or ("0" if known and "=" in row.tres else "?")


def format_gpu_parts(parts: Mapping[str, int]) -> str:
    """Format shards and MPS: `2 shard`."""
    return ", ".join(f"{count} {kind}" for kind, count in parts.items())


def counts_gpus(rows: Iterable[QueueRow], *, tracked: bool | None) -> bool:
    """Return whether the cluster counts GPUs in TRES, so that a job without them has none.

    Args:
        rows: the queue; a row with GPUs proves that they are counted.
        tracked: whether AccountingStorageTRES has GPUs; None if unknown.
    """
    return bool(tracked) or any(row.gpus for row in rows)


SORT_KEYS: dict[str, _SortKey] = {
    "jobid": lambda row: int(row.raw_id),
    "user": lambda row: row.user,
    "account": lambda row: row.account,
    "partition": lambda row: row.partition,
    "qos": lambda row: row.qos,
    "state": lambda row: row.state,
    "time": lambda row: parse_elapsed(row.time_used),
    "limit": lambda row: parse_elapsed(row.time_limit),
    "nodes": lambda row: row.nodes,
    "cpus": lambda row: row.cpus,
    "gpus": lambda row: row.gpus or _gpu_part_key(row.tres),
    "where": lambda row: row.node_list or None,
    "priority": lambda row: row.priority,
    "submit": lambda row: row.submitted,
    "start": lambda row: row.started,
    "name": lambda row: row.name,
}


def _gpu_part_key(tres: str) -> float:
    """Return a sort key between 0 and 1 for shards and MPS: more than no GPU, less than one."""
    parts = sum(gpu_parts(tres).values())
    return parts / (parts + 1)


def sort_rows(rows: Iterable[QueueRow], by: str) -> list[QueueRow]:
    """Sort rows by `SORT_KEYS`, e.g. `user,-gpus`; `-` reverses a key, unknown values come last.

    Raises:
        BadInput: for an unknown key, naming the nearest one.
    """
    result = list(rows)
    for word in reversed(by.split(",")):
        descending, name = word.startswith("-"), word.lstrip("-").strip().lower()
        key = SORT_KEYS.get(name)
        if key is None:
            raise BadInput(f"--sort {by}: {_advice(name)}")
        _sort(result, key, descending=descending)
    return result


def _sort(rows: list[QueueRow], key: _SortKey, *, descending: bool) -> None:
    def known_first(row: QueueRow) -> tuple[bool, str | float]:
        value = key(row)
        return ((value is None) != descending, 0 if value is None else value)

    rows.sort(key=known_first, reverse=descending)


def _advice(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a misspelt name

    near = get_close_matches(name, SORT_KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(SORT_KEYS)}"
    return f"there is no column {name!r} to sort by; {hint}"
