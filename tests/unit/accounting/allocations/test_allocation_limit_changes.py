"""Limits in Slurm that change: counters set to 0, limits taken away, holders that are gone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from allocation_lab import HOUR, NOW, books_of_two_users, grant, hours, posting, stopped_clock
from allocation_slurm import (
    BY_ACCOUNT,
    BY_QOS,
    StandInSlurm,
    applied,
    plan_apply,
    stand_in_slurm,
)
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.allocations import apply, balance
from slurmkit_accounting.allocations.apply import apply_limits, make_plan
from slurmkit_accounting.allocations.changes import (
    expire_allocation,
    transfer_allocation,
)
from slurmkit_accounting.allocations.limits import is_explained
from slurmkit_accounting.config import AllocationSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import usernames
from slurmkit_accounting.ledger.schema.runs import clusters, ingests, spans
from sqlalchemy import delete, insert, select, update

from slurmkit.errors import BadInput, DatabaseDown, LedgerError

FIXTURES = (books_of_two_users, stand_in_slurm, stopped_clock)


# --- usage resets ---------------------------------------------------------------------------------

REFUSE = AllocationSection(enforce="qos", at_end="refuse")


@pytest.fixture
def alone(books: Ledger) -> Ledger:
    """The same books, with one cluster."""
    with books.transaction() as connection:
        for table in (ingests, spans):
            connection.execute(delete(table).where(table.c.cluster_id == 2))
        connection.execute(delete(clusters).where(clusters.c.id == 2))
    return books


@pytest.fixture
def refusing(alone: Ledger, slurm: StandInSlurm) -> Ledger:
    """PI vogel has 80 hours left, and Slurm has counted 600 minutes of their QOS."""
    grant(alone, holder_kind="pi", holder="vogel")
    assert applied(alone, slurm, REFUSE) == ["set"]
    slurm.qos["alloc_vogel"][1] = 600
    return alone


def test_refuse_compares_with_what_is_left(refusing: Ledger, slurm: StandInSlurm) -> None:
    """At submit Slurm compares with the whole limit: the counter must not be in it."""
    slurm.changes.clear()
    assert applied(refusing, slurm, REFUSE) == ["set"]
    where = ("sacctmgr", "-i", "modify", "qos", "where", "name=alloc_vogel", "set")
    assert slurm.changes == [(*where, "GrpTRESMins=gres/gpu=4800"), (*where, "RawUsage=0")]
    assert slurm.qos["alloc_vogel"][:2] == [4800, 0]
    assert applied(refusing, slurm, REFUSE) == []


@pytest.mark.parametrize("dies_at", ["RawUsage", "GrpTRESMins"])
def test_refuse_cut_off_gives_no_hours_away(refusing, slurm, dies_at: str) -> None:
    number = refusing_allocation(refusing)
    transfer_away(refusing, number)  # 30 hours less
    before = slurm.qos["alloc_vogel"][0] - slurm.qos["alloc_vogel"][1]
    slurm.dies_at = dies_at
    with pytest.raises(KeyboardInterrupt):
        applied(refusing, slurm, REFUSE)
    limit, counted, _ = slurm.qos["alloc_vogel"]
    assert limit - counted <= before
    slurm.dies_at = ""
    assert applied(refusing, slurm, REFUSE) == ["set"]
    assert slurm.qos["alloc_vogel"][:2] == [3000, 0]


def refusing_allocation(books: Ledger) -> int:
    return balance.balances(books, everything=True).rows[0].allocations[0].id


def transfer_away(books: Ledger, number: int) -> None:
    other = grant(books, 1, holder="genomics", begin=NOW + DAY)
    transfer_allocation(books, number, other, hours(30), posting())


@pytest.mark.sql
def test_a_limit_that_is_not_there_resets_nothing(refusing, slurm) -> None:
    slurm.deaf = True
    slurm.qos["alloc_vogel"][0] = 5000
    slurm.changes.clear()
    assert applied(refusing, slurm, REFUSE) == ["failed"]
    assert not any("RawUsage=0" in argv for argv in slurm.changes)
    assert slurm.qos["alloc_vogel"][:2] == [5000, 600]


def test_a_counter_that_was_not_reset_failed(refusing, slurm) -> None:
    def run(argv: Sequence[str], **_more: object) -> str:
        return "" if "RawUsage=0" in argv else StandInSlurm.run(slurm, argv)

    site, wanted = plan_apply(refusing, slurm, REFUSE)
    (done,) = apply_limits(refusing, SimpleNamespace(run=run), site, wanted)
    assert (done.outcome, done.why) == (
        "failed",
        "the counter of QOS alloc_vogel was not set to 0: it is at 600 minutes",
    )


@pytest.mark.parametrize("why", ["other clusters", "other limits", "without safe"])
def test_no_reset_where_it_could_do_harm(refusing, slurm, why: str) -> None:
    """Then the limit is what was counted and what is left, and the cause says so."""
    if why == "other clusters":
        with refusing.transaction() as connection:
            connection.execute(insert(clusters).values(id=99, name="other"))
    elif why == "other limits":
        grant(refusing, holder_kind="pi", holder="vogel", unit="billing", begin=NOW + DAY)
    else:
        slurm.config["AccountingStorageEnforce"] = "associations,limits,qos"
        slurm.qos["alloc_vogel"][1:] = [5000, 1]  # a job that runs would be ended
    _, wanted = plan_apply(refusing, slurm, REFUSE)
    (one,) = [each for each in wanted if each.unit == "gpu"]
    assert not one.reset
    assert one.after == one.counted + one.left
    assert re.search(f"refuse: .*{why}.* others wait", one.causes[0])


def test_back_to_hold_takes_deny_on_limit_off(refusing: Ledger, slurm: StandInSlurm) -> None:
    assert slurm.flags["alloc_vogel"] == "DenyOnLimit,NoDecay"
    assert applied(refusing, slurm, BY_QOS) == ["set"]
    assert slurm.flags["alloc_vogel"] == "NoDecay"
    slurm.flags["alloc_vogel"] = "DenyOnLimit"
    assert applied(refusing, slurm, BY_QOS) == ["set"]
    assert slurm.flags["alloc_vogel"] == "NoDecay"


# --- limits that are no longer wanted -------------------------------------------------------------


def test_an_ended_allocation_keeps_its_limit_until_it_is_freed(books, slurm) -> None:
    number = grant(books, holder="genomics")
    applied(books, slurm)
    expire_allocation(books, number, posting("wrong account"))
    assert applied(books, slurm) == ["set"]
    assert slurm.accounts["genomics"][0] == 0
    plan = make_plan(books, slurm, BY_ACCOUNT, ("genomics",))
    (done,) = apply_limits(books, slurm, plan.site, plan.wanted)
    assert done.outcome == "set"
    assert slurm.changes[-1][-1] == "GrpTRESMins=gres/gpu=-1"
    assert slurm.accounts["genomics"][0] is None
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)  # it stays free
    assert (one.is_due, one.commands) == (False, ())
    assert is_explained(one)
    grant(books, 50, holder="genomics")
    assert applied(books, slurm) == ["set"]
    assert slurm.accounts["genomics"][0] == 50 * 60  # what was used, the first one has paid


@pytest.mark.parametrize("name", ["vision", "genomics", "nowhere"])
def test_only_limits_of_apply_are_freed(books: Ledger, slurm: StandInSlurm, name: str) -> None:
    grant(books)  # in force
    slurm.accounts["genomics"][0] = 77  # the site's own
    with pytest.raises(BadInput, match=f"the limit of {name} cannot be taken away"):
        make_plan(books, slurm, BY_ACCOUNT, (name,))


@pytest.mark.parametrize(
    "section",
    [
        AllocationSection(enforce="association", at_end="warn"),
        AllocationSection(enforce="qos"),
        AllocationSection(),
    ],
)
def test_another_policy_takes_the_old_limits_away(books, slurm, section) -> None:
    grant(books)
    applied(books, slurm)
    slurm.accounts["genomics"][0] = 77  # not of apply
    _, wanted = plan_apply(books, slurm, section)
    assert not is_explained(wanted[-1])
    assert set(applied(books, slurm, section)) == {"set"}
    assert slurm.accounts["vision"][0] is None
    assert slurm.accounts["genomics"][0] == 77
    assert applied(books, slurm, section) == []
    assert all(map(is_explained, plan_apply(books, slurm, section)[1]))
    assert applied(books, slurm) == ["set", "set"][: 1 + (section.enforce == "qos")]
    assert slurm.accounts["vision"][0] == 5300


def test_old_limits_stay_until_the_new_ones_are_set(books, slurm: StandInSlurm) -> None:
    grant(books)
    applied(books, slurm)

    def run(argv: Sequence[str], **_more: object) -> str:
        if "qos" in argv and argv[1] == "-i":
            raise DatabaseDown("slurmdbd does not answer")
        return StandInSlurm.run(slurm, argv)

    site, wanted = plan_apply(books, slurm, BY_QOS)
    done = list(apply_limits(books, SimpleNamespace(run=run), site, wanted))
    assert [one.outcome for one in done] == ["failed", "failed"]
    assert slurm.accounts["vision"][0] == 5300


def test_a_limit_that_somebody_else_set_since_stays(books, slurm: StandInSlurm) -> None:
    grant(books)
    applied(books, slurm)
    slurm.accounts["vision"][0] = 123
    assert applied(books, slurm, AllocationSection()) == []
    assert slurm.accounts["vision"][0] == 123


# --- holders that resolve to nothing --------------------------------------------------------------


def test_a_project_that_is_gone_gets_no_hours_back(books, slurm, configure) -> None:
    configure('[project.llm]\naccounts = ["vision", "genomics"]\n')
    grant(books, 104, holder_kind="project", holder="llm")
    applied(books, slurm, BY_QOS)
    slurm.qos["alloc_llm"][1] = 600
    assert slurm.qos["alloc_llm"][0] == 70 * 60
    configure("")
    _, (one,) = plan_apply(books, slurm, BY_QOS)
    assert "the configuration has no [project.llm] with accounts" in one.problem
    assert not is_explained(one)
    assert applied(books, slurm, BY_QOS) == []
    assert slurm.qos["alloc_llm"][0] == 70 * 60


@pytest.mark.sql
def test_a_pi_of_another_name_gets_no_hours(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books, holder_kind="pi", holder="vogel")
    grant(books, 7, holder_kind="pi", holder="Garcia")
    grant(books, 7, holder_kind="pi", holder="nobody")
    applied(books, slurm, BY_QOS)
    assert slurm.qos["alloc_vogel"][0] == 4800
    with books.transaction() as connection:
        dated = {"person_id": 3, "valid_from": 2, "valid_to": None}
        connection.execute(insert(usernames).values(username="vogel2", **dated))
    problems = {str(one.holder): one.problem for one in plan_apply(books, slurm, BY_QOS)[1]}
    assert problems == {
        "PI vogel": "the directory has vogel2, not vogel, so its use is not known",
        "PI Garcia": "the directory has garcia, not Garcia, so its use is not known",
        "PI nobody": "the ledger knows no PI nobody, so its use is not known",
    }
    assert applied(books, slurm, BY_QOS) == []
    assert slurm.qos["alloc_vogel"][0] == 4800


def test_an_account_that_slurm_lacks_gets_no_qos(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books, holder="visionn")
    _, (one,) = plan_apply(books, slurm, BY_QOS)
    assert one.problem == "Slurm has no account visionn"


@pytest.mark.parametrize("qos", ["alloc_{name}", "alloc_{kind}_{name}"])
def test_holders_of_one_name(books: Ledger, slurm: StandInSlurm, configure, qos: str) -> None:
    configure('[project.vision]\naccounts = ["vision"]\n')
    grant(books)
    grant(books, holder_kind="project")
    _, wanted = plan_apply(books, slurm, AllocationSection(enforce="qos", qos=qos))
    if "{kind}" in qos:
        assert [one.target for one in wanted] == ["alloc_account_vision", "alloc_project_vision"]
        assert all(one.commands for one in wanted)
    else:
        assert not any(one.commands for one in wanted)
        assert "would also be that of account vision; write {kind}" in wanted[1].problem


# --- what time brings -----------------------------------------------------------------------------


def test_a_date_that_comes_reaches_slurm_on_a_busy_cluster(books, slurm, monkeypatch) -> None:
    """Many GPUs in use explain a great difference, but not that an allocation ended."""
    grant(books, finish=NOW + 2 * DAY)
    applied(books, slurm)
    slurm.accounts["vision"][2] = 1000
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    assert not one.commands
    later = SimpleNamespace(time=lambda: NOW + 3 * DAY, sleep=lambda _: None)
    for module in (balance, apply):
        monkeypatch.setattr(module, "time", later)
    with books.transaction() as connection:
        connection.execute(update(ingests).values(started=NOW + 3 * DAY))
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    assert one.left == 0
    assert one.slack > 4800  # explained, if it were not for the date
    assert "an allocation began or ended since the last apply" in one.causes
    assert applied(books, slurm) == ["set"]
    assert slurm.accounts["vision"][0] == 500


@pytest.mark.sql
@pytest.mark.parametrize("source", ["jobs.csv", "retry"])
def test_only_sacct_makes_a_ledger_fresh(books, slurm, monkeypatch, source: str) -> None:
    grant(books)
    monkeypatch.setattr(apply, "time", SimpleNamespace(time=lambda: NOW + 4 * HOUR))
    with books.transaction() as connection:
        row = dict(connection.execute(select(ingests).limit(1)).one()._mapping)
        del row["id"]
        new = {"source": source, "started": NOW + 4 * HOUR}
        connection.execute(insert(ingests).values(**row | new))
    with pytest.raises(LedgerError, match="4 hours ago"):
        applied(books, slurm)
    assert balance.balances(books, everything=True).last_ingest == NOW


def test_apply_needs_the_jobs_of_the_last_minutes(books, slurm, monkeypatch) -> None:
    """Jobs that began and ended since are in Slurm's counter, but not in the ledger."""
    grant(books)
    monkeypatch.setattr(
        apply, "time", SimpleNamespace(time=lambda: NOW + apply.FRESH + 60, sleep=lambda _: None)
    )
    with pytest.raises(LedgerError, match=r"21 minutes ago.*slurmkit ledger ingest"):
        applied(books, slurm)
    monkeypatch.setattr(
        apply, "time", SimpleNamespace(time=lambda: NOW + apply.FRESH, sleep=lambda _: None)
    )
    assert applied(books, slurm) == ["set"]


def test_a_dead_ledger_explains_nothing(books, slurm, monkeypatch) -> None:
    grant(books)
    applied(books, slurm)
    slurm.accounts["vision"][2] = 8
    monkeypatch.setattr(
        balance, "time", SimpleNamespace(time=lambda: NOW + 30 * DAY, sleep=lambda _: None)
    )
    plan = make_plan(books, slurm, BY_ACCOUNT)
    assert plan.stale == "the ledger read the jobs of cluster lab 720 hours ago, which is too old"
    assert plan.wanted[0].slack == 8 * (3 * HOUR + 300) // 60 + 1


# --- holes and causes -----------------------------------------------------------------------------


def test_holes_are_named(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books)
    slurm.qos["normal"][0] = 10**6
    slurm.config["PriorityType"] = "priority/basic"
    plan = make_plan(books, slurm, BY_ACCOUNT)
    said = "\n".join((*plan.remarks, *plan.wanted[0].causes))
    for words in (
        "QOS normal has GrpTRESMins of gres/gpu of its own: for its jobs",
        "overridden: QOS normal has a limit of gres/gpu",
        "PriorityType=priority/basic does not add up use: a limit is only",
        "no counting: PriorityType=priority/basic",
        "the ledger has 2 clusters: until the next apply",
        "each cluster may use all that is left",
    ):
        assert words in said
    plan = make_plan(books, slurm, BY_QOS)
    assert any("unless that has OverPartQOS" in one for one in plan.remarks)
    slurm.qos["normal"][0] = None
    slurm.config["PriorityType"] = "priority/multifactor"
    applied(books, slurm, BY_QOS)  # the QOS of allocations are no holes
    said = "\n".join(make_plan(books, slurm, BY_QOS).remarks)
    assert "of its own" not in said
    assert "PriorityType" not in said


def test_shards_are_not_called_whole_gpus(ledger: Ledger, slurm, configure) -> None:
    configure("[gpu.a100]\nshard_weight = 0.25\n")
    jobs = [run("alice", BEGIN + DAY, BEGIN + DAY + HOUR, gpus={"shard": 2})]
    write_books(ledger, jobs, read_to=NOW)
    grant(ledger)
    said = "\n".join(plan_apply(ledger, slurm, BY_ACCOUNT)[1][0].causes)
    assert re.search(r"weights: Slurm does not count .*shard.* as gres/gpu", said)
    assert "whole GPUs" not in said


def test_all_limits_are_read_back_at_once(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books)
    grant(books, holder="genomics")
    site, wanted = plan_apply(books, slurm, BY_ACCOUNT)
    slurm.reads = 0
    assert [one.outcome for one in apply_limits(books, slurm, site, wanted)] == ["set", "set"]
    assert slurm.reads == 1
