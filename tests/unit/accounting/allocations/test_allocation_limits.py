"""Limits in Slurm: what is left becomes GrpTRESMins, is read back, and is compared."""

from __future__ import annotations

import json
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
    outcomes,
    plan_apply,
    stand_in_slurm,
)
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.allocations import apply, balance
from slurmkit_accounting.allocations.changes import (
    expire_allocation,
    refund_job,
    top_up_allocation,
)
from slurmkit_accounting.allocations.limit_causes import site_remarks
from slurmkit_accounting.allocations.limits import is_explained
from slurmkit_accounting.config import AllocationSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import clusters, ingests
from slurmkit_accounting.reports.question import Scope
from sqlalchemy import Connection, insert, select

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.errors import BadInput, LedgerError

FIXTURES = (books_of_two_users, stand_in_slurm, stopped_clock)


@pytest.mark.sql
def test_the_limit_is_what_slurm_counted_and_what_is_left(books: Ledger, slurm) -> None:
    grant(books)
    assert applied(books, slurm) == ["set"]
    assert slurm.changes == [
        ("sacctmgr", "-i", "modify", "account", "where", "name=vision", "cluster=lab", "set",
         f"GrpTRESMins=gres/gpu={500 + 80 * 60}"),
    ]  # fmt: skip
    assert outcomes(books) == [(None, 5300, "set")]
    assert applied(books, slurm) == []  # nothing has to change


def test_a_refund_and_a_top_up_raise_it(books: Ledger, slurm: StandInSlurm) -> None:
    number = grant(books, 10)
    applied(books, slurm)
    assert slurm.accounts["vision"][0] == 500  # overdrawn: nothing is left
    refund_job(books, "1", posting("node died"))
    applied(books, slurm)
    assert slurm.accounts["vision"][0] == 500 + 10 * 60
    top_up_allocation(books, number, hours(1), posting())
    applied(books, slurm)
    assert slurm.accounts["vision"][0] == 500 + 11 * 60


def test_what_differs_because_of_the_time_of_reading_is_left_alone(books, slurm) -> None:
    number = grant(books)
    applied(books, slurm)
    slurm.accounts["vision"][1:] = [500 + 9, 2]  # two GPUs ran for some minutes of which
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)  # the ledger does not know yet
    assert (one.difference, one.slack, one.commands) == (-9, 11, ())
    assert is_explained(one)
    top_up_allocation(books, number, hours(1), posting())  # that must reach Slurm
    assert applied(books, slurm) == ["set"]
    assert slurm.accounts["vision"][0] == 509 + 81 * 60


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda s: s.accounts["vision"].__setitem__(0, 9999), "somebody else changed the limit"),
        (lambda s: s.config.update(PriorityDecayHalfLife="7-00:00:00"), "decay: Slurm halves"),
        (lambda s: s.config.update(SLURM_VERSION="24.11.5"), "requeues: if a job that had ended"),
        (lambda s: s.config.update(PriorityUsageResetPeriod="MONTHLY"), "forgets what it counted"),
        (lambda s: s.parents.update(genomics="vision"), "child accounts: Slurm also counts genom"),
        (lambda s: s.factors.update(normal="0.500000"), "usage factor: .* QOS normal"),
        (lambda s: None, "other clusters"),
    ],
)
def test_causes_of_a_difference(books: Ledger, slurm: StandInSlurm, change, cause) -> None:
    grant(books)
    applied(books, slurm)
    slurm.accounts["vision"][1] = 100  # Slurm lost count
    change(slurm)
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    assert not is_explained(one)
    assert re.search(cause, "\n".join(one.causes))


def test_weights_and_new_entries_are_causes(books: Ledger, slurm, configure) -> None:
    number = grant(books)
    applied(books, slurm)
    configure("[gpu.a100]\nweight = 0.5\n")
    top_up_allocation(books, number, hours(1), posting())
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    said = "\n".join(one.causes)
    assert "the allocation was changed since the last apply" in said
    assert "weights: Slurm counts a100 as whole GPUs" in said


def test_a_qos_without_decay(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books, holder_kind="pi", holder="vogel")
    assert applied(books, slurm, BY_QOS) == ["set"]
    assert slurm.changes == [
        ("sacctmgr", "-i", "add", "qos", "name=alloc_vogel", "Flags=NoDecay",
         "GrpTRESMins=gres/gpu=4800"),
    ]  # fmt: skip
    refuse = AllocationSection(enforce="qos", at_end="refuse")
    slurm.qos["alloc_vogel"][1] = 60
    assert applied(books, slurm, refuse) == ["set"]
    assert "Flags+=DenyOnLimit" in slurm.changes[-1]


def test_a_qos_is_named_as_slurm_stores_it(books: Ledger, slurm: StandInSlurm) -> None:
    """Sacctmgr makes names of QOS lower case (slurm_addto_char_list)."""
    grant(books, holder_kind="pi", holder="Vogel")
    _, (one,) = plan_apply(books, slurm, AllocationSection(enforce="qos", qos="Pool_{name}"))
    assert one.target == "pool_vogel"


@pytest.mark.parametrize("qos", ["normal", "alloc_{nmae}", "{}"])
def test_a_qos_of_the_site_never_gets_the_limit(books: Ledger, slurm, qos: str) -> None:
    grant(books)
    _, (one,) = plan_apply(books, slurm, AllocationSection(enforce="qos", qos=qos))
    assert "lacks {name}" in one.problem
    assert not one.commands


def test_a_missing_flag_is_set_with_an_equal_limit(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books, holder_kind="pi", holder="vogel")
    applied(books, slurm, BY_QOS)
    assert applied(books, slurm, BY_QOS) == []
    slurm.flags["alloc_vogel"] = ""
    assert applied(books, slurm, BY_QOS) == ["set"]
    assert "Flags+=NoDecay" in slurm.changes[-1]


@pytest.mark.sql
def test_a_limit_that_a_site_set_by_hand_is_named(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books)
    slurm.accounts["vision"][0] = 9000
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    assert "somebody else set the limit of 9,000 minutes; apply replaces it" in one.causes


@pytest.mark.parametrize("later", [4 * HOUR, 3 * DAY])
def test_an_old_ledger_sets_no_limit(books: Ledger, slurm, monkeypatch, later: int) -> None:
    """Slurm has counted jobs that the ledger has not read; their use would be given back."""
    grant(books)
    applied(books, slurm)
    slurm.accounts["vision"][1] += 600
    monkeypatch.setattr(apply, "time", SimpleNamespace(time=lambda: NOW + later))
    with pytest.raises(LedgerError, match=f"{later // HOUR} hours ago.*slurmkit ledger ingest"):
        applied(books, slurm)
    assert slurm.accounts["vision"][0] == 5300


def test_the_age_is_that_of_this_cluster(books: Ledger, slurm: StandInSlurm) -> None:
    """A cluster that is gone was read long ago; it explains no difference here."""
    with books.transaction() as connection:
        connection.execute(insert(clusters).values(id=99, name="gone"))
        connection.execute(insert(ingests).values(**_old_ingest(connection, 99)))
    grant(books)
    slurm.accounts["vision"][2] = 8
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    assert one.slack == 8 * 300 // 60 + 1


def _old_ingest(connection: Connection, cluster: int) -> dict[str, object]:
    """An ingest of another cluster, 100 days ago; otherwise as the one of the test's cluster."""
    row = dict(connection.execute(select(ingests).limit(1)).one()._mapping)
    del row["id"]
    return row | {"cluster_id": cluster, "started": row["started"] - 100 * DAY}


def test_a_name_never_becomes_an_option(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books, holder="vision set GrpTRES=cpu=1")
    grant(books, holder_kind="pi", holder="x where name=root")
    _, wanted = plan_apply(books, slurm, BY_ACCOUNT)
    assert all(one.problem and not one.commands for one in wanted)
    _, wanted = plan_apply(books, slurm, BY_QOS)
    assert {one.target for one in wanted} == {
        "alloc_vision_set_grptres_cpu_1", "alloc_x_where_name_root",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("holder", "section", "problem"),
    [
        ({"holder": "nowhere"}, BY_ACCOUNT, "Slurm has no account nowhere"),
        (
            {"holder_kind": "pi", "holder": "nobody"},
            BY_ACCOUNT,
            "exactly one account, not for: none",
        ),
        ({"begin": NOW + DAY}, BY_ACCOUNT, "no allocation has begun yet"),
        ({"holder_kind": "project", "holder": "llm"}, BY_ACCOUNT, "not for: genomics, vision"),
    ],
)
def test_what_cannot_be_enforced(books, slurm, configure, holder, section, problem) -> None:
    configure('[project.llm]\naccounts = ["vision", "genomics"]\n')
    grant(books, **holder)
    _, (one,) = plan_apply(books, slurm, section)
    assert problem in one.problem
    assert not one.commands


def test_two_holders_of_one_account(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books)
    grant(books, holder_kind="pi", holder="vogel")
    _, (one, other) = plan_apply(books, slurm, BY_ACCOUNT)
    assert one.commands
    assert "account vision enforces the balance of account vision already" in other.problem


@pytest.mark.parametrize("ended", ["vogel", "vision"])
def test_what_has_ended_does_not_count_beside_what_is_in_force(books, slurm, ended: str) -> None:
    numbers = {"vision": grant(books), "vogel": grant(books, holder_kind="pi", holder="vogel")}
    expire_allocation(books, numbers[ended], posting("by mistake"))
    assert applied(books, slurm) == ["set"]
    wanted = {str(one.holder): one for one in plan_apply(books, slurm, BY_ACCOUNT)[1]}
    gone, there = (wanted.pop(next(name for name in wanted if name.endswith(each)))
                   for each in (ended, *(numbers.keys() - {ended})))  # fmt: skip
    assert (there.target, there.problem) == ("vision", "")
    assert is_explained(gone)
    assert gone.problem.startswith("its allocations have ended; account vision enforces the bal")


def test_what_could_not_be_enforced_and_has_ended_is_no_difference(command) -> None:
    command(*GRANT[:4], "nowhere", *GRANT[5:], "--new")
    assert command("allocation", "verify")[0] == 1
    command("allocation", "expire", "1", "--why", "wrong account")
    code, out, _ = command("allocation", "verify")
    assert (code, "its allocations have ended; Slurm has no account nowhere" in out) == (0, True)


def test_a_qos_that_no_job_can_run_in_is_named(command, slurm: StandInSlurm, configure) -> None:
    command(*GRANT)
    configure('[allocation]\nenforce = "qos"\n')
    slurm.config["PriorityDecayHalfLife"] = "7-00:00:00"
    _, _, err = command("allocation", "verify")
    assert "Slurm has no QOS alloc_vision yet" in err
    assert "NoDecay" not in err
    command("allocation", "apply")
    code, _, err = command("allocation", "verify")
    assert code == 0
    assert "account vision: no user may use QOS alloc_vision" in err
    slurm.usable.append("alloc_vision")
    assert "no user may use" not in command("allocation", "verify")[2]


def test_a_tres_that_is_not_tracked(books: Ledger, slurm: StandInSlurm) -> None:
    slurm.config["AccountingStorageTRES"] = "cpu,billing"
    grant(books)
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    assert "AccountingStorageTRES lacks gres/gpu" in one.problem


def test_remarks_about_the_site(books: Ledger, slurm: StandInSlurm) -> None:
    site, _ = plan_apply(books, slurm, BY_ACCOUNT)
    assert list(site_remarks(site, BY_ACCOUNT)) == []
    slurm.config |= {
        "AccountingStorageEnforce": "associations,limits", "PriorityDecayHalfLife": "7-00:00:00",
        "PriorityUsageResetPeriod": "MONTHLY",
    }  # fmt: skip
    site, _ = plan_apply(books, slurm, BY_ACCOUNT)
    said = "\n".join(site_remarks(site, AllocationSection(enforce="association", at_end="refuse")))
    for word in ("lacks safe", "decay", "monthly", "works only with"):
        assert word in said
    slurm.config["AccountingStorageEnforce"] = "associations"
    site, _ = plan_apply(books, slurm, BY_ACCOUNT)
    assert any("lacks limits" in one for one in site_remarks(site, BY_ACCOUNT))
    assert any("enforce is empty" in one for one in site_remarks(site, AllocationSection()))


def test_a_limit_that_slurmctld_does_not_have_failed(books: Ledger, slurm: StandInSlurm) -> None:
    grant(books)
    slurm.deaf = True
    assert applied(books, slurm) == ["failed"]
    slurm.deaf, slurm.down = False, True
    assert applied(books, slurm) == ["failed"]
    slurm.down = False
    assert applied(books, slurm) == ["set"]
    assert [outcome for *_, outcome in outcomes(books)] == ["failed", "failed", "set"]


def test_killed_between_the_row_and_sacctmgr(books: Ledger, slurm: StandInSlurm) -> None:
    """The next run finishes the rest; nothing is granted twice."""
    grant(books)

    def killed(argv: Sequence[str], **_more: object) -> str:
        if argv[0] == "sacctmgr" and "modify" in argv:
            raise KeyboardInterrupt
        return StandInSlurm.run(slurm, argv)

    cut = SimpleNamespace(run=killed)
    with pytest.raises(KeyboardInterrupt):
        applied(books, cut)
    assert outcomes(books) == [(None, 5300, None)]
    _, (one,) = plan_apply(books, slurm, BY_ACCOUNT)
    assert "the last apply was cut off or failed; run it again" in one.causes
    assert applied(books, slurm) == ["set"]
    assert slurm.accounts["vision"][0] == 5300


def test_only_operators_compare_and_set(books: Ledger) -> None:
    nobody = Scope(frozenset((1,)), frozenset((1,)))
    with pytest.raises(BadInput, match="only operators"):
        apply.limit_facts(books, "lab", scope=nobody)
    with pytest.raises(BadInput, match="only operators"):
        apply.record_limit_outcome(books, 1, "set", "", scope=nobody)


# --- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def command(file_ledger: Ledger, slurm, configure, monkeypatch, capsys):
    """Runs `slurmkit ...` on books in the default place; exit code, output and errors."""
    jobs = [run("alice", BEGIN + DAY, BEGIN + DAY + 10 * HOUR, gpus={"a100": 2})]
    write_books(file_ledger, jobs, read_to=NOW)
    configure('[allocation]\nenforce = "association"\n')
    monkeypatch.setattr("slurmkit.slurm.commands.LocalSlurmCommands", lambda: slurm)

    def call(*words: str) -> tuple[int, str, str]:
        code = run_to_exit_code(cli, list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_from_a_grant_to_a_limit(command, slurm: StandInSlurm) -> None:
    code, out, _ = command(
        "allocation", "grant", "100", "--account", "vision", "--from", "2026-11-01",
        "--why", "call 3",
    )  # fmt: skip
    assert (code, out) == (
        0,
        "entry 1: grant of +100.00 GPU-hours, allocation 1 (account vision)\n",
    )
    code, out, err = command("allocation", "apply", "--dry-run")
    assert code == 0
    assert out.endswith("where name=vision cluster=lab set GrpTRESMins=gres/gpu=5300\n")
    assert "dry run, nothing was changed" in err
    assert slurm.changes == []
    code, out, err = command("allocation", "verify")
    assert code == 1
    assert "no limit" in out
    assert "slurmkit allocation apply" in err
    assert command("allocation", "apply")[0] == 0
    assert slurm.accounts["vision"][0] == 5300
    code, out, _ = command("allocation", "verify", "--json")
    (row,) = json.loads(out)["rows"]
    assert (code, row["left"], row["slurm_left"], row["difference"]) == (0, 4800, 4800, 0)
    code, out, _ = command("allocation", "history", "1", "--json")
    assert [(each["kind"], each["hours"]) for each in json.loads(out)["rows"]] == [("grant", 100)]
    _, out, _ = command("allocation", "show")
    assert re.search(
        r"1 +account vision +gpu +2026-11-01 +open +in force +100.00 +20.00 +80.00", out
    )
    _, out, err = command("balance", "--all", "--users")
    assert re.search(r"account vision +gpu +100.00 +20.00 +0.00 +0.00 +80.00 +80%", out)
    assert re.search(r"account vision +alice +20.00", out)
    assert "jobs read:" in err


def test_without_an_allocation(command) -> None:
    code, out, err = command("balance")
    assert (code, out) == (0, "")
    assert "none of your accounts has an allocation" in err
    code, out, err = command("balance", "--all")
    assert (code, out) == (0, "")
    assert "so only Slurm's own limits apply; ask your administrators if you need one" in err
    code, out, err = command("allocation", "history", "3")
    assert (code, out) == (2, "")
    assert "there is no allocation 3 that you may see; list them with: slurmkit" in err
    assert command("allocation", "history", "3", "--json")[0] == 2
    assert command("balance", "--account", "a", "--pi", "b")[0] == 2
    assert command("allocation", "grant", "1", "--why", "x")[0] == 2


GRANT = ("allocation", "grant", "100", "--account", "vision", "--from", "2026-11-01", "--why", "x")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('enforce = "association"\nat_end = "warn"\n', 'at_end is "warn"'),
        ("", "enforce is empty"),
    ],
)
def test_where_nothing_is_enforced(command, slurm, configure, section: str, words: str) -> None:
    """It says so; what is not wanted does not differ."""
    command(*GRANT)
    configure(f"[allocation]\n{section}")
    code, out, err = command("allocation", "apply", "--dry-run")
    assert code == 0
    assert "account vision (gpu): no limit is set: " in out
    assert "sacctmgr" not in out
    assert words in out
    assert "nothing is enforced" in err
    assert command("allocation", "apply")[0] == 0
    assert slurm.changes == []
    code, out, _ = command("allocation", "verify")
    assert code == 0
    assert words in out
    slurm.accounts["vision"][0] = 9000  # not of apply
    assert command("allocation", "verify")[0] == 0


def test_verify_needs_a_ledger_that_is_read(command, slurm, monkeypatch) -> None:
    command(*GRANT)
    command("allocation", "apply")
    slurm.accounts["vision"][2] = 8
    assert command("allocation", "verify")[0] == 0
    later = SimpleNamespace(time=lambda: NOW + 5 * HOUR, sleep=lambda _: None)
    for module in (balance, apply):
        monkeypatch.setattr(module, "time", later)
    code, out, err = command("allocation", "verify")
    assert code == 1
    assert "in step" in out
    assert "the ledger read the jobs of cluster lab 5 hours ago, which is too old" in err
    assert "slurmkit ledger ingest" in err
    stale = json.loads(command("allocation", "verify", "--json")[1])["stale"]
    assert stale.startswith("the ledger read the jobs")
    code, out, err = command("allocation", "apply", "--dry-run")
    assert code == 0
    assert "5 hours ago, which is too old to set limits" in err


def test_verify_names_a_holder_that_is_not_enforced(command) -> None:
    command(*GRANT[:4], "nowhere", *GRANT[5:], "--new")
    code, out, err = command("allocation", "verify")
    assert code == 1
    assert "Slurm has no account nowhere" in out
    assert "1 of 1 balances" in err


def test_an_allocation_that_begins_later_is_no_difference(command) -> None:
    later = ("--from", "2027-01-01", "--why", "x")
    command("allocation", "grant", "1", "--account", "vision", *later)
    code, out, _ = command("allocation", "verify")
    assert code == 0
    assert "no allocation has begun yet" in out


def test_a_grant_to_the_wrong_account_is_taken_back(command, slurm: StandInSlurm) -> None:
    command(*GRANT[:4], "genomics", *GRANT[5:])
    assert command("allocation", "apply")[0] == 0
    assert command("allocation", "apply", "--free", "genomics")[0] == 2  # it is in force
    command("allocation", "expire", "1", "--why", "wrong account")
    assert command("allocation", "apply")[0] == 0
    assert slurm.accounts["genomics"][0] == 0
    code, out, _ = command("allocation", "apply", "--free", "genomics")
    assert code == 0
    assert "account genomics (gpu): the limit is no longer wanted" in out
    assert slurm.accounts["genomics"][0] is None
    assert command("allocation", "verify")[0] == 0
    assert command("allocation", "apply")[0] == 0
    assert slurm.accounts["genomics"][0] is None


def test_a_left_over_limit_is_named(command, slurm: StandInSlurm, configure) -> None:
    command(*GRANT)
    configure('[allocation]\nenforce = "qos"\n')
    assert command("allocation", "apply")[0] == 0
    configure('[allocation]\nenforce = "qos"\nqos = "pool_{name}"\n')
    code, out, _ = command("allocation", "apply")
    assert code == 0
    assert "qos alloc_vision (gpu): left over: no balance that can be enforced needs" in out
    code, out, _ = command("allocation", "verify")
    assert code == 1
    assert "slurmkit allocation apply --free alloc_vision" in out
    assert command("allocation", "apply", "--free", "alloc_vision")[0] == 0
    assert slurm.qos["alloc_vision"][0] is None
    assert slurm.qos["pool_vision"][0] == 4800
    assert command("allocation", "verify")[0] == 0
