"""The nodes as they are now: their state, what of them is in use, and by which jobs."""

from __future__ import annotations

import io
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from slurmkit.capabilities import text as slurm_text
from slurmkit.capabilities.model import Node
from slurmkit.capabilities.read import parse_node
from slurmkit.errors import SlurmError
from slurmkit.nodes.gresuse import GresUse, parse_uses
from slurmkit.nodes.holders import Holder, read_holders
from slurmkit.slurm import Slurm

# `Reason=bad DIMM [root@1795214412]`; the words are an administrator's and may hold anything.
_REASON = re.compile(
    r"\sReason=(?P<words>.*) \[(?P<by>[^\s\[\]@]+)@(?P<since>[^\s\[\]]+)\]", re.DOTALL
)
_NODE = "NodeName="  # begins a node's record
_SECONDS = 60.0  # for scontrol to answer
_DOWN = frozenset("DOWN FAIL FAILING FUTURE INVAL INVALID_REG NOT_RESPONDING UNKNOWN".split())
_AWAY = {
    "MAINT": "reserved",
    "MAINTENANCE": "reserved",
    "RESERVED": "reserved",
    "POWERING_DOWN": "powering down",
    "REBOOT_ISSUED": "rebooting",
    "BLOCKED": "blocked by the topology",
}


class GpuCount(msgspec.Struct, frozen=True, gc=False):
    """GPUs of one type on a node; type None where the node does not name one."""

    type: str | None
    total: int
    used: int


class Parts(msgspec.Struct, frozen=True, gc=False):
    """Shards or MPS of a node; used is None where the Slurm release does not say."""

    total: int
    used: int | None


class NodeRow(Node, frozen=True, kw_only=True, gc=False):
    """A node's shape, and what of it is in use.

    Attributes:
        reason_by: who set the reason, None when Slurm does not say.
        reason_since: epoch seconds at which it was set.
        cpus_allocated: CPUs held by jobs.
        memory_allocated: MiB held by jobs, 0 where memory is not a consumable resource.
        load: of its operating system; None when unknown.
        gpus: whole GPUs and MIG slices by type.
        shards: None for a node without; so `mps`.
        uses: generic resources in use, as Slurm details them.
        tracked: generic TRES of it that are accounted: `gres/gpu`, `gres/gpu:a100`.
        jobs: ids of the jobs on it.
    """

    reason_by: str | None = None
    reason_since: int | None = None
    cpus_allocated: int = 0
    memory_allocated: int = 0
    load: float | None = None
    gpus: tuple[GpuCount, ...] = ()
    shards: Parts | None = None
    mps: Parts | None = None
    uses: tuple[GresUse, ...] = ()
    tracked: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Base state with its flags, as Slurm writes it: `IDLE+DRAIN`."""
        return "+".join(self.states)

    @property
    def kind(self) -> str:
        """One word for it: `down`, `drained`, or the base state: `idle`, `mixed`, `allocated`."""
        if _DOWN & set(self.states):
            return "down"
        return self.states[0].lower() if self.usable else "drained"

    @property
    def why_closed(self) -> str | None:
        """Why no further job of anybody's can start on it now, or None when one can."""
        if not self.usable:
            return self.kind
        if away := next((_AWAY[state] for state in self.states if state in _AWAY), None):
            return away
        if not self.partitions:
            return "in no partition"
        if self.cpus_allocated >= self.cpus:
            return "no CPU left"
        return "no memory left" if self.memory_allocated >= self.memory else None


class NodesSnapshot(msgspec.Struct, frozen=True):
    """All nodes at one time.

    Attributes:
        rows: in Slurm's order.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long that and parsing took.
    """

    rows: tuple[NodeRow, ...]
    taken: float
    seconds: float


def read_nodes(slurm: Slurm) -> NodesSnapshot:
    """Ask slurmctld for all nodes and for the jobs on them, in two RPCs; read as it is printed.

    Raises:
        SlurmError: when it does not answer or its answer cannot be read.
    """
    taken, started = time.time(), time.perf_counter()
    with ThreadPoolExecutor(1) as pool:  # squeue runs meanwhile
        holders = pool.submit(read_holders, slurm)
        rows = read_rows(slurm.stream(NODES_ASKED, timeout=_SECONDS))
    rows = with_jobs(rows, holders.result())
    return NodesSnapshot(rows, taken, time.perf_counter() - started)


NODES_ASKED: Sequence[str] = ("scontrol", "--all", "--details", "--oneliner", "show", "node")


def with_jobs(rows: Iterable[NodeRow], holders: Iterable[Holder]) -> tuple[NodeRow, ...]:
    """Name the jobs on each node."""
    on: dict[str, list[str]] = defaultdict(list)
    for holder in holders:
        for node in holder.nodes:
            on[node].append(holder.job_id)
    replace = msgspec.structs.replace
    return tuple(replace(row, jobs=tuple(on[row.name])) if row.name in on else row for row in rows)


def parse_rows(text: str) -> tuple[NodeRow, ...]:
    """Read `scontrol --details --oneliner show node`.

    Raises:
        SlurmError: when it is something else.
    """
    return read_rows(io.StringIO(text, newline="\n"))


def read_rows(lines: Iterable[str]) -> tuple[NodeRow, ...]:
    """Read it while it arrives, line ends kept.

    Raises:
        SlurmError: when it is something else.
    """
    try:
        return tuple(map(_row, _records(lines)))
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed a node that cannot be read: {error}") from error


def _records(lines: Iterable[str]) -> Iterator[str]:
    """One after another; a reason may hold line ends, so that a record spans lines."""
    record = ""
    for line in lines:
        if line.startswith(_NODE):
            if record:
                yield record
            record = line
        elif record:
            record += line
    if record:
        yield record


def _row(record: str) -> NodeRow:
    found = slurm_text.pairs(record)
    node = parse_node(found)
    reason = _REASON.search(record)
    used = slurm_text.tres(found.get("AllocTRES"))
    uses = parse_uses(slurm_text.optional(found.get("GresUsed")) or "")
    shape = {name: getattr(node, name) for name in node.__struct_fields__}
    return NodeRow(
        **shape | ({"reason": reason["words"].strip()} if reason else {}),
        reason_by=reason["by"] if reason else None,
        reason_since=_number(reason["since"]) if reason else None,
        cpus_allocated=int(found.get("CPUAlloc", 0)),
        memory_allocated=int(found.get("AllocMem", 0)),
        load=_load(found.get("CPULoad")),
        gpus=_gpus(node, uses),
        shards=_parts(node, "shard", uses, used.get("gres/shard")),
        mps=_parts(node, "mps", uses, used.get("gres/mps")),
        uses=uses,
        tracked=tuple(n for n in slurm_text.tres(found.get("CfgTRES")) if n.startswith("gres/")),
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _load(text: str | None) -> float | None:
    optional = slurm_text.optional(text)
    return float(optional) if optional else None


def _gpus(node: Node, uses: Iterable[GresUse]) -> tuple[GpuCount, ...]:
    used: dict[str | None, int] = defaultdict(int)
    for use in uses:
        if use.name == "gpu":
            used[use.type] += use.count
    total: dict[str | None, int] = defaultdict(int)
    for gres in node.gres:
        if gres.name == "gpu":
            total[gres.type] += gres.count
    return tuple(GpuCount(type_, count, used[type_]) for type_, count in total.items())


def _parts(node: Node, name: str, uses: Iterable[GresUse], tracked: int | None) -> Parts | None:
    """Slurm 22.05 says how many GPUs are shared, not how much of them; AllocTRES may say it."""
    if not (total := node.count(name)):
        return None
    own = [use for use in uses if use.name == name]
    if all(use.parts is not None or not use.count for use in own):
        return Parts(total, sum(use.count for use in own))
    return Parts(total, tracked)
