"""Changes with which a pending job would start sooner.

A change is offered if slurmkit's checks allow it, our estimate says that it starts sooner, and
`sbatch --test-only` does not object. The estimate is made from free nodes and backfill's plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from slurmkit.diagnose.blockers import comes_before
from slurmkit.diagnose.free_resources import NodeTimelines, ResourceNeed
from slurmkit.diagnose.limits_reached import would_wait_for_limit
from slurmkit.diagnose.model import Alternative
from slurmkit.diagnose.respec import change_command, rebuild_request, rebuild_spec, spec_options
from slurmkit.diagnose.snapshot import PendingSnapshot, is_eligible
from slurmkit.errors import BadInput, Refused
from slurmkit.formats.durations import format_duration
from slurmkit.formats.memory import memory_option
from slurmkit.formats.tres import Gres
from slurmkit.jobs import pending_reasons
from slurmkit.planning.amounts import takes_whole_nodes
from slurmkit.planning.checks.fixes import RequestBuilder, request_builder
from slurmkit.planning.checks.nodes import selected_nodes
from slurmkit.planning.checks.registry import CHECKS, check
from slurmkit.planning.planner import parse_start
from slurmkit.planning.request import Request
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.associations import current_user
from slurmkit.state.model import Partition
from slurmkit.state.queue_rows import QueueRow

MAX_TEST_ONLY_CALLS = 5
_SLACK = 60  # seconds; two --test-only answers closer than this count as equal
_AMOUNTS = ("nodes", "gpus")
# Other resources do not help a job that waits for one of these reasons.
_NOT_FOR_ROOM = tuple(
    "JobHeld Dependency BeginTime JobArrayTaskLimit Cleaning Prolog JobHoldMaxRequeue launch job"
    " user BurstBuffer Reservation SchedDefer".split()
)

Pairs = tuple[tuple[str, str], ...]
_GPU_OPTIONS = {"node": "gpus-per-node", "job": "gpus", "task": "gpus-per-task"}
_SPARE = 120  # seconds between the end of a shortened job and the next plan
_LEAST = 0.1  # shortest time limit offered, as a fraction of the requested one

_SOONER = 60  # seconds that something must start before the job itself
_NOW = 120  # seconds within which a job that has room is started
_FAR = 7 * 86400
_FOR_ROOM = ("None", "Resources", "Priority")


class _Fit(NamedTuple):
    """A candidate and its estimated start in epoch seconds."""

    start: int
    candidate: CandidateChange


class FoundAlternatives(msgspec.Struct, frozen=True):
    """Alternatives, or why there are none."""

    alternatives: tuple[Alternative, ...] = ()
    why_none: str = ""


def find_alternatives(
    slurm: SlurmCommands, snapshot: PendingSnapshot, start: int | None
) -> FoundAlternatives:
    """Find changes with which the job would start sooner.

    Args:
        slurm: runs the commands, `sbatch --test-only` at most `MAX_TEST_ONLY_CALLS` times.
        snapshot: the snapshot of the pending job, with backfill's plans.
        start: the job's own planned start in epoch seconds; None if Slurm has no plan.
    """
    spec = rebuild_spec(snapshot)
    if why := why_not_sought(slurm, snapshot.job) or _why_not_estimated(snapshot):
        return FoundAlternatives(why_none=why)
    if spec is None:
        return FoundAlternatives(
            why_none="slurmkit cannot rebuild the options of this job; it can for most batch jobs"
        )
    estimator = StartEstimator(snapshot, snapshot.planned, start)
    if estimator.base is None:
        return FoundAlternatives(
            why_none="the options that squeue shows do not add up to the resources of this job"
        )
    if why := estimator.why_no_change:
        return FoundAlternatives(why_none=why)
    controller = _TestOnlyEstimates(slurm, estimator)
    found = tuple(
        Alternative(
            changes=candidate.pairs,
            start=at,
            test_only=answer,
            command=change_command(snapshot, spec, candidate.pairs),
            notes=candidate.notes,
        )
        for at, candidate in _best(snapshot, estimator)
        if (answer := controller.agrees(candidate)) is not None
    )
    return FoundAlternatives(found, "" if found else "nothing found that would start sooner")


def why_not_sought(slurm: SlurmCommands, job: QueueRow) -> str:
    """Return why no changes are sought for a pending job; empty if they are."""
    if not is_own(slurm, job):
        return f"only the job's own user, {job.user}, is offered changes to start sooner"
    if job.reason.startswith(_NOT_FOR_ROOM):
        return (
            "other resources would not help: "
            + pending_reasons.explain_reason(job.reason, "").meaning
        )
    return ""


def is_own(slurm: SlurmCommands, job: QueueRow) -> bool:
    """Return whether a job is of the user who asks."""
    try:
        return current_user(slurm) == job.user
    except BadInput:
        return False


def _why_not_estimated(snapshot: PendingSnapshot) -> str:
    if snapshot.hides_jobs:
        return "PrivateData hides other people's jobs and plans, so no start can be estimated"
    return ""


def _best(snapshot: PendingSnapshot, estimator: StartEstimator) -> list[_Fit]:
    """Return the candidates that fit, smallest change first; one of each kind before a second.

    If some can start at once, later ones are left out.
    """
    if estimator.base is None:
        return []
    tried = [*candidate_changes(snapshot, estimator.base, estimator.windows)]
    fits = _that_fit(estimator, tried)
    fitted = {fit.candidate.pairs for fit in fits}
    places = [c for c in tried if c.kind == "place" and c.pairs not in fitted]
    fits += _that_fit(estimator, filter(None, map(estimator.shorten, places)))
    at_once = [fit for fit in fits if estimator.is_immediate(fit.start)]
    fits = sorted(at_once or fits, key=lambda fit: (fit.candidate.cost, fit.start))
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, _Fit]] = []
    for fit in _without_larger_changes(fits):
        ranked.append((seen[fit.candidate.kind], fit))
        seen[fit.candidate.kind] += 1
    return [fit for _, fit in sorted(ranked, key=lambda each: each[0])]


def _that_fit(estimator: StartEstimator, tried: Iterable[CandidateChange]) -> list[_Fit]:
    starts = ((estimator.estimate_start(candidate.pairs), candidate) for candidate in tried)
    return [_Fit(start, candidate) for start, candidate in starts if start is not None]


def _without_larger_changes(fits: Iterable[_Fit]) -> Iterator[_Fit]:
    """Leave out a candidate that changes more than an earlier one and starts no sooner.

    That is a superset of the other's changes, or a further cut of the same amount.
    """
    yielded: list[_Fit] = []
    for fit in fits:
        if not any(other.start <= fit.start and _covers(other, fit) for other in yielded):
            yielded.append(fit)
            yield fit


def _covers(other: _Fit, fit: _Fit) -> bool:
    same_kind = other.candidate.kind == fit.candidate.kind
    return (same_kind and fit.candidate.kind in _AMOUNTS) or set(other.candidate.pairs) <= set(
        fit.candidate.pairs
    )


class _TestOnlyEstimates:
    """Asks slurmctld for estimates with `sbatch --test-only`.

    Asks at most `MAX_TEST_ONLY_CALLS` times.
    """

    def __init__(self, slurm: SlurmCommands, estimator: StartEstimator) -> None:
        self._slurm, self._estimator = slurm, estimator
        self._left = MAX_TEST_ONLY_CALLS
        self._itself: tuple[int | None] | None = None

    def agrees(self, candidate: CandidateChange) -> int | None:
        """Return slurmctld's estimate in epoch seconds if it is sooner, too; else None."""
        request = self._estimator.again(candidate.pairs)
        answer = self._ask(request.spec) if request else None
        if answer is None or answer < self._estimator.before:
            return answer
        # --test-only adds the time limits of all jobs ahead in the partition, this job included,
        # and ignores backfill plans. So compare it only with its answer for the unchanged job.
        usual = self._about_the_job_itself()
        return answer if usual is not None and answer <= usual + _SLACK else None

    def _about_the_job_itself(self) -> int | None:
        if self._itself is None:
            base = self._estimator.base
            self._itself = (self._ask(base.spec) if base else None,)
        return self._itself[0]

    def _ask(self, spec: JobSpec) -> int | None:
        """Return slurmctld's estimate for this spec; None if it refuses or the limit is used up."""
        if not self._left:
            return None
        self._left -= 1
        options = [f"--{n}={v}" if v else f"--{n}" for n, v in spec_options(spec).items()]
        argv = ["sbatch", "--test-only", *options]
        try:
            return parse_start(self._slurm.run(argv, stdin=spec.script, errors=True))
        except Refused:
            return None


class CandidateChange(msgspec.Struct, frozen=True):
    """A change to try.

    Attributes:
        pairs: sbatch's long options and their new values.
        kind: what is changed; one of each kind is tried before a second.
        cost: distance from the original request; smaller is better.
        notes: other effects of the change.
    """

    pairs: Pairs
    kind: str
    cost: int
    notes: tuple[str, ...] = ()


def candidate_changes(
    snapshot: PendingSnapshot, base: Request, windows: NodeTimelines
) -> Iterator[CandidateChange]:
    """Yield each single change, then each other QOS or account with each other partition or GPU."""
    identities, places = (
        [*_other_qos_and_accounts(snapshot, base)],
        [*_other_partitions(snapshot, base)],
    )
    yield from _check_fixes(base)
    if snapshot.job.requested_nodes:
        yield CandidateChange(
            (("nodelist", ""),), "nodes named", 1, ("on any node of its partition",)
        )
    yield from identities
    yield from places
    yield from _smaller_requests(base, windows)
    for who in identities:
        for place in places:
            notes, cost = (*who.notes, *place.notes), who.cost + place.cost
            yield CandidateChange((*place.pairs, *who.pairs), f"{who.kind} and place", cost, notes)


def resource_need(request: Request) -> ResourceNeed:
    """Return the resources that a request needs."""
    return ResourceNeed(
        nodes=request.nodes,
        per_node=request.per_node,
        seconds=request.seconds,
        names=frozenset(n.name for n in request.fitting)
        & {n.name for n in selected_nodes(request)},
        exclusive=takes_whole_nodes(request.spec, request.partition),
    )


def shorter_time_limit(request: Request, windows: NodeTimelines) -> str | None:
    """Return a time limit that ends before the next plan; None if that does not help."""
    longest = windows.longest(resource_need(request)) - _SPARE
    asked = request.seconds or longest + 1
    if longest >= asked or longest < max(_SPARE, asked * _LEAST):
        return None
    return format_duration(longest // 60 * 60)


def _check_fixes(base: Request) -> Iterator[CandidateChange]:
    """Yield the fixes of slurmkit's checks for limits that keep the job from ever starting."""
    for finding in check(base):
        if finding.severity == "error" and finding.fix:
            notes = (f"allowed by {finding.source}",) if finding.source else ()
            yield CandidateChange(finding.fix, f"fix {finding.code}", 0, notes)


def _other_qos_and_accounts(snapshot: PendingSnapshot, base: Request) -> Iterator[CandidateChange]:
    own = base.association
    for name in own.qos if own else ():
        if name != snapshot.job.qos:
            yield CandidateChange((("qos", name),), "qos", 1)
    for each in snapshot.standing.associations:
        if each.user == snapshot.job.user and each.account != snapshot.job.account:
            note = f"charged to account {each.account}"
            yield CandidateChange((("account", each.account),), "account", 2, (note,))


def _other_partitions(snapshot: PendingSnapshot, base: Request) -> Iterator[CandidateChange]:
    """Yield other partitions and other GPU types."""
    for partition in snapshot.capabilities.partitions:
        if partition.state != "UP":
            continue
        here = partition.name in snapshot.partitions
        place: Pairs = () if here else (("partition", partition.name),)
        if place and snapshot.job.requested_nodes:  # the named nodes are in the old partition
            place = (*place, ("nodelist", ""))
        for gpus in _gpu_pairs(snapshot, base, partition):
            if pairs := (*place, *gpus):
                asked = base.spec.gpus.type if base.spec.gpus else None
                notes = _type_notes(gpus, partition, asked)
                yield CandidateChange(pairs, "place", 2 + 2 * bool(gpus), notes)


def _type_notes(gpus: Pairs, partition: Partition, asked: str | None) -> tuple[str, ...]:
    if gpus and ":" not in gpus[0][1]:
        return (f"Slurm does not know the type of the GPUs in partition {partition.name}",)
    if gpus and Gres("gpu", asked, 1).is_mig:
        return ("a whole GPU instead of a MIG slice",)
    return ()


def _gpu_pairs(snapshot: PendingSnapshot, base: Request, partition: Partition) -> list[Pairs]:
    """Return the changes that make the GPU request fit a partition; () means no change."""
    gpus = base.spec.gpus
    if gpus is None or gpus.is_part or gpus.mig or gpus.type is None:
        return [()]
    kinds = {
        gres.type
        for node in snapshot.capabilities.nodes_of(partition.name)
        for gres in node.gres
        if gres.name == "gpu" and not gres.is_mig
    }
    if gpus.type in kinds and partition.name not in snapshot.partitions:
        return [()]
    option = _GPU_OPTIONS[gpus.per]
    others = sorted((kind for kind in kinds if kind != gpus.type), key=str)
    return [((option, f"{kind}:{gpus.count}" if kind else str(gpus.count)),) for kind in others]


def _smaller_requests(base: Request, windows: NodeTimelines) -> Iterator[CandidateChange]:
    """Yield smaller requests that fit now: less time, fewer nodes, fewer GPUs, less memory."""
    if (time := shorter_time_limit(base, windows)) is not None:
        yield CandidateChange((("time", time),), "time", 3, ("if the job can end in that time",))
    for nodes in _node_counts(base.nodes, windows.count(resource_need(base))):
        note = f"{nodes} instead of {base.nodes} nodes, with as many GPUs on each"
        yield CandidateChange((("nodes", str(nodes)),), "nodes", 4, (note,))
    gpus = base.spec.gpus
    if gpus is not None and not gpus.is_part:
        kind = f"{gpus.type}:" if gpus.type else ""
        for count in range(gpus.count - 1, 0, -1):
            pairs = ((_GPU_OPTIONS[gpus.per], f"{kind}{count}"),)
            yield CandidateChange(pairs, "gpus", 5)
    yield from _less_memory(base, windows)


def _node_counts(asked: int, room: int) -> list[int]:
    """Return node counts to try, largest first; `room`, the count free now, is among them."""
    tried = {asked - 1, asked // 2, asked // 4, 1, room}
    return sorted((n for n in tried if 0 < n < asked), reverse=True)


def _less_memory(base: Request, windows: NodeTimelines) -> Iterator[CandidateChange]:
    """Yield the most memory per node that is free, if only memory is short."""
    asked = base.per_node.get("mem")
    if asked is None or base.spec.mem_per_cpu or base.spec.mem_per_gpu:
        return
    rest = msgspec.structs.replace(
        resource_need(base), per_node={n: v for n, v in base.per_node.items() if n != "mem"}
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
        yield CandidateChange((("mem", size),), "memory", 3)


class StartEstimator:
    """Estimates the start of one pending job with changed options.

    Args:
        snapshot: the snapshot of the job.
        planned: node lists that backfill has planned for pending jobs, by raw job id.
        start: the job's own planned start in epoch seconds; None if Slurm has no plan.

    Attributes:
        base: the job as a request; None if its TRES differ from those that Slurm prints.
        now: epoch seconds of the snapshot.
        before: a change must start before this time, in epoch seconds, to be of use.
    """

    def __init__(
        self, snapshot: PendingSnapshot, planned: dict[str, str], start: int | None
    ) -> None:
        self._snapshot, self._planned, self._start = snapshot, planned, start
        self.again: RequestBuilder = request_builder(rebuild_request(snapshot))
        self.now = int(snapshot.taken)
        self.base = self._rebuilt()
        self.windows = self._windows_for(snapshot.job.qos, self._comes_first)
        self._elsewhere: dict[str, NodeTimelines] = {}
        self._crowded = self._unplanned(self._comes_first)
        self._crowded_for_last = self._unplanned(lambda _: True)
        self.before = self._limit()

    def estimate_start(self, pairs: Pairs) -> int | None:
        """Return when the job would start with these options changed; None if not soon enough."""
        request = self.again(pairs)
        crowded = self._crowded_for_last if self._may_come_last(pairs) else self._crowded
        if request is None or request.partition.name in crowded:
            return None
        if _never_starts(request, doubted=True) or would_wait_for_limit(request):
            return None
        return self._windows(pairs).earliest_start(resource_need(request), self.before)

    def shorten(self, candidate: CandidateChange) -> CandidateChange | None:
        """Shorten the candidate's time limit so that it fits before the next plan."""
        request = self.again(candidate.pairs)
        time = shorter_time_limit(request, self._windows(candidate.pairs)) if request else None
        if time is None:
            return None
        notes = (*candidate.notes, "if the job can end in that time")
        pairs = (*candidate.pairs, ("time", time))
        return CandidateChange(pairs, "place and time", candidate.cost + 3, notes)

    @property
    def why_no_change(self) -> str:
        """Why no change is needed: the unchanged job has room now; empty if it has none."""
        for_room = self._snapshot.job.reason.startswith(_FOR_ROOM)
        crowded = self._crowded & set(self._snapshot.partitions)
        if self.before > self.now or crowded or not for_room:
            return ""
        if self._start is None or self._start < self.now + _NOW:
            return "enough is free now: Slurm starts the job when it next looks at it"
        return "enough seems to be free now, but Slurm plans a later start: wait for that"

    def is_immediate(self, at: int) -> bool:
        """Return whether a start counts as immediate."""
        return at <= self.now + _NOW

    def _rebuilt(self) -> Request | None:
        base = self.again(())
        if base is None:
            return None
        # Trust the rebuilt request only if its CPUs, GPUs and nodes are those that Slurm prints.
        wants = self._snapshot.total_tres
        names = [name for name in wants if name == "cpu" or name.startswith("gres/gpu")]
        same = all(base.total.get(name, 0) == wants[name] for name in names)
        return base if same and base.nodes == self._snapshot.job.nodes else None

    def _comes_first(self, row: QueueRow) -> bool:
        return comes_before(row, self._snapshot.job)

    def _may_come_last(self, pairs: Pairs) -> bool:
        """Return whether jobs that come after this one now may come before the changed job."""
        changed = dict(pairs)
        if changed.keys() & {"partition", "account"}:
            return True
        if "qos" not in changed:
            return False
        new, now = map(self._snapshot.standing.qos_named, (changed["qos"], self._snapshot.job.qos))
        return new is None or now is None or new.priority < now.priority

    def _unplanned(self, comes_first: Callable[[QueueRow], bool]) -> set[str]:
        """Return partitions where a job ahead of this one has no plan, so no estimate is safe."""
        ahead = [
            row
            for row in self._snapshot.rows
            if is_eligible(row, self._snapshot.taken)
            and row.raw_id not in self._planned
            and row.raw_id != self._snapshot.job.raw_id
            and row.reason in _FOR_ROOM
            and comes_first(row)
        ]
        return {name for row in ahead for name in row.partition.split(",")}

    def _limit(self) -> int:
        far = self.now + _FAR
        if self.base is None or _never_starts(self.base):
            return far
        if would_wait_for_limit(self.base):
            return self.now + _NOW  # its start is unknown: only an immediate start is sooner
        # Slurm rounds its plans up, so our estimate for the unchanged job may be earlier.
        estimate = self.windows.earliest_start(resource_need(self.base), far)
        starts = [at for at in (self._start, estimate) if at is not None]
        return min(starts) - _SOONER if starts else self.now + _NOW

    def _windows(self, pairs: Pairs) -> NodeTimelines:
        """Return the node timelines for a change.

        With another partition, QOS or account the job may have the lowest priority of all. So the
        plans of all other jobs then count.
        """
        changed = dict(pairs)
        if not changed.keys() & {"partition", "qos", "account"}:
            return self.windows
        qos = changed.get("qos", self._snapshot.job.qos)
        if qos not in self._elsewhere:
            self._elsewhere[qos] = self._windows_for(qos, lambda _: True)
        return self._elsewhere[qos]

    def _windows_for(self, qos: str, comes_first: Callable[[QueueRow], bool]) -> NodeTimelines:
        known = self._snapshot.standing.qos_named(qos)
        by_qos = self._snapshot.capabilities.config.get("PreemptType", "").startswith("preempt/qos")
        preempts = set(known.preempts) if known and by_qos else set()
        return NodeTimelines(
            self._snapshot, self._planned, lambda row: row.qos in preempts, comes_first
        )


def _never_starts(request: Request, *, doubted: bool = False) -> bool:
    """Return whether a check forbids the request, or its partition is not UP.

    Args:
        request: the job.
        doubted: whether a doubt of a check that it ever starts counts, too.
    """
    found = (finding for each in CHECKS for finding in each(request))
    return request.partition.state != "UP" or any(
        finding.severity == "error" or (doubted and finding.keeps_from_starting)
        for finding in found
    )
