"""Workflows on a real cluster: thirty jobs, a failing branch, a resume, a submit that is killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from guide_text import code_blocks
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
GUIDE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text("utf-8")
TRAINS = [f"train-{at:02}" for at in range(20)]
EVALS = [f"eval-{at}" for at in range(4)]
BROKEN = ["train-07", "merge", "report", "mail", *EVALS]


def thirty() -> str:
    """A fan-out of twenty, a fan-in, another fan-out; one train fails as long as there is no `ok`.

    Each job leaves a file of its name, a line for each time it ran.
    """
    after = {"prepare": [], **{name: ["prepare"] for name in TRAINS}, "merge": TRAINS}
    after |= {"report": ["merge"], "mail": ["report"], "mend": ["train-07:notok"]}
    after |= {**{name: ["merge"] for name in EVALS}, "stats": [f"{each}:any" for each in EVALS]}
    lines = ['name = "thirty"', "[defaults]", 'partition = "cpu"', 'time = "5"', 'mem = "500M"']
    for name, edges in after.items():
        runs = f"echo x >> ran/{name}" + (" && test -e ok" if name == "train-07" else "")
        lines += [f"[jobs.{name}]", f"after = {json.dumps(edges)}"]
        lines += [f"command = {json.dumps(['bash', '-c', runs])}"]
    assert len(after) == 30
    return "\n".join(lines)


@pytest.fixture
def folder(lab: Lab) -> Iterator[str]:
    """Alice's, on the shared filesystem, with the workflow and a place for marks."""
    path = lab.run("mktemp", "-d", "/home/alice/flow.XXXXXX").stdout.strip()
    lab.run("mkdir", f"{path}/ran")
    lab.run("tee", f"{path}/thirty.toml", input=thirty())
    yield path
    lab.run("bash", "-c", "slurmkit workflow cancel thirty", check=False)
    lab.run("scancel", "--user=alice", "--partition=cpu")
    lab.run("rm", "-r", path)


def flow(lab: Lab, folder: str, *words: str, check: bool = True) -> Any:
    argv = ("env", "-C", folder, "slurmkit", "workflow", *words)
    return lab.run(*argv, check=check, timeout=600)


def ids(lab: Lab, token: str) -> dict[str, str]:
    """The last of Slurm's ids of each job."""
    shown = json.loads(lab.run("slurmkit", "workflow", "show", token, "--json").stdout)
    return {job["name"]: job["ids"][-1] for job in shown["rows"]}


def states(lab: Lab, token: str) -> dict[str, str]:
    shown = json.loads(lab.run("slurmkit", "workflow", "show", token, "--json").stdout)
    return {job["name"]: job["state"] for job in shown["rows"]}


def ran(lab: Lab, folder: str) -> dict[str, int]:
    """How often each job ran."""
    said = lab.run("bash", "-c", f"cd {folder}/ran && wc -l * 2>/dev/null || :").stdout
    found = (line.split() for line in said.splitlines())
    return {name: int(count) for count, name in found if name != "total"}


def test_thirty_jobs_fail_in_one_branch_and_are_resumed(lab: Lab, folder: str) -> None:
    shown = flow(lab, folder, "plan", "thirty.toml")
    assert "after train-00 … train-19 (20 jobs)" in shown.stdout
    assert "30 jobs, at most" in shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    token = flow(lab, folder, "submit", "--parsable", "thirty.toml").stdout.strip()
    ended = flow(lab, folder, "wait", token, check=False)
    assert ended.returncode == 1
    assert "train-07: FAILED, exit code 1" in ended.stderr
    assert "merge: given up: train-07 FAILED" in ended.stderr
    found = states(lab, token)
    assert {name for name, state in found.items() if state != "COMPLETED"} == set(BROKEN)
    before = ran(lab, folder)
    assert before.keys() == (found.keys() - set(BROKEN)) | {"train-07"}

    lab.run("touch", f"{folder}/ok")
    resumed = flow(lab, "/tmp", "resume", token)
    assert f"{len(BROKEN)} jobs submitted" in resumed.stdout
    assert flow(lab, folder, "wait", token).returncode == 0
    assert set(states(lab, token).values()) == {"COMPLETED"}
    after = ran(lab, folder)
    assert len(after) == 30
    twice = [name for name, count in after.items() if count > 1]
    assert twice == ["train-07"]
    assert "nothing to resume" in flow(lab, folder, "resume", token).stderr


_HALTS = """#!/bin/sh
# sbatch until so many jobs are in the queue; then it waits for the end of what runs it.
if [ "$(squeue --me -h | wc -l)" -lt "$JOBS" ]; then exec /usr/bin/sbatch "$@"; fi
touch enough
while kill -0 "$PPID" 2>/dev/null; do sleep 0.1; done
"""


def killed(lab: Lab, folder: str, jobs: int) -> None:
    """Begin to submit with sbatch, and kill it with -9 once so many jobs are in the queue.

    By itself, `submit` would go on with PySlurm after 25 jobs, where it is installed.
    """
    lab.run("sh", "-c", f"mkdir {folder}/bin; cat >{folder}/bin/sbatch", input=_HALTS)
    lab.run("chmod", "+x", f"{folder}/bin/sbatch")
    lab.run(
        "bash",
        "-c",
        f"cd {folder}; export JOBS={jobs} PATH=$PWD/bin:$PATH SLURMKIT_BACKEND=commands;"
        " slurmkit workflow submit thirty.toml >/dev/null 2>&1 & pid=$!;"
        " until [ -e enough ]; do sleep 0.05; kill -0 $pid || exit; done;"
        " kill -9 $pid; wait $pid; :",
        timeout=600,
    )


def queue(lab: Lab) -> list[str]:
    return lab.run("squeue", "--me", "-h", "-o", "%T %r").stdout.splitlines()


@pytest.mark.parametrize("jobs", [1, 10, 29])
def test_a_killed_submit_leaves_nothing_that_runs(lab: Lab, folder: str, jobs: int) -> None:
    killed(lab, folder, jobs)
    time.sleep(5)
    there = queue(lab)
    assert jobs <= len(there) <= 30
    assert set(there) == {"PENDING JobHeldUser"}
    assert not ran(lab, folder)
    lab.run("touch", f"{folder}/ok")
    flow(lab, folder, "resume", "thirty")
    assert flow(lab, folder, "wait", "thirty").returncode == 0
    assert ran(lab, folder).items() >= {"prepare": 1, "merge": 1, "stats": 1}.items()
    assert set(ran(lab, folder).values()) == {1}


def test_a_killed_submit_can_be_cancelled(lab: Lab, folder: str) -> None:
    killed(lab, folder, 7)
    assert "cancelled workflow thirty" in flow(lab, folder, "cancel", "thirty").stdout
    time.sleep(5)
    assert not queue(lab)
    assert not ran(lab, folder)


def test_ctrl_c_takes_back_what_was_sent(lab: Lab, folder: str) -> None:
    """To the whole foreground group, as a terminal sends it: to sbatch, too."""
    script = (
        "import os, signal, subprocess, sys, time\n"
        "argv = ['slurmkit', 'workflow', 'submit', 'thirty.toml']\n"
        "done = subprocess.Popen(argv, start_new_session=True, stderr=subprocess.PIPE, text=True)\n"
        "queue = ['squeue', '--me', '-h']\n"
        "while len(subprocess.check_output(queue).splitlines()) < 9: pass\n"
        "os.killpg(done.pid, signal.SIGINT)\n"
        "print(done.communicate()[1], done.returncode)\n"
    )
    python = "/opt/slurmkit/venv/bin/python"
    said = lab.run("env", "-C", folder, python, "-c", script, timeout=600).stdout
    assert "nothing was started" in said
    assert said.split()[-1] in ("130", "1")
    time.sleep(3)
    assert not queue(lab)
    assert not ran(lab, folder)


def test_a_refusal_half_way_leaves_nothing(lab: Lab, folder: str) -> None:
    """A limit that came after the plan: sbatch refuses the eleventh job."""
    lab.run("sacctmgr", "-i", "modify", "user", "alice", "set", "maxsubmit=10", user="olga")
    try:
        refused = flow(lab, folder, "submit", "--force", "thirty.toml", check=False)
        assert refused.returncode
        assert "nothing was started: the 10 jobs sent before are cancelled" in refused.stderr
        planned = flow(lab, folder, "plan", "thirty.toml", check=False)
        assert planned.returncode == 2
        assert "the workflow has 30 jobs" in planned.stderr
    finally:
        lab.run("sacctmgr", "-i", "modify", "user", "alice", "set", "maxsubmit=-1", user="olga")
    assert not queue(lab)


POINTS = """name = "points"
[defaults]
partition = "cpu"
time = "5"
mem = "100M"
[jobs.train]
command = ["bash", "-c", "echo {i} >> ran/train; test {i} -lt 3 -o -e ok"]
sweep.grid.i = "0..5"
[jobs.join]
after = ["train"]
command = ["bash", "-c", "sort ran/train >ran/joined"]
"""


def test_of_a_sweep_only_the_points_that_failed_run_again(lab: Lab, folder: str) -> None:
    lab.run("tee", f"{folder}/points.toml", input=POINTS)
    token = flow(lab, folder, "submit", "--parsable", "points.toml").stdout.strip()
    assert flow(lab, folder, "wait", token, check=False).returncode == 1
    sweep = ids(lab, token)["train"]
    lab.run("touch", f"{folder}/ok")
    said = flow(lab, folder, "resume", token).stderr
    assert "to be submitted (2): train (only 3-5: the other tasks have completed), join" in said
    flow(lab, folder, "wait", token)
    ran = lab.run("cat", f"{folder}/ran/joined").stdout.split()
    assert ran == ["0", "1", "2", "3", "3", "4", "4", "5", "5"]
    points = json.loads(lab.run("slurmkit", "sweep", "show", sweep, "--json").stdout)["rows"]
    assert {point["state"] for point in points} == {"COMPLETED"}


def test_a_cancelled_workflow_starts_nothing_that_waited_for_any_end(lab: Lab, folder: str) -> None:
    text = (
        '[defaults]\npartition = "cpu"\ntime = "5"\n'
        '[jobs.long]\ncommand = ["sleep", "3000"]\n'
        '[jobs.next]\nafter = ["long:any"]\ncommand = ["touch", "ran/next"]\n'
        '[jobs.last]\nafter = ["next:any"]\ncommand = ["touch", "ran/last"]\n'
    )
    lab.run("tee", f"{folder}/chain.toml", input=text)
    flow(lab, folder, "submit", "chain.toml")
    flow(lab, folder, "cancel", "chain")
    flow(lab, folder, "wait", "chain", check=False)
    assert set(states(lab, "chain").values()) == {"CANCELLED"}
    assert not ran(lab, folder)


def test_the_guide(lab: Lab, folder: str) -> None:
    (toml,), (python,) = code_blocks(GUIDE, "toml"), code_blocks(GUIDE, "python")
    lab.run("tee", f"{folder}/digits.toml", input=toml)
    lab.run("tee", f"{folder}/twice.py", input=python)
    for commands in code_blocks(GUIDE, "slurmkit"):
        lab.run("bash", "-ec", f"cd {folder}\n{commands}", timeout=600)
    assert lab.run("cat", f"{folder}/result.txt").stdout == "20\n19\n"
    over = lab.run("slurmkit", "workflow", "cancel", "digits", check=False)
    assert over.returncode == 1
    assert "workflow digits has already ended" in over.stderr
    done = lab.run("env", "-C", folder, "/opt/slurmkit/venv/bin/python", "twice.py")
    assert done.stdout.splitlines() == [
        "COMPLETED",
        "{'first': 'COMPLETED', 'second': 'COMPLETED', 'both': 'COMPLETED'}",
    ]


BOOKED = ("--start", "now+2days", "--duration", "2:00:00", "--nodes", "c[1-2]", "--users", "alice")


def reservations(lab: Lab, *words: str, user: str, check: bool = True) -> Any:
    return lab.run("slurmkit", "reservations", *words, user=user, check=check)


def test_an_operator_creates_and_deletes_a_reservation(lab: Lab) -> None:
    shown = reservations(lab, "create", "flowtest", *BOOKED, "--dry-run", user="olga")
    assert "flowtest" not in lab.run("scontrol", "show", "reservation").stdout
    assert "scontrol create reservation ReservationName=flowtest" in shown.stdout
    reservations(lab, "create", "flowtest", *BOOKED, "--yes", user="olga")
    try:
        again = reservations(lab, "create", "flowtest2", *BOOKED, "--yes", user="olga", check=False)
        assert again.returncode == 2
        assert "it overlaps with flowtest" in again.stderr
        drawn = reservations(lab, "--days", "4", user="alice").stdout.splitlines()
        (bar,) = [line for line in drawn if "█" in line and line.startswith("flowtest")]
        assert bar.split()[1] == "you"
        (bar,) = [
            line
            for line in reservations(lab, "--days", "4", user="bob").stdout.splitlines()
            if line.startswith("flowtest") and "░" in line
        ]
        refused = reservations(lab, "delete", "flowtest", "--yes", user="alice", check=False)
        assert refused.returncode == 1
        assert "only operators of Slurm delete reservations; alice is not one" in refused.stderr
        used = ("--reservation", "flowtest", "--time", "5", "hostname")
        planned = lab.run("slurmkit", "plan", *used)  # though it begins in two days
        assert "--reservation=flowtest" in planned.stdout
        assert "(sbatch --test-only)" in planned.stderr
        job = lab.run("slurmkit", "submit", "--parsable", *used).stdout.strip()
        shown = reservations(lab, "delete", "flowtest", "--yes", user="olga", check=False)
        assert "1 job runs or waits in it" in shown.stdout
        assert "while jobs run or wait in it" in shown.stderr
        bare = lab.run("scontrol", "delete", "ReservationName=flowtest", user="olga", check=False)
        assert "Requested reservation is in use" in bare.stderr
        lab.run("scancel", job)
    finally:
        lab.run("scancel", "--user=alice", "--reservation=flowtest")
        reservations(lab, "delete", "flowtest", "--yes", user="olga")
    assert "flowtest" not in lab.run("scontrol", "show", "reservation").stdout


def test_a_user_creates_no_reservation(lab: Lab) -> None:
    refused = reservations(lab, "create", "mine", *BOOKED, "--yes", user="alice", check=False)
    assert refused.returncode == 1
    assert "only operators of Slurm create reservations; alice is not one" in refused.stderr
    assert "mine" not in lab.run("scontrol", "show", "reservation").stdout


def test_running_jobs_in_the_way_are_shown_and_slurm_agrees(lab: Lab) -> None:
    job = lab.run(
        "sbatch", "--parsable", "-p", "mps", "-t", "60", "--wrap", "sleep 3000", user="bob"
    ).stdout.strip()
    try:
        given = ("--start", "now+1minute", "--duration", "5", "--nodes", "c6", "--users", "bob")
        wait_for(lambda: "RUNNING" in lab.run("squeue", "-hj", job, "-o", "%T").stdout)
        refused = reservations(lab, "create", "busy", *given, "--yes", user="olga", check=False)
        assert refused.returncode == 2
        assert f"\n{job}  " in refused.stdout
        assert "--flags IGNORE_JOBS" in refused.stderr
        words = ("ReservationName=busy", "StartTime=now+1minutes", "Duration=5", "Nodes=c6")
        bare = lab.run(
            "scontrol", "create", "reservation", *words, "Users=bob", user="olga", check=False
        )
        assert "Requested nodes are busy" in bare.stderr
        flags = ("--flags", "IGNORE_JOBS", "--yes")
        reservations(lab, "create", "busy", *given, *flags, user="olga")
        reservations(lab, "delete", "busy", "--yes", user="olga")
    finally:
        lab.run("scancel", job, user="bob")


def test_kinds_of_dependencies_are_taken_by_slurm(lab: Lab) -> None:
    """Sent by Python, with handles and ids, and read back from squeue."""
    code = (
        "from slurmkit import Cluster, JobSpec, plan\n"
        "c = Cluster()\n"
        "s = JobSpec(command=('true',), partition='cpu', time='5', hold=True)\n"
        "send = lambda spec: c.submit(plan(spec, c, ask=False))\n"
        "import msgspec\n"
        "first = send(s)\n"
        "array = send(msgspec.structs.replace(s, array='0-1'))\n"
        "kinds = ('afterok', 'afterany', 'afternotok', 'after', 'afterburstbuffer')\n"
        "sent = [send(s.after(first, kind=kind)) for kind in kinds]\n"
        "sent += [send(msgspec.structs.replace(s, array='0-1').after(array, kind='aftercorr'))]\n"
        "sent += [send(s.after(first.id, kind='after', minutes=5).after(array.id))]\n"
        "sent += [send(msgspec.structs.replace(s, dependency='singleton'))]\n"
        "either = f'afterok:{first.id}?afterany:{array.id}'\n"
        "sent += [send(msgspec.structs.replace(s, dependency=either))]\n"
        "rows = {r.raw_id: r.dependency for r in c.queue().rows}\n"
        "for job in sent: print(rows[job.id].replace('(unfulfilled)', '')"
        ".replace(first.id, 'F').replace(array.id, 'A'))\n"
        "c.cancel([j.id for j in reversed([first, array, *sent])])\n"
    )
    said = lab.run("/opt/slurmkit/venv/bin/python", "-c", code).stdout
    assert said.splitlines() == [
        "afterok:F",
        "afterany:F",
        "afternotok:F",
        "after:F",
        "afterburstbuffer:F",
        "aftercorr:A_*",
        "after:F+5,afterok:A_*",
        "singleton",
        "afterok:F?afterany:A_*",
    ]
