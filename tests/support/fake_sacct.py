"""A cluster's accounting database, asked as sacct and scontrol are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from slurmkit_accounting.sacct.query import SACCT_FIELDS
from slurmkit_accounting.sacct.steps import STEP_FIELDS

from slurmkit.errors import SlurmError
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
    "Suspended": "00:00:00",
    "ConsumedEnergyRaw": "0",
    "Reservation": "",
    "JobName": "train",
}


def lately() -> int:
    """Now, or while the day (UTC) is young the end of the last: minutes before are of one day.

    An ingest reads day by day, and what runs over midnight is read with both.
    """
    now = int(time.time())
    return now - 1000 if now % 86400 < 1000 else now


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
        steps: rows of steps by the DBIndex of their job, see `step`.
        junk: text printed before the rows.
        cluster: ClusterName.
        nodes: what `scontrol show node` prints.
        tracked: AccountingStorageTRES.
        private: slurmdbd's PrivateData.
        level: the AdminLevel of whoever asks.
        events: what `sacctmgr show event` prints.
    """

    def __init__(self, *jobs: dict) -> None:
        answers = {"sacct": self._sacct, "scontrol": self._scontrol, "sacctmgr": self._sacctmgr}
        super().__init__(answers)
        self.jobs = list(jobs)
        self.steps: dict[str, list[dict]] = {}
        self.junk = ""
        self.cluster = "lab"
        self.nodes = ""
        self.tracked = "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpu:a100"
        self.private = "none"
        self.level = "None"
        self.events: str | SlurmError = ""

    def _scontrol(self, argv: Sequence[str], _: str | None) -> str:
        if argv[-1] == "node":
            return self.nodes
        assert list(argv) == ["scontrol", "show", "config"]
        return (
            f"AccountingStorageTRES   = {self.tracked}\nClusterName             = {self.cluster}\n"
        )

    def _sacctmgr(self, argv: Sequence[str], _: str | None) -> str:
        if "configuration" in argv:
            return (
                f"SlurmDBD configuration:\nPrivateData            = {self.private}\n"
                "SlurmUser              = slurm(64030)\n"
            )
        if "event" in argv:
            if isinstance(self.events, SlurmError):
                raise self.events
            return self.events
        assert "format=AdminLevel" in argv
        return f"{self.level}\n"

    def _sacct(self, argv: Sequence[str], _: str | None) -> str:
        options = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
        mark, fields = options["--delimiter"], options["--format"].split(",")
        assert {"-a", "-D", "--noheader", "-p"} <= set(argv)
        rows = [row for row in self.jobs if self._selected(row, argv, options)]
        if "-T" in argv:
            rows = [_cut(row, argv) for row in rows]
        if "-X" not in argv:
            assert fields == list(STEP_FIELDS)
            rows = [one for row in rows for one in (row, *self.steps.get(row["DBIndex"], ()))]
            return "".join("".join(row.get(f, "") + mark for f in fields) + "\n" for row in rows)
        assert "-T" in argv or fields == list(SACCT_FIELDS)
        said = "".join("".join(row[field] + mark for field in fields) + "\n" for row in rows)
        return self.junk + said if rows else ""

    def _selected(self, row: dict, argv: Sequence[str], options: dict[str, str]) -> bool:
        if options.get("--user", row["User"]) != row["User"]:
            return False
        if "--jobs" in options:
            return row["JobIDRaw"] in options["--jobs"].split(",")
        begin, end = _window(argv)
        ended = row["End"] == "Unknown" or int(row["End"]) >= begin
        return row["Eligible"] != "Unknown" and int(row["Eligible"]) < end and ended


def _cut(row: dict, argv: Sequence[str]) -> dict:
    """As -T does: suspended time is what of it lies in the window."""
    begin, end = _window(argv)
    halts = row.get("halts", ())
    seconds = sum(max(min(b, end) - max(a, begin), 0) for a, b in halts)
    return row | {"Suspended": clock(seconds)}


def _window(argv: Sequence[str]) -> tuple[int, int]:
    begin, end = (int(argv[argv.index(flag) + 1].removeprefix("uts")) for flag in ("-S", "-E"))
    return begin, end


def clock(seconds: int) -> str:
    """Seconds as sacct prints them: [D-]HH:MM:SS."""
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def halted(row: dict, *halts: tuple[int, int]) -> dict:
    """A row of `job` that was suspended from and until some times."""
    return row | {"Suspended": clock(sum(b - a for a, b in halts)), "halts": halts}


def step(row: dict, name: str, **other: Any) -> dict:
    """A step of a row of `job`."""
    values = {
        "DBIndex": row["DBIndex"], "JobIDRaw": f"{row['JobIDRaw']}.{name}",
        "JobID": f"{row['JobID']}.{name}", "State": row["State"], "Submit": row["Start"],
        "Start": row["Start"], "End": row["End"], "NTasks": "1", "TotalCPU": "00:01.500",
        "TRESUsageInTot": "cpu=00:00:01,energy=0,mem=3211264,pages=0", "ConsumedEnergyRaw": "0",
        "JobName": name,
    }  # fmt: skip
    return values | {key: str(value) for key, value in other.items()}


def runs_of_every_kind(now: int) -> FakeSacct:
    """Runs that ended, run, were restarted, suspended or cancelled, odd and unreadable ones.

    Args:
        now: epoch seconds; the runs are of the two days before.
    """
    day = 86400
    first = job(1, now - 2 * day, now - 2 * day, now - day)
    slurm = FakeSacct(
        first,
        halted(job(2, now - 900, now - 890, now - 500, State="NODE_FAIL"), (now - 800, now - 700)),
        job(2, now - 499, now - 400, now - 300, DBIndex=50),
        job(3, now - 90, now - 90, None, State="RUNNING"),
        job(4, now - 90, "soon", None),
        job(5, now - 9, None, now - 5, State="CANCELLED by 5", AllocTRES="", AllocNodes=0),
        job(
            6, now - 90, now - 90, now - 80, DBIndex=2**64 - 5, JobName='日本 "\\ | \n', UID="",
            ConsumedEnergyRaw=77,
        ),
    )  # fmt: skip
    slurm.steps["1001"] = [step(first, "batch")]
    return slurm
