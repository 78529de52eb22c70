"""GRES in use: the jobs that hold nodes now, and the GPUs and parts of GPUs held on each node.

A job has only the fields that a map of nodes or GPUs needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, islice

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.formats.scontrol import expand_nodes, iterate_nodes
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import format_options, record_mark, split_records
from slurmkit.state.queue_rows import parse_epoch

_FIELDS = tuple("JobID JobArrayID UserName Account State NodeList StartTime tres-alloc".split())
# Suspended, stopped and completing jobs still hold what they have.
_STATES = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,RESIZING,SIGNALING,STAGE_OUT"

NODES_LINE_START = "     Nodes="
"""Beginning of a line of `scontrol show job --details` with the GRES held on nodes."""
# `     Nodes=c[1-2] CPU_IDs=0 Mem=1024 GRES=gpu:a100:2(IDX:0-1)`
_LINE = re.compile(
    r" {5}Nodes=(?P<nodes>[\w.,\[\]-]+) CPU_IDs=.* GRES=(?P<gres>\S{1,1024})(?:\s|$)"
)

# `gpu:a100:2(IDX:0-1)`, `gpu:2`, `gpu(CNT:2)`, `gpu:(null):1(IDX:3)`, `shard:h100:7(3/4,4/4,-/4)`.
_USE = re.compile(
    r"(?P<name>[^:,()]+)(?::(?P<type>\(null\)|[^:,()]*))??(?::(?P<count>\d+))?"
    r"(?:\((?P<where>[^)]*)\))?(?:,|$)"
)
_SHARED = ("shard", "mps")
_MAX_GPUS = 4096  # GPUs of a node; a larger index can only be a forged or damaged text
_MAX_USES = 64  # GRES of a job on a node, by name and type; more are forged


class HoldingJob(msgspec.Struct, frozen=True, gc=False):
    """A job that holds nodes.

    Attributes:
        raw_id: Slurm's own job id.
        job_id: the id that people use: `12`, `12_3`.
        nodes: names of its nodes.
        started: epoch seconds; None if unknown.
        tres: allocated TRES as squeue prints it.
    """

    raw_id: str
    job_id: str
    user: str
    account: str
    state: str
    nodes: tuple[str, ...]
    started: int | None
    tres: str


def read_holding_jobs(slurm: SlurmCommands) -> tuple[HoldingJob, ...]:
    """Read all jobs that hold nodes from squeue.

    Raises:
        SlurmError: when Slurm does not answer or its answer cannot be read.
    """
    mark = record_mark()
    return parse_holding_jobs(slurm.run(holding_jobs_command(mark)), mark)


def holding_jobs_command(mark: str) -> list[str]:
    """Return the squeue command; `--all` includes jobs in hidden partitions."""
    return ["squeue", "--all", f"--states={_STATES}", *format_options("squeue", _FIELDS, mark)]


def parse_holding_jobs(text: str, mark: str) -> tuple[HoldingJob, ...]:
    """Parse squeue's output, the oldest job first; jobs without nodes are left out.

    Raises:
        SlurmError: when the output does not consist of whole rows, or names no nodes in one.
    """
    rows = map(_holding_job, split_records(text, mark, len(_FIELDS), "squeue"))
    try:
        holders = [row for row in rows if row.nodes]
    except ValueError as error:
        raise SlurmError(f"squeue's answer cannot be read: {error}; try again") from error
    return tuple(sorted(holders, key=lambda row: (len(row.raw_id), row.raw_id)))


def _holding_job(parts: list[str]) -> HoldingJob:
    raw_id, job_id, user, account, state, nodes, started, tres = parts
    return HoldingJob(
        raw_id.strip(), job_id, user, account, state, _names(nodes), parse_epoch(started), tres
    )


@lru_cache(maxsize=4096)
def _names(text: str) -> tuple[str, ...]:
    return expand_nodes(text) if "[" in text or "," in text else tuple(filter(None, [text]))


class GresLine(msgspec.Struct, frozen=True, gc=False):
    """GRES that a job holds on nodes, as scontrol prints them; a job's name may forge the line.

    Neither text is expanded before the job's own nodes are known: a forged line of 60 characters
    can name millions of nodes.
    """

    nodes: str
    gres: str


def parse_gres_line(line: str) -> GresLine | None:
    """Split a line of `scontrol show job --details` that lists GRES; None for any other line."""
    match = _LINE.match(line)
    return None if match is None else GresLine(match["nodes"], match["gres"])


def read_held_gres(
    lines: Iterable[GresLine], nodes: Iterable[str], max_gpus: int = _MAX_GPUS
) -> tuple[tuple[str, GresUse], ...] | None:
    """Return the GPUs, or shares of GPUs, that a job holds on each node.

    A line that Slurm cannot have printed is left out.

    Args:
        lines: all lines of the job.
        nodes: the job's nodes.
        max_gpus: the most GPUs of a node.

    Returns:
        Nodes and uses. None if the lines name a node twice, or another node: they are forged.
    """
    left = set(nodes)
    held: list[tuple[str, GresUse]] = []
    for line in lines:
        try:
            uses = _parse_claimed_uses(line.gres, max_gpus)
            for node in iterate_nodes(line.nodes) if uses else ():
                if node not in left:
                    return None
                left.remove(node)
                held += ((node, use) for use in uses)
        except ValueError:
            continue
    return tuple(held)


def _parse_claimed_uses(text: str, max_gpus: int) -> tuple[GresUse, ...]:
    """Parse the GPUs, or shares of GPUs, of a line that may be forged.

    Raises:
        ValueError: for text that Slurm cannot have printed.
    """
    matches = list(islice(_USE.finditer(text), _MAX_USES + 1))
    if len(matches) > _MAX_USES:
        raise ValueError("more GRES than a job holds on a node")
    uses = (_use(match, max_gpus) for match in matches)
    return tuple(use for use in uses if use.name == "gpu" or use.shared)


class GresUse(msgspec.Struct, frozen=True, gc=False):
    """GRES of one name and type that are in use.

    Attributes:
        name: `gpu`, `shard`, `mps` or another name of GresTypes.
        type: None if Slurm prints none.
        count: units in use. For a node's shards and MPS, Slurm 22.05 prints the number of GPUs
            that they are on.
        indices: GPUs that are used, in part or whole; None if Slurm does not say.
        parts: for shards and MPS, the used and the total units of each GPU; None if Slurm does
            not say.
    """

    name: str
    type: str | None
    count: int
    indices: tuple[int, ...] | None = None
    parts: tuple[tuple[int, int], ...] | None = None

    @property
    def shared(self) -> bool:
        """Whether several jobs may hold units of one GPU."""
        return self.name in _SHARED


def parse_gres_uses(text: str) -> tuple[GresUse, ...]:
    """Parse a node's `GresUsed=` or the `GRES=` of a job on a node.

    Raises:
        ValueError: for an invalid number, or an index that no node can have.
    """
    return tuple(_use(match, _MAX_GPUS) for match in _USE.finditer(text))


def _use(match: re.Match[str], max_gpus: int) -> GresUse:
    kind, _, what = (match["where"] or "").rpartition(":")
    count = int(what if kind == "CNT" else match["count"] or 0)
    type_ = None if match["type"] in (None, "", "(null)") else match["type"]
    if kind == "IDX":
        indices = _indices(what, max_gpus)
        return GresUse(match["name"], type_, count, indices if indices or not count else None)
    if "/" in what and not kind:
        parts = tuple(_part(item) for item in what.split(","))
        indices = tuple(at for at, (used, _) in enumerate(parts) if used)
        return GresUse(match["name"], type_, count, indices, parts)
    return GresUse(match["name"], type_, count)


def _part(text: str) -> tuple[int, int]:
    """Parse `3/4`; since 26.05, `-/4` means that the whole GPU is taken, so no unit is used."""
    used, _, total = text.partition("/")
    return (0 if used == "-" else int(used), int(total))


def _indices(text: str, max_gpus: int) -> tuple[int, ...]:
    ranges = [_index_range(item) for item in text.split(",") if text != "N/A"]
    if any(each.stop > max_gpus for each in ranges) or sum(map(len, ranges)) > max_gpus:
        raise ValueError(f"no node has the GPUs {text}")
    return tuple(chain.from_iterable(ranges))


def _index_range(text: str) -> range:
    first, dash, last = text.partition("-")
    return range(int(first), int(last if dash else first) + 1)
