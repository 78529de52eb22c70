"""View of my jobs: running, pending, and ended in the last two days."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from textual import work

from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.errors import SlurmkitError
from slurmkit.formats import job_states as slurm_states
from slurmkit.formats.display import format_percent, format_time, printable
from slurmkit.formats.durations import format_duration, parse_elapsed
from slurmkit.jobs.steps import UserEfficiency
from slurmkit_tui import themes
from slurmkit_tui.feed import GPUS_NOW, FeedAnswer, FeedQuestion, RecordedFeed
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.jobform.gpu_use import GpusOfJob
from slurmkit_tui.jobform.my_jobs import (
    NO_EFFICIENCIES,
    MyJobRow,
    ids_of_ended_gpus,
    my_job_rows,
)
from slurmkit_tui.session import ClusterSession, LastAnswer
from slurmkit_tui.views.base import FurtherQuestion, SummaryPart, TableView
from slurmkit_tui.views.queue import running_and_pending
from slurmkit_tui.widgets.listing import (
    ArrangedRows,
    Listing,
    RowContext,
    TableColumn,
    longest_text,
)

EFFICIENCY_QUESTION = FeedQuestion("uses")
_ENDED_EVERY = 30.0  # intervals; what ended jobs did changes only with an ingest
_EVERY = 3  # answers about jobs per answer about efficiency
_REST = 20  # shortest pause between two of these, as a multiple of the time one took


def _number(job: MyJobRow) -> int:
    return int(re.split(r"\D", job.job_id)[0])


def _muted(_job: MyJobRow, _context: RowContext) -> str:
    return "cell--muted"


def _left_style(job: MyJobRow, _context: RowContext) -> str:
    return "cell--warn" if job.ends_soon else ""


def _gpus(job: MyJobRow) -> float | None:
    """Return the number of whole GPUs, to sort by; parts of a GPU count between 0 and 1."""
    words = [piece.partition(" ") for piece in job.gpus.split(", ")]
    counted = [(int(number), kind) for number, _, kind in words if number.isdecimal()]
    whole = sum(number for number, kind in counted if kind not in ("shard", "mps"))
    parts = sum(number for number, kind in counted if kind in ("shard", "mps"))
    return whole or parts / (parts + 1) if counted else None


def _share(name: str) -> Callable[[MyJobRow, RowContext], str]:
    return lambda job, _: format_percent(getattr(job, name)) if job.started else ""


def _use(job: MyJobRow, _context: RowContext) -> str:
    return "" if job.use is None else job.use.words


def _use_style(job: MyJobRow, _context: RowContext) -> str:
    if job.use is None or job.use.percent is None:
        return "cell--muted"
    return "cell--warn" if job.use.is_low else "cell--gpus"


def _has_curve(job: MyJobRow) -> bool:
    return job.use is not None and any(percent is not None for percent in job.use.curve)


def _curve(job: MyJobRow, _context: RowContext) -> str:
    return "" if job.use is None else job.use.sparkline(plain=themes.has_plain_signs())


COLUMNS = (
    TableColumn(
        "jobid",
        "JOBID",
        lambda j, _: j.job_id,
        _number,
        longest_text("job_id"),
        match=attrgetter("job_id"),
        aliases=("id", "job"),
        limit=22,
    ),
    TableColumn(
        "state",
        "STATE",
        lambda j, _: j.state,
        attrgetter("state"),
        longest_text("state"),
        match=lambda j: f"{j.state} {j.kind} {slurm_states.state_code(j.kind)}",
        aliases=("st",),
        limit=20,
        narrow=13,
        style=lambda j, _: themes.state_style(j.kind),
    ),
    TableColumn(
        "time",
        "TIME",
        lambda j, _: j.elapsed,
        lambda j: parse_elapsed(j.elapsed),
        longest_text("elapsed"),
        aliases=("elapsed",),
        right=True,
    ),
    TableColumn(
        "left",
        "LEFT",
        lambda j, _: "" if j.left is None else format_duration(j.left),
        attrgetter("left"),
        10,
        right=True,
        style=_left_style,
    ),
    TableColumn("cpu", "CPU", _share("cpu"), attrgetter("cpu"), 5, right=True, wide=True),
    TableColumn(
        "mem",
        "MEM",
        _share("mem"),
        attrgetter("mem"),
        5,
        right=True,
        wide=True,
        aliases=("memory",),
    ),
    TableColumn(
        "gpus",
        "GPUS",
        lambda j, _: j.gpus,
        _gpus,
        longest_text("gpus"),
        limit=18,
        aliases=("gpu",),
        match=attrgetter("gpus"),
        style=lambda j, _: "cell--gpus" if j.held else "cell--muted",
    ),
    TableColumn(
        "use",
        "USE",
        _use,
        lambda j: None if j.use is None else j.use.percent,
        lambda rows: max((len(row.use.words) for row in rows if row.use), default=0),
        right=True,
        narrow=11,
        style=_use_style,
    ),
    TableColumn(
        "curve",
        "LAST HOUR",
        _curve,
        lambda j: None if j.use is None else j.use.percent,
        lambda rows: max((len(row.use.curve) for row in rows if _has_curve(row)), default=0),
        wide=True,
        style=_use_style,
    ),
    TableColumn(
        "held",
        "GPU INDICES",
        lambda j, _: j.held,
        attrgetter("held"),
        longest_text("held"),
        aliases=("indices",),
        limit=24,
        wide=True,
    ),
    TableColumn(
        "where",
        "WHERE",
        lambda j, _: j.where,
        attrgetter("where"),
        longest_text("where"),
        aliases=("on", "reason", "node"),
        limit=32,
        narrow=12,
    ),
    TableColumn(
        "name",
        "NAME",
        lambda j, _: j.name,
        attrgetter("name"),
        longest_text("name"),
        limit=40,
        narrow=60,
    ),
    TableColumn(
        "partition",
        "PARTITION",
        lambda j, _: j.partition,
        attrgetter("partition"),
        longest_text("partition"),
        short="PART",
        limit=14,
        narrow=9,
        wide=True,
    ),
    TableColumn(
        "account",
        "ACCOUNT",
        lambda j, _: j.account,
        attrgetter("account"),
        longest_text("account"),
        limit=14,
        wide=True,
        style=_muted,
        shown=False,
    ),
    TableColumn(
        "ended",
        "ENDED",
        lambda j, _: format_time(j.ended) if j.ended else "",
        attrgetter("ended"),
        lambda rows: 23 if any(row.ended for row in rows) else 5,
        limit=23,
        wide=True,
        style=_muted,
    ),
    TableColumn(
        "exit",
        "EXIT",
        lambda j, _: j.exit_code,
        attrgetter("exit_code"),
        longest_text("exit_code"),
        limit=9,
    ),
    TableColumn(
        "submit",
        "SUBMITTED",
        lambda j, _: format_time(j.submitted),
        attrgetter("submitted"),
        23,
        limit=23,
        wide=True,
        style=_muted,
        shown=False,
    ),
)
MY_JOBS = Listing(
    "job",
    COLUMNS,
    key=attrgetter("key"),
    haystack=lambda j: "\n".join((j.job_id, j.name, j.state, j.kind, j.where, j.partition)),
    empty="you have no jobs, and none ended in the last two days",
)


class _Jobs(NamedTuple):
    """An answer about my jobs, and the cluster it is from."""

    answer: FeedAnswer
    session: ClusterSession


class MineView(TableView):
    """My jobs, with each array in one row."""

    NAME = "mine"
    OF_JOBS = True
    LISTING: ClassVar[Listing] = MY_JOBS
    ASK = FeedQuestion("mine")
    also = (FurtherQuestion(GPUS_NOW, 3.0),)  # and one about ended jobs, see `_ask_of_ended`

    def __init__(self, *, mine: bool = False) -> None:
        del mine  # all rows are mine
        super().__init__()
        self._without_history = ""
        self._last: _Jobs | None = None
        self._answers = 0  # since efficiency was last asked for
        self._fresh = False
        self._ended_gpus: GpusOfJob | None = None  # of the last ended jobs that were asked about

    def make(self, answer: FeedAnswer, session: ClusterSession) -> ArrangedRows:
        """Make the rows with what is known of the jobs now, so that they need not wait."""
        if self._last is None or self._last.answer is not answer:  # not one that is shown again
            self._fresh = True
        self._last = _Jobs(answer, session)
        return super().make(answer, session)

    def take(self, prepared: ArrangedRows) -> None:
        """Show the rows; with every third answer, ask for the efficiencies."""
        super().take(prepared)
        if self._last is not None:
            self._ask_of_ended(self._last.answer.value)
        if not self._fresh:  # an old answer shown again, perhaps while paused
            return
        self._fresh = False
        self._answers += 1
        if self._last is not None and self._is_due(*self._last):
            self._answers = 0
            self._measure(self._last.session)

    def _ask_of_ended(self, mine: MyJobs) -> None:
        """Ask about the GPUs of ended jobs: at once when another one has ended."""
        ids = ids_of_ended_gpus(mine)
        ended = (FurtherQuestion(FeedQuestion("gpus-ended", (ids,)), _ENDED_EVERY),) if ids else ()
        self.also = (*MineView.also, *ended)

    def _is_due(self, answer: FeedAnswer, session: ClusterSession) -> bool:
        uses = session.last_answer(EFFICIENCY_QUESTION)
        last = uses.answer
        if last is None and not uses.problem:
            return not uses.pace.asking
        # A slow answer is asked for less often.
        rested = last is None or answer.taken > last.taken + _REST * last.seconds
        return self._answers >= _EVERY and rested and not uses.pace.asking

    @work(group="uses", description="uses")
    async def _measure(self, session: ClusterSession) -> None:
        """Fetch the efficiencies, and show the same jobs again with them."""
        uses = session.last_answer(EFFICIENCY_QUESTION)
        uses.pace.asking = True
        try:
            uses.answer = await in_thread(partial(session.feed.fetch, EFFICIENCY_QUESTION))
            uses.problem = ""
        except SlurmkitError as error:
            # An old recording may lack this question; each `?` says enough.
            uses.problem = "" if isinstance(session.feed, RecordedFeed) else str(error)
        finally:
            uses.pace.asking = False
        if self._last is not None and self._last.session is session:
            super().take(await in_thread(partial(super().make, *self._last)))

    def rows_of(self, answer: FeedAnswer) -> Sequence[MyJobRow]:
        self._without_history = answer.value.without_history
        efficiencies = self._uses.of if self._uses else NO_EFFICIENCIES
        gpus, session = self._gpus_answer, self._last and self._last.session
        if session and len(self.also) > 1 and (did := session.last_answer(self.also[1].ask).answer):
            self._ended_gpus = did.value
        return my_job_rows(
            answer.value,
            efficiencies,
            gpus.answer.value if gpus and gpus.answer else None,
            ended_gpus=self._ended_gpus,
            cluster=session.cluster if session else None,
        )

    @property
    def _gpus_answer(self) -> LastAnswer | None:
        return self._last.session.last_answer(GPUS_NOW) if self._last else None

    @property
    def _uses_answer(self) -> LastAnswer | None:
        return self._last.session.last_answer(EFFICIENCY_QUESTION) if self._last else None

    @property
    def _uses(self) -> UserEfficiency | None:
        answer = self._uses_answer and self._uses_answer.answer
        return answer.value if answer else None

    @property
    def rows(self) -> Sequence[Any]:
        """Return the chosen jobs in the queue; only if there are none, ended jobs."""
        chosen = self.table.chosen_rows
        queued = [row for job in chosen for row in job.rows]
        return queued or [job.last_run for job in chosen if job.last_run is not None]

    def tally(self, rows: Sequence[MyJobRow], context: RowContext) -> Iterable[SummaryPart]:
        del context
        queued = [row for job in rows for row in job.rows]
        yield from running_and_pending(queued)
        yield f"{len([job for job in rows if job.ended]):,} ended lately"
        if self._without_history:
            yield ("ended jobs are missing: slurmdbd does not answer", "$warning")

    def aside(self) -> Iterable[SummaryPart]:
        """Name source and age of the columns CPU, MEM and USE."""
        if self._uses is not None:
            at = format_time(int(self._uses.taken))[11:19]
            yield f"CPU, MEM from {self._uses.source} at {at}"
        problem = self._uses_answer.problem if self._uses_answer else ""
        if why := problem or (self._uses and self._uses.missing):
            yield (f"CPU, MEM unknown: {printable(why)}", "$warning")
        yield from self._about_gpus()

    def _about_gpus(self) -> Iterable[SummaryPart]:
        """Yield why the use of GPUs is unknown; an old recording may lack the question."""
        found = self._gpus_answer
        is_live = self._last and not isinstance(self._last.session.feed, RecordedFeed)
        if found is None or not found.problem or not is_live:
            return
        if any(row.use is not None for row in self.table.rows_shown):
            yield (f"USE unknown: {printable(found.problem)}", "$warning")
