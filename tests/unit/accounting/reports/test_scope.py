"""What a report tells, beside its rows, of what its reader may not see: nothing."""

from __future__ import annotations

import pytest
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import ingests, rejects
from slurmkit_accounting.reports import explain, selection
from slurmkit_accounting.reports.question import EVERYTHING
from sqlalchemy import insert

from slurmkit.errors import BadInput

HOUR = 3600
A100 = {"a100": 2}
NOVEMBER = {"begin": "2026-11-01", "end": "2026-12-01", "timezone": "UTC", "now": BEGIN + 30 * DAY}
ALICE = read.Scope(frozenset((1,)), frozenset((1,)))
VOGEL = read.Scope(frozenset((3,)), frozenset((3,)))
BUDGET = '[[budget]]\npi = "{}"\ngpu_hours = 10\nfrom = 2026-01-01\nto = 2027-01-01\n'


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    doubt = {"doubt": "AllocTRES has 2 GPUs, ReqTRES 1"}
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus=A100, cpu_used_ms=5),
        run("bob", BEGIN, BEGIN + HOUR, gpus=A100, cpu_used_ms=5, other=doubt),
        run("bob", BEGIN, BEGIN + 2 * HOUR, gpus=A100, other=doubt),
        run("garcia", BEGIN, None, gpus=A100, state="RUNNING", last_seen=BEGIN + 40 * DAY),
    ]
    write_books(ledger, jobs)
    with ledger.transaction() as connection:
        line = {"ingest_id": 1, "digest": "1", "reason": "?", "line": "bob|?", "identity": "1"}
        other = {"cluster_id": 2, "started": BEGIN, "window_from": 0, "window_to": BEGIN}
        (elsewhere,) = connection.execute(insert(ingests).values(other)).inserted_primary_key or ()
        of_big = {**line, "ingest_id": elsewhere, "digest": "2", "line": "of another cluster"}
        connection.execute(insert(rejects), [line, of_big])
    return ledger


@pytest.mark.parametrize("report", [read.usage, read.wait, read.efficiency, read.explain])
def test_rejected_lines_are_nobodys_and_only_for_who_sees_everything(books, report) -> None:
    assert report(books, **NOVEMBER).meta.rejects == 2
    assert report(books, scope=ALICE, **NOVEMBER).meta.rejects is None


def test_rejected_lines_are_not_in_a_budget_either(books: Ledger) -> None:
    assert read.budget(books, scope=ALICE, timezone="UTC").meta.rejects is None


@pytest.mark.sql
def test_doubtful_runs_are_those_of_the_report(books: Ledger) -> None:
    def doubtful(**named: object) -> int | None:
        return read.usage(books, **NOVEMBER, **named).meta.doubtful

    assert doubtful() == 2
    assert doubtful(scope=ALICE) == 0
    assert doubtful(filters={"user": ["alice"]}) == 0
    assert doubtful(filters={"user": ["bob"]}) == 2
    assert doubtful(job="2") == 1


def test_how_many_budgets_others_have(books: Ledger, configure, tmp_path) -> None:
    configure(f'[ledger]\nbudgets = "{tmp_path}/budgets.toml"\n')
    others = "".join(BUDGET.format(name) for name in ("garcia", "a", "b", "c", "d"))
    (tmp_path / "budgets.toml").write_text(BUDGET.format("vogel") + others)
    meta = read.budget(books, timezone="UTC", now=BEGIN).meta
    assert "budgets: 6 of 6 in " in meta.definitions[-1]
    vogel = read.budget(books, scope=VOGEL, timezone="UTC", now=BEGIN).meta
    assert vogel.definitions[-1].startswith(f"budgets: 1 in {tmp_path}")
    assert not vogel.notes  # the same whether others have budgets or not
    alice = read.budget(books, scope=ALICE, timezone="UTC", now=BEGIN).meta
    assert alice.notes[0].startswith(f"budgets: 0 in {tmp_path}")
    # A PI's page has their budget, however many others there are.
    found = read.usage(books, scope=VOGEL, panels=True, **NOVEMBER)
    assert [one.title for one in found.panels if one.kind == "lines"] == [
        "Budget of vogel, 2026-01-01 to 2027-01-01"
    ]


@pytest.mark.sql
def test_a_rejected_line_of_another_cluster_is_no_evidence(books: Ledger) -> None:
    assert read.evidence(books, 1).rejects == ("bob|?",)


@pytest.mark.parametrize("number", [-1, 5, 2**63, -(2**70)])
def test_a_row_that_cannot_be(books: Ledger, number: int) -> None:
    with pytest.raises(BadInput, match=f"no row {number}"):
        read.evidence(books, number)


@pytest.mark.sql
@pytest.mark.parametrize("report", [read.wait, read.efficiency, read.explain])
def test_runs_of_others_are_not_even_read(books, report, monkeypatch) -> None:
    read_users = set()

    def keys_of(row, known):
        read_users.add(row.user)
        return of(row, known)

    def labels(self, by, told):
        read_users.add(told["user"])
        return labels_of(self, by, told)

    of, labels_of = selection.usage_keys_of, selection.RunSelection._labels
    monkeypatch.setattr(selection, "usage_keys_of", keys_of)
    monkeypatch.setattr(selection.RunSelection, "_labels", labels)
    monkeypatch.setattr(
        explain, "_held_within", lambda _, __, run, *___: read_users.add(run.user) or ()
    )
    report(books, scope=ALICE, **NOVEMBER)
    # Of runs without an end nobody knows in advance whose they are.
    assert read_users - {"garcia"} == {"alice"}


def test_an_explanation_has_an_end(books: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MOST_RUNS", 3)
    assert len(read.explain(books, scope=ALICE, **NOVEMBER).rows) == 1
    with pytest.raises(BadInput, match="more than 3 runs match; choose a shorter window"):
        read.explain(books, **NOVEMBER)


@pytest.mark.sql
@pytest.mark.parametrize("report", [read.usage, read.wait, read.efficiency, read.explain])
def test_a_name_of_somebody_else_is_as_unknown_as_no_name(books: Ledger, report) -> None:

    def notes(name: str, scope: read.Scope = EVERYTHING) -> tuple[str, ...]:
        return report(books, filters={"user": [name]}, scope=scope, **NOVEMBER).meta.notes

    assert notes("gracia") == ("the ledger has no user 'gracia'; did you mean 'garcia'?",)
    for name in ("bob", "gracia", "garcia"):  # bob has ended runs, garcia one that still runs
        assert notes(name, ALICE) == (f"the ledger has no user {name!r} that you may see",)
    old = {"begin": "2025-11-01", "end": "2025-12-01", "timezone": "UTC"}
    assert report(books, filters={"user": ["garcia"]}, now=BEGIN, **old).meta.notes == ()
