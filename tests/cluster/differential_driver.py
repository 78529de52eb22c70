"""Runs on the login node: plans requests as their user, or sends them to raw sbatch as root.

Standard input: JSON `{"what": "plan" or "send", "asked": [...]}`; standard output: an answer for
each. One process for many requests keeps the differential test short.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import time
from typing import Any, NamedTuple

import msgspec

from slurmkit import Cluster, JobSpec, plan
from slurmkit.errors import BadInput
from slurmkit.planning.request import SiteState
from slurmkit.spec.findings import Finding
from slurmkit.spec.sbatch_options import GPU_OPTIONS, parse_options

Options = dict[str, str]

# --- plan, as the user ----------------------------------------------------------------------------


class Planner:
    """Plans of one user; the cluster, which is idle, is read once."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.read = SiteState(self.cluster.capabilities(refresh=True), self.cluster.standing())

    def answer(self, options: Options) -> dict[str, Any]:
        """Plan a request and, if it is refused, the same with the proposals applied."""
        said = self.planned(options)
        fixes = [error["fix"] for error in said["errors"] if error["fix"]]
        if fixes:
            better = with_fixes(options, fixes)
            said["proposed"] = {"options": better, **self.planned(better)}
        return said

    def planned(self, options: Options) -> dict[str, Any]:
        """What `plan` says: findings and the promise."""
        now = msgspec.structs.replace(self.read.capabilities, taken=time.time())
        site = self.read._replace(capabilities=now)
        try:
            spec = JobSpec(command=("sleep", "1"), **parse_options(options.items()))
            made = plan(spec, self.cluster, known=site)
        except Exception as problem:  # noqa: BLE001 - a crash is a result
            kind = "bad-input" if isinstance(problem, BadInput) else type(problem).__name__
            refused = {"code": kind, "message": str(problem), "fix": []}
            return {"errors": [refused], "warnings": [], "notes": [], "promise": None, "own": {}}
        about = {
            "errors": [finding(each) for each in made.errors],
            "warnings": [finding(each) for each in made.warnings],
            "notes": [finding(each) for each in made.notes],
        }
        own = dict(made.submissions[0].options) if made.submissions else {}
        return {**about, "promise": promise(made.estimate), "own": own}


def finding(each: Finding) -> dict[str, Any]:
    return {"code": each.code, "message": each.message, "fix": list(each.fix)}


def promise(estimate: Any) -> dict[str, Any] | None:
    """What an estimate says of one array task: the most and, of a range, the least."""
    if estimate is None or not estimate.hours:
        return None
    least = estimate.least or estimate
    return {"most": amounts(estimate), "least": amounts(least)}


def amounts(estimate: Any) -> dict[str, float | None]:
    """Amounts of TRES, as AllocTRES names them; None is unknown to slurmkit."""
    times = estimate.hours * estimate.tasks
    found: dict[str, float | None] = {"node": estimate.nodes, "billing": estimate.billing}
    found["cpu"] = None if estimate.cpu_hours is None else round(estimate.cpu_hours / times)
    memory = estimate.memory_hours
    found["mem"] = None if memory is None else round(memory * 1024 / times)
    if estimate.gpu_hours is None:
        return {**found, "gres/gpu": None}
    gpus = {kind: hours / times for kind, hours in estimate.gpu_hours.items()}
    found["gres/gpu"] = round(sum(gpus.values()), 3)
    return found | {f"gres/gpu:{kind}": round(n, 3) for kind, n in gpus.items() if kind}


_ONE_OF = (
    (*GPU_OPTIONS, "gres"),
    ("mem", "mem-per-cpu", "mem-per-gpu"),
)


def with_fixes(options: Options, fixes: list[list[tuple[str, str]]]) -> Options:
    """Apply proposals as a user would: an option replaces the others of its kind."""
    changed = dict(options)
    for name, value in (pair for fix in fixes for pair in fix):
        for kind in _ONE_OF:
            if name in kind and value:
                changed = {other: v for other, v in changed.items() if other not in kind}
        changed.pop(name, None)
        if value:
            changed[name] = value
    return changed


# --- raw sbatch, as root --------------------------------------------------------------------------

PASSES = 3
"""Passes of each scheduler over a job that then still waits: it never starts."""
_DONE = ("RUNNING", "COMPLETING", "COMPLETED", "FAILED")
_CYCLES = re.compile(r"Total cycles:\s+(\d+)")
_QUEUE = re.compile(r"Last queue length:\s+(\d+)")
_ALLOCATED = re.compile(r"\s(?:Alloc)?TRES=(\w\S*)")


def sent(user: str, words: list[str]) -> dict[str, Any]:
    """Send a request to the idle cluster; return what became of it."""
    who = pwd.getpwnam(user)
    argv = ["sbatch", "--parsable", *words, "--output=/dev/null", "--chdir=/tmp", "--wrap=sleep 1"]
    done = subprocess.run(
        argv,
        user=who.pw_uid,
        group=who.pw_gid,
        extra_groups=os.getgrouplist(user, who.pw_gid),
        env={"PATH": os.environ["PATH"], "HOME": who.pw_dir, "USER": user},
        cwd="/tmp",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"verdict": "refused", "said": done.stderr.strip(), "allocated": {}}
    job = done.stdout.strip().partition(";")[0]
    try:
        return followed(job)
    finally:
        run("scancel", job)
        wait_until_idle()


def followed(job: str) -> dict[str, Any]:
    """Wait until a job has started, or waits after some passes of both schedulers."""
    begun = passes()
    while True:
        now = passes()
        tasks = run("scontrol", "-o", "show", "job", job).splitlines()
        states = [_field(task, "JobState") for task in tasks]
        for task, state in zip(tasks, states, strict=True):
            if state in _DONE and (found := _ALLOCATED.findall(task)):
                where = _field(task, "Partition")
                return {"verdict": "starts", "said": where, "allocated": tres(found[-1])}
        # Backfill makes no pass over an empty queue, nor when nothing has changed since its last.
        looked = now.main - begun.main
        backfilled = now.backfill - begun.backfill >= PASSES or now.queue == 0
        if (backfilled and looked >= PASSES) or looked >= 3 * PASSES:
            return {"verdict": "waits", "said": _field(tasks[0], "Reason"), "allocated": {}}
        time.sleep(0.2)


class Passes(NamedTuple):
    """How often each scheduler has looked at the queue, and the jobs that the main one found."""

    main: int
    backfill: int
    queue: int


def passes() -> Passes:
    said = run("sdiag")
    main, backfill = (int(number) for number in _CYCLES.findall(said)[:2])
    return Passes(main, backfill, int(_QUEUE.findall(said)[0]))


def wait_until_idle() -> None:
    while run("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING,SUSPENDED").strip():
        time.sleep(0.1)


def tres(text: str) -> dict[str, float]:
    """Parse `cpu=2,mem=4G,gres/gpu:a100=1`; memory in MiB."""
    pairs = (item.rpartition("=") for item in text.split(","))
    return {name: _number(value) for name, _, value in pairs}


def _number(value: str) -> float:
    return float(value[:-1]) * _UNITS[value[-1]] if value[-1] in _UNITS else float(value)


_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def _field(record: str, name: str) -> str:
    return record.partition(f" {name}=")[2].partition(" ")[0]


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def main() -> None:
    task = json.load(sys.stdin)
    if task["what"] == "plan":
        planner = Planner()
        answers = [planner.answer(options) for options in task["asked"]]
    else:
        wait_until_idle()
        answers = [sent(user, words) for user, words in task["asked"]]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
