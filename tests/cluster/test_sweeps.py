"""Sweeps on a real cluster: one array to their user, several to Slurm."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from guide_text import code_blocks
from waiting import PATIENCE

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
GUIDE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text("utf-8")
SMALL = "--partition=cpu --launch=none --mem=10M --time=5".split()
# Before the real one on the PATH, so that its calls can be counted.
COUNTED = '#!/bin/bash\necho "$@" >>"${0%/*}/sbatch.calls"\nexec /usr/bin/sbatch "$@"\n'
# How many run at each look, until nothing of the sweep is in the queue.
SAMPLED = """
while :; do
    left=$(squeue --noheader --me --name="$1" --format=%i) || continue
    [ -n "$left" ] || break
    squeue --noheader --me --name="$1" --states=RUNNING --format=%T | wc -l
    sleep 0.5
done
"""


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Iterator[str]:
    """Alice's, on the shared filesystem."""
    path = lab.run("mktemp", "-d", "/home/alice/sweeps.XXXXXX").stdout.strip()
    lab.run("tee", f"{path}/sbatch", input=COUNTED)
    lab.run("chmod", "+x", f"{path}/sbatch")
    yield path
    lab.run("scancel", "--me")
    lab.run("rm", "-r", path)


def within(lab: Lab, folder: str, command: str, **more: Any) -> Any:
    return lab.run("bash", "-c", f"cd {folder} && PATH={folder}:$PATH && {command}", **more)


def points(lab: Lab, sweep: str, *options: str) -> list[dict[str, Any]]:
    said = lab.run("slurmkit", "sweep", "show", sweep, "--json", *options).stdout
    found: list[dict[str, Any]] = json.loads(said)["rows"]
    return found


def settled(lab: Lab, sweep: str) -> list[dict[str, Any]]:
    """The points, once slurmdbd has heard of the last."""
    end = time.monotonic() + PATIENCE
    while True:
        found = points(lab, sweep)
        ended = all(p["state"] in {"COMPLETED", "FAILED"} for p in found)
        # slurmctld tells of a failure before slurmdbd has its code.
        unknown = any(p["state"] == "FAILED" and p["exit_code"] is None for p in found)
        in_doubt = unknown or any(" or " in (p["exit_code"] or "") for p in found)
        if (ended and not in_doubt) or time.monotonic() > end:
            return found
        time.sleep(1)


def run_large(lab: Lab, folder: str, count: int, throttle: int, bad: list[int]) -> str:
    """Run a sweep of so many points, of which some fail, to its end; returns its id."""
    lab.run("rm", "-f", f"{folder}/sbatch.calls")
    name = f"large-{count}"
    wrong = "|".join(map(str, bad))
    options = [*SMALL, f"--job-name={name}", "--output=/dev/null", f"--array-throttle={throttle}"]
    submit = (
        f"slurmkit submit --parsable {' '.join(options)} --sweep i=0..{count - 1}"
        f" -- sh -c 'case $i in {wrong}) exit 3;; esac'"
    )
    sweep = str(within(lab, folder, submit).stdout.strip())
    assert sweep.isdecimal()
    arrays = -(-count // 1001)
    calls = lab.run("cat", f"{folder}/sbatch.calls").stdout.splitlines()
    assert len(calls) == arrays + 1  # with one --test-only
    shown = lab.run("slurmkit", "queue", "--me", "--name", name).stdout.splitlines()
    assert len(shown) == 2
    assert shown[1].startswith(f"{sweep}_[")
    assert f"-{count - 1}%" in shown[1]
    sampled = within(lab, folder, f"bash -s {name}", input=SAMPLED, timeout=3000).stdout.split()
    running = list(map(int, sampled))
    assert running
    assert max(running) <= throttle
    return sweep


def run_again(lab: Lab, folder: str, sweep: str, count: int, bad: list[int]) -> None:
    found = settled(lab, sweep)
    assert [p["index"] for p in found] == list(range(count))
    assert [p["index"] for p in found if p["state"] == "FAILED"] == bad
    assert [p["parameters"]["i"] for p in found if p["exit_code"] == "3:0"] == list(map(str, bad))
    assert {p["state"] for p in found} == {"COMPLETED", "FAILED"}
    tally = f"{count - len(bad)} COMPLETED, {len(bad)} FAILED"
    shown = lab.run("slurmkit", "job", sweep).stdout
    assert tally in shown or ", ".join(reversed(tally.split(", "))) in shown
    done = lab.run("slurmkit", "wait", sweep, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    again = lab.run("slurmkit", "sweep", "rerun", sweep, "--parsable").stdout.strip()
    assert lab.run("slurmkit", "wait", again, check=False).returncode == 3
    task = "JobID,State"
    ids = again_ids(lab, again)
    rows = lab.run("sacct", "-XnPj", ids, "-o", task).stdout.split()
    assert len(rows) == len(bad)
    newest = {p["index"]: p["job_id"] for p in settled(lab, sweep)}
    assert {at for at, job_id in newest.items() if job_id.split("_")[0] in ids.split(",")} == set(
        bad
    )


def again_ids(lab: Lab, again: str) -> str:
    """Slurm's numbers for an array, by the comments of their submit lines."""
    said = lab.run("sacct", "-XnP", "--user=alice", "-o", "JobID,SubmitLine").stdout
    token = next(
        re.search(r"slurmkit-array:(\w+)", line)[1]  # type: ignore[index]
        for line in said.splitlines()
        if line.startswith((f"{again}_", f"{again}|"))
    )
    return ",".join(dict.fromkeys(re.findall(rf"^(\d+).*array:{token}", said, re.MULTILINE)))


@pytest.mark.timeout(3600)
def test_more_points_than_an_array_takes(lab: Lab, folder: str) -> None:
    bad = [7, 1005, 1199]
    sweep = run_large(lab, folder, 1200, 60, bad)
    run_again(lab, folder, sweep, 1200, bad)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_thousand_points(lab: Lab, folder: str) -> None:
    bad = [7, 1005, 2500, 4998]
    sweep = run_large(lab, folder, 5000, 60, bad)
    run_again(lab, folder, sweep, 5000, bad)


def test_fewer_at_once_than_arrays(lab: Lab, folder: str) -> None:
    """One of Slurm's arrays follows the other; a task is known by its number in the whole."""
    command = f"slurmkit submit --parsable {' '.join(SMALL)} --array=999-1002%1 --job-name=chained"
    command += " -- sh -c 'echo task $SLURMKIT_ARRAY_TASK_ID; sleep 2'"
    first = within(lab, folder, command).stdout.strip()
    assert lab.run("slurmkit", "wait", first).stdout == ""
    assert within(lab, folder, f"slurmkit log {first}_1002").stdout == "task 1002\n"
    assert within(lab, folder, f"slurmkit log {first}_999").stdout == "task 999\n"
    ids = again_ids(lab, first).split(",")
    assert len(ids) == 2
    times = lab.run("sacct", "-XnPj", ",".join(ids), "-o", "Start,End").stdout.split()
    spans = sorted(row.split("|") for row in times)
    assert len(spans) == 4
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_another_machine_knows_the_whole_by_its_comments(lab: Lab, folder: str) -> None:
    """Nothing is remembered there: an operator, or another home."""
    command = f"slurmkit submit --parsable {' '.join(SMALL)} --array=0-1500%2 --job-name=other"
    first = within(lab, folder, f"{command} -- sleep $SLURMKIT_ARRAY_TASK_ID").stdout.strip()
    queued = lab.run("env", "XDG_STATE_HOME=/nowhere", "slurmkit", "queue", first).stdout
    assert re.search(rf"^{first}_\[.*-1500%", queued, re.MULTILINE)
    assert len(queued.splitlines()) == 2
    asked = ("slurmkit", "why", first, "--no-alternatives")
    assert lab.run("env", "XDG_STATE_HOME=/nowhere", *asked).stdout.startswith(f"job {first}_[")
    said = lab.run("env", "XDG_STATE_HOME=/nowhere", "slurmkit", "cancel", first).stdout
    assert said == f"cancelled job {first}\n"
    assert lab.run("squeue", "--noheader", "--me", "--name=other", "--states=PD,R").stdout == ""


# --- the guide ------------------------------------------------------------------------------------


def test_the_guide(lab: Lab, folder: str) -> None:
    submit, from_file, rerun = code_blocks(GUIDE, "console")
    for kind in ("csv", "toml"):
        lab.run("tee", f"{folder}/points.{kind}", input=code_blocks(GUIDE, kind)[0])
    said = within(lab, folder, submit).stdout
    sweep = re.fullmatch(r"submitted job (\d+)\n", said)
    assert sweep
    lab.run("slurmkit", "wait", sweep[1], check=False)
    found = settled(lab, sweep[1])
    assert [p["parameters"]["seed"] for p in found if p["state"] == "FAILED"] == ["3", "3"]
    assert within(lab, folder, f"slurmkit log {sweep[1]}_2").stdout == "lr=1e-3 seed=2\n"
    planned = within(lab, folder, from_file).stderr
    assert "Points   4; no limit to how many run at once\n" in planned
    assert "Last     3: echo 1e-4 8 1\n" in planned
    toml = from_file.replace("points.csv --sweep seed=0..1", "points.toml")
    assert "Last     3: echo 1e-4 8 1\n" in within(lab, folder, toml).stderr
    again = within(lab, folder, rerun.replace("12", sweep[1])).stdout
    assert f"2 points of sweep {sweep[1]} again" in again
    lab.run("tee", f"{folder}/sweep.py", input=code_blocks(GUIDE, "python")[0])
    python = "/opt/slurmkit/venv/bin/python"
    assert within(lab, folder, f"{python} sweep.py").stdout == "COMPLETED\n"
