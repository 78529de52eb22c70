"""What a cluster is and what a user may use, read from the real one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
QOS = "captest"
CACHE = "XDG_CACHE_HOME=/tmp/captest-cache"


def admin(lab: Lab, *argv: str) -> str:
    return lab.run(*argv, user="", service="ctld").stdout


def show(lab: Lab, command: str, *options: str, user: str = "alice") -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(
        lab.run("slurmkit", command, "--json", *options, user=user).stdout
    )
    return shown


def qos(lab: Lab, name: str, user: str = "alice") -> dict[str, Any]:
    (found,) = show(lab, "capabilities", user=user)["rows"]
    assert found["hidden"] == []
    return next(each for each in found["qos"] if each["name"] == name)


@pytest.fixture
def own_cache(lab: Lab) -> Iterator[tuple[str, str]]:
    """A folder of one's own for what is kept, as words that go before a command."""
    yield "env", CACHE
    lab.run("rm", "-rf", CACHE.partition("=")[2])


@pytest.fixture
def limited(lab: Lab) -> Iterator[str]:
    """A QOS with limits that alice may use."""
    limits = (
        "MaxTRESPU=gres/gpu=2,mem=3G MaxJobsPU=4 MaxSubmitJobsPU=5 GrpTRES=cpu=9 MaxWall=90"
        " Flags=DenyOnLimit Preempt=scavenger"
    )
    admin(lab, "sacctmgr", "-i", "add", "qos", QOS, "set", *limits.split())
    admin(lab, "sacctmgr", "-i", "modify", "user", "alice", "set", f"qos+={QOS}")
    yield QOS
    lab.run("scancel", f"--qos={QOS}", "--user=alice")
    admin(lab, "sacctmgr", "-i", "modify", "user", "alice", "set", f"qos-={QOS}")
    admin(lab, "sacctmgr", "-i", "delete", "qos", QOS)


def test_every_gpu_is_counted(lab: Lab) -> None:
    """By node and type as slurmctld itself counts them in CfgTRES."""
    (found,) = show(lab, "capabilities", "--refresh")["rows"]
    counted: dict[str, int] = {}
    for node in admin(lab, "scontrol", "show", "node", "--oneliner").splitlines():
        tres = node.partition(" CfgTRES=")[2].split()[0].split(",")
        for item in tres:
            name, _, count = item.partition("=")
            counted[name] = counted.get(name, 0) + (int(count) if count.isdigit() else 0)
    typed = {kind["type"]: kind["count"] for kind in found["gres"] if kind["name"] == "gpu"}
    assert sum(typed.values()) == counted["gres/gpu"]
    for kind, count in typed.items():
        assert kind is None or counted[f"gres/gpu:{kind}"] == count
    assert sum(node["cpus"] for node in found["nodes"]) == counted["cpu"]
    assert ".".join(map(str, found["release"])).startswith(str(int(lab.release.partition(".")[0])))


def test_a_kept_copy_needs_no_slurm(lab: Lab, own_cache: tuple[str, str]) -> None:
    asked = json.loads(lab.run(*own_cache, "slurmkit", "capabilities", "--json").stdout)
    where = lab.run("bash", "-c", "command -v slurmkit").stdout.strip()
    away = lab.run(*own_cache, "PATH=/nonexistent", where, "capabilities", "--json")
    kept = json.loads(away.stdout)
    (before,), (now,) = asked["rows"], kept["rows"]
    assert (kept["taken"], now["nodes"]) == (asked["taken"], before["nodes"])
    assert now["qos"] is None
    assert "not on the PATH" in now["hidden"][-1]
    time.sleep(1)  # `taken` has whole seconds
    again = lab.run(*own_cache, "slurmkit", "capabilities", "--json", "--refresh").stdout
    assert json.loads(again)["taken"] > asked["taken"]


def test_only_its_owner_may_read_what_is_kept(lab: Lab, own_cache: tuple[str, str]) -> None:
    lab.run(*own_cache, "slurmkit", "capabilities")
    folder = f"{CACHE.partition('=')[2]}/slurmkit"
    mode, *modes = lab.run("bash", "-c", f"stat -c %a {folder} {folder}/*").stdout.split()
    assert (mode, set(modes)) == ("700", {"600"})
    assert len(modes) >= 2  # one more where PySlurm was looked at


def test_limits_of_a_qos_at_once(lab: Lab, limited: str) -> None:
    """Before anybody used it, when only slurmdbd tells them, and while it is used."""
    before = qos(lab, limited)
    limits = before["limits"]
    assert (limits["max_jobs"], limits["max_submit"], limits["max_wall"]) == (4, 5, 90)
    assert limits["max_tres_per_user"] == {"gres/gpu": 2, "mem": 3072}
    assert limits["grp_tres"] == {"cpu": 9}
    assert (before["flags"], before["preempts"]) == (["DenyOnLimit"], ["scavenger"])
    assert before["user_usage"]["submitted"] == 0
    options = (f"--qos={limited}", "--partition=cpu", "--hold", "--time=1", "--mem=100")
    lab.run("sbatch", "--output=/dev/null", *options, "--wrap=true")
    used = qos(lab, limited)
    assert used["limits"] == limits
    assert (used["usage"]["submitted"], used["user_usage"]["submitted"]) == (1, 1)
    assert used["account_usage"]["vision"]["submitted"] == 1
    assert qos(lab, limited, user="bob")["user_usage"]["submitted"] == 0
    admin(lab, "sacctmgr", "-i", "modify", "qos", limited, "set", "MaxJobsPU=-1", "MaxWall=95")
    changed = qos(lab, limited)["limits"]
    assert (changed["max_jobs"], changed["max_wall"]) == (None, 95)


def test_who_may_use_a_reservation(lab: Lab) -> None:
    options = "Nodes=c7 StartTime=now+30days Duration=10 Users=alice Flags=IGNORE_JOBS"
    create = ("scontrol", "create", "reservation", "ReservationName=captest")
    admin(lab, *create, *options.split())
    try:
        for user, may in (("alice", True), ("bob", False), ("olga", False)):
            found = show(lab, "reservations", user=user)["rows"]
            (ours,) = [each for each in found if each["name"] == "captest"]
            assert (ours["may_use"], ours["nodes"], ours["gpus"]) == (may, ["c7"], 0), user
            assert 29 * 86400 < ours["starts_in"] <= 30 * 86400
    finally:
        admin(lab, "scontrol", "delete", "ReservationName=captest")


@pytest.mark.parametrize("user", ["alice", "olga"])
def test_shares_are_sshare_s(lab: Lab, user: str) -> None:
    found = show(lab, "fairshare", "--all", user=user)
    fields = "Account,User,Partition,RawShares"
    said = lab.run("sshare", "--all", "-P", "-n", f"--format={fields}", user=user).stdout
    rows = [line.strip().split("|") for line in said.splitlines()]
    ours = [
        [row["account"], row["user"], row["partition"], str(row["raw_shares"] or "")]
        for row in found["rows"]
    ]
    assert ours == rows
    assert [line for line in found["standing"] if f"fairshare factor of {user} in" in line]


def test_factors_add_up_to_the_priority(lab: Lab, limited: str) -> None:
    """A job over its QOS's limit waits, with a priority."""
    admin(lab, "sacctmgr", "-i", "modify", "qos", limited, "set", "Flags=NoReserve")
    options = (f"--qos={limited}", "--partition=untyped", "--gres=gpu:4", "--time=1", "--mem=100")
    done = lab.run("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=true")
    job_id = done.stdout.strip()
    job = wait_for(lambda: factors(lab, job_id))
    assert job is not None
    parts = ("site", "age", "association", "fairshare", "job_size", "partition_factor", "qos")
    assert abs(job["priority"] - sum(job[part] for part in parts) + job["nice"]) <= 2
    assert job["partition"] == "untyped"


def factors(lab: Lab, job_id: str) -> dict[str, Any] | None:
    found = show(lab, "fairshare")["factors"]
    return next((job for job in found if job["job_id"] == job_id), None)
