"""What is in the way of a job: jobs that run on its nodes, jobs before it, reservations."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurmkit.capabilities.model import Reservation
from slurmkit.jobs.ids import group
from slurmkit.queue.rows import QueueRow
from slurmkit.why import words
from slurmkit.why.model import Blocker
from slurmkit.why.rank import comes_before
from slurmkit.why.room import counted, rooms
from slurmkit.why.scene import Scene, ends_by, holds, holds_nodes, may_start, nodes_of

_AFTER = re.compile(
    r"(?P<kind>after\w*|singleton)(?::(?P<job>\d+(?:_(?:\d+|\*))?))?(?:\+\d+)?"
    r"(?:\((?P<state>\w+)\))?"
)
_KINDS = {
    "afterok": "must end well first",
    "afternotok": "must fail first",
    "afterany": "must end first",
    "after": "must start first",
    "aftercorr": "its task of the same number must end well first",
    "afterburstbuffer": "must end and stage out first",
}


def of_job(row: QueueRow, holds: str = "") -> Blocker:
    """Name a job as a blocker, with what it holds or wants."""
    return Blocker(
        kind="job",
        name=row.job_id,
        user=row.user,
        account=row.account,
        state=row.state,
        holds=holds or _held(row),
        until=None if row.state == "PENDING" else ends_by(row),
    )


def _held(row: QueueRow) -> str:
    where = f" on {row.node_list}" if row.node_list else ""
    return f"{words.holding(holds(row))}{where}"


def soonest(blockers: Iterable[Blocker]) -> list[Blocker]:
    """Order them by their latest end; those without one come last."""
    return sorted(blockers, key=lambda b: (b.until is None, b.until or 0, b.name))


def on_its_nodes(scene: Scene) -> list[Blocker]:
    """Jobs that hold what this one waits for, where backfill plans it, or where it could run."""
    planned = nodes_of(scene.asked.planned_nodes)
    there = rooms(scene)
    nodes = set(planned or (room.node.name for room in there if room.lacks(scene.per_node)))
    wanted = _family(counted(scene.per_node))
    found = [
        row
        for row in scene.rows
        if holds_nodes(row)
        and not nodes.isdisjoint(nodes_of(row.node_list))
        and (not wanted or any(name in wanted for name in holds(row)))
    ]
    return soonest(of_job(row) for row in found)


def _family(names: Iterable[str]) -> set[str]:
    """The generic resources that use up each other: GPUs of any kind, and parts of them."""
    asked = {name for name in names if name.startswith("gres/")}
    gpus = {"gres/gpu", "gres/shard", "gres/mps"}
    return asked | (gpus if any(n.startswith(("gres/gpu", *gpus)) for n in asked) else set())


def before_it(scene: Scene) -> list[Blocker]:
    """Pending jobs of its partitions that are looked at first."""
    wanted = set(scene.partitions)
    ahead = [
        row
        for row in scene.rows
        if may_start(row, scene.taken)
        and wanted & set(row.partition.split(","))
        and row.raw_id != scene.job.raw_id
        and comes_before(row, scene.job)
    ]
    ahead.sort(key=lambda row: (-row.priority, int(row.raw_id)))
    return [of_job(row, f"waits before it for {words.holding(holds(row))}") for row in ahead]


def dependencies(scene: Scene, states: dict[str, str]) -> list[Blocker]:
    """The jobs it depends on.

    Args:
        scene: of the job.
        states: of jobs that have left the queue, by id.
    """
    there = group(depends_on(scene.job.dependency), scene.rows)
    found = []
    for match in _AFTER.finditer(scene.job.dependency):
        if match["kind"] == "singleton":
            found += _singletons(scene)
            continue
        job_id, means = _id(match), _KINDS.get(match["kind"], match["kind"])
        said = f"{means} ({match['kind']})"
        found += [of_job(row, said) for row in there.get(job_id, ())]
        if not there.get(job_id):
            state = states.get(job_id, "not in the queue")
            found.append(Blocker(kind="job", name=job_id, state=state, holds=said))
    return found


def _id(match: re.Match[str]) -> str:
    """Of a whole array squeue says `12_*`."""
    return (match["job"] or "?").removesuffix("_*")


def depends_on(text: str) -> list[str]:
    """Ids of the jobs in a row's dependency."""
    return [_id(match) for match in _AFTER.finditer(text) if match["job"]]


def _singletons(scene: Scene) -> list[Blocker]:
    same = [
        row
        for row in scene.rows
        if (row.name, row.user) == (scene.job.name, scene.job.user)
        and not row.ended
        and int(row.raw_id) < int(scene.job.raw_id)
    ]
    return [of_job(row, "has the same name and must end first (singleton)") for row in same]


def of_array(scene: Scene) -> list[Blocker]:
    """Tasks of the same array that run now."""
    own = scene.job.array_id
    return soonest(of_job(r) for r in scene.rows if holds_nodes(r) and r.array_id == own)


def of_reservation(reservation: Reservation) -> Blocker:
    """Name a reservation as a blocker."""
    flags = f" ({','.join(reservation.flags)})" if reservation.flags else ""
    return Blocker(
        kind="reservation",
        name=reservation.name,
        holds=f"reserves {words.several(list(reservation.nodes), 8) or 'resources'}{flags}",
        until=reservation.end,
    )


def reservations_on(scene: Scene, nodes: Iterable[str]) -> list[Reservation]:
    """Reservations of these nodes that the job is not in."""
    wanted = set(nodes)
    return [
        each
        for each in scene.reservations
        if wanted & set(each.nodes) and each.name != scene.job.reservation
    ]
