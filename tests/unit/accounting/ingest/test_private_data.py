"""What is read where PrivateData hides the jobs of others."""

from __future__ import annotations

import pytest
from fake_sacct import FakeSacct, job, lately
from slurmkit_accounting import read
from slurmkit_accounting.audit.status import load_ledger_status
from slurmkit_accounting.ingest.ingest import FIRST_DAYS, Ingested, ingest
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import ingests, runs
from sqlalchemy import select

from slurmkit.errors import SlurmError

NOW = lately()
DAY = 86400


def everything(ledger: Ledger, table=runs) -> list:
    with ledger.transaction() as connection:
        return list(connection.execute(select(table)).mappings())


def counts(done: Ingested) -> tuple[int, int, int, int]:
    entered = done.entered
    return entered.read, entered.new, entered.changed, entered.rejected


def test_runs_of_others_that_private_data_hides_stop_it_naming_the_right(ledger, monkeypatch):
    slurm = FakeSacct()
    slurm.private = "jobs,usage"
    monkeypatch.setattr("slurmkit_accounting.sacct.query.os.geteuid", lambda: 65534)
    with pytest.raises(SlurmError, match=r"PrivateData=jobs .* set adminlevel=Operator"):
        ingest(ledger, slurm)
    assert everything(ledger, ingests) == []
    slurm.level = "Operator"
    assert counts(ingest(ledger, slurm)) == (0, 0, 0, 0)


@pytest.fixture
def private(monkeypatch) -> FakeSacct:
    """A cluster where alice, who asks, may not see the jobs of others."""
    monkeypatch.setattr("slurmkit_accounting.sacct.query.os.geteuid", lambda: 65534)
    monkeypatch.setattr("slurmkit_accounting.sacct.query._me", lambda: "alice")
    slurm = FakeSacct(
        job(1, NOW - 90, NOW - 90, NOW - 9), job(2, NOW - 90, NOW - 90, NOW - 9, User="bob")
    )
    slurm.private = "jobs"
    return slurm


def test_a_ledger_of_ones_own_has_ones_own_runs_and_says_so(ledger, private):
    done = ingest(ledger, private, private=True)
    assert (done.only, counts(done)) == ("alice", (1, 1, 0, 0))
    assert load_ledger_status(ledger).clusters[0].only_user == "alice"
    found = read.usage(ledger, "2026-01-01", by="user", timezone="UTC", now=NOW)
    assert "lab: only runs of alice" in found.meta.source
    private.private = "none"
    done = ingest(ledger, private, private=True)
    assert (done.only, counts(done)) == ("", (2, 1, 0, 0))
    assert done.window[0] == done.window[1] - FIRST_DAYS * DAY  # all of it once more
    assert load_ledger_status(ledger).clusters[0].only_user is None


@pytest.mark.sql
def test_a_ledger_of_everybodys_runs_stays_one(ledger, private):
    private.private = "none"
    ingest(ledger, private)
    private.private = "jobs"
    for own in (True, False):
        with pytest.raises(SlurmError, match="set adminlevel=Operator"):
            ingest(ledger, private, private=own)
    assert [row["gone_since"] for row in everything(ledger)] == [None, None]


def test_a_user_whose_name_is_part_of_slurmusers_is_not_slurmuser(ledger, private, monkeypatch):
    monkeypatch.setattr("slurmkit_accounting.sacct.query._me", lambda: "slur")
    with pytest.raises(SlurmError, match="hides other people's jobs from slur"):
        ingest(ledger, private)
