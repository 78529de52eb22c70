"""`slurmkit queue` on the real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
NAME = "queue test"


def queue(lab: Lab, *args: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(lab.run("slurmkit", "queue", "--json", *args).stdout)[
        "rows"
    ]
    return rows


def lines(lab: Lab, *args: str) -> list[str]:
    return lab.run("slurmkit", "queue", *args).stdout.splitlines()[1:]


@pytest.fixture(scope="module")
def array(lab: Lab) -> Iterator[str]:
    """An array of peggy's, two tasks of which run at a time."""
    options = ("--partition=cpu", "--array=1-9,20-40:10%2", "--time=60", f"--job-name={NAME}")
    script = "--wrap=sleep 3000"
    said = lab.run("sbatch", "--parsable", "--output=/dev/null", *options, script, user="peggy")
    job_id = said.stdout.strip()
    wait_for(lambda: sum(row["state"] == "RUNNING" for row in queue(lab, job_id)) == 2)
    yield job_id
    lab.run("scancel", job_id, user="peggy")


def test_an_array_is_one_row(lab: Lab, array: str) -> None:
    (line,) = lines(lab, array)
    assert line.split()[:4] == [f"{array}_[1-9,20,30,40%2]", "peggy", "vision", "cpu"]
    assert "R 2, PD 10" in line
    assert "c7 (JobArrayTaskLimit)" in line
    assert line.endswith(NAME)


def test_rows_as_squeue_gives_them(lab: Lab, array: str) -> None:
    rows = queue(lab, array)
    assert {row["name"] for row in rows} == {NAME}
    (waiting,) = [row for row in rows if "[" in row["job_id"]]
    assert waiting["state"] == "PENDING"
    assert waiting["reason"] == "JobArrayTaskLimit"
    running = [row for row in rows if row["state"] == "RUNNING"]
    assert sorted(row["job_id"] for row in running) == [f"{array}_1", f"{array}_2"]
    assert all(row["node_list"] == "c7" and row["started"] for row in running)


def test_tasks_one_by_one(lab: Lab, array: str) -> None:
    ids = [f"{array}_{n}" for n in (*range(1, 10), 20, 30, 40)]
    assert sorted(row["job_id"] for row in queue(lab, "--array", array)) == sorted(ids)
    shown = [line.split()[0] for line in lines(lab, "--array", "--sort", "jobid", array)]
    assert sorted(shown) == sorted(ids)


def test_a_task_by_its_id(lab: Lab, array: str) -> None:
    assert [row["job_id"] for row in queue(lab, f"{array}_30")] == [f"{array}_30"]


@pytest.mark.parametrize(
    "only",
    [
        ("--user", "peggy,zoe"),
        ("--partition", "mig,cpu"),
        ("--account", "Vision"),
        ("--qos", "normal"),
        ("--states", "PD,R"),
        ("--name", NAME.upper()),
        ("--nodelist", "c[6-7]"),
    ],
)
def test_conditions_that_it_meets(lab: Lab, array: str, only: tuple[str, str]) -> None:
    assert any(row["job_id"].startswith(f"{array}_") for row in queue(lab, *only))


@pytest.mark.parametrize(
    "only",
    [
        ("--user", "zoe"),
        ("--partition", "mig"),
        ("--account", "climate"),
        ("--qos", "high"),
        ("--states", "SUSPENDED"),
        ("--name", "another"),
        ("--nodelist", "c1"),
        ("--me",),
    ],
)
def test_conditions_that_it_does_not_meet(lab: Lab, array: str, only: tuple[str, ...]) -> None:
    assert not any(row["job_id"].startswith(f"{array}_") for row in queue(lab, *only))


@pytest.mark.parametrize(
    ("only", "says"),
    [
        (("--user", "peggy,nobody-here"), "there is no such user"),
        (("--partition", "cpu,nope"), "no such partition; there are gpu"),
        (("--account", "nope"), "no such account"),
        (("--qos", "nope"), "no such QOS; there are normal"),
        (("--states", "WAITING"), "--states WAITING: not a state"),
        (("--states", "all,PD"), "give all by itself, or one or more of"),
        (("--nodelist", "c7,c99"), "no node c99"),
        (("--reservation", "nope"), "no such reservation; there are none"),
    ],
)
def test_what_there_is_not_is_refused(lab: Lab, only: tuple[str, str], says: str) -> None:
    """squeue shows an empty list for most of these."""
    done = lab.run("slurmkit", "queue", *only, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


def test_ids_that_are_not_there_are_named(lab: Lab, array: str) -> None:
    done = lab.run("slurmkit", "queue", array, "987654", check=False)
    assert done.returncode == 1
    assert f"{array}_[" in done.stdout
    assert "not in the queue: 987654; see: slurmkit job 987654" in done.stderr
    alone = lab.run("slurmkit", "queue", "987654", check=False)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "not in the queue: 987654" in alone.stderr


# Interrupts a command, as Ctrl-C does, once it has printed so many lines that match a pattern.
INTERRUPT = """
set -m # else it would not heed interrupts
said=$(mktemp); trap 'rm "$said"' EXIT
"${@:3}" >"$said" 2>&1 &
until [ "$(grep -c "$2" "$said")" -ge "$1" ] || ! kill -0 $!; do sleep 0.2; done
kill -INT $!
wait $!
cat "$said"
"""


def test_watching_in_a_pipe(lab: Lab, array: str) -> None:
    """Pictures with their age, two seconds and more apart; ended from outside like by Ctrl-C."""
    watched = ("slurmkit", "queue", array, "--watch", "2")
    argv = ("bash", "-c", INTERRUPT, "bash", "3", "from squeue at", *watched)
    said = lab.run(*argv).stdout
    seen = re.findall(r"^(?:JOBID|.*from squeue at).*", said, re.MULTILINE)
    heads, notes = seen[0:6:2], seen[1:6:2]
    assert all(head.startswith("JOBID") for head in heads), said
    # After an answer that took long it pauses for longer.
    pauses = [re.search(r"; every ([\d.]+) s$", note) for note in notes]
    assert all(pause and float(pause[1]) >= 2 for pause in pauses), said
    times = [re.search(r"(\d+):(\d+):(\d+)", note) for note in notes]
    days = [int(at[1]) * 3600 + int(at[2]) * 60 + int(at[3]) for at in times if at]
    assert len(days) == 3, said
    assert all((after - before) % 86400 >= 2 for before, after in pairwise(days)), said
