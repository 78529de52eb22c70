"""Why jobs wait and fail, on a cluster that is really busy; what is offered starts sooner."""

from __future__ import annotations

import json
import re
import shlex
import time
from typing import TYPE_CHECKING, Any

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster_lab import Lab

pytestmark = pytest.mark.cluster

# What holds the cluster: all GPUs of partition gpu but four, and half of the CPU node.
FILL = {
    "high": ("bob", "-p gpu -w c1 --gpus-per-node=a100:4 -t 30 --qos=high"),
    "dave": ("dave", "-p gpu -w c2 --gpus-per-node=a100:8 -t 40"),
    "dave2": ("dave", "-p gpu -w c3 --gpus-per-node=h100:4 -t 50"),
    "cpus": ("carol", "-p cpu -c 40 -t 30"),
    "array": ("carol", "-p cpu --array=1-3%1 -t 30"),
}
# Pending jobs by the reason they wait for: who, options, a word of the meaning, one of the facts.
WAITING = {
    "Resources": ("alice", "-p gpu --gpus-per-node=a100:2 -N2 -t 60", "not free now", "a100"),
    "Priority": ("alice", "-p gpu --gpus-per-node=h100:2 -t 60 --nice=50", "higher", "h100"),
    "JobHeldUser": ("alice", "-p cpu --hold", "it is on hold, and its user can release it", ""),
    "JobHeldAdmin": (
        "alice",
        "-p cpu --begin=now+2hours",
        "an administrator has put it on hold",
        "",
    ),
    "BeginTime": ("alice", "-p cpu --begin=now+1hour", "begin time", "its begin time: "),
    "Dependency": ("alice", "-p cpu --dependency=afterok:@cpus", "waits for another job", ""),
    "QOSMaxGRESPerUser": (
        "bob",
        "-p gpu --gpus-per-node=a100:5 -t 20 --qos=high",
        "MaxTRESPerUser",
        "MaxTRESPerUser of QOS high is 8 GPUs: 4 GPUs used, 5 GPUs asked for",
    ),
    "AssocGrpGRES": (
        "erin",
        "-p gpu --gpus-per-node=a100:1 -t 20 --account=genomics",
        "GrpTRES",
        "GrpTRES of account genomics is 12 GPUs: 12 GPUs used, 1 GPU asked for",
    ),
    "QOSMaxWallDurationPerJobLimit": (
        "alice",
        "-p cpu -t 2-0 --qos=high",
        "MaxWall",
        "MaxWall of QOS high is 1-00:00:00; this job asks for 2-00:00:00",
    ),
    "PartitionTimeLimit": (
        "alice",
        "-p cpu -t 8-0",
        "more than its partition allows",
        "MaxTime of partition cpu is 7-00:00:00",
    ),
    "ReqNodeNotAvail, Reserved for maintenance": (
        "alice",
        "-p mps -t 60",
        "maintenance",
        "whytest begins",
    ),
    "PartitionDown": ("alice", "-p mig", "set to DOWN", "partition mig is DOWN"),
}


ENDED = set("CANCELLED COMPLETED FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED TIMEOUT".split())
MEMORY = "srun python3 -c 'x = bytearray(400 << 20); import time; time.sleep(1000)'"
NCCL = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
# Jobs that fail: options, script, words of the answer, and of what else is said.
FAILING = {
    "code": ("", "echo fine; exit 3", "failed with exit code 3", "chose this code itself"),
    "large": ("", "exit 200", "failed with exit code 200", "chose this code itself"),
    "interrupted": ("", "exit 130", "exit code 130 (128 + 2, SIGINT)", "it was interrupted"),
    "nofile": ("", "srun ./nosuch.sh", "failed with exit code 2", "the node has no such file"),
    "missing": ("", "nosuchprogram --x", "exit code 127", "not on the node's PATH"),
    "python": ("", "python3 -c 'import nosuch'", "No module named 'nosuch'", "environment"),
    "nccl": ("", f"echo '{NCCL}'; exit 1", "collective operation timeout", "ranks waited"),
    "output": ("--output=/home/nowhere/x.out", "true", "could not be opened", "does not exist"),
    "signal": ("", "kill -SEGV $$", "SIGSEGV", "memory that is not its own"),
    "memory": ("--mem=100M", MEMORY, "out of memory", "--mem="),
    "time": ("-t 1", "echo begun; sleep 300", "its time limit of 1:00", "--time=2:00"),
    "cancelled": ("", "sleep 3000", "cancelled by olga", ""),
    "preempted": (
        "-p untyped --gpus=4 --qos=scavenger --no-requeue",
        "sleep 3000",
        "preempted",
        "",
    ),
}


class Jobs:
    """Submits jobs and cancels every one of them in the end."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.owner: dict[str, str] = {}

    def submit(self, user: str, options: str, script: str = "sleep 3000", instead: str = "") -> str:
        return self.submit_all({"one": (user, options)}, script, instead)["one"]

    def submit_all(
        self, jobs: dict[str, tuple[str, str]], script: str, instead: str = ""
    ) -> dict[str, str]:
        """One command for all, and to cancel one before: each `docker exec` takes its time."""
        common = "--parsable --output=why-%j.out"
        wrap = f"--wrap={shlex.quote(script)}"
        lines = [
            "/opt/lab/as-person"
            f" {user} sh -c {shlex.quote(f'cd; exec sbatch {common} {options} {wrap}')}"
            for user, options in jobs.values()
        ]
        if instead:
            gone = f"squeue -h --states=R,CG,PD -j {instead} 2>/dev/null | grep -q ."
            lines.insert(0, f"scancel {instead}; while {gone}; do sleep 0.5; done")
        said = self.lab.run("bash", "-c", "\n".join(lines), user="").stdout.split()
        ids = dict(zip(jobs, said, strict=True))
        self.owner |= {job_id: user for job_id, (user, _) in zip(said, jobs.values(), strict=True)}
        return ids

    def why(self, job_id: str, *options: str) -> dict[str, Any]:
        said = self.lab.run("slurmkit", "why", job_id, "--json", *options, user=self.owner[job_id])
        return dict(json.loads(said.stdout)["rows"][0])

    def squeue(self, *job_ids: str) -> dict[str, tuple[str, str, str]]:
        """State, reason and start in epoch seconds by job."""
        argv = ["squeue", "-h", "--states=all", f"--jobs={','.join(job_ids)}"]
        env = ["env", "SLURM_TIME_FORMAT=%s"]
        text = self.lab.run(*env, *argv, "-o", "%F|%T|%r|%S").stdout
        rows = (line.split("|") for line in text.splitlines())
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    def until(self, job_id: str, states: set[str]) -> tuple[str, str, str]:
        return wait_for(lambda: self.squeue(job_id)[job_id], lambda now: now[0] in states)

    def change(self, job_id: str, command: str) -> str:
        """Run what was offered, in its user's home; the id of the job that comes of it."""
        said = self.lab.run("sh", "-c", f"cd && {command}", user=self.owner[job_id]).stdout
        submitted = re.search(r"Submitted batch job (\d+)", said)
        changed = submitted[1] if submitted else job_id
        self.owner[changed] = self.owner[job_id]
        return changed

    def cancel(self, *job_ids: str) -> None:
        self.lab.run("scancel", *job_ids, user="")


@pytest.fixture(scope="module")
def jobs(lab: Lab) -> Iterator[Jobs]:
    made = Jobs(lab)
    yield made
    if made.owner:
        made.cancel(*made.owner)


@pytest.fixture(scope="module")
def failing(jobs: Jobs) -> dict[str, str]:
    """Ids of jobs that fail by and by, by the way they do."""
    ids = {}
    for name, (options, script, _, _) in FAILING.items():
        place = "" if "-p" in options else "-p cpu"
        ids[name] = jobs.submit("alice", f"{place} {options}", script)
    jobs.until(ids["preempted"], {"RUNNING"})
    jobs.submit("bob", "-p untyped --gpus=4 -t 1", "sleep 20")
    jobs.until(ids["cancelled"], {"RUNNING"})
    jobs.lab.run("scancel", ids["cancelled"], user="olga")
    jobs.until(ids["preempted"], ENDED)
    return ids


@pytest.fixture(scope="module")
def busy(jobs: Jobs, failing: dict[str, str]) -> Iterator[dict[str, str]]:
    """Ids of the jobs that fill the cluster, by name."""
    del failing  # begun first: some take a minute
    ids = jobs.submit_all(FILL, "sleep 3000")
    for name in ("high", "dave", "dave2", "cpus", "array"):
        jobs.until(ids[name], {"RUNNING"})
    yield ids
    jobs.cancel(*ids.values())


@pytest.fixture(scope="module")
def waiting(jobs: Jobs, busy: dict[str, str]) -> Iterator[dict[str, str]]:
    """Ids of the jobs that wait, by their reason."""
    make = "reservation ReservationName=whytest StartTime=now+40minutes Duration=60 Nodes=c6"
    jobs.lab.run("scontrol", "create", *make.split(), "Flags=MAINT", "Users=root", user="")
    jobs.lab.run("scontrol", "update", "PartitionName=mig", "State=DOWN", user="")
    asked = {
        reason: (user, options.replace("@cpus", busy["cpus"]))
        for reason, (user, options, _, _) in WAITING.items()
    }
    ids = jobs.submit_all(asked, "sleep 3000")
    jobs.lab.run("scontrol", "hold", ids["JobHeldAdmin"], user="")
    _wait_for_reasons(jobs, ids)
    yield ids
    jobs.cancel(*ids.values())
    jobs.lab.run("scontrol", "update", "PartitionName=mig", "State=UP", user="")
    jobs.lab.run("scontrol", "delete", "ReservationName=whytest", user="")


def _wait_for_reasons(jobs: Jobs, ids: dict[str, str]) -> None:
    """Until a scheduler has looked at all of them."""

    def others() -> dict[str, tuple[str, str, str]]:
        now = jobs.squeue(*ids.values())
        return {reason: now[job_id] for reason, job_id in ids.items() if now[job_id][1] != reason}

    wait_for(others, lambda found: not found)


@pytest.mark.parametrize("reason", WAITING)
def test_why_a_job_waits(jobs: Jobs, waiting: dict[str, str], reason: str) -> None:
    _, _, meaning, fact = WAITING[reason]
    told = jobs.why(waiting[reason], "--no-alternatives")
    assert told["state"] == "PENDING"
    assert told["waiting"]["reason"] == reason
    assert meaning in told["waiting"]["meaning"]
    assert meaning in told["answer"]
    assert fact in "\n".join(told["waiting"]["details"])
    assert told["waiting"]["who"]


# Those for which something else would start sooner, and options that must be among the changes.
SOONER = {
    "Resources": {"nodes"},
    "Priority": {"partition", "gpus-per-node"},
    "QOSMaxGRESPerUser": {"gpus-per-node"},
    "AssocGrpGRES": {"account"},
    "QOSMaxWallDurationPerJobLimit": {"time"},
    "PartitionTimeLimit": {"time"},
    "ReqNodeNotAvail, Reserved for maintenance": {"time", "partition"},
    "PartitionDown": {"partition"},
}


@pytest.mark.parametrize("reason", SOONER)
def test_what_is_offered_starts_sooner(jobs: Jobs, waiting: dict[str, str], reason: str) -> None:
    user, options, _, _ = WAITING[reason]
    job_id = waiting[reason]
    told = jobs.why(job_id)["waiting"]
    offered = told["alternatives"]
    named = {name for each in offered for name, _ in each["changes"]}
    print(reason, told["start"], json.dumps(offered, indent=1), told["no_alternatives"])
    assert named >= SOONER[reason], named
    assert len(offered) <= 5
    before = told["start"]["at"] if told["start"] else None
    for each in offered:
        # Each is tried on a job of its own, in the place of the one that waits.
        job_id = jobs.submit(user, options, "srun sleep 3000", instead=job_id)
        job_id = jobs.change(job_id, each["command"].replace(waiting[reason], job_id))
        _starts_sooner(jobs, job_id, each["start"], before)
    jobs.cancel(job_id)


def _starts_sooner(jobs: Jobs, job_id: str, said: int, before: int | None) -> None:
    """At once where that was said, and its srun runs; else backfill, too, plans it for sooner."""
    if said < time.time() + 60:
        started = int(jobs.until(job_id, {"RUNNING"})[2])
        assert before is None or started < before
        steps = ("squeue", "-h", "--steps", "--jobs", job_id, "-o", "%i")
        wait_for(lambda: f"{job_id}.0" in jobs.lab.run(*steps, check=False).stdout)
        return
    wait_for(lambda: jobs.squeue(job_id)[job_id][2], lambda start: _is_before(start, before))


def _is_before(start: str, before: int | None) -> bool:
    return start.isdigit() and (before is None or int(start) < before)


@pytest.mark.parametrize("way", FAILING)
def test_why_a_job_failed(jobs: Jobs, failing: dict[str, str], way: str) -> None:
    _, _, answer, more = FAILING[way]
    jobs.lab.run("slurmkit", "wait", failing[way], check=False)  # squeue may know it no more
    told = jobs.why(failing[way])
    assert answer in told["answer"], told
    assert more in json.dumps(told["ended"]), told
    if way == "preempted":
        assert "of bob (QOS normal) started on c4" in "\n".join(told["ended"]["details"])
    if way == "nccl":
        assert told["ended"]["first_error"]["number"] == 1
    if way in ("code", "time"):
        assert told["ended"]["last_lines"][0] in ("fine", "begun")
        assert told["ended"]["log"].endswith(f"why-{failing[way]}.out")


def test_for_people_the_answer_comes_first(jobs: Jobs, failing: dict[str, str]) -> None:
    said = jobs.lab.run("slurmkit", "why", failing["code"], user="alice").stdout.splitlines()
    assert said[0].startswith(f"job {failing['code']} failed with exit code 3")
    assert not said[1]
    assert any(line.startswith("Last lines") and line.endswith("fine") for line in said)


def test_what_is_not_yours_is_explained_without_alternatives(
    jobs: Jobs, waiting: dict[str, str]
) -> None:
    said = jobs.lab.run("slurmkit", "why", waiting["BeginTime"], user="grace").stdout
    assert "only the job's own user, alice, is offered changes to start sooner" in said
    assert jobs.lab.run("slurmkit", "why", "999999", check=False).returncode == 1
