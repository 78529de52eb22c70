"""Python functions as jobs of a cluster that is reached over SSH."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ssh_person import Person

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
GUIDE = (Path(__file__).parents[2] / "docs" / "from-my-laptop.md").read_text("utf-8")
PYTHON = "/opt/slurmkit/venv/bin/python"
LAPTOP = "/tmp/laptop"
# Whoever is there has nothing in common with the home on the cluster but the name.
SETUP = f"""
set -eu
umask 077
mkdir -p {LAPTOP}/home
cd {LAPTOP}
[ -e key ] || ssh-keygen -q -t ed25519 -N '' -C from-outside -f key
mkdir -p ~/.ssh
cat key.pub >>~/.ssh/authorized_keys
echo "127.0.0.1 $(cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub)" >known
cat >config <<'END'
Host lab
HostName 127.0.0.1
IdentityFile {LAPTOP}/key
IdentitiesOnly yes
UserKnownHostsFile {LAPTOP}/known
GlobalKnownHostsFile /dev/null
END
printf '[clusters.lab]\\nssh_config = "{LAPTOP}/config"\\n' >slurmkit.toml
printf 'FACTOR = 3\\ndef scaled(x):\\n    return FACTOR * x\\n' >own.py
"""
BEGIN = """
import json, os, signal, subprocess, sys, time
from slurmkit import Cluster, Executor

def executor(**more):
    return Executor(Cluster("lab"), **{"partition": "cpu", "time": "5", "mem": "100M", **more})

def answer(**found):
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def laptop(lab: Lab) -> Iterator[Lab]:
    """A machine with the nodes' Python, from which alice reaches the cluster over SSH alone."""
    lab.run("bash", "-c", SETUP)
    yield lab
    lab.run("scancel", "--me")
    lab.run("bash", "-c", f"sed -i '/ from-outside$/d' ~/.ssh/authorized_keys; rm -r {LAPTOP}")


def answer(lab: Lab, script: str) -> dict[str, Any]:
    env = (f"HOME={LAPTOP}/home", f"SLURMKIT_CONFIG={LAPTOP}/slurmkit.toml", "PATH=/usr/bin:/bin")
    command = f"cd {LAPTOP} && exec env -i {' '.join(env)} {PYTHON} -"
    said = lab.run("bash", "-c", command, input=BEGIN + script).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def test_a_map_from_a_laptop(laptop: Lab) -> None:
    """Each call stands for itself, as on the login node."""
    script = """
def call(x):
    if x % 50 == 7:
        raise ValueError(x)
    if x == 33:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.uname().nodename, x * x

with executor(max_workers=8) as made:
    futures = made.submit_all(call, range(200))
    found = []
    for future in futures:
        error = future.exception(400)
        found.append(type(error).__name__ if error else future.result())
answer(found=found, log=str(futures[0].log), job=futures[0].job)
"""
    got = answer(laptop, script)
    assert [each for each in got["found"] if isinstance(each, str)] == [
        "CallDied" if x == 33 else "ValueError" for x in (7, 33, 57, 107, 157)
    ]
    assert all(each[1] == x * x for x, each in enumerate(got["found"]) if isinstance(each, list))
    nodes = {each[0] for each in got["found"] if isinstance(each, list)}
    assert all(re.fullmatch(r"c\d", node) for node in nodes)
    assert got["log"].startswith("/home/alice/.local/state/slurmkit/calls/runs/")
    laptop.run("test", "-f", got["log"])
    again = f"""
futures = Executor.attach("{got["job"]}", Cluster("lab"))
found = [future.result() for future in futures[:5]]
for future in futures:
    future.exception(400)
Executor.forget("{got["job"]}", Cluster("lab"))
answer(found=found)
"""
    assert [each[1] for each in answer(laptop, again)["found"]] == [0, 1, 4, 9, 16]
    gone = laptop.run("ls", str(Path(got["log"]).parent), check=False)
    assert gone.returncode == 2


def test_own_modules_travel(laptop: Lab) -> None:
    script = """
import own
with executor() as made:
    found = made.submit(own.scaled, 4).result(400)
    where = made.submit(lambda: own.__file__).result(400)
answer(found=found, where=where)
"""
    found = answer(laptop, script)
    assert found["found"] == 12
    assert found["where"].startswith("/home/alice/.local/state/slurmkit/calls/code-")


def test_what_is_given_up_is_ended(laptop: Lab) -> None:
    script = """
made = executor()
future = made.submit(time.sleep, 600)
while not future.running():
    time.sleep(0.1)
future.cancel()
made.shutdown()
state = "RUNNING"
while state in ("RUNNING", "COMPLETING"):
    time.sleep(0.2)
    state = Cluster("lab").job(future.job).info().state
answer(state=state)
"""
    assert answer(laptop, script)["state"] == "CANCELLED"


def test_calls_go_on_after_a_requeue(laptop: Lab) -> None:
    script = """
from slurmkit import Resumable, checkpoint_wanted

def count(to, at=0, runs=()):
    runs = (*runs, os.environ.get("SLURM_RESTART_COUNT", "0"))
    while at < to or len(runs) < 2:
        if checkpoint_wanted():
            return Resumable(count, to, at, runs)
        time.sleep(0.1)
        at += 1
    return at, runs

with executor(on_timeout="requeue") as made:
    future = made.submit(count, 30)
    while not future.running():
        time.sleep(0.1)
    words = ("--cluster", "lab", "interrupt", future.job, "--as", "timeout")
    subprocess.run([sys.executable, "-m", "slurmkit", *words], check=True)
    at, runs = future.result(400)
answer(at=at, runs=runs)
"""
    found = answer(laptop, script)
    assert found["at"] >= 30
    assert len(found["runs"]) == 2


def test_the_guide(laptop: Lab) -> None:
    _, python = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    script = python.replace('"python3"', repr(PYTHON)) + "answer(done=True)\n"
    assert answer(laptop, script) == {"done": True}


def test_from_another_machine(lab: Lab, tmp_path: Path) -> None:
    """Whose Python is that of the nodes, or not: then both are named."""
    person = Person(lab, "alice", tmp_path)
    script = """
from slurmkit.errors import PythonDiffers
with executor(python="python3") as made:
    future = made.submit(lambda: list(sys.version_info[:2]))
    try:
        answer(found=future.result(400))
    except PythonDiffers as error:
        answer(found=str(error))
"""
    with person.let_in():
        done = subprocess.run(
            [sys.executable, "-"], input=BEGIN + script, env=person.env, cwd=tmp_path,
            capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["found"]
    theirs = lab.run("python3", "-c", "import sys; print(*sys.version_info[:2], sep='.')").stdout
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if theirs.strip() == here:
        assert found == list(sys.version_info[:2])
    else:
        assert f"the job's Python is {theirs.strip()} (" in found
        assert f"but the call was made with Python {here} ({sys.executable} on" in found
