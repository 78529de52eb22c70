"""Reports of what really ran: equal to sacct by hand and to sreport to the second."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.service, pytest.mark.timeout(1800)]

KEEPER = "slurmkit"
ROOM = 300  # seconds of an hour that a test may take


@pytest.fixture
def before(lab: Lab, books: str) -> dict[str, int]:
    """What became of the CPUs of this hour so far.

    Of reservations whose accounts were deleted since, sreport knows the CPUs no more.
    """
    await_hour()
    return reconciled(lab, books, "cpu")


@pytest.fixture
def reserved(lab: Lab, before: dict[str, int]) -> Iterator[str]:
    """A node that alice alone may use for some seconds, and does not; then it is free again."""
    assert before["ledger"] >= 0
    words = ["ReservationName=idle-gpus", "StartTime=now", "Duration=60", "Users=alice"]
    lab.run("scontrol", "create", "reservation", *words, "Nodes=c6", user="")
    yield "idle-gpus"
    lab.run("scontrol", "delete", "ReservationName=idle-gpus", user="", check=False)


def sbatch(lab: Lab, *options: str, seconds: int = 0, until: str = "") -> str:
    """Send a job that lasts some seconds, or until a file is there."""
    command = f"until [ -e {until} ]; do sleep 1; done" if until else f"sleep {seconds}"
    words = ["sbatch", "--parsable", "--output=/dev/null", "--time=60", *options]
    return lab.run(*words, f"--wrap={command}", user="alice").stdout.strip()


def sacct(lab: Lab, job: str) -> dict[str, str]:
    fields = ("State", "Start", "End", "Suspended", "ElapsedRaw", "AllocTRES")
    asked = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-D", "-X", "-n", "-P", "-j", job]
    found = lab.run(*asked, f"--format={','.join(fields)}", user="").stdout.splitlines()
    return dict(zip(fields, found[0].split("|"), strict=True)) if found else {"State": "unknown"}


def wait_until(lab: Lab, job: str, state: str) -> dict[str, str]:
    return wait_for(lambda: sacct(lab, job), lambda found: found["State"].startswith(state))


def await_hour() -> None:
    """Wait for the next hour when this one has no room for the test."""
    left = 3600 - time.time() % 3600
    if left < ROOM:
        time.sleep(left)


def test_the_books_equal_sacct_and_sreport_to_the_second(
    lab: Lab, books: str, before: dict[str, int], reserved: str
) -> None:
    end = lab.run("sh", "-c", 'mktemp -u "$HOME/end.XXXXXX"', user="alice").stdout.strip()
    ended = sbatch(lab, "--gres=gpu:a100:2", seconds=3)
    suspended = sbatch(lab, "--gres=gpu:a100:1", until=end)
    running = sbatch(lab, "--gres=gpu:h100:1", seconds=3000)
    try:
        wait_until(lab, suspended, "RUNNING")
        lab.run("scontrol", "suspend", suspended, user="")
        time.sleep(3)
        lab.run("scontrol", "resume", suspended, user="")
        wait_until(lab, running, "RUNNING")
        lab.run("touch", end, user="alice")
        facts = {job: wait_until(lab, job, "COMPLETED") for job in (ended, suspended)}
        lab.run("scontrol", "delete", f"ReservationName={reserved}", user="")
        wait_until(lab, running, "RUNNING")
        held = {
            job: (int(fact["End"]) - int(fact["Start"])) * count
            for (job, fact), count in zip(facts.items(), (2, 1), strict=True)
        }
        check_against_sreport(lab, books, before)
        check_against_sacct(lab, books, held)
    finally:
        lab.run("scancel", ended, suspended, running, user="", check=False)
        lab.run("rm", "-f", end, user="alice")


def test_what_a_job_was_suspended_for_between_two_ingests_is_explained(
    lab: Lab, books: str, before: dict[str, int]
) -> None:
    """`report reconcile --tres cpu` left -71 s of 21,693 on a cluster after two hours (B4)."""
    job = sbatch(lab, "--cpus-per-task=2", seconds=3000)
    try:
        wait_until(lab, job, "RUNNING")
        lab.run("slurmkit", "ledger", "ingest", "--db", books, user=KEEPER)
        suspend_for(lab, job, 3)
        while_it_runs = reconciled(lab, books, "cpu", before["unexplained"])
        assert is_as_before(while_it_runs, before["unexplained"]), while_it_runs
        suspend_for(lab, job, 4, books)
        lab.run("scancel", job, user="")
        fact = wait_until(lab, job, "CANCELLED")
    finally:
        lab.run("scancel", job, user="", check=False)
    after = reconciled(lab, books, "cpu", before["unexplained"])
    assert is_as_before(after, before["unexplained"]), after
    hours, minutes, seconds = map(int, fact["Suspended"].split(":"))
    lasted = int(fact["End"]) - int(fact["Start"])
    assert 7 <= hours * 3600 + minutes * 60 + seconds < lasted
    assert after["suspended"] < before["suspended"]


def suspend_for(lab: Lab, job: str, seconds: int, books: str = "") -> None:
    """Suspend a job for some seconds, and read it meanwhile if books are given."""
    lab.run("scontrol", "suspend", job, user="")
    if books:
        lab.run("slurmkit", "ledger", "ingest", "--db", books, user=KEEPER)
    time.sleep(seconds)
    lab.run("scontrol", "resume", job, user="")


def check_against_sreport(lab: Lab, books: str, before: dict[str, int]) -> None:
    gpus = reconciled(lab, books, "gres/gpu")
    assert gpus["running"] > 0
    assert gpus["suspended"] == 0  # sreport charges GPUs while their job is suspended, as we do
    assert gpus["unexplained"] == 0, gpus
    cpus = reconciled(lab, books, "cpu", before["unexplained"])
    assert cpus["suspended"] < before["suspended"]  # but not CPUs
    assert cpus["reservations"] > before["reservations"]
    assert is_as_before(cpus, before["unexplained"]), cpus
    assert gpus["ledger"] > 0
    assert cpus["ledger"] > before["ledger"]


def reconciled(lab: Lab, books: str, tres: str, unexplained: int = 0) -> dict[str, int]:
    """Three times at most: a job of somebody else may end between two of the questions."""
    for left in (2, 1, 0):
        lab.run("slurmkit", "ledger", "ingest", "--db", books, user=KEEPER)
        roll(lab)
        words = [*this_hour(), "--timezone", "UTC", "--tres", tres, "--db", books, "--json"]
        said = lab.run("slurmkit", "report", "reconcile", *words, user="").stdout
        rows = json.loads(said)["rows"]
        found = {row["what"]: row["seconds"] for row in rows}
        words = next(row["why"] for row in rows if row["what"] == "unexplained")
        found["dropped"] = int(dropped[1]) if (dropped := re.search(r"up to (\d+) s", words)) else 0
        if is_as_before(found, unexplained) or not left:
            break
        time.sleep(2)
    return found


def is_as_before(found: dict[str, int], unexplained: int) -> bool:
    """Slurmdbd may have dropped some seconds of the idle time of the reservation."""
    return 0 <= unexplained - found["unexplained"] <= found["dropped"]


def check_against_sacct(lab: Lab, books: str, held: dict[str, int]) -> None:
    for job, seconds in held.items():
        common = ["--month", month(), "--timezone", "UTC", "--job", job, "--db", books, "--json"]
        usage = json.loads(lab.run("slurmkit", "report", "usage", *common, user=KEEPER).stdout)
        assert usage["rows"][0]["gpu_hours"] == seconds / 3600
        runs = json.loads(lab.run("slurmkit", "report", "explain", *common, user=KEEPER).stdout)
        (row,) = runs["rows"]
        assert (row["job"], row["gpu_hours"]) == (job, seconds / 3600)
        explain_the_row(lab, books, row["row"])


def explain_the_row(lab: Lab, books: str, number: int) -> None:
    """The line that the books have is the one that sacct prints when it is asked again."""
    words = ["slurmkit", "report", "explain", "--row", str(number), "--db", books, "--json"]
    (found,) = json.loads(lab.run(*words, user=KEEPER).stdout)["rows"]
    again = lab.run("sh", "-c", found["command"], user="").stdout.splitlines()[1]
    kept = dict(zip(found["fields"], found["line"].split("|"), strict=True))
    now = dict(zip(found["fields"], again.split("|"), strict=True))
    for name in ("JobID", "User", "Account", "State", "Start", "End", "AllocTRES", "JobName"):
        assert kept[name] == now[name]
    if lab.release != "22.05":  # sacct has SLUIDs from 24.11 on
        asked = found["command"].partition(" --format=")[0]
        printed = lab.run("sh", "-c", f"{asked} --format=DBIndex,SLUID", user="").stdout
        assert f"{found['row']['db_index']}|{found['row']['sluid']}" in printed.splitlines()


def month() -> str:
    return time.strftime("%Y-%m", time.gmtime())


def this_hour() -> list[str]:
    """The hour that goes on: sreport tells of it only when it is all that is asked for."""
    begin = int(time.time()) // 3600 * 3600
    edges = [time.strftime("%Y-%m-%dT%H:00:00", time.gmtime(at)) for at in (begin, begin + 3600)]
    return ["--from", edges[0], "--to", edges[1]]


def roll(lab: Lab) -> None:
    """Have slurmdbd roll usage up to the end of this hour."""
    now = int(time.time())
    hours = (now - now % 3600 - 86400, now - now % 3600 + 3600)
    edges = [time.strftime("%Y-%m-%dT%H:00:00", time.gmtime(at)) for at in hours]
    lab.run("env", "TZ=UTC", "sacctmgr", "-i", "roll", *edges, user="")


def test_a_month_that_goes_on_is_not_closed(lab: Lab, books: str):
    lab.run("slurmkit", "ledger", "ingest", "--db", books, user=KEEPER)
    words = ["slurmkit", "ledger", "close", month(), "--timezone", "UTC", "--db", books]
    refused = lab.run(*words, user=KEEPER, check=False)
    assert refused.returncode == 2
    assert "is not over yet" in refused.stderr


def test_a_plan_says_how_long_jobs_like_it_waited(lab: Lab) -> None:
    """20 jobs of which most must wait for the only node, and what sacct says of each wait.

    Jobs of other tests that started there with a limit of more than a day are jobs like it.
    """
    options = ["--array=0-19", "--partition=cpu", "--exclusive", "--ntasks=1", "--time=1500"]
    job = sbatch(lab, *options, seconds=1)
    options = "-D -X -n -P -r cpu -q normal -S now-1days".split()
    asked = ["env", "SLURM_TIME_FORMAT=%s", "sacct", *options]
    fields = "--format=JobID,Eligible,Start,State,TimelimitRaw,AllocNodes"

    def started() -> list[list[str]]:
        lines = lab.run(*asked, fields, user="").stdout.splitlines()
        return [
            row
            for line in lines
            if (row := line.split("|"))[2].isdigit() and int(row[4]) > 1440 and row[5] == "1"
        ]

    def all_ended(rows: list[list[str]]) -> bool:
        ours = [row for row in rows if row[0].startswith(f"{job}_")]
        return [row[3] for row in ours] == ["COMPLETED"] * 20

    rows = wait_for(started, all_ended, 1200)
    waits = sorted(int(start) - int(eligible) for _, eligible, start, *_ in rows)
    given = ["--time", "1500", "--partition", "cpu", "--ntasks", "1", "--", "true"]
    folder = lab.run("mktemp", "-d", user="alice").stdout.strip()
    environment = ["env", f"SLURMKIT_DB=sqlite:///{folder}/ledger.db", f"XDG_CACHE_HOME={folder}"]
    lab.run(*environment, "slurmkit", "ledger", "ingest", user="alice")
    planned = lab.run(*environment, "slurmkit", "plan", "--json", *given, user="alice")
    (row,) = json.loads(planned.stdout)["rows"]
    told = row["estimate"]["past_waits"]
    at = [waits[math.ceil(len(waits) * part) - 1] for part in (0.5, 0.9)]
    assert (told["jobs"], told["half"], told["nine_in_ten"]) == (len(rows), *at)
    assert "(ledger)" in row["estimate"]["waited"]
    shown = lab.run(*environment, "slurmkit", "plan", *given, user="alice").stderr
    assert "Waited   half up to" in shown
    lab.run("rm", "-r", folder, user="alice")
