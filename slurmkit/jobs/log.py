"""The output of a job: where it is, read once, or followed to the end of the job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from slurmkit.errors import BadInput, LogUnavailable, NoSuchJob, SlurmError, SshError
from slurmkit.formats.filename_patterns import RANK_MARK, depends_on_restarts
from slurmkit.formats.releases import LOG_NAMES_RESTARTS_SINCE
from slurmkit.jobs.accounting_records import read_output_pattern, read_work_dir
from slurmkit.jobs.exit_codes import read_sacct_release
from slurmkit.jobs.info import JobInfo, fill_output_path
from slurmkit.jobs.poller import Poller, Watch
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import LOCAL_MACHINE, Machine, machine_of
from slurmkit.slurm.records import read_records

_FILE_SECONDS = 0.5  # between two looks at a file that is followed
_LATE_SECONDS = 10.0  # a running job without a file for that long is worth a message
MAX_PIECE = 1 << 22  # bytes of one piece
_CHUNK = 1 << 16
_MEMORY = 64  # bytes before the offset, stored to see whether the file was rewritten


class LogRequest(msgspec.Struct, frozen=True):
    """A request to read a job's log.

    Attributes:
        file: which of the job's files.
        lines: begin with the last so many lines of the file; None for all.
        notice: called with a message when the job waits, has written nothing yet, rewrites its
            file, or has files of its ranks.
    """

    file: LogFile
    lines: int | None
    notice: Callable[[str], None]


def read_log_once(slurm: SlurmCommands, info: JobInfo, ask: LogRequest) -> Iterator[bytes]:
    """Yield what a job has written so far.

    Raises:
        LogUnavailable: when the path is unknown, or the file is missing or unreadable.
    """
    refuse_parts(info)
    path = find_log_path(slurm, info, ask.file)
    tail = FileTail(Path(path), ask.lines, machine_of(slurm)) if path else None
    if tail is None or not tail.exists:
        raise LogUnavailable(_why_no_file(slurm, info, path))
    if info.state == "PENDING":
        requeued = _was_requeued(slurm, info)
        older = "the output of its last run" if requeued else "older output"
        ask.notice(f"{_describe_waiting(info, requeued=requeued)}; this is {older}")
    if words := _rank_files_notice(machine_of(slurm), tail, ask.file):
        ask.notice(words)
    yield from tail.read()


def follow_job_log(
    slurm: SlurmCommands, poller: Poller, info: JobInfo, ask: LogRequest
) -> Iterator[bytes]:
    """Yield a job's output as it is written, across requeues, until the job has ended.

    The file is read twice a second; Slurm is asked at the poller's pace.

    Raises:
        LogUnavailable: when the path is unknown, or the job ended and the file is not there.
    """
    refuse_parts(info)
    with poller.watch([info.job_id]) as watch:
        follower = _Follower(slurm, info, ask)
        for known in watch.changes(every=_FILE_SECONDS):
            one = known[info.job_id]
            if one.error is not None:
                raise one.error
            yield from follower.look_again(one.info or info, watch)
    yield from follower.rest()


def refuse_parts(info: JobInfo) -> None:
    """Raise BadInput for an array or plan as a whole: each part has a file of its own."""
    if info.tally:
        parts = ", ".join(f"{count} {state}" for state, count in info.tally.items())
        raise BadInput(
            f"{info.job_id} has several parts ({parts}); name one of them, e.g. {info.part}"
        )


class _Follower:
    """State of one followed log: last job info, open file, and notices already given."""

    def __init__(self, slurm: SlurmCommands, info: JobInfo, ask: LogRequest) -> None:
        self._slurm = slurm
        self._machine = machine_of(slurm)
        self._ask = ask
        self._info = info
        self._tail: FileTail | None = None
        self._run: tuple[int | None, str] | None = None  # submit time and nodes
        self._notices_given: set[object] = set()
        self._late_at = 0.0
        self._take(info)

    def look_again(self, info: JobInfo, watch: Watch) -> Iterator[bytes]:
        """Call `look`; while the login node cannot be reached, give notice and go on."""
        try:
            yield from self.look(info, watch)
        except SshError as error:
            self._say("line", f"{error}; trying again")
        else:
            self._notices_given.discard("line")

    def look(self, info: JobInfo, watch: Watch) -> Iterator[bytes]:
        """Yield new output, and give notice of what keeps the job from writing."""
        if info is not self._info:
            self._take(info)
        if watch.trouble:
            self._say("trouble", f"{watch.trouble}; asking again")
        else:
            self._notices_given.discard("trouble")
        if words := _rank_files_notice(self._machine, self._tail, self._ask.file):
            self._say("ranks", words)
        yield from self._read()
        missing = info.state == "RUNNING" and self._tail is not None and not self._tail.exists
        if missing and self._tail and time.monotonic() >= self._late_at:
            words = f"{self._tail.path} does not exist here yet; it may be on a disk of the node"
            self._say(self._tail.path, words)

    def rest(self) -> Iterator[bytes]:
        """Yield the output written between the last look and the end of the job."""
        yield from self._read()
        if self._tail is None or not self._tail.exists:
            raise LogUnavailable(
                _why_no_file(self._slurm, self._info, str(self._tail.path) if self._tail else None)
            )

    def _take(self, info: JobInfo) -> None:
        """Store new facts and find the file again: another run may write to another file."""
        self._info = info
        if info.state == "PENDING":
            if info.submitted not in self._notices_given:
                requeued = _was_requeued(self._slurm, info)
                words = _describe_waiting(info, requeued=requeued)
                self._say(info.submitted, f"{words}; waiting")
            return
        run = (info.submitted, info.node_list)
        if self._tail is not None and (info.is_over or run == self._run):
            return
        self._run = run
        path = find_log_path(self._slurm, info, self._ask.file)
        if path and (self._tail is None or self._tail.path != Path(path)):
            lines = self._ask.lines if self._tail is None else None
            self._tail = FileTail(Path(path), lines, self._machine)
            self._late_at = time.monotonic() + _LATE_SECONDS

    def _read(self) -> Iterator[bytes]:
        if self._tail is None:
            return
        for chunk in self._tail.read():
            self._notice_rewritten(self._tail)
            yield chunk
        self._notice_rewritten(self._tail)  # it may just have been emptied

    def _notice_rewritten(self, tail: FileTail) -> None:
        if tail.rewritten:
            tail.rewritten = False
            self._ask.notice(
                f"job {self._info.job_id} was requeued and writes its file from the start"
            )

    def _say(self, about: object, words: str) -> None:
        if about not in self._notices_given:
            self._notices_given.add(about)
            self._ask.notice(words)


def _rank_files_notice(machine: Machine, tail: FileTail | None, file: LogFile) -> str:
    """Return a notice of where the ranks write; empty if they have no files of their own."""
    if tail is None or file != LogFile():
        return ""
    try:
        if not machine.exists(f"{tail.path}{RANK_MARK}0"):
            return ""
    except OSError:  # nobody asked for this file
        return ""
    return (
        f"its ranks write to {tail.path}{RANK_MARK}0 and so on; --rank N shows one of these files"
    )


def _was_requeued(slurm: SlurmCommands, info: JobInfo) -> bool:
    """Return whether a pending job has run before."""
    try:
        rows = read_records(slurm, ["squeue", f"--jobs={info.job_id}"], ("RestartCnt",))
    except SlurmError:
        return False
    return any(count.strip() not in ("", "0") for (count,) in rows[:1])


def _describe_waiting(info: JobInfo, *, requeued: bool) -> str:
    what = "was requeued and waits for its next run" if requeued else "has not started"
    return f"job {info.job_id} {what}{_because(info)}"


def _because(info: JobInfo) -> str:
    """Return the pending reason in brackets, once the scheduler has set one."""
    return "" if info.reason in {"", "None"} else f" ({info.reason})"


def _why_no_file(slurm: SlurmCommands, info: JobInfo, path: str | None) -> str:
    """Explain why the log does not exist."""
    if info.state == "PENDING":
        waiting = _describe_waiting(info, requeued=_was_requeued(slurm, info))
        return f"{waiting}; wait for its output with -f"
    if info.is_over and info.started is None:
        return f"job {info.job_id} ended {info.state} before it started, so it wrote nothing"
    if info.is_over and (info.exit_code or "").endswith(":53"):
        return f"job {info.job_id} could not open {path} or its directory on the node, so it failed"
    of_rank = ", and that the job had --log-per-rank" if RANK_MARK in (path or "") else ""
    return f"{path} does not exist here; check that the nodes share its filesystem{of_rank}"


class LogFile(msgspec.Struct, frozen=True):
    """A choice among a job's files; standard output by default.

    Attributes:
        stderr: standard error, where it has a file of its own (`--error`).
        pattern: a file of the job's steps, as given to `srun --output`, e.g. `out-%j-%t`.
        rank: the rank that writes the file: `%t` in `pattern`, or a rank of `--log-per-rank`.
    """

    stderr: bool = False
    pattern: str | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        """Refuse combinations that have no meaning."""
        if self.stderr and self.pattern is not None:
            raise BadInput("give either --error or --file, not both")
        if self.rank is not None and self.stderr:
            raise BadInput("the file of a rank has its standard error too; leave out --error")


def find_log_path(slurm: SlurmCommands, info: JobInfo, which: LogFile) -> str | None:
    """Return the path of a job's file; None while it is not known yet.

    Raises:
        LogUnavailable: when Slurm no longer knows it, or the pattern differs from node to node.
    """
    waits = info.state == "PENDING"
    if which.pattern is not None:
        absolute = PurePosixPath(which.pattern).is_absolute()
        folder = "/" if absolute else _work_dir(slurm, info)
        path = fill_output_path(which.pattern, info, folder, which.rank or 0)
        by_restarts = _is_named_by_restarts(slurm, which.pattern)
        if by_restarts or (path is None and not waits):
            on = (
                "the run (%r, %S); write its number"
                if by_restarts
                else "a node; write the node's name"
            )
            raise LogUnavailable(f"{which.pattern} depends on {on} in its place")
        return path
    if which.rank is not None:
        output = find_log_path(slurm, info, LogFile())
        return output and f"{output}{RANK_MARK}{which.rank}"
    path = _error_path(slurm, info) if which.stderr else None
    path = path or info.output or (None if waits else _path_in_database(slurm, info, "StdOut"))
    if path is None and not waits:
        raise LogUnavailable(f"Slurm no longer knows where job {info.job_id} wrote its output")
    return path


def _path_in_database(slurm: SlurmCommands, info: JobInfo, field: str) -> str | None:
    stored = read_output_pattern(slurm, info, field)
    if stored is None or _is_named_by_restarts(slurm, stored[0]):
        return None
    return fill_output_path(stored[0], info, stored[1])


def _is_named_by_restarts(slurm: SlurmCommands, pattern: str) -> bool:
    """Tell whether a path depends on the number of a run, which is not known here."""
    if not depends_on_restarts(pattern):
        return False
    return read_sacct_release(slurm) >= LOG_NAMES_RESTARTS_SINCE


def _error_path(slurm: SlurmCommands, info: JobInfo) -> str | None:
    """Return the path of standard error; None too if it shares the file of standard output."""
    for output, error, workdir in _paths_in_queue(slurm, info):
        return fill_output_path(error, info, workdir) if error != output else None
    return _path_in_database(slurm, info, "StdErr")


def _work_dir(slurm: SlurmCommands, info: JobInfo) -> str:
    for _, _, workdir in _paths_in_queue(slurm, info):
        return workdir
    directory = read_work_dir(slurm, info.job_id)
    if directory is None:
        raise LogUnavailable(f"Slurm no longer knows in which folder job {info.job_id} started")
    return directory


def _paths_in_queue(slurm: SlurmCommands, info: JobInfo) -> list[list[str]]:
    """Read standard output, error and working directory from squeue.

    Empty once slurmctld has forgotten the job.
    """
    fields = ("JobArrayID", "STDOUT", "STDERR", "WorkDir")
    try:
        rows = read_records(slurm, ["squeue", "--states=all", f"--jobs={info.job_id}"], fields)
    except NoSuchJob:
        return []
    return [row[1:] for row in rows if row[0].strip() == info.job_id] or [row[1:] for row in rows]


class JobLog(Iterator[bytes]):
    """The output of a job, piece by piece, or as one text.

    >>> for piece in job.log(follow=True): sys.stdout.buffer.write(piece)
    >>> print(job.log().text())
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __next__(self) -> bytes:
        """Return the next piece."""
        return next(self._pieces)

    def text(self) -> str:
        """Return all that is left as text; bytes that are no UTF-8 become U+FFFD.

        Raises:
            LogUnavailable: when the path is unknown, or the file is missing or unreadable.
        """
        return b"".join(self).decode("utf-8", "replace")


class FilePiece(msgspec.Struct, frozen=True):
    """A piece of a file.

    Attributes:
        begin: offset of the first byte.
        size: bytes of the whole file at that time.
    """

    data: bytes
    begin: int
    size: int


def read_piece(path: str, begin: int, length: int, on: Machine = LOCAL_MACHINE) -> FilePiece:
    """Read a piece of a file.

    Args:
        path: path of the file.
        begin: offset of the first byte; a negative one counts from the end.
        length: number of bytes, at most `MAX_PIECE`.
        on: the machine that has the file; this one by default.

    Raises:
        LogUnavailable: when it cannot be read, or is no file.
    """
    try:
        with on.open(path) as file:
            size = file.seek(0, os.SEEK_END)
            at = file.seek(max(0, min(size, begin if begin >= 0 else size + begin)))
            return FilePiece(file.read(min(length, MAX_PIECE)), at, size)
    except OSError as error:
        raise LogUnavailable(f"cannot read {path}: {error.strerror}") from error


class FileTail:
    """Reader of the lines added to a file since the last read.

    Args:
        path: the file, which need not exist yet.
        lines: begin with the last so many lines of the file; all by default.
        on: the machine that has the file; this one by default.

    Attributes:
        rewritten: whether the last read found the file emptied or rewritten, e.g. by a requeued
            job, and began again at its start.
    """

    def __init__(self, path: Path, lines: int | None = None, on: Machine = LOCAL_MACHINE) -> None:
        self.path = path
        self.rewritten = False
        self._on = on
        self._lines = lines
        self._offset: int | None = None
        self._before = b""

    @property
    def exists(self) -> bool:
        """Whether the file is there.

        Raises:
            LogUnavailable: when we may not even look.
        """
        try:
            return self._on.exists(str(self.path))
        except OSError as error:
            raise self._unreadable(error) from error

    def read(self) -> Iterator[bytes]:
        """Yield new bytes; nothing while the file does not exist.

        Raises:
            LogUnavailable: when it cannot be read, or is no file.
        """
        self.rewritten = False
        try:
            with self._on.open(str(self.path)) as file:
                self._seek(file)
                while chunk := file.read(_CHUNK):
                    self._offset = (self._offset or 0) + len(chunk)
                    self._before = (self._before + chunk)[-_MEMORY:]
                    yield chunk
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> LogUnavailable:
        return LogUnavailable(f"cannot read {self.path}: {error.strerror}")

    def _seek(self, file: BinaryIO) -> None:
        if self._offset is None:
            self._offset = _last_lines(file, self._lines) if self._lines is not None else 0
            start = file.seek(max(0, self._offset - _MEMORY))
            self._before = file.read(self._offset - start)
        else:
            file.seek(self._offset - len(self._before))
            if file.read(len(self._before)) != self._before:
                self._offset, self._before, self.rewritten = 0, b"", True
        file.seek(self._offset)


def _last_lines(file: BinaryIO, lines: int) -> int:
    """Return the offset of the last `lines` lines. Only the end of the file is read."""
    end = file.seek(0, os.SEEK_END)
    at, left = end, lines
    while at > 0:
        start = max(0, at - _CHUNK)
        file.seek(start)
        block = file.read(at - start)
        if at == end and block.endswith(b"\n"):  # ends the last line, begins none
            block = block[:-1]
        count = block.count(b"\n")
        if count >= left:
            return start + _nth_last(block, left) if left else end
        left -= count
        at = start
    return 0 if lines else end


def _nth_last(block: bytes, number: int) -> int:
    """Return the offset of the text after the `number`th line break from the end."""
    at = len(block)
    for _ in range(number):
        at = block.rfind(b"\n", 0, at)
    return at + 1
