"""The queries of sacct, window by window, one command at a time, and the parser of their rows."""

from __future__ import annotations

import os
import pwd
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias

from slurmkit.errors import ControllerDown, SlurmError, SlurmMissing
from slurmkit.formats.scontrol import parse_settings
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import record_mark
from slurmkit_accounting.sacct.columns import RowLayout, fingerprints
from slurmkit_accounting.sacct.rows import Reject, RowBatch
from slurmkit_accounting.sacct.steps import StepBatch, build_steps_argv, parse_sacct_steps

_DAY = 86400
_LEAST = 3600  # seconds; a window that fails is halved down to this
_IDS_PER_CALL = 1000
_PATIENCE = 600.0  # seconds for one window
_LINES = 1000
# Errors that a smaller window does not help against.
_HOPELESS = (SlurmMissing, ControllerDown)
Fetched: TypeAlias = "CommandStarted | list[str] | CommandEnded | WindowDone"
_MAY_SEE_ALL = frozenset(("Administrator", "Operator"))


class TimeWindow(NamedTuple):
    """A span of time [begin, end), in epoch seconds."""

    begin: int
    end: int


class WindowDone(NamedTuple):
    """Item after the last row of a window."""

    window: TimeWindow


class CommandStarted(NamedTuple):
    """Item at the start of a command; its lines follow in lists, then its end."""

    steps: bool
    mark: str


class CommandEnded(NamedTuple):
    """Item at the end of a command; `whole` is False if it failed, and is then run in parts."""

    whole: bool


def split_into_days(begin: int, end: int) -> list[TimeWindow]:
    """Split a window at the edges of UTC days."""
    edges = [begin, *range((begin // _DAY + 1) * _DAY, end, _DAY), end]
    return [TimeWindow(a, b) for a, b in pairwise(edges) if a < b] or [TimeWindow(begin, end)]


class SacctReader:
    """Reader of sacct, for the rows of runs and for steps.

    It yields unparsed lines only, so that a thread that reads ahead is never slowed by parsing.
    """

    def __init__(self, slurm: SlurmCommands, *, steps: bool = True, user: str = "") -> None:
        self._slurm = slurm
        self._whose = (f"--user={user}",) if user else ()
        self._asks = (False, True) if steps else (False,)

    def windows(self, windows: Iterable[TimeWindow]) -> Generator[Fetched, None, None]:
        """Fetch rows and steps of each window; yield `WindowDone` after each."""
        for window in windows:
            for steps in self._asks:
                yield from self._window(steps, window)
            yield WindowDone(window)

    def jobs(self, numbers: Sequence[int]) -> Generator[Fetched, None, None]:
        """Fetch rows and steps of some jobs, by JobIDRaw."""
        for first in range(0, len(numbers), _IDS_PER_CALL):
            ids = ",".join(map(str, numbers[first : first + _IDS_PER_CALL]))
            for steps in self._asks:
                yield from self._ask(steps, f"--jobs={ids}")

    def _window(self, steps: bool, window: TimeWindow) -> Generator[Fetched, None, None]:  # noqa: FBT001
        begin, end = window
        try:
            yield from self._ask(steps, "-S", f"uts{begin}", "-E", f"uts{end}")
        except _HOPELESS:
            raise
        except SlurmError:
            if end - begin < 2 * _LEAST:
                raise
            middle = (begin + end) // 2  # too much for slurmdbd; some rows are fetched twice
            yield from self._window(steps, TimeWindow(begin, middle))
            yield from self._window(steps, TimeWindow(middle, end))

    def _ask(self, steps: bool, *selection: str) -> Generator[Fetched, None, None]:  # noqa: FBT001
        call = CommandStarted(steps, record_mark())
        argv = (build_steps_argv if steps else build_sacct_argv)(
            call.mark, *self._whose, *selection
        )
        yield call
        # Close the stream at once on an interrupt, so that sacct does not continue.
        with closing(self._slurm.stream(argv, timeout=_PATIENCE)) as lines:
            try:
                while some := list(islice(lines, _LINES)):
                    yield some
            except SlurmError:
                yield CommandEnded(whole=False)
                raise
        yield CommandEnded(whole=True)


def parse_fetched(
    fetched: Iterator[Fetched], row_layout: RowLayout, size: int
) -> Iterator[RowBatch | StepBatch | WindowDone]:
    """Parse what `SacctReader` fetched, up to `size` rows or steps at a time."""
    for item in fetched:
        if isinstance(item, WindowDone):
            yield item
        elif isinstance(item, CommandStarted):
            lines = _lines(fetched)
            try:
                if item.steps:
                    yield from parse_sacct_steps(lines, item.mark, size)
                else:
                    yield from parse_batches(lines, item.mark, row_layout, size)
            except _CommandFailed:
                continue


class _CommandFailed(Exception):
    """A command failed before its end; caught in this module."""


def _lines(fetched: Iterator[Fetched]) -> Iterator[str]:
    """Yield the lines of one command, up to its end."""
    for item in fetched:
        if isinstance(item, CommandEnded):
            if not item.whole:
                raise _CommandFailed
            return
        if isinstance(item, list):
            yield from item


def user_limited_to_own_jobs(slurm: SlurmCommands) -> str:
    """Return the current user's name if PrivateData hides other users' jobs; otherwise empty."""
    config = parse_settings(slurm.run(["sacctmgr", "show", "configuration"]))
    hidden = config.get("PrivateData", "").lower().split(",")
    me, slurm_user = _me(), config.get("SlurmUser", "").partition("(")[0]
    if "jobs" not in hidden or os.geteuid() == 0 or me == slurm_user:
        return ""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", me, "format=AdminLevel"]
    return "" if _MAY_SEE_ALL.intersection(slurm.run(argv).split()) else me


def partial_view_error(me: str) -> SlurmError:
    """Make the error for a ledger that needs everybody's runs; it names the missing right."""
    return SlurmError(
        f"slurmdbd's PrivateData=jobs hides other people's jobs from {me}, so the ledger would"
        " be incomplete; ask an administrator to run: sacctmgr modify user"
        f" {me} set adminlevel=Operator"
    )


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


# The sacct fields to ask for, in this order. Text that a user chooses comes last.
SACCT_FIELDS = (
    "DBIndex",
    "JobIDRaw",
    "JobID",
    "User",
    "UID",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Submit",
    "Eligible",
    "Start",
    "End",
    "Suspended",
    "AllocNodes",
    "AllocCPUS",
    "AllocTRES",
    "ReqTRES",
    "ConsumedEnergyRaw",
    "TimelimitRaw",
    "ExitCode",
    "NodeList",
    "Reservation",
    "JobName",
)
_LAST_OF_IDENTITY = SACCT_FIELDS.index("Submit")


def sacct_layout() -> RowLayout:
    """Return the layout of the rows that `build_sacct_argv` asks for."""
    return RowLayout(SACCT_FIELDS)


def build_sacct_argv(mark: str, *selection: str) -> list[str]:
    """Build the sacct command. -p ends each row with a delimiter, so that its end is known."""
    # --noconvert: memory in MiB; otherwise it is rounded to two decimals of a larger unit.
    # --local: FederationParameters=fed_display would add the runs of all clusters.
    flags = ["--local", "-a", "-X", "-D", "--noconvert", "--noheader", "-p", f"--delimiter={mark}"]
    return ["sacct", *flags, f"--format={','.join(SACCT_FIELDS)}", *selection]


def parse_batches(
    lines: Iterable[str], mark: str, row_layout: RowLayout, size: int
) -> Iterator[RowBatch]:
    """Split the output of sacct into rows and fields, up to `size` rows at a time.

    Args:
        lines: the output, with line ends. A line break in a job name splits its row over lines.
        mark: the delimiter passed to sacct.
        row_layout: the layout of the rows.
        size: number of rows of a batch.
    """
    rows: list[list[str]] = []
    rejects: list[Reject] = []
    for row in _join_rows(lines, mark):
        if isinstance(row, Reject):
            rejects.append(row)
        else:
            rows.append(row)
        if len(rows) + len(rejects) >= size:
            yield _batch(rows, rejects, row_layout)
            rows, rejects = [], []
    if rows or rejects:
        yield _batch(rows, rejects, row_layout)


def _batch(rows: list[list[str]], rejects: list[Reject], row_layout: RowLayout) -> RowBatch:
    prints = fingerprints("\x1f".join(row).encode() for row in rows)
    return RowBatch.of(rows, [number ^ row_layout.seed for number in prints], rejects)


def _join_rows(lines: Iterable[str], mark: str) -> Iterator[list[str] | Reject]:
    """Join lines to whole rows and split them into fields."""
    held, end, size = "", f"{mark}\n", len(SACCT_FIELDS)
    for line in lines:
        held += line
        if line.endswith(end):
            parts = _replace_nul(held).split(mark)
            if len(parts) > size:
                yield from _check_row(parts[:-1])
                held = ""
    if held.strip():
        parts = _replace_nul(held).split(mark)
        yield _broken_row(parts, "the row breaks off before its last field")


def _check_row(parts: list[str]) -> Iterator[list[str] | Reject]:
    if "\n" in parts[0]:
        # No row begins with a line break: text before one is not part of the row.
        stray, _, parts[0] = parts[0].rpartition("\n")
        if stray.strip():
            yield Reject(stray, "not part of a row")
    if len(parts) == len(SACCT_FIELDS):
        yield parts
    else:  # more: several rows in one
        yield _broken_row(parts, f"{len(parts)} fields instead of {len(SACCT_FIELDS)}")


def _broken_row(parts: list[str], why: str) -> Reject:
    """Make a reject of a row that is cut off, or has other text before it."""
    readable = _LAST_OF_IDENTITY + 1 < len(parts) <= len(SACCT_FIELDS)
    row = [parts[0].rpartition("\n")[2], *parts[1:]] if readable else []
    return _LAYOUT.reject_cut_off(parts, row, why)


def _replace_nul(text: str) -> str:
    """Replace NUL, which PostgreSQL cannot store."""
    return text.replace("\0", "\ufffd")


_LAYOUT = RowLayout(SACCT_FIELDS)
