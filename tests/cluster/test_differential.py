"""Random requests: what `plan` says of each, against what raw sbatch makes of it.

The cluster has many odd partitions, and job_submit.lua is off: raw sbatch is the oracle. Each
request is planned by its user, and sent alone to the idle cluster with the very same options.
Where `plan` proposes changes, the changed request is sent too. SLURMKIT_TEST_RANDOM_SEED, _COUNT
and _CASE repeat a run or one request of it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from cluster_lab import Site
from random_requests import RandomRequest, option_words, random_request

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(7200)]

SEED = int(os.environ.get("SLURMKIT_TEST_RANDOM_SEED", "1"))
COUNT = int(os.environ.get("SLURMKIT_TEST_RANDOM_COUNT", "300"))
CASE = os.environ.get("SLURMKIT_TEST_RANDOM_CASE")  # only this one
DRIVER = Path(__file__).with_name("differential_driver.py")
PYTHON = "/opt/slurmkit/venv/bin/python"

# --- the cluster ----------------------------------------------------------------------------------

PARTITIONS = """
PartitionName=DEFAULT TRESBillingWeights="CPU=1.0,Mem=0.125G,GRES/gpu=16.0"
PartitionName=big Nodes=c[1-3] MinNodes=2
PartitionName=short Nodes=c[1-2] MaxNodes=1 MaxTime=10 DefaultTime=5
PartitionName=memnode Nodes=c7 MaxMemPerNode=65536
PartitionName=memcpu Nodes=c[1-2] MaxMemPerCPU=2048
PartitionName=defgpu Nodes=c[1-2] DefCpuPerGPU=4 DefMemPerGPU=8192
PartitionName=fewcpus Nodes=c[1-2],c7 MaxCPUsPerNode=8
PartitionName=members Nodes=c[3-4] AllowAccounts=vision
PartitionName=others Nodes=c7 DenyAccounts=vision
PartitionName=team Nodes=c7 AllowGroups=genomics
PartitionName=excl Nodes=c[6-7] OverSubscribe=EXCLUSIVE
PartitionName=mixed Nodes=c[1-4],c7
PartitionName=drained Nodes=c7 State=DRAIN
PartitionName=closed Nodes=c7 State=DOWN
PartitionName=off Nodes=c7 State=INACTIVE
"""
# slurmctld does not start with a partition whose QOS is not there yet; from 26.05 on that is also
# so of the QOS that it allows and denies.
JUDGED = """
PartitionName=judged Nodes=c[1-2] QOS=narrow
PartitionName=urgent Nodes=c[1-3] AllowQos=high
PartitionName=patient Nodes=c7 DenyQos=high
"""
FEATURES = {
    "NodeName=c[1-2] Gres=gpu:a100:8": "intel,nvlink",
    "NodeName=c3 Gres=gpu:h100:4,shard:16": "amd,nvlink",
    "NodeName=c4 Gres=gpu:4": "amd",
    "NodeName=c7": "intel,bigmem",
}
# A job that still waits after some passes never starts: they come each second.
SETTINGS = {
    "bf_interval=10,bf_continue": "bf_interval=1,bf_continue,sched_interval=1",
    "PreemptType=preempt/qos\nPreemptMode=REQUEUE\n": "Licenses=matlab:5,ansys:2\n",
    "SlurmdTimeout=20": "SlurmdTimeout=300",
}
QOS = """
[[qos]]
name = "narrow"
priority = 50
limits = { MaxTRESPerJob = "cpu=16,gres/gpu=2", MaxWall = "00:30:00" }

[[qos]]
name = "wide"
priority = 60
limits = { GrpTRES = "node=2", MaxTRESPerUser = "cpu=48" }
"""
LIMITS = {
    'qos = ["normal", "high", "scavenger"]': 'qos = ["normal", "high", "scavenger", "wide"]',
    'qos = ["normal", "scavenger"]': 'qos = ["normal", "scavenger", "narrow"]',
    'GrpTRES = "gres/gpu=12"': 'GrpTRES = "gres/gpu=12", MaxTRES = "node=3"',
    'MaxJobs = "200"': 'MaxTRES = "cpu=40,gres/gpu=6", MaxWall = "12:00:00"',
}


@pytest.fixture(scope="module")
def odd(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster of its own with many odd partitions."""
    site = Site(tmp_path_factory.mktemp("odd"), lab, "odd")
    site.copy_slurmkit()
    edit(site)
    up = site.cluster("up", "--slurm", lab.release)
    try:
        assert up.returncode == 0, up.stderr
        append(site, "conf/slurm/nodes.conf", JUDGED)
        reload = site.cluster("reload")
        assert reload.returncode == 0, reload.stderr
        yield site.lab
    finally:
        down = site.cluster("down", "--volumes")
    assert down.returncode == 0, down.stderr


def edit(site: Site) -> None:
    nodes, people = "conf/slurm/nodes.conf", "seed/people.toml"
    for node, features in FEATURES.items():
        site.edit(nodes, f"{node}\n", f"{node} Features={features}\n")
    append(site, nodes, PARTITIONS)
    for old, new in SETTINGS.items():
        site.edit("conf/slurm/slurm.conf", old, new)
    (site.docker / "conf/slurm/slurmkit.conf").write_text("# no job_submit.lua\n", "utf-8")
    for old, new in LIMITS.items():
        site.edit(people, old, new)
    append(site, people, QOS)


def append(site: Site, file: str, text: str) -> None:
    with (site.docker / file).open("a", encoding="utf-8") as stream:
        stream.write(text)


# --- the trial ------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """What became of a request sent with raw sbatch.

    Attributes:
        verdict: `starts`, `refused`, or `waits` for what never comes.
        said: the partition it started in, sbatch's refusal, or the pending reason.
        allocated: AllocTRES, memory in MiB.
    """

    verdict: str
    said: str
    allocated: dict[str, float]

    @property
    def starts(self) -> bool:
        return self.verdict == "starts"


class Trial(NamedTuple):
    """One request.

    Attributes:
        plan: what `plan` said.
        raw: what became of it with raw sbatch.
        own: of the options that slurmkit writes; None where the raw request starts.
        proposed: of the request with the proposals; None without any, or if `plan` refuses it too.
    """

    request: RandomRequest
    plan: dict[str, Any]
    raw: Sent
    own: Sent | None = None
    proposed: Sent | None = None

    @property
    def accepted(self) -> bool:
        return not self.plan["errors"]

    @property
    def warned(self) -> bool:
        """Whether a plan without errors says that the job may never start."""
        return self.accepted and warns(self.plan, DOUBTS | WAITS)

    def description(self) -> str:
        """The request, the raw command and what both said."""
        said = [f"{f['code']}: {f['message']}" for f in self.plan["errors"] + self.plan["warnings"]]
        command = f"sbatch {' '.join(self.request.words())} --wrap 'sleep 1'"
        lines = [
            f"case {self.request.number}, {self.request.user}$ {command}",
            f"  raw sbatch: {said_of(self.raw)}",
            *(f"  plan: {line}" for line in said or ["no error"]),
        ]
        if self.plan["promise"]:
            lines.append(f"  promise: {self.plan['promise']}")
        if self.own:
            words = " ".join(option_words(self.plan["own"]))
            lines.append(f"  slurmkit's own options: {words}: {said_of(self.own)}")
        if "proposed" in self.plan:
            again = self.plan["proposed"]
            words = " ".join(option_words(again["options"]))
            became = said_of(self.proposed) if self.proposed else f"plan: {again['errors']}"
            lines.append(f"  proposed: {words}: {became}")
        return "\n".join(lines)


DOUBTS = {"slurm-refuses", "overcommit-cpus"} | {
    f"{holder}-{limit}-at-most"
    for holder in ("qos", "assoc")
    for limit in (
        *("max-tres-per-job", "max-tres-per-node", "max-tres-per-user", "max-tres-per-account"),
        "grp-tres",
    )
}
"""Codes of warnings that a job may never start."""
WAITS = {"nodes-down", "partition-state"}
"""Codes of warnings that a job waits until an admin acts."""


def warns(plan: dict[str, Any], codes: set[str]) -> bool:
    return bool(codes & {each["code"] for each in plan["warnings"]})


def said_of(sent: Sent) -> str:
    return f"{sent.verdict}: {sent.said or sent.allocated} {sent.allocated or ''}".strip()


def drive(lab: Lab, what: str, asked: list[Any], user: str = "") -> list[Any]:
    """Let the driver plan or send requests; an answer for each."""
    argv = (PYTHON, "-c", DRIVER.read_text("utf-8"))
    task = json.dumps({"what": what, "asked": asked})
    answers: list[Any] = json.loads(lab.run(*argv, user=user, input=task, timeout=5400).stdout)
    return answers


def planned(lab: Lab, requests: list[RandomRequest]) -> dict[int, dict[str, Any]]:
    """What `plan` says of each request, by its number."""
    by_user: dict[str, list[RandomRequest]] = {}
    for request in requests:
        by_user.setdefault(request.user, []).append(request)

    def of(user: str) -> list[Any]:
        return drive(lab, "plan", [request.options for request in by_user[user]], user)

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(of, by_user))
    pairs = zip(by_user.values(), answers, strict=True)
    return {r.number: said for mine, each in pairs for r, said in zip(mine, each, strict=True)}


def send(lab: Lab, asked: dict[int, tuple[str, list[str]]]) -> dict[int, Sent]:
    answers = drive(lab, "send", list(asked.values()))
    return {number: Sent(**each) for number, each in zip(asked, answers, strict=True)}


def attempt(lab: Lab, requests: list[RandomRequest]) -> list[Trial]:
    """Plan all requests, then send them, and what `plan` makes or proposes of them."""
    plans = planned(lab, requests)
    raw = send(lab, {r.number: (r.user, r.words()) for r in requests})
    own, better = {}, {}
    for request in requests:
        said = plans[request.number]
        if not said["errors"] and not raw[request.number].starts:
            own[request.number] = (request.user, option_words(said["own"]))
        if "proposed" in said and not said["proposed"]["errors"]:
            words = option_words(said["proposed"]["options"])
            better[request.number] = (request.user, words)
    owned, proposed = send(lab, own), send(lab, better)
    # A proposal is for slurmkit's command line: raw sbatch may want more words with it.
    rest = {
        n: (user, option_words(plans[n]["proposed"]["own"]))
        for n, (user, _) in better.items()
        if not proposed[n].starts
    }
    proposed |= {number: sent for number, sent in send(lab, rest).items() if sent.starts}
    return [
        Trial(r, plans[r.number], raw[r.number], owned.get(r.number), proposed.get(r.number))
        for r in requests
    ]


# --- the verdicts ---------------------------------------------------------------------------------


def kept(trial: Trial) -> bool:
    """Whether the promise is what a job got: of a range, anything from its least to its most.

    Of several partitions it is the most of any, so the job may get less.
    """
    promise, got = trial.plan["promise"], trial.raw.allocated
    several = "," in trial.request.options.get("partition", "")
    for name, most in promise["most"].items():
        part = name.startswith("gres/gpu") and ("gres/shard" in got or "gres/mps" in got)
        least = promise["least"].get(name)
        if most is None or least is None or part:
            continue
        if not (0 if several else least) <= got.get(name, 0) <= most:
            return False
    return True


class Row(NamedTuple):
    """A row of the table: of these trials, those that are wrong, and how many may be, in %."""

    what: str
    of: list[Trial]
    wrong: list[Trial]
    allowed: float

    @property
    def share(self) -> float:
        return 100 * len(self.wrong) / max(len(self.of), 1)


def verdicts(trials: list[Trial]) -> list[Row]:
    """The rows of the table; what waits as `plan` warned is no false acceptance."""
    run = [trial for trial in trials if trial.raw.starts]
    planned = [trial for trial in trials if trial.accepted]
    taken = [trial for trial in planned if not trial.warned]
    doubted = [trial for trial in trials if trial.warned]
    proposals = [t for t in trials if "proposed" in t.plan and not warns(t.plan["proposed"], WAITS)]
    unstarted = [t for t in proposals if not (t.proposed and t.proposed.starts)]
    promises = [t for t in run if t.accepted and t.plan["promise"]]
    refused = [trial for trial in run if not trial.accepted and not explained(trial)]
    return [
        Row("false refusals, of the jobs that run", run, refused, 1),
        Row("false acceptances, of those planned", taken, list(filter(never, taken)), 1),
        Row("proposals that do not start", proposals, unstarted, 3),
        Row("promises unlike AllocTRES", promises, [t for t in promises if not kept(t)], 1),
        Row("doubts, of those planned", planned, doubted, 5),
        Row("planned with a doubt, never start", doubted, list(filter(never, doubted)), 100),
    ]


def never(trial: Trial) -> bool:
    return not trial.raw.starts and not explained(trial)


def rewritten_gpus(trial: Trial) -> bool:
    """Sbatch wants -n with --gpus-per-task; slurmkit writes tasks and GPUs for each node itself."""
    own = trial.own
    return own is not None and own.starts and "gpus-per-task" in trial.request.options


def untyped_slices(trial: Trial) -> bool:
    """Slurm gives any MIG slice for a GPU without a type; slurmkit wants to be told which."""
    return {error["code"] for error in trial.plan["errors"]} == {"gpu-mig-only"}


def uneven_tasks(trial: Trial) -> bool:
    """Slurm puts more tasks on one node than on another; slurmkit gives GPUs to tasks evenly."""
    shape = {"node-count", "node-shape", "gpu-uneven-tasks"}
    only = {error["code"] for error in trial.plan["errors"]} <= shape
    tasks, nodes = int(trial.request.options.get("ntasks", 1)), trial.raw.allocated.get("node", 1)
    return only and "gpus-per-task" in trial.request.options and tasks % nodes != 0


def tasks_of_cores(trial: Trial) -> bool:
    """Sbatch refuses `-c 64 --ntasks-per-core=2`; slurmkit's own options name the tasks."""
    own = trial.own
    asked = {"cpus-per-task", "ntasks-per-core"} <= trial.request.options.keys()
    return own is not None and own.starts and asked


DESIGN: dict[str, Callable[[Trial], bool]] = {
    "--gpus-per-task, which slurmkit writes as GPUs for each node": rewritten_gpus,
    "GPUs without a type among MIG slices": untyped_slices,
    "tasks with GPUs, unevenly over nodes": uneven_tasks,
    "--ntasks-per-core without a number of tasks, which slurmkit writes": tasks_of_cores,
}
"""Differences that are meant."""


def explained(trial: Trial) -> str:
    return next((why for why, of in DESIGN.items() if of(trial)), "")


def table(lab: Lab, rows: list[Row], trials: list[Trial]) -> str:
    """The measured figures as text."""
    what = f"Slurm {lab.release}, seed {SEED}, {len(trials)} requests"
    shown = [f"| {what} | n | wrong | share | allowed |", "|---|---|---|---|---|"]
    shown += [
        f"| {row.what} | {len(row.of)} | {len(row.wrong)} | {row.share:.1f} % | {row.allowed} % |"
        for row in rows
    ]
    meant = Counter(
        explained(t) for t in trials if t.accepted != t.raw.starts and not t.warned and explained(t)
    )
    shown += [f"| meant: {why} | {count} |" for why, count in meant.items()]
    return "\n".join(shown)


def test_plan_says_what_sbatch_does(
    odd: Lab, record_property: Callable[[str, object], None]
) -> None:
    numbers = [int(CASE)] if CASE else range(COUNT)
    trials = attempt(odd, [random_request(SEED, number) for number in numbers])
    rows = verdicts(trials)
    record_property("table", table(odd, rows, trials))
    print(*(f"--- {row.what}\n{t.description()}" for row in rows for t in row.wrong), sep="\n")
    if CASE:
        print(trials[0].description())
    assert not [t.description() for t in trials if any(map(is_crash, t.plan["errors"]))]
    assert not [row.what for row in rows if row.share > row.allowed]


def is_crash(error: dict[str, Any]) -> bool:
    """Whether the code is the name of an exception, not of a finding."""
    return error["code"][0].isupper()
