"""Which nodes are meant: by partition, name or state, as sinfo's options have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from slurmkit.errors import BadInput
from slurmkit.nodes.read import NodeRow

_STATES = tuple(
    "idle mixed allocated completing drained draining down fail maint reserved planned"
    " powered_down powering_up powering_down not_responding blocked cloud reboot_requested".split()
)
_SHORT = {"alloc": "allocated", "comp": "completing", "resv": "reserved", "no_respond": "not_resp"}


class NodeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a node must fulfil together; an empty one holds for every node.

    Attributes:
        partitions: in any of these.
        nodelist: one of these, e.g. `c[1-3],c7`.
        states: in any of these, as sinfo names them, by their beginnings: `mix`, `drain`.
    """

    partitions: tuple[str, ...] = ()
    nodelist: str = ""
    states: tuple[str, ...] = ()


def select(rows: Sequence[NodeRow], choice: NodeChoice) -> tuple[NodeRow, ...]:
    """The nodes that are meant, in their order.

    Raises:
        BadInput: for a partition, node or state that does not exist, naming those that do.
    """
    partitions = _known("partition", choice.partitions, _partitions(rows))
    names = _known("node", _expand(choice.nodelist), [row.name for row in rows])
    states = tuple(_state(word) for word in choice.states)
    return tuple(
        row
        for row in rows
        if (not partitions or partitions & set(row.partitions))
        and (not names or row.name in names)
        and (not states or any(word.startswith(states) for word in _words(row)))
    )


def _partitions(rows: Iterable[NodeRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.partitions))


def _known(what: str, asked: Iterable[str], there: Sequence[str]) -> set[str]:
    for name in asked:
        if name not in there:
            some = ", ".join(there[:20]) + (", …" if len(there) > 20 else "")
            raise BadInput(f"there is no {what} {name!r}; there are: {some or 'none'}")
    return set(asked)


def _expand(nodelist: str) -> tuple[str, ...]:
    try:
        return tuple(NodeSet(nodelist or None, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise BadInput(f"{nodelist!r} is no list of nodes such as c[1-3],c7: {error}") from error


def _state(word: str) -> str:
    asked = _SHORT.get(word.lower(), word.lower())
    if not asked or not any(state.startswith(asked) for state in _STATES):
        raise BadInput(f"{word!r} is no state of a node; there are: {', '.join(_STATES)}")
    return asked


def _words(row: NodeRow) -> tuple[str, ...]:
    """What a node's state answers to: one word for the whole, then its flags."""
    kind = "draining" if row.kind == "drained" and row.jobs else row.kind
    return (kind, *(flag.lower() for flag in row.states[1:]))
