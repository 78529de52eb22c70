"""Launchers on top of torchrun: what accelerate and DeepSpeed's workers are told."""

from __future__ import annotations

import socket

import pytest
from launcher_lab import argv, bash, lines, needs, step

from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.sbatch_options import with_options

ACCELERATE, DEEPSPEED = Launch(launcher="accelerate"), Launch(launcher="deepspeed")
FAKES = """
srun() { while [ "$1" != -- ]; do shift; done; shift; SLURM_NODEID=1 "$@"; }
sh() { bash "$@"; }
accelerate() { echo "$2" "${@: -1}" "$PET_RDZV_ID"; }
export -f accelerate
"""


def accelerate(command: str, nodes: int = 2, gpus: int = 4) -> list[str]:
    """The words of the agent, without those that say where they meet."""
    spec = JobSpec(command=tuple(command.split()), nodes=nodes, gpus=Gpus(gpus), launch=ACCELERATE)
    words = argv(lines(step(spec)))
    words = words[words.index("--") + 1 :]
    meet = [word for word in words if word.startswith("--main_process_")]
    if nodes == 1:
        assert meet == ["--main_process_port=0"]
    else:
        assert meet[0] == f"--main_process_ip={socket.gethostname()}"
        assert int(meet[1].removeprefix("--main_process_port=")) > 1024
    assert words[:2] == ["sh", "-c"]
    assert words[3] == "sh"
    rank = ' --machine_rank="$SLURM_NODEID" "$@"'
    assert words[2].startswith("exec ")
    assert words[2].endswith(rank)
    start = words[2].removeprefix("exec ").removesuffix(rank)
    return [start, *(word for word in words[4:] if word not in meet)]


def test_accelerate_is_told_its_place_among_several_nodes() -> None:
    assert accelerate("python train.py -x") == [
        "python -m accelerate.commands.launch", "--multi_gpu", "--rdzv_backend=c10d",
        "--deepspeed_multinode_launcher=standard", "--gpu_ids=all", "--num_machines=2",
        "--num_processes=8", "train.py", "-x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "start", "rest"),
    [
        ("train.py", "accelerate launch", "--multi_gpu | train.py"),
        ("/v/bin/python3 -u -m train -x", "/v/bin/python3 -m accelerate.commands.launch",
         "--multi_gpu | -m train -x"),
        ("python -O train.py", "python -m accelerate.commands.launch",
         "--multi_gpu | --no_python python -O train.py"),
        ("./run.sh --cpu", "accelerate launch", "--multi_gpu | --no_python ./run.sh --cpu"),
        ("accelerate launch --use-fsdp train.py", "accelerate launch", " | --use-fsdp train.py"),
        ("/v/accelerate-launch --config_file=x.yaml train.py", "/v/accelerate-launch",
         " | --config_file=x.yaml train.py"),
        ("accelerate launch --mixed_precision bf16 train.py --cpu", "accelerate launch",
         "--multi_gpu | --mixed_precision bf16 train.py --cpu"),
    ],
)  # fmt: skip
def test_what_accelerate_starts(command: str, start: str, rest: str) -> None:
    kind, target = rest.split(" | ")
    counts = ["--gpu_ids=all", "--num_machines=1", "--num_processes=4"]
    expected = [start, *([kind] if kind else []), *counts, *target.split()]
    assert accelerate(command, nodes=1) == expected


def test_one_process_is_no_training_on_several_gpus() -> None:
    words = accelerate("train.py", nodes=1, gpus=1)
    counts = ["--gpu_ids=all", "--num_machines=1", "--num_processes=1"]
    assert words == ["accelerate launch", *counts, "train.py"]


def test_each_node_knows_its_number_and_a_restart_meets_nothing_of_the_last_run() -> None:
    spec = JobSpec(command=("train.py", "a b"), nodes=2, gpus=Gpus(1), launch=ACCELERATE)
    said = bash(FAKES + lines(step(spec)).replace("exec ", ""), SLURM_RESTART_COUNT="3")
    assert said == "--machine_rank=1 a b 4711-3\n"


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("train.py", ["accelerate-kind"]),
        ("accelerate launch --use_fsdp train.py", []),
        ("accelerate launch --multi_gpu --num-machines=2 --machine_rank 0 train.py",
         ["accelerate-place"]),
        ("accelerate launch --cpu train.py --num_machines=2", []),
        ("accelerate launch --multi_gpu --gpu_ids=0 train.py", ["accelerate-place"]),
        ("accelerate launch --cpu --rdzv-backend static train.py", ["accelerate-place"]),
        ("accelerate launch --cpu --same_network train.py", ["accelerate-place"]),
        ("accelerate launch --use_deepspeed --deepspeed_multinode_launcher=pdsh train.py",
         ["accelerate-place"]),
        ("torchrun train.py", ["launcher-twice", "accelerate-kind"]),
    ],
)  # fmt: skip
def test_what_accelerate_must_not_be_given_is_said(command: str, codes: list[str]) -> None:
    found = needs(JobSpec(command=tuple(command.split()), launch=ACCELERATE))
    assert [finding.code for finding in found] == codes


def test_accelerates_cpu_is_for_one_process() -> None:
    """With --cpu accelerate starts processes that are each "0 of 1"."""
    command = ("accelerate", "launch", "--cpu", "train.py")
    spec = JobSpec(command=command, nodes=1, ntasks_per_node=1, launch=ACCELERATE)
    assert [found.code for found in needs(spec)] == []
    many = ({"nodes": 2}, {"ntasks_per_node": 2, "nodes": 1}, {"gpus": Gpus(2)}, {"nodes": "1-2"})
    for fields in many:
        (found,) = needs(JobSpec(command=command, launch=ACCELERATE, **fields))  # type: ignore[arg-type]
        assert (found.severity, found.code) == ("error", "accelerate-cpu")
        assert "--launch torchrun" in found.message


def test_both_start_commands_only() -> None:
    for launch in (ACCELERATE, DEEPSPEED):
        (found,) = needs(JobSpec(script="#!/bin/bash\n", launch=launch))
        assert found.code == "launcher-needs-command"
        assert f"the launcher {launch.launcher} starts" in found.message


@pytest.mark.parametrize(
    ("command", "agent", "worker"),
    [
        ("train.py -x", "python3", "python3 -u train.py --local_rank=1 -x"),
        ("/v/bin/python train.py", "/v/bin/python", "/v/bin/python -u train.py --local_rank=1"),
        ("python -u -m a.b -x", "python", "python -u -m a.b --local_rank=1 -x"),
        ("./run -x", "python3", "./run --local_rank=1 -x"),
        ("deepspeed train.py --deepspeed", "python3",
         "python3 -u train.py --local_rank=1 --deepspeed"),
        ("/v/bin/deepspeed --module --no_local_rank a.b -x", "/v/bin/python3",
         "/v/bin/python3 -u -m a.b -x"),
        ("deepspeed --no_python ./run", "python3", "./run --local_rank=1"),
    ],
)  # fmt: skip
def test_what_deepspeeds_workers_are(command: str, agent: str, worker: str) -> None:
    spec = JobSpec(command=tuple(command.split()), gpus=Gpus(2), launch=DEEPSPEED)
    words = argv(lines(step(spec)))
    words = words[words.index("--") + 1 :]
    shared = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    assert words[:6] == [agent, *shared]
    assert words[6:8] == ["sh", "-c"]
    told = f"set -- {' '.join(words[10:])}; {words[8].replace('exec', 'echo $LOCAL_SIZE')}"
    assert bash(told, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2") == f"2 {worker}\n"


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        ("train.py", []),
        ("deepspeed train.py --num_gpus=2", []),
        ("deepspeed --num_gpus=2 train.py", ["deepspeed-command"]),
        ("deepspeed", ["deepspeed-command"]),
        ("python -O train.py", ["deepspeed-command"]),
        ("torchrun train.py", ["launcher-twice"]),
    ],
)
def test_what_deepspeed_must_not_be_given_is_said(command: str, codes: list[str]) -> None:
    found = needs(JobSpec(command=tuple(command.split()), launch=DEEPSPEED))
    assert [finding.code for finding in found] == codes


@pytest.mark.parametrize(
    ("nodes", "tasks", "gpus", "fits"),
    [
        ("1-4", 4, None, (1, 4)),
        ("1-4", 4, Gpus(2), (2, 2)),
        ("1-4", 6, Gpus(4), (1, 6)),
        ("2-3", 4, None, (2, 2)),
        ("2-3", 3, None, (3, 1)),
        (3, 7, None, (3, 3)),
    ],
)
def test_tasks_that_may_be_uneven_are_offered_evenly(
    nodes: int | str, tasks: int, gpus: Gpus | None, fits: tuple[int, int]
) -> None:
    launch = Launch(launcher="torchrun")
    spec = JobSpec(command=("x",), nodes=nodes, ntasks=tasks, gpus=gpus, launch=launch)
    (error,) = needs(spec)
    fixed = with_options(spec, error.fix)
    assert (fixed.nodes, fixed.ntasks, fixed.ntasks_per_node) == (fits[0], None, fits[1])
    assert not needs(fixed)
