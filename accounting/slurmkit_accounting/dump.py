"""Any output of `sacct -P` in a file: any fields, in any order, with any delimiter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import BinaryIO

from slurmkit.errors import BadInput
from slurmkit_accounting.columns import KNOWN, Layout, fingerprints
from slurmkit_accounting.localtimes import LocalTimes
from slurmkit_accounting.rows import Batch, Reject
from slurmkit_accounting.zones import Zone

_BLOCK = 2**21  # bytes, some 8,000 rows: of more, the memory next to the processor is too small
# What cannot be worked out without any of some fields.
_NEEDED = (
    (("Start",), "hours of any kind"),
    (("End",), "hours of runs that have ended: all would seem to run on"),
    (("AllocTRES",), "GPU-hours and memory-hours"),
    (("AllocTRES", "AllocCPUS", "NCPUS"), "CPU-hours"),
    (("AllocNodes", "NNodes"), "node-hours"),
    (("State",), "hours by outcome"),
    (("User", "UID"), "whose the hours were"),
    (("Account",), "hours by account"),
    (("Partition",), "hours by partition"),
    (("QOS",), "hours by QOS"),
    (("Suspended",), "time suspended"),
    (("ReqTRES",), "which GPU counts are doubtful"),
    (("ConsumedEnergyRaw",), "energy"),
    (("JobIDRaw",), "array tasks: only jobs that are none are read"),
)
# Text of people's own may hold line breaks where it comes last.
_FREE = frozenset(
    ("jobname", "comment", "admincomment", "systemcomment", "workdir", "submitline", "stdout")
)
_CANONICAL = {name.lower(): name for name in KNOWN}


def field_names(given: str) -> tuple[str, ...]:
    """Sacct's names of fields, in its own spelling, of a list by comma; widths (`%20`) are cut off.

    Raises:
        BadInput: where a run could not be told from others.
    """
    names = [name.strip().partition("%")[0] for name in given.split(",")]
    fields = tuple(_CANONICAL.get(name.lower(), name) for name in names)
    twice = next((name for name in fields if name in KNOWN and fields.count(name) > 1), None)
    if twice:
        raise BadInput(f"--fields names {twice} twice")
    job = "JobIDRaw" in fields or "JobID" in fields
    lacking = [*(() if job else ("JobIDRaw",)), *(() if "Submit" in fields else ("Submit",))]
    if lacking:
        raise BadInput(
            f"--fields lacks {' and '.join(lacking)}, without which a run cannot be told from"
            " others"
        )
    return fields


def cannot_say(fields: Sequence[str]) -> list[str]:
    """What cannot be worked out from some fields, and for lack of which."""
    return [
        f"without {' or '.join(names)} there is no telling {what}"
        for names, what in _NEEDED
        if not any(name in fields for name in names)
    ]


class Dump:
    """A file of lines, read block by block.

    Attributes:
        how: how its lines are read.
        done: bytes read so far.
        steps: lines of steps, which are left out.
        over: whether all batches were read.
    """

    def __init__(self, file: BinaryIO, fields: Sequence[str], delimiter: str, zone: Zone) -> None:
        self.how = Layout(fields, LocalTimes(zone), zone.name)
        self.done = 0
        self.steps = 0
        self.over = False
        self._rest = b""
        self._file = file
        self._delimiter = delimiter
        self._size = len(fields)
        self._continues = fields[-1].lower() in _FREE
        places = [fields.index(name) for name in ("JobIDRaw", "JobID") if name in fields]
        self._job = places[0]

    def skip_header(self) -> None:
        """Read the first line, which names the fields.

        Raises:
            BadInput: where it does not name them as `--fields` does.
        """
        line = self._file.readline()
        self.done += len(line)
        names = line.decode("utf-8", "replace").rstrip("\r\n").split(self._delimiter)
        names = names[:-1] if names[-1:] == [""] else names
        if [name.lower() for name in names] != [name.lower() for name in self.how.fields]:
            raise BadInput(
                f"the header is {self._delimiter.join(names)[:200]!r}, which is not what --fields"
                " names; give --fields and --delimiter as in the header, or leave out --header"
            )

    def batches(self) -> Iterator[Batch]:
        """Split its lines into fields; what breaks off or runs on is a reject.

        Give each one up before asking for the next, or the texts of others lie far apart.
        """
        while block := self._file.read(_BLOCK):
            self.done += len(block)
            block, line_end, self._rest = (self._rest + block).rpartition(b"\n")
            if line_end:
                yield self._batch(block, last=False)
        self.over = True
        yield self._batch(self._rest, last=True)

    def _batch(self, block: bytes, *, last: bool) -> Batch:
        """Rows that are no steps; the last one may go on in the next block."""
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
        seed = self.how.seed
        return Batch(flat, texts, [number ^ seed for number in fingerprints(raw)], rejects)

    def _split(self, block: bytes) -> tuple[list[str], list[list[str]], list[bytes], list[Reject]]:
        """The texts and the columns of its rows, the bytes of each row, and what is none."""
        text = block.decode("utf-8", "replace").replace("\0", "\ufffd")
        raw = block.split(b"\n")
        size = self._size
        if flat := self._at_once(text, len(raw)):
            return flat, [flat[place :: size + 1] for place in range(size)], raw, []
        parts = [line.split(self._delimiter, size - 1) for line in text.split("\n")]
        rows, raw, rejects = self._put_together(parts, raw)
        flat = list(chain.from_iterable(rows))
        return flat, [flat[place::size] for place in range(size)], raw, rejects

    def _at_once(self, text: str, lines: int) -> list[str]:
        """The fields of lines, if each has the right number of them, and between two a line end."""
        delimiter, size = self._delimiter, self._size
        flat = text.replace("\n", f"{delimiter}\n{delimiter}").split(delimiter)
        ends = flat[size :: size + 1]
        whole = len(flat) == (size + 1) * lines - 1 and ends.count("\n") == lines - 1
        return flat if whole else []

    def _put_together(
        self, parts: list[list[str]], lines: list[bytes]
    ) -> tuple[list[list[str]], list[bytes], list[Reject]]:
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
                why = f"{len(row)} fields where {self._size} were named"
                rejects.append(self.how.reject(row, why))
        return rows, raw, rejects

    def _begins(self, row: Sequence[str]) -> bool:
        """Whether it looks like the beginning of a row rather than the rest of a name."""
        return len(row) > 1 and row[0][:1].isdigit()
