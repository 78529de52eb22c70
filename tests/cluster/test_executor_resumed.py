"""A function that keeps where it stands, as a job of a real cluster that is asked to stop."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
PYTHON = "/opt/slurmkit/venv/bin/python"
# Three calls of a task: one before, one that counts until the job was interrupted, one after. The
# job's first run does not count the last of it.
BEGIN = """
import json, os, subprocess, time
from slurmkit import Executor, Resumable, checkpoint_wanted

def mark(call, at):
    with open(f"count{call}", "a") as file:
        print(at, file=file)
"""
ASKS = """
def count(call, at=0, runs=()):
    runs = (*runs, os.environ["SLURMKIT_RESTART"])
    while at < 60 if call == 1 else at < 3:
        if checkpoint_wanted():
            return Resumable(count, call, at, runs)
        time.sleep(0.1 if call == 1 else 0.01)
        if call == 1 and at == 59 and runs == ("0",):
            continue
        at += 1
        mark(call, at)
    assert runs == {0: ("0",), 1: ("0", "1"), 2: ("1",)}[call]
    return at
"""
OFTEN = """
def count(call, at=0):
    if at == (60 if call == 1 else 3):
        return at
    time.sleep(0.1 if call == 1 else 0.01)
    while call == 1 and at == 59 and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
        time.sleep(0.1)
    mark(call, at + 1)
    return Resumable(count, call, at + 1)
"""
END = """
made = Executor(partition="cpu", time="5", mem="100M", max_workers=1, **OPTIONS)
futures = made.submit_all(count, range(3))
while not os.path.exists("count1"):
    time.sleep(0.2)
subprocess.run([*COMMAND, futures[0].job_id], check=True)
found = [future.result(500) for future in futures]
states, end = futures[0].log.parent / "states", time.monotonic() + 300
while os.listdir(states) and time.monotonic() < end:  # its task ends after its last result
    time.sleep(0.2)
counted = [open(f"count{call}").read().split() for call in range(3)]
left = os.listdir(states)
print(json.dumps({"job": futures[0].job_id, "found": found, "left": left, "counted": counted}))
"""
LOST = """
made = Executor(partition="gpu", time="5", mem="100M", max_workers=1)
futures = made.submit_all(count, range(3))
with open("job", "w") as file:
    file.write(futures[0].job)
while not os.path.exists("count1"):
    time.sleep(0.2)
ask = ["squeue", "-h", "-j", futures[0].job_id, "-o", "%N"]
print(subprocess.run(ask, check=True, capture_output=True, text=True).stdout, flush=True)
"""
FOUND = """
futures = Executor.attach(open("job").read())
print(json.dumps([future.result(500) for future in futures]))
"""
POLICY = {"on_timeout": "requeue", "grace": 20, "restart_delay": 0}


@pytest.fixture
def folder(lab: Lab) -> Iterator[str]:
    """Alice's, on the shared filesystem."""
    path = lab.run("mktemp", "-d", "/home/alice/calls.XXXXXX").stdout.strip()
    yield path
    lab.run("rm", "-r", path)


def counted(lab: Lab, folder: str, function: str, command: list[str], **options: Any) -> str:
    """Let a task be interrupted while it counts; the id of its job, once all is there."""
    end = END.replace("OPTIONS", repr(options)).replace("COMMAND", repr(command))
    script = BEGIN + function + end
    said = lab.run("bash", "-c", f"cd {folder} && exec {PYTHON} -", input=script)
    got: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    assert got["found"] == [3, 60, 3]
    assert got["left"] == []
    for call, most in ((0, 3), (2, 3)):
        assert got["counted"][call] == [str(at + 1) for at in range(most)]
    slow = [int(at) for at in got["counted"][1]]
    assert slow == sorted(slow)
    again = len(slow) - 60  # the one that it had counted and not told yet when it was killed
    assert set(slow) == set(range(1, 61))
    assert again <= (0 if options else 1)
    return str(got["job"])


@pytest.mark.timeout(900)
def test_a_count_goes_on_after_a_rehearsed_time_limit(lab: Lab, folder: str) -> None:
    job_id = counted(lab, folder, ASKS, ["slurmkit", "interrupt", "--as", "timeout"], **POLICY)
    lab.run("slurmkit", "wait", job_id)  # its result is there before its end
    (shown,) = json.loads(lab.run("slurmkit", "job", job_id, "--json").stdout)["rows"]
    runs = shown["outcome"]["restarts"]
    assert [each["reason"] for each in runs] == ["timeout", "done"]
    assert (runs[0]["action"], runs[0]["exit_code"]) == ("requeue", 75)


@pytest.mark.timeout(900)
def test_a_count_goes_on_after_slurm_s_own_requeue(lab: Lab, folder: str) -> None:
    """No policy, and nobody warns: it says each time where it stands."""
    counted(lab, folder, OFTEN, ["scontrol", "requeue"])


EATS = """
def eat(at=0):
    if at < 3:
        time.sleep(0.2)
        mark(0, at)
        return Resumable(eat, at + 1)
    held = bytearray(200 << 20)
    time.sleep(8 if os.environ["SLURMKIT_RESTART"] != "0" else 250)  # until it is killed for it
    return at, os.environ["SLURMKIT_RESTART"]

with Executor(partition="cpu", time="5", mem="150M", on_oom="requeue", oom_max_mem="500M",
              restart_delay=0) as made:
    print(json.dumps(made.submit(eat).result(500)))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_memory_after_too_little(lab: Lab, folder: str) -> None:
    """Without memory cgroups, as here, Slurm ends the whole step."""
    script = BEGIN + EATS
    said = lab.run("bash", "-c", f"cd {folder} && exec {PYTHON} -", input=script)
    assert json.loads(said.stdout) == [3, "1"]
    assert lab.run("cat", f"{folder}/count0").stdout.split() == ["0", "1", "2"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_node_that_is_lost(lab: Lab, folder: str) -> None:
    """Nobody asks anything of the calls; no policy, either."""
    script = BEGIN + OFTEN + LOST
    begun = lab.run("bash", "-c", f"cd {folder} && exec {PYTHON} -", input=script)
    node = begun.stdout.strip()
    assert node
    subprocess.run(["docker", "kill", lab.container(node)], check=True, capture_output=True)
    try:
        script = BEGIN + FOUND
        said = lab.run("bash", "-c", f"cd {folder} && exec {PYTHON} -", input=script)
    finally:
        assert lab.up().returncode == 0
    assert json.loads(said.stdout.splitlines()[-1]) == [3, 60, 3]
    counts = [lab.run("cat", f"{folder}/count{call}").stdout.split() for call in range(3)]
    assert counts[0] == counts[2] == ["1", "2", "3"]
    assert len(counts[1]) <= 61
