"""Put the map together: what the nodes say is in use, and whose it is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slurmkit.gpumap.claims import Claim
from slurmkit.gpumap.model import Gpu, Share, Sharing, State
from slurmkit.gpumap.sharing import Sharings, share, sharings
from slurmkit.nodes.holders import Holder
from slurmkit.nodes.read import NodeRow

_MIG_PROFILE = re.compile(r"(?:\d+c\.)?\d+g\.\d+gb.*", re.IGNORECASE)


class _Board(msgspec.Struct, frozen=True):
    """The GPUs of one node: who claims each as a whole, and who has parts of it.

    Attributes:
        numbered: whether Slurm tells the GPUs apart; without device files it only counts them.
        listed: positions that the node lists as shared.
    """

    node: NodeRow
    count: int
    numbered: bool
    whole: Mapping[int, Sequence[Holder]]
    shards: Sharings
    mps: Sharings
    listed: set[int]

    @property
    def sharings(self) -> list[tuple[int, Sharing]]:
        """What is known of the parts of each position."""
        return [*self.shards.items(), *self.mps.items()]

    @property
    def shared(self) -> set[int]:
        """Positions that somebody has a part of."""
        return {at for at, sharing in self.sharings if sharing.used or sharing.by} | self.listed

    @property
    def doubtful(self) -> set[int]:
        """Positions of which nobody can say whether somebody has a part."""
        return {at for at, sharing in self.sharings if sharing.used is None} - self.shared


def build(nodes: Iterable[NodeRow], claims: Iterable[Claim]) -> tuple[list[Gpu], list[str]]:
    """One entry for each GPU of each node, and warnings where claims collide."""
    by_node: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        by_node[claim.node].append(claim)
    gpus: list[Gpu] = []
    warnings: list[str] = []
    for node in nodes:
        if count := node.count("gpu"):
            board = _board(node, count, by_node[node.name])
            states, doubts = _states(board)
            types = _types(node, count)
            gpus += [_gpu(board, at, types.get(at), states[at]) for at in range(count)]
            warnings += [*doubts, *_beyond(board)]
    return gpus, warnings


def _board(node: NodeRow, count: int, claims: Sequence[Claim]) -> _Board:
    whole: dict[int, list[Holder]] = defaultdict(list)
    numbered = True
    for claim in claims:
        if claim.use.name != "gpu":
            continue
        if claim.use.indices is None:
            numbered = False
        for at in claim.use.indices or range(len(whole), len(whole) + claim.use.count):
            whole[at].append(claim.holder)
    shards, mps = (sharings(node, name, claims) for name in ("shard", "mps"))
    return _Board(node, count, numbered, whole, shards, mps, _listed(node))


def _listed(node: NodeRow) -> set[int]:
    """Slurm 22.05 lists the GPUs that are shared; later ones say how much of each."""
    lists = (use.indices or () for use in node.uses if use.shared and use.parts is None)
    return {at for indices in lists for at in indices}


def _states(board: _Board) -> tuple[list[State], list[str]]:
    """The state of every position, and warnings."""
    held, doubtful = _used(board)
    shared = board.shared
    clashing = {at for at, holders in board.whole.items() if len(holders) > 1} | (held & shared)
    states: list[State] = [_unheld(board.node)] * board.count
    for positions, state in _layers(held, shared, (doubtful - shared) | board.doubtful, clashing):
        for at in positions & set(range(board.count)):
            states[at] = state
    said = ", ".join(map(str, sorted(clashing)))
    warning = f"several jobs claim GPU {said} of {board.node.name}: shown as unknown"
    return states, [warning] if clashing else []


def _beyond(board: _Board) -> list[str]:
    """Its Gres was made less while jobs had more, or jobs have come and gone meanwhile."""
    said = {at for use in board.node.uses for at in use.indices or ()} | set(board.whole)
    most = max(said, default=0)
    name, count = board.node.name, board.count
    return [f"GPU {most} of {name} is in use, and it has {count}"] if most >= count else []


def _layers(
    held: set[int], shared: set[int], doubtful: set[int], clashing: set[int]
) -> tuple[tuple[set[int], State], ...]:
    """What counts most comes last."""
    return (doubtful, "unknown"), (held, "held"), (shared, "shared"), (clashing, "unknown")


def _used(board: _Board) -> tuple[set[int], set[int]]:
    """Positions held as a whole, and those of which that cannot be told."""
    uses = [use for use in board.node.uses if use.name == "gpu"]
    claimed, everything = set(board.whole), set(range(board.count))
    if all(use.indices is not None for use in uses):
        return {at for use in uses for at in use.indices or ()}, set()
    used = sum(use.count for use in uses)
    if len(claimed) > used:  # they were asked for one after the other: a job has come or gone
        return set(), claimed
    if len(claimed) == used or not board.numbered:
        return claimed or set(range(used)), set()
    return (everything, set()) if used == board.count else (claimed, everything - claimed)


def _unheld(node: NodeRow) -> State:
    if node.usable:
        return "free"
    return "down" if node.kind == "down" else "drained"


def _types(node: NodeRow, count: int) -> dict[int, str]:
    """The type of each position, as far as Slurm gives it away.

    It prints the type of an index only while it is in use; what is left over is known when only
    one type is left.
    """
    left = {gpus.type: gpus.total for gpus in node.gpus}
    if len(left) == 1:
        (only,) = left
        return dict.fromkeys(range(count), only) if only else {}
    known: dict[int, str] = {}
    for use in node.uses:
        for at in (use.indices or ()) if use.name == "gpu" and use.type else ():
            known[at] = str(use.type)
            left[use.type] = left.get(use.type, 0) - 1
    others = [type_ for type_, more in left.items() if more > 0]
    if len(others) == 1 and others[0]:
        known |= {at: others[0] for at in range(count) if at not in known}
    return known


def _gpu(board: _Board, at: int, type_: str | None, state: State) -> Gpu:
    profile = _MIG_PROFILE.search(type_ or "")
    whole = [share(holder, None) for holder in board.whole.get(at, ())]
    entry = Gpu(
        node=board.node.name,
        index=at if board.numbered else None,
        type=type_,
        state=state,
        shard=board.shards.get(at),
        mps=board.mps.get(at),
        mig=profile[0] if profile else None,
    )
    on_it = {"held": whole, "shared": list(entry.sharers)}.get(state, [])
    return _owned(entry, on_it[0]) if len(on_it) == 1 else entry


def _owned(gpu: Gpu, only: Share) -> Gpu:
    who = {"job_id": only.job_id, "user": only.user, "account": only.account, "since": only.since}
    return msgspec.structs.replace(gpu, **who)
