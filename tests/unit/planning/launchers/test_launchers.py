"""Our launchers: what they write is run by bash, with an srun that shows what it was given."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launcher_lab import CLUSTER, JOB, argv, bash, lines, needs, step

from slurmkit.planning.launchers import base
from slurmkit.planning.launchers.base import LaunchStep, make_launcher
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@pytest.fixture
def ports() -> Iterator[list[socket.socket]]:
    """Sockets that a test opens."""
    taken: list[socket.socket] = []
    yield taken
    for each in taken:
        each.close()


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, max_size=3))
def test_srun_gets_every_word_as_it_is(words: list[str], options: list[str]) -> None:
    spec = JobSpec(command=("show", *words))
    made = argv(lines(step(spec, tuple(options), cpus=2)))
    assert made == ["--cpus-per-task=2", *options, "--", "show", *words]


@given(st.lists(WORDS, max_size=4))
def test_batch_runs_the_command_itself(words: list[str]) -> None:
    spec = JobSpec(command=("show", *words), launch=Launch(launcher="none"))
    assert argv(lines(step(spec))) == words


@pytest.mark.parametrize("name", ["A=1", "if", "time", "a b", "x+=2", "plain"])
def test_the_first_word_is_a_program_whatever_it_looks_like(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('#!/bin/sh\necho "ran $1"\n', "utf-8")
    (tmp_path / name).chmod(0o755)
    line = lines(step(JobSpec(command=(name, "x=1"), launch=Launch(launcher="none"))))
    assert bash(line, PATH=f"{tmp_path}:{os.environ['PATH']}") == "ran x=1\n"


def test_srun_by_name_starts_a_task_for_each_gpu_and_tells_its_rank() -> None:
    spec = JobSpec(command=("env",), nodes=2, gpus=Gpus(4, "a100"), launch=Launch(launcher="srun"))
    made = step(spec, cpus=3)
    assert (made.layout.ntasks_per_node, made.layout.tasks) == (4, 8)
    words = argv(lines(made))
    at = words.index("--")
    assert words[:at] == ["--cpus-per-task=3", "--wait=0", "--kill-on-bad-exit=1"]
    task = {"SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NODEID": "1", "SLURM_NTASKS": "8"}
    env = {"PATH": os.environ["PATH"]} | task
    told = subprocess.run(words[at + 1 :], env=env, capture_output=True, text=True, check=True)
    assert {"RANK=6", "LOCAL_RANK=2", "WORLD_SIZE=8", "NODE_RANK=1"} <= set(told.stdout.split())


@pytest.mark.parametrize(
    ("given", "tasks"),
    [
        (JobSpec(command=("x",), nodes=2, gpus=Gpus(3)), 6),
        (JobSpec(command=("x",), nodes=2, gpus=Gpus(6, per="job")), 6),
        (JobSpec(command=("x",), nodes=2, ntasks_per_node=1, gpus=Gpus(3)), 2),
        (JobSpec(command=("x",), ntasks=5, gpus=Gpus(3)), 5),
        (JobSpec(command=("x",), nodes=2), 2),
        (JobSpec(command=("x",), gpus=Gpus(shard=1)), 1),
    ],
)
def test_a_job_that_gives_its_tasks_keeps_them(given: JobSpec, tasks: int) -> None:
    for name in ("srun", "torchrun"):
        spec = msgspec.structs.replace(given, launch=Launch(launcher=name))
        assert step(spec).layout.tasks == tasks
    assert step(given).layout.tasks <= tasks


def test_torchrun_on_several_nodes() -> None:
    launch = Launch(launcher="torchrun")
    spec = JobSpec(command=("train.py", "a b"), nodes=2, gpus=Gpus(4), launch=launch)
    words = argv(lines(step(spec, ("--gpu-bind=closest", "--label"), cpus=6)))
    port = words[words.index("--rdzv-backend=c10d") + 1].rpartition(":")[2]
    assert words == [
        "--nodes=2", "--ntasks=2", "--cpus-per-task=24", "--ntasks-per-node=1", "--label",
        "--mpi=none", "--wait=0", "--kill-on-bad-exit=1", "--",
        "torchrun", "--nnodes=2", "--nproc-per-node=4", "--rdzv-id=4711-0", "--rdzv-backend=c10d",
        f"--rdzv-endpoint={socket.gethostname()}:{port}", "train.py", "a b",
    ]  # fmt: skip


def test_torchrun_on_one_node_needs_no_meeting() -> None:
    spec = JobSpec(command=("train.py",), ntasks_per_node=3, launch=Launch(launcher="torchrun"))
    words = argv(lines(step(spec)))
    assert words[-4:] == ["torchrun", "--standalone", "--nproc-per-node=3", "train.py"]
    assert words[:3] == ["--nodes=1", "--ntasks=1", "--cpus-per-task=3"]


@pytest.mark.parametrize(
    ("command", "agent"),
    [
        ("python train.py -x", "python -m torch.distributed.run | train.py -x"),
        ("/v/bin/python3.11 -u -m train -x",
         "/v/bin/python3.11 -m torch.distributed.run | -m train -x"),
        ("python -O train.py",
         "python -m torch.distributed.run | --no-python python -O train.py"),
        ("python -W error -m train",
         "python -m torch.distributed.run | --no-python python -W error -m train"),
        ("python -um train",
         "python -m torch.distributed.run | --no-python python -um train"),
        ("python -c pass", "python -m torch.distributed.run | --no-python python -c pass"),
        ("python", "python -m torch.distributed.run | --no-python python"),
        ("./run.sh -x", "torchrun | --no-python ./run.sh -x"),
        ("dir/train.py", "torchrun | dir/train.py"),
    ],
)  # fmt: skip
def test_what_torchrun_starts(command: str, agent: str) -> None:
    spec = JobSpec(command=tuple(command.split()), launch=Launch(launcher="torchrun"))
    words = argv(lines(step(spec)))
    first, last = agent.split(" | ")
    found = words[words.index("--") + 1 :]
    assert " ".join(found) == f"{first} --standalone --nproc-per-node=1 {last}"


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("torchrun train.py --max-restarts 3", "torchrun | train.py --max-restarts 3"),
        ("/v/torchrun --max_restarts 3 -m a.b -x", "/v/torchrun | --max-restarts=3 -m a.b -x"),
        ("torchrun --log_dir=/x -t 3 -r 0:1 --no-python ./run",
         "torchrun | --log-dir=/x -t3 -r0:1 --no-python ./run"),
        ("python3 -m torch.distributed.run --local-addr 10.0.0.1 train.py -m 3",
         "python3 -m torch.distributed.run | --local-addr=10.0.0.1 train.py -m 3"),
        ("torchrun --new-option=1 x.py", "torchrun | --new-option=1 x.py"),
    ],
)  # fmt: skip
def test_torchruns_own_command_is_taken_apart(command: str, made: str) -> None:
    """torchrun was started in torchrun, with only a warning."""
    launch = Launch(launcher="torchrun")
    spec = JobSpec(command=tuple(command.split()), nodes=2, gpus=Gpus(2), launch=launch)
    assert not needs(spec)
    words = argv(lines(step(spec)))
    found = " ".join(words[words.index("--") + 1 :])
    first, last = made.split(" | ")
    assert found.startswith(f"{first} --nnodes=2 --nproc-per-node=2 --rdzv-id=4711-0 ")
    assert found.partition("--rdzv-endpoint=")[2].partition(" ")[2] == last


@pytest.mark.parametrize(
    ("command", "worker"),
    [
        ("torchrun -t 3 train.py -m", "exec python3 -u train.py -m >"),
        ("/v/bin/torchrun -m a.b -x", "exec /v/bin/python3 -u -m a.b -x >"),
        ("/v/python -m torch.distributed.run x.py", "exec /v/python -u x.py >"),
        ("torchrun --no-python ./run", "exec ./run >"),
    ],
)
def test_a_worker_of_torchruns_own_command_has_its_log(command: str, worker: str) -> None:
    """The worker is started by the Python that torchrun would take."""
    launch = Launch(launcher="torchrun", log_per_rank=True)
    words = argv(lines(step(JobSpec(command=tuple(command.split()), launch=launch))))
    assert words[-4:-1] == ["--no-python", "sh", "-c"]
    assert words[-1].startswith(worker)


@pytest.mark.parametrize(
    ("options", "fields", "code"),
    [
        ("--nproc_per_node 4", {}, "torchrun-place"),
        ("--standalone --rdzv-id=7", {}, "torchrun-place"),
        ("--master-addr x", {}, "torchrun-place"),
        ("--nnodes 2", {"nodes": 2}, "torchrun-place"),
        ("--what 3", {}, "torchrun-option"),
        ("--nnodes 1:2", {}, "torchrun-elastic"),
        ("--nnodes 3:4", {"nodes": 2}, "torchrun-elastic"),
    ],
)
def test_what_torchruns_own_command_must_not_have(
    options: str, fields: dict[str, Any], code: str
) -> None:
    """Nodes and ports are the job's."""
    command = ("torchrun", *options.split(), "train.py")
    spec = JobSpec(command=command, launch=Launch(launcher="torchrun"), **fields)
    (found,) = needs(spec)
    assert (found.severity, found.code) == ("error", code)
    (found,) = needs(JobSpec(command=("torchrun",), launch=Launch(launcher="torchrun")))
    assert "the command has no script" in found.message


def test_elastic_training_goes_on_with_the_nodes_that_are_left() -> None:
    """There was no MIN:MAX, and the first failed agent ended all."""
    command = ("torchrun", "--nnodes=2:4", "--max-restarts=3", "train.py")
    spec = JobSpec(command=command, nodes="2-4", launch=Launch(launcher="torchrun"))
    note, warning = needs(spec)
    assert note.message.startswith("elastic training: with 4 nodes at most, the others go on while")
    assert "add --option no-kill" in warning.message
    (_,) = needs(msgspec.structs.replace(spec, options={"no-kill": ""}))
    words = argv(lines(step(spec)))
    at = words.index("--")
    assert words[at - 3 : at] == ["--wait=0", "--kill-on-bad-exit=0", "--no-kill"]
    assert words[at + 1 : at + 3] == ["torchrun", "--nnodes=2:2"]  # of the 2 that Slurm gave
    assert words[-2:] == ["--max-restarts=3", "train.py"]


@pytest.mark.parametrize("launcher", ["srun", "mpi", "torchrun", "accelerate", "deepspeed"])
def test_tasks_counted_for_each_gpu_are_not_counted_again(launcher: str) -> None:
    """A launcher added --ntasks-per-node, which sbatch and srun refuse."""
    spec = JobSpec(
        command=("train.py",),
        nodes=2,
        gpus=Gpus(2),
        ntasks_per_gpu=1,
        launch=Launch(launcher=launcher),
    )
    made = step(spec)
    assert made.spec.launch.per_gpu is None
    assert made.tasks_per_node == 2
    check = 'srun() { [ -z "${SLURM_NTASKS_PER_GPU+set}" ] && echo unset; }\n' + lines(made)
    if launcher not in ("srun", "mpi"):  # whose step has one task on each node
        assert bash(check, SLURM_NTASKS_PER_GPU="1") == "unset\n"


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (JobSpec(command=("x",), nodes="1-4", ntasks=4), "launcher-uneven"),
        (JobSpec(command=("x",), nodes=2, gpus=Gpus(5, per="job")), "launcher-uneven"),
        (JobSpec(script="#!/bin/bash\n"), "launcher-needs-command"),
        (JobSpec(command=("x",), launch=Launch(mpi="pmix")), "launcher-no-mpi"),
        (JobSpec(command=("x",), gpus=Gpus(2, bind="closest")), "launcher-no-binding"),
        (JobSpec(command=("x",), nodes=2, ntasks=4), None),
        (JobSpec(command=("/v/bin/torchrun", "x.py")), None),
        (JobSpec(command=("/v/bin/mpirun", "x.py")), "launcher-twice"),
        (JobSpec(command=("/v/bin/torchrun", "x.py"), exclusive=True), "exclusive-cpus"),
        (JobSpec(command=("x",), exclusive=True), "exclusive-cpus"),
    ],
)
def test_what_torchrun_cannot_do_is_said(spec: JobSpec, code: str | None) -> None:
    launch = msgspec.structs.replace(spec.launch, launcher="torchrun")
    found = needs(msgspec.structs.replace(spec, launch=launch))
    assert [finding.code for finding in found] == ([code] if code else [])


PORT = "\n".join((*base.RENDEZVOUS_LINES, 'echo "$MASTER_ADDR $MASTER_PORT"'))


def port_of(**environment: str) -> int:
    host, port = bash(PORT, **environment).split()
    assert host == socket.gethostname()
    return int(port)


def listen(port: int) -> socket.socket:
    return socket.create_server(("", port))


def test_a_port_is_outside_those_the_kernel_gives_away() -> None:
    low, high = map(int, RANGE.read_text("ascii").split())
    port = port_of()
    assert not low <= port <= high
    assert 1024 < port < 65536


def test_jobs_and_restarts_of_one_node_differ() -> None:
    found = {port_of(SLURM_JOB_ID=job) for job in ("4711", "4712", "4713")}
    assert len(found) == 3
    assert port_of(SLURM_RESTART_COUNT="1") not in found


def test_a_port_that_is_taken_is_avoided(ports: list[socket.socket], tmp_path: Path) -> None:
    first = port_of()
    ports.append(listen(first))
    second = port_of()
    assert second != first
    ports.append(listen(second))
    for name in ("grep", "bash"):  # nodes without Python
        tmp_path.joinpath(name).symlink_to(f"/usr/bin/{name}")
    assert port_of(PATH=str(tmp_path)) not in (first, second)


def test_a_python_that_does_not_run_is_not_asked(
    ports: list[socket.socket], tmp_path: Path
) -> None:
    first = port_of()
    assert port_of(PYTHONHOME="/nowhere") == first  # the job's own affair
    tmp_path.joinpath("python3").write_text("#!/bin/sh\nexit 1\n", "ascii")
    tmp_path.joinpath("python3").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert port_of(PATH=path) == first
    ports.append(listen(first))
    assert port_of(PATH=path) != first


def test_without_a_free_port_the_job_ends_with_a_word() -> None:
    words = ["bash", "-c", f'python3() {{ [ "$#" = 3 ]; }}\n{PORT}']  # it runs, and binds nothing
    env = {"PATH": os.environ["PATH"]} | JOB
    done = subprocess.run(words, capture_output=True, check=False, env=env, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("slurmkit: none of 200 ports ")


def test_with_few_ports_left_by_the_kernel_others_are_taken() -> None:
    for kernels, low, high in (("1024 65535", 20000, 22000), ("15000 65500", 13000, 15000)):
        script = re.sub(r"<\S+ip_local_port_range", f'<<<"{kernels}"', PORT)
        port = int(bash(script).split()[1])
        assert low <= port < high


def test_a_binding_that_the_command_itself_must_use_is_said() -> None:
    launch = Launch(launcher="none")
    (note,) = needs(JobSpec(command=("x",), gpus=Gpus(2, bind="closest"), launch=launch))
    assert (note.severity, note.code) == ("note", "launcher-no-binding")


def test_what_a_launcher_cannot_do_is_said() -> None:
    none = Launch(launcher="none")
    (error,) = needs(JobSpec(script="#!/bin/bash\n", nodes=2, launch=Launch(launcher="srun")))
    assert (error.severity, error.code) == ("error", "launcher-needs-command")
    assert not needs(JobSpec(script="#!/bin/bash\n", nodes=2, launch=none))
    labelled = msgspec.structs.replace(none, label=True, mpi="pmix")
    (warning,) = needs(JobSpec(script="#!/bin/bash\n", launch=labelled))
    assert warning.message.startswith("--mpi and --label works only with srun")
    (warning,) = needs(JobSpec(command=("x",), ntasks=2, launch=none))
    assert (warning.severity, warning.code) == ("warning", "launcher-runs-once")
    assert not needs(JobSpec(command=("x",), launch=none))
    assert not needs(JobSpec(command=("x",), nodes=4))


def test_a_launcher_counts_the_nodes_of_a_nodelist() -> None:
    """Differential test, A."""
    none = Launch(launcher="none")
    (warning,) = needs(JobSpec(command=("x",), nodelist="c[1-2]", launch=none))
    assert warning.code == "launcher-runs-once"
    assert not needs(JobSpec(command=("x",), nodelist="c1", launch=none))


def mpi(kinds: tuple[str, ...] | None, launch: Launch | None = None) -> LaunchStep:
    spec = JobSpec(command=("x", "a b"), nodes=2, ntasks_per_node=2, launch=Launch(launcher="mpi"))
    if launch:
        spec = msgspec.structs.replace(spec, launch=launch)
    known = msgspec.structs.replace(CLUSTER, mpi=kinds)
    return msgspec.structs.replace(step(spec), capabilities=known)


@pytest.mark.parametrize(
    ("kinds", "named", "chosen"),
    [
        (("none", "pmi2", "pmix", "pmix_v5"), None, "pmix"),
        (("none", "pmi2"), "pmi2", "pmi2"),
        (("none", "pmi2", "pmix"), "pmi2", "pmi2"),
        (None, None, "pmix"),
    ],
)
def test_mpi_starts_through_what_the_cluster_has(
    kinds: tuple[str, ...] | None, named: str | None, chosen: str
) -> None:
    made = mpi(kinds, Launch(launcher="mpi", mpi=named))
    (note,) = make_launcher("mpi").needs(made)
    assert note.message == f"MPI starts through srun --mpi={chosen}"
    options = ["--cpus-per-task=1", f"--mpi={chosen}", "--kill-on-bad-exit=1"]
    assert argv(lines(made)) == [*options, "--", "x", "a b"]


def test_a_site_names_its_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[launch]\nmpi = "mpirun"\nmpirun = "/opt/mpi/bin/mpirun"\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    made = mpi(("none", "pmi2"))
    (note,) = make_launcher("mpi").needs(made)
    assert note.message == "MPI starts through /opt/mpi/bin/mpirun in the batch shell"
    assert lines(made) == "/opt/mpi/bin/mpirun -n 4 x 'a b'"
    labelled = msgspec.structs.replace(made, options=("--gpu-bind=closest", "--label"))
    _, warning = make_launcher("mpi").needs(labelled)
    assert warning.message.startswith("--gpu-bind=closest and --label works only with srun")


def test_a_sites_plugin_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[launch]\nmpi = "pmxi"\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    (error,) = make_launcher("mpi").needs(mpi(("none", "pmi2")))
    assert (
        error.message == "[launch] mpi is 'pmxi', which this Slurm does not have; it has none, pmi2"
    )


def test_pmi2_is_used_only_when_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI 5 has no PMI-2, and 4 ranks became 4 jobs of one."""
    (found,) = make_launcher("mpi").needs(mpi(("none", "pmi2")))
    assert (found.severity, found.code) == ("error", "mpi-none")
    assert "--mpi NAME" in found.message
    assert "rank 0 of 1" in found.message
    file = tmp_path / "config.toml"
    file.write_text('[launch]\nmpi = "pmi2"\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(file))
    (note,) = make_launcher("mpi").needs(mpi(("none", "pmi2")))
    assert note.message == "MPI starts through srun --mpi=pmi2"


def test_workers_have_the_threads_of_their_cpus_unless_the_job_says() -> None:
    spec = JobSpec(command=("x.py",), launch=Launch(launcher="torchrun"))
    script = lines(step(spec, cpus=6)) + '\necho "$OMP_NUM_THREADS"'
    assert bash("srun() { :; }\n" + script) == "6\n"
    assert bash("srun() { :; }\n" + script, OMP_NUM_THREADS="2") == "2\n"


def test_without_any_mpi_the_way_out_is_said() -> None:
    (error,) = make_launcher("mpi").needs(mpi(("none", "cray_shasta")))
    assert (error.severity, error.code) == ("error", "mpi-none")
    assert "[launch] mpi" in error.message
