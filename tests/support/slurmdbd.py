"""A cluster's accounting database as it changes in time: what slurmctld tells it, and mistakes."""

from __future__ import annotations

from itertools import count
from typing import Any

from fake_sacct import TRES, FakeSacct, clock, job

HOUR = 3600


class Slurmdbd:
    """Rows by DBIndex, as `fake_sacct.job` makes them. All times are epoch seconds.

    Attributes:
        sacct: answers with the rows as they are.
    """

    def __init__(self, cluster: str, first_index: int) -> None:
        self.sacct = FakeSacct()
        self.sacct.cluster = cluster
        self._numbers = count(1)
        self._indices = count(first_index)

    @property
    def rows(self) -> list[dict]:
        return self.sacct.jobs

    def submit(self, at: int, **other: Any) -> dict:
        return self._add(self._next_id(at), at, **other)

    def _next_id(self, at: int) -> int:
        """An id that no unfinished job has. slurmdbd has one row for an id and a Submit."""
        rows = (row for row in self.rows if row["End"] == "Unknown" or row["Submit"] == str(at))
        taken = {int(row["JobIDRaw"]) for row in rows}
        return next(number for number in self._numbers if number not in taken)

    def _add(self, number: int, at: int, **other: Any) -> dict:
        facts = {
            "State": "PENDING",
            "AllocTRES": "",
            "AllocNodes": 0,
            "DBIndex": next(self._indices),
        }
        row = job(number, at, None, None, **(facts | {"JobID": number} | other))
        self.rows.append(row)
        return row

    def start(self, row: dict, at: int, tres: str = TRES) -> None:
        row |= {"Start": str(at), "State": "RUNNING", "AllocTRES": tres, "AllocNodes": "1"}

    def end(self, row: dict, at: int, state: str = "COMPLETED") -> None:
        row |= {"End": str(at), "State": state}

    def requeue(self, row: dict, at: int, state: str = "REQUEUED") -> dict:
        """The run ends, and another row of the same job is submitted."""
        self.end(row, at, state)
        return self._add(int(row["JobIDRaw"]), at, JobID=row["JobID"], User=row["User"])

    def resize(self, row: dict, at: int, tres: str) -> dict:
        """The piece ends as RESIZING, and goes on as another row, submitted then."""
        self.end(row, at, "RESIZING")
        piece = self._add(int(row["JobIDRaw"]), at, JobID=row["JobID"], User=row["User"])
        self.start(piece, at, tres)
        return piece

    def array(self, at: int, tasks: int, **other: Any) -> dict:
        number = self._next_id(at)
        return self._add(number, at, JobID=f"{number}_[1-{tasks}]", **other)

    def split(self, meta: dict, task: int, left: str) -> dict:
        """One task starts: it gets a row of its own; the last takes the place of the array's."""
        array = meta["JobID"].partition("_")[0]
        if not left:
            meta["JobID"] = f"{array}_{task}"
            return meta
        meta["JobID"] = f"{array}_[{left}]"
        submit = int(meta["Submit"])
        number = self._next_id(submit)
        return self._add(number, submit, JobID=f"{array}_{task}", User=meta["User"])

    def het(self, at: int, parts: int, **other: Any) -> list[dict]:
        numbers = [self._next_id(at) for _ in range(parts)]
        first = numbers[0]
        return [
            self._add(number, at, JobID=f"{first}+{part}", **other)
            for part, number in enumerate(numbers)
        ]

    def wrap(self, back: int) -> None:
        """Job ids begin again."""
        self._numbers = count(back)

    def suspend(self, row: dict, begin: int, end: int) -> None:
        halts = (*row.get("halts", ()), (begin, end))
        row |= {"halts": halts, "Suspended": clock(sum(b - a for a, b in halts))}

    def fix_runaway(self, row: dict) -> None:
        """As `sacctmgr show runawayjobs` does."""
        self.end(row, max(int(row["Start"]), int(row["Eligible"]), int(row["Submit"])))
