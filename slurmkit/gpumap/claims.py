"""Which job says it holds which GPU: read from `scontrol show job --details`, and checked.

That text holds names, paths and comments that people choose, line breaks included, so that any
line of it may be forged. Nothing of it counts unless it agrees with what cannot be forged: the
job's nodes and TRES from squeue, read with a random mark, and the nodes' own lists of what is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slurmkit.capabilities.text import tres
from slurmkit.jobs.nodes import START, held_on
from slurmkit.nodes.gresuse import GresUse
from slurmkit.nodes.holders import Holder
from slurmkit.nodes.read import NodeRow

_JOB = "JobId="  # begins a job's record

Record = tuple[tuple[str, GresUse], ...]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What a job holds on one node."""

    holder: Holder
    node: str
    use: GresUse


def read_records(lines: Iterable[str]) -> dict[str, Sequence[Record]]:
    """Collect, by raw job id, what each record that bears the id says: node and use."""
    found: dict[str, Sequence[Record]] = {}
    job, said = "", list[tuple[str, GresUse]]()
    for line in lines:
        if line.startswith(_JOB):
            _note(found, job, tuple(said))
            job, said = line[len(_JOB) :].partition(" ")[0], []
        elif line.startswith(START):
            said += held_on(line)
    _note(found, job, tuple(said))
    return found


def _note(found: dict[str, Sequence[Record]], job: str, record: Record) -> None:
    """Only a forged record makes a list: one for each of 50,000 jobs busies the collector."""
    before = found.get(job)
    if before is None:
        found[job] = (record,)
    elif isinstance(before, list):
        before.append(record)
    else:
        found[job] = [*before, record]


def checked(
    records: Mapping[str, Sequence[Record]], holders: Iterable[Holder], nodes: Iterable[NodeRow]
) -> tuple[list[Claim], list[str]]:
    """Keep of each job the one record that agrees with squeue and the nodes; warn of others.

    Where several agree, the true one is among them: the GPUs of all are nobody else's then.
    """
    check = _Check({node.name: node for node in nodes})
    claims: list[Claim] = []
    doubtful: set[tuple[str, int]] = set()
    warnings: list[str] = []
    for holder in holders:
        told = {record for record in records.get(holder.raw_id, ()) if record}
        fitting = [record for record in told if check.fits(record, holder)]
        if len(fitting) == 1:
            claims += [Claim(holder, node, use) for node, use in fitting[0]]
            continue
        doubtful |= {gpu for record in fitting for node, use in record for gpu in _whole(node, use)}
        if told and holder.state != "COMPLETING":
            warnings.append(
                f"what scontrol prints of the GPUs of job {holder.job_id} ({holder.user}) does not"
                " agree with squeue and the nodes, or comes twice: left out"
            )
    left_out = [e for e in claims if not doubtful.isdisjoint(_whole(e.node, e.use))]
    for job, user in dict.fromkeys((e.holder.job_id, e.holder.user) for e in left_out):
        warnings.append(f"job {job} ({user}) claims GPUs that may be another's: left out")
    return [e for e in claims if doubtful.isdisjoint(_whole(e.node, e.use))], warnings


def _whole(node: str, use: GresUse) -> set[tuple[str, int]]:
    """The GPUs that are used as a whole, by node and index."""
    return {(node, at) for at in use.indices or ()} if use.name == "gpu" else set()


def _numbered(said: Sequence[GresUse]) -> bool:
    """Whether these tell GPUs by index; parts are listed anew for each type of GPU."""
    by_type = len(said) > 1 and any(use.parts for use in said)
    return not by_type and all(use.indices is not None for use in said)


class _Check:
    """Compares records with what squeue and the nodes say."""

    def __init__(self, nodes: Mapping[str, NodeRow]) -> None:
        self._nodes = nodes
        self._counted = {name for node in nodes.values() for name in node.tracked}

    def fits(self, record: Record, holder: Holder) -> bool:
        own = set(holder.nodes)
        return all(
            node in own and self._in_use(node, use) for node, use in record
        ) and self._adds_up(record, holder)

    def _in_use(self, node: str, use: GresUse) -> bool:
        """Whether the node says that all these GPUs are in use, as far as it says which."""
        row = self._nodes.get(node)
        if row is None or max(use.indices or (0,)) >= row.count("gpu"):
            return False
        said = [u for u in row.uses if u.name == use.name]
        if use.indices is None and any(u.indices for u in said):
            return False
        if use.indices is None or not _numbered(said):
            return use.count <= sum(u.count for u in said)
        return set(use.indices) <= {at for u in said for at in u.indices or ()}

    def _adds_up(self, record: Record, holder: Holder) -> bool:
        """Whether the record holds what squeue says the job has: counts by name."""
        counts: dict[str, int] = defaultdict(int)
        for _, use in record:
            counts[f"gres/{use.name}"] += use.count
        has = tres(holder.tres)
        return all(
            counts[name] == has.get(name, 0)
            for name in ("gres/gpu", "gres/shard", "gres/mps")
            if name in self._counted
        )
