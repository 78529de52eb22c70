"""The nodes now: their state, how much of them is in use, and by which jobs.

They can be selected by partition, name and state, and their facts written as table cells.
"""

from __future__ import annotations

import io
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats import scontrol as slurm_text
from slurmkit.formats.display import format_time
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.capabilities import parse_node
from slurmkit.state.gres import GresUse, HoldingJob, parse_gres_uses, read_holding_jobs
from slurmkit.state.model import Node, states_that_count

# `Reason=bad DIMM [root@1795214412]`; the text is an administrator's and may hold anything.
_REASON = re.compile(
    r"\sReason=(?P<words>.*) \[(?P<by>[^\s\[\]@]+)@(?P<since>[^\s\[\]]+)\]", re.DOTALL
)
_NODE = "NodeName="  # starts a node's record
_SECONDS = 60.0  # timeout of scontrol
_DOWN = frozenset("DOWN FAIL FAILING FUTURE INVAL INVALID_REG NOT_RESPONDING UNKNOWN".split())
_UNAVAILABLE = {
    "MAINT": "reserved",
    "MAINTENANCE": "reserved",
    "RESERVED": "reserved",
    "POWER_DOWN": "powering down",  # asked for: no further job gets the node
    "POWERING_DOWN": "powering down",
    "REBOOT_ISSUED": "rebooting",
    "BLOCKED": "blocked by the topology",
}
NODES_COMMAND: Sequence[str] = ("scontrol", "--all", "--details", "--oneliner", "show", "node")
_SHOWN_JOBS = 3
_STATES = tuple(
    "idle mixed allocated completing drained draining down fail maint reserved planned"
    " powered_down powering_up powering_down not_responding blocked cloud reboot_requested".split()
)
_SHORT = {"alloc": "allocated", "comp": "completing", "resv": "reserved", "no_respond": "not_resp"}


class GpuCount(msgspec.Struct, frozen=True, gc=False):
    """GPUs of one type on a node; type is None for untyped GPUs."""

    type: str | None
    total: int
    used: int


class PartCount(msgspec.Struct, frozen=True, gc=False):
    """Shards or MPS of a node; used is None if the Slurm release does not say."""

    total: int
    used: int | None


class NodeRow(Node, frozen=True, kw_only=True, gc=False):
    """A node's hardware, and how much of it is in use.

    Attributes:
        reason_by: who set the reason; None if Slurm does not say.
        reason_since: epoch seconds at which the reason was set.
        cpus_allocated: CPUs held by jobs.
        memory_allocated: MiB held by jobs; 0 if memory is not a consumable resource.
        load: load of the operating system; None if unknown.
        gpus: whole GPUs and MIG slices by type.
        shards: None for a node without shards.
        mps: None for a node without MPS.
        uses: GRES in use, in the detail that Slurm prints.
        tracked: the node's GRES that accounting tracks: `gres/gpu`, `gres/gpu:a100`.
        jobs: ids of the jobs on the node.
    """

    reason_by: str | None = None
    reason_since: int | None = None
    cpus_allocated: int = 0
    memory_allocated: int = 0
    load: float | None = None
    gpus: tuple[GpuCount, ...] = ()
    shards: PartCount | None = None
    mps: PartCount | None = None
    uses: tuple[GresUse, ...] = ()
    tracked: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """Base state with its flags, as Slurm writes it: `IDLE+DRAIN`."""
        return "+".join(self.states)

    @property
    def kind(self) -> str:
        """The state in one word: `down`, `drained`, or the base state, for example `idle`."""
        if _DOWN & states_that_count(self.states):
            return "down"
        return self.states[0].lower() if self.usable else "drained"

    @property
    def why_closed(self) -> str | None:
        """Why no further job can start on the node now; None if one can."""
        if not self.usable:
            return self.kind
        if away := next(
            (_UNAVAILABLE[state] for state in self.states if state in _UNAVAILABLE), None
        ):
            return away
        if not self.partitions:
            return "in no partition"
        if self.cpus_allocated >= self.cpus:
            return "no CPU left"
        return "no memory left" if self.memory_allocated >= self.memory else None


class NodesSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of all nodes.

    Attributes:
        rows: in Slurm's order.
        taken: epoch seconds at which Slurm was asked.
        seconds: how long the commands and parsing took.
    """

    rows: tuple[NodeRow, ...]
    taken: float
    seconds: float


def read_nodes(slurm: SlurmCommands) -> NodesSnapshot:
    """Read all nodes and the jobs on them, in two RPCs; rows are parsed while scontrol prints.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    taken, started = time.time(), time.perf_counter()
    with ThreadPoolExecutor(1) as pool:  # squeue runs in parallel
        holders = pool.submit(read_holding_jobs, slurm)
        rows = parse_node_lines(slurm.stream(NODES_COMMAND, timeout=_SECONDS))
    rows = with_jobs(rows, holders.result())
    return NodesSnapshot(rows, taken, time.perf_counter() - started)


def with_jobs(rows: Iterable[NodeRow], holders: Iterable[HoldingJob]) -> tuple[NodeRow, ...]:
    """Add to each node the ids of the jobs on it."""
    on: dict[str, list[str]] = defaultdict(list)
    for holder in holders:
        for node in holder.nodes:
            on[node].append(holder.job_id)
    replace = msgspec.structs.replace
    return tuple(replace(row, jobs=tuple(on[row.name])) if row.name in on else row for row in rows)


def parse_nodes(text: str) -> tuple[NodeRow, ...]:
    """Parse the output of `scontrol --details --oneliner show node`.

    Raises:
        SlurmError: when it cannot be parsed.
    """
    return parse_node_lines(io.StringIO(text, newline="\n"))


def parse_node_lines(lines: Iterable[str]) -> tuple[NodeRow, ...]:
    """Parse the same output while it arrives.

    Args:
        lines: the output, with line ends.

    Raises:
        SlurmError: when it cannot be parsed.
    """
    try:
        return tuple(map(_parse_record, _records(lines)))
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed a node that cannot be read: {error}") from error


def _records(lines: Iterable[str]) -> Iterator[str]:
    """Yield the records one by one; a reason may hold line ends, so a record may span lines."""
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


def _parse_record(record: str) -> NodeRow:
    values = slurm_text.parse_pairs(record)
    node = parse_node(values)
    reason = _REASON.search(record)
    since = reason["since"] if reason else ""
    load = slurm_text.optional(values.get("CPULoad"))
    used = slurm_text.parse_tres_counts(values.get("AllocTRES"))
    uses = parse_gres_uses(slurm_text.optional(values.get("GresUsed")) or "")
    hardware = {name: getattr(node, name) for name in node.__struct_fields__}
    return NodeRow(
        **hardware | ({"reason": reason["words"].strip()} if reason else {}),
        reason_by=reason["by"] if reason else None,
        reason_since=int(since) if since.isdigit() else None,
        cpus_allocated=int(values.get("CPUAlloc", 0)),
        memory_allocated=int(values.get("AllocMem", 0)),
        load=float(load) if load else None,
        gpus=_gpus(node, uses),
        shards=_parts(node, "shard", uses, used.get("gres/shard")),
        mps=_parts(node, "mps", uses, used.get("gres/mps")),
        uses=uses,
        tracked=tuple(
            n for n in slurm_text.parse_tres_counts(values.get("CfgTRES")) if n.startswith("gres/")
        ),
    )


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


def _parts(node: Node, name: str, uses: Iterable[GresUse], tracked: int | None) -> PartCount | None:
    """Count shards or MPS. Slurm 22.05 prints the number of shared GPUs; then use AllocTRES."""
    if not (total := node.count(name)):
        return None
    own = [use for use in uses if use.name == name]
    if all(use.parts is not None or not use.count for use in own):
        return PartCount(total, sum(use.count for use in own))
    return PartCount(total, tracked)


def format_load(row: NodeRow) -> str:
    """Format the operating system's load; `?` if unknown."""
    return "?" if row.load is None else f"{row.load:.1f}"


def format_gpu_use(row: NodeRow) -> list[str]:
    """Format used and total GPUs by type, shards and MPS: `a100:2/8`, `shard:3/16`."""
    whole = [f"{gpu.type + ':' if gpu.type else ''}{gpu.used}/{gpu.total}" for gpu in row.gpus]
    parts = (("shard", row.shards), ("mps", row.mps))
    shared = [f"{n}:{'?' if p.used is None else p.used}/{p.total}" for n, p in parts if p]
    return whole + shared


def format_jobs(row: NodeRow) -> str:
    """Format the first jobs on a node, and how many more there are."""
    more = len(row.jobs) - _SHOWN_JOBS
    return " ".join(row.jobs[:_SHOWN_JOBS]) + (f" +{more}" if more > 0 else "")


def format_reason(row: NodeRow) -> str:
    """Format a node's reason, with who set it when."""
    if not row.reason_by:
        return row.reason
    return f"{row.reason} ({row.reason_by}, {format_time(row.reason_since)})"


class NodeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that a node must fulfil together; an empty condition selects every node.

    Attributes:
        partitions: in any of these partitions.
        nodelist: one of these nodes, e.g. `c[1-3],c7`.
        states: in any of these states of sinfo; a prefix is enough: `mix`, `drain`.
    """

    partitions: tuple[str, ...] = ()
    nodelist: str = ""
    states: tuple[str, ...] = ()


def select_nodes(rows: Sequence[NodeRow], choice: NodeChoice) -> tuple[NodeRow, ...]:
    """Return the nodes that fulfil the conditions, in their order.

    Raises:
        BadInput: for a partition, node or state that does not exist, naming those that do.
    """
    all_partitions = list(dict.fromkeys(name for row in rows for name in row.partitions))
    partitions = _known("partition", choice.partitions, all_partitions)
    names = _known("node", _expand(choice.nodelist), [row.name for row in rows])
    states = tuple(_state(word) for word in choice.states)
    return tuple(
        row
        for row in rows
        if (not partitions or partitions & set(row.partitions))
        and (not names or row.name in names)
        and (not states or any(word.startswith(states) for word in _state_names(row)))
    )


def _known(what: str, asked: Iterable[str], existing: Sequence[str]) -> set[str]:
    for name in asked:
        if name not in existing:
            some = ", ".join(existing[:20]) + (", …" if len(existing) > 20 else "")
            raise BadInput(f"there is no {what} {name!r}; there are: {some or 'none'}")
    return set(asked)


def _expand(nodelist: str) -> tuple[str, ...]:
    try:
        return slurm_text.expand_typed_nodes(nodelist) if nodelist else ()
    except ValueError as error:
        raise BadInput(f"{error}; give a list of nodes such as c[1-3],c7") from error


def _state(word: str) -> str:
    asked = _SHORT.get(word.lower(), word.lower())
    if not asked or not any(state.startswith(asked) for state in _STATES):
        raise BadInput(f"{word!r} is not a state of a node; there are: {', '.join(_STATES)}")
    return asked


def _state_names(row: NodeRow) -> tuple[str, ...]:
    """Return the names that select a node's state: one word for the state, then its flags."""
    kind = "draining" if row.kind == "drained" and row.jobs else row.kind
    return (kind, *(flag.lower() for flag in row.states[1:]))
