"""What would start sooner: our own reckoning chooses, our checks judge, the controller agrees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from slurmkit.capabilities.standing import me
from slurmkit.errors import BadInput, Refused
from slurmkit.planning.trial import parse_start
from slurmkit.slurm import Slurm
from slurmkit.spec import JobSpec
from slurmkit.why import reasons
from slurmkit.why.candidates import Candidate, candidates
from slurmkit.why.commands import command, spec_options
from slurmkit.why.model import Alternative
from slurmkit.why.reckoning import Reckoning, read_planned
from slurmkit.why.respec import spec_of
from slurmkit.why.scene import Scene

MOST_QUESTIONS = 5
_SLACK = 60  # seconds by which two answers of the controller may differ and be the same
_AMOUNTS = ("nodes", "gpus")
# No other resources help these.
_NOT_FOR_ROOM = tuple(
    "JobHeld Dependency BeginTime JobArrayTaskLimit Cleaning Prolog JobHoldMaxRequeue launch job"
    " user BurstBuffer Reservation SchedDefer".split()
)

Ranked = list[tuple[int, Candidate]]


class Found(msgspec.Struct, frozen=True):
    """Alternatives, or why there are none."""

    alternatives: tuple[Alternative, ...] = ()
    why_none: str = ""


def find(slurm: Slurm, scene: Scene, start: int | None) -> Found:
    """Look for changes with which the job would start sooner.

    Args:
        slurm: the border to Slurm; asked at most `MOST_QUESTIONS` times what it thinks.
        scene: of the pending job.
        start: when the job itself may start by Slurm's plan; None when it has none.
    """
    spec = spec_of(scene)
    if why := _why_not(scene, slurm):
        return Found(why_none=why)
    if spec is None:
        return Found(
            why_none="none is looked for: only batch jobs that can be asked for anew have any"
        )
    reckoning = Reckoning(scene, read_planned(slurm), start)
    if reckoning.base is None:
        return Found(why_none="none is looked for: what it asks for cannot be worked out anew")
    if why := reckoning.has_room:
        return Found(why_none=why)
    controller = _Controller(slurm, reckoning)
    found = tuple(
        Alternative(
            changes=candidate.pairs,
            start=at,
            test_only=answer,
            command=command(scene, spec, candidate.pairs),
            notes=candidate.notes,
        )
        for at, candidate in _best(scene, reckoning)
        if (answer := controller.agrees(candidate)) is not None
    )
    return Found(found, "" if found else "nothing found that would start sooner")


def _why_not(scene: Scene, slurm: Slurm) -> str:
    try:
        own = me(slurm) == scene.job.user
    except BadInput:
        own = False
    if not own:
        return f"what would start sooner is worked out for {scene.job.user} alone"
    if scene.job.reason.startswith(_NOT_FOR_ROOM):
        return "other resources would not help: " + reasons.in_words(scene.job.reason, "").meaning
    if scene.hides_jobs:
        return "none is looked for: PrivateData hides other people's jobs and their plans"
    return ""


def _best(scene: Scene, reckoning: Reckoning) -> Ranked:
    """Those that have room, nearest first; one of each kind goes before a second.

    Where some start at once, those that start later are no help.
    """
    if reckoning.base is None:
        return []
    tried = [*candidates(scene, reckoning.base, reckoning.windows)]
    fitting = [(at, c) for c in tried if (at := reckoning.start_of(c.pairs)) is not None]
    fitted = {candidate.pairs for _, candidate in fitting}
    places = [c for c in tried if c.kind == "place" and c.pairs not in fitted]
    hurried = [c for place in places if (c := reckoning.hurried(place))]
    fitting += [(at, c) for c in hurried if (at := reckoning.start_of(c.pairs)) is not None]
    at_once = [each for each in fitting if reckoning.is_now(each[0])]
    fitting = sorted(at_once or fitting, key=lambda each: (each[1].cost, each[0]))
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, Candidate]] = []
    for at, candidate in _needed(fitting):
        ranked.append((seen[candidate.kind], at, candidate))
        seen[candidate.kind] += 1
    return [(at, candidate) for _, at, candidate in sorted(ranked, key=lambda each: each[0])]


def _needed(fitting: Ranked) -> Iterator[tuple[int, Candidate]]:
    """Without what changes more for nothing: a superset of another, or still fewer nodes."""
    kept: Ranked = []
    for at, candidate in fitting:
        if not any(sooner <= at and _does(other, candidate) for sooner, other in kept):
            kept.append((at, candidate))
            yield at, candidate


def _does(other: Candidate, candidate: Candidate) -> bool:
    same_amount = other.kind == candidate.kind and candidate.kind in _AMOUNTS
    return same_amount or set(other.pairs) <= set(candidate.pairs)


class _Controller:
    """Asks slurmctld what it thinks, `MOST_QUESTIONS` times and no more."""

    def __init__(self, slurm: Slurm, reckoning: Reckoning) -> None:
        self._slurm, self._reckoning = slurm, reckoning
        self._left = MOST_QUESTIONS
        self._itself: tuple[int | None] | None = None

    def agrees(self, candidate: Candidate) -> int | None:
        """Its answer in epoch seconds where it finds that sooner, too; else None."""
        request = self._reckoning.again(candidate.pairs)
        answer = self._ask(request.spec) if request else None
        if answer is None or answer < self._reckoning.before:
            return answer
        # It adds the time of all jobs before one in its partition, this job's own included, and
        # knows no plans: only its answers to both can be compared.
        usual = self._about_the_job_itself()
        return answer if usual is not None and answer <= usual + _SLACK else None

    def _about_the_job_itself(self) -> int | None:
        if self._itself is None:
            base = self._reckoning.base
            self._itself = (self._ask(base.spec) if base else None,)
        return self._itself[0]

    def _ask(self, spec: JobSpec) -> int | None:
        """Its estimate for a job like this one; None when it refuses."""
        if not self._left:
            return None
        self._left -= 1
        options = [f"--{n}={v}" if v else f"--{n}" for n, v in spec_options(spec).items()]
        argv = ["sbatch", "--test-only", *options]
        try:
            return parse_start(self._slurm.run(argv, stdin=spec.script, errors=True))
        except Refused:
            return None
