"""Entries that repeat, refunds of requeued jobs, ended and overdrawn allocations, unknown names."""

from __future__ import annotations

import pytest
from allocation_lab import (
    A100,
    HOUR,
    NOW,
    books_of_ended_jobs,
    grant,
    hours,
    posting,
    stopped_clock,
)
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.allocations.balance import allocation_history, balances
from slurmkit_accounting.allocations.changes import (
    expire_allocation,
    grant_allocation,
    refund_job,
    top_up_allocation,
    transfer_allocation,
)
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import coordinators, group_owners
from slurmkit_accounting.ledger.schema.runs import ingests
from slurmkit_accounting.reports.question import Scope
from sqlalchemy import delete, insert, update

from slurmkit.errors import BadInput

VOGEL, GARCIA = Scope(frozenset((3,)), frozenset((3,))), Scope(frozenset((4,)), frozenset((4,)))

FIXTURES = (books_of_ended_jobs, stopped_clock)


# --- the same entry again -------------------------------------------------------------------------


@pytest.mark.sql
def test_the_same_part_of_a_refund_is_asked_about(books: Ledger) -> None:
    grant(books)

    def refund(*, again: bool = False, amount: float = 5, job: str = "1") -> None:
        refund_job(books, job, posting("node", again=again), amount_ms=hours(amount))

    refund()
    with pytest.raises(BadInput, match="the same refund was entered at"):
        refund()
    refund(amount=4)
    refund(job="2")
    refund(again=True)
    (row,) = balances(books, everything=True).rows
    assert row.left_ms == hours(100 - 30 + 5 + 4 + 5 + 5)


@pytest.mark.sql
def test_the_same_hours_to_another_target_are_another_transfer(books: Ledger) -> None:
    source = grant(books)
    first, second = grant(books, 1, holder="genomics"), grant(books, 1, holder="physics")
    for target in (first, second):
        transfer_allocation(books, source, target, hours(5), posting("joint", again=False))
    with pytest.raises(BadInput, match="the same transfer"):
        transfer_allocation(books, source, second, hours(5), posting("joint", again=False))


def test_a_reference_names_one_change_only(books: Ledger) -> None:
    """Whatever differs, nothing is taken for the change that the reference named."""

    def granted(holder: str = "vision", amount: float = 10, **more: object) -> bool:
        named = {"begin": BEGIN} | more
        return grant_allocation(
            books, "account", holder, hours(amount), posting=posting(identity="CALL3"), **named
        ).repeated

    assert not granted()
    assert granted()
    known = r"'CALL3' names another entry: 1 by .*grant of 10.00 GPU-hours, allocation 1"
    for other in (
        {"holder": "genomics"}, {"amount": 11}, {"begin": BEGIN + DAY}, {"finish": NOW},
        {"unit": "billing"},
    ):  # fmt: skip
        with pytest.raises(BadInput, match=known):
            granted(**other)
    same = posting(identity="CALL3")
    for change in (
        lambda: top_up_allocation(books, 1, hours(10), same),
        lambda: expire_allocation(books, 1, same),
        lambda: refund_job(books, "1", same),
        lambda: transfer_allocation(books, 1, 1, hours(10), same),
    ):
        with pytest.raises(BadInput, match=known):
            change()
    assert len(allocation_history(books).rows) == 1


@pytest.mark.sql
def test_each_kind_of_change_is_repeated(books: Ledger) -> None:
    one, other = grant(books), grant(books, 1, holder="genomics")
    for step in (
        lambda: top_up_allocation(books, one, hours(1), posting(identity="a")),
        lambda: transfer_allocation(books, one, other, hours(1), posting(identity="b")),
        lambda: refund_job(books, "1", posting(identity="c"), amount_ms=hours(1)),
        lambda: expire_allocation(books, one, posting(identity="d")),
    ):
        first, again = step(), step()
        assert (first.repeated, again.repeated) == (False, True)
        assert again.entries == first.entries
    for wrong in (
        lambda: top_up_allocation(books, other, hours(1), posting(identity="a")),
        lambda: transfer_allocation(books, other, one, hours(1), posting(identity="b")),
        lambda: refund_job(books, "2", posting(identity="c"), amount_ms=hours(1)),
        lambda: expire_allocation(books, one, posting(identity="d"), finish=NOW + DAY),
    ):
        with pytest.raises(BadInput, match="names another entry"):
            wrong()


# --- transfers from what the ledger has read ------------------------------------------------------


@pytest.mark.sql
def test_a_transfer_needs_a_fresh_ledger(books: Ledger) -> None:
    one, other = grant(books), grant(books, 1, holder="genomics")
    with books.transaction() as connection:
        late = {"started": NOW - 4 * HOUR, "ended": NOW}
        connection.execute(update(ingests).where(ingests.c.cluster_id == 2).values(**late))
    with pytest.raises(BadInput, match=r"cluster big last at .* slurmkit ledger ingest.*--old-led"):
        transfer_allocation(books, one, other, hours(1), posting())
    transfer_allocation(books, one, other, hours(1), posting(), old_ledger=True)
    with books.transaction() as connection:
        connection.execute(delete(ingests).where(ingests.c.cluster_id == 2))
    with pytest.raises(BadInput, match="cluster big never"):
        transfer_allocation(books, one, other, hours(1), posting())


@pytest.mark.sql
def test_a_carry_over_needs_a_ledger_that_was_read_after_the_end(books: Ledger) -> None:
    ended, later = grant(books, finish=BEGIN + 10 * DAY), grant(books)
    with books.transaction() as connection:
        connection.execute(update(ingests).values(started=BEGIN + 10 * DAY - 1))
    with pytest.raises(BadInput, match="slurmkit ledger ingest"):
        transfer_allocation(books, ended, later, hours(1), posting(), carry_over=True)
    with books.transaction() as connection:
        connection.execute(update(ingests).values(started=BEGIN + 10 * DAY))
    transfer_allocation(books, ended, later, hours(1), posting(), carry_over=True)


def test_an_overdraft_is_shown_at_the_next_grant_and_in_the_balance(books: Ledger) -> None:
    grant(books, 20, finish=BEGIN + 10 * DAY)
    posted = grant_allocation(books, "account", "vision", hours(50), NOW, posting())
    words = (
        "allocation 1 of account vision ended overdrawn by 10.00 GPU-hours; no other allocation"
        " pays for them"
    )
    assert posted.notes == (words,)
    (row,) = balances(books, everything=True, now=NOW).rows
    assert words in row.notes
    (row,) = balances(books, everything=True, now=NOW + 90 * DAY).rows
    assert row.notes == ()


# --- refunds --------------------------------------------------------------------------------------


def test_a_refund_into_an_ended_allocation_says_what_to_do(books: Ledger) -> None:
    ended = grant(books, 100, finish=BEGIN + 10 * DAY)
    posted = refund_job(books, "1", posting(), amount_ms=hours(2.5))
    (note,) = posted.notes
    assert "ended at 2026-11-11" in note
    assert "the refund releases nothing" in note
    assert "grant a new allocation N" in note
    later = grant(books, 7)
    posted = refund_job(books, "1", posting(), amount_ms=hours(3), allocation=ended)
    (note,) = posted.notes
    assert f"transfer {ended} {later} 3 --carry-over" in note
    transfer_allocation(books, ended, later, hours(3), posting(), carry_over=True)


def test_a_refund_into_an_overdrawn_ended_allocation(books: Ledger) -> None:
    grant(books, 20, finish=BEGIN + 10 * DAY)
    (note,) = refund_job(books, "1", posting(), amount_ms=hours(3)).notes
    assert "it was overdrawn, and has -7.00 left" in note


@pytest.fixture
def requeued(ledger: Ledger) -> Ledger:
    """Job 70: lost with a node after 3 hours, then 5 hours that ended well; of two GPUs."""
    at = BEGIN + DAY
    jobs = [
        run("alice", at, at + 3 * HOUR, gpus=A100, state="NODE_FAIL",
            other={"job_id": "70", "job_id_raw": 70}),
        run("alice", at + 4 * HOUR, at + 9 * HOUR, gpus=A100, submit=at + 3 * HOUR,
            other={"job_id": "70", "job_id_raw": 70}),
    ]  # fmt: skip
    write_books(ledger, jobs, read_to=NOW)
    return ledger


def test_of_a_requeued_job_only_the_lost_runs_are_refunded(requeued: Ledger) -> None:
    grant(requeued)
    posted = refund_job(requeued, "70", posting())
    assert [entry.amount_ms for entry in posted.entries] == [hours(6)]
    words = (
        "job 70 was requeued. Refunded: 70 from 2026-11-02 00:00:00+00:00 (NODE_FAIL). Not lost: 70"
        " from 2026-11-02 04:00:00+00:00 (COMPLETED); to refund them too, add --all-runs"
    )
    assert posted.notes == (words,)
    with pytest.raises(BadInput, match=r"refunded before: 6\.00 of the 6\.00 .*--all-runs"):
        refund_job(requeued, "70", posting())
    posted = refund_job(requeued, "70", posting(), all_runs=True)
    assert [entry.amount_ms for entry in posted.entries] == [hours(10)]
    assert posted.notes == ()
    with pytest.raises(BadInput, match="refunded before"):
        refund_job(requeued, "70", posting(), all_runs=True)


def test_the_lost_run_is_refunded_to_the_allocation_that_paid_for_it(requeued: Ledger) -> None:
    first = grant(requeued, finish=BEGIN + DAY + 4 * HOUR)
    grant(requeued, begin=BEGIN + DAY + 4 * HOUR)
    posted = refund_job(requeued, "70", posting())
    assert [(one.allocation, one.amount_ms) for one in posted.entries] == [(first, hours(6))]


def test_a_requeued_job_without_a_lost_run(ledger: Ledger) -> None:
    at = BEGIN + DAY
    other = {"job_id": "70", "job_id_raw": 70}
    jobs = [
        run("alice", at, at + HOUR, gpus=A100, state="FAILED", other=other),
        run("alice", at + HOUR, at + 2 * HOUR, gpus=A100, submit=at + HOUR, other=other),
    ]
    write_books(ledger, jobs, read_to=NOW)
    grant(ledger)
    with pytest.raises(BadInput, match=r"no run of it was lost .*FAILED.*COMPLETED.*--all-runs"):
        refund_job(ledger, "70", posting())
    assert refund_job(ledger, "70", posting(), all_runs=True).entries[0].amount_ms == hours(4)


# --- whose use it was -----------------------------------------------------------------------------


def test_shares_of_users_add_up_to_what_is_used(ledger: Ledger) -> None:
    """An allocation that ended paid for a part: it is nobody's use of the one in force."""
    jobs = [
        run("alice", BEGIN + DAY, BEGIN + DAY + 10 * HOUR, gpus=A100),
        run("vogel", BEGIN + DAY, BEGIN + DAY + 5 * HOUR, gpus=A100),
        run("alice", NOW - HOUR, None, gpus=A100, state="RUNNING"),
    ]
    write_books(ledger, jobs, read_to=NOW)
    grant(ledger, 15, finish=BEGIN + 3 * DAY)
    grant(ledger, 100)
    (row,) = balances(ledger, everything=True, now=NOW, uid=2001).rows
    assert (row.used_ms, row.running_ms) == (hours(15 + 2), hours(2))
    assert sum(each.used_ms for each in row.users) == row.used_ms
    assert {each.user: each.used_ms for each in row.users} == {
        "alice": hours(10 + 2), "vogel": hours(5),
    }  # fmt: skip
    assert row.mine_ms == hours(12)


def test_running_is_never_more_than_used(ledger: Ledger) -> None:
    write_books(ledger, [run("alice", BEGIN, None, gpus=A100, state="RUNNING")], read_to=NOW)
    grant(ledger, 900, finish=BEGIN + 19 * DAY)
    grant(ledger, 100)
    (row,) = balances(ledger, everything=True, now=NOW).rows
    assert row.used_ms == hours(20 * 48 - 900)
    assert row.running_ms == row.used_ms


@pytest.mark.sql
def test_a_coordinator_is_the_pi_of_their_account(books: Ledger) -> None:
    with books.transaction() as connection:
        connection.execute(delete(group_owners))
        named = {"cluster_id": 1, "account": "Vision", "user": "garcia"}
        connection.execute(insert(coordinators).values(valid_from=1, valid_to=None, **named))
    grant(books)
    (row,) = balances(books, everything=True, uid=2004, scope=GARCIA).rows
    assert str(row.holder) == "account vision"
    (history,) = allocation_history(books, uid=2004, scope=GARCIA).rows
    assert history.holder == row.holder


def test_each_pi_of_a_project_sees_its_balance_but_not_the_others_jobs(books, configure) -> None:
    configure('[project.llm]\naccounts = ["vision", "genomics"]\n')
    grant(books, holder_kind="project", holder="llm")
    refund_job(books, "1", posting("alice's node died"))
    for uid, scope, users in ((2003, VOGEL, ["alice", "vogel"]), (2004, GARCIA, ["bob"])):
        (row,) = balances(books, everything=True, uid=uid, scope=scope).rows
        assert (str(row.holder), [each.user for each in row.users]) == ("project llm", users)
        (history,) = allocation_history(books, uid=uid, scope=scope).rows
        assert [entry.job_id for entry in history.entries] == [None, None]


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("pi", "Vogel", "did you mean 'vogel'"),
        ("pi", "garzia", "did you mean 'garcia'"),
        ("account", "visoin", "did you mean 'vision'"),
        ("account", "zzzzzz", "--new"),
    ],
)
def test_an_unknown_holder_is_refused(books: Ledger, kind: str, name: str, hint: str) -> None:
    with pytest.raises(BadInput, match="the ledger does not know") as raised:
        grant(books, holder_kind=kind, holder=name, known=True)
    assert hint in str(raised.value)
    grant(books, holder_kind=kind, holder=name)


@pytest.mark.sql
@pytest.mark.parametrize(
    ("kind", "name"),
    [("pi", "vogel"), ("account", "VISION"), ("account", "hpc"), ("pi", "guest")],
)
def test_known_holders(books: Ledger, kind: str, name: str) -> None:
    """Groups without runs, accounts with a coordinator, coordinators who are in no directory."""
    with books.transaction() as connection:
        named = {"cluster_id": 1, "account": "HPC", "user": "guest"}
        connection.execute(insert(coordinators).values(valid_from=1, valid_to=None, **named))
    grant(books, holder_kind=kind, holder=name, known=True)
