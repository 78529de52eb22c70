"""A stand-in for slurmctld and slurmdbd, as far as limits of allocations are concerned."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from slurmkit_accounting.allocations.apply import apply_limits, make_plan
from slurmkit_accounting.allocations.limits import WantedLimit
from slurmkit_accounting.allocations.site import SlurmSite
from slurmkit_accounting.config import AllocationSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.allocations import (
    allocation_limit_outcomes,
    allocation_limits,
)
from sqlalchemy import select

from slurmkit.errors import DatabaseDown, SlurmError
from slurmkit.testing import squeue_text

BY_ACCOUNT = AllocationSection(enforce="association")
BY_QOS = AllocationSection(enforce="qos")

_MODIFY = re.compile(r"GrpTRESMins=(?P<tres>[^=]+)=(?P<minutes>-?\d+)")


class StandInSlurm:
    """slurmctld and slurmdbd, as far as limits are concerned."""

    def __init__(self) -> None:
        self.calls = 0
        self.changes: list[tuple[str, ...]] = []
        self.config = {
            "ClusterName": "lab",
            "AccountingStorageEnforce": "associations,limits,qos,safe",
            "AccountingStorageTRES": "cpu,billing,gres/gpu",
            "PriorityCalcPeriod": "00:05:00",
            "PriorityDecayHalfLife": "00:00:00",
            "PriorityUsageResetPeriod": "NONE",
        }
        # Account or QOS -> limit, counted, in use.
        self.accounts: dict[str, list[int | None]] = {
            "root": [None, 0, 0], "vision": [None, 500, 0], "genomics": [None, 0, 0],
        }  # fmt: skip
        self.parents = {"vision": "root", "genomics": "root"}
        self.qos: dict[str, list[int | None]] = {"normal": [None, 0, 0]}
        self.flags = {"normal": ""}
        self.usable = ["normal"]  # QOS that users may use
        self.factors = {"normal": "1.000000"}
        self.jobs: list[dict[str, str]] = []  # that wait, as squeue prints them
        self.refused = dict[str, SlurmError]()  # by job id, what scontrol update says
        self.deaf = False
        self.down = False
        self.reads = 0
        self.dies_at = ""  # no command with this word runs

    def run(self, argv: Sequence[str], **_more: object) -> str:
        self.calls += 1
        if tuple(argv[:3]) == ("scontrol", "show", "config"):
            return "".join(f"{name} = {value}\n" for name, value in self.config.items())
        if tuple(argv[:3]) == ("scontrol", "show", "assoc_mgr"):
            self.reads += 1
            return self._state()
        if tuple(argv[:4]) == ("sacctmgr", "-nP", "show", "qos"):
            return "".join(f"{name}|{self.flags[name]}|{self.factors[name]}\n" for name in self.qos)
        if tuple(argv[:4]) == ("sacctmgr", "-nP", "show", "assoc"):
            return f"|normal\nalice|{','.join(self.usable)}\n"
        if tuple(argv[:2]) == ("scontrol", "update"):
            return self._update(argv)
        if self.down:
            raise DatabaseDown("slurmdbd does not answer")
        if self.dies_at and any(self.dies_at in word for word in argv):
            raise KeyboardInterrupt
        self.changes.append(tuple(argv))
        if not self.deaf:
            self._change(argv)
        return ""

    def stream(self, argv: Sequence[str], **_more: object) -> list[str]:
        assert argv[0] == "squeue"
        assert "--states=PENDING" in argv
        return squeue_text(argv, self.jobs).splitlines(keepends=True)

    def _update(self, argv: Sequence[str]) -> str:
        named = dict(word.split("=") for word in argv[2:])
        if named["JobId"] in self.refused:
            raise self.refused[named["JobId"]]
        self.changes.append(tuple(argv))
        for job in self.jobs:
            if job["JobArrayID"] in (named["JobId"], f"{named['JobId']}+0", f"{named['JobId']}+1"):
                job["QOS"] = named["QOS"]
        return ""

    def _change(self, argv: Sequence[str]) -> None:
        name = next(word for word in argv if word.startswith("name=")).removeprefix("name=")
        held = self.accounts if argv[3] == "account" else self.qos
        if argv[2] == "add":
            assert name not in self.qos
            self.qos[name] = [None, 0, 0]
            self.flags[name], self.factors[name] = "", "1"
        if "RawUsage=0" in argv:  # sacctmgr then does nothing else
            held[name][1] = 0
            return
        for word in argv:
            if found := re.fullmatch(r"Flags(?P<sign>[+-]?)=(?P<flags>.*)", word):
                has, given = set(filter(None, self.flags[name].split(","))), set()
                given |= set(found["flags"].split(","))
                has = has - given if found["sign"] == "-" else has | given
                self.flags[name] = ",".join(sorted(has))
        limit = next(filter(None, map(_MODIFY.fullmatch, argv)), None)
        if limit:
            assert limit["tres"] == "gres/gpu"
            minutes = int(limit["minutes"])
            held[name][0] = None if minutes < 0 else minutes

    def _state(self) -> str:
        parts = ["Current Association Manager state\n\nAssociation Records\n"]
        for name, (limit, counted, in_use) in self.accounts.items():
            parts.append(
                f"ClusterName=lab Account={name} UserName= Partition= Priority=0 ID=1\n"
                f"    ParentAccount={self.parents.get(name, '')}(1) DefAssoc=No\n"
                + self._lines(limit, counted, in_use)
            )
        parts.append("\nQOS Records\n")
        for name, (limit, counted, in_use) in self.qos.items():
            parts.append(
                f"QOS={name}(1)\n    Priority=0 PreemptMode=OFF\n"
                + self._lines(limit, counted, in_use)
            )
        return "\n".join(parts)

    @staticmethod
    def _lines(limit: int | None, counted: int | None, in_use: int | None) -> str:
        shown = "N" if limit is None else limit
        return (
            f"    GrpTRES=cpu=N(4),billing=N(0),gres/gpu=N({in_use})\n"
            f"    GrpTRESMins=cpu=N(9),billing=N(0),gres/gpu={shown}({counted})\n"
            f"    GrpTRESRunMins=cpu=N(0),billing=N(0),gres/gpu=N(0)\n"
        )


def plan_apply(
    books: Ledger, slurm: StandInSlurm, section: AllocationSection
) -> tuple[SlurmSite, list[WantedLimit]]:
    """What Slurm says, and what to set."""
    plan = make_plan(books, slurm, section)
    return plan.site, list(plan.wanted)


@pytest.fixture(name="slurm")
def stand_in_slurm() -> StandInSlurm:
    """A Slurm of the test's own."""
    return StandInSlurm()


def applied(
    books: Ledger, slurm: StandInSlurm, section: AllocationSection = BY_ACCOUNT
) -> list[str]:
    """Set the limits that are due; the outcome of each."""
    site, wanted = plan_apply(books, slurm, section)
    return [one.outcome for one in apply_limits(books, slurm, site, wanted)]


def outcomes(books: Ledger) -> list[tuple[int | None, int | None, str | None]]:
    """What the ledger recorded of limits."""
    query = select(
        allocation_limits.c.before, allocation_limits.c.after, allocation_limit_outcomes.c.outcome
    ).outerjoin_from(allocation_limits, allocation_limit_outcomes)
    with books.transaction() as connection:
        rows = connection.execute(query.order_by(allocation_limits.c.id)).all()
    return [tuple(row) for row in rows]
