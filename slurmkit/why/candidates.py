"""Changes to a job that may let it start sooner, nearest to what was asked for first."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from slurmkit.capabilities.model import Gres, Partition
from slurmkit.checks import check
from slurmkit.checks.places import left
from slurmkit.checks.say import memory_option
from slurmkit.durations import format_duration
from slurmkit.request import Request
from slurmkit.why.scene import Scene
from slurmkit.why.windows import Need, Windows

Pairs = tuple[tuple[str, str], ...]

_GPU_OPTIONS = {"node": "gpus-per-node", "job": "gpus", "task": "gpus-per-task"}
_SPARE = 120  # seconds that a job should end before what comes next
_LEAST = 0.1  # of the time limit; less is no help


class Candidate(msgspec.Struct, frozen=True):
    """A change to try.

    Attributes:
        pairs: sbatch's long options and their new values.
        kind: what is changed; one of each kind is tried before a second.
        cost: how far it is from what was asked for.
    """

    pairs: Pairs
    kind: str
    cost: int
    notes: tuple[str, ...] = ()


def candidates(scene: Scene, base: Request, windows: Windows) -> Iterator[Candidate]:
    """Every single change, and each other QOS and account with each other place."""
    identities, places = [*_identities(scene, base)], [*_places(scene, base)]
    yield from _fixes(base)
    if scene.job.requested_nodes:
        yield Candidate((("nodelist", ""),), "nodes named", 1, ("on any node of its partition",))
    yield from identities
    yield from places
    yield from _less(base, windows)
    for who in identities:
        for place in places:
            notes, cost = (*who.notes, *place.notes), who.cost + place.cost
            yield Candidate((*place.pairs, *who.pairs), f"{who.kind} and place", cost, notes)


def need_of(request: Request) -> Need:
    """What a request needs room for."""
    return Need(
        nodes=request.nodes,
        per_node=request.per_node,
        seconds=request.seconds,
        names=frozenset(n.name for n in request.fitting) & {n.name for n in left(request)},
        exclusive=request.spec.exclusive is True,
    )


def shorter(request: Request, windows: Windows) -> str | None:
    """A time limit that ends before what comes next; None where that is no help."""
    longest = windows.longest(need_of(request)) - _SPARE
    asked = request.seconds or longest + 1
    if longest >= asked or longest < max(_SPARE, asked * _LEAST):
        return None
    return format_duration(longest // 60 * 60)


def _fixes(base: Request) -> Iterator[Candidate]:
    """What our own checks would change where a limit keeps the job from ever starting."""
    for finding in check(base):
        if finding.severity == "error" and finding.fix:
            notes = (f"what {finding.source} allows",) if finding.source else ()
            yield Candidate(finding.fix, f"fix {finding.code}", 0, notes)


def _identities(scene: Scene, base: Request) -> Iterator[Candidate]:
    own = base.association
    for name in own.qos if own else ():
        if name != scene.job.qos:
            yield Candidate((("qos", name),), "qos", 1)
    for each in scene.standing.associations:
        if each.user == scene.job.user and each.account != scene.job.account:
            note = f"charged to account {each.account}"
            yield Candidate((("account", each.account),), "account", 2, (note,))


def _places(scene: Scene, base: Request) -> Iterator[Candidate]:
    """Other partitions and types of GPU."""
    for partition in scene.capabilities.partitions:
        if partition.state != "UP":
            continue
        here = partition.name in scene.partitions
        place: Pairs = () if here else (("partition", partition.name),)
        if place and scene.job.requested_nodes:  # nodes of another partition
            place = (*place, ("nodelist", ""))
        for gpus in _gpu_pairs(scene, base, partition):
            if pairs := (*place, *gpus):
                asked = base.spec.gpus.type if base.spec.gpus else None
                notes = _type_notes(gpus, partition, asked)
                yield Candidate(pairs, "place", 2 + 2 * bool(gpus), notes)


def _type_notes(gpus: Pairs, partition: Partition, asked: str | None) -> tuple[str, ...]:
    if gpus and ":" not in gpus[0][1]:
        return (f"Slurm does not know the type of the GPUs in partition {partition.name}",)
    if gpus and Gres("gpu", asked, 1).is_mig:
        return ("a whole GPU instead of a MIG slice",)
    return ()


def _gpu_pairs(scene: Scene, base: Request, partition: Partition) -> list[Pairs]:
    """The changes that make the GPU request fit a partition's; () for none."""
    gpus = base.spec.gpus
    if gpus is None or gpus.is_part or gpus.mig or gpus.type is None:
        return [()]
    kinds = {
        gres.type
        for node in scene.capabilities.nodes_of(partition.name)
        for gres in node.gres
        if gres.name == "gpu" and not gres.is_mig
    }
    if gpus.type in kinds and partition.name not in scene.partitions:
        return [()]
    option = _GPU_OPTIONS[gpus.per]
    others = sorted((kind for kind in kinds if kind != gpus.type), key=str)
    return [((option, f"{kind}:{gpus.count}" if kind else str(gpus.count)),) for kind in others]


def _less(base: Request, windows: Windows) -> Iterator[Candidate]:
    """Less time, fewer nodes, fewer GPUs, less memory: the most that has room now."""
    if (time := shorter(base, windows)) is not None:
        yield Candidate((("time", time),), "time", 3, ("if it can be done in that time",))
    for nodes in _fewer(base.nodes, windows.count(need_of(base))):
        note = f"{nodes} instead of {base.nodes} nodes, with as many GPUs on each"
        yield Candidate((("nodes", str(nodes)),), "nodes", 4, (note,))
    gpus = base.spec.gpus
    if gpus is not None and not gpus.is_part:
        kind = f"{gpus.type}:" if gpus.type else ""
        for count in range(gpus.count - 1, 0, -1):
            pairs = ((_GPU_OPTIONS[gpus.per], f"{kind}{count}"),)
            yield Candidate(pairs, "gpus", 5)
    yield from _memory(base, windows)


def _fewer(asked: int, room: int) -> list[int]:
    """Numbers of nodes to try, the largest first; what has room now is among them."""
    tried = {asked - 1, asked // 2, asked // 4, 1, room}
    return sorted((n for n in tried if 0 < n < asked), reverse=True)


def _memory(base: Request, windows: Windows) -> Iterator[Candidate]:
    """The most memory free beside what else is asked for, where memory is what is short."""
    asked = base.per_node.get("mem")
    if asked is None or base.spec.mem_per_cpu or base.spec.mem_per_gpu:
        return
    rest = msgspec.structs.replace(
        need_of(base), per_node={n: v for n, v in base.per_node.items() if n != "mem"}
    )
    free = sorted(
        (
            tres["mem"]
            for tres in windows.free(rest)
            if all(tres.get(n, 0) >= v for n, v in rest.per_node.items())
        ),
        reverse=True,
    )
    if len(free) >= base.nodes and 0 < free[base.nodes - 1] < asked:
        size = memory_option(free[base.nodes - 1] // 1024 * 1024 or free[base.nodes - 1])
        yield Candidate((("mem", size),), "memory", 3)
