"""Options of sbatch in a whole plan: what is sent, what is checked, and what is estimated."""

from __future__ import annotations

from typing import Any

import pytest
from checked_requests import request, with_config, with_nodes
from recorded_lab import capabilities, standing

from slurmkit.planning.planner import Plan, SiteState, plan_offline
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch

SCRIPT = "#!/bin/sh\nsrun ./a.out\n"


def made(**spec: Any) -> Plan:
    runs = {} if "script" in spec else {"command": ("x",)}
    asked = JobSpec(**{"time": "1:00:00", "partition": "gpu", **runs, **spec})
    return plan_offline(asked, SiteState(capabilities(), standing()))


def options(plan: Plan) -> dict[str, str]:
    return dict(plan.submissions[0].options)


def uses(plan: Plan) -> tuple[float | None, float]:
    """CPU-hours and GPU-hours of one hour."""
    assert plan.estimate is not None
    assert plan.estimate.gpu_hours is not None
    return plan.estimate.cpu_hours, sum(plan.estimate.gpu_hours.values())


def test_tasks_for_each_gpu_of_a_command() -> None:
    """No launcher adds an option that sbatch or srun then refuses."""
    plan = made(gpus=Gpus(2, "a100"), ntasks_per_gpu=2, nodes=2)
    sent = options(plan)
    assert (sent["ntasks-per-node"], sent["gpus-per-node"]) == ("4", "a100:2")
    assert "ntasks-per-gpu" not in sent
    assert "srun --cpus-per-task=1 --gpu-bind=single:2 -- x" in plan.submissions[0].script
    assert uses(plan) == (8.0, 4.0)


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "accelerate", "deepspeed", "mpi"])
def test_no_launcher_gives_tasks_for_each_gpu_to_slurm(launcher: str) -> None:
    """`--option ntasks-per-gpu=1` with every launcher."""
    plan = made(
        command=("python", "train.py"), gpus=Gpus(2, "a100"), ntasks_per_gpu=1, nodes=2,
        launch=Launch(launcher=launcher),
    )  # fmt: skip
    sent = options(plan)
    assert (sent["ntasks-per-node"], "ntasks-per-gpu" in sent) == ("2", False)


@pytest.mark.parametrize(
    ("launcher", "each", "bind", "bound"),
    [
        ("srun", 1, None, None),
        ("srun", 2, None, "single:2"),
        ("srun", 1, "single:1", "single:1"),
        ("srun", 1, "none", "none"),
        ("srun", None, None, None),
        (None, 1, None, "single:1"),
    ],
)
def test_the_gpu_of_a_local_rank_is_there_unless_said(
    launcher: str | None, each: int | None, bind: str | None, bound: str | None
) -> None:
    """torch.cuda.set_device(LOCAL_RANK) fails in a task that is bound to one GPU."""
    plan = made(gpus=Gpus(2, bind=bind), ntasks_per_gpu=each, launch=Launch(launcher=launcher))
    words = plan.submissions[0].script.split("\nsrun ")[1].split(" -- ")[0].split()
    shown = [word.partition("=")[2] for word in words if word.startswith("--gpu-bind=")]
    assert shown == ([bound] if bound else [])
    noted = any(note.code == "local-rank-gpu" for note in plan.notes)
    assert noted is (launcher == "srun" and bound not in (None, "none"))
    unbound = any(note.code == "ranks-see-all-gpus" for note in plan.notes)
    assert unbound is (launcher == "srun" and each == 1 and bound is None)


def test_tasks_for_each_gpu_of_a_script_are_left_to_slurm() -> None:
    plan = made(script=SCRIPT, gpus=Gpus(2, "a100"), ntasks_per_gpu=2)
    assert options(plan)["ntasks-per-gpu"] == "2"
    assert not options(plan).keys() & {"ntasks", "ntasks-per-node"}
    assert uses(plan) == (4.0, 2.0)


def test_tasks_give_the_number_of_gpus() -> None:
    plan = made(ntasks=8, ntasks_per_gpu=2)
    assert options(plan)["gpus-per-node"] == "4"
    assert uses(plan) == (8.0, 4.0)


def test_a_number_of_tasks_that_slurm_would_change_is_said() -> None:
    plan = made(gpus=Gpus(4, "a100"), nodes=1, ntasks=6, ntasks_per_gpu=2)
    (found,) = (each for each in plan.warnings if each.code == "ntasks-of-gpus")
    assert "makes 8 tasks of 4 GPUs" in found.message
    assert uses(plan) == (8.0, 4.0)


def test_cpus_for_each_gpu_are_not_rounded_down() -> None:
    plan = made(gpus=Gpus(2, "a100"), cpus_per_gpu=4, ntasks=3, nodes=1)
    assert options(plan)["cpus-per-gpu"] == "4"
    assert "cpus-per-task" not in options(plan)
    assert uses(plan) == (8.0, 2.0)


def test_fewest_cpus_of_a_node() -> None:
    """The script's own tasks and CPUs undid `--mincpus`."""
    plan = made(mincpus=16)
    assert (options(plan)["cpus-per-task"], uses(plan)[0]) == ("16", 16.0)
    shared = made(mincpus=16, ntasks_per_node=4)
    assert (options(shared)["cpus-per-task"], uses(shared)[0]) == ("4", 16.0)
    script = made(mincpus=16, script=SCRIPT)
    assert ("cpus-per-task" in options(script), uses(script)[0]) == (False, 16.0)
    (found,) = made(mincpus=16, cpus_per_task=2).warnings
    assert (found.code, found.fix_words) == ("mincpus-unused", "no --cpus-per-task")


@pytest.mark.parametrize("script", [None, SCRIPT])
def test_fewest_cpus_beside_a_number_of_tasks_only_select_nodes(script: str | None) -> None:
    """As for raw sbatch: 4 CPUs."""
    plan = made(mincpus=16, ntasks=4, nodes=1, **({"script": script} if script else {}))
    assert uses(plan)[0] == 4.0
    assert options(plan)["mincpus"] == "16"
    (found,) = plan.warnings
    assert (found.code, found.fix_words) == ("mincpus-unused", "--cpus-per-task=4")
    enough = made(mincpus=16, ntasks=4, nodes=1, cpus_per_task=4)
    assert (uses(enough)[0], enough.warnings) == (16.0, ())


def test_gpus_for_each_socket() -> None:
    plan = made(gpus=Gpus(4, "a100", sockets=2), sockets_per_node=2)
    sent = options(plan)
    assert (sent["gpus-per-socket"], sent["sockets-per-node"]) == ("a100:2", "2")
    assert "gpus-per-node" not in sent
    assert uses(plan) == (2.0, 4.0)
    assert [note.code for note in plan.notes] == ["implied-tasks"]


def test_a_fix_keeps_the_gpus_on_their_sockets() -> None:
    spec = {"gpus": Gpus(18, "a100", sockets=2), "sockets_per_node": 2, "ntasks_per_node": 1}
    (found,) = made(**spec).errors
    assert (found.code, found.fix_words) == (
        "gpus-per-node",
        "--gpus-per-socket=a100:4 --sockets-per-node=2",
    )


def test_a_task_for_each_thread_asked_for() -> None:
    """As in `_opt_verify` of src/sbatch/opt.c."""
    script = made(script=SCRIPT, nodes=2, sockets_per_node=2, cores_per_socket=4)
    assert "ntasks-per-node" not in options(script)
    assert uses(script)[0] == 16.0
    command = made(sockets_per_node=2, cores_per_socket=4)
    assert options(command)["ntasks-per-node"] == "8"
    own = made(sockets_per_node=2, cores_per_socket=4, ntasks_per_node=3)
    assert (options(own)["ntasks-per-node"], own.notes) == ("3", ())
    assert uses(made(nodes="1-2", sockets_per_node=2))[0] == 4.0


def test_tasks_that_share_cpus() -> None:
    """With --cpus-per-task slurmctld would place only one task on a node."""
    plan = made(overcommit=True, ntasks=64, nodes=2)
    assert uses(plan)[0] == 2.0
    assert "cpus-per-task" not in options(plan)
    own = made(overcommit=True, ntasks=2, nodes=2, cpus_per_task=4)
    assert (uses(own)[0], options(own)["cpus-per-task"]) == (8.0, "4")


@pytest.mark.parametrize(
    ("spec", "cpus"),
    [
        ({"hint": "nomultithread"}, 8),
        ({"hint": "multithread"}, 4),
        ({"threads_per_core": 1}, 8),
        ({"threads_per_core": 2}, 4),
        ({"ntasks_per_core": 1}, 8),
    ],
)
def test_a_core_counts_with_all_its_threads(spec: dict[str, Any], cpus: int) -> None:
    """As at the end of `_block_sync_core_bitmap` in select/cons_tres/dist_tasks.c."""
    names = [node.name for node in capabilities().nodes]
    known = with_config(
        with_nodes(names, sockets=2, cores_per_socket=16, threads_per_core=2),
        SelectTypeParameters="CR_CORE_MEMORY",
    )
    assert request(known, ntasks=4, nodes=1, **spec).most["cpu"] == cpus


def test_nodes_need_the_sockets_asked_for() -> None:
    (found,) = made(sockets_per_node=9, ntasks=1).errors
    assert "asks for 9 sockets on a node; no node of partition gpu has more than" in found.message


def test_flags_and_bindings_are_sent() -> None:
    plan = made(spread_job=True, hint="nomultithread", launch=Launch(cpu_bind="cores"))
    assert {"spread-job", "hint"} <= options(plan).keys()
    assert "srun --cpus-per-task=1 --cpu-bind=cores -- x" in plan.submissions[0].script


def test_a_binding_to_cpus_needs_a_step() -> None:
    warnings = made(script=SCRIPT, launch=Launch(cpu_bind="cores")).warnings
    (found,) = (each for each in warnings if each.code == "launcher-no-srun")
    assert found.message.startswith("--cpu-bind works only with srun")


def test_steps_get_the_variables_of_the_script() -> None:
    plan = made(options={"export": "PATH"}, environment={"A": "1"})
    assert "--export=ALL -- x" in plan.submissions[0].script
    assert "#SBATCH --export=PATH\n" in plan.submissions[0].script
