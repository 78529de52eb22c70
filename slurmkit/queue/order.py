"""Sorting the queue by the names people see."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slurmkit.durations import parse_elapsed
from slurmkit.errors import BadInput
from slurmkit.queue.rows import QueueRow
from slurmkit.tres import gpu_parts

_Key = Callable[[QueueRow], "str | float | None"]
KEYS: dict[str, _Key] = {
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
    "gpus": lambda row: row.gpus or _part(row.tres),
    "where": lambda row: row.node_list or None,
    "priority": lambda row: row.priority,
    "submit": lambda row: row.submitted,
    "start": lambda row: row.started,
    "name": lambda row: row.name,
}


def _part(tres: str) -> float:
    """More than no GPU and less than one, whatever a part of one is here."""
    parts = sum(gpu_parts(tres).values())
    return parts / (parts + 1)


def ordered(rows: Iterable[QueueRow], by: str) -> list[QueueRow]:
    """Sort rows by `KEYS`, e.g. `user,-gpus`; `-` turns a key around, what is unknown comes last.

    Raises:
        BadInput: naming the nearest key for one there is not.
    """
    found = list(rows)
    for word in reversed(by.split(",")):
        descending, name = word.startswith("-"), word.lstrip("-").strip().lower()
        key = KEYS.get(name)
        if key is None:
            raise BadInput(f"--sort {by}: {_advice(name)}")
        _sort(found, key, descending=descending)
    return found


def _sort(rows: list[QueueRow], key: _Key, *, descending: bool) -> None:
    def known_first(row: QueueRow) -> tuple[bool, str | float]:
        value = key(row)
        return ((value is None) != descending, 0 if value is None else value)

    rows.sort(key=known_first, reverse=descending)


def _advice(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a slip of the pen

    near = get_close_matches(name, KEYS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(KEYS)}"
    return f"there is no column {name!r} to sort by; {hint}"
