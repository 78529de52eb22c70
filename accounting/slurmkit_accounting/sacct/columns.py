"""Convert the fields of sacct rows to runs, column by column, so that the loops run in C."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from slurmkit_accounting.sacct import values as readers
from slurmkit_accounting.sacct.rows import Reject, RowBatch, RunColumns, RunKey, RunRow
from slurmkit_accounting.sacct.values import ParseCache

ParseValue: TypeAlias = "Callable[[str], Any]"
BadRows: TypeAlias = "dict[int, str]"  # why a row cannot be parsed, by its index

# For each column of a run the sacct fields that give it, the best first, and its value if there is
# none of them. CPUs and elapsed time, which take part in other columns, are below.
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
KNOWN_FIELDS = frozenset(
    (*(name for names, _ in _SOURCES.values() for name in names), *_CPUS, *_ELAPSED)
)
_READERS: dict[str, ParseValue] = {
    "db_index": readers.parse_db_index,
    "job_id_raw": readers.parse_number,
    "uid": readers.parse_optional_number,
    "state": readers.parse_base_state,
    "nodes": readers.parse_count,
    "energy_joules": readers.parse_joules,
    "suspended": readers.parse_elapsed_seconds,
    "cancelled_by": readers.parse_cancelled_by,
}
_TIMES = ("submit", "eligible", "start", "end")
_NUMBERS = frozenset((*_TIMES, "job_id_raw", "db_index"))
# Columns with few distinct texts in many rows.
_REPEATED = frozenset(("uid", "state", "nodes", "energy_joules", "suspended", "cancelled_by"))


class TimeParser(Protocol):
    """Parser of times; a local time that the clock showed twice has two possible meanings.

    Attributes:
        twice: parsed texts with two possible meanings, each with the second one.
    """

    twice: dict[str, int]

    def __call__(self, text: str) -> int | None:
        """Return epoch seconds; the first of two possible times."""
        ...

    def settle(
        self, times: Sequence[tuple[int | None, int | None]], elapsed: int | None, suspended: int
    ) -> list[int | None]:
        """Choose between the possible times, for Submit, Start and End of a run."""
        ...


class RowLayout:
    """How rows are parsed: the field at each position, and the meaning of times.

    Attributes:
        fields: sacct's names of the fields, in order.
        given: the columns of a run that the fields give. All others keep their stored values.
        dated: whether the rows are from the past: a run without an end may have ended since.
        seed: seed of the fingerprints. Rows parsed with other fields or another zone get others.
    """

    def __init__(
        self, fields: Sequence[str], times: TimeParser | None = None, zone: str = ""
    ) -> None:
        self.fields = tuple(fields)
        self.dated = bool(zone)
        indices = {name: index for index, name in enumerate(fields)}
        self._sources = {
            column: next((indices[name] for name in names if name in indices), None)
            for column, (names, _) in _SOURCES.items()
        }
        self._cpus = next((indices[name] for name in _CPUS if name in indices), None)
        self._times = times
        self._elapsed = next((indices[name] for name in _ELAPSED if name in indices), None)
        self._reads = {name: self._reader(name) for name in _SOURCES}
        self._tres_cpus, self._tres_gpus, self._tres_nodes = (
            ParseCache(readers.parse_tres_cpus),
            ParseCache(readers.parse_tres_gpus),
            ParseCache(readers.parse_tres_nodes),
        )
        self._doubts, self._amounts = ParseCache(_doubt), ParseCache(readers.parse_count)
        given = {name for name, index in self._sources.items() if index is not None}
        given |= {"cpus"} if self._cpus is not None or "alloc_tres" in given else set()
        given |= {"gpus", "doubt", "nodes"} if "alloc_tres" in given else set()
        self.given = frozenset((*given, "fingerprint"))
        digest = hashlib.blake2b("\x1f".join((zone, *fields)).encode(), digest_size=8).digest()
        self.seed = int.from_bytes(digest, "little", signed=True)

    def _reader(self, column: str) -> ParseValue:
        if column in _TIMES:
            return self._times or (
                readers.parse_required_time if column == "submit" else readers.parse_time
            )
        read = _READERS.get(column, str)
        return ParseCache(read).__getitem__ if column in _REPEATED else read

    def time(self, text: str) -> int | None:
        """Parse a time of a row as epoch seconds."""
        return (self._times or readers.parse_time)(text)

    def keys(self, batch: RowBatch) -> list[RunKey | None]:
        """Return the key of the run of each row; None if it cannot be parsed."""
        if not batch.texts:
            return []
        bad: BadRows = {}
        jobs, submits = (self._column(name, batch.texts, bad) for name in _IDENTITY)
        keys: list[RunKey | None] = list(zip(jobs, submits, strict=True))
        for number in bad:
            keys[number] = None
        return keys

    def db_indices(self, batch: RowBatch) -> Sequence[int | None]:
        """Return the DBIndex of each row; None if there is none, or it cannot be parsed."""
        return self._column("db_index", batch.texts, {}) if batch.texts else []

    def second_submits(self, batch: RowBatch) -> dict[int, int]:
        """Return the second meaning of each Submit that the clock showed twice, by row.

        Call `keys` before; it parses them, with their first meaning.
        """
        twice, index = self._times.twice if self._times else {}, self._sources["submit"]
        if not twice or not batch.texts or index is None:
            return {}
        texts = batch.texts[index]
        return {number: twice[text] for number, text in enumerate(texts) if text in twice}

    def with_submits(self, batch: RowBatch, submits: Mapping[int, int]) -> RowBatch:
        """Return the batch with other Submits, given by row as epoch seconds."""
        index = self._sources["submit"]
        if not submits or index is None:
            return batch
        texts = [list(column) if at == index else column for at, column in enumerate(batch.texts)]
        for number, submit in submits.items():
            texts[index][number] = str(submit)  # type: ignore[index]
        return RowBatch((), texts, batch.fingerprints, batch.rejects)

    def runs(self, batch: RowBatch) -> tuple[list[RunRow], list[Reject]]:
        """Parse rows to runs; a row with a value that cannot be parsed becomes a reject."""
        columns, rejects = self.columns(batch)
        return list(map(_RUN, zip(*columns.values(), strict=True))), rejects

    def columns(
        self, batch: RowBatch, keys: Sequence[RunKey] = ()
    ) -> tuple[RunColumns, list[Reject]]:
        """Parse rows to columns of runs, and rejects; `keys` are those of all rows, if known."""
        texts, count = batch.texts, len(batch.fingerprints)
        if not count:
            return {name: [] for name in RunRow._fields}, []
        bad: BadRows = {}
        columns: dict[str, Sequence[Any]] = {}
        if keys:
            columns |= dict(zip(_IDENTITY, zip(*keys, strict=True), strict=True))
        for name in _SOURCES:
            columns[name] = columns.get(name) or self._column(name, texts, bad)
        self._of_tres(columns, texts, bad)
        if self._times is not None and self._times.twice:
            self._settle(self._times, columns, texts)
        columns["fingerprint"] = batch.fingerprints
        if not bad:
            return {name: columns[name] for name in RunRow._fields}, []
        rejects = [self.reject(batch.row(number), why) for number, why in sorted(bad.items())]
        good = [number not in bad for number in range(count)]
        return {name: list(compress(columns[name], good)) for name in RunRow._fields}, rejects

    def reject(self, row: Sequence[str], why: str) -> Reject:
        """Make a reject of a row; it is the same whatever the delimiter was."""
        return self.reject_cut_off(row, row, why)

    def reject_cut_off(self, parts: Sequence[str], row: Sequence[str], why: str) -> Reject:
        """Make a reject of text, whose fields are those of `row`; that may be cut off."""
        job, submit, index = (self._value(name, row) for name in (*_IDENTITY, "db_index"))
        key = None if job is None or submit is None else (job, submit)
        return Reject("\x1f".join(parts), why, key, index)

    def _value(self, column: str, row: Sequence[str]) -> Any:
        """Return a value of one row, which may be cut off; None if it cannot be parsed."""
        index = self._sources[column]
        try:
            return None if index is None else self._reads[column](row[index])
        except (ValueError, IndexError):
            return None

    def _column(self, column: str, texts: Sequence[Sequence[str]], bad: BadRows) -> Sequence[Any]:
        index = self._sources[column]
        if index is None:
            return [_SOURCES[column][1]] * len(texts[0])
        read = self._reads[column]
        if read is str:
            return texts[index]
        values = (_parse_digits if column in _NUMBERS else _parse_column)(
            read, texts[index], self.fields[index], bad
        )
        if column == "submit" and None in values:
            for number, value in enumerate(values):
                if value is None:
                    why = f"{self.fields[index]} {texts[index][number]!r} cannot be read"
                    bad.setdefault(number, why)
        return values

    def _settle(
        self, times: TimeParser, columns: dict[str, Any], texts: Sequence[Sequence[str]]
    ) -> None:
        """Choose the meaning of times that the clock showed twice, in rows that have any."""
        given = {name: texts[p] for name in _ORDER if (p := self._sources[name]) is not None}
        some = {n for name in given for n, text in enumerate(given[name]) if text in times.twice}
        lists = {name: list(columns[name]) for name in (*_ORDER, "suspended")}
        for row in some:
            possible = []
            for name in _ORDER:
                first = lists[name][row]
                # Submit is part of the key, and must mean the same in every row.
                text = given[name][row] if name in given and name != "submit" else ""
                possible.append((first, times.twice.get(text, first)))
            elapsed = None if self._elapsed is None else _parse_elapsed(texts[self._elapsed][row])
            chosen = times.settle(possible, elapsed, lists["suspended"][row] or 0)
            for name, time in zip(_ORDER, chosen, strict=True):
                lists[name][row] = time
        columns |= lists

    def _of_tres(
        self, columns: dict[str, Any], texts: Sequence[Sequence[str]], bad: BadRows
    ) -> None:
        """Add the columns `cpus`, `gpus` and `doubt`, and without AllocNodes `nodes`."""
        tres = columns["alloc_tres"]
        fallback = [0] * len(tres)
        if self._cpus is not None:
            read = self._amounts.__getitem__
            fallback = _parse_column(read, texts[self._cpus], self.fields[self._cpus], bad)
        cpus = _parse_column(self._tres_cpus.__getitem__, tres, "AllocTRES", bad)
        if None in cpus:
            # Of a run that never had a node, sacct prints the requested CPUs as allocated.
            none = self._sources["nodes"] is not None
            cpus = [
                a if a is not None else 0 if none and not nodes else b
                for a, b, nodes in zip(cpus, fallback, columns["nodes"], strict=True)
            ]
        columns["cpus"] = cpus
        if self._sources["nodes"] is None:
            columns["nodes"] = _parse_column(self._tres_nodes.__getitem__, tres, "AllocTRES", bad)
        columns["gpus"] = _parse_column(self._tres_gpus.__getitem__, tres, "AllocTRES", bad)
        both = zip(tres, columns["req_tres"], strict=True)
        columns["doubt"] = list(map(self._doubts.__getitem__, both))


# Runs in C, which `RunRow` itself and `RunRow._make` do not.
_RUN = cast("Callable[[Iterable[Any]], RunRow]", partial(tuple.__new__, RunRow))
_IDENTITY = ("job_id_raw", "submit")
_ORDER = ("submit", "start", "end")
_NOT_DIGITS = " \t\r\n-"  # characters other than digits that the JSON decoder would accept
_decode = msgspec.json.Decoder(list[int]).decode
_FIRST_OF_SHA1 = "q12x"


def _doubt(both: tuple[str, str]) -> str | None:
    try:
        return readers.find_gpu_doubt(*both)
    except ValueError:
        return "ReqTRES cannot be read"


def _parse_elapsed(text: str) -> int | None:
    """Parse Elapsed as seconds; None if it is empty or cannot be parsed."""
    try:
        return readers.parse_elapsed_seconds(text) if text else None
    except ValueError:
        return None


def fingerprint(line: bytes) -> int:
    """Return a 64-bit hash of a row. XOR the seed of a layout, to include how the row is parsed."""
    return fingerprints([line])[0]


def fingerprints(lines: Iterable[bytes]) -> list[int]:
    """Return the fingerprints of many rows."""
    digests = [hashlib.sha1(line, usedforsecurity=False).digest() for line in lines]
    return list(struct.unpack(f"<{_FIRST_OF_SHA1 * len(digests)}", b"".join(digests)))


def _parse_digits(read: ParseValue, texts: Sequence[str], field: str, bad: BadRows) -> list[Any]:
    """Parse texts that are mostly digits without a Python call each; `read` takes all others."""
    numbers = _parse_decimals(texts)
    if numbers and all(numbers) and max(numbers) <= readers.LATEST_TIME:
        return numbers
    try:
        values = [(int(t) or read(t)) if t.isascii() and t.isdigit() else read(t) for t in texts]
    except ValueError:
        return list(_parse_one_by_one(read, texts, field, bad))
    if max(filter(None, values), default=0) > readers.LATEST_TIME:
        return _parse_column(read, texts, field, bad)
    return values


def _parse_decimals(texts: Sequence[str]) -> list[int]:
    """Parse numbers without leading zeros; empty if any text is not one."""
    joined = ",".join(texts)
    if any(mark in joined for mark in _NOT_DIGITS):
        return []
    try:
        numbers = _decode(f"[{joined}]")
    except ValueError:
        return []
    return numbers if len(numbers) == len(texts) else []


def _parse_column(read: ParseValue, texts: Sequence[str], field: str, bad: BadRows) -> list[Any]:
    try:
        if texts[0] == texts[-1] and texts.count(texts[0]) == len(texts):
            return [read(texts[0])] * len(texts)
        return list(map(read, texts))
    except ValueError:
        return list(_parse_one_by_one(read, texts, field, bad))


def _parse_one_by_one(
    read: ParseValue, texts: Iterable[str], field: str, bad: BadRows
) -> Iterator[Any]:
    """Parse texts one by one; note in `bad` those that cannot be parsed."""
    for number, text in enumerate(texts):
        try:
            yield read(text)
        except ValueError as error:
            why = (
                str(error)
                if isinstance(error, UnreadableValue)
                else f"{field} {text!r} cannot be read"
            )
            bad.setdefault(number, why)
            yield None


class UnreadableValue(ValueError):
    """A value that cannot be parsed, with the reason as its message."""
