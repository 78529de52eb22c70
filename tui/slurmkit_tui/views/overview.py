"""What Home shows, put together in a thread from the answers of other views' questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.formats.display import format_number, join_names
from slurmkit.formats.durations import format_duration
from slurmkit.formats.job_states import state_kind
from slurmkit.jobs.pending_reasons import YOU, explain_reason
from slurmkit.state.nodes import NodeRow, NodesSnapshot
from slurmkit.state.queue_rows import pending_reason
from slurmkit_tui.feed import SOURCE_NAMES, FeedQuestion
from slurmkit_tui.feed.composed import SPANS, gpus_wanted
from slurmkit_tui.feed.history import GpuCurve, make_curve
from slurmkit_tui.jobform.my_jobs import MyJobRow, my_job_rows
from slurmkit_tui.session import ClusterSession

_SOON = 900  # seconds; a job that ends sooner than this needs attention
_PASSES_BY_ITSELF = ("BeginTime", "Dependency")  # though its owner can change it
_NEARLY_USED = 0.9  # share of a budget


class GpuTypeCount(NamedTuple):
    """Number of GPUs of one type; `down` are those that no job holds and none can get."""

    name: str
    held: int
    free: int
    down: int

    @property
    def total(self) -> int:
        """All GPUs of the type."""
        return self.held + self.free + self.down


class Source(NamedTuple):
    """Where the data of a box is from.

    Attributes:
        name: command or daemon.
        taken: epoch seconds of the answer; None while there is none.
        problem: why the last question got no answer; empty when it got one.
    """

    name: str
    taken: float | None
    problem: str

    @property
    def missing(self) -> str:
        """What to say instead of data; empty if there is data, however old."""
        if self.taken is not None:
            return ""
        return f"unknown: {self.problem}" if self.problem else f"asking {self.name}…"


class Attention(NamedTuple):
    """Something that somebody should look at, and the view that shows more of it."""

    words: str
    view: str


class Overview(NamedTuple):
    """Everything that Home shows at one time.

    Attributes:
        now: epoch seconds.
        sources: by name of the question.
        gpus: by type.
        wanted: GPUs that pending jobs request; None is unknown.
        curve: the last 24 hours.
        curve_note: why the ledger's part of the curve is missing; empty when it is there.
        running: my running jobs, the one that ends first first.
        waiting: my pending jobs.
        failed: my jobs that failed since `since`, latest first.
        since: when the person last saw Home; None if unknown: then of the last two days.
        without_history: why ended jobs are unknown; empty when they are known.
        budgets: rows of `report budget`.
        attention: the most urgent first.
    """

    now: float
    sources: Mapping[str, Source]
    gpus: tuple[GpuTypeCount, ...]
    wanted: int | None
    curve: GpuCurve
    curve_note: str
    running: tuple[MyJobRow, ...]
    waiting: tuple[MyJobRow, ...]
    failed: tuple[MyJobRow, ...]
    since: float | None
    without_history: str
    budgets: tuple[Mapping[str, Any], ...]
    attention: tuple[Attention, ...]


class OverviewMaker:
    """Makes overviews; it counts the GPUs of a long queue only once for each answer."""

    def __init__(self) -> None:
        self._counted: dict[str, float] = {}  # when each answer was taken that is in the history
        self._wanted: int | None = None

    def make(
        self, mine: MyJobs, session: ClusterSession, also: Iterable[FeedQuestion], now: float
    ) -> Overview:
        """Put the last answers together, and add them to the history by hour.

        Args:
            mine: my jobs.
            session: has the answers to the further questions.
            also: questions about the nodes, the queue, the last 24 hours, and the usage.
            now: epoch seconds.
        """
        answers = {ask.what: session.last_answer(ask) for ask in also}
        values = {what: last.answer.value for what, last in answers.items() if last.answer}
        nodes, queue = values.get("nodes"), values.get("queue")
        ledger, usage = values.get("utilization"), values.get("usage")
        history = session.history
        gpus = count_gpus(nodes.rows) if nodes else ()
        if nodes and self._is_new("nodes", nodes.taken):
            history.add_nodes(nodes.taken, *held_by_type(nodes))
        if queue and self._is_new("queue", queue.taken):
            self._wanted = gpus_wanted(queue.rows)
            history.add_wanted(queue.taken, self._wanted)
        span = SPANS["24h"]
        jobs = my_job_rows(mine)
        running = [job for job in jobs if job.started and not job.ended]
        since = history.since
        failed = tuple(job for job in jobs if has_failed(job, since))
        overview = Overview(
            now=now,
            sources={
                "mine": Source(SOURCE_NAMES["mine"], mine.taken, ""),
                **{
                    what: Source(
                        SOURCE_NAMES[what],
                        last.answer.taken if last.answer else None,
                        last.problem,
                    )
                    for what, last in answers.items()
                },
            },
            gpus=gpus,
            wanted=self._wanted if queue else None,
            curve=make_curve(
                ledger.curve if ledger else (),
                history.hours(span.begin(now), now + 1),
                now=now,
                hours=span.hours,
            ),
            curve_note=_curve_note(ledger, answers["utilization"].problem),
            running=tuple(sorted(running, key=_ends)),
            waiting=tuple(job for job in jobs if any(row.waits for row in job.rows)),
            failed=failed,
            since=since,
            without_history=mine.without_history,
            budgets=tuple(usage.budgets) if usage else (),
            attention=(),
        )
        history.look(now)
        return overview._replace(attention=tuple(find_attention(overview, nodes)))

    def _is_new(self, what: str, taken: float) -> bool:
        is_new = self._counted.get(what) != taken
        self._counted[what] = taken
        return is_new


def _curve_note(ledger: Any, problem: str) -> str:
    if ledger is None:
        return problem
    return ledger.without_history or ("" if ledger.curve else "the ledger has read none of it")


def _ends(job: MyJobRow) -> tuple[bool, int]:
    """Sort key: the least time left first, jobs without a limit last."""
    return job.left is None, job.left or 0


def count_gpus(nodes: Sequence[NodeRow]) -> tuple[GpuTypeCount, ...]:
    """Count the GPUs by type: held, free, and those on nodes that start no job."""
    held: Counter[str] = Counter()
    free: Counter[str] = Counter()
    down: Counter[str] = Counter()
    for node in nodes:
        closed = node.kind in ("down", "drained")
        for gpu in node.gpus:
            name = gpu.type or ""
            held[name] += gpu.used
            (down if closed else free)[name] += gpu.total - gpu.used
    total = held + free + down
    names = sorted(total, key=lambda name: (-total[name], name))
    return tuple(GpuTypeCount(name, held[name], free[name], down[name]) for name in names)


def held_by_type(nodes: NodesSnapshot) -> tuple[dict[str, int], dict[str, int]]:
    """Return all GPUs by type, and those held by jobs."""
    counts = count_gpus(nodes.rows)
    return {each.name: each.total for each in counts}, {each.name: each.held for each in counts}


def has_failed(job: MyJobRow, since: float | None) -> bool:
    """Return whether an ended job failed, since a time if one is given."""
    if job.ended is None or (since is not None and job.ended < since):
        return False
    return state_kind(job.kind) == "bad"


def waiting_reason(job: MyJobRow) -> str:
    """Return why a job waits, in words; the tasks of an array may have several reasons."""
    reasons = dict.fromkeys(filter(None, (pending_reason(row) for row in job.rows if row.waits)))
    return "; ".join(explain_reason(reason, job.whole).meaning for reason in reasons)


def find_attention(overview: Overview, nodes: NodesSnapshot | None) -> list[Attention]:
    """Return what somebody should look at, the most urgent first."""
    found = [
        Attention(f"job {job.job_id} {job.name} ends in {format_duration(job.left)}", "mine")
        for job in overview.running
        if job.left is not None and job.left < _SOON
    ]
    found += [
        Attention(f"job {job.job_id} waits for you: {advice}", "mine")
        for job in overview.waiting
        if (advice := _advice_to_me(job))
    ]
    if overview.failed:
        names = join_names([f"{job.job_id} {job.name}" for job in overview.failed], 2)
        found.append(Attention(f"{len(overview.failed)} failed: {names}", "mine"))
    found += [
        Attention(words, "usage") for row in overview.budgets if (words := _tight_budget(row))
    ]
    out = [node for node in nodes.rows if node.kind in ("down", "drained")] if nodes else []
    if out:
        gpus = sum(each.down for each in overview.gpus)
        lost = f" with {gpus} {'GPU' if gpus == 1 else 'GPUs'}" if gpus else ""
        count = f"{len(out)} node is" if len(out) == 1 else f"{len(out)} nodes are"
        out_names = join_names([node.name for node in out], 3)
        found.append(Attention(f"{count} out{lost}: {out_names}", "nodes"))
    return found


def _advice_to_me(job: MyJobRow) -> str:
    """Return what its owner must do for a pending job to start; empty if waiting is enough."""
    for reason in filter(None, (pending_reason(row) for row in job.rows if row.waits)):
        text = explain_reason(reason, job.whole)
        if text.who == YOU and reason not in _PASSES_BY_ITSELF:
            return text.advice
    return ""


def _tight_budget(row: Mapping[str, Any]) -> str:
    """Return a warning about a budget that is nearly used up; empty for any other."""
    used, of = row.get("gpu_hours_used"), row.get("gpu_hours_budget")
    if used is None or not of or used < _NEARLY_USED * of:
        return ""
    return f"budget of {row.get('pi')}: {format_number(max(0.0, of - used))} GPU-hours left"
