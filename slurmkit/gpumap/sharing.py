"""Parts of GPUs, shards and MPS: how much of each GPU is in use, and by whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurmkit.gpumap.claims import Claim
from slurmkit.gpumap.model import Share, Sharing
from slurmkit.nodes.gresuse import GresUse
from slurmkit.nodes.holders import Holder
from slurmkit.nodes.read import NodeRow

Sharings = Mapping[int, Sharing]


def sharings(node: NodeRow, name: str, claims: Iterable[Claim]) -> Sharings:
    """The parts of each GPU of a node, by position; empty for a node that has none of `name`."""
    if not node.count(name):
        return {}
    said = [use for use in node.uses if use.name == name]
    by: dict[int, list[Share]] = defaultdict(list)
    for claim in claims:
        if claim.use.name == name:
            for at in claim.use.indices or ():
                by[at].append(share(claim.holder, _amount(claim.use, at)))
    count = node.count("gpu")
    if len(said) == 1 and said[0].parts and len(said[0].parts) == count:
        return {at: Sharing(*said[0].parts[at], tuple(by[at])) for at in range(count)}
    return _without_parts(node, name, by)


def _without_parts(node: NodeRow, name: str, by: Mapping[int, list[Share]]) -> Sharings:
    """Where a node does not say how many parts each GPU gives, count what its jobs have.

    So it is on Slurm 22.05, and where GPUs of several types are shared. The count is right only
    if it comes to all that is in use on the node.
    """
    parts = node.shards if name == "shard" else node.mps
    amounts = {at: [share.amount for share in shares] for at, shares in by.items()}
    told = parts is not None and sum(a or 0 for of in amounts.values() for a in of) == parts.used

    def used(at: int) -> int | None:
        own = amounts.get(at, [])
        if told and None not in own:
            return sum(a or 0 for a in own)
        return None if listed is None or at in listed else 0

    listed = _listed([use for use in node.uses if use.name == name])
    positions = range(node.count("gpu"))
    return {at: Sharing(used(at), None, tuple(by.get(at, ()))) for at in positions}


def _listed(uses: Sequence[GresUse]) -> set[int] | None:
    if any(use.parts is not None for use in uses):
        return None
    return {at for use in uses for at in use.indices or ()}


def share(holder: Holder, amount: int | None) -> Share:
    """What a job has of a GPU."""
    return Share(holder.job_id, holder.user, holder.account, amount, holder.started)


def _amount(use: GresUse, at: int) -> int | None:
    if use.parts:
        return use.parts[at][0]
    return use.count if use.indices == (at,) else None
