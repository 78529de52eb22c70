"""Odd rows and steps of sacct in a ledger: `verify` is content, and every renderer runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from fake_sacct import TRES, FakeSacct, job, lately, step
from fuzzing import fuzz, mutated, odd_text
from slurmkit_accounting import read
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.render import render_report

_NOW = lately()
_FORMS = ("csv", "json", "xlsx", "html")
_TIMES = ("Unknown", "None", "", "0", "-1", "4294967294", "4294967295", "9223372036854775808")
_ODD_TRES = (
    "", "gres/gpu=-1", "gres/gpu:a100=9223372036854775808", "cpu=4,cpu=5", "cpu=4=5", "mem=1.5G",
    "gres/gpu:a100=3,gres/gpu=2", "gres/shard=7,cpu=1", "gres/gpu:x:y=1,gres/gpu=1",
    "mem=99999999T",
)  # fmt: skip


def _row(chance: random.Random, number: int) -> dict[str, Any]:
    begin = _NOW - chance.randrange(1, 100_000)
    row = job(number, begin, begin + chance.randrange(1000), begin + chance.randrange(1000, 9000))
    for _ in range(chance.randrange(4)):
        field = chance.choice(sorted(row))
        if field == "Eligible":
            continue  # the stand-in selects rows by it
        if field in ("Start", "Submit", "End"):
            odd = chance.choice((*_TIMES[:7], str(begin + chance.randrange(-9000, 9000))))
            odd = "Unknown" if field == "End" and not odd.isdigit() else odd
        elif field.endswith("TRES"):
            odd = chance.choice((*_ODD_TRES, mutated(chance, TRES)))
        else:
            odd = chance.choice((odd_text(chance), mutated(chance, row[field]), *_TIMES))
        row[field] = odd
    return row


def _changed(chance: random.Random, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """Return a job as Slurm has it later; its suspended time stays, for it never shrinks."""
    return _row(chance, number) | {name: row[name] for name in ("Submit", "Start", "Suspended")}


def test_ingest(tmp_path: Path) -> None:
    def case(chance: random.Random) -> None:
        slurm = FakeSacct(*(_row(chance, n) for n in range(1, chance.randrange(2, 40))))
        for row in chance.sample(slurm.jobs, k=len(slurm.jobs) // 3):
            field = chance.choice(("TRESUsageInTot", "TotalCPU", "NTasks", "ConsumedEnergyRaw"))
            made = step(row, "0") | {field: odd_text(chance)}
            slurm.steps.setdefault(row["DBIndex"], []).append(made)
        path = tmp_path / "ledger.db"
        path.unlink(missing_ok=True)
        with open_for_writing(f"sqlite:///{path}") as ledger:
            ingest(ledger, slurm)
            slurm.jobs = [_changed(chance, n, row) for n, row in enumerate(slurm.jobs, 1)]
            ingest(ledger, slurm)
            with ledger.transaction() as connection:
                assert verify(connection).wrong == []
            window = {"begin": "2000-01-01", "end": "2000-01-02"} if chance.random() < 0.1 else {}
            reports = (
                read.usage(ledger, **window, by=("user", "gpu-type"), panels=True),
                read.wait(ledger),
                read.efficiency(ledger),
                read.explain(ledger),
            )
            for report in reports:
                for form in _FORMS:
                    assert render_report(report, form)

    fuzz("ingest", case, at_least=8)


@pytest.fixture(autouse=True)
def _no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.config.files.config_paths", list)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TZ", "UTC")
