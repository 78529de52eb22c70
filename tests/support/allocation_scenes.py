"""Scenes of `slurmkit balance` and `slurmkit allocation` for the tests of `--json`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slurmkit_accounting.allocations.apply import LimitPlan
from slurmkit_accounting.allocations.balance import (
    AllocationBalance,
    AllocationHistory,
    Balance,
    Balances,
    UserUse,
)
from slurmkit_accounting.allocations.budgets_file import ImportedBudget
from slurmkit_accounting.allocations.changes import Posted
from slurmkit_accounting.allocations.coldfront import ColdfrontGrants, Step
from slurmkit_accounting.allocations.limits import WantedLimit
from slurmkit_accounting.allocations.model import Allocation, Entry, Holder

NOW = 1_793_491_200  # 2026-11-01 UTC
SCENES: dict[str, Callable[[pytest.MonkeyPatch, Path], Sequence[str]]] = {}


def _posted() -> Posted:
    entry = Entry(
        id=7, allocation=3, kind="grant", amount_ms=3_600_000, at=NOW, who="root", why="call"
    )
    allocation = Allocation(
        id=3, holder=Holder("account", "vision"), unit="gpu", begin=1, granted_to=None,
        entries=(entry,),
    )  # fmt: skip
    return Posted((allocation,), (entry,))


def _balances() -> Balances:
    row = Balance(
        holder=Holder("account", "vision"), unit="gpu", granted_ms=3_600_000, used_ms=0,
        running_ms=0, may_use_ms=0, reserved_ms=0, without_limit=0, left_ms=3_600_000,
        outside_ms=0, mine_ms=0, users=(UserUse("alice", 1),), pace=None,
        allocations=(AllocationBalance(3, 1, None, "in force", 3_600_000, 0, 3_600_000),),
        last_entry=1, newest_entry=7,
    )  # fmt: skip
    return Balances(
        rows=(row,), taken=NOW, source="ledger /books.db", last_ingest=1, everything=True
    )


def _limits() -> LimitPlan:
    one = WantedLimit(
        holder=Holder("account", "vision"), unit="gpu", target_kind="account", target="vision",
        tres="gres/gpu", before=60, after=60, counted=0, left=60, slack=1, last_entry=7,
    )  # fmt: skip
    site: Any = SimpleNamespace(cluster="lab")
    return LimitPlan(site=site, wanted=(one,), remarks=(), old="", stale="")


def _scene(name: str, function: str, value: Callable[[], Any], *words: str) -> None:
    def made(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
        opened = contextlib.nullcontext
        patch.setattr("slurmkit_accounting.cli.allocation.open_to_change", opened)
        patch.setattr("slurmkit_accounting.read.ledger", opened)
        for module in ("allocation", "balance"):
            used = f"slurmkit_accounting.cli.{module}.{function}"
            patch.setattr(used, lambda *_, **__: value(), raising=False)
        return words

    SCENES[name] = made


def _coldfront(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    step = Step(
        number=2, project="QGP", kind="grant", holder=Holder("account", "vision"), amount_ms=1
    )
    module = "slurmkit_accounting.cli.coldfront"
    patch.setattr("slurmkit_accounting.read.ledger", contextlib.nullcontext)
    patch.setattr(f"{module}.read_coldfront", lambda _: [])
    patch.setattr(f"{module}.coldfront_grants", lambda _: ColdfrontGrants((), None))
    patch.setattr(f"{module}.plan_steps", lambda *_, **_more: [step])
    return ("--dry-run",)


_WHY = ("--why", "call 3")
_GRANT = ("1", "--account", "vision", *_WHY)
_scene("balance", "balances", _balances)
_scene("allocation show", "balances", _balances)
_scene("allocation grant", "grant_allocation", _posted, *_GRANT)
_scene("allocation top-up", "top_up_allocation", _posted, "3", "1", *_WHY)
_scene("allocation transfer", "transfer_allocation", _posted, "3", "4", "1", *_WHY)
_scene("allocation refund", "refund_job", _posted, "12", *_WHY)
_scene("allocation expire", "expire_allocation", _posted, "3", *_WHY)
_scene("allocation import", "import_budgets", lambda: [ImportedBudget(None, _posted())])
SCENES["allocation coldfront pull"] = _coldfront
_scene(
    "allocation history",
    "allocation_history",
    lambda: AllocationHistory(rows=_posted().allocations, taken=NOW, source="ledger /b"),
)
_scene("allocation apply", "make_plan", _limits)
_scene("allocation verify", "make_plan", _limits)
