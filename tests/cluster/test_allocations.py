"""Allocations on a real Slurm: its own counter is what the ledger says, and its limit binds."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = pytest.mark.cluster

WHO, ACCOUNT = "trent", "alloctest"
CONFIG = (
    '[allocation]\nenforce = "{enforce}"\nat_end = "{at_end}"\nfree_qos = [{free_qos}]\n'
    '[ledger.service]\nurl = ""\n'
)
_COUNTER = re.compile(r"GrpTRESMins=\S*gres/gpu=(?P<limit>N|\d+)\((?P<counted>\d+)\)")


class Books:
    """A ledger of its own, kept by root, who may change limits."""

    def __init__(self, lab: Lab, folder: str) -> None:
        self.lab = lab
        self._folder = folder
        self.configure("association")

    def configure(self, enforce: str, at_end: str = "hold", free_qos: str = "") -> None:
        text = CONFIG.format(enforce=enforce, at_end=at_end, free_qos=free_qos)
        self.lab.run("tee", f"{self._folder}/config.toml", user="", input=text)

    def slurmkit(self, *words: str, check: bool = True) -> Any:
        named = ("SLURMKIT_DB=sqlite:///{0}/ledger.db", "SLURMKIT_CONFIG={0}/config.toml")
        environ = [one.format(self._folder) for one in named]
        return self.lab.run("env", *environ, "slurmkit", *words, user="", check=check)

    def rows(self, *words: str, check: bool = True) -> list[dict[str, Any]]:
        done = self.slurmkit(*words, "--json", check=check)
        return list(json.loads(done.stdout)["rows"])

    def apply(self) -> dict[str, Any]:
        """Read the jobs, set the limit; what was set for the account."""
        self.slurmkit("ledger", "ingest")
        (row,) = self.rows("allocation", "apply")
        assert row["problem"] is None
        return row

    def verify(self) -> dict[str, Any]:
        self.slurmkit("ledger", "ingest")
        (row,) = self.rows("allocation", "verify", check=False)
        return row


@pytest.fixture
def account(lab: Lab) -> Iterator[str]:
    """An account of its own, whose counter is 0, with one user. Its limits go with it."""
    name = f"{ACCOUNT}{int(time.time()) % 100_000}"
    lab.run("sacctmgr", "-i", "add", "account", name, user="")
    lab.run("sacctmgr", "-i", "add", "user", WHO, f"account={name}", user="")
    yield name
    lab.run("scancel", "--user", WHO, user="")
    wait_for(lambda: over(lab, name))
    lab.run("sacctmgr", "-i", "delete", "user", WHO, f"account={name}", user="", check=False)
    lab.run("sacctmgr", "-i", "delete", "account", name, user="", check=False)


@pytest.fixture
def books(lab: Lab) -> Iterator[Books]:
    folder = lab.run("mktemp", "-d", user="").stdout.strip()
    yield Books(lab, folder)
    lab.run("rm", "-r", folder, user="")


def submit(lab: Lab, account: str, *options: str, command: str = "sleep 2") -> str:
    words = ["sbatch", "--parsable", "--output=/dev/null", "--mem=64", f"--account={account}"]
    argv = [*words, "--partition=gpu", "--time=2", *options, f"--wrap={command}"]
    return lab.run(*argv, user=WHO).stdout.strip()


def state(lab: Lab, job: str) -> str:
    asked = ("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r")
    return lab.run(*asked, user="", check=False).stdout.strip()


def counter(lab: Lab, account: str) -> tuple[str, int]:
    """The account's limit and what slurmctld counted, asked for without slurmkit."""
    asked = ("scontrol", "show", "assoc_mgr", f"accounts={account}", "flags=assoc")
    text = lab.run(*asked, user="").stdout
    (own,) = [part for part in text.split("ClusterName=") if "UserName= " in part]
    found = _COUNTER.search(own)
    assert found, own
    return found["limit"], int(found["counted"])


def over(lab: Lab, account: str) -> bool:
    """None of their jobs is in the queue any more, and slurmdbd has heard of each end."""
    if lab.run("squeue", "-h", "-u", WHO, user="").stdout.strip():
        return False
    asked = ("sacct", "-D", "-X", "-n", "-P", "-a", "-A", account, "-S", "now-1days", "-o", "End")
    return "Unknown" not in lab.run(*asked, user="").stdout


def test_a_job_beyond_the_balance_waits_and_a_refund_lets_it_run(lab, books, account) -> None:
    books.slurmkit("ledger", "ingest")
    books.slurmkit(
        "allocation", "grant", "0.017", "--account", account, "--new", "--why", "a minute"
    )
    applied = books.apply()
    assert (applied["outcome"], applied["after"]) == ("set", 1)
    assert counter(lab, account) == ("1", 0)
    lost = submit(lab, account, "--gpus-per-node=2", command="sleep 40")
    wait_for(lambda: over(lab, account))
    assert counter(lab, account)[1] >= 1
    late = submit(lab, account, "--gpus-per-node=1", command="sleep 300")
    shown = wait_for(lambda: state(lab, late), lambda text: re.search("AssocGrp.*Minutes", text))
    assert shown.startswith("PENDING")

    def read_balance() -> dict[str, Any]:
        books.slurmkit("ledger", "ingest")
        (row,) = books.rows("balance", "--account", account)
        return row

    # slurmctld tells slurmdbd of a job that waits only some seconds later.
    balance = wait_for(read_balance, lambda row: row["reserved"])
    assert balance["left"] < 0
    assert balance["reserved"] == pytest.approx(2 / 60)
    books.slurmkit("allocation", "refund", lost, "--why", "node died")
    assert books.apply()["outcome"] == "set"
    wait_for(lambda: state(lab, late), lambda text: text.startswith("RUNNING"))


def test_ledger_and_slurm_count_the_same(lab: Lab, books: Books, account: str) -> None:
    """Jobs that end, are cancelled and are requeued: the same to the minute."""
    books.slurmkit("ledger", "ingest")
    books.slurmkit("allocation", "grant", "10", "--account", account, "--new", "--why", "call 3")
    assert books.apply()["outcome"] == "set"
    for number in range(6):
        submit(lab, account, f"--gpus-per-node={number % 2 + 1}", command=f"sleep {5 + number}")
    cancelled = submit(lab, account, "--gpus-per-node=2", "--time=30", command="sleep 1500")
    first_waits = '[ -n "$SLURM_RESTART_COUNT" ] || sleep 1500; sleep 60'
    again = submit(lab, account, "--gpus-per-node=1", "--requeue", "--time=30", command=first_waits)
    for job in (cancelled, again):
        wait_for(lambda job=job: state(lab, job), lambda text: text.startswith("RUNNING"))
    time.sleep(10)
    lab.run("scancel", cancelled, user=WHO)
    lab.run("scontrol", "requeue", again, user=WHO)
    lab.run("scontrol", "update", f"jobid={again}", "starttime=now", user="", check=False)
    wait_for(lambda: over(lab, account))
    compared = books.verify()
    limit, counted = counter(lab, account)
    (balance,) = books.rows("balance", "--account", account)
    assert counted >= 2
    assert abs(int(balance["used"] * 60) - counted) <= 1
    assert (compared["before"], compared["counted"]) == (int(limit), counted)
    assert abs(compared["difference"]) <= 1
    lab.run(
        "sacctmgr", "-i", "modify", "account", "where", f"name={account}", "set",
        "GrpTRESMins=gres/gpu=9999", user="",
    )  # fmt: skip
    other = wait_for(books.verify, lambda row: row["before"] == 9999)
    assert any("somebody else changed the limit" in cause for cause in other["causes"])
    assert books.apply()["outcome"] == "set"
    assert counter(lab, account)[0] == str(counted + other["left"])


@pytest.mark.slow
def test_three_hundred_random_jobs_over_the_end_of_an_allocation(
    lab: Lab, books: Books, account: str
) -> None:
    """Jobs end, are cancelled, requeued and refunded, while one allocation follows another."""
    chance = random.Random(7)
    now = datetime.now(UTC)
    turn = (now + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%S+00:00")
    usual = ("--account", account, "--new", "--why")
    books.slurmkit("ledger", "ingest")
    books.slurmkit("allocation", "grant", "20", *usual, "October", "--to", turn)
    books.slurmkit("allocation", "grant", "20", *usual, "November", "--from", turn)
    assert books.apply()["outcome"] == "set"
    jobs: list[str] = []
    for _ in range(30):
        jobs += submit_ten(lab, account, chance)
        for job in chance.sample(jobs, 2):
            act = chance.choice((("scancel",), ("scontrol", "requeue")))
            lab.run(*act, job, user=WHO, check=False)  # it may have ended
        time.sleep(2)  # so that jobs begin and end on both sides of the turn
    assert len(set(jobs)) == 300
    wait_for(lambda: over(lab, account))
    books.slurmkit("ledger", "ingest")
    refunded = 0
    for job in chance.sample(jobs, 40):
        done = books.slurmkit("allocation", "refund", job, "--why", "random", check=False)
        refunded += done.returncode == 0
    assert refunded > 5
    shown = books.rows("allocation", "show", "--account", account, "--all")
    each = [one for row in shown for one in row["allocations"]]
    assert {one["state"] for one in each} == {"in force", "ended"}
    assert all(one["used"] > 0 for one in each)
    used = 60 * sum(one["used"] for one in each)
    assert used >= 10
    # Slurm's counter lacks what sacct says of jobs that were requeued after they had ended.
    most, least = used + 1, used - 1 - ended_late(lab, account)
    # Slurm counts at each PriorityCalcPeriod.
    limit, counted = wait_for(lambda: counter(lab, account), lambda seen: least <= seen[1] <= most)
    compared = books.verify()
    assert any(cause.startswith("requeues: ") for cause in compared["causes"]) == (
        lab.release != "26.05"
    )
    # The limit is that of the first apply; since then an allocation began, and jobs were paid back.
    assert compared["before"] == int(limit)
    assert "the allocation was changed since the last apply" in compared["causes"], compared
    assert books.apply()["outcome"] == "set"
    after = books.verify()
    assert after["counted"] == counted
    assert abs(after["difference"]) <= 1, after


def ended_late(lab: Lab, account: str) -> float:
    """Return the GPU-minutes for which sacct has runs go on after the last of their steps.

    Before Slurm 26.05, sacct ends a job that had ended, and was requeued then, with the requeue.
    """
    asked = ("sacct", "-D", "-n", "-P", "-a", "-A", account, "-S", "now-1days")
    shown = lab.run(*asked, "-o", "JobIDRaw,State,Start,End,AllocTRES", user="").stdout
    late = 0.0
    for run in re.split(r"^(?=\d+\|)", shown, flags=re.MULTILINE):  # with its steps below it
        whole, *steps = [line.split("|") for line in run.splitlines()] or [["", "", "", "", ""]]
        gpus = re.search(r"gres/gpu=(\d+)", whole[4])
        if whole[1] == "REQUEUED" and gpus:
            last = max((step[3] for step in steps if step[3] != "Unknown"), default=whole[2])
            more = datetime.fromisoformat(whole[3]) - datetime.fromisoformat(last)
            late += int(gpus[1]) * max(more.total_seconds(), 0) / 60
    return late


def submit_ten(lab: Lab, account: str, chance: random.Random) -> list[str]:
    """Submit ten jobs with one command on the login node."""
    lines = []
    for _ in range(10):
        gpus, seconds = chance.randint(1, 2), chance.randint(0, 6)
        lines.append(
            f"sbatch --parsable --requeue --output=/dev/null --mem=16 --account={account}"
            f" --partition=gpu --time=2 --gpus-per-node=a100:{gpus} --wrap='sleep {seconds}'"
        )
    return lab.run("sh", "-c", "\n".join(lines), user=WHO).stdout.split()


def test_a_qos_refuses_what_is_beyond_the_balance(lab: Lab, books: Books, account: str) -> None:
    books.configure("qos", "refuse")
    qos = f"alloc_{account}"
    try:
        books.slurmkit("ledger", "ingest")
        books.slurmkit(
            "allocation", "grant", "0.1", "--account", account, "--new", "--why", "six minutes"
        )
        assert books.apply()["outcome"] == "set"
        flags = lab.run(
            "sacctmgr", "-nP", "show", "qos", qos, "format=flags,grptresmins", user=""
        ).stdout.strip()
        assert set(flags.split("|")[0].split(",")) == {"NoDecay", "DenyOnLimit"}
        assert flags.split("|")[1] == "gres/gpu=6"
        lab.run("sacctmgr", "-i", "modify", "account", account, "set", f"qos+={qos}", user="")
        words = ["sbatch", f"--account={account}", f"--qos={qos}", "--partition=gpu", "--time=10"]
        argv = [*words, "--gpus-per-node=1", "--output=/dev/null", "--wrap=true"]
        refused = wait_for(
            lambda: lab.run(*argv, user=WHO, check=False),
            lambda done: "Invalid qos" not in done.stderr,
        )
        assert refused.returncode != 0
        assert "QOS" in refused.stderr or "limit" in refused.stderr
        submit(lab, account, f"--qos={qos}", "--gpus-per-node=2", command="sleep 70")
        wait_for(lambda: over(lab, account))
        again = books.apply()
        assert (again["outcome"], again["after"]) == ("set", again["left"])
        assert again["counted"] >= 2
        compared = books.verify()
        assert (compared["before"], compared["counted"]) == (again["left"], 0)
        # More than is left, less than that with what was counted: only the limit is compared.
        beyond = again["left"] + 1
        words[4] = f"--time={beyond}"
        argv = [*words, "--gpus-per-node=1", "--output=/dev/null", "--wrap=true"]
        assert beyond <= again["left"] + again["counted"]
        refused = lab.run(*argv, user=WHO, check=False)
        assert refused.returncode != 0
        assert "QOS" in refused.stderr or "limit" in refused.stderr
    finally:
        lab.run("sacctmgr", "-i", "modify", "account", account, "set", f"qos-={qos}", user="",
                check=False)  # fmt: skip
        lab.run("sacctmgr", "-i", "delete", "qos", qos, user="", check=False)


def test_a_job_beyond_the_balance_runs_in_a_free_qos(lab: Lab, books: Books, account: str) -> None:
    """Without `safe` in AccountingStorageEnforce, jobs wait once the balance is used up."""
    books.configure("qos", "lower", '"scavenger"')
    qos = f"alloc_{account}"

    def reasons() -> dict[str, str]:
        shown = lab.run("squeue", "-h", "-u", WHO, "-o", "%i|%q|%T|%r", user="").stdout
        return dict(line.split("|", 1) for line in shown.splitlines())

    try:
        books.slurmkit("ledger", "ingest")
        books.slurmkit(
            "allocation", "grant", "0.02", "--account", account, "--new", "--why", "72 seconds"
        )
        assert books.apply()["outcome"] == "set"
        allowed = f"qos+={qos},scavenger"
        lab.run("sacctmgr", "-i", "modify", "account", account, "set", allowed, user="")
        wait_for(
            lambda: lab.run("sbatch", "--test-only", f"--account={account}", f"--qos={qos}",
                            "--wrap=true", user=WHO, check=False).stderr,
            lambda said: "Invalid qos" not in said,
        )  # fmt: skip
        given = (f"--qos={qos}", "--gpus-per-node=2", "--time=5")
        submit(lab, account, *given, command="sleep 45")
        wait_for(lambda: over(lab, account))
        beyond = submit(lab, account, *given, command="sleep 280")
        wait_for(reasons, lambda shown: shown[beyond] == f"{qos}|PENDING|QOSGrpGRESMinutes")
        books.slurmkit("ledger", "ingest")
        (move,) = json.loads(books.slurmkit("allocation", "apply", "--json").stdout)["moves"]
        assert (move["job"], move["user"], move["outcome"]) == (beyond, WHO, "moved")
        assert (move["minutes"], move["left"]) == (10, 0)
        wait_for(reasons, lambda shown: shown.get(beyond, "").startswith("scavenger|RUNNING"))
        time.sleep(2)
        lab.run("scancel", beyond, user=WHO)
        wait_for(lambda: over(lab, account))
        books.slurmkit("ledger", "ingest")
        report = ("report", "usage", "--by", "qos", "--account", account, "--format", "json")
        rows = json.loads(books.slurmkit(*report).stdout)["rows"]
        used = {row["qos"]: row["gpu_hours"] for row in rows}
        (row,) = books.rows("balance", "--account", account)
        assert used["scavenger"] > 0
        assert row["used"] == pytest.approx(used[qos], abs=0.01)
    finally:
        lab.run("sacctmgr", "-i", "modify", "account", account, "set", f"qos-={qos},scavenger",
                user="", check=False)  # fmt: skip
        lab.run("scancel", "--user", WHO, user="")
        lab.run("sacctmgr", "-i", "delete", "qos", qos, user="", check=False)
