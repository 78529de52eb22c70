"""When a job, as it is or changed, would start by our own reckoning."""

from __future__ import annotations

from collections.abc import Callable

from slurmkit.checks import CHECKS
from slurmkit.checks.again import Again, rebuilder
from slurmkit.errors import SlurmError
from slurmkit.queue.rows import QueueRow, record_mark
from slurmkit.request import Request
from slurmkit.slurm import Slurm
from slurmkit.why.candidates import Candidate, Pairs, need_of, shorter
from slurmkit.why.rank import comes_before
from slurmkit.why.reached import would_wait
from slurmkit.why.respec import request_of
from slurmkit.why.scene import Scene, may_start
from slurmkit.why.windows import Windows

_SOONER = 60  # seconds that something must start before the job itself
_NOW = 120  # seconds within which a job that has room is started
_FAR = 7 * 86400
_FOR_ROOM = ("None", "Resources", "Priority")


class Reckoning:
    """Judges changes to one pending job.

    Args:
        scene: of the job.
        planned: where backfill has planned pending jobs, by Slurm's job number.
        start: when the job itself may start by Slurm's plan; None when it has none.

    Attributes:
        base: the job as a request; None where its amounts are not those Slurm tells of it.
        now: epoch seconds of the scene.
        before: before when something has to start to be sooner than the job itself.
    """

    def __init__(self, scene: Scene, planned: dict[str, str], start: int | None) -> None:
        self._scene, self._planned, self._start = scene, planned, start
        self.again: Again = rebuilder(request_of(scene))
        self.now = int(scene.taken)
        self.base = self._rebuilt()
        self.windows = self._windows_for(scene.job.qos, self._comes_first)
        self._elsewhere: dict[str, Windows] = {}
        self._crowded = self._unplanned()
        self.before = self._limit()

    def start_of(self, pairs: Pairs) -> int | None:
        """When the job would start with these options changed; None for not soon enough."""
        request = self.again(pairs)
        if request is None or request.partition.name in self._crowded:
            return None
        if _never_starts(request) or would_wait(request):
            return None
        return self._windows(pairs).earliest(need_of(request), self.before)

    def hurried(self, candidate: Candidate) -> Candidate | None:
        """The candidate with a run so short that it fits before what comes next."""
        request = self.again(candidate.pairs)
        time = shorter(request, self._windows(candidate.pairs)) if request else None
        if time is None:
            return None
        notes = (*candidate.notes, "if it can be done in that time")
        pairs = (*candidate.pairs, ("time", time))
        return Candidate(pairs, "place and time", candidate.cost + 3, notes)

    @property
    def has_room(self) -> str:
        """Say so where the job itself has room now; empty where it has none."""
        for_room = self._scene.job.reason.startswith(_FOR_ROOM)
        crowded = self._crowded & set(self._scene.partitions)
        if self.before > self.now or crowded or not for_room:
            return ""
        if self._start is None or self._start < self.now + _NOW:
            return "it has room now: the scheduler will start it when it looks at it"
        return "by our reckoning it has room now, but Slurm plans it for later: nothing is offered"

    def is_now(self, at: int) -> bool:
        """Whether a start is as soon as can be."""
        return at <= self.now + _NOW

    def _rebuilt(self) -> Request | None:
        base = self.again(())
        if base is None:
            return None
        ours, wants = base.total, self._scene.wants
        names = [name for name in wants if name == "cpu" or name.startswith("gres/gpu")]
        same = all(ours.get(name, 0) == wants[name] for name in names)
        return base if same and base.nodes == self._scene.job.nodes else None

    def _comes_first(self, row: QueueRow) -> bool:
        return comes_before(row, self._scene.job)

    def _unplanned(self) -> set[str]:
        """Partitions where a job before this one has no plan: nobody knows what it will take."""
        ahead = [
            row
            for row in self._scene.rows
            if may_start(row, self._scene.taken)
            and row.raw_id not in self._planned
            and row.raw_id != self._scene.job.raw_id
            and row.reason in _FOR_ROOM
            and self._comes_first(row)
        ]
        return {name for row in ahead for name in row.partition.split(",")}

    def _limit(self) -> int:
        far = self.now + _FAR
        if self.base is None or _never_starts(self.base):
            return far
        if would_wait(self.base):
            return self.now + _NOW  # nobody knows when; only what starts now is surely sooner
        # Slurm rounds its plans up, so that our own for the job itself may be the sooner.
        own = self.windows.earliest(need_of(self.base), far)
        known = [at for at in (self._start, own) if at is not None]
        return min(known) - _SOONER if known else self.now + _NOW

    def _windows(self, pairs: Pairs) -> Windows:
        """The nodes as a change meets them: elsewhere it may come after everybody."""
        changed = dict(pairs)
        if not changed.keys() & {"partition", "qos", "account"}:
            return self.windows
        qos = changed.get("qos", self._scene.job.qos)
        if qos not in self._elsewhere:
            self._elsewhere[qos] = self._windows_for(qos, lambda _: True)
        return self._elsewhere[qos]

    def _windows_for(self, qos: str, comes_first: Callable[[QueueRow], bool]) -> Windows:
        known = self._scene.standing.qos_named(qos)
        by_qos = self._scene.capabilities.config.get("PreemptType", "").startswith("preempt/qos")
        preempts = set(known.preempts) if known and by_qos else set()
        return Windows(self._scene, self._planned, lambda row: row.qos in preempts, comes_first)


def _never_starts(request: Request) -> bool:
    """Whether a check says no, or the partition starts nothing as long as it is as it is."""
    if request.partition.state != "UP":
        return True
    return any(found.severity == "error" for each in CHECKS for found in each(request))


def read_planned(slurm: Slurm) -> dict[str, str]:
    """Where backfill has planned pending jobs, by Slurm's job number."""
    mark = record_mark()
    fields = f"JobID:{mark},SchedNodes:{mark}"
    argv = ["squeue", "--all", "--noheader", "--states=PENDING", "-O", fields]
    try:
        parts = slurm.run(argv).split(mark)
    except SlurmError:
        return {}
    rows = zip(parts[::2], parts[1::2], strict=False)
    return {job.strip(): nodes for job, nodes in rows if nodes not in ("", "(null)", "N/A")}
