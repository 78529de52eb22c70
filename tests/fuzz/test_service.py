"""Random queries of several uids to the ledger's service: an answer or a fault about the query."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fuzzing import fuzz, odd_text, one_of
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import open_for_reading, open_for_writing
from slurmkit_accounting.remote.protocol import ServiceQuery
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer
from stored_runs import ran, store_runs

from slurmkit.testing import FakeSlurm

_BEGIN = 1_790_000_000
_FUNCTIONS = ("usage", "budget", "wait", "efficiency", "explain", "evidence")
_NAMES = (
    *"begin end by panels timezone filters suspended job now row scope books seen_as".split(),
)  # fmt: skip
_TEXTS = (
    "2026-09-21", "2026-09-22T10:00", "2026-10-01", "0001-01-01", "9999-12-31", "UTC",
    "Europe/Berlin", "../../etc/passwd", "user", "pi,day", "hour", "gpu-type", "charge", "skip",
    "12", "12_3", "1,2,3", "12+1", "alice",
)  # fmt: skip


def _value(chance: random.Random, deep: int = 0) -> Any:
    kind = chance.randrange(9)
    if kind == 0 and deep < 3:
        return [_value(chance, deep + 1) for _ in range(chance.randrange(4))]
    if kind == 1 and deep < 3:
        keys = ("user", "pi", "state", "gpu-type", odd_text(chance, 3))
        return {chance.choice(keys): _value(chance, deep + 1) for _ in range(chance.randrange(3))}
    if kind == 2:
        return chance.choice((0, 1, -1, 2**31, 2**63, -(2**70), _BEGIN, 1.5, 1e308))
    if kind == 3:
        return chance.choice((None, True, False))
    return chance.choice(_TEXTS) if kind < 8 else one_of(chance, _TEXTS)


def test_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.config.files.config_paths", list)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    users = {10011: "alice", 10012: "bob", 10013: "root"}
    with open_for_writing() as ledger:
        runs = (ran(_BEGIN + n, 60 * n, user=users[10011 + n % 3], uid=10011 + n % 3)
                for n in range(30))  # fmt: skip
        store_runs(ledger, *runs)
    failed: list[dict[str, object]] = []

    def log(what: str, **facts: object) -> None:
        failed.append({"what": what} | facts)

    slurm = FakeSlurm({"sacctmgr": lambda *_: "root|Administrator\n"})
    section = ServiceSection()
    answer = QueryAnswerer(open_for_reading, Permissions(section, slurm, log), log)

    def case(chance: random.Random) -> None:
        failed.clear()
        names = chance.sample(_NAMES, chance.choice((0, 1, 1, 2, 3)))
        arguments = {name: _value(chance) for name in names}
        ask = chance.choice(_FUNCTIONS) if chance.random() < 0.97 else odd_text(chance)
        uid = chance.choice((0, 10011, 10012, 10013, 2**32 - 2))
        got = answer(uid, ServiceQuery(ask, arguments))
        assert not failed, (failed, arguments)
        assert got.fault or got.seen_as
        msgspec.json.encode(got)

    fuzz("service", case, at_least=400)
