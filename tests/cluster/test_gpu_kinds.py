"""One way of asking for GPUs on every kind of node, and what the job got."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster

# Each task prints where it is and what it sees; the batch shell prints what Slurm allocated.
SEEN = (
    'echo "task $SLURM_PROCID $SLURM_LOCALID $(hostname)'
    " cuda=${CUDA_VISIBLE_DEVICES-} shards=${SLURM_SHARDS_ON_NODE-}"
    ' mps=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-}";'
    ' if [ "$SLURM_PROCID" = 0 ]; then scontrol show job -d "$SLURM_JOB_ID"; fi'
)


class Run:
    """What a job saw and what Slurm says that it got."""

    def __init__(self, lab: Lab, *asked: str) -> None:
        planned = lab.run("slurmkit", "plan", "--json", *asked, "--", "bash", "-c", SEEN)
        self.plan: dict[str, Any] = json.loads(planned.stdout)["rows"][0]
        (submission,) = self.plan["submissions"]
        self.options: dict[str, str] = submission["options"]
        argv = ("slurmkit", "submit", "--wait", "--parsable", *asked)
        done = lab.run(*argv, "--", "bash", "-c", SEEN)
        self.job_id = done.stdout.split()[0]
        self.text = lab.run("slurmkit", "log", self.job_id).stdout
        self.tres = dict(
            item.split("=", 1) for item in self._find(r"(?m)^ +(?:Alloc)?TRES=(\S+)").split(",")
        )

    def _find(self, pattern: str) -> str:
        match = re.search(pattern, self.text)
        assert match, self.text
        return match[1]

    @property
    def tasks(self) -> list[dict[str, str]]:
        pattern = r"task (?P<rank>\d+) (?P<local>\d+) (?P<node>\S+) cuda=(?P<cuda>\S*)"
        return [m.groupdict() for m in re.finditer(pattern, self.text)]

    @property
    def notes(self) -> set[str]:
        return {note["code"] for note in self.plan["notes"]}


def test_whole_gpus_of_a_type(lab: Lab) -> None:
    """Asked for in the wrong case, on two nodes, two tasks on each."""
    run = Run(
        lab, "--gpus-per-node", "A100:2", "--nodes", "2", "--ntasks-per-node", "2", "--time", "2"
    )
    assert run.options["gpus-per-node"] == "a100:2"
    assert run.tres["gres/gpu:a100"] == run.tres["gres/gpu"] == "4"
    assert [task["cuda"].count(",") for task in run.tasks] == [1] * 4, "local ranks are devices"


def test_gpus_per_task(lab: Lab) -> None:
    """Every task can use its local rank, on 22.05 too, whose own --gpus-per-task gives none."""
    run = Run(lab, "--gpus-per-task", "a100:1", "--ntasks", "3", "--time", "2")
    assert (run.options["nodes"], run.options["gpus-per-node"]) == ("1", "a100:3")
    assert run.tres["gres/gpu:a100"] == "3"
    assert all(int(task["local"]) < len(task["cuda"].split(",")) for task in run.tasks)
    assert len(run.tasks) == 3


def test_gpus_of_the_whole_job_divide_evenly(lab: Lab) -> None:
    run = Run(lab, "--gpus", "a100:4", "--nodes", "2", "--time", "2")
    assert run.options["gpus-per-node"] == "a100:2"
    assert [len(task["cuda"].split(",")) for task in run.tasks] == [2, 2]


def test_one_gpu_for_each_task_where_asked(lab: Lab) -> None:
    bound = ("--gpu-bind", "per_task:1", "--ntasks-per-node", "2", "--time", "2")
    run = Run(lab, "--gpus-per-node", "a100:2", *bound)
    assert sorted(len(task["cuda"].split(",")) for task in run.tasks) == [1, 1]
    assert len({task["cuda"] for task in run.tasks}) == 2


def test_untyped_nodes(lab: Lab) -> None:
    run = Run(lab, "--gpus-per-node", "2", "--partition", "untyped", "--time", "2")
    assert run.options["gpus-per-node"] == "2"
    assert run.tres["gres/gpu"] == "2"
    assert len(run.tasks[0]["cuda"].split(",")) == 2


def test_a_type_on_untyped_nodes_needs_proof(lab: Lab) -> None:
    asked = ("--gpus-per-node", "v100:1", "--partition", "untyped", "--time", "2")
    refused = lab.run("slurmkit", "plan", *asked, "--", "true", check=False)
    assert refused.returncode == 2
    assert "no GPU type 'v100' here" in refused.stderr
    home = lab.run("mktemp", "-d").stdout.strip()
    config = f"{home}/config.toml"
    lab.run("tee", config, input='[partition.untyped]\ngpu_type = "v100"\n')
    argv = ("env", f"SLURMKIT_CONFIG={config}", "slurmkit", "submit", "--wait", "--parsable")
    done = lab.run(*argv, *asked, "--", "bash", "-c", SEEN)
    log = lab.run("slurmkit", "log", done.stdout.split()[0]).stdout
    assert "gres/gpu=1" in log
    assert "cuda=0" in log


def test_a_feature_proves_a_type(lab: Lab) -> None:
    """The admin names the model as a node feature, as clusters with untyped GRES do."""
    change = ("scontrol", "update", "NodeName=c4", "AvailableFeatures=V100")
    try:
        lab.run(*change, user="")
        lab.run("slurmkit", "capabilities", "--refresh")
        run = Run(lab, "--gpus-per-node", "v100:1", "--partition", "untyped", "--time", "2")
        assert run.options["constraint"] == "V100"
        assert run.options["gpus-per-node"] == "1"
        assert run.tres["gres/gpu"] == "1"
    finally:
        back = ("ActiveFeatures=", "AvailableFeatures=")
        lab.run("scontrol", "update", "NodeName=c4", *back, user="")
        lab.run("slurmkit", "capabilities", "--refresh")


@pytest.mark.parametrize(("asked", "units"), [("shard:3", "3"), ("0.5", "2"), ("h100:0.25", "1")])
def test_shards(lab: Lab, asked: str, units: str) -> None:
    run = Run(lab, "--gpus-per-node", asked, "--time", "2")
    assert run.options["gres"] == f"shard:{units}"
    assert run.tres["gres/shard"] == units
    assert f"shards={units}" in run.text
    held = re.search(r"GRES=(?:gpu:\S*,)?shard:(?:h100:)?(\d+)\((\S+)\)", run.text)
    assert held, run.text
    assert held[1] == units
    assert {"shard-shared", "fraction-as-shards"} & run.notes


def test_mig_profiles_are_completed(lab: Lab) -> None:
    run = Run(lab, "--gpus-per-node", "3g.20gb:1", "--partition", "mig", "--time", "2")
    assert run.options["gpus-per-node"] == "a100_3g.20gb:1"
    assert run.tres["gres/gpu:a100_3g.20gb"] == "1"
    assert run.tasks[0]["cuda"] in {"0", "1"}


def test_mps(lab: Lab) -> None:
    run = Run(lab, "--gpus-per-node", "mps:50", "--partition", "mps", "--time", "2")
    assert run.options["gres"] == "mps:50"
    assert run.tres["gres/mps"] == "50"
    assert re.search(r"GRES=(?:gpu:\S*,)?mps:(?:a100:)?50\(", run.text), run.text


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        (("--gpus-per-node", "shard:5"), {"gres": "shard:4"}),
        (("--gres", "mps:150", "--partition", "mps"), {"gres": "mps:100"}),
        (("--gpus-per-node", "a100:9"), {"nodes": "1", "gpus-per-node": "a100:8"}),
        (("--gpus-per-node", "a100:16"), {"nodes": "2", "gpus-per-node": "a100:8"}),
        (("--gpus-per-node", "h100:1", "--partition", "mps"), {"partition": "gpu"}),
        (("--gpus-per-node", "1", "--partition", "mig"), {"gpus-per-node": "a100_3g.20gb:1"}),
        (("--gpus-per-node", "0.5", "--partition", "mps"), {"partition": "gpu"}),
    ],
)
def test_what_can_never_start_is_refused_with_what_can(
    lab: Lab, asked: tuple[str, ...], fix: dict[str, str]
) -> None:
    done = lab.run("slurmkit", "plan", "--json", *asked, "--time", "2", "--", "true", check=False)
    assert done.returncode == 2
    (error,) = json.loads(done.stdout)["rows"][0]["errors"]
    assert error["fix"] == fix
    given = dict(zip(asked[::2], asked[1::2], strict=True))
    if "gres" in fix:
        given.pop("--gpus-per-node", None)
    options = [
        w for k, v in {**given, **{f"--{k}": v for k, v in fix.items()}}.items() for w in (k, v)
    ]
    lab.run("slurmkit", "submit", "--wait", *options, "--time", "2", "--", "true")
