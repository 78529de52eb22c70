"""What slurmctld refuses, leaves pending for ever or wrongly starts, `slurmkit plan` says first.

Each limit has a partition, QOS, account or reservation of its own, so all are tried side by side:
the job as asked is forced in, its fix is sent beside it, and then one look at the queue shows what
became of both.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from limits_cases import (
    ACCOUNTS,
    GPU,
    OF_ACCOUNTS,
    OF_PARTITIONS,
    OF_QOS,
    OTHERS,
    PARTITIONS,
    QOS,
    STARTS,
    Case,
    Outcome,
    Row,
)
from waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]

CASES = [*OF_PARTITIONS, *OF_QOS, *OF_ACCOUNTS, *OTHERS]
# What these ask for can be had by waiting only.
UNFIXABLE = {"nodes-down", "assoc-max-jobs"}


def title(case: Case) -> str:
    return f"{case.code}: {case.asks}"


@pytest.fixture(scope="module")
def failed(lab: Lab) -> str:
    """A job that has failed."""
    job = send(lab, {"partition": "cpu", "time": "1"}, "false")
    wait_for(lambda: rows(lab)[job].state == "FAILED")
    return job


@pytest.fixture(scope="module")
def outcomes(lab: Lab, failed: str) -> Generator[dict[Case, Outcome]]:
    """All cases tried at once; what became of each is looked at when nothing moves any more."""
    try:
        set_up(lab)
        tried = attempt(lab, CASES, failed)
        yield settle(lab, tried)
    finally:
        tear_down(lab)


@pytest.mark.parametrize("case", CASES, ids=title)
def test_plan_says_so_first(outcomes: dict[Case, Outcome], case: Case) -> None:
    outcome = outcomes[case]
    said = {finding["code"]: finding for finding in outcome.plan[case.level]}
    assert case.code in said, outcome.plan
    assert said[case.code]["source"]
    if case.level == "errors":
        assert outcome.code == 2
        assert list(said) == [case.code]
        assert outcome.plan["estimate"]["start"] is None, "slurmctld was not asked"


@pytest.mark.parametrize("case", CASES, ids=title)
def test_slurm_would_not_have_run_it_well(outcomes: dict[Case, Outcome], case: Case) -> None:
    outcome = outcomes[case]
    said = became(outcome.bad) if outcome.bad else outcome.said
    assert outcome.said.isdigit() == (outcome.bad is not None)
    assert re.search(case.slurm, said), said


@pytest.mark.parametrize("case", CASES, ids=title)
def test_the_fix_runs(outcomes: dict[Case, Outcome], case: Case) -> None:
    outcome = outcomes[case]
    if case.code in UNFIXABLE:
        assert not outcome.fix
        return
    assert outcome.good, outcome.fixed
    assert outcome.good.state in ("RUNNING", "COMPLETED"), outcome.good


# --- one by one -----------------------------------------------------------------------------------


def test_a_partition_beside_one_that_fits_is_a_warning(
    lab: Lab, outcomes: dict[Case, Outcome]
) -> None:
    asks = {"partition": "lim-time,cpu", "time": "20"}
    made = plan(lab, asks)
    assert not made["errors"]
    assert [finding["code"] for finding in made["warnings"]] == ["partition-max-time"]
    job = send(lab, asks)
    wait_for(lambda: rows(lab)[job].state == "COMPLETED")


def test_what_waits_is_told_why(lab: Lab, outcomes: dict[Case, Outcome]) -> None:
    """Four of the eight GPUs of a QOS held: another eight wait, another four start."""
    holder = send(
        lab, {"qos": "lim-user", "gpus-per-node": "a100:4", "time": "30"}, "sleep", "1500"
    )
    wait_for(lambda: rows(lab)[holder].state == "RUNNING")
    asks = {"qos": "lim-user", "gpus-per-node": "a100:8", "time": "5"}

    def notes() -> list[dict[str, Any]]:
        return [n for n in plan(lab, asks)["notes"] if n["code"] == "qos-max-tres-per-user"]

    wait_for(lambda: bool(notes()))
    assert "4 of the 8 GPUs" in notes()[0]["message"]
    job = send(lab, asks)
    wait_for(lambda: "QOSMaxGRESPerUser" in rows(lab)[job].reason)
    lab.run("scancel", holder)
    wait_for(lambda: rows(lab)[job].state in ("RUNNING", "COMPLETED"))


def test_a_node_that_comes_back_takes_the_job(lab: Lab, outcomes: dict[Case, Outcome]) -> None:
    case = next(case for case in CASES if case.code == "nodes-down")
    (warning,) = [w for w in outcomes[case].plan["warnings"] if w["code"] == case.code]
    assert "a broken fan" in warning["message"]
    scontrol(lab, "update NodeName=c6 State=RESUME")
    wait_for(lambda: rows(lab)[outcomes[case].said].state in ("RUNNING", "COMPLETED"))


def test_a_reservation_ends_with_its_jobs(lab: Lab, outcomes: dict[Case, Outcome]) -> None:
    asks = {"partition": "mig", "reservation": "lim-mine", "time": "30"}
    made = plan(lab, asks)
    assert not made["errors"]
    (warning,) = [w for w in made["warnings"] if w["code"] == "reservation-ends-first"]
    assert 0 < minutes(warning["fix"]["time"]) < 30
    job = send(lab, asks, "sleep", "600")
    wait_for(lambda: rows(lab)[job].state == "RUNNING")
    scontrol(lab, "update ReservationName=lim-mine EndTime=now+20seconds")
    wait_for(lambda: rows(lab)[job].state == "TIMEOUT")


# --- with settings of slurm.conf ------------------------------------------------------------------

CONF = """
EnforcePartLimits=ALL
AccountingStorageEnforce=associations,limits,qos,safe
Licenses=lim-lic:2
"""

STRICT = [
    Case("partition=lim-time time=20", "partition-max-time", "time limit is invalid"),
    Case("partition=lim-time,cpu time=20", "partition-max-time", "time limit is invalid"),
    Case("partition=lim-most nodes=2", "partition-max-nodes", "[Nn]ode count"),
    Case("partition=lim-mem mem=8G", "partition-max-mem-per-node", "[Mm]emory"),
    Case("partition=lim-accounts", "partition-allow-accounts", "Invalid account"),
    Case("partition=lim-qos", "partition-allow-qos", "Invalid qos"),
    Case("partition=lim-group", "partition-allow-groups", "[Gg]roup|permitted"),
    Case("partition=cpu licenses=lim-lic:3", "licenses", "Invalid license"),
    Case(f"account=lim-a-mins {GPU}:1 time=60", "assoc-grp-tres-mins", "AssocGrpGRESMin"),
    Case("account=lim-a-gwall partition=cpu time=60", "assoc-grp-wall", "AssocGrpWall"),
]


@pytest.fixture(scope="module")
def strictly(
    lab: Lab, failed: str, outcomes: dict[Case, Outcome]
) -> Generator[dict[Case, Outcome]]:
    """The same limits with EnforcePartLimits, safe limits and licences."""
    del outcomes
    conf = "/etc/slurm/slurm.conf"
    try:
        root(lab, f"[ -e {conf}.kept ] || cp {conf} {conf}.kept; cat >> {conf}", CONF)
        root(lab, "scontrol reconfigure")
        cancel_all(lab)
        wait_for(lambda: "limits,qos,safe" in lab.run("scontrol", "show", "config").stdout)
        partitions(lab)
        tried = attempt(lab, [case for case in STRICT if not untried(lab, case)], failed)
        yield settle(lab, tried)
    finally:
        root(lab, f"[ ! -e {conf}.kept ] || mv {conf}.kept {conf}; scontrol reconfigure")


@pytest.mark.parametrize("case", STRICT, ids=title)
def test_with_strict_settings(lab: Lab, strictly: dict[Case, Outcome], case: Case) -> None:
    if untried(lab, case):
        pytest.skip("22.05 takes AccountingStorageEnforce at its start only")
    test_plan_says_so_first(strictly, case)
    test_slurm_would_not_have_run_it_well(strictly, case)
    test_the_fix_runs(strictly, case)


def untried(lab: Lab, case: Case) -> bool:
    return lab.release == "22.05" and "assoc" in case.code


# --- how it is done -------------------------------------------------------------------------------


DRIVER = Path(__file__).with_name("limits_driver.py")
PYTHON = "/opt/slurmkit/venv/bin/python"


def attempt(lab: Lab, cases: list[Case], failed: str) -> dict[Case, Outcome]:
    """Plan each case, force it in, and send its fix."""
    asked = [
        {"asks": options(c.asks.format(failed=failed)), "code": c.code, "level": c.level}
        for c in cases
    ]
    argv = (PYTHON, "-c", DRIVER.read_text("utf-8"))
    done = lab.run(*argv, input=json.dumps(asked), timeout=1500)
    found = [Outcome(**each) for each in json.loads(done.stdout)]
    return dict(zip(cases, found, strict=True))


def options(text: str) -> dict[str, str]:
    given = dict(item.split("=", 1) for item in text.split())
    return {"time": "5", **given}


def argv(asks: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in asks.items()]


def plan(lab: Lab, asks: dict[str, str]) -> dict[str, Any]:
    done = lab.run("slurmkit", "plan", "--json", *argv(asks), "--", "true", check=False)
    assert done.returncode in (0, 2), done.stderr
    made: dict[str, Any] = json.loads(done.stdout)["rows"][0]
    assert done.returncode == (2 if made["errors"] else 0)
    return made


def send(lab: Lab, asks: dict[str, str], *command: str) -> str:
    """Submit, and return the job id."""
    given = command or ("sleep", "1")
    return lab.run("slurmkit", "submit", "--parsable", *argv(asks), "--", *given).stdout.strip()


def rows(lab: Lab) -> dict[str, Row]:
    """Alice's jobs, those ended too, by id; of an array the task that got furthest."""
    shown = ("--all", "--states=all", "--noheader", "--format=%F|%T|%r")
    found: dict[str, Row] = {}
    for line in lab.run("squeue", *shown, "--user=alice").stdout.splitlines():
        job, state, reason = line.split("|", 2)
        if found.get(job, Row("PENDING", "")).state == "PENDING":
            found[job] = Row(state, reason)
    return found


def settle(lab: Lab, tried: dict[Case, Outcome]) -> dict[Case, Outcome]:
    """Wait until every job is where it stays; what is not by then fails its test."""
    deadline = time.monotonic() + PATIENCE
    while True:
        now = rows(lab)
        asked = {job for each in tried.values() for job in (each.said, each.fixed)}
        now |= forgotten(lab, {job for job in asked - now.keys() if job.isdigit()})
        seen = {
            case: outcome._replace(bad=now.get(outcome.said), good=now.get(outcome.fixed))
            for case, outcome in tried.items()
        }
        if time.monotonic() > deadline or all(settled(*each) for each in seen.items()):
            return seen
        time.sleep(1)


def forgotten(lab: Lab, jobs: set[str]) -> dict[str, Row]:
    """Jobs that ended so long ago that slurmctld knows them no more: after five minutes."""
    if not jobs:
        return {}
    asked = ("sacct", "-X", "-n", "-P", "-j", ",".join(sorted(jobs)), "-o", "JobID,State")
    lines = (line.split("|") for line in lab.run(*asked).stdout.splitlines())
    return {job.partition("_")[0]: Row(state.partition(" ")[0], "") for job, state in lines}


def settled(case: Case, outcome: Outcome) -> bool:
    started = outcome.good is None or outcome.good.state in ("RUNNING", "COMPLETED")
    shown = outcome.bad is None or re.search(case.slurm, became(outcome.bad))
    return started and bool(shown)


def became(row: Row) -> str:
    """What a case's pattern is compared with."""
    if row.state == "PENDING":
        return row.reason
    return STARTS if row.state in ("RUNNING", "COMPLETED") else row.state


def set_up(lab: Lab) -> None:
    """One partition, QOS or account for each limit, and reservations."""
    mine = ",".join(name for name in QOS if name != "lim-others")
    sacctmgr(
        lab,
        *(f"add qos {name} {limit}" for name, limit in QOS.items()),
        f"modify user alice where account=vision set qos+={mine}",
        *(f"add account {name} QOS=normal DefaultQOS=normal {to}" for name, to in ACCOUNTS.items()),
        f"add user alice Account={','.join(ACCOUNTS)}",
    )
    scontrol(
        lab,
        f"{RESERVE}=lim-bobs StartTime=now Duration=60 Nodes=c3 Users=bob Flags=IGNORE_JOBS",
        f"{RESERVE}=lim-mine StartTime=now Duration=29 Nodes=c5 Users=alice Flags=IGNORE_JOBS",
        f"{RESERVE}=lim-maint StartTime=now+15minutes Duration=60 Nodes=c4 Users=root Flags=MAINT",
        'update NodeName=c6 State=DRAIN Reason="a broken fan"',
    )
    known = ("scontrol", "show", "assoc_mgr", "users=alice", "flags=assoc")
    wait_for(lambda: list(ACCOUNTS)[-1] in lab.run(*known).stdout)
    partitions(lab)


RESERVE = "create reservation ReservationName"


def partitions(lab: Lab) -> None:
    """Make them, and let what is known of the cluster be read anew."""
    scontrol(lab, *(f"create PartitionName={name} {more}" for name, more in PARTITIONS.items()))
    lab.run("slurmkit", "plan", "--refresh", "--json", "--time=1", "--", "true")


def tear_down(lab: Lab) -> None:
    """Leave the cluster as it was, however far it came."""
    scontrol(lab, "update NodeName=c6 State=RESUME", check=False)
    cancel_all(lab)
    scontrol(
        lab,
        *(f"delete ReservationName={name}" for name in ("lim-bobs", "lim-mine", "lim-maint")),
        *(f"delete PartitionName={name}" for name in PARTITIONS),
        check=False,
    )
    gone = (f"delete account {','.join(ACCOUNTS)}", f"delete qos {','.join(QOS)}")
    sacctmgr(lab, *gone, check=False)
    lab.run("slurmkit", "plan", "--refresh", "--json", "--time=1", "--", "true")


def cancel_all(lab: Lab) -> None:
    lab.run("scancel", "--user=alice", check=False)
    wait_for(lambda: not any(row.state in BUSY for row in rows(lab).values()))


BUSY = ("PENDING", "RUNNING", "COMPLETING")


def scontrol(lab: Lab, *lines: str, check: bool = True) -> None:
    """Many changes by one scontrol, as root."""
    text = "\n".join([*lines, ""])
    lab.run("scontrol", user="", service="ctld", input=text, check=check)


def sacctmgr(lab: Lab, *lines: str, check: bool = True) -> None:
    """Many changes by one sacctmgr, as root."""
    text = "\n".join([*lines, ""])
    lab.run("sacctmgr", "-i", "-Q", user="", service="ctld", input=text, check=check)


def root(lab: Lab, script: str, text: str = "") -> None:
    """Run a line of shell as root beside slurmctld."""
    lab.run("bash", "-c", script, user="", service="ctld", input=text)


def minutes(text: str) -> int:
    """Of `MM:SS` or `H:MM:SS`."""
    *hours, mins, _ = map(int, text.split(":"))
    return (hours[0] * 60 if hours else 0) + mins
