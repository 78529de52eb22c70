"""A cluster's accounting database, asked as sacct and scontrol are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurmkit_accounting.sacct_rows import FIELDS

from slurmkit.testing import FakeSlurm

TRES = "billing=8,cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1"
DEFAULTS: dict[str, Any] = {
    "User": "alice",
    "UID": 10011,
    "Account": "vision",
    "Partition": "gpu",
    "QOS": "normal",
    "State": "COMPLETED",
    "AllocNodes": 1,
    "AllocCPUS": 4,
    "AllocTRES": TRES,
    "ReqTRES": TRES,
    "TimelimitRaw": 60,
    "ExitCode": "0:0",
    "NodeList": "c1",
    "JobName": "train",
}


def job(number: int, submit: int, start: object = None, end: object = None, **other: Any) -> dict:
    """One row; `start` and `end` as epoch, None for Unknown."""
    times = {"Submit": submit, "Eligible": submit, "Start": start, "End": end}
    ids = {"DBIndex": 1000 + number, "JobIDRaw": number, "JobID": number}
    row = DEFAULTS | times | ids | other
    return {name: "Unknown" if value is None else str(value) for name, value in row.items()}


class FakeSacct(FakeSlurm):
    """Answers with the rows of `jobs` that Slurm would select.

    Attributes:
        jobs: rows as `job` makes them; tests change them as time goes by.
        junk: text printed before the rows.
        cluster: ClusterName.
        tracked: AccountingStorageTRES.
    """

    def __init__(self, *jobs: dict) -> None:
        super().__init__({"sacct": self._sacct, "scontrol": self._scontrol})
        self.jobs = list(jobs)
        self.junk = ""
        self.cluster = "lab"
        self.tracked = "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpu:a100"

    def _scontrol(self, argv: Sequence[str], _: str | None) -> str:
        assert list(argv) == ["scontrol", "show", "config"]
        return (
            f"AccountingStorageTRES   = {self.tracked}\nClusterName             = {self.cluster}\n"
        )

    def _sacct(self, argv: Sequence[str], _: str | None) -> str:
        options = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
        mark, fields = options["--delimiter"], options["--format"].split(",")
        assert fields == list(FIELDS)
        assert {"-a", "-X", "-D", "--noheader"} <= set(argv)
        rows = [row for row in self.jobs if self._selected(row, argv, options)]
        return self.junk + "".join(
            "".join(row[field] + mark for field in fields) + "\n" for row in rows
        )

    def _selected(self, row: dict, argv: Sequence[str], options: dict[str, str]) -> bool:
        if "--jobs" in options:
            return row["JobIDRaw"] in options["--jobs"].split(",")
        begin, end = (int(argv[argv.index(flag) + 1].removeprefix("uts")) for flag in ("-S", "-E"))
        ended = row["End"] == "Unknown" or int(row["End"]) >= begin
        return row["Eligible"] != "Unknown" and int(row["Eligible"]) < end and ended
