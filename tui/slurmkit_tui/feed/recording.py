"""Record the answers that the screen shows, and replay them without Slurm.

A recording is a gzip file: a header, then one record for each answer. A record holds the time, the
question, and the value as msgpack of the type that `kinds.KINDS` names, or why there was no answer.
Each record is flushed at once, so that the records before a crash can be replayed.
"""

from __future__ import annotations

import gzip
import os
import struct
import threading
import time
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from slurmkit.errors import BadInput, SlurmError, SlurmkitError
from slurmkit.formats.display import format_time
from slurmkit.jobs.log import FilePiece
from slurmkit_tui.feed import Feed, FeedAnswer, FeedQuestion
from slurmkit_tui.feed.kinds import QUESTION_KINDS

if TYPE_CHECKING:
    from slurmkit.planning.planner import Plan

FORMAT = "slurmkit-tui-recording 1"
_LENGTH = struct.Struct(">I")
_NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


class RecordingHeader(msgspec.Struct, frozen=True):
    """First record of a recording."""

    format: str
    cluster: str
    me: str


class RecordedAnswer(msgspec.Struct, frozen=True):
    """One stored answer.

    Attributes:
        at: epoch seconds of the answer.
        value: msgpack, decoded only when it is shown.
        problem: why there was no answer; empty when there was.
    """

    ask: FeedQuestion
    at: float
    value: msgspec.Raw
    source: str = ""
    taken: float = 0.0
    seconds: float = 0.0
    problem: str = ""


# Not recorded: a replay submits nothing, and the text typed into the form may hold secrets.
_FORM_QUESTIONS = frozenset(("plan", "known", "past"))


class RecordingFeed:
    """A feed that passes every answer on and writes it to a file; see `Feed`.

    Attributes:
        trouble: why writing has stopped; empty while all answers are written.
    """

    def __init__(self, feed: Feed, path: Path) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self.name, self.me, self.writable = feed.name, feed.me, feed.writable
        try:
            self._file = open(path, "xb", opener=_open_private)  # noqa: SIM115 - closed by close()
        except FileExistsError as error:
            raise BadInput(f"{path} is there already; choose another name") from error
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        self.trouble = ""
        self._write(RecordingHeader(FORMAT, feed.name, feed.me))

    @property
    def calls(self) -> int:
        return self._feed.calls

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        if ask.what in _FORM_QUESTIONS:
            return self._feed.fetch(ask)
        try:
            answer = self._feed.fetch(ask)
        except Exception as error:
            problem = (
                str(error) if isinstance(error, SlurmkitError) else f"a slurmkit error: {error!r}"
            )
            self._write(RecordedAnswer(ask, time.time(), _NOTHING, problem=problem))
            raise
        value = msgspec.Raw(msgspec.msgpack.encode(answer.value))
        self._write(
            RecordedAnswer(ask, answer.taken, value, answer.source, answer.taken, answer.seconds)
        )
        return answer

    def run(self, argv: Sequence[str]) -> str:
        return self._feed.run(argv)

    def attach(self, argv: Sequence[str]) -> int:
        return self._feed.attach(argv)

    def submit(self, plan: Plan) -> str:
        return self._feed.submit(plan)

    def close(self) -> None:
        """Close the file."""
        with self._lock, suppress(OSError):  # a full disk may refuse the last bytes
            self._file.close()

    def _write(self, record: msgspec.Struct) -> None:
        """Write one record as a gzip member of its own, so that it is whole or missing.

        A reader stops at a record that a full disk cut off. So nothing is written after a failed
        write; the TUI goes on working.
        """
        data = msgspec.msgpack.encode(record)
        member = gzip.compress(_LENGTH.pack(len(data)) + data, 6)
        with self._lock:
            if self.trouble or self._file.closed:
                return
            try:
                self._file.write(member)
                self._file.flush()
            except OSError as error:
                self.trouble = f"the recording ends at {format_time(time.time())}: {error.strerror}"


class ReplayFeed:
    """A feed that answers from a recording, as of its own clock; see `Feed`.

    Attributes:
        begin: epoch seconds of the first answer.
        end: epoch seconds of the last answer.
        paused: whether its clock is stopped.
    """

    writable = False
    calls = 0

    def __init__(self, path: Path) -> None:
        records: dict[FeedQuestion, list[RecordedAnswer]] = defaultdict(list)
        header = None
        for data in _load_records(path):
            if header is None:
                header = _parse_header(path, data)
            else:
                record = msgspec.msgpack.decode(data, type=RecordedAnswer)
                records[record.ask].append(record)
        if header is None or not records:
            raise BadInput(f"{path} is an empty recording; make another one with --record")
        self.name, self.me = header.cluster, header.me
        self._records = records
        times = [record.at for several in records.values() for record in several]
        self.begin, self.end = min(times), max(times)
        self.paused = False
        self._at, self._since = self.begin, time.monotonic()

    @property
    def recorded(self) -> tuple[str, ...]:
        """Names of the recorded questions, in the order in which they were first asked."""
        by_time = sorted(self._records.items(), key=lambda pair: pair[1][0].at)
        return tuple(dict.fromkeys(ask.what for ask, _ in by_time))

    def clock(self) -> float:
        """Return the time in the recording; it runs in real time and stops at the end."""
        passed = 0.0 if self.paused else time.monotonic() - self._since
        return min(self._at + passed, self.end)

    def seek(self, at: float) -> None:
        self._at, self._since = max(self.begin, min(at, self.end)), time.monotonic()

    def pause(self, *, paused: bool) -> None:
        at, self.paused = self.clock(), paused
        self.seek(at)

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        """Return the last answer up to the current time, or the first one if there is none yet.

        Raises:
            SlurmkitError: when there was no answer, or the question was never asked.
        """
        records = self._records.get(ask) or self._pieces_of(ask) or self._in_older_form(ask)
        if not records:
            raise SlurmkitError("not recorded: nobody looked at this when the recording was made")
        after = bisect_right(records, self.clock(), key=lambda record: record.at)
        record = records[max(0, after - 1)]
        if record.problem:
            raise SlurmkitError(record.problem)
        try:
            value = msgspec.msgpack.decode(record.value, type=QUESTION_KINDS[ask.what].answers)
        except msgspec.ValidationError as error:
            raise SlurmkitError(
                "another version of slurmkit made this recording; record it again"
            ) from error
        if isinstance(value, FilePiece):
            value = cut_piece(value, *map(int, ask.about[1:]))
        return FeedAnswer(value, record.source, record.taken, record.seconds)

    def _pieces_of(self, ask: FeedQuestion) -> list[RecordedAnswer]:
        """Return all records of the same file: a screen of another size asks for other pieces."""
        if ask.what != "piece":
            return []
        same_file = (
            record
            for question, records in self._records.items()
            if question.what == "piece" and question.about[:1] == ask.about[:1]
            for record in records
        )
        return sorted(same_file, key=attrgetter("at"))

    def _in_older_form(self, ask: FeedQuestion) -> list[RecordedAnswer]:
        """Return the records of a question that named no length of time or no part, as once."""
        if ask.what not in ("utilization", "mine"):
            return []
        return self._records.get(FeedQuestion(ask.what, ask.about[:-1]), [])

    def run(self, argv: Sequence[str]) -> str:
        """Refuse: a recording runs nothing.

        Raises:
            SlurmError: always.
        """
        raise SlurmError(f"this is a recording; {argv[0]} was not run")

    def attach(self, argv: Sequence[str]) -> int:
        """Refuse: a recording runs nothing.

        Raises:
            SlurmError: always.
        """
        raise SlurmError(f"this is a recording; {argv[0]} was not run")

    def submit(self, plan: Plan) -> str:
        """Refuse: a recording submits nothing.

        Raises:
            SlurmError: always.
        """
        del plan
        raise SlurmError("this is a recording; nothing was submitted")


def _open_private(path: str, flags: int) -> int:
    """Open a file with mode 0600: scripts and logs may be confidential."""
    return os.open(path, flags, 0o600)


def cut_piece(piece: FilePiece, begin: int, length: int) -> FilePiece:
    """Cut the requested bytes out of a recorded piece, as far as it holds them."""
    at = begin if begin >= 0 else piece.size + begin
    skipped = max(0, at - piece.begin)
    return FilePiece(piece.data[skipped : skipped + length], piece.begin + skipped, piece.size)


def _parse_header(path: Path, data: bytes) -> RecordingHeader:
    try:
        header = msgspec.msgpack.decode(data, type=RecordingHeader)
    except msgspec.DecodeError as error:
        raise BadInput(
            f"{path} is no recording; name a file that slurmkit tui --record wrote"
        ) from error
    if header.format != FORMAT:
        raise BadInput(
            f"{path} was recorded in another format, {header.format!r};"
            f" this slurmkit reads {FORMAT!r}"
        )
    return header


def _load_records(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            yield from _whole_records(file)  # type: ignore[arg-type]
    except (OSError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read as a recording: {error}") from error


def _whole_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield whole records; skip a last one that was cut off."""
    try:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            size = _LENGTH.unpack(head)[0]
            if len(data := file.read(size)) == size:
                yield data
    except EOFError:
        return
