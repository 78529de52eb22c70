"""Allocations: rows that are only added, balances that are exact, and who may see and do what."""

from __future__ import annotations

import os
import pwd
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import pytest
from allocation_lab import (
    A100,
    ENDED_JOBS,
    HOUR,
    NOW,
    Purse,
    gpu_hours_ms,
    grant,
    hours,
    posting,
    spend,
    stopped_clock,
)
from hypothesis import given
from hypothesis import strategies as st
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.allocations import changes
from slurmkit_accounting.allocations.amounts import HOUR_MS, format_hours, parse_hours
from slurmkit_accounting.allocations.balance import allocation_history, balances
from slurmkit_accounting.allocations.budgets_file import import_budgets
from slurmkit_accounting.allocations.changes import (
    Posted,
    expire_allocation,
    grant_allocation,
    refund_job,
    top_up_allocation,
    transfer_allocation,
)
from slurmkit_accounting.allocations.draws import Pot, draw_use, edges_of
from slurmkit_accounting.allocations.model import Holder
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.allocations import allocation_entries, allocations
from slurmkit_accounting.reports.question import EVERYTHING, Scope
from sqlalchemy import insert, select, update
from usage_oracle import Job

from slurmkit.errors import BadConfig, BadInput

ALICE, BOB, VOGEL, GARCIA = (2001, 2002, 2003, 2004)
MALLORY = 9999
SCOPES = {
    ALICE: Scope(frozenset((1,)), frozenset((1,))),
    BOB: Scope(frozenset((2,)), frozenset((2,))),
    VOGEL: Scope(frozenset((3,)), frozenset((3,))),
    GARCIA: Scope(frozenset((4,)), frozenset((4,))),
    MALLORY: Scope(frozenset(), frozenset(), frozenset((MALLORY,))),
}
VISION = Holder("account", "vision")
JOBS = [
    *ENDED_JOBS,
    run("alice", NOW - HOUR, None, gpus=A100, state="RUNNING"),
    run("alice", NOW, None, submit=NOW - 60, gpus=A100, state="PENDING"),
]


assert stopped_clock  # a fixture


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    """Alice's and Vogel's runs in vision: 30 GPU-hours ended, 2 running; Bob's in genomics."""
    pending = JOBS[-1]
    jobs = [*JOBS[:-1], Job(**{**vars(pending), "start": None})]
    write_books(ledger, jobs, read_to=NOW)
    return ledger


def left(books: Ledger, number: int, now: int = NOW) -> float:
    """Hours that an allocation has left."""
    found = balances(books, everything=True, ended=True, now=now)
    (one,) = [each for row in found.rows for each in row.allocations if each.id == number]
    return one.left_ms / HOUR_MS


# --- amounts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1", 3_600_000), ("0.5", 1_800_000), ("1_000", 3_600_000_000), ("0.001", 3600)],
)
def test_hours_are_exact(text: str, amount: int) -> None:
    assert parse_hours(text) == amount


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "nan", "inf", "1e13", "0.0001", "1 h"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="give hours"):
        parse_hours(text)


@given(st.integers(-(10**18), 10**18))
def test_hours_are_shown_towards_zero(amount: int) -> None:
    shown = format_hours(amount)
    if not shown.startswith(("<", ">")):
        value = round(float(shown.replace(",", "")) * 100)
        assert abs(value) * HOUR_MS <= abs(amount) * 100 + 200 * HOUR_MS * (abs(amount) > 10**14)
        assert (value < 0) <= (amount < 0)


# --- draws ----------------------------------------------------------------------------------------

TIMES = st.integers(0, 12)
POTS = st.lists(
    st.tuples(TIMES, st.one_of(st.none(), st.integers(1, 8)), st.integers(-5, 30)), max_size=5
).map(
    lambda drawn: [
        Pot(number, begin, None if lasts is None else begin + lasts, amount)
        for number, (begin, lasts, amount) in enumerate(drawn)
    ]
)
PRICES = st.lists(st.integers(0, 4), min_size=1, max_size=16)


def drawn_in_parts(pots: list[Pot], prices: list[int]) -> tuple[dict[int, int], int]:
    edges = sorted({0, *edges_of(pots, len(prices))})
    edges = [edge for edge in edges if edge >= 0]
    used = [sum(prices[a:b]) for a, b in pairwise(edges)]
    draws = draw_use(pots, edges, used)
    return {pot.id: pot.amount_ms - draws.used_ms[pot.id] for pot in pots}, draws.outside_ms


@given(POTS, PRICES)
def test_draws_are_those_of_each_second(pots: list[Pot], prices: list[int]) -> None:
    assert drawn_in_parts(pots, prices) == spend([Purse(*pot) for pot in pots], prices)


@given(POTS, PRICES, st.randoms(use_true_random=False))
def test_nothing_is_lost_and_the_order_does_not_matter(pots, prices, dice) -> None:
    there, outside = drawn_in_parts(pots, prices)
    assert sum(pot.amount_ms for pot in pots) - sum(there.values()) + outside == sum(prices)
    dice.shuffle(pots)
    assert drawn_in_parts(pots, prices) == (there, outside)


# --- entries --------------------------------------------------------------------------------------


def test_a_balance(books: Ledger) -> None:
    grant(books)
    (one,) = balances(books, everything=True, now=NOW).rows
    assert one.holder == VISION
    assert (one.granted_ms, one.used_ms, one.left_ms) == (hours(100), hours(32), hours(68))
    assert one.running_ms == hours(2)
    # Both have a limit of an hour: the running one has used it up, the other waits.
    assert (one.may_use_ms, one.reserved_ms, one.without_limit) == (0, hours(2), 0)
    assert [(each.user, each.used_ms) for each in one.users] == [
        ("alice", hours(22)),
        ("vogel", hours(10)),
    ]


def test_use_counts_from_the_begin_and_until_the_end(books: Ledger) -> None:
    first = grant(books, begin=BEGIN, finish=BEGIN + DAY + 4 * HOUR)
    second = grant(books, begin=BEGIN + DAY + 6 * HOUR)
    assert (left(books, first), left(books, second)) == (92, 100 - 8 - 10 - 2)
    (row,) = balances(books, everything=True, now=NOW).rows
    assert [one.state for one in row.allocations] == ["in force"]
    assert row.outside_ms == hours(4)  # two hours of two GPUs, between the two
    assert left(books, first, BEGIN + DAY + HOUR) == 98


def test_what_ends_first_is_used_first(books: Ledger) -> None:
    open_end = grant(books, 100)
    short = grant(books, 15, finish=BEGIN + 10 * DAY)
    assert (left(books, short), left(books, open_end)) == (0, 100 - 17)


@pytest.mark.sql
def test_each_change_is_a_further_row(books: Ledger) -> None:
    with books.transaction() as connection:
        before = connection.execute(select(allocation_entries)).all()
    number, other = grant(books), grant(books, 10, holder="genomics")
    steps: list[Callable[[], Posted]] = [
        lambda: top_up_allocation(books, number, hours(5), posting()),
        lambda: transfer_allocation(books, number, other, hours(20), posting()),
        lambda: refund_job(books, "1", posting("node c3 died")),
        lambda: expire_allocation(books, number, posting(), finish=NOW + DAY),
    ]
    for step in steps:
        with books.transaction() as connection:
            before = connection.execute(select(allocation_entries).order_by("id")).all()
            granted = connection.execute(select(allocations).order_by("id")).all()
        step()
        with books.transaction() as connection:
            after = connection.execute(select(allocation_entries).order_by("id")).all()
            assert connection.execute(select(allocations).order_by("id")).all() == granted
        assert after[: len(before)] == before
        assert len(after) > len(before)
    assert left(books, number) == 100 + 5 - 20 + 20 - 32
    (shown,) = allocation_history(books, allocation=number).rows
    assert [entry.kind for entry in shown.entries] == [
        "grant", "top-up", "transfer", "refund", "expiry",
    ]  # fmt: skip
    assert {entry.who for entry in shown.entries} == {pwd.getpwuid(os.getuid()).pw_name}
    assert shown.finish == NOW + DAY


def test_an_expiry_ends_it_and_the_rest_is_gone(books: Ledger) -> None:
    number = grant(books)
    expire_allocation(books, number, posting())
    assert balances(books, everything=True, now=NOW).rows == ()
    (row,) = balances(books, everything=True, ended=True, now=NOW).rows
    assert (row.left_ms, row.allocations[0].state) == (0, "ended")
    for change in (
        lambda: top_up_allocation(books, number, hours(1), posting()),
        lambda: expire_allocation(books, number, posting()),
    ):
        with pytest.raises(BadInput, match="ended at"):
            change()
    later = grant(books, 1)
    transfer_allocation(books, number, later, hours(68), posting(), carry_over=True)
    assert (left(books, number), left(books, later)) == (0, 69)


def test_a_transfer_takes_at_most_what_is_left(books: Ledger) -> None:
    number, other = grant(books), grant(books, 10, holder="genomics")
    with pytest.raises(BadInput, match=r"has 68.00 GPU-hours left, which is less than 68.01"):
        transfer_allocation(books, number, other, hours(68.01), posting())
    transfer_allocation(books, number, other, hours(68), posting())
    assert left(books, number) == 0


@pytest.mark.parametrize(
    ("source", "target", "more", "message"),
    [
        (1, 1, {}, "same allocation"),
        (1, 9, {}, "no allocation 9"),
        (1, 3, {}, "cannot be exchanged"),
        (1, 2, {"carry_over": True}, "only the same holder"),
        (1, 4, {"carry_over": True}, "has not ended; use: slurmkit allocation transfer 1 4"),
    ],
)
def test_transfers_that_make_no_sense(books, source, target, more, message) -> None:
    grant(books)
    grant(books, holder="genomics")
    grant(books, holder="genomics", unit="billing")
    grant(books, 7)
    with pytest.raises(BadInput, match=message):
        transfer_allocation(books, source, target, hours(1), posting(), **more)


def test_a_job_is_refunded_once(books: Ledger) -> None:
    number = grant(books)
    refund_job(books, "1", posting("node c3 died"), amount_ms=hours(15))
    with pytest.raises(BadInput, match=r"used 20.00 GPU-hours, of which 5.00 were not refunded"):
        refund_job(books, "1", posting(), amount_ms=hours(6))
    posted = refund_job(books, "1", posting("the rest"))
    assert [entry.amount_ms for entry in posted.entries] == [hours(5)]
    with pytest.raises(BadInput, match=r"was refunded before: 20\.00 of the 20\.00"):
        refund_job(books, "1", posting())
    assert left(books, number) == 100 - 32 + 20


def test_a_part_of_a_job_and_the_whole_are_refunded_once(ledger: Ledger) -> None:
    begin = BEGIN + DAY
    job = run("alice", begin, begin + 5 * HOUR, gpus=A100)
    tasks = [Job(**{**vars(job), "other": {"job_id": f"12_{n}"}}) for n in (1, 2)]
    write_books(ledger, tasks, read_to=NOW)
    number = grant(ledger)
    refund_job(ledger, "12_1", posting())
    posted = refund_job(ledger, "12", posting())
    assert [entry.amount_ms for entry in posted.entries] == [hours(10)]
    for job in ("12_1", "12_2", "12"):
        with pytest.raises(BadInput, match="was refunded before"):
            refund_job(ledger, job, posting())
    assert left(ledger, number) == 100


def test_one_holder_gets_a_job_back_once(books: Ledger) -> None:
    first, second = grant(books), grant(books, 50, finish=NOW + DAY)
    refund_job(books, "1", posting(), allocation=first)
    with pytest.raises(BadInput, match="was refunded before"):
        refund_job(books, "1", posting(), allocation=second)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("77", "the ledger has no job 77"),
        ("4", "has not ended"),
        ("3", "no allocation was in force for job 3"),
    ],
)
def test_jobs_that_cannot_be_refunded(books: Ledger, job: str, message: str) -> None:
    grant(books)
    with pytest.raises(BadInput, match=message):
        refund_job(books, job, posting())


def test_a_job_that_several_counted_needs_a_choice(books: Ledger) -> None:
    number = grant(books)
    of_pi = grant(books, holder_kind="pi", holder="vogel")
    with pytest.raises(BadInput, match=r"several allocations .*1 \(account vision.*--allocation"):
        refund_job(books, "1", posting())
    refund_job(books, "1", posting(), allocation=of_pi)
    assert (left(books, number), left(books, of_pi)) == (68, 88)


def test_the_same_change_is_entered_once(books: Ledger) -> None:
    number, other = grant(books), grant(books, 10, holder="genomics")
    for _ in range(2):
        posted = transfer_allocation(books, number, other, hours(5), posting(identity="ticket 7"))
    assert posted.repeated
    assert [entry.amount_ms for entry in posted.entries] == [-hours(5), hours(5)]
    assert (left(books, number), left(books, other)) == (63, 15 - 14)
    with pytest.raises(BadInput, match="names another entry"):
        top_up_allocation(books, number, hours(1), posting("other reason", identity="ticket 7"))


@pytest.mark.sql
def test_a_likely_double_entry_is_asked_about(books: Ledger, monkeypatch) -> None:
    number, other = grant(books, 1000), grant(books, 10, holder="genomics")

    def move(*, again: bool = False) -> None:
        transfer_allocation(
            books, number, other, hours(5), posting("joint", again=again), old_ledger=True
        )

    move()
    with pytest.raises(BadInput, match=r"the same transfer was entered at .* add --again"):
        move()
    move(again=True)
    assert left(books, number) == 958
    monkeypatch.setattr(changes, "time", SimpleNamespace(time=lambda: NOW + 2 * DAY))
    move()
    twice = posting("a", again=False), posting("a", again=False)
    grant_allocation(books, "account", "x", hours(1), NOW, twice[0])
    with pytest.raises(BadInput, match="the same grant"):
        grant_allocation(books, "account", "x", hours(1), NOW, twice[1])


def test_two_operators_at_once(ledger: Ledger) -> None:
    """Each gives away all that is left; only one can."""
    write_books(ledger, [])
    number, other = grant(ledger, 10), grant(ledger, 1, holder="genomics")
    failures: list[str] = []

    def give() -> None:
        try:
            with open_for_writing(None) as own:
                transfer_allocation(own, number, other, hours(10), posting())
        except BadInput as error:
            failures.append(str(error))

    threads = [threading.Thread(target=give) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 2
    assert (left(ledger, number), left(ledger, other)) == (0, 11)


@pytest.mark.parametrize("why", ["", "  ", "a" * 501, "a\x1b[2J"])
def test_a_reason_is_needed(books: Ledger, why: str) -> None:
    with pytest.raises(BadInput, match="say why"):
        grant_allocation(books, "account", "vision", 1, 1, posting(why))


def test_wrong_grants(books: Ledger) -> None:
    with pytest.raises(BadInput, match="above 0"):
        grant_allocation(books, "account", "vision", -1, 1, posting())
    with pytest.raises(BadInput, match="end before it begins"):
        grant_allocation(books, "account", "vision", 1, 5, posting(), finish=5)
    with pytest.raises(BadInput, match="no project 'llm'"):
        grant_allocation(books, "project", "llm", 1, 5, posting())


# --- holders --------------------------------------------------------------------------------------


def test_of_an_account_a_pi_and_a_project(books: Ledger, configure) -> None:
    configure('[project.llm]\naccounts = ["Vision", "genomics"]\n')
    for kind, name in (("account", "VISION"), ("pi", "garcia"), ("project", "llm")):
        grant(books, holder_kind=kind, holder=name)
    found = {str(row.holder): row for row in balances(books, everything=True, now=NOW).rows}
    used = {name: row.used_ms / HOUR_MS for name, row in found.items()}
    assert used == {"account vision": 32, "PI garcia": 14, "project llm": 46}
    assert found["PI garcia"].accounts == ("genomics",)
    assert found["project llm"].accounts == ("genomics", "vision")


def test_gpu_types_have_weights_and_shards_may_have_none(ledger: Ledger, configure) -> None:
    configure('[gpu."a100_1g.5gb"]\nweight = 0.125\n')
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, gpus={"a100_1g.5gb": 4, "a100": 1}),
        run("alice", BEGIN, BEGIN + HOUR, gpus={"shard": 2}),
    ]
    write_books(ledger, jobs)
    grant(ledger, 10)
    (one,) = balances(ledger, everything=True, now=NOW).rows
    assert one.used_ms == hours(1.5)
    assert any("shard" in note and "weight is unknown" in note for note in one.notes)


@pytest.mark.sql
def test_in_billing(ledger: Ledger) -> None:
    tres = {"alloc_tres": "billing=16,cpu=4", "req_tres": "billing=16,cpu=4"}
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, other=tres),
        run("alice", BEGIN, BEGIN + 2 * HOUR),  # without billing in its TRES
        run("alice", NOW - HOUR, None, state="RUNNING", other=tres | {"time_limit": "90"}),
        run("alice", BEGIN - HOUR, BEGIN + HOUR, other=tres),
    ]
    write_books(ledger, jobs, read_to=NOW)
    grant(ledger, 100, unit="billing")
    (one,) = balances(ledger, everything=True, now=NOW).rows
    assert (one.used_ms, one.running_ms, one.may_use_ms) == (hours(48), hours(16), hours(8))
    assert one.notes == ("1 runs have no billing in AllocTRES and count as 0",)


def test_what_waits_is_an_upper_bound(ledger: Ledger) -> None:
    def waits(**columns: object) -> Job:
        return run("alice", NOW, None, gpus=A100, state="PENDING", other=columns)

    jobs = [
        waits(job_id="5_[1-4,9%2]", job_id_raw=5, time_limit="90"),
        waits(time_limit="UNLIMITED"),
        waits(time_limit="Partition_Limit"),
    ]
    write_books(ledger, [Job(**{**vars(job), "start": None}) for job in jobs], read_to=NOW)
    grant(ledger)
    (one,) = balances(ledger, everything=True, now=NOW).rows
    assert (one.reserved_ms, one.without_limit) == (hours(5 * 2 * 1.5), 2)


# --- who sees what --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uid", "everything", "seen", "users"),
    [
        (ALICE, False, ["account vision", "PI vogel"], ["alice"]),
        (ALICE, True, ["account vision", "PI vogel"], ["alice"]),
        (VOGEL, False, ["account vision", "PI vogel"], ["alice", "vogel"]),
        (VOGEL, True, ["account vision", "PI vogel"], ["alice", "vogel"]),
        (BOB, False, ["account genomics"], ["bob"]),
        (GARCIA, True, ["account genomics"], ["bob"]),
        (MALLORY, True, [], []),
    ],
)
def test_who_sees_which_balance_and_whose_use(books, uid, everything, seen, users) -> None:
    for kind, name in (("account", "vision"), ("account", "genomics"), ("pi", "vogel")):
        grant(books, holder_kind=kind, holder=name)
    scope = SCOPES[uid]
    found = balances(books, everything=everything, uid=uid, scope=scope)
    assert [str(row.holder) for row in found.rows] == seen
    for row in found.rows:
        assert [each.user for each in row.users] == users
        assert row.used_ms == (hours(14) if row.holder.name == "genomics" else hours(32))
        assert (row.accounts, row.shared) == ((), ())


def test_a_user_cannot_ask_about_another_time(books: Ledger) -> None:
    """A uid may have been somebody else's then."""
    grant(books)
    with pytest.raises(BadInput, match="only operators may ask for the balances of another time"):
        balances(books, uid=ALICE, scope=SCOPES[ALICE], now=NOW - DAY)


def test_everybody_sees_their_own_use(books: Ledger) -> None:
    grant(books)
    mine = {
        uid: [row.mine_ms for row in balances(books, uid=uid, scope=SCOPES[uid]).rows]
        for uid in (ALICE, VOGEL, BOB)
    }
    assert mine == {ALICE: [hours(22)], VOGEL: [hours(10)], BOB: []}


def test_members_see_the_history_but_no_jobs(books: Ledger) -> None:
    number = grant(books)
    refund_job(books, "1", posting("alice's node died"))
    for uid, job, why in ((ALICE, None, ""), (VOGEL, "1", "alice's node died")):
        (one,) = allocation_history(books, uid=uid, scope=SCOPES[uid]).rows
        refund = one.entries[-1]
        assert (one.id, refund.amount_ms) == (number, hours(20))
        assert (refund.job_id, refund.why) == (job, why)
    assert allocation_history(books, uid=BOB, scope=SCOPES[BOB]).rows == ()


@pytest.mark.parametrize("uid", [ALICE, VOGEL, MALLORY])
def test_only_operators_change_allocations(books: Ledger, uid: int) -> None:
    number = grant(books)
    more = {"uid": uid, "scope": SCOPES[uid]}
    calls: list[Callable[[], object]] = [
        lambda: grant_allocation(books, "account", "vision", 1, 1, posting(), **more),
        lambda: top_up_allocation(books, number, 1, posting(), **more),
        lambda: transfer_allocation(books, number, number, 1, posting(), **more),
        lambda: refund_job(books, "1", posting(), **more),
        lambda: expire_allocation(books, number, posting(), **more),
    ]
    for call in calls:
        with pytest.raises(BadInput, match="only operators may change allocations"):
            call()
    with books.transaction() as connection:
        assert len(connection.execute(select(allocation_entries)).all()) == 1


# --- a second implementation over random books ----------------------------------------------------


@contextmanager
def _random_books(ledger: Ledger, dice: random.Random) -> Iterator[list[Job]]:
    jobs = []
    for _ in range(40):
        start = BEGIN + dice.randrange(20 * DAY)
        ends = start + dice.choice((0, 1, HOUR, dice.randrange(3 * DAY)))
        jobs.append(
            run(
                dice.choice(("alice", "vogel", "bob")),
                start,
                ends if ends < NOW else None,
                state="COMPLETED" if ends < NOW else "RUNNING",
                gpus=dice.choice((A100, {"": 1}, {"a100": 1, "h100": 3}, {})),
                retracted=dice.choice((None, None, None, NOW)),
            )
        )
    write_books(ledger, jobs, read_to=NOW)
    yield jobs


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_balance(ledger: Ledger, seed: int) -> None:
    """Transfers keep the sum; each balance is what a second implementation says."""
    dice = random.Random(seed)
    with _random_books(ledger, dice) as jobs:
        amounts: dict[int, int] = {}
        spans: dict[int, tuple[str, int, int | None]] = {}
        granted = 0
        for _ in range(6):
            whose, begin = dice.choice(("vision", "genomics")), BEGIN + dice.randrange(15 * DAY)
            finish = dice.choice((None, begin + dice.randrange(1, 20 * DAY)))
            amount = dice.randrange(1, 2000 * HOUR_MS)
            named = {"begin": begin, "finish": finish, "holder": whose}
            number = (
                grant_allocation(
                    ledger, holder_kind="account", amount_ms=amount, posting=posting(), **named
                )
                .allocations[0]
                .id
            )
            amounts[number], spans[number], granted = (
                amount,
                (whose, begin, finish),
                granted + amount,
            )
        for _ in range(20):
            one, other = dice.sample(sorted(amounts), 2)
            amount = dice.randrange(1, 300 * HOUR_MS)
            try:
                if dice.random() < 0.4:
                    top_up_allocation(ledger, one, amount, posting())
                    amounts[one], granted = amounts[one] + amount, granted + amount
                elif dice.random() < 0.3:
                    posted = refund_job(ledger, str(dice.randrange(1, 41)), posting())
                    (entry,) = posted.entries
                    amounts[entry.allocation] += entry.amount_ms
                    granted += entry.amount_ms
                else:
                    transfer_allocation(ledger, one, other, amount, posting())
                    amounts[one], amounts[other] = amounts[one] - amount, amounts[other] + amount
            except BadInput:
                continue
        assert sum(amounts.values()) == granted
        found = balances(ledger, everything=True, ended=True, now=NOW).rows
        shown = {each.id: each for row in found for each in row.allocations}
        assert {number: each.granted_ms for number, each in shown.items()} == amounts
        for whose in ("vision", "genomics"):
            mine = {number: span for number, span in spans.items() if span[0] == whose}
            times = {NOW, *(t for _, b, f in mine.values() for t in (b, f) if t and t < NOW)}
            edges = sorted(times)
            prices = [gpu_hours_ms(jobs, whose, (a, b), NOW) for a, b in pairwise(edges)]
            # Time in parts: within one, the same allocations are in force.
            at = {edge: place for place, edge in enumerate(edges)}
            purses = [
                Purse(n, at.get(b, 10**6), None if f is None else at.get(f, 10**6), amounts[n])
                for n, (_, b, f) in mine.items()
            ]
            # The order of ends beyond now is lost in places: keep it.
            later = sorted({f for _, _, f in mine.values() if f and f >= NOW})
            purses = [
                purse._replace(finish=10**6 + later.index(mine[purse.number][2]))
                if purse.finish == 10**6
                else purse
                for purse in purses
            ]
            there, _ = spend(purses, prices)
            assert {n: shown[n].left_ms for n in mine} == there


# --- budgets.toml ---------------------------------------------------------------------------------

BUDGET = '[[budget]]\npi = "vogel"\ngpu_hours = {}\nfrom = 2026-11-01\nto = 2027-01-01\n'


def test_budgets_are_imported_once(books: Ledger, tmp_path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(BUDGET.format(50.5))
    assert [each.posted.repeated for each in import_budgets(books, file)] == [False]
    assert [each.posted.repeated for each in import_budgets(books, file)] == [True]
    (row,) = balances(books, everything=True, now=NOW).rows
    assert (str(row.holder), row.granted_ms, row.used_ms) == ("PI vogel", hours(50.5), hours(32))
    with pytest.raises(BadConfig, match="no file of budgets"):
        import_budgets(books)


def test_a_raised_budget_is_topped_up_and_then_known(books: Ledger, tmp_path) -> None:
    """The file may have another name, and another operator may import it."""
    file = tmp_path / "budgets.toml"
    file.write_text(BUDGET.format(50.5))
    (first,) = import_budgets(books, file)
    again = tmp_path / "budgets-2.toml"
    again.write_text(BUDGET.format(60) + BUDGET.replace("vogel", "garcia").format(7))
    raised, other = import_budgets(books, again)
    assert (raised.lacks, other.lacks) == (True, False)
    assert "granted 50.50 GPU-hours with its top-ups; the file says 60.00" in raised.problem
    assert "slurmkit allocation top-up 1 9.5 --why TEXT" in raised.problem
    assert (other.posted.repeated, other.problem) == (False, "")
    top_up_allocation(books, first.posted.allocations[0].id, hours(9.5), posting())
    for one in import_budgets(books, again):
        assert (one.posted.repeated, one.problem, one.lacks) == (True, "", False)
    granted = {str(row.holder): row.granted_ms for row in balances(books, everything=True).rows}
    assert granted == {"PI vogel": hours(60), "PI garcia": hours(7)}


@pytest.mark.sql
def test_another_operator_imports_the_same_file(books: Ledger, tmp_path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(BUDGET.format(50))
    import_budgets(books, file)
    with books.transaction() as connection:
        connection.execute(update(allocation_entries).values(who="somebody else"))
    (one,) = import_budgets(books, file)
    assert (one.posted.repeated, one.problem) == (True, "")


def test_a_budget_that_cannot_be_granted_stops_no_other(books: Ledger, tmp_path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(BUDGET.replace("vogel", "Vogel").format(5) + BUDGET.format(7))
    wrong, right = import_budgets(books, file, known=True)
    assert (wrong.posted, wrong.lacks) == (None, True)
    assert "did you mean 'vogel'" in wrong.problem
    assert right.posted.entries[0].amount_ms == hours(7)


def test_a_lowered_budget_takes_nothing_back(books: Ledger, tmp_path) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(BUDGET.format(50))
    import_budgets(books, file)
    file.write_text(BUDGET.format(40))
    (one,) = import_budgets(books, file)
    assert not one.lacks
    assert "No grant is taken back" in one.problem


def test_a_budget_and_its_allocation_count_the_same(books: Ledger, tmp_path, configure) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text(BUDGET.format(50))
    configure(f'[ledger]\nbudgets = "{file}"\n')
    import_budgets(books)
    (old,) = read.budget(books, timezone="UTC", now=NOW).rows
    (new,) = balances(books, everything=True, now=NOW).rows
    assert old["gpu_hours_used"] == new.used_ms / HOUR_MS
    assert old["gpu_hours_left"] == new.left_ms / HOUR_MS


@pytest.mark.sql
def test_rows_of_the_migration_are_those_of_the_schema(ledger: Ledger) -> None:
    """An entry needs its allocation, and an identity is there once."""
    grant(ledger)
    assert balances(ledger, everything=True, now=NOW, scope=EVERYTHING).rows
    with ledger.transaction() as connection:
        row = connection.execute(select(allocation_entries)).one()._asdict()
    for wrong in ({"allocation_id": 99, "identity": "other"}, {}):
        values = {name: value for name, value in row.items() if name != "id"} | wrong
        with (
            pytest.raises(Exception, match=r"database|constraint|refuses"),
            ledger.transaction() as c,
        ):
            c.execute(insert(allocation_entries).values(**values))
