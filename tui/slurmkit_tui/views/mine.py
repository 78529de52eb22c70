"""My jobs: what runs and waits, and how the last ones ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

from textual import work

from slurmkit import arrays
from slurmkit import states as slurm_states
from slurmkit.durations import format_duration, parse_elapsed
from slurmkit.errors import SlurmkitError
from slurmkit.facts import clock, percent
from slurmkit.jobs.efficiency import Uses
from slurmkit.text import printable
from slurmkit_tui import states
from slurmkit_tui.feed import Answer, Ask, Recorded
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.listing import Column, Context, Listing, longest
from slurmkit_tui.listview import ListView
from slurmkit_tui.myjobs import NOTHING, MyJob, my_jobs
from slurmkit_tui.session import Picture, Session
from slurmkit_tui.sheet import Arranged
from slurmkit_tui.view import Part

USES = Ask("uses")
_EVERY = 3  # answers about jobs between two about what they use
_REST = 20  # times as long as it took


def _number(job: MyJob) -> int:
    return int(re.split(r"\D", job.job_id)[0])


def _muted(_job: MyJob, _context: Context) -> str:
    return "cell--muted"


def _left_style(job: MyJob, _context: Context) -> str:
    return "cell--warn" if job.left is not None and job.left < 600 else ""


def _gpus(job: MyJob) -> float | None:
    """Whole GPUs; parts of one are more than none and less than one."""
    said = [piece.partition(" ") for piece in job.gpus.split(", ")]
    counted = [(int(number), kind) for number, _, kind in said if number.isdecimal()]
    whole = sum(number for number, kind in counted if kind not in ("shard", "mps"))
    parts = sum(number for number, kind in counted if kind in ("shard", "mps"))
    return whole or parts / (parts + 1) if counted else None


def _share(name: str) -> Callable[[MyJob, Context], str]:
    return lambda job, _: percent(getattr(job, name)) if job.started else ""


COLUMNS = (
    Column("jobid", "JOBID", lambda j, _: j.job_id, _number, longest("job_id"),
           match=attrgetter("job_id"), aliases=("id", "job"), limit=22),
    Column("state", "STATE", lambda j, _: j.state, attrgetter("state"), longest("state"),
           match=lambda j: f"{j.state} {j.kind} {slurm_states.code(j.kind)}", aliases=("st",),
           limit=20, narrow=13, style=lambda j, _: states.style(j.kind)),
    Column("time", "TIME", lambda j, _: j.elapsed, lambda j: parse_elapsed(j.elapsed),
           longest("elapsed"), aliases=("elapsed",), right=True),
    Column("left", "LEFT", lambda j, _: "" if j.left is None else format_duration(j.left),
           attrgetter("left"), 10, right=True, style=_left_style),
    Column("cpu", "CPU", _share("cpu"), attrgetter("cpu"), 5, right=True, wide=True),
    Column("mem", "MEM", _share("mem"), attrgetter("mem"), 5, right=True, wide=True,
           aliases=("memory",)),
    Column("gpus", "GPUS", lambda j, _: j.gpus, _gpus, longest("gpus"), limit=18,
           aliases=("gpu",), match=attrgetter("gpus"),
           style=lambda j, _: "cell--gpus" if j.held else "cell--muted"),
    Column("held", "GPU INDICES", lambda j, _: j.held, attrgetter("held"), longest("held"),
           aliases=("indices",), limit=24, wide=True),
    Column("where", "WHERE", lambda j, _: j.where, attrgetter("where"), longest("where"),
           aliases=("on", "reason", "node"), limit=32, narrow=12),
    Column("partition", "PARTITION", lambda j, _: j.partition, attrgetter("partition"),
           longest("partition"), short="PART", limit=14, narrow=9, wide=True),
    Column("account", "ACCOUNT", lambda j, _: j.account, attrgetter("account"),
           longest("account"), limit=14, wide=True, style=_muted, shown=False),
    Column("name", "NAME", lambda j, _: j.name, attrgetter("name"), longest("name"), limit=40,
           narrow=60),
    Column("ended", "ENDED", lambda j, _: clock(j.ended) if j.ended else "", attrgetter("ended"),
           lambda rows: 23 if any(row.ended for row in rows) else 5, limit=23, wide=True,
           style=_muted),
    Column("exit", "EXIT", lambda j, _: j.exit_code, attrgetter("exit_code"), 6, limit=7),
    Column("submit", "SUBMITTED", lambda j, _: clock(j.submitted), attrgetter("submitted"), 23,
           limit=23, wide=True, style=_muted, shown=False),
)  # fmt: skip
MY_JOBS = Listing(
    "job",
    COLUMNS,
    key=attrgetter("key"),
    haystack=lambda j: "\n".join((j.job_id, j.name, j.state, j.kind, j.where, j.partition)),
    empty="you have no jobs, and none ended in the last two days",
)


class MineView(ListView):
    """My jobs, arrays in one row."""

    NAME = "mine"
    OF_JOBS = True
    LISTING: ClassVar[Listing] = MY_JOBS
    ASK = Ask("mine")

    def __init__(self, *, mine: bool = False) -> None:
        del mine  # all of them are
        super().__init__()
        self._without_history = ""
        self._last: tuple[Answer, Session] | None = None
        self._looks = 0
        self._fresh = False

    def make(self, answer: Answer, session: Session) -> Arranged:
        """See `View.make`; efficiencies as they are known by now, to be no later with the jobs."""
        self._last, self._fresh = (answer, session), True
        return super().make(answer, session)

    def take(self, prepared: Arranged) -> None:
        """See `View.take`; with every third answer the efficiencies are asked for as well."""
        super().take(prepared)
        if not self._fresh:  # shown again, maybe while nothing is to be asked
            return
        self._fresh = False
        self._looks += 1
        if self._last is not None and self._is_due(*self._last):
            self._looks = 0
            self._measure(self._last[1])

    def _is_due(self, answer: Answer, session: Session) -> bool:
        picture = session.picture(USES)
        last = picture.answer
        if last is None and not picture.problem:
            return not picture.pace.asking
        # What takes long is not asked for as often.
        rested = last is None or answer.taken > last.taken + _REST * last.seconds
        return self._looks >= _EVERY and rested and not picture.pace.asking

    @work(group="uses", description="uses")
    async def _measure(self, session: Session) -> None:
        """Ask, and show the same jobs again with what was found."""
        picture = session.picture(USES)
        picture.pace.asking = True
        try:
            picture.answer = await in_thread(partial(session.feed.fetch, USES))
            picture.problem = ""
        except SlurmkitError as error:
            # A recording may be older than this question: each `?` says enough.
            picture.problem = "" if isinstance(session.feed, Recorded) else str(error)
        finally:
            picture.pace.asking = False
        if self._last is not None and self._last[1] is session:
            super().take(await in_thread(partial(super().make, *self._last)))

    def rows_of(self, answer: Answer) -> Sequence[MyJob]:
        """See `ListView.rows_of`."""
        self._without_history = answer.value.without_history
        return my_jobs(answer.value, self._uses.of if self._uses else NOTHING)

    @property
    def _picture(self) -> Picture | None:
        return self._last[1].picture(USES) if self._last else None

    @property
    def _uses(self) -> Uses | None:
        answer = self._picture and self._picture.answer
        return answer.value if answer else None

    @property
    def rows(self) -> Sequence[Any]:
        """See `View.rows`: those in the queue, which something can be done to."""
        return [row for job in self.table.rows_chosen for row in job.rows]

    def tally(self, rows: Sequence[MyJob], context: Context) -> Iterable[Part]:
        """See `ListView.tally`."""
        del context
        queued = [row for job in rows for row in job.rows]
        waiting = sum(arrays.count(row) for row in queued if row.waits)
        yield (f"{len([row for row in queued if not row.waits]):,} running", "$success")
        yield (f"{waiting:,} pending", "$warning")
        yield f"{len([job for job in rows if job.ended]):,} ended lately"
        if self._without_history:
            yield ("without those that ended: slurmdbd does not answer", "$warning")

    def aside(self) -> Iterable[Part]:
        """Who says what CPU and MEM are, and since when."""
        if self._picture is None or (self._uses is None and not self._picture.problem):
            return
        if self._uses is not None:
            at = clock(int(self._uses.taken))[11:19]
            yield f"CPU, MEM of {self._uses.source} at {at}"
        if why := self._picture.problem or (self._uses and self._uses.missing):
            yield (f"CPU, MEM unknown: {printable(why)}", "$warning")
