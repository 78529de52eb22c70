"""What goes on now: sdiag as each release prints it, reservations, and jobs that are stuck."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmkit.doctor.activity import CHECKS, parse_sdiag
from slurmkit.doctor.case import Diagnosis
from slurmkit.doctor.checks import run_checks
from slurmkit.errors import Refused, SlurmError
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
SDIAG = (RECORDED / "24.11" / "sdiag.txt").read_text("utf-8")
# As src/sdiag/sdiag.c of 22.05 prints it while backfill runs.
BUSY = """\
*******************************************************
sdiag output at Sat Nov 21 13:50:32 2026 (1795269032)
Data since      Sat Nov 21 00:00:00 2026 (1795219200)
*******************************************************
Server thread count:  180
Agent queue size:     3
Agent count:          2
Agent thread count:   4
DBD Agent queue size: 0

Jobs submitted: 12

Main schedule statistics (microseconds):
\tLast cycle:   1999000
\tMax cycle:    2500000
\tTotal cycles: 4711
\tMean cycle:   310000
\tMean depth cycle:  150
\tCycles per minute: 5
\tLast queue length: 50123

Backfilling stats (WARNING: data obtained in the middle of backfilling execution.)
\tTotal backfilled jobs (since last slurm start): 99
\tLast cycle when: Sat Nov 21 13:30:00 2026 (1795267800)
\tLast cycle: 42000000
\tMax cycle:  61000000
\tMean cycle: 40100000
\tLast depth cycle: 9000
\tLast depth cycle (try sched): 812
\tDepth Mean: 8000
\tLast queue length: 50100
\tLast table size: 40

Latency for 1000 calls to gettimeofday(): 26 microseconds
"""
UP = "Slurmctld(primary) at ctld is UP\n"


def test_what_a_quiet_controller_prints() -> None:
    found = parse_sdiag(SDIAG)
    assert found.threads == 1
    assert found.agents == 0
    assert found.at
    assert found.since
    assert found.at > found.since
    assert found.main.count
    assert found.main.last is not None
    assert found.main.last < 1
    assert found.backfill.mean is None  # no cycle yet


def test_what_a_busy_controller_prints() -> None:
    found = parse_sdiag(BUSY)
    assert (found.threads, found.agents) == (180, 3)
    assert (found.main.last, found.main.mean, found.main.depth) == (1.999, 0.31, 150)
    assert (found.backfill.last, found.backfill.mean) == (42.0, 40.1)
    assert (found.backfill.depth, found.backfill.queue) == (812, 50100)
    assert found.backfill.when == 1795267800


@pytest.mark.parametrize("text", ["", "sdiag: error\n", "\x00\xff garbage"])
def test_what_is_something_else(text: str) -> None:
    with pytest.raises(SlurmError, match="sdiag does not print"):
        parse_sdiag(text)


def look(name: str, **answers: object) -> list[Diagnosis]:
    """What one check finds; answers by the word that tells the commands apart."""

    def scontrol(argv: Sequence[str], stdin: str | None) -> str:
        return UP if "ping" in argv else str(answers.get(argv[-1], ""))

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        mark = argv[-1].rpartition(":")[2]
        return str(answers.get("jobs", "")).replace("|", mark)

    def sdiag(argv: Sequence[str], stdin: str | None) -> str:
        said = answers.get("sdiag", SDIAG)
        if isinstance(said, Exception):
            raise said
        return str(said)

    slurm = FakeSlurm({"scontrol": scontrol, "squeue": squeue, "sdiag": sdiag})
    return list(run_checks(slurm, [check for check in CHECKS if check.name == name]))


def test_all_is_well() -> None:
    for check in CHECKS:
        (found,) = look(check.name)
        assert found.severity == "ok", found


def test_schedulers_that_are_slow() -> None:
    (main,), (fill,), (asked,) = (
        look(name, sdiag=BUSY) for name in ("scheduler", "backfill", "requests")
    )
    assert main.severity == "note"
    assert "last cycle 2.0 s, mean 310.0 ms" in main.message
    assert "50,123 in its queue" in main.message
    assert "sdiag of" in main.where
    assert fill.severity == "warning"
    assert "812 of 50,100 jobs tried" in fill.message
    assert "20:32 ago" in fill.message
    assert asked.severity == "warning"
    assert "180 threads" in asked.message


def test_one_is_not_several() -> None:
    lone = BUSY.replace("count:  180", "count:  1")
    (asked,) = look("requests", sdiag=lone)
    assert "1 thread for requests" in asked.message


def test_a_controller_that_tells_nobody() -> None:
    (found,) = look("scheduler", sdiag=Refused("sdiag: Access/permission denied"))
    assert found.severity == "unknown"
    assert "denied" in found.message


def test_reservations_of_now_and_soon() -> None:
    now = int(time.time())
    line = (
        "ReservationName={} StartTime={} EndTime={} Duration=00:30:00 Nodes={} NodeCnt=1"
        " Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES TRES=cpu=64 Users=alice"
        " Groups=(null) Accounts=(null) State=INACTIVE\n"
    )
    text = (
        line.format("running", now - 60, now + 60, "c[1-2]")
        + line.format("soon", now + 3600, now + 7200, "c7")
        + line.format("far", now + 90 * 86400, now + 91 * 86400, "c7")
    )
    running, soon = look("reservations", reservation=text)
    assert running.message.startswith("reservation running: c[1-2] until ")
    assert "for alice (MAINT,SPEC_NODES)" in running.message
    assert soon.message.startswith("reservation soon: c7 from ")


def test_jobs_that_wait_for_ever_are_told_by_reason() -> None:
    jobs = (
        "12|alice|DependencyNeverSatisfied|\n13|alice|DependencyNeverSatisfied|\n"
        "14|bob|DependencyNeverSatisfied|\n15|bob|Resources|\n16|bob|JobHeldUser|\n"
    )
    never, held = look("jobs-waiting", jobs=jobs)
    assert (never.severity, held.severity) == ("warning", "note")
    assert "3 pending for ever" in never.message
    assert "alice 2, bob 1; e.g. job 12" in never.message
    assert "never starts" in never.meaning


def test_a_job_that_does_not_end() -> None:
    now = int(time.time())
    jobs = f"21|alice|c1|{now - 3600}|\n22|bob|c2|{now - 10}|\n"
    (found,) = look("jobs-completing", jobs=jobs)
    assert "job 21 of alice has been completing on c1 for 1:00:0" in found.message


def test_a_job_without_its_node() -> None:
    nodes = (RECORDED / "24.11" / "gpus-nodes.txt").read_text("utf-8")
    name = nodes.partition("NodeName=")[2].split()[0]
    state = nodes.partition("State=")[2].split()[0]
    down = nodes.replace(f"State={state}", "State=DOWN", 1)
    jobs = f"31|31|alice|vision|RUNNING|{name}|1700000000|cpu=1|\n"
    (found,) = look("jobs-without-node", node=down, jobs=jobs)
    assert f"job 31 of alice runs on {name}, which is down" in found.message
    assert look("jobs-without-node", node=nodes, jobs=jobs)[0].severity == "ok"


def test_a_row_that_broke_off() -> None:
    (found,) = look("jobs-waiting", jobs="12|alice")
    assert found.severity == "unknown"
