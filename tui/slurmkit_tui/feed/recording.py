"""Record what the screen was told, and replay it without Slurm.

A recording is gzip: a header, then one record for each answer: its time, the question, and the
answer's value as msgpack of the type that `kinds.KINDS` names, or why there was none. Every record
is flushed whole, so that what was written before a crash can be replayed.
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
from slurmkit.facts import clock
from slurmkit.jobs.pages import Piece
from slurmkit_tui.feed import Answer, Ask, Feed
from slurmkit_tui.feed.kinds import KINDS

if TYPE_CHECKING:
    from slurmkit.planner import Plan

FORMAT = "slurmkit-tui-recording 1"
_LENGTH = struct.Struct(">I")
_NOTHING = msgspec.Raw(msgspec.msgpack.encode(None))


class Header(msgspec.Struct, frozen=True):
    """What a recording begins with."""

    format: str
    cluster: str
    me: str


class Record(msgspec.Struct, frozen=True):
    """One answer as it is stored.

    Attributes:
        value: msgpack, read only when it is shown.
        problem: why there was no answer; empty when there was.
    """

    ask: Ask
    at: float
    value: msgspec.Raw
    source: str = ""
    taken: float = 0.0
    seconds: float = 0.0
    problem: str = ""


# A replay submits nothing, and what is typed may hold secrets that no recording should.
_OF_THE_FORM = frozenset(("plan", "known", "past"))


class RecordingFeed:
    """Hands every answer on, and writes it down; see `Feed`.

    Attributes:
        trouble: why no more is written down; empty while all is.
    """

    def __init__(self, feed: Feed, path: Path) -> None:
        self._feed = feed
        self._lock = threading.Lock()
        self.name, self.me, self.writable = feed.name, feed.me, feed.writable
        try:
            self._file = open(path, "xb", opener=_for_me_alone)  # noqa: SIM115 - closed by close()
        except FileExistsError as error:
            raise BadInput(f"{path} is there already; choose another name") from error
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error.strerror}") from error
        self.trouble = ""
        self._write(Header(FORMAT, feed.name, feed.me))

    @property
    def calls(self) -> int:
        """See `Feed.calls`."""
        return self._feed.calls

    def fetch(self, ask: Ask) -> Answer:
        """See `Feed.fetch`."""
        if ask.what in _OF_THE_FORM:
            return self._feed.fetch(ask)
        try:
            answer = self._feed.fetch(ask)
        except Exception as error:
            told = str(error) if isinstance(error, SlurmkitError) else f"a mistake: {error!r}"
            self._write(Record(ask, time.time(), _NOTHING, problem=told))
            raise
        value = msgspec.Raw(msgspec.msgpack.encode(answer.value))
        self._write(Record(ask, answer.taken, value, answer.source, answer.taken, answer.seconds))
        return answer

    def run(self, argv: Sequence[str]) -> str:
        """See `Feed.run`."""
        return self._feed.run(argv)

    def attach(self, argv: Sequence[str]) -> int:
        """See `Feed.attach`."""
        return self._feed.attach(argv)

    def submit(self, plan: Plan) -> str:
        """See `Feed.submit`."""
        return self._feed.submit(plan)

    def close(self) -> None:
        """End the recording."""
        with self._lock, suppress(OSError):  # what a full disk did not take
            self._file.close()

    def _write(self, what: msgspec.Struct) -> None:
        """A gzip member of its own for each record: whole, or not there.

        Nothing can be read after one that a full disk cut off, so none is written; nobody is kept
        from working.
        """
        data = msgspec.msgpack.encode(what)
        member = gzip.compress(_LENGTH.pack(len(data)) + data, 6)
        with self._lock:
            if self.trouble or self._file.closed:
                return
            try:
                self._file.write(member)
                self._file.flush()
            except OSError as error:
                self.trouble = f"the recording ends at {clock(time.time())}: {error.strerror}"


class ReplayFeed:
    """Answers from a recording as of a time in it; see `Feed`.

    Attributes:
        begin: epoch seconds of its first answer.
        end: of its last one.
        paused: whether its time stands still.
    """

    writable = False
    calls = 0

    def __init__(self, path: Path) -> None:
        records: dict[Ask, list[Record]] = defaultdict(list)
        header = None
        for data in _records(path):
            if header is None:
                header = _header(path, data)
            else:
                record = msgspec.msgpack.decode(data, type=Record)
                records[record.ask].append(record)
        if header is None or not records:
            raise BadInput(f"{path} holds no answer to show")
        self.name, self.me = header.cluster, header.me
        self._records = records
        times = [record.at for several in records.values() for record in several]
        self.begin, self.end = min(times), max(times)
        self.paused = False
        self._at, self._since = self.begin, time.monotonic()

    def clock(self) -> float:
        """Epoch seconds in the recording; they go on like those of a watch, up to its end."""
        passed = 0.0 if self.paused else time.monotonic() - self._since
        return min(self._at + passed, self.end)

    def seek(self, at: float) -> None:
        """Go to another time in it."""
        self._at, self._since = max(self.begin, min(at, self.end)), time.monotonic()

    def pause(self, *, paused: bool) -> None:
        """Let time stand still, or go on."""
        at, self.paused = self.clock(), paused
        self.seek(at)

    def fetch(self, ask: Ask) -> Answer:
        """The last answer there was by now; the first one when there was none yet.

        Raises:
            SlurmkitError: when there was no answer, or the question was never asked.
        """
        several = self._records.get(ask) or self._pieces_of(ask)
        if not several:
            raise SlurmkitError("nobody looked at this when the recording was made")
        place = bisect_right(several, self.clock(), key=lambda record: record.at)
        record = several[max(0, place - 1)]
        if record.problem:
            raise SlurmkitError(record.problem)
        value = msgspec.msgpack.decode(record.value, type=KINDS[ask.what].answers)
        if isinstance(value, Piece):
            value = part_of(value, *map(int, ask.about[1:]))
        return Answer(value, record.source, record.taken, record.seconds)

    def _pieces_of(self, ask: Ask) -> list[Record]:
        """Of a file, whatever was read of it: a screen of another size asks for other pieces."""
        if ask.what != "piece":
            return []
        same = (r for each, found in self._records.items() if each.about[:1] == ask.about[:1]
                and each.what == "piece" for r in found)  # fmt: skip
        return sorted(same, key=attrgetter("at"))

    def run(self, argv: Sequence[str]) -> str:
        """Nothing is run.

        Raises:
            SlurmError: always.
        """
        raise SlurmError(f"this is a recording; {argv[0]} was not run")

    def attach(self, argv: Sequence[str]) -> int:
        """Nothing is run.

        Raises:
            SlurmError: always.
        """
        raise SlurmError(f"this is a recording; {argv[0]} was not run")

    def submit(self, plan: Plan) -> str:
        """Nothing is sent.

        Raises:
            SlurmError: always.
        """
        del plan
        raise SlurmError("this is a recording; nothing was submitted")


def _for_me_alone(path: str, flags: int) -> int:
    """Scripts and logs may hold what is nobody else's business."""
    return os.open(path, flags, 0o600)


def part_of(piece: Piece, begin: int, length: int) -> Piece:
    """The part of a piece that was asked for, as far as it was recorded."""
    at = begin if begin >= 0 else piece.size + begin
    skipped = max(0, at - piece.begin)
    return Piece(piece.data[skipped : skipped + length], piece.begin + skipped, piece.size)


def _header(path: Path, data: bytes) -> Header:
    try:
        header = msgspec.msgpack.decode(data, type=Header)
    except msgspec.DecodeError as error:
        raise BadInput(f"{path} is no recording of slurmkit tui") from error
    if header.format != FORMAT:
        raise BadInput(f"{path} is a recording of another version: {header.format}")
    return header


def _records(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            yield from _pieces(file)  # type: ignore[arg-type]
    except (OSError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read as a recording: {error}") from error


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Whole records; a last one that was cut off is left out."""
    try:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            size = _LENGTH.unpack(head)[0]
            if len(data := file.read(size)) == size:
                yield data
    except EOFError:
        return
