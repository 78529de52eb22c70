"""Read files with output of `sacct -P`: any fields, in any order, with any delimiter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import BinaryIO

from slurmkit.errors import BadInput
from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.sacct.columns import KNOWN_FIELDS, RowLayout, fingerprints
from slurmkit_accounting.sacct.local_times import LocalTimes
from slurmkit_accounting.sacct.rows import Reject, RowBatch

_BLOCK = 2**21  # bytes, some 8,000 rows: more do not fit into the CPU cache
# What is missing from reports if a file has none of some fields.
_NEEDED_FIELDS = (
    (("Start",), "no hours can be counted"),
    (("End",), "runs that have ended look as if they still run"),
    (("AllocTRES",), "no GPU-hours and memory-hours can be counted"),
    (("AllocTRES", "AllocCPUS", "NCPUS"), "no CPU-hours can be counted"),
    (("AllocNodes", "NNodes", "AllocTRES"), "no node-hours can be counted"),
    (("State",), "hours cannot be split by outcome"),
    (("User", "UID"), "hours cannot be split by user"),
    (("Account",), "hours cannot be split by account"),
    (("Partition",), "hours cannot be split by partition"),
    (("QOS",), "hours cannot be split by QOS"),
    (("Suspended",), "suspended time is unknown"),
    (("ReqTRES",), "doubtful GPU counts cannot be found"),
    (("ConsumedEnergyRaw",), "energy is unknown"),
    (("JobIDRaw",), "array tasks cannot be read"),
)
# Fields with text of users: as the last field of a row it may contain line breaks.
_FREE_TEXT_FIELDS = frozenset((
    "jobname", "comment", "admincomment", "systemcomment", "workdir", "submitline", "stdout",
    "stderr", "stdin", "extra", "wckey", "container",
))  # fmt: skip
_LEAST_RANDOM = 8  # characters of a delimiter that users cannot guess
_CANONICAL = {name.lower(): name for name in KNOWN_FIELDS}


def parse_field_names(given: str) -> tuple[str, ...]:
    """Parse a comma-separated list of fields, in sacct's own spelling and without widths (`%20`).

    Raises:
        BadInput: for a field named twice, and if the fields do not identify a run.
    """
    names = [name.strip().partition("%")[0] for name in given.split(",")]
    fields = tuple(_CANONICAL.get(name.lower(), name) for name in names)
    twice = next((name for name in fields if name in KNOWN_FIELDS and fields.count(name) > 1), None)
    if twice:
        raise BadInput(f"--fields names {twice} twice")
    job = "JobIDRaw" in fields or "JobID" in fields
    lacking = [*(() if job else ("JobIDRaw",)), *(() if "Submit" in fields else ("Submit",))]
    if lacking:
        raise BadInput(
            f"--fields lacks {' and '.join(lacking)}; JobIDRaw and Submit identify a run"
        )
    return fields


def missing_information(fields: Sequence[str]) -> list[str]:
    """Say what reports cannot show for lack of fields, and which fields are missing."""
    return [
        f"without {' or '.join(names)}: {what}"
        for names, what in _NEEDED_FIELDS
        if not any(name in fields for name in names)
    ]


def forgeable_fields(fields: Sequence[str], delimiter: str) -> list[str]:
    """Return the fields in which users can write the delimiter, and so rows of other users.

    A line break and the delimiter in a job name look like another row. Only a delimiter that its
    author could not guess tells them apart.
    """
    if len(delimiter) >= _LEAST_RANDOM:
        return []
    return [name for name in fields if name.lower() in _FREE_TEXT_FIELDS]


class SacctFileReader:
    """A file of sacct rows, read block by block.

    Attributes:
        how: the layout of its rows.
        done: bytes read so far.
        steps: number of rows of steps, which are left out.
        ambiguous: number of rows whose last field has a line break or the delimiter in it.
        over: whether all batches were read.
    """

    def __init__(self, file: BinaryIO, fields: Sequence[str], delimiter: str, zone: Zone) -> None:
        self.how = RowLayout(fields, LocalTimes(zone), zone.name)
        self.done = 0
        self.steps = 0
        self.ambiguous = 0
        self.over = False
        self._rest = b""
        self._file = file
        self._delimiter = delimiter
        self._size = len(fields)
        self._continues = fields[-1].lower() in _FREE_TEXT_FIELDS
        indices = [fields.index(name) for name in ("JobIDRaw", "JobID") if name in fields]
        self._job = indices[0]

    def skip_header(self) -> None:
        """Read the first line, which names the fields.

        Raises:
            BadInput: when the names are not those of `--fields`.
        """
        line = self._file.readline()
        self.done += len(line)
        names = line.decode("utf-8", "replace").rstrip("\r\n").split(self._delimiter)
        names = names[:-1] if names[-1:] == [""] else names
        if [name.lower() for name in names] != [name.lower() for name in self.how.fields]:
            raise BadInput(
                f"the header is {self._delimiter.join(names)[:200]!r}, but --fields names other"
                " fields; give --fields and --delimiter as in the header, or leave out --header"
            )

    def batches(self) -> Iterator[RowBatch]:
        """Split the rows into fields; a row with too few or too many fields is a reject.

        Delete each batch before asking for the next, or the texts of later ones are scattered in
        memory.
        """
        while block := self._file.read(_BLOCK):
            self.done += len(block)
            block, line_end, self._rest = (self._rest + block).rpartition(b"\n")
            if line_end:
                yield self._batch(block, last=False)
        self.over = True
        yield self._batch(self._rest, last=True)

    def _batch(self, block: bytes, *, last: bool) -> RowBatch:
        """Make a batch of the rows of runs; the last row may continue in the next block."""
        flat, texts, raw, rejects = self._split(block)
        if raw and not last:
            self._rest = raw.pop() + b"\n" + self._rest
            for column in texts:
                column.pop()
        if "." in "".join(texts[self._job]):
            runs = ["." not in job for job in texts[self._job]]
            self.steps += runs.count(False)
            texts = [list(compress(column, runs)) for column in texts]
            raw = list(compress(raw, runs))
        self.ambiguous += self._count_ambiguous(texts[-1])
        seed = self.how.seed
        return RowBatch(flat, texts, [number ^ seed for number in fingerprints(raw)], rejects)

    def _count_ambiguous(self, texts: Sequence[str]) -> int:
        """Count last fields with a line break or the delimiter in them."""
        joined = "".join(texts)
        if "\n" not in joined and self._delimiter not in joined:
            return 0
        # sacct -p, unlike -P, prints the delimiter after the last field too.
        own = [text.removesuffix(self._delimiter) for text in texts]
        return sum("\n" in text or self._delimiter in text for text in own)

    def _split(self, block: bytes) -> tuple[list[str], list[list[str]], list[bytes], list[Reject]]:
        """Return all texts, the columns, the bytes of each row, and the rejects of a block."""
        text = block.decode("utf-8", "replace").replace("\0", "\ufffd")
        raw = block.split(b"\n")
        size = self._size
        if flat := self._at_once(text, len(raw)):
            return flat, [flat[index :: size + 1] for index in range(size)], raw, []
        parts = [line.split(self._delimiter, size - 1) for line in text.split("\n")]
        rows, raw, rejects = self._put_together(parts, raw)
        flat = list(chain.from_iterable(rows))
        return flat, [flat[index::size] for index in range(size)], raw, rejects

    def _at_once(self, text: str, lines: int) -> list[str]:
        """Split lines into fields all at once; empty if any line has another number of fields."""
        delimiter, size = self._delimiter, self._size
        flat = text.replace("\n", f"{delimiter}\n{delimiter}").split(delimiter)
        ends = flat[size :: size + 1]
        whole = len(flat) == (size + 1) * lines - 1 and ends.count("\n") == lines - 1
        return flat if whole else []

    def _put_together(
        self, parts: list[list[str]], lines: list[bytes]
    ) -> tuple[list[list[str]], list[bytes], list[Reject]]:
        """Join rows that a line break in the last field has split; reject other odd lines."""
        rows: list[list[str]] = []
        raw: list[bytes] = []
        rejects: list[Reject] = []
        for row, line in zip(parts, lines, strict=True):
            if len(row) == self._size:
                rows.append(row)
                raw.append(line)
            elif not line.strip():
                continue
            elif rows and self._continues and not self._begins(row):
                rows[-1][-1] += "\n" + self._delimiter.join(row)
                raw[-1] += b"\n" + line
            else:
                why = f"{len(row)} fields instead of the {self._size} of --fields"
                rejects.append(self.how.reject(row, why))
        return rows, raw, rejects

    def _begins(self, row: Sequence[str]) -> bool:
        """Return whether a line looks like the beginning of a row, not the rest of a name."""
        return len(row) > 1 and row[0][:1].isdigit()
