"""A counter that is ended in each way there is, on a real Slurm: it resumes and ends right."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

GUIDE = (Path(__file__).parents[2] / "docs" / "survive.md").read_text("utf-8")
# Counts a fifth of a second for a fifth of a second; writes where it stands when it is asked, and
# now and then. With a third word, its first run does not count the last.
COUNTER = """
import os, signal, sys, time
target, way = int(sys.argv[1]), sys.argv[2]
run = os.environ["SLURMKIT_RESTART"]
def save(*_):
    with open(f".count.{run}", "w") as file: file.write(str(count))
    os.replace(f".count.{run}", "count")
    with open("trace", "a") as file: file.write(f"{run} {count} {os.uname().nodename}\\n")
def stop(*_):
    save(); print("saved", count, flush=True); os._exit(0 if way == "exits-0" else 75)
count = int(open("count").read()) if os.path.exists("count") else 0
print("run", run, "from", count, "after", os.environ["SLURMKIT_RESTART_REASON"] or "-", flush=True)
if way != "deaf":
    for each in (signal.SIGUSR1, signal.SIGTERM): signal.signal(each, stop)
if way == "fails": sys.exit(3)
if way == "eats":
    held = bytearray(200 << 20)
    time.sleep(8 if run != "0" else 250)  # until it is killed for it
stays = run == "0" and len(sys.argv) > 3
while count < target:
    time.sleep(0.2)
    if not stays or count + 1 < target: count += 1
    if way == "deaf" or count % 5 == 0: save()
save()
asked = os.environ["SLURMKIT_CHECKPOINT_FILE"]
if os.path.exists(asked): os.remove(asked)
print("counted", count, flush=True)
"""
ALL = "--on-timeout requeue --on-preempt requeue --on-node-fail requeue --restart-delay 0"


class Counter:
    """A folder of alice's with the counter, and its job."""

    def __init__(self, lab: Lab, folder: str) -> None:
        self.lab = lab
        self.folder = folder
        self.jobs: list[str] = []
        lab.run("sh", "-c", f"cat >{folder}/counter.py", input=COUNTER)

    def submit(self, words: str, target: int, way: str = "exits") -> str:
        command = f"cd {self.folder} && slurmkit submit --parsable {words}"
        done = self.lab.run("sh", "-c", f"{command} -- python3 counter.py {target} {way} stays")
        self.jobs.append(done.stdout.strip())
        return self.jobs[-1]

    def show(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = json.loads(self.lab.run("slurmkit", "job", job_id, "--json").stdout)["rows"]
        return found

    def log(self, job_id: str) -> str:
        return self.lab.run("cat", f"{self.folder}/slurm-{job_id}.out", check=False).stdout

    def await_log(self, job_id: str, pattern: str) -> str:
        return wait_for(lambda: self.log(job_id), lambda log: re.search(pattern, log))

    def await_count(self, run: str, place: str = ".") -> None:
        """Until a run has written down where it stands: it counts, and heeds signals."""
        wait_for(lambda: any(line[0] == run for line in self.trace(place)))

    def trace(self, place: str = ".") -> list[list[str]]:
        said = self.lab.run("cat", f"{self.folder}/{place}/trace", check=False).stdout
        return [line.split() for line in said.splitlines()]

    def ended(self, job_id: str, target: int) -> list[dict[str, Any]]:
        """Wait for a good end; its history."""
        self.lab.run("slurmkit", "wait", job_id)
        assert f"counted {target}\n" in self.log(job_id)
        counts = [int(count) for _, count, _ in self.trace()]
        assert counts == sorted(counts)
        found: list[dict[str, Any]] = self.show(job_id)["outcome"]["restarts"]
        assert found[-1]["reason"] == "done"
        return found


@pytest.fixture
def counter(lab: Lab) -> Iterator[Counter]:
    made = Counter(lab, lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip())
    yield made
    if made.jobs:
        lab.run("scancel", "-Q", *made.jobs, check=False)
    lab.run("rm", "-r", made.folder, check=False)


def admin(lab: Lab, *words: str) -> str:
    return lab.run(*words, user="", service="ctld").stdout


def on(lab: Lab, job_id: str) -> str:
    """The node on which a job runs."""
    ask = ("squeue", "-h", "-j", job_id, "-t", "R", "-o", "%N")
    return wait_for(lambda: lab.run(*ask, check=False).stdout, str.strip).strip()


@pytest.mark.slow
def test_a_time_limit(counter: Counter) -> None:
    after = f"{ALL} --partition cpu --checkpoint-signal USR1 --grace 10 --time 2"
    job_id = counter.submit(after, 800)
    follows = counter.lab.run(
        "slurmkit", "submit", "--parsable", "--partition", "cpu", "--time", "2", "--chdir",
        counter.folder, "--dependency", f"afterok:{job_id}", "--", "echo", "followed",
    ).stdout.strip()  # fmt: skip
    counter.jobs.append(follows)
    history = counter.ended(job_id, 800)
    assert {each["reason"] for each in history[:-1]} == {"timeout"}
    assert "back to the queue" in counter.log(job_id)
    counter.lab.run("slurmkit", "wait", follows)
    assert counter.log(follows) == "followed\n"
    said = counter.lab.run("slurmkit", "job", job_id).stdout
    assert "run 0" in said
    assert "timeout: back to the queue" in said


def test_sigterm_to_the_batch_shell_alone(counter: Counter) -> None:
    job_id = counter.submit(f"{ALL} --partition cpu --time 10", 6000)
    counter.await_count("0")
    counter.lab.run("scancel", "--batch", "--signal=TERM", job_id)
    assert counter.lab.run("slurmkit", "wait", job_id, check=False).returncode != 0
    assert "cancelled: not requeued" in counter.log(job_id)
    assert "counted 6000" not in counter.log(job_id)


@contextmanager
def scavengers(lab: Lab, mode: str, grace: int, *, signal: bool) -> Iterator[None]:
    """What becomes of preempted jobs, and whether their batch shell is told."""
    qos = ("sacctmgr", "-i", "modify", "qos", "scavenger", "set")
    settings = "/etc/slurm/slurmkit.conf"
    mark = 90_000 + int(time.time()) % 10_000  # slurmctld shows no GraceTime
    try:
        admin(lab, *qos, f"PreemptMode={mode}", f"GraceTime={grace}", f"GrpSubmitJobs={mark}")
        if signal:
            line = "PreemptParameters=send_user_signal"
            if lab.release == "22.05":
                line = "SlurmctldParameters=preempt_send_user_signal"
            admin(lab, "sh", "-c", f"echo {line} >>{settings} && scontrol reconfigure")
        show = ("scontrol", "show", "assoc_mgr", "qos=scavenger", "flags=qos")
        wait_for(lambda: f"GrpSubmitJobs={mark}(" in admin(lab, *show))
        yield
    finally:
        admin(lab, *qos, "PreemptMode=requeue", "GraceTime=0", "GrpSubmitJobs=-1")
        if signal:
            admin(lab, "sh", "-c", f"sed -i /send_user_signal/d {settings}; scontrol reconfigure")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "grace", "signal"),
    [("requeue", 0, False), ("requeue", 20, False), ("requeue", 20, True), ("cancel", 20, False),
     ("cancel", 20, True), ("cancel", 0, False)],
)  # fmt: skip
def test_a_preemption(counter: Counter, mode: str, grace: int, signal: bool) -> None:
    lab = counter.lab
    with scavengers(lab, mode, grace, signal=signal):
        after = f"{ALL} --partition cpu --qos scavenger --exclusive --checkpoint-signal USR1"
        job_id = counter.submit(f"{after} --time 30", 100, "exits-0")
        on(lab, job_id)
        counter.await_count("0")
        words = "--partition cpu --qos high --exclusive --time 2 --wait"
        above = f"cd {counter.folder}; slurmkit submit {words} -- sleep 5"
        lab.run("sh", "-c", above)
        history = counter.ended(job_id, 100)
    reasons = [each["reason"] for each in history]
    assert reasons[0] == "preempt"
    assert set(reasons[1:]) == {"done"}  # Slurm 24.11 runs it once more after a grace, which ends
    requeues = counter.log(job_id).count("preempt: back to the queue")
    assert requeues == (0 if mode == "requeue" else 1), counter.log(job_id)
    assert "run 1 from 0 after preempt" not in counter.log(job_id)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["down", "killed"])
def test_a_node_that_is_lost(counter: Counter, way: str) -> None:
    lab = counter.lab
    job_id = counter.submit(f"{ALL} --partition gpu --time 30", 100)
    counter.await_log(job_id, "run 0 from 0")
    node = on(lab, job_id)
    counter.await_count("0")
    try:
        if way == "down":
            admin(lab, "scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        else:
            subprocess.run(["docker", "kill", lab.container(node)], check=True, capture_output=True)
        history = counter.ended(job_id, 100)
    finally:
        if way == "down":
            back = ("scontrol", "update", f"nodename={node}", "state=resume")
            lab.run(*back, user="", service="ctld", check=False)  # slurmd may have done it
        else:
            assert lab.up().returncode == 0
    assert history[0]["nodes"] == node
    assert [each["reason"] for each in history] == ["node-fail", "done"]
    assert (history[1]["nodes"] == node) <= (way == "down")  # which slurmd itself brings up again


@pytest.mark.slow
def test_a_stale_run_writes_no_checkpoint_once_the_next_has_begun(counter: Counter) -> None:
    lab = counter.lab
    job_id = counter.submit(f"{ALL} --partition gpu --time 30", 400, "deaf")
    counter.await_log(job_id, "run 0 from 0")
    node = on(lab, job_id)
    pid = lab.run("pgrep", "-o", "slurmd", user="", service=node).stdout.strip()
    lab.run("kill", "-STOP", pid, user="", service=node)  # its steps go on
    try:
        counter.await_log(job_id, "run 1 from")
        time.sleep(10)
        runs = [run for run, _, _ in counter.trace()]
        assert set(runs) == {"0", "1"}
        assert runs == sorted(runs)
        history = counter.ended(job_id, 400)
    finally:
        lab.run("kill", "-CONT", pid, user="", service=node)
    assert [each["reason"] for each in history] in (["stale", "done"], ["node-fail", "done"])
    wait_for(
        lambda: lab.run("sinfo", "-h", "-n", node, "-o", "%T").stdout, lambda s: "down" not in s
    )


@pytest.mark.slow
def test_out_of_memory(counter: Counter) -> None:
    more = "--on-oom requeue --oom-max-mem 500M --restart-delay 0 --partition cpu --time 20"
    job_id = counter.submit(f"{more} --mem 150M", 20, "eats")
    history = counter.ended(job_id, 20)
    assert [each["reason"] for each in history] == ["oom", "done"], counter.log(job_id)
    assert "with 300 MiB" in history[0]["words"]


def test_an_error_of_the_command_is_not_requeued(counter: Counter) -> None:
    job_id = counter.submit(f"{ALL} --on-oom requeue --partition cpu --time 20", 20, "fails")
    assert counter.lab.run("slurmkit", "wait", job_id, check=False).returncode == 3
    assert counter.show(job_id)["outcome"]["runs"][0]["state"] == "FAILED"
    assert counter.log(job_id).count("run 0 from") == 1


def test_a_loop_stops_at_its_limit_and_a_rehearsal_is_one(counter: Counter) -> None:
    lab = counter.lab
    words = f"{ALL} --max-restarts 1 --checkpoint-signal USR1 --partition cpu --time 20"
    job_id = counter.submit(words, 10_000)
    counter.await_log(job_id, "run 0 from 0")
    counter.await_count("0")
    lab.run("slurmkit", "interrupt", job_id, "--as", "timeout")
    counter.await_log(job_id, "run 1 from [1-9][0-9]* after timeout")
    counter.await_count("1")
    lab.run("slurmkit", "interrupt", job_id, "--as", "preempt")
    assert lab.run("slurmkit", "wait", job_id, check=False).returncode == 75
    history = counter.show(job_id)["outcome"]["restarts"]
    assert [(each["reason"], each["action"]) for each in history] == [
        ("timeout", "requeue"), ("preempt", "limit")
    ]  # fmt: skip


def test_a_rehearsal_of_a_job_without_policy_is_refused(counter: Counter) -> None:
    lab = counter.lab
    command = f"cd {counter.folder} && slurmkit submit --parsable --partition cpu --time 20"
    job_id = lab.run("sh", "-c", f"{command} -- sleep 1000").stdout.strip()
    counter.jobs.append(job_id)
    on(lab, job_id)
    done = lab.run("slurmkit", "interrupt", job_id, "--as", "timeout", check=False)
    assert done.returncode == 2
    assert "was submitted without an --on-… option" in done.stderr
    assert lab.run("squeue", "-h", "-j", job_id, "-o", "%T").stdout.strip() == "RUNNING"


def test_an_ending_that_is_held(counter: Counter) -> None:
    lab = counter.lab
    words = "--on-timeout hold --checkpoint-signal USR1 --partition cpu --time 20"
    job_id = counter.submit(words, 60)
    counter.await_count("0")
    lab.run("slurmkit", "interrupt", job_id, "--as", "timeout")
    look = ("scontrol", "show", "job", job_id)
    wait_for(lambda: lab.run(*look).stdout, lambda said: "Priority=0" in said and "PENDING" in said)
    lab.run("slurmkit", "release", job_id)
    history = counter.ended(job_id, 60)
    assert [each["action"] for each in history[:-1]] == ["hold"]


def test_a_task_of_an_array_and_a_whole_script(counter: Counter) -> None:
    lab = counter.lab
    work = "mkdir -p $SLURM_ARRAY_TASK_ID; cd $SLURM_ARRAY_TASK_ID; srun -n1 python3 ../counter.py"
    first = "[ $SLURM_ARRAY_TASK_ID = 0 ] || stays=stays"
    script = f"#!/bin/bash\n#SBATCH --time=20\n{first}\n{work} 40 exits $stays\necho after $?\n"
    lab.run("sh", "-c", f"cat >{counter.folder}/job.sh", input=script)
    words = f"{ALL} --checkpoint-signal USR1 --partition cpu --array 0-1 --script job.sh"
    command = f"cd {counter.folder} && slurmkit submit --parsable {words}"
    job_id = lab.run("sh", "-c", command).stdout.strip()
    counter.jobs.append(job_id)
    task = f"{job_id}_1"
    counter.await_count("0", "1")
    lab.run("slurmkit", "interrupt", task, "--as", "timeout")
    wait_for(lambda: counter.log(task), lambda log: "run 1 from" in log)
    assert "timeout: back to the queue" in counter.log(task)
    lab.run("slurmkit", "wait", job_id)
    assert "after 0" in counter.log(task)


def test_the_guide(counter: Counter) -> None:
    """Its program and its commands, as they are written; of a job of another number."""
    lab, folder = counter.lab, counter.folder
    (program,) = re.findall(r"^```python\n# count.py\n(.*?)^```$", GUIDE, re.M | re.S)
    (console,) = re.findall(r"^```console\n(.*?)^```$", GUIDE, re.M | re.S)
    said = console.replace("\\\n", "")
    submit, interrupt, follow, job = re.findall(r"^\$ (slurmkit [^#\n]*)", said, re.M)
    lab.run("sh", "-c", f"cat >{folder}/count.py", input=program)

    def typed(command: str, **more: Any) -> str:
        return lab.run("bash", "-c", f"cd {folder} && {command}", **more).stdout

    (job_id,) = re.findall(r"^submitted job (\d+)$", typed(submit), re.M)
    counter.jobs.append(job_id)
    counter.await_log(job_id, "run 0 goes on from 0")
    time.sleep(3)  # it counts seconds
    typed(re.sub(r"\b12\b", job_id, interrupt))
    counter.await_log(job_id, "run 1 goes on from [1-9]")
    process = typed(re.sub(r"\b12\b", job_id, follow) + " >followed 2>&1 & echo $!").strip()
    begun = [
        re.escape(line.partition(" on ")[0]).replace("12", job_id)
        for line in re.findall(r"^slurmkit: .*", said, re.M)
    ]
    wait_for(
        lambda: typed("cat followed", check=False),
        lambda shown: all(re.search(f"^{line}", shown, re.M) for line in begun),
    )
    typed(f"kill {process}", check=False)
    shown = typed(re.sub(r"\b12\b", job_id, job))
    assert "timeout: back to the queue" in shown
