"""`why` of running jobs: it names the rank that is stopped or starved, and the GPU that is hot."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
FOLDER = "/home/alice/why-running"
NVML = "/opt/lab/nvml"  # the stub of the driver; on a real node the driver is on the usual path
# Four ranks that reduce a tensor for ever, each with a loader of its own. One of them stops, or its
# loader reads slowly, after some steps.
TRAIN = """
LAST = 21  # the step for which a slow loader has nothing
import os, signal, socket, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

how, who = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"rank {rank} pid {os.getpid()} host {socket.gethostname()}", flush=True)


class Samples(Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, number):
        if how == "starve" and rank == who and number >= LAST:
            time.sleep(600)
        return torch.ones(8)


# From Python 3.14 on, a loader by default imports this file anew.
loader = DataLoader(Samples(), num_workers=1, prefetch_factor=2, multiprocessing_context="fork")
for number, batch in enumerate(loader):
    if number <= LAST:
        print("at", number, flush=True)
    if how == "stop" and rank == who and number == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(batch)
    time.sleep(0.02)
"""
RUN = f"""#!/bin/bash
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) OMP_NUM_THREADS=1 USE_LIBUV=0
srun sh -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec python3 {FOLDER}/train.py "$@"' sh "$@"
"""
HOT = """#!/bin/bash
trap 'gpu-play idle' EXIT
trap exit TERM
IFS=, read -ra gpus <<<"$SLURM_JOB_GPUS"
gpu-play busy 90 memory 20G
gpu-play --gpu "${gpus[1]}" throttled hw_thermal temperature 91
echo plays
gpu-play --for 3000
"""
DATA = """#!/bin/bash
trap 'gpu-play idle' EXIT
trap exit TERM
gpu-play busy 4 memory 20G
for _ in {1..8}; do python3 -c 'while True: pass' & done
gpu-play --for 3000
"""
LOG = """#!/bin/bash
for _ in {1..10}; do date +%T; sleep 0.3; done
echo written
while true; do true; done
"""
FULL = """#!/bin/bash
exec python3 -c '
import time
held = bytes(range(256)) * (270 << 12)
print("full", flush=True)
time.sleep(600)'
"""
# Uses its CPUs, and its GPUs if it has some, and logs now and then: LINES seconds at most apart.
HEALTHY = """#!/bin/bash
trap 'gpu-play idle' EXIT
trap exit TERM
lines=$1 busy=$2 memory=$3
for _ in $(seq "$SLURM_CPUS_ON_NODE"); do python3 -c 'while True: pass' & done
if [ "$busy" != 0 ]; then gpu-play busy "$busy" memory "$memory" && gpu-play --for 3000 & fi
while sleep "$(shuf -i 1-"$lines" -n 1)"; do date +"%T step"; done
"""
# NCCL's RAS, as its user guide shows its answers; rank 5 is missing.
RAS_TEXT = """NCCL version 2.24.3 compiled with CUDA 12.6
CUDA runtime version 12060, driver version 12060

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         7         8         8   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (1a9ff4a9be1ee6c5) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 3487984 on node 172.16.64.213

Warnings
========

"""
RAS = f'''
import socketserver
TEXT = """{RAS_TEXT}"""
class Ras(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            word = line.decode().strip().lower()
            print(word, flush=True)
            if word.startswith("client protocol"):
                self.wfile.write(b"SERVER PROTOCOL 2\\n")
            elif word.startswith("timeout"):
                self.wfile.write(b"OK\\n")
            elif word == "verbose status":
                self.wfile.write(TEXT.encode())
                return
            else:
                self.wfile.write(b"ERROR: Unknown command\\n")
socketserver.ThreadingTCPServer.allow_reuse_address = True
server = socketserver.ThreadingTCPServer(("127.0.0.1", 28028), Ras)
print("listens", flush=True)
server.serve_forever()
'''
# Stands in for py-spy: the images have none. It says how it was called.
PY_SPY = """#!/bin/sh
echo "Process $4: called with $*"
echo 'Thread 1 (idle): "MainThread"'
echo '    train (train.py:30)'
"""


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Iterator[str]:
    lab.run("mkdir", "-p", FOLDER, f"{FOLDER}/bin")
    files = {"train.py": TRAIN, "run.sh": RUN, "hot.sh": HOT, "data.sh": DATA, "ras.py": RAS}
    files |= {"log.sh": LOG, "healthy.sh": HEALTHY, "full.sh": FULL}
    files["ras.sh"] = f"#!/bin/bash\nexec python3 {FOLDER}/ras.py\n"
    for name, text in {**files, "bin/py-spy": PY_SPY}.items():
        lab.run("tee", f"{FOLDER}/{name}", input=text)
    lab.run("chmod", "+x", f"{FOLDER}/bin/py-spy")
    yield FOLDER
    lab.run("rm", "-r", FOLDER, check=False)


class Jobs:
    """Jobs of alice's that run until the test ends."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ids: list[str] = []

    def submit(self, script: str, *words: str, options: str = "") -> str:
        usual = f"--parsable --time=60 --job-name=whyrun --output={FOLDER}/%j.out"
        argv = ("sbatch", *usual.split(), *options.split(), f"{FOLDER}/{script}", *words)
        self.ids.append(self.lab.run(*argv).stdout.strip())
        return self.ids[-1]

    def train(self, how: str, rank: int) -> str:
        """Four ranks on two nodes; returns when they are at the step that is the last, or go on."""
        options = "--partition=gpu --nodelist=c[1-2] --nodes=2 --ntasks-per-node=2 --mem=3G"
        job = self.submit("run.sh", how, str(rank), options=options)
        # The rank that stops says so before; the one whose loader is slow does not come so far.
        last, ranks = {"stop": (5, 4), "starve": (21, 3), "fine": (5, 4)}[how]
        self.wait_for_log(job, lambda text: len(re.findall(f"^at {last}$", text, re.M)) == ranks)
        time.sleep(2)  # and waits
        return job

    def wait_for_log(self, job: str, good: Callable[[str], object]) -> str:
        """The log of a job, once it is as it should be."""
        log = ("cat", f"{FOLDER}/{job}.out")
        return wait_for(lambda: self.lab.run(*log, check=False).stdout, good)

    def wait_for_start(self, job: str) -> None:
        asked = ("squeue", "-h", "-j", job, "-o", "%T")
        wait_for(lambda: self.lab.run(*asked).stdout, lambda said: said.startswith("RUNNING\n"))

    def pid_of(self, job: str, rank: int) -> str:
        """The process id of a rank, and its node, as the rank itself printed them."""
        text = self.lab.run("cat", f"{FOLDER}/{job}.out").stdout
        found = re.search(rf"^rank {rank} pid (\d+) host (\w+)$", text, re.M)
        assert found, text
        return f"{found[2]} (pid {found[1]})"

    def why(self, job: str, *words: str, path: str = "") -> dict[str, Any]:
        """What `slurmkit why --json` says."""
        path = f"PATH={path}:/usr/local/bin:/usr/bin:/bin" if path else "A=1"
        env = ("env", f"LD_LIBRARY_PATH={NVML}", path)
        shown = self.lab.run(*env, "slurmkit", "why", job, "--json", *words).stdout
        (row,) = json.loads(shown)["rows"]
        return row


@pytest.fixture
def jobs(lab: Lab, folder: str) -> Iterator[Jobs]:
    made = Jobs(lab)
    yield made
    lab.run("scancel", *made.ids, check=False)
    left = ("squeue", "-h", "-j", ",".join(made.ids))
    wait_for(lambda: not lab.run(*left, check=False).stdout.strip())


def kinds(found: dict[str, Any]) -> list[str]:
    return [each["kind"] for each in found["running"]["findings"]]


def test_a_stopped_rank_is_named_and_stays_stopped(jobs: Jobs) -> None:
    job = jobs.train("stop", 3)
    where = jobs.pid_of(job, 3)
    found = jobs.why(job)
    answer = f"job {job} is stuck: rank 3 on {where} is stopped (SIGSTOP), and the 3 others wait"
    assert found["answer"].startswith(answer), found
    ranks = found["running"]["ranks"]
    assert [(rank["rank"], rank["state"]) for rank in ranks][3] == (3, "T")
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert {jobs.pid_of(job, rank["rank"]) for rank in ranks} == {
        f"{rank['node']} (pid {rank['pid']})" for rank in ranks
    }
    node, pid = where.split(" (pid ")
    state = jobs.lab.run("ps", "-o", "state=", "-p", pid.rstrip(")"), user="", service=node).stdout
    assert state.strip() == "T"
    # The step of the probe is over, and the job's own step is not.
    steps = jobs.lab.run("squeue", "-h", "-s", "-j", job, "-o", "%i %j").stdout
    assert "slurmkit-why" not in steps
    assert f"{job}.0" in steps


def test_a_rank_whose_loader_is_slow_is_named(jobs: Jobs) -> None:
    job = jobs.train("starve", 2)
    found = jobs.why(job)
    assert kinds(found)[0] == "loader", found
    assert f"rank 2 on {jobs.pid_of(job, 2)}" in found["answer"]
    assert "the 3 others wait for it" in found["answer"]


def test_ranks_that_go_on_are_no_finding(jobs: Jobs) -> None:
    job = jobs.train("fine", 0)
    found = jobs.why(job)
    wrong = {"stopped", "blocked", "nccl", "asleep-all", "loader", "zombie", "memory"}
    assert not wrong & set(kinds(found)), found
    assert len(found["running"]["ranks"]) == 4


def test_a_log_that_has_gone_silent_is_named(jobs: Jobs) -> None:
    job = jobs.submit("log.sh", options="--partition=cpu --mem=500M")
    jobs.wait_for_log(job, lambda text: "written" in text)
    jobs.lab.run("touch", "--date=10 minutes ago", f"{FOLDER}/{job}.out")
    found = jobs.why(job)
    assert "silent" in kinds(found), found
    assert "10 min" in found["answer"], found


def test_a_job_near_its_memory_limit_outlives_the_look_at_it(jobs: Jobs) -> None:
    """Slurm samples memory here, and ends a job above its limit: a step of ours counts, too."""
    job = jobs.submit("full.sh", options="--partition=cpu --mem=300M")
    jobs.wait_for_log(job, lambda text: "full" in text)
    for words in ((), ("--stacks",)):
        found = jobs.why(job, *words)
        assert found["answer"].startswith(f"job {job} is near its memory limit: 2"), found
        assert not found["running"]["probed"]
        assert "so no step was started" in " ".join(found["notes"])
    steps = jobs.lab.run("sacct", "-n", "-P", "-j", job, "-o", "JobID,State").stdout
    assert f"{job}|RUNNING" in steps
    assert f"{job}.0" not in steps


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(5))
def test_healthy_jobs_are_no_finding(jobs: Jobs, batch: int) -> None:
    """Forty jobs, eight at a time, which is more than this machine has processors for."""
    chance = random.Random(batch)
    running = [healthy(jobs, chance) for _ in range(8)]
    for job in running:
        jobs.wait_for_log(job, lambda text: "step" in text or "at 5" in text)
    time.sleep(62)  # what may be normal in a first minute
    for job in running:
        found = jobs.why(job)
        assert kinds(found) == [], found
        assert "nothing unusual" in found["answer"], found


def healthy(jobs: Jobs, chance: random.Random) -> str:
    cpus, lines = chance.choice([1, 1, 2]), chance.choice([1, 5, 20])
    kind = chance.choice(["cpu", "cpu", "gpu", "gpu", "ranks"])
    if kind == "ranks":
        tasks = chance.choice([1, 2])
        return jobs.submit("run.sh", "fine", "0", options=f"-p cpu --ntasks={tasks} --mem=1G")
    usual = f"--cpus-per-task={cpus} --mem=500M"
    if kind == "cpu":
        return jobs.submit("healthy.sh", str(lines), "0", "0", options=f"-p cpu {usual}")
    busy, memory = str(chance.randint(60, 99)), f"{chance.randint(1, 60)}G"
    options = f"-p gpu --gres=gpu:a100:1 {usual}"
    return jobs.submit("healthy.sh", str(lines), busy, memory, options=options)


def test_a_hot_gpu_is_named(jobs: Jobs) -> None:
    options = "--partition=gpu --nodelist=c2 --gres=gpu:a100:2 --mem=1G"
    job = jobs.submit("hot.sh", options=options)
    jobs.wait_for_log(job, lambda text: "plays" in text)
    asked = ("scontrol", "show", "job", "-d", job)
    held = re.search(r"gpu:a100:2\(IDX:(\d+)[-,](\d+)\)", jobs.lab.run(*asked).stdout)
    assert held
    found = jobs.why(job)
    answer = f"job {job} is slow: GPU {held[2]} on c2 is throttled for heat (91 °C)"
    assert found["answer"] == answer, found


def test_a_job_without_enough_cpus_waits_for_its_data(jobs: Jobs) -> None:
    options = "--partition=gpu --nodelist=c1 --gres=gpu:a100:1 --cpus-per-task=2 --mem=1G"
    job = jobs.submit("data.sh", options=options)
    jobs.wait_for_start(job)
    time.sleep(62)  # in its first minute a job may still prepare itself
    found = jobs.why(job)
    assert kinds(found)[0] == "data", found
    assert found["answer"].startswith(f"job {job} waits for its data: GPUs 4 %, CPUs ")


def test_without_the_probe_the_job_has_no_step_more(jobs: Jobs) -> None:
    job = jobs.submit("run.sh", "fine", "0", options="--partition=cpu --ntasks=1 --mem=1G")
    jobs.wait_for_log(job, lambda text: "rank 0" in text)
    steps = ("sacct", "-n", "-P", "-j", job, "-o", "JobID,JobName")
    found = jobs.why(job, "--no-probe")
    assert found["running"]["ranks"] == []
    assert "slurmkit-why" not in jobs.lab.run(*steps).stdout
    assert jobs.why(job)["running"]["probed"] is True
    wait_for(lambda: jobs.lab.run(*steps).stdout, lambda said: "slurmkit-why" in said)


def test_a_colleague_sees_what_slurm_shows(jobs: Jobs, lab: Lab) -> None:
    job = jobs.submit("run.sh", "fine", "0", options="--partition=cpu --ntasks=1 --mem=1G")
    jobs.wait_for_start(job)
    shown = lab.run("slurmkit", "why", job, user="bob").stdout
    assert "only alice can look at the processes of this job" in shown
    assert "Ranks" not in shown


def test_nccl_is_asked_on_the_first_node_of_the_job(jobs: Jobs) -> None:
    job = jobs.submit("ras.sh", options="--partition=cpu --mem=1G")
    jobs.wait_for_log(job, lambda text: "listens" in text)
    found = jobs.why(job)
    assert kinds(found)[0] == "nccl", found
    assert "Missing communicator data from 1 job process" in found["answer"]
    assert "Rank 5" in found["answer"]
    heard = jobs.lab.run("cat", f"{FOLDER}/{job}.out").stdout.split("\n")
    assert heard[1:4] == ["client protocol 2", "timeout 4", "verbose status"]


def test_stacks_are_read_where_py_spy_is(jobs: Jobs) -> None:
    job = jobs.submit("run.sh", "fine", "0", options="--partition=cpu --ntasks=1 --mem=1G")
    jobs.wait_for_log(job, lambda text: "rank 0" in text)
    (stack,) = jobs.why(job, "--stacks")["running"]["stacks"]
    assert stack["problem"].startswith("py-spy is not installed: ")
    (stack,) = jobs.why(job, "--stacks", path=f"{FOLDER}/bin")["running"]["stacks"]
    pid = jobs.pid_of(job, 0).partition("(pid ")[2].rstrip(")")
    assert stack["lines"][0] == f"Process {pid}: called with dump --nonblocking --pid {pid}"
    assert "    train (train.py:30)" in stack["lines"]


@pytest.mark.slow
def test_stacks_of_the_real_py_spy(jobs: Jobs, tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path), "py-spy")
    subprocess.run(pip, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("py_spy-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith("/scripts/py-spy"))
        (tmp_path / "py-spy").write_bytes(packed.read(name))
    (tmp_path / "py-spy").chmod(0o755)
    jobs.lab.run("mkdir", "-p", f"{FOLDER}/real")
    there = f"{jobs.lab.container('login')}:{FOLDER}/real/py-spy"
    subprocess.run(["docker", "cp", str(tmp_path / "py-spy"), there], check=True)
    job = jobs.train("stop", 3)
    stacks = jobs.why(job, "--stacks", path=f"{FOLDER}/real")["running"]["stacks"]
    told = {stack["title"].split()[1]: "\n".join(stack["lines"]) for stack in stacks}
    assert set(told) == {"0", "1", "2", "3"}, stacks
    # The one that is stopped is where it stopped itself; the others add up, and wait for it.
    assert "<module> (train.py:29)" in told["3"], told["3"]
    assert all("all_reduce" in told[rank] for rank in "012"), told


def raw_id(jobs: Jobs, array: str) -> str:
    """Slurm's own number of the only task of an array, once it runs."""
    asked = ("squeue", "-h", "-j", array, "-t", "R", "-o", "%A")
    wait_for(lambda: jobs.lab.run(*asked).stdout)
    return jobs.lab.run(*asked).stdout.strip()


def test_a_task_of_an_array_and_a_part_of_a_het_job_are_looked_into(jobs: Jobs) -> None:
    array = jobs.submit("run.sh", "fine", "0", options="-p cpu --ntasks=1 --mem=1G --array=3")
    usual = f"--parsable --time=60 --output={FOLDER}/%j.out"
    het = jobs.lab.run(
        "sbatch", *usual.split(), "-p", "cpu", "--mem=500M", ":", "-p", "gpu", "--mem=500M",
        input="#!/bin/bash\nsrun --het-group=0,1 sh -c 'echo up; exec sleep 3000'\n",
    ).stdout.strip()  # fmt: skip
    jobs.ids.append(het)
    jobs.wait_for_log(het, lambda text: text.count("up") == 2)
    raw = raw_id(jobs, array)
    jobs.wait_for_log(raw, lambda text: "rank 0" in text)
    for part in (f"{array}_3", f"{het}+0", f"{het}+1"):
        found = jobs.why(part)
        assert found["running"]["probed"] is True, found
        assert found["running"]["ranks"], found
