"""What would start sooner: our own reckoning chooses, our checks judge, the controller confirms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from slurmkit.capabilities.standing import me
from slurmkit.checks import CHECKS
from slurmkit.checks.again import Again, rebuilder
from slurmkit.errors import BadInput, Refused, SlurmError
from slurmkit.planning.trial import parse_start
from slurmkit.queue import QueueRow, record_mark
from slurmkit.request import Request
from slurmkit.slurm import Slurm
from slurmkit.spec import JobSpec
from slurmkit.why import reasons
from slurmkit.why.candidates import Candidate, candidates, need_of, shorter
from slurmkit.why.commands import command, spec_options
from slurmkit.why.model import Alternative
from slurmkit.why.rank import comes_before
from slurmkit.why.reached import would_wait
from slurmkit.why.respec import request_of, spec_of
from slurmkit.why.scene import Scene, may_start
from slurmkit.why.windows import Windows

MOST_QUESTIONS = 5
_SOONER = 60  # seconds that an alternative must start before the job itself
_NOW = 120  # seconds within which a job that has room is started
_UNASKED = -1
_SOURCE = "our reckoning and sbatch --test-only"
# No other resources help these.
_NOT_FOR_ROOM = (
    "JobHeld Dependency BeginTime JobArrayTaskLimit Cleaning Prolog JobHoldMaxRequeue launch job"
    " user BurstBuffer Reservation SchedDefer".split()
)


class Found(msgspec.Struct, frozen=True):
    """Alternatives, or why there are none."""

    alternatives: tuple[Alternative, ...] = ()
    why_none: str = ""


def find(slurm: Slurm, scene: Scene, start: int | None) -> Found:
    """Look for changes with which the job would start sooner.

    Args:
        slurm: the border to Slurm; asked at most `MOST_QUESTIONS` times what it thinks.
        scene: of the pending job.
        start: when the job itself may start, in epoch seconds; None when nobody knows.
    """
    spec = spec_of(scene)
    if why := _why_not(scene, spec):
        return Found(why_none=why)
    search = _Search(slurm, scene, start)
    if spec is None or search.base is None:
        return Found(why_none="none is looked for: what it asks for cannot be worked out anew")
    if search.has_room:
        return Found(why_none="it has room now: the scheduler will start it when it looks at it")
    found = tuple(search.confirmed(spec))
    return Found(found, "" if found else "nothing found that would start sooner")


def _why_not(scene: Scene, spec: JobSpec | None) -> str:
    try:
        own = me() == scene.job.user
    except BadInput:
        own = False
    if not own:
        return f"what would start sooner is worked out for {scene.job.user} alone"
    if scene.job.reason.startswith(tuple(_NOT_FOR_ROOM)):
        return "other resources would not help: " + reasons.in_words(scene.job.reason, "").meaning
    return "" if spec else "none is looked for: it asks for more than can be asked for anew"


class _Search:
    def __init__(self, slurm: Slurm, scene: Scene, start: int | None) -> None:
        self._slurm, self._scene = slurm, scene
        self._planned = read_planned(slurm)
        self._questions = 0
        self._itself: int | None = _UNASKED
        self._again: Again = rebuilder(request_of(scene))
        self.base = self._rebuilt()
        self._usual = self._windows_for(scene.job.qos, comes_first=self._comes_first)
        self._crowded = self._unplanned()
        known = start or self._own_start()
        # Where nobody knows when the job starts, only what starts now is surely sooner.
        self._before = known - _SOONER if known else self._usual.now + _NOW

    def _rebuilt(self) -> Request | None:
        """The job as a request of ours; None where its amounts are not those Slurm tells."""
        base = self._again(())
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
            and row.reason in ("None", "Resources", "Priority")
            and self._comes_first(row)
        ]
        return {name for row in ahead for name in row.partition.split(",")}

    def _own_start(self) -> int | None:
        if self.base is None or not may_start(self._scene.job, self._scene.taken):
            return None
        if would_wait(self.base) or _has_error(self.base):
            return None
        return self._usual.earliest(need_of(self.base), self._usual.now + 7 * 86400)

    @property
    def has_room(self) -> bool:
        """Whether nothing but the scheduler's next look is missing."""
        if self.base is None or self._crowded & set(self._scene.partitions):
            return False
        fits = self._usual.earliest(need_of(self.base), self._usual.now + 1) is not None
        return fits and not would_wait(self.base) and not _has_error(self.base)

    def confirmed(self, spec: JobSpec) -> Iterator[Alternative]:
        """The best candidates to which the controller agrees."""
        for at, candidate in self._best():
            start = self._agreed(at, candidate)
            if start is not None:
                yield Alternative(
                    changes=candidate.pairs,
                    start=start,
                    source=_SOURCE,
                    command=command(self._scene, spec, candidate.pairs),
                    notes=candidate.notes,
                )

    def _agreed(self, at: int, candidate: Candidate) -> int | None:
        """When a candidate starts if the controller, too, finds that sooner; else None."""
        request = self._again(candidate.pairs)
        answer = self._ask(request.spec) if request else None
        if answer is None:
            return None
        if answer < self._before:
            return max(at, answer)
        # It adds the time of all jobs before one in its partition, this job's own included, and
        # knows no plans: only its answers to both can be compared.
        usual = self._asked_itself()
        return at if usual is not None and answer <= usual + _SOONER else None

    def _asked_itself(self) -> int | None:
        if self.base is None:
            return None
        if self._itself == _UNASKED:
            self._itself = self._ask(self.base.spec)
        return self._itself

    def _best(self) -> list[tuple[int, Candidate]]:
        """Those that have room, nearest first; one of each kind goes before a second."""
        tried = [*candidates(self._scene, self.base, self._usual)] if self.base else []
        fitting = [(at, c) for c in tried if (at := self._start_of(c)) is not None]
        fitting += list(self._hurried(tried, {c.pairs for _, c in fitting}))
        fitting.sort(key=lambda pair: (pair[0] > self._usual.now + _NOW, pair[1].cost, pair[0]))
        seen: dict[str, int] = {}
        ranked: list[tuple[int, int, int, Candidate]] = []
        for at, candidate in fitting:
            again = seen[candidate.kind] = seen.get(candidate.kind, -1) + 1
            ranked.append((again, len(ranked), at, candidate))
        return [(at, candidate) for _, _, at, candidate in sorted(ranked, key=lambda r: r[:2])]

    def _hurried(
        self, tried: list[Candidate], fitting: set[tuple[tuple[str, str], ...]]
    ) -> Iterator[tuple[int, Candidate]]:
        """Other places where a shorter run would fit before what comes next."""
        for candidate in tried:
            if candidate.kind != "place" or candidate.pairs in fitting:
                continue
            request = self._again(candidate.pairs)
            time = shorter(request, self._windows(candidate)) if request else None
            if time is None:
                continue
            notes = (*candidate.notes, "if it can be done in that time")
            pairs = (*candidate.pairs, ("time", time))
            both = Candidate(pairs, "place and time", candidate.cost + 3, notes)
            if (at := self._start_of(both)) is not None:
                yield at, both

    def _windows(self, candidate: Candidate) -> Windows:
        """The nodes as a candidate meets them: elsewhere it may come after everybody."""
        changed = {name for name, _ in candidate.pairs}
        if not changed & {"partition", "qos", "account"}:
            return self._usual
        qos = next((v for n, v in candidate.pairs if n == "qos"), self._scene.job.qos)
        return self._windows_for(qos, comes_first=lambda _: True)

    def _windows_for(self, qos: str, comes_first: Callable[[QueueRow], bool]) -> Windows:
        known = self._scene.standing.qos_named(qos)
        by_qos = self._scene.capabilities.config.get("PreemptType", "").startswith("preempt/qos")
        preempts = set(known.preempts) if known and by_qos else set()
        return Windows(self._scene, self._planned, lambda row: row.qos in preempts, comes_first)

    def _start_of(self, candidate: Candidate) -> int | None:
        """When a candidate would start by our own reckoning; None for not soon enough."""
        request = self._again(candidate.pairs)
        if request is None or request.partition.name in self._crowded:
            return None
        if would_wait(request) or _has_error(request):
            return None
        return self._windows(candidate).earliest(need_of(request), self._before)

    def _ask(self, spec: JobSpec) -> int | None:
        """The controller's estimate for a job like this one; None when it refuses."""
        if self._questions == MOST_QUESTIONS:
            return None
        self._questions += 1
        options = [f"--{n}={v}" if v else f"--{n}" for n, v in spec_options(spec).items()]
        try:
            said = self._slurm.run(
                ["sbatch", "--test-only", *options], stdin=spec.script, errors=True
            )
        except Refused:
            return None
        return parse_start(said)


def _has_error(request: Request) -> bool:
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
