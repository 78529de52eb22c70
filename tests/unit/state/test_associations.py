"""Reading where a user stands, from what scontrol and sacctmgr printed on each release."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slurmkit.cli.completion import cached_names
from slurmkit.errors import BadInput, ControllerDown, DatabaseDown, SlurmError
from slurmkit.state.associations import parse_assoc_mgr, read_standing
from slurmkit.state.model import Association, Limits, LimitUsage, Qos, Standing
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = ("22.05", "24.11", "26.05")
ALICE = 10011


def recorded(release: str, name: str) -> str:
    return (RECORDED / release / "limits" / f"{name}.txt").read_text("utf-8")


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine knows alice as the cluster does, and nobody else."""

    def getpwnam(name: str) -> pwd.struct_passwd:
        if name != "alice":
            raise KeyError(name)
        return pwd.struct_passwd(("alice", "x", ALICE, 20000, "", "/home/alice", "/bin/bash"))

    monkeypatch.setattr("slurmkit.slurm.machine.pwd.getpwnam", getpwnam)
    monkeypatch.setattr("slurmkit.slurm.machine.os.getgrouplist", lambda *_: [0, 4242424242])


def fake(
    release: str = "24.11",
    *,
    assoc_mgr: str = "assoc_mgr",
    sacctmgr: Callable[[Sequence[str], str | None], str] | None = None,
) -> FakeSlurm:
    def scontrol(argv: Sequence[str], _: str | None) -> str:
        return recorded(release, assoc_mgr if "assoc_mgr" in argv else "scontrol-reservations")

    def database(argv: Sequence[str], _: str | None) -> str:
        which = "qos" if "qos" in argv else "root" if "account=root" in argv else "assoc"
        return recorded(release, f"sacctmgr-{which}")

    return FakeSlurm({"scontrol": scontrol, "sacctmgr": sacctmgr or database})


@pytest.fixture
def alice(release: str) -> Standing:
    return read_standing(fake(release), "alice")


def association(standing: Standing, account: str, partition: str = "") -> Association:
    found = standing.association(account, partition)
    assert found is not None
    return found


def qos(standing: Standing, name: str) -> Qos:
    found = standing.qos_named(name)
    assert found is not None
    return found


def test_who_and_where(alice: Standing) -> None:
    assert (alice.user, alice.default_account) == ("alice", "vision")
    assert alice.groups == ("root",)  # a number without a name is left out
    own = [(each.account, each.partition) for each in alice.associations if each.user]
    assert sorted(own) == [("child", ""), ("vision", ""), ("vision", "cpu")]
    assert {each.name for each in alice.reservations} >= {"alice_res", "notbob"}


def test_accounts_above(alice: Standing) -> None:
    chain = alice.chain(association(alice, "child"))
    assert [each.name for each in chain] == [
        "alice in child",
        "account child",
        "account vision",
        "account root",
    ]


def test_limits_of_an_account(alice: Standing) -> None:
    vision = next(each for each in alice.associations if each.name == "account vision")
    limits = vision.limits
    assert limits.grp_tres_mins == {"cpu": 50000, "gres/gpu": 1000}
    assert limits.grp_tres_run_mins == {"cpu": 9000}
    assert (limits.grp_jobs, limits.grp_submit, limits.grp_wall) == (50, 60, 5000)
    assert limits.max_tres_per_job == {"mem": 102400, "gres/gpu": 4}
    assert limits.max_tres_per_node == {"gres/gpu": 2}
    assert (limits.max_wall, limits.max_submit, limits.max_jobs) == (2880, 30, None)
    assert vision.usage.jobs == 3
    assert vision.usage.tres["gres/gpu:a100"] == 2


def test_limits_of_a_user(alice: Standing) -> None:
    own = association(alice, "vision")
    assert (own.limits.max_jobs, own.limits.grp_tres) == (3, {"cpu": 20})
    assert own.limits.max_wall == 2880  # the account's, copied down by Slurm
    assert own.usage.jobs == 1
    assert own.usage.tres["gres/gpu"] == 1


def test_an_association_for_a_partition_goes_before(alice: Standing) -> None:
    assert association(alice, "vision", "cpu").limits.max_submit == 2
    assert association(alice, "vision", "gpu").partition == ""


def test_qos_that_is_used(alice: Standing) -> None:
    limited = qos(alice, "limited")
    assert limited.flags == ("DenyOnLimit", "OverPartQOS", "NoDecay")
    assert (limited.preempts, limited.preempt_mode) == (("scavenger",), "cluster")
    assert (limited.usage_factor, limited.limit_factor, limited.grace_time) == (0.5, 2.0, 30)
    assert limited.limits == Limits(
        grp_tres={"gres/gpu": 8},
        grp_tres_mins={"gres/gpu": 100},
        grp_wall=100,
        max_tres_per_job={"cpu": 16},
        max_tres_per_node={"cpu": 8},
        max_tres_mins_per_job={"cpu": 1000},
        max_tres_per_user={"mem": 65536, "gres/gpu": 2},
        max_tres_per_account={"gres/gpu": 6},
        max_tres_run_mins_per_user={"cpu": 600},
        max_tres_run_mins_per_account={"cpu": 6000},
        min_tres_per_job={"gres/gpu": 1},
        max_jobs=2,
        max_submit=5,
        max_jobs_per_account=10,
        max_submit_per_account=20,
        max_wall=60,
    )


def test_what_of_a_qos_is_used(alice: Standing, release: str) -> None:
    limited = qos(alice, "limited")
    assert (limited.usage.jobs, limited.user_usage.jobs, limited.user_usage.submitted) == (1, 1, 1)
    assert limited.user_usage.tres["gres/gpu"] == 1
    assert limited.account_usage["vision"].tres["cpu"] == 1
    run_mins = limited.user_usage.tres_run_mins
    assert run_mins == {} if release == "22.05" else run_mins["cpu"] in (14, 15)
    assert qos(alice, "high").user_usage.submitted == 2


def test_limits_of_a_qos_that_nobody_uses(alice: Standing) -> None:
    """Only slurmdbd knows them: slurmctld shows per-user limits beside a use."""
    unused = qos(alice, "unused")
    assert unused.limits == Limits(
        max_jobs=0,
        max_submit=6,
        max_tres_per_user={"gres/gpu": 3, "mem": 65536},
        max_tres_per_account={"gres/gpu": 6},
    )
    assert unused.user_usage == LimitUsage()
    assert qos(alice, "high").limits.max_tres_per_user == {"gres/gpu": 8}


@pytest.mark.parametrize("release", ["24.11", "26.05"])  # 22.05 has no such QOS
def test_percentages_are_not_taken_for_numbers(release: str) -> None:
    alice = read_standing(fake(release), "alice")
    assert qos(alice, "relative").limits.grp_tres == {"cpu": 44}  # 10 % of 448, by slurmctld
    assert qos(alice, "relative").limits.max_tres_per_user == {}
    assert [line for line in alice.hidden if "QOS relative are percentages" in line]


def test_a_use_that_is_not_shown_is_said(alice: Standing, release: str) -> None:
    said = [line for line in alice.hidden if "MaxTRESRunMinsPU" in line]
    assert said == (
        ["Slurm does not show how much of MaxTRESRunMinsPU of QOS limited is used"]
        if release == "22.05"
        else []
    )


def test_which_qos_may_be_used(alice: Standing) -> None:
    assert set(association(alice, "vision").qos) >= {"high", "limited", "normal", "scavenger"}
    assert "high" not in association(alice, "child").qos


@pytest.mark.parametrize(
    ("own", "allowed", "root", "default"),
    [
        ("high", "high,normal", "", "high"),
        ("", "high,normal", "", "normal"),
        ("", "high,normal", "high", "high"),
        ("", "scavenger", "high", "scavenger"),
        ("long", "high,normal", "", "normal"),  # it may not be used, so it does not count
    ],
)
def test_the_default_qos(own: str, allowed: str, root: str, default: str) -> None:
    """By src/common/assoc_mgr.c, assoc_mgr_get_default_qos_info."""

    def sacctmgr(argv: Sequence[str], _: str | None) -> str:
        if "qos" in argv:
            return recorded("24.11", "sacctmgr-qos")
        if "account=root" in argv:
            return f"cap2411|root|||high,normal|{root}\nother|root|||high|long\n"
        return f"other|vision|alice||long|long\ncap2411|vision|alice||{allowed}|{own}\n"

    standing = read_standing(fake(sacctmgr=sacctmgr), "alice")
    assert association(standing, "vision").default_qos == default
    assert association(standing, "vision").qos == tuple(allowed.split(","))


def test_what_slurmdbd_does_not_show_is_said() -> None:
    """PrivateData of slurmdbd may hide the root account, and others' associations."""

    def sacctmgr(argv: Sequence[str], _: str | None) -> str:
        if "qos" in argv:
            return recorded("24.11", "sacctmgr-qos")
        return "" if "account=root" in argv else "cap2411|vision|alice||high,normal|\n"

    standing = read_standing(fake(sacctmgr=sacctmgr), "alice")
    assert association(standing, "vision").default_qos == ""
    own = {line.partition(" is unknown: slurmdbd")[0] for line in standing.hidden}
    assert own >= {
        "the default QOS of alice in vision",
        "which QOS alice in child may use",
        "which QOS alice in vision (partition cpu) may use",
    }


def test_hidden_accounts_are_said(release: str) -> None:
    standing = read_standing(fake(release, assoc_mgr="assoc_mgr-private"), "alice")
    assert [
        line for line in standing.hidden if "child, vision and of the accounts above them" in line
    ]
    assert [each.name for each in standing.chain(association(standing, "vision"))] == [
        "alice in vision"
    ]


def test_a_user_without_association_is_said() -> None:
    standing = read_standing(fake(), "mallory")
    assert (standing.default_account, standing.groups) == (None, ())
    assert standing.hidden[0].startswith("slurmctld shows no association of mallory")


def test_a_cluster_without_accounting() -> None:
    text = (
        "Current Association Manager state\n\nNo users currently cached in Slurm.\n\n\n"
        "No associations currently cached in Slurm.\n\n\nNo QOS currently cached in Slurm.\n\n"
    )
    found = parse_assoc_mgr(text, "alice", ALICE)
    assert (found.known, found.associations, found.qos) == (False, (), ())


def down(argv: Sequence[str], _: str | None) -> str:
    raise DatabaseDown("slurmdbd does not answer")


def test_without_slurmdbd_what_is_unknown_is_said() -> None:
    standing = read_standing(fake(sacctmgr=down), "alice", key="lab")
    assert "the QOS that you may use, are unknown: slurmdbd does not answer" in standing.hidden[0]
    assert association(standing, "vision").qos == ()
    assert qos(standing, "limited").limits.max_jobs == 2  # slurmctld shows it: it is in use


def test_without_slurmdbd_its_last_word_counts() -> None:
    fresh = read_standing(fake(), "alice", key="lab")
    later = read_standing(fake(sacctmgr=down), "alice", key="lab")
    assert later.qos == fresh.qos
    assert later.associations == fresh.associations
    assert "are as of 2" in later.hidden[0]
    others = read_standing(fake(sacctmgr=down), "alice", key="other")
    assert association(others, "vision").qos == ()


def test_a_stand_in_for_slurm_leaves_nothing_on_disk() -> None:
    read_standing(fake(), "alice")
    assert not (Path.home() / ".cache").exists()


def test_names_for_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    me = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(
        "slurmkit.cli.completion.pwd.getpwuid", lambda _: me.__class__(("alice", *me[1:]))
    )
    assert cached_names("qos", key="lab") == []
    read_standing(fake(), "alice", key="lab")
    assert cached_names("account", key="lab") == ["child", "vision"]
    assert "limited" in cached_names("qos", key="lab")
    assert "alice_res" in cached_names("reservation", key="lab")


@pytest.mark.parametrize("user", ["", "a,b", "-x", "a b", "x=y", "a\nb"])
def test_names_that_are_none(user: str) -> None:
    slurm = fake()
    with pytest.raises(BadInput, match="cannot be a login name"):
        read_standing(slurm, user)
    assert slurm.asked == []


def test_a_controller_that_is_down() -> None:
    def scontrol(argv: Sequence[str], _: str | None) -> str:
        raise ControllerDown("slurmctld does not answer")

    with pytest.raises(ControllerDown):
        read_standing(FakeSlurm({"scontrol": scontrol, "sacctmgr": down}), "alice")


def test_a_limit_that_cannot_be_read() -> None:
    def scontrol(argv: Sequence[str], _: str | None) -> str:
        if "assoc_mgr" not in argv:
            return ""
        return recorded("24.11", "assoc_mgr").replace("GrpJobs=50(", "GrpJobs=many(")

    with pytest.raises(SlurmError, match=r"limit that cannot be read: .*many"):
        read_standing(FakeSlurm({"scontrol": scontrol, "sacctmgr": down}), "alice")


def test_an_answer_of_slurmdbd_that_cannot_be_read() -> None:
    standing = read_standing(fake(sacctmgr=lambda *_: "vision|alice\n"), "alice")
    assert "sacctmgr printed a line that cannot be read" in standing.hidden[0]
