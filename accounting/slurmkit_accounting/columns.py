"""Fields of sacct to runs, column by column, so that the loops run in C."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from slurmkit_accounting import readers
from slurmkit_accounting.readers import Memo
from slurmkit_accounting.rows import Batch, Columns, Key, Reject, Run

Read: TypeAlias = "Callable[[str], Any]"
Bad: TypeAlias = "dict[int, str]"  # by the number of the row, why it cannot be read

# For each column of a run the fields that can tell it, the best first, and what stands there
# without any. Columns of two fields are below.
_SOURCES: dict[str, tuple[tuple[str, ...], Any]] = {
    "db_index": (("DBIndex",), None),
    "job_id_raw": (("JobIDRaw", "JobID"), None),
    "job_id": (("JobID", "JobIDRaw"), ""),
    "user": (("User",), ""),
    "uid": (("UID",), None),
    "account": (("Account",), ""),
    "partition": (("Partition",), ""),
    "qos": (("QOS",), ""),
    "state": (("State",), ""),
    "submit": (("Submit",), None),
    "start": (("Start",), None),
    "end": (("End",), None),
    "nodes": (("AllocNodes", "NNodes"), 0),
    "alloc_tres": (("AllocTRES",), ""),
    "energy_joules": (("ConsumedEnergyRaw",), None),
    "eligible": (("Eligible",), None),
    "suspended": (("Suspended",), 0),
    "cancelled_by": (("State",), None),
    "req_tres": (("ReqTRES",), ""),
    "time_limit": (("TimelimitRaw", "Timelimit"), ""),
    "exit_code": (("ExitCode",), ""),
    "node_list": (("NodeList",), ""),
    "reservation": (("Reservation",), ""),
    "name": (("JobName",), ""),
}
_CPUS = ("AllocCPUS", "NCPUS")
_ELAPSED = ("ElapsedRaw", "Elapsed")
KNOWN = frozenset((*(name for names, _ in _SOURCES.values() for name in names), *_CPUS, *_ELAPSED))
_READERS: dict[str, Read] = {
    "db_index": readers.index,
    "job_id_raw": readers.number,
    "uid": readers.optional,
    "state": readers.state,
    "nodes": readers.amount,
    "energy_joules": readers.energy,
    "suspended": readers.seconds,
    "cancelled_by": readers.cancelled_by,
}
_TIMES = ("submit", "eligible", "start", "end")
_NUMBERS = frozenset((*_TIMES, "job_id_raw", "db_index"))
# Few texts in many rows.
_REPEATED = frozenset(("uid", "state", "nodes", "energy_joules", "suspended", "cancelled_by"))


class Times(Protocol):
    """Reads times, some of which may mean either of two.

    Attributes:
        twice: texts of those that were read, with the second time they may mean.
    """

    twice: dict[str, int]

    def __call__(self, text: str) -> int | None:
        """Epoch seconds; the first they may mean."""
        ...

    def settle(
        self, told: Sequence[tuple[int | None, int | None]], elapsed: int | None, suspended: int
    ) -> list[int | None]:
        """Choose between the two, for Submit, Start and End of a run."""
        ...


class Layout:
    """How lines are read: which field stands where, and what its times mean.

    Attributes:
        fields: sacct's names of the fields, in order.
        given: the columns of a run that they tell; what they do not tell stays as it is stored.
        dated: whether lines are of some time in the past, so that a run they show without an end
            may have ended since.
        seed: of the fingerprints; lines that are read in another way have others.
    """

    def __init__(self, fields: Sequence[str], times: Times | None = None, zone: str = "") -> None:
        self.fields = tuple(fields)
        self.dated = bool(zone)
        places = {name: place for place, name in enumerate(fields)}
        self._sources = {
            column: next((places[name] for name in names if name in places), None)
            for column, (names, _) in _SOURCES.items()
        }
        self._cpus = next((places[name] for name in _CPUS if name in places), None)
        self._times = times
        self._elapsed = next((places[name] for name in _ELAPSED if name in places), None)
        self._reads = {name: self._reader(name) for name in _SOURCES}
        self._tres_cpus, self._tres_gpus = Memo(readers.cpus), Memo(readers.gpus)
        self._doubts, self._amounts = Memo(_doubt), Memo(readers.amount)
        told = {name for name, place in self._sources.items() if place is not None}
        told |= {"cpus"} if self._cpus is not None or "alloc_tres" in told else set()
        told |= {"gpus", "doubt"} if "alloc_tres" in told else set()
        self.given = frozenset((*told, "fingerprint"))
        digest = hashlib.blake2b("\x1f".join((zone, *fields)).encode(), digest_size=8).digest()
        self.seed = int.from_bytes(digest, "little", signed=True)

    def _reader(self, column: str) -> Read:
        if column in _TIMES:
            return self._times or (readers.moment if column == "submit" else readers.epoch)
        read = _READERS.get(column, str)
        return Memo(read).__getitem__ if column in _REPEATED else read

    def time(self, text: str) -> int | None:
        """Epoch seconds of a time in its lines."""
        return (self._times or readers.epoch)(text)

    def keys(self, batch: Batch) -> list[Key | None]:
        """What run each row speaks of; None where that cannot be read."""
        place = self._sources["db_index"]
        if place is None or not batch.texts:
            return list(map(self.key, batch.rows))
        try:
            found: list[Key | None] = _digits(readers.index, batch.texts[place], "", {})
        except ValueError:
            return list(map(self.key, batch.rows))
        if None in found:
            for number in [number for number, key in enumerate(found) if key is None]:
                found[number] = self.key(batch.row(number))
        return found

    def key(self, row: Sequence[str]) -> Key | None:
        """The same of one row, which may be cut off."""
        try:
            place = self._sources["db_index"]
            number = None if place is None else readers.index(row[place])
        except (ValueError, IndexError):
            return None
        return self.pair(row) if number is None else number

    def pair(self, row: Sequence[str]) -> tuple[int, int] | None:
        """JobIDRaw and Submit of one row; None where they cannot be read."""
        try:
            job, submit = (self._reads[name](row[self._sources[name] or 0]) for name in _IDENTITY)
        except (ValueError, IndexError):
            return None
        return None if submit is None else (job, submit)

    def runs(self, batch: Batch) -> tuple[list[Run], list[Reject]]:
        """Read rows that can be split; those with a value that cannot be read are rejects."""
        columns, rejects = self.columns(batch)
        return list(map(_RUN, zip(*columns.values(), strict=True))), rejects

    def columns(self, batch: Batch) -> tuple[Columns, list[Reject]]:
        """The same, of all runs each column."""
        texts, count = batch.texts, len(batch.fingerprints)
        if not count:
            return {name: [] for name in Run._fields}, []
        bad: Bad = {}
        columns = {name: self._column(name, texts, bad) for name in _SOURCES}
        self._of_tres(columns, texts, bad)
        if self._times is not None and self._times.twice:
            self._settle(self._times, columns, texts)
        columns["fingerprint"] = batch.fingerprints
        if not bad:
            return {name: columns[name] for name in Run._fields}, []
        rejects = [self.reject(batch.row(number), why) for number, why in sorted(bad.items())]
        good = [number not in bad for number in range(count)]
        return {name: list(compress(columns[name], good)) for name in Run._fields}, rejects

    def reject(self, row: Sequence[str], why: str) -> Reject:
        """A row that cannot be read; whatever it was delimited by, it is the same reject."""
        return Reject("\x1f".join(row), why, self.key(row))

    def _column(self, column: str, texts: Sequence[Sequence[str]], bad: Bad) -> Sequence[Any]:
        place = self._sources[column]
        if place is None:
            return [_SOURCES[column][1]] * len(texts[0])
        read = self._reads[column]
        if read is str:
            return texts[place]
        values = (_digits if column in _NUMBERS else _read)(
            read, texts[place], self.fields[place], bad
        )
        if column == "submit" and None in values:
            _mark(bad, values, lambda n: f"{self.fields[place]} {texts[place][n]!r} cannot be read")
        return values

    def _settle(
        self, times: Times, columns: dict[str, Any], texts: Sequence[Sequence[str]]
    ) -> None:
        """Choose what times mean that the clock showed twice."""
        # Submit may be part of what tells a run from others, and means the same in every line.
        fixed = {"submit"} if self._sources["db_index"] is None else set()
        said = {name: texts[p] for name in _ORDER if (p := self._sources[name]) is not None}
        some = {n for name in said for n, text in enumerate(said[name]) if text in times.twice}
        lists = {name: list(columns[name]) for name in (*_ORDER, "suspended")}
        for row in some:
            told = []
            for name in _ORDER:
                first = lists[name][row]
                text = said[name][row] if name in said and name not in fixed else ""
                told.append((first, times.twice.get(text, first)))
            elapsed = None if self._elapsed is None else _length(texts[self._elapsed][row])
            chosen = times.settle(told, elapsed, lists["suspended"][row] or 0)
            for name, time in zip(_ORDER, chosen, strict=True):
                lists[name][row] = time
        columns |= lists

    def _of_tres(self, columns: dict[str, Any], texts: Sequence[Sequence[str]], bad: Bad) -> None:
        tres = columns["alloc_tres"]
        fallback = [0] * len(tres)
        if self._cpus is not None:
            read = self._amounts.__getitem__
            fallback = _read(read, texts[self._cpus], self.fields[self._cpus], bad)
        said = _read(self._tres_cpus.__getitem__, tres, "AllocTRES", bad)
        if None in said:
            # sacct shows what was asked for as allocated of a run that never had a node.
            none = "nodes" in self.given
            said = [
                a if a is not None else 0 if none and not nodes else b
                for a, b, nodes in zip(said, fallback, columns["nodes"], strict=True)
            ]
        columns["cpus"] = said
        columns["gpus"] = _read(self._tres_gpus.__getitem__, tres, "AllocTRES", bad)
        both = zip(tres, columns["req_tres"], strict=True)
        columns["doubt"] = list(map(self._doubts.__getitem__, both))


# In C, which `Run` itself and `Run._make` are not.
_RUN = cast("Callable[[Iterable[Any]], Run]", partial(tuple.__new__, Run))
_IDENTITY = ("job_id_raw", "submit")
_ORDER = ("submit", "start", "end")
_NEITHER = " \t\r\n-"  # that JSON would take beside digits
_decode = msgspec.json.Decoder(list[int]).decode
_FIRST_OF_SHA1 = "q12x"


def _doubt(both: tuple[str, str]) -> str | None:
    try:
        return readers.doubt(*both)
    except ValueError:
        return "ReqTRES cannot be read"


def _length(text: str) -> int | None:
    try:
        return readers.seconds(text) if text else None
    except ValueError:
        return None


def fingerprint(line: bytes) -> int:
    """64 bits of a line; with a layout's seed added by exclusive or, of how it is read too."""
    return fingerprints([line])[0]


def fingerprints(lines: Iterable[bytes]) -> list[int]:
    """Those of many lines."""
    digests = [hashlib.sha1(line, usedforsecurity=False).digest() for line in lines]
    return list(struct.unpack(f"<{_FIRST_OF_SHA1 * len(digests)}", b"".join(digests)))


def _digits(read: Read, texts: Sequence[str], field: str, bad: Bad) -> list[Any]:
    """Mostly digits, which need no function in Python; 0 and what is none go through `read`."""
    found = _decimal(texts)
    if found and all(found) and max(found) <= readers.LATEST:
        return found
    try:
        values = [(int(t) or read(t)) if t.isascii() and t.isdigit() else read(t) for t in texts]
    except ValueError:
        return list(_one_by_one(read, texts, field, bad))
    if max(filter(None, values), default=0) > readers.LATEST:
        return _read(read, texts, field, bad)
    return values


def _decimal(texts: Sequence[str]) -> list[int]:
    """Numbers without a leading zero; empty where any text is none."""
    together = ",".join(texts)
    if any(mark in together for mark in _NEITHER):
        return []
    try:
        found = _decode(f"[{together}]")
    except ValueError:
        return []
    return found if len(found) == len(texts) else []


def _read(read: Read, texts: Sequence[str], field: str, bad: Bad) -> list[Any]:
    try:
        if texts[0] == texts[-1] and texts.count(texts[0]) == len(texts):
            return [read(texts[0])] * len(texts)
        return list(map(read, texts))
    except ValueError:
        return list(_one_by_one(read, texts, field, bad))


def _one_by_one(read: Read, texts: Iterable[str], field: str, bad: Bad) -> Iterator[Any]:
    for number, text in enumerate(texts):
        try:
            yield read(text)
        except ValueError as error:
            said = str(error) if isinstance(error, Said) else f"{field} {text!r} cannot be read"
            bad.setdefault(number, said)
            yield None


def _mark(bad: Bad, values: Iterable[Any], why: Callable[[int], str]) -> None:
    for number, value in enumerate(values):
        if value is None:
            bad.setdefault(number, why(number))


class Said(ValueError):
    """A value that cannot be read, and in words why."""
