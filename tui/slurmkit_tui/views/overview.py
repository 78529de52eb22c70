"""What Home shows, put together in a thread from the answers of other views' questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from slurmkit.cluster.my_jobs import MyJobs, with_ended
from slurmkit.formats.display import format_number, join_names
from slurmkit.formats.durations import format_duration
from slurmkit.formats.job_states import state_kind
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.pending_reasons import YOU, explain_reason
from slurmkit.state.gpu_use import SPANS, GpuUseNow
from slurmkit.state.gpumap_model import GpuCounts, count_gpus
from slurmkit.state.nodes import NodesSnapshot
from slurmkit.state.queue_rows import pending_reason
from slurmkit_tui.feed import SOURCE_NAMES, FeedAnswer, FeedQuestion
from slurmkit_tui.feed.history import GpuCurve, make_curve
from slurmkit_tui.jobform.gpu_use import IDLE_SECONDS, GpusNow, UsedGpus, is_idle
from slurmkit_tui.jobform.my_jobs import MyJobRow, my_job_rows
from slurmkit_tui.session import ClusterSession

_PASSES_BY_ITSELF = ("BeginTime", "Dependency")  # though its owner can change it
_NEARLY_USED = 0.9  # share of a budget


class HomeQuestions(NamedTuple):
    """The questions whose answers Home shows, each once."""

    mine: FeedQuestion
    ended: FeedQuestion
    nodes: FeedQuestion
    utilization: FeedQuestion
    usage: FeedQuestion
    gpus_now: FeedQuestion


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
        sources: by the field of `HomeQuestions`; `ended` without an answer of sacct is missing.
        gpus: by type, the one with the most GPUs first.
        used: how many of the held GPUs work, by type; None for untyped ones, as in `gpus`.
        wanted: GPUs that pending jobs request; None is unknown.
        wanted_taken: epoch seconds of that number; None while there is none.
        curve: the last 24 hours.
        curve_note: why the ledger's part of the curve is missing; empty when it is there.
        running: my running jobs, the one that ends first first.
        waiting: my pending jobs.
        failed: my jobs that failed since `since`, latest first.
        since: when the person last saw Home; None if unknown: then of the last two days.
        now: epoch seconds.
        budgets: rows of balances and of `report budget`, see `LedgerUsage`.
        attention: the most urgent first.
    """

    sources: Mapping[str, Source]
    gpus: tuple[GpuCounts, ...]
    used: Mapping[str | None, UsedGpus]
    wanted: int | None
    wanted_taken: float | None
    curve: GpuCurve
    curve_note: str
    running: tuple[MyJobRow, ...]
    waiting: tuple[MyJobRow, ...]
    failed: tuple[MyJobRow, ...]
    since: float | None
    now: float
    budgets: tuple[Mapping[str, Any], ...]
    attention: tuple[Attention, ...] = ()

    def is_known(self, *names: str) -> bool:
        """Return whether all these sources have answered, however long ago."""
        return all(self.sources[name].taken is not None for name in names)


class JobRowsMaker:
    """Makes the rows of my jobs, and counts the used GPUs, once for each answer.

    Home itself is made again whenever any of its questions is answered.
    """

    def __init__(self) -> None:
        self._counted_of: tuple[NodesSnapshot, GpusNow, str | None] | None = None
        self._used: dict[str | None, UsedGpus] = {}
        self._made_of: tuple[MyJobs, GpusNow | None, str | None] | None = None
        self._rows: tuple[MyJobRow, ...] = ()

    def make(
        self, queue: MyJobs | None, gpus_now: GpusNow | None, cluster: str | None
    ) -> tuple[MyJobRow, ...]:
        """Return the rows of my jobs in the queue, with what their GPUs do."""
        if queue is None:
            return ()
        of = self._made_of
        if of is None or of[0] is not queue or of[1] is not gpus_now or of[2] != cluster:
            in_queue = msgspec.structs.replace(queue, ended=())
            self._rows = my_job_rows(in_queue, gpus=gpus_now, cluster=cluster)
            self._made_of = queue, gpus_now, cluster
        return self._rows

    def count_used(
        self, nodes: NodesSnapshot | None, gpus_now: GpusNow | None, cluster: str | None
    ) -> dict[str | None, UsedGpus]:
        """Return how many of the held GPUs work, by type; see `GpusNow.by_type`."""
        if nodes is None or gpus_now is None:
            return {}
        of = self._counted_of
        if of is None or of[0] is not nodes or of[1] is not gpus_now or of[2] != cluster:
            self._used = gpus_now.by_type(cluster, nodes.rows)
            self._counted_of = nodes, gpus_now, cluster
        return self._used


def make_overview(
    answer: FeedAnswer | None,
    session: ClusterSession,
    asks: HomeQuestions,
    rows: JobRowsMaker | None = None,
) -> Overview:
    """Put the last answers together.

    Args:
        answer: about my jobs in the queue; None while there is none.
        session: has the answers to the further questions, and why there are none.
        asks: the questions.
        rows: makes the rows of my jobs, and knows the last ones.
    """
    last = {name: session.last_answer(ask) for name, ask in asks._asdict().items()}
    answers = {name: each.answer for name, each in last.items()} | {"mine": answer}
    values = {name: each.value for name, each in answers.items() if each}
    sources = {
        name: Source(SOURCE_NAMES[ask.what], each.taken if each else None, last[name].problem)
        for (name, ask), each in zip(asks._asdict().items(), answers.values(), strict=True)
    }
    ended: MyJobs | None = values.get("ended")
    without_history = ended.without_history if ended else last["ended"].problem
    sources["ended"] = Source(
        "sacct", None if without_history or not ended else ended.taken, without_history
    )
    queue: MyJobs | None = values.get("mine")
    nodes: NodesSnapshot | None = values.get("nodes")
    counts = count_gpus(nodes.rows) if nodes else ()
    gpus_now: GpusNow | None = values.get("gpus_now")
    maker = rows or JobRowsMaker()
    jobs = maker.make(queue, gpus_now, session.cluster)
    ledger, usage, now = values.get("utilization"), values.get("usage"), session.clock()
    history, span = session.history, SPANS["24h"]
    overview = Overview(
        sources=sources,
        gpus=tuple(sorted(counts, key=lambda each: (-each.total, each.type or ""))),
        used=maker.count_used(nodes, gpus_now, session.cluster),
        wanted=history.wanted,
        wanted_taken=history.wanted_taken,
        curve=make_curve(
            ledger.curve if ledger else (),
            history.hours(span.begins(now)[0], now + 1),
            span,
            now=now,
            types={each.type or "": each.total for each in counts},
        ),
        curve_note=_curve_note(ledger, last["utilization"].problem),
        running=tuple(sorted((job for job in jobs if job.started), key=_ends)),
        waiting=tuple(job for job in jobs if any(row.waits for row in job.rows)),
        failed=failed_jobs(with_ended(queue, ended) if queue and ended else ended, history.since),
        since=history.since,
        now=now,
        budgets=tuple(usage.budgets) if usage else (),
    )
    if overview.is_known("ended"):  # else what failed was not seen
        history.look(now)
    by_job = gpus_now.by_job(session.cluster) if gpus_now else {}
    return overview._replace(attention=tuple(find_attention(overview, nodes, by_job)))


def _curve_note(ledger: Any, problem: str) -> str:
    """Return why the ledger's part of the curve is missing; empty when it is there."""
    if ledger is None:
        return problem
    if ledger.without_history or ledger.curve:
        return str(ledger.without_history)
    return "the ledger shows only your jobs" if not ledger.everybody else "the ledger has no data"


def _ends(job: MyJobRow) -> tuple[bool, int]:
    """Sort key: the least time left first, jobs without a limit last."""
    return job.left is None, job.left or 0


def failed_jobs(mine: MyJobs | None, since: float | None) -> tuple[MyJobRow, ...]:
    """Return my jobs that failed since a time, latest first; of an array only those tasks."""
    last_runs: dict[str, JobInfo] = {}
    for run in mine.ended if mine else ():  # latest first: a requeued job counts by its last run
        last_runs.setdefault(run.job_id, run)
    failed = tuple(
        run
        for run in last_runs.values()
        if run.ended is not None and (since is None or run.ended >= since) and _has_failed(run)
    )
    return my_job_rows(msgspec.structs.replace(mine, rows=(), ended=failed)) if mine else ()


def _has_failed(run: JobInfo) -> bool:
    """Return whether a run failed, or was cancelled by somebody else."""
    if run.state == "CANCELLED":
        return run.cancelled_by != run.user
    return state_kind(run.state) == "bad"


def waiting_reason(job: MyJobRow) -> str:
    """Return why a job waits, in words; the tasks of an array may have several reasons."""
    reasons = dict.fromkeys(pending_reason(row) for row in job.rows if row.waits)
    return "; ".join(explain_reason(each, job.whole).meaning for each in reasons if each)


def find_attention(
    overview: Overview, nodes: NodesSnapshot | None, gpus_now: Mapping[str, Sequence[GpuUseNow]]
) -> list[Attention]:
    """Return what somebody should look at, the most urgent first.

    Args:
        overview: everything else.
        nodes: all nodes; None is unknown.
        gpus_now: what the GPUs of running jobs do, by job id, as far as it is known.
    """
    found = [
        Attention(f"job {job.job_id} {job.name} ends in {format_duration(job.left)}", "mine")
        for job in overview.running
        if job.ends_soon and job.left is not None
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
        Attention(words, "mine") for job in overview.running if (words := _idle(job, gpus_now))
    ]
    found += [
        Attention(words, "usage") for row in overview.budgets if (words := _tight_budget(row))
    ]
    out = [node for node in nodes.rows if node.kind in ("down", "drained")] if nodes else []
    if out:
        gpus = sum(each.closed for each in overview.gpus)
        lost = f" with {gpus} {'GPU' if gpus == 1 else 'GPUs'}" if gpus else ""
        count = f"{len(out)} node is" if len(out) == 1 else f"{len(out)} nodes are"
        out_names = join_names([node.name for node in out], 3)
        found.append(Attention(f"{count} out{lost}: {out_names}", "nodes"))
    return found


def _advice_to_me(job: MyJobRow) -> str:
    """Return what its owner must do for a pending job to start; empty if waiting is enough."""
    for reason in dict.fromkeys(pending_reason(row) for row in job.rows if row.waits):
        if _is_up_to_me(reason):
            return explain_reason(reason, job.whole).advice
    return ""


@lru_cache(maxsize=256)  # many jobs wait for the same reason
def _is_up_to_me(reason: str) -> bool:
    """Return whether a job with this reason waits until its owner does something."""
    return bool(reason) and (
        reason not in _PASSES_BY_ITSELF and explain_reason(reason, "").who == YOU
    )


def _idle(job: MyJobRow, gpus_now: Mapping[str, Sequence[GpuUseNow]]) -> str:
    """Return that GPUs of a running job do nothing; empty if none, or if nobody knows."""
    rows = (row for row in job.rows if not row.waits)
    idle = sum(is_idle(gpu) for row in rows for gpu in gpus_now.get(row.job_id, ()))
    if not idle:
        return ""
    count = "1 GPU" if idle == 1 else f"{idle} GPUs"
    minutes = IDLE_SECONDS // 60
    return f"{count} of job {job.job_id} {job.name} idle for {minutes} minutes or more"


def _tight_budget(row: Mapping[str, Any]) -> str:
    """Return a warning about a budget that is nearly used up; empty for any other."""
    used, of = row.get("gpu_hours_used"), row.get("gpu_hours_budget")
    if used is None or not of or used < _NEARLY_USED * of:
        return ""
    whose, unit = row.get("holder") or row.get("pi"), row.get("unit") or "GPU-hours"
    return f"budget of {whose}: {format_number(max(0.0, of - used))} {unit} left"
