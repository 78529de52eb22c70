"""Workflows: what they may say, how they are drawn, and what the whole of them comes to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from flow_lab import FlowLab, flow, job
from recorded_lab import standing

from slurmkit.cli.workflow_tables import dominators, draw_tree, waits_for
from slurmkit.cluster.workflow_plan import add_up_estimates, plan_workflow
from slurmkit.errors import BadInput
from slurmkit.spec.workflow import Edge, Workflow, load_workflow
from slurmkit.state.model import Limits, LimitUsage, Standing

FILE = """
name = "pipeline"

[defaults]
partition = "gpu"
time = "10"
mem = "1G"
[defaults.environment]
A = "1"

[jobs.prepare]
command = ["python", "prepare.py"]
chdir = "data"

[jobs.train]
after = ["prepare"]
job-file = "train.toml"
mem-per-gpu = "8G"
[jobs.train.environment]
B = "2"

[jobs.report]
after = ["train:any", "prepare"]
script-file = "report.sh"
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.delenv("SLURMKIT_CONFIG", raising=False)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pipeline.toml"
    path.write_text(text, "utf-8")
    job_file = 'command = ["train"]\ngpus-per-node = "a100:2"\ntime = 60\n'
    (tmp_path / "train.toml").write_text(job_file, "utf-8")
    (tmp_path / "report.sh").write_text("#!/bin/sh\n#SBATCH -N 2 -p cpu\nhostname\n", "utf-8")
    return path


def test_a_file(tmp_path: Path) -> None:
    made = load_workflow(written(tmp_path, FILE), Path("/proj"))
    assert (made.name, made.order()) == ("pipeline", ("prepare", "train", "report"))
    prepare, train, report = (made.spec(name) for name in made.order())
    assert (prepare.chdir, prepare.job_name, prepare.mem) == ("/proj/data", "prepare", "1G")
    assert (train.command, train.time, train.partition) == (("train",), "60", "gpu")
    assert (train.mem, train.mem_per_gpu) == (None, "8G")
    assert train.environment == {"A": "1", "B": "2"}
    assert train.gpus
    assert (report.nodes, report.partition, report.chdir) == (2, "cpu", "/proj")
    assert report.script == "#!/bin/sh\nhostname\n"
    assert report.job_name == "report.sh"
    assert made.edges("report") == (Edge("train", "any"), Edge("prepare"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[jobs.train]", "[job.train]"), "no key 'job'; did you mean 'jobs'"),
        (
            ('["prepare"]', '["prepar"]'),
            "job train waits for 'prepar', which is not a job; did you",
        ),
        (('["prepare"]', '["train"]'), "job train waits for itself"),
        (('["prepare"]', '["report"]'), "wait for each other in a circle: report"),
        (("train:any", "train:fail"), "no kind 'fail'; known: ok, any"),
        (("train:any", "train:any+5"), "Slurm counts minutes only from the start of a job"),
        (('after = ["prepare"]', 'after = "prepare"'), "jobs.train: after must be a list of names"),
        (("mem-per-gpu", "mem-per-gpus"), "jobs.train: no key 'mem-per-gpus'; did you mean"),
        (("time = ", "tima = "), "defaults: no key 'tima'; did you mean 'time'"),
        (("[jobs.prepare]", '[jobs."a b"]'), "'a b' is not a valid name"),
        (("report.sh", "none.sh"), "cannot read"),
        (('"10"', "10:00"), "time must be in quotes"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    path = written(tmp_path, FILE.replace(*change))
    with pytest.raises(BadInput) as told:
        load_workflow(path)
    assert says in str(told.value)
    assert str(tmp_path) in str(told.value)


def test_a_circle_is_named() -> None:
    with pytest.raises(BadInput, match=r"c -> a -> b -> c|a -> b -> c -> a|b -> c -> a -> b"):
        flow(start=(), a=("b",), b=("c",), c=("a", "start"))


@pytest.mark.parametrize("edge", ["a", "a:any", "a:start+5", "a:corr"])
def test_an_edge_is_written_as_it_is_read(edge: str) -> None:
    assert str(Edge.parse(edge)) == edge


@pytest.mark.parametrize("edge", ["", "a:", ":any", "a:any:b", "a:start+", 5])
def test_what_is_no_edge(edge: str) -> None:
    with pytest.raises(BadInput, match="NAME:KIND"):
        Edge.parse(edge)


def test_a_fan_in_stands_beside_what_it_joins() -> None:
    graph = {"p": [], "a": ["p"], "b": ["p"], "m": ["a", "b"], "r": ["m"], "e": ["a"], "x": []}
    assert [line for line, _ in draw_tree(graph)] == [
        "p",
        "├─ a",
        "│  └─ e",
        "├─ b",
        "└─ m",
        "   └─ r",
        "x",
    ]
    above = dominators(graph)
    assert waits_for(["a", "b"], above["m"]) == "after a, b"
    assert waits_for(["m"], above["r"]) == ""
    assert waits_for(["m:any"], above["r"]) == "after m:any"
    assert waits_for(list("abcd"), "p") == "after a … d (4 jobs)"


def test_two_roots_that_join_have_no_common_branch() -> None:
    assert dominators({"a": [], "b": [], "c": ["a", "b"]})["c"] is None


def test_a_long_chain_can_be_drawn() -> None:
    names = [f"j{at}" for at in range(1500)]
    graph = {name: names[at - 1 : at] if at else [] for at, name in enumerate(names)}
    assert len(draw_tree(graph)) == 1500


def test_each_job_is_planned_and_the_whole_added_up() -> None:
    cluster = FlowLab()
    made = plan_workflow(flow(a=(), b=("a",), c=("a",)), cluster)
    assert list(made.plans) == ["a", "b", "c"]
    assert not made.errors
    assert "--job-name=b" in made.plans["b"].submissions[0].script
    assert (
        add_up_estimates(made.plans.values()).summary()
        == "3 jobs, at most 0 GPU-hours, 0.5 CPU-hours"
    )
    trials = [argv for argv in cluster.slurm.asked if "--test-only" in argv]  # type: ignore[attr-defined]
    assert len(trials) == 1  # slurmctld judges one of those that are alike


def test_an_error_of_a_job_names_it() -> None:
    flow = Workflow("f", {"a": job(), "b": job(partition="gpux")}, after={"b": ("a",)})
    made = plan_workflow(flow, FlowLab())
    ((name, finding),) = made.errors
    assert (name, finding.code) == ("b", "partition-unknown")


class Limited(FlowLab):
    def standing(self, user: str | None = None) -> Standing:
        del user
        found = standing()
        alice = msgspec.structs.replace(
            found.associations[-1],
            limits=Limits(max_submit=5, grp_tres_mins={"cpu": 45}),
            usage=LimitUsage(submitted=2),
        )
        return msgspec.structs.replace(found, associations=(*found.associations[:-1], alice))


def test_all_jobs_together_must_fit_into_the_queue_and_the_budget() -> None:
    three = plan_workflow(flow(a=(), b=(), c=("a",)), Limited())
    assert not three.errors
    four = plan_workflow(flow(a=(), b=(), c=("a",), d=("c",), e=()), Limited())
    ((name, finding),) = four.errors
    assert (name, finding.code) == ("", "assoc-max-submit")
    assert "the workflow has 5 jobs" in finding.message
    assert "allows 5 in the queue and has 2" in finding.message
    (budget,) = [each for each in four.findings if each.severity == "warning"]
    assert "up to 50 CPU-minutes" in budget.message


def test_an_array_counts_each_task() -> None:
    array = Workflow("f", {"a": job(array="0-2"), "b": job()})
    ((_, finding),) = plan_workflow(array, Limited()).errors
    assert "the workflow has 4 jobs" in finding.message


def test_ways_to_wait_that_cannot_be() -> None:
    jobs = {
        "a": job(array="0-3"),
        "b": job(array="0-4"),
        "c": job(dependency="afterok:1?afterok:2"),
        "d": job(array="0-3"),
    }
    after = {"b": ("a:corr",), "c": ("a:burstbuffer",), "d": ("a:corr",)}
    cluster = FlowLab()
    for job_id in ("1", "2"):
        cluster.jobs.waits(job_id)
    made = plan_workflow(Workflow("f", jobs, after=after), cluster)
    codes = {finding.code for finding in made.findings}
    assert codes == {"after-corr-indexes", "after-alternatives", "after-no-burst-buffer"}
    assert [finding.code for _, finding in made.errors if finding.code.startswith("after")] == [
        "after-alternatives"
    ]
