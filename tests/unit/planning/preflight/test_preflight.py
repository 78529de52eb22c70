"""The preflight: plans, scripts, and what runs in the job, with a stand-in for all_reduce_perf.

No GPU is used: `tests/standins/all_reduce_perf` writes the JSON of nccl-tests, and fakes of srun
and scontrol start it once per task.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from container_lab import cluster
from hypothesis import given
from hypothesis import strategies as st
from recorded_lab import capabilities, standing

from slurmkit.diagnose.log_scan import scan_log_text
from slurmkit.errors import BadConfig, BadInput
from slurmkit.planning.planner import Plan, plan_offline
from slurmkit.planning.preflight import inside
from slurmkit.planning.preflight.inside import (
    FaultyNodes,
    Preflight,
    Result,
    load_result,
    locate,
    most_runs,
    read,
)
from slurmkit.planning.request import SiteState
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch

STANDIN = Path(__file__).parents[3] / "standins" / "all_reduce_perf"
CONFIG = f"""
[preflight]
program = "{STANDIN}"
[preflight.between]
"a100:2" = 90.0
gpu = 50.0
[preflight.within]
a100 = 200.0
"""
# As jsonOutputInit and what follows in src/util.cu of nccl-tests 2.19 write it, shortened.
MEASURED = (
    '{"version":1,"args":["all_reduce_perf"],"env":["HF_TOKEN=x"],"nccl_version":22907,"config":'
    '{"nthreads":1,"blocking_collectives":"false","devices":[{"rank":0,"group":0,"pid":7,'
    '"hostname":"c1","device":0,"device_hex":"0000:1b:00","device_info":"NVIDIA H200"},{"rank":1,'
    '"device_info":"NVIDIA H200"}]},"results":[{"size":1073741824,"out_of_place":{"time":1.0,'
    '"alg_bw":90.5,"bus_bw":158.4,"nwrong":0.000000}}],"out_of_bounds":{"count":%d,"okay":"%s"},'
    '"average_bus_bandwidth":{"bandwidth":%s,"okay":"unchecked"},"errors":[""],"end_time":"x"}'
)


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG, "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return file


def planned(**given: Any) -> Plan:
    launch = given.pop("launch", Launch(preflight="nccl"))
    fields = {"command": ("echo", "work"), "nodes": 2, "gpus": Gpus(2, "a100"), "time": "10"}
    known = capabilities()
    if "container" in given:
        options = cluster("0.24").container_options
        known = msgspec.structs.replace(known, container_options=options)
    return plan_offline(
        JobSpec(**{**fields, **given, "launch": launch}), SiteState(known, standing())
    )


def codes(plan: Plan) -> set[str]:
    found = (*plan.errors, *plan.warnings, *plan.notes)
    return {each.code for each in found if each.code.startswith("preflight")}


def asked(plan: Plan) -> dict[str, Any]:
    line = next(x for x in plan.submissions[0].script.split("\n") if x.startswith("python3 -IS - "))
    found: dict[str, Any] = json.loads(line.split("'")[1])
    return found


# What runs on the node.


def test_what_runs_on_the_node_needs_no_newer_python() -> None:
    source = Path(inside.__file__).read_text("utf-8")
    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source  # `annotations` came with 3.7
    assert "import slurmkit" not in source
    assert "from slurmkit" not in source


def test_the_json_of_nccl_tests_is_read() -> None:
    good = Result(158.4, 0, "2 x NVIDIA H200", ranks=2)
    assert read(MEASURED % (0, "true", "158.400000")) == good
    wrong = read(MEASURED % (4, "false", "158.400000"))
    assert not wrong.good(0)
    assert wrong.summary == "158.4 GB/s, 4 wrong values"
    for broken in ("", "{", "[]", MEASURED % (0, "true", '"nan"'), '{"average_bus_bandwidth":1}'):
        assert read(broken).bandwidth is None
        assert read(broken).trouble
        assert not read(broken).good(0)
    assert read("", "srun: error").trouble == "srun: error"


def test_good_is_right_and_fast_enough_and_ended_well() -> None:
    assert Result(90.0).good(90.0)
    assert not Result(89.9).good(90.0)
    assert not Result(90.0, trouble="c2: exit 3").good(0)


@given(st.integers(2, 40), st.data())
def test_one_bad_node_of_three_or_more_is_found_in_few_runs(
    count: int, data: st.DataObject
) -> None:
    nodes = [f"c{n}" for n in range(count)]
    bad = data.draw(st.sampled_from(nodes))
    alone = data.draw(st.booleans())
    runs = []

    def passes(group: tuple[str, ...]) -> bool:
        runs.append(group)
        assert alone or len(group) > 1
        return bad not in group or len(group) == 1

    found = locate(nodes, passes, alone=alone)
    assert found == (FaultyNodes((bad,)) if count > 2 else FaultyNodes((), tuple(nodes)))
    assert len(set(runs)) <= most_runs(count)


@given(st.integers(1, 24), st.data())
def test_no_good_node_is_called_bad_and_no_bad_one_is_forgotten(
    count: int, data: st.DataObject
) -> None:
    nodes = [f"c{n}" for n in range(count)]
    bad = data.draw(st.sets(st.sampled_from(nodes), min_size=1))
    found = locate(nodes, lambda group: not bad & set(group), alone=True)
    assert set(found.bad) <= bad
    assert bad <= {*found.bad, *found.suspects}


def test_where_each_part_is_good_no_node_is_blamed() -> None:
    assert locate(["a", "b", "c", "d"], lambda group: len(group) < 4, alone=True) == FaultyNodes(())


def flight(measured: dict[str, Result], policy: str = "requeue") -> Preflight:
    """Whose runs give what is known of the first bad node in them."""
    ask = {"gpus": 2, "between": 80.0, "within": 200.0, "policy": policy}
    fine = {1: Result(230.0), 2: Result(95.0)}

    def measure(_: dict[str, Any], nodes: tuple[str, ...]) -> Result:
        named = (measured[n] for n in nodes if n in measured)
        return next(named, fine[min(2, len(nodes))])

    return Preflight(ask, measure)


def test_the_verdict_names_the_node_and_what_it_gave() -> None:
    made = flight({"c3": Result(12.0)})
    nodes = ("c1", "c2", "c3", "c4")
    found = made.run(nodes)
    assert found == FaultyNodes(("c3",))
    assert made.verdict(nodes, found) == "c3 is bad: 12.0 GB/s with c1, at least 80.0 expected"
    assert made.leaves(nodes, found) == ("c3",)


def test_nothing_goes_back_where_all_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ("c1", "c2", "c3")
    made = flight(dict.fromkeys(nodes, Result(12.0)))
    found = made.run(nodes)
    assert found is not None
    assert not made.leaves(nodes, found)
    assert "is too much expected?" in made.verdict(nodes, found)
    one = flight({"c1": Result(12.0)})
    found = one.run(("c1",))
    assert found == FaultyNodes(("c1",))
    assert one.leaves(("c1",), found) == ("c1",)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(inside.MOST_REQUEUES))
    assert not one.leaves(("c1",), found)


def test_a_program_that_runs_nowhere_blames_no_node() -> None:
    nodes = tuple(f"c{n}" for n in range(32))
    made = flight(dict.fromkeys(nodes, Result(trouble="slurmstepd\nexecve(): no such file")))
    found = made.run(nodes)
    assert found is not None
    assert not made.leaves(nodes, found)
    assert made.verdict(nodes, found) == (
        f"{','.join(nodes)} could not be measured: execve(): no such file"
    )
    assert len(made.results) <= most_runs(32) + 1


def test_a_result_is_kept_for_its_time(tmp_path: Path) -> None:
    path = inside.result_path({"gpus": 2, "srun": [], "program": ["x"]}, ["c2", "c1"])
    assert path == inside.result_path({"gpus": 2, "srun": [], "program": ["x"]}, ["c1", "c2"])
    assert path != inside.result_path({"gpus": 2, "srun": [], "program": ["x"]}, ["c1", "c3"])
    assert path.is_relative_to(tmp_path / "state")
    assert load_result(path, 24) is None
    inside.keep(path, Result(95.0, 0, "2 x H200"), ["c1", "c2"])
    assert path.parent.stat().st_mode & 0o077 == 0
    found = load_result(path, 24)
    assert found is not None
    assert found[0] == Result(95.0)
    old = json.loads(path.read_text("utf-8")) | {"taken": time.time() - 3700}
    path.write_text(json.dumps(old), "utf-8")
    assert load_result(path, 1) is None
    assert load_result(path, 2) is not None
    path.write_text("{", "utf-8")
    assert load_result(path, 2) is None


# The whole script, in bash.

SRUN = """#!/usr/bin/env python3
import os, subprocess, sys
given, command = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
if "all_reduce_perf" not in " ".join(command):
    sys.exit(subprocess.call(command))
options = dict(each.lstrip("-").partition("=")[::2] for each in given)
nodes, each = options["nodelist"].split(","), int(options["ntasks-per-node"])
assert int(options["ntasks"]) == each * len(nodes) and int(options["nodes"]) == len(nodes)
assert "HF_TOKEN" not in os.environ and "SLURM_CPUS_PER_TASK" not in os.environ
worst = 0
for rank in range(each * len(nodes)):
    task = {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": nodes[rank // each],
            "SLURM_STEP_NODELIST": options["nodelist"], "CUDA_VISIBLE_DEVICES": "2,5",
            "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{len(nodes)})"}
    worst = max(worst, subprocess.call(command, env={**os.environ, **task}))
sys.exit(worst)
"""
SCONTROL = """#!/bin/bash
[ "$1" = show ] || echo "$*" >>"$SCONTROL_LOG"
case "$*" in
"show hostnames "*) tr , '\\n' <<<"$3" ;;
"show hostlist "*) echo "$3" ;;
requeue*) exit "${REQUEUE:-0}" ;;
esac
"""
# As squeue with --format: only what is asked for, and what stands between it.
SQUEUE = """#!/bin/bash
[ -z "$SQUEUE_STATES" ] || exit 0
for id in 6 "$SLURM_JOB_ID"; do
  line="${!#}" line="${line#--format=}" line="${line//%A/$id}"
  line="${line//%n/$REQUIRED}"
  if [ "$id" = 6 ]; then line="${line//%x/c8}"; fi
  line="${line//%x/c9}"
  echo "${line//%j/$NAME}"
done
"""


class Node:
    """A first node of a job, with fakes of srun and scontrol."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "squeue": SQUEUE}.items():
            (folder / name).write_text(text, "utf-8")
            (folder / name).chmod(0o755)
        self.log = folder / "scontrol.log"

    def run(self, plan: Plan, bad: dict[str, Any], **env: str) -> subprocess.CompletedProcess[str]:
        setup = self.folder / "setup.json"
        setup.write_text(json.dumps({"fast": 95.0, "alone": 230.0, "bad": bad}), "utf-8")
        known = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "STANDIN": str(setup),
            "SCONTROL_LOG": str(self.log),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "c1,c2,c3",
            "SLURM_CPUS_PER_TASK": "1",
            "XDG_STATE_HOME": str(self.folder / "state"),
        }
        script = plan.submissions[0].script
        return subprocess.run(
            ["bash", "-c", script], env=known | env, capture_output=True, text=True, check=False
        )

    def told(self) -> list[str]:
        return self.log.read_text("utf-8").splitlines() if self.log.exists() else []


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_good_nodes_begin_the_work_and_are_remembered(node: Node) -> None:
    done = node.run(planned(nodes=3), {})
    assert (done.returncode, done.stdout) == (0, "work\n")
    # The log itself tells that no GPU was measured.
    assert "c1,c2,c3: 95.0 GB/s (at least 81.0 expected) on 6 x stand-in, no GPU" in done.stderr
    again = node.run(planned(nodes=3), {"c2": {"bandwidth": 1}})
    assert (again.returncode, again.stdout) == (0, "work\n")
    assert "95.0 GB/s, measured 0.0 h ago" in again.stderr
    others = node.run(planned(nodes=2), {"c2": {"bandwidth": 1}}, SLURM_JOB_NODELIST="c1,c2")
    assert others.returncode == 1


@pytest.mark.parametrize(
    "how", [{"bandwidth": 12.5}, {"wrong": 3}, {"exit": 3}, {"bandwidth": 9, "inside": True}]
)
def test_a_bad_node_stops_the_job_and_is_named(node: Node, how: dict[str, Any]) -> None:
    done = node.run(planned(nodes=3), {"c3": how})
    assert (done.returncode, done.stdout) == (1, "")
    assert "slurmkit: preflight failed: c3 is bad: " in done.stderr
    assert "stopped, the job's work was not begun" in done.stderr
    assert node.told() == []
    reading = scan_log_text(done.stderr)
    assert reading.is_cause
    assert reading.first_error is not None
    assert "c3 is bad" in reading.first_error.text


def test_two_nodes_that_are_good_by_themselves_are_both_named(node: Node) -> None:
    done = node.run(planned(), {"c2": {"bandwidth": 9}}, SLURM_JOB_NODELIST="c1,c2")
    assert "9.0 GB/s over c1,c2, at least 81.0 expected: one of c1,c2 is bad" in done.stderr


def test_it_ends_what_takes_too_long(node: Node, configured: Path) -> None:
    configured.write_text(CONFIG.replace("[preflight]", "[preflight]\nseconds = 1"), "utf-8")
    done = node.run(planned(nodes=1), {"c1": {"sleep": 5}}, SLURM_JOB_NODELIST="c1")
    assert done.returncode == 1
    assert "c1 could not be measured: it was not over after 1 s" in done.stderr


def requeueing(configured: Path) -> None:
    text = CONFIG.replace("[preflight]", '[preflight]\npolicy = "requeue"')
    configured.write_text(text, "utf-8")


def test_by_policy_it_goes_back_without_the_node(node: Node, configured: Path) -> None:
    requeueing(configured)
    plan = planned(nodes=3)
    assert "#SBATCH --requeue\n" in plan.submissions[0].script
    assert "#SBATCH --open-mode=append\n" in plan.submissions[0].script
    done = node.run(plan, {"c3": {"bandwidth": 12.5}})
    assert (done.returncode, done.stdout) == (1, "")
    assert node.told() == ["requeue 7", "update JobId=7 ExcNodeList=c9,c3"]
    assert "goes back to the queue without c3" in done.stderr


def test_of_an_array_one_task_goes_back(node: Node, configured: Path) -> None:
    requeueing(configured)
    array = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
    node.run(planned(nodes=3), {"c3": {"bandwidth": 12.5}}, **array)
    assert node.told() == ["requeue 5_2", "update JobId=5_2 ExcNodeList=c9,c3"]


@pytest.mark.parametrize("name", ["x ReqNodeList=c3 ExcNodeList=c1", "x|c3|c1|\n7|c3|c1|"])
def test_a_name_that_looks_like_a_list_of_nodes_is_none(
    node: Node, configured: Path, name: str
) -> None:
    requeueing(configured)
    done = node.run(
        planned(nodes=3), {"c3": {"bandwidth": 12.5}}, NAME=name, SQUEUE_STATES="PENDING"
    )
    assert node.told() == ["requeue 7", "update JobId=7 ExcNodeList=c9,c3"], done.stderr


def test_a_job_of_which_slurm_tells_nothing_stops(node: Node, configured: Path) -> None:
    """Without them the nodes it excludes would be lost."""
    requeueing(configured)
    (node.folder / "squeue").write_text("#!/bin/sh\nexit 1\n", "utf-8")
    done = node.run(planned(nodes=3), {"c3": {"bandwidth": 12.5}})
    assert "Slurm does not say which nodes the job asks for" in done.stderr
    assert node.told() == []


@pytest.mark.parametrize(
    "why", [{"REQUEUE": "1"}, {"REQUIRED": "c3"}, {"SLURM_RESTART_COUNT": "3"}]
)
def test_what_may_not_go_back_stops(node: Node, configured: Path, why: dict[str, str]) -> None:
    requeueing(configured)
    done = node.run(planned(nodes=3), {"c3": {"bandwidth": 12.5}}, **why)
    assert done.returncode == 1
    assert "stopped, the job's work was not begun" in done.stderr
    assert not any(word.startswith("update") for word in node.told())


def test_secrets_stay_out_of_what_the_program_writes() -> None:
    plan = planned(environment={"HF_TOKEN": "hf_secret", "A": "1"})
    assert asked(plan)["without"] == ["HF_TOKEN"]


def test_a_job_of_two_nodes_goes_back_without_both_once(node: Node, configured: Path) -> None:
    """The plan promised it, and the commonest job always stopped."""
    requeueing(configured)
    plan = planned()
    (words,) = [note.message for note in plan.notes if note.code == "preflight"]
    assert words.endswith("(of two nodes that are bad only together: without both, once)")
    bad = {"c2": {"bandwidth": 9}}
    done = node.run(plan, bad, SLURM_JOB_NODELIST="c1,c2")
    assert node.told() == ["requeue 7", "update JobId=7 ExcNodeList=c9,c1,c2"]
    assert "goes back to the queue without c1, c2" in done.stderr
    done = node.run(plan, bad, SLURM_JOB_NODELIST="c1,c2", SLURM_RESTART_COUNT="1")
    assert "stopped, the job's work was not begun" in done.stderr
    nowhere = {name: {"exit": 3} for name in ("c1", "c2")}
    done = node.run(plan, nowhere, SLURM_JOB_NODELIST="c1,c2")
    assert "stopped, the job's work was not begun" in done.stderr
    assert len(node.told()) == 2


def test_a_job_with_tasks_for_each_gpu_is_measured(node: Node) -> None:
    """srun refused --ntasks-per-node where SLURM_NTASKS_PER_GPU is set."""
    refuses = 'assert "SLURM_NTASKS_PER_GPU" not in os.environ\nworst = 0\n'
    text = SRUN.replace("worst = 0\n", refuses, 1)
    (node.folder / "srun").write_text(text, "utf-8")
    done = node.run(planned(nodes=3), {}, SLURM_NTASKS_PER_GPU="1")
    assert (done.returncode, done.stdout) == (0, "work\n"), done.stderr


def test_processes_that_do_not_find_each_other_are_no_measurement(node: Node) -> None:
    """With a wrong MPI plugin each rank measured itself alone."""
    alone = STANDIN.read_text("utf-8").replace('"devices": devices', '"devices": devices[:1]')
    program = node.folder / "all_reduce_perf"
    program.write_text(alone, "utf-8")
    program.chmod(0o755)
    plan = planned(nodes=3)
    script = plan.submissions[0].script.replace(str(STANDIN), str(program))
    sent = msgspec.structs.replace(plan.submissions[0], script=script)
    done = node.run(msgspec.structs.replace(plan, submissions=(sent,)), {})
    assert done.returncode == 1
    assert "could not be measured: only 1 of 6" in done.stderr
    assert "processes measured together: its MPI does not work with srun --mpi=pmix" in done.stderr


def test_an_image_is_unpacked_once_for_all_runs(node: Node, configured: Path) -> None:
    """Each run unpacked it anew, within the 120 s of the measurement."""
    configured.write_text(CONFIG.replace("program", "image_program", 1), "utf-8")
    image = Container(image="/images/x.sqsh", runtime="pyxis", mounts=("/data",))
    plan = planned(nodes=3, container=image)
    assert asked(plan)["unpack"] is True
    log = node.folder / "srun.log"
    tells = f'open("{log}", "a").write(" ".join(given) + "\\n")\n'
    text = SRUN.replace('if "all_red', f'{tells}if "all_red', 1)
    (node.folder / "srun").write_text(text, "utf-8")
    done = node.run(plan, {"c3": {"bandwidth": 12.5}}, SLURM_RESTART_COUNT="2")
    assert "c3 is bad: 12.5 GB/s" in done.stderr, done.stderr
    first, *runs, last = log.read_text("utf-8").splitlines()
    on_each = "--nodes=3 --nodelist=c1,c2,c3 --ntasks=3 --ntasks-per-node=1 --mpi=none"
    name = "--container-name=slurmkit_preflight_7_2"
    assert (
        first == f"{on_each} {name} --container-image=/images/x.sqsh --container-mounts=/data:/data"
    )
    assert last == on_each
    assert len(runs) > 1
    for words in runs:
        assert f" {name} " in words
        assert " --container-mounts=/data:/data " in words
        assert "--container-image" not in words


def test_an_image_that_cannot_be_unpacked_stops_the_job(node: Node, configured: Path) -> None:
    """The step that unpacks the image has an error of its own."""
    configured.write_text("", "utf-8")
    plan = planned(nodes=2, container=Container(image="/images/x.sqsh", runtime="pyxis"))
    (node.folder / "srun").write_text("#!/bin/sh\nexit 1\n", "utf-8")
    done = node.run(plan, {})
    assert (done.returncode, done.stdout) == (1, "")
    assert "preflight failed: the image could not be unpacked" in done.stderr


def test_an_image_that_takes_too_long_to_unpack_stops_the_job(node: Node, configured: Path) -> None:
    configured.write_text("[preflight]\nunpack_seconds = 1\n", "utf-8")
    plan = planned(nodes=2, container=Container(image="/images/x.sqsh", runtime="pyxis"))
    message = next(each.message for each in plan.notes if each.code == "preflight")
    assert "the image is unpacked on each node in at most 1 s" in message
    hangs = '#!/bin/sh\ncase "$*" in *--container-image=*) exec sleep 600;; esac\n'
    (node.folder / "srun").write_text(hangs, "utf-8")
    done = node.run(plan, {})
    assert (done.returncode, done.stdout) == (1, "")
    assert "the image was not unpacked on each node within 1 s; for a larger image" in done.stderr
    assert "unpack_seconds in [preflight] of the configuration" in done.stderr


# The plan.


def test_a_plan_says_what_it_does_and_what_it_costs() -> None:
    plan = planned(nodes=3)
    message = next(each.message for each in plan.notes if each.code == "preflight")
    assert "at most 120 s" in message
    assert "less than 81 GB/s" in message
    assert "up to 12 more runs" in message
    assert "the job stops" in message
    assert planned(nodes=3).submissions == plan.submissions
    assert codes(planned(launch=Launch())) == set()


def test_what_is_expected_is_that_of_the_gpus_else_of_the_partition() -> None:
    assert (asked(planned())["between"], asked(planned())["within"]) == (81.0, 180.0)
    four = asked(planned(gpus=Gpus(4, "a100")))
    assert (four["between"], four["within"]) == (45.0, 180.0)


def test_where_nothing_is_expected_the_plan_warns(configured: Path) -> None:
    configured.write_text(f'[preflight]\nprogram = "{STANDIN}"\n', "utf-8")
    plan = planned()
    assert codes(plan) == {"preflight", "preflight-unknown"}
    message = next(each.message for each in plan.warnings if each.code == "preflight-unknown")
    assert message.endswith("in [preflight.between]: a100:2, a100, gpu:2, gpu")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"gpus": None}, "preflight-gpus"),
        ({"gpus": Gpus(shard=1)}, "preflight-gpus"),
        ({"gpus": Gpus(3, per="job")}, "preflight-gpus"),
        ({"gpus": Gpus(1), "nodes": 1}, "preflight-one"),
        ({"command": (), "script": "#!/bin/sh\nx\n"}, "preflight-script"),
    ],
)
def test_what_cannot_be_measured_is_refused(fields: dict[str, Any], code: str) -> None:
    plan = planned(**fields)
    assert code in codes(plan)
    assert code in {each.code for each in plan.errors}


def test_binding_is_that_of_the_jobs_own_tasks() -> None:
    """The test's processes are not the job's tasks."""
    launch = Launch(preflight="nccl", cpu_bind="cores", label=True)
    given = " ".join(asked(planned(launch=launch))["srun"])
    assert "--cpu-bind" not in given
    assert "--label" not in given


def test_mpi_comes_from_srun(configured: Path) -> None:
    assert "--mpi=pmix" in asked(planned())["srun"]
    configured.write_text(f'{CONFIG}[launch]\nmpi = "mpirun"\n', "utf-8")
    assert "preflight-mpi" in codes(planned())


def test_without_a_program_the_image_has_it(configured: Path) -> None:
    configured.write_text("", "utf-8")
    assert "preflight-program" in codes(planned())
    inside_it = planned(container=Container(image="/images/x.sqsh", runtime="pyxis"))
    assert "preflight-program" not in codes(inside_it)
    kept_one = planned(container=Container(image="/images/x.sqsh", runtime="pyxis", name="a"))
    assert "preflight-container" in codes(kept_one)


def test_its_step_has_the_cpus_and_gpus_of_the_node() -> None:
    bound = planned(
        gpus=Gpus(2, "a100", bind="single:1"), launch=Launch(preflight="nccl", label=True)
    )
    srun = asked(bound)["srun"]
    assert "--gpu-bind=none" in srun
    assert "--label" not in srun
    assert {"--cpus-per-task=1", "--overcommit"} <= set(srun)
    torch = Launch(preflight="nccl", launcher="torchrun")
    srun = asked(planned(launch=torch, cpus_per_task=4))["srun"]
    assert "--cpus-per-task=4" in srun
    assert "--overcommit" not in srun


def test_no_requeue_stops_and_says_so(configured: Path) -> None:
    requeueing(configured)
    plan = planned(requeue=False)
    assert "preflight-no-requeue" in codes(plan)
    assert asked(plan)["policy"] == "stop"


def test_wrong_values_are_refused(configured: Path) -> None:
    with pytest.raises(BadInput, match="preflight"):
        Launch(preflight="mpi")
    configured.write_text('[preflight]\npolicy = "drain"\n', "utf-8")
    with pytest.raises(BadConfig, match="policy"):
        planned()
