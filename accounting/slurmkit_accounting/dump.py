"""Any output of `sacct -P` in a file: any fields, in any order, with any delimiter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from slurmkit.errors import BadInput
from slurmkit_accounting.columns import KNOWN, Layout, fingerprint, fingerprints
from slurmkit_accounting.localtimes import LocalTimes
from slurmkit_accounting.rows import Batch, Reject
from slurmkit_accounting.zones import Zone

_BLOCK = 2**20  # bytes, some 4,000 rows: of more, the memory next to the processor is too small
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
    """

    def __init__(self, file: BinaryIO, fields: Sequence[str], delimiter: str, zone: Zone) -> None:
        self.how = Layout(fields, LocalTimes(zone), zone.name)
        self.done = 0
        self.steps = 0
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
        """Split its lines into fields; what breaks off or runs on is a reject."""
        rest = b""
        last: tuple[list[str], bytes] | None = None
        while block := self._file.read(_BLOCK):
            self.done += len(block)
            block, line_end, rest = (rest + block).rpartition(b"\n")
            if line_end:
                batch, last = self._split(block, last)
                yield batch
        batch, last = self._split(rest, last) if rest else (Batch([], [], []), last)
        if last is not None:
            batch.rows.append(last[0])
            batch.fingerprints.append(fingerprint(last[1]) ^ self.how.seed)
        yield batch

    def _split(
        self, block: bytes, last: tuple[list[str], bytes] | None
    ) -> tuple[Batch, tuple[list[str], bytes] | None]:
        """Rows but for the last one, which may go on in the next block."""
        text = block.decode("utf-8", "replace").replace("\0", "\ufffd")
        delimiter, most, size = self._delimiter, self._size - 1, self._size
        rows = [line.split(delimiter, most) for line in text.split("\n")]
        raw = block.split(b"\n")
        rejects: list[Reject] = []
        if last is not None:
            rows.insert(0, last[0])
            raw.insert(0, last[1])
        if set(map(len, rows)) != {size}:
            rows, raw, rejects = self._put_together(rows, raw)
        job = self._job
        steps = [number for number, row in enumerate(rows) if "." in row[job]]
        if steps:
            self.steps += len(steps)
            left_out = set(steps)
            rows = [row for number, row in enumerate(rows) if number not in left_out]
            raw = [line for number, line in enumerate(raw) if number not in left_out]
        held = (rows.pop(), raw.pop()) if rows else None
        seed = self.how.seed
        return Batch(rows, [number ^ seed for number in fingerprints(raw)], rejects), held

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
