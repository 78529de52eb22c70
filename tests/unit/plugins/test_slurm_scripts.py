"""Prolog and epilog, run as slurmd runs them, on real processes that hold a device."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import pytest
from node_lab import kmsg, xid
from waiting import PATIENCE, wait_until

SCRIPTS = Path(str(files("slurmkit_plugins"))) / "slurm"
HOLD = "import sys, time; held = open(sys.argv[1]); print('held', flush=True); time.sleep(60)"
# Numbers that no job has whose processes this machine might see.
EARLIER, STEPPING, JOB, LATER = "4100000005", "4100000006", "4100000007", "4100000008"
UNRECORDED = "4100000009"
# Whose processes may be told apart from root's.
_UID = os.geteuid() or 65534
Hold = Callable[..., "subprocess.Popen[str]"]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with two GPUs, a scontrol that only notes what it is told, and a system's log."""
    for index in (0, 1):
        (tmp_path / f"gpu{index}").touch()
    (tmp_path / "bin").mkdir()
    shown = f'[ "$1" = update ] || exec cat {tmp_path}/shown'
    (tmp_path / "shown").write_text("NodeName=c1 State=IDLE\n", "utf-8")
    for name, first, words, noted in (
        ("scontrol", shown, "$@", "told"),
        ("logger", "", "$*", "log"),
    ):
        tool = tmp_path / "bin" / name
        body = f'{first}\nprintf "%s\\n" "{words}" >>{tmp_path}/{noted}\n'
        tool.write_text(f"#!/bin/sh\n{body}", "utf-8")
        tool.chmod(0o755)
    conf = f"GPU_DEVICE={tmp_path}/gpu\nRECORDS={tmp_path}/records\n"
    (tmp_path / "node.conf").write_text(conf, "utf-8")
    return tmp_path


@pytest.fixture
def hold(node: Path) -> Iterator[Hold]:
    """Start processes that hold a GPU, under the name that is given, and end what is left."""
    started = []

    def start(
        index: int, job: str | None, name: str = "train", **more: str
    ) -> subprocess.Popen[str]:
        env = os.environ | ({"SLURM_JOB_ID": job} if job else {}) | more
        argv = [name, "-c", HOLD, str(node / f"gpu{index}")]
        process = subprocess.Popen(
            argv, executable=sys.executable, env=env, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.fixture
def nameless(node: Path) -> None:
    """Settings that do not name the device files: all GPUs of the node are looked at."""
    (node / "node.conf").write_text(f"RECORDS={node}/records\n", "utf-8")
    find = node / "bin" / "find"
    find.write_text(
        f'#!/bin/bash\nexec {shutil.which("find")} "${{@//\\/dev\\/nvidia/{node}/gpu}}"\n'
    )
    find.chmod(0o755)


@pytest.fixture
def step(node: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start slurmstepd of a job's step, with a process of a user in it."""
    shutil.copy("/bin/bash", node / "slurmstepd")
    started = []

    def start(job: str, program: str = "slurmstepd") -> subprocess.Popen[bytes]:
        user = f"setpriv --reuid {_UID} " if os.geteuid() == 0 else ""
        process = subprocess.Popen(
            [f"slurmstepd: [{job}.0]", "-c", f"{user}sleep 60 & wait"],
            executable=node / program, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        inside = ["pgrep", "-P", str(process.pid), "-u", str(_UID)]
        wait_until(lambda: subprocess.run(inside, check=False).returncode == 0)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(
    node: Path, script: str, job: str = JOB, gpus: str = "0", uid: int = 10011, visible: str = ""
) -> int:
    env = {
        "PATH": f"{node}/bin:{os.environ['PATH']}",
        "SLURMKIT_NODE_CONF": f"{node}/node.conf",
        "SLURMKIT_NODE_CHECKS": f"{node}/checks",
        "SLURMKIT_KMSG": f"{node}/kmsg",
        "SLURM_JOB_ID": job,
        "SLURM_JOB_USER": "alice",
        "SLURM_JOB_UID": str(uid),
        "SLURM_JOB_PARTITION": "gpu",
        "SLURMD_NODENAME": "c1",
    }
    env |= {"SLURM_JOB_GPUS": gpus} if gpus else {}
    env |= {"CUDA_VISIBLE_DEVICES": visible} if visible else {}
    return subprocess.run([SCRIPTS / script], env=env, check=False, timeout=PATIENCE).returncode


def told(node: Path) -> list[str]:
    path = node / "told"
    return path.read_text("utf-8").splitlines() if path.exists() else []


def has_ended(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def test_a_record_lasts_as_long_as_the_job(node: Path) -> None:
    before = int(time.time())
    assert run(node, "prolog", gpus="0,1") == 0
    assert run(node, "prolog", job=LATER, gpus="1") == 0
    record = dict(
        line.split("=", 1)
        for line in (node / "records" / "1" / JOB).read_text("utf-8").splitlines()
    )
    assert before <= int(record.pop("start")) <= time.time()
    assert record == {"job": JOB, "user": "alice", "uid": "10011", "partition": "gpu"}
    assert run(node, "epilog", gpus="0,1") == 0
    assert [str(p.relative_to(node / "records")) for p in (node / "records").glob("*/*")] == [
        f"1/{LATER}"
    ]


def maps(node: Path) -> dict[str, str]:
    """What others' exporters read."""
    folders = (node / "dcgm", node / "gpustat")
    files = (file for folder in folders if folder.is_dir() for file in folder.iterdir())
    return {str(file.relative_to(node)): file.read_text("utf-8") for file in files}


def test_others_exporters_know_the_jobs_on_a_gpu(node: Path) -> None:
    """dcgm-exporter's job mapping directory, where the driver counts otherwise, and jobstats'."""
    with (node / "node.conf").open("a", encoding="utf-8") as conf:
        conf.write(f"DCGM_JOB_DIR={node}/dcgm DCGM_GPUS=(1 0) JOBSTATS_DIR={node}/gpustat\n")
    assert run(node, "prolog", gpus="0,1", visible="0,1") == 0
    alone = f"{JOB} 10011\n"
    assert maps(node) == {
        "dcgm/0": f"{JOB}\n", "dcgm/1": f"{JOB}\n", "gpustat/0": alone, "gpustat/1": alone,
    }  # fmt: skip
    assert run(node, "prolog", job=LATER, gpus="1", uid=10012) == 0
    assert maps(node) == {
        "dcgm/0": f"{LATER}\n{JOB}\n", "dcgm/1": f"{JOB}\n",
        "gpustat/0": alone, "gpustat/1": f"{LATER} 10012\n",
    }  # fmt: skip
    assert run(node, "epilog", gpus="0,1") == 0
    assert maps(node) == {"dcgm/0": f"{LATER}\n", "gpustat/1": f"{LATER} 10012\n"}
    assert run(node, "epilog", job=LATER, gpus="1") == 0
    assert maps(node) == {}


def test_jobstats_names_mig_instances_by_uuid(node: Path) -> None:
    with (node / "node.conf").open("a", encoding="utf-8") as conf:
        conf.write(f"JOBSTATS_DIR={node}/gpustat\n")
    assert run(node, "prolog", gpus="0,1", visible="GPU-1,MIG-2") == 0
    assert sorted(maps(node)) == ["gpustat/0", "gpustat/MIG-2"]
    assert run(node, "epilog", gpus="0,1", visible="GPU-1,MIG-2") == 0
    assert maps(node) == {}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("dcgm", "dcgm-exporter is not told who has GPU 1: "),
        ("gpustat", "jobstats is not told who has GPU 1: "),
        ("records/1", "could not record that it has GPU 1: "),
        ("records/.lock", "others' exporters are not told its GPUs: cannot lock "),
    ],
)
def test_what_the_prolog_cannot_write_is_said_and_keeps_no_job_waiting(
    node: Path, broken: str, words: str
) -> None:
    """In the system's log, as all that the scripts do; the other files are written."""
    with (node / "node.conf").open("a", encoding="utf-8") as conf:
        conf.write(f"DCGM_JOB_DIR={node}/dcgm JOBSTATS_DIR={node}/gpustat\n")
    # A folder where a file should be, or the other way round, stops root too.
    at = node / broken
    at.parent.mkdir(exist_ok=True)
    if broken == "records/1":
        at.touch()
    elif broken == "records/.lock":
        at.mkdir()
    else:
        (at / "1").mkdir(parents=True)
    assert run(node, "prolog", gpus="0,1") == 0
    logged = (node / "log").read_text("utf-8").splitlines()
    assert any(f"-- job {JOB}: {words}" in line for line in logged), logged
    assert not any("GPU 0" in line for line in logged)
    assert (node / "records" / "0" / JOB).exists()
    assert told(node) == []


def test_records_that_cannot_be_removed_are_said(node: Path) -> None:
    (node / "records" / "0" / JOB).mkdir(parents=True)
    assert run(node, "epilog") == 0
    assert "could not remove its records: " in (node / "log").read_text("utf-8")


def test_nothing_is_written_for_others_unless_asked_for(node: Path) -> None:
    before = set(node.iterdir())
    assert run(node, "prolog", gpus="0,1") == 0
    assert set(node.iterdir()) - before == {node / "records"}


def test_a_job_without_gpus_leaves_nothing(node: Path) -> None:
    assert run(node, "prolog", gpus="") == 0
    assert run(node, "epilog", gpus="") == 0
    assert not (node / "records").exists()


def test_a_missing_device_fails_the_prolog_and_drains_with_the_reason(node: Path) -> None:
    (node / "gpu1").unlink()
    assert run(node, "prolog", gpus="0") == 0
    assert told(node) == []
    assert run(node, "prolog", gpus="0,1") == 1
    reason = f"Reason=slurmkit: devices: GPU 1 has no device file {node}/gpu1"
    assert told(node) == ["update", "NodeName=c1", "State=DRAIN", reason]
    assert not (node / "records" / "1").exists()


def test_amd_gpus_have_their_render_nodes_and_kfd(node: Path, hold: Hold) -> None:
    """Their numbers are no indices: AutoDetect=rsmi names /dev/dri/renderD128 and so on."""
    for file in ("renderD136", "renderD128", "kfd"):
        (node / file).touch()
    devices = f"{node}/renderD136 {node}/renderD128"
    conf = f"GPU_DEVICES=({devices})\nKFD={node}/kfd\nRECORDS={node}/records\n"
    (node / "node.conf").write_text(conf, "utf-8")
    (node / "gpu1").unlink()
    (node / "gpu1").symlink_to(node / "renderD128")
    left, nvidia = hold(1, EARLIER), hold(0, EARLIER)
    assert run(node, "prolog", gpus="0,1") == 0
    assert (has_ended(left), has_ended(nvidia)) == (True, False)
    (node / "renderD128").unlink()
    assert run(node, "prolog", gpus="0") == 0
    assert told(node) == []
    assert run(node, "prolog", gpus="1") == 1
    (node / "kfd").unlink()
    assert run(node, "prolog", gpus="0") == 1
    assert [line for line in told(node) if line.startswith("Reason=")] == [
        f"Reason=slurmkit: devices: GPU 1 has no device file {node}/renderD128",
        f"Reason=slurmkit: devices: GPU 0 has no device file {node}/kfd",
    ]


def test_without_a_device_path_nothing_is_missing(node: Path) -> None:
    (node / "node.conf").write_text(f"RECORDS={node}/records\n", "utf-8")
    assert run(node, "prolog", gpus=EARLIER) == 0


def test_the_prolog_ends_what_an_ended_job_left(node: Path, hold: Hold) -> None:
    left, daemon, own = hold(0, EARLIER), hold(0, None), hold(0, JOB)
    assert run(node, "prolog") == 0
    assert (has_ended(left), has_ended(daemon), has_ended(own)) == (True, False, False)
    assert told(node) == []


@pytest.mark.usefixtures("nameless")
def test_the_prolog_leaves_running_jobs_alone(node: Path, hold: Hold, step: Start) -> None:
    """One has a record; the other only a step, as a job from before the scripts were there."""
    assert run(node, "prolog", job=EARLIER, gpus="1") == 0
    recorded, stepping = hold(0, EARLIER), hold(0, STEPPING)
    step(STEPPING)
    assert run(node, "prolog") == 0
    assert (has_ended(recorded), has_ended(stepping)) == (False, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_a_user_cannot_call_a_process_slurmstepd(node: Path, hold: Hold) -> None:
    """Nobody keeps what an ended job left by a title that anybody can give."""
    left = hold(0, STEPPING)
    pretends = subprocess.Popen(
        [f"slurmstepd: [{STEPPING}.batch]", "60"], executable="/bin/sleep", user=65534, cwd="/"
    )  # fmt: skip
    try:
        shown = ["pgrep", "-u", "65534", "-f", rf"^slurmstepd: \[{STEPPING}"]
        wait_until(lambda: subprocess.run(shown, check=False).returncode == 0)
        assert run(node, "prolog") == 0
        assert has_ended(left)
    finally:
        pretends.kill()
        pretends.wait()


@pytest.mark.usefixtures("nameless")
def test_a_job_of_a_longer_number_is_another(node: Path, hold: Hold, step: Start) -> None:
    left = hold(0, STEPPING)
    step(f"{STEPPING}6")
    assert run(node, "prolog") == 0
    assert has_ended(left)


@pytest.mark.usefixtures("nameless")
def test_sudo_that_is_called_slurmstepd_is_none(node: Path, hold: Hold, step: Start) -> None:
    """It runs as root under a title that its user has chosen."""
    shutil.copy("/bin/bash", node / "sudo")
    left = hold(0, STEPPING)
    step(STEPPING, program="sudo")
    assert run(node, "prolog") == 0
    assert has_ended(left)


def components(first: str, second: str) -> dict[str, str]:
    """What a process of a het job has in its environment beside the number of the first."""
    return {"SLURM_JOB_ID_HET_GROUP_0": first, "SLURM_JOB_ID_HET_GROUP_1": second}


@pytest.mark.usefixtures("nameless")
def test_the_prolog_leaves_a_running_het_job_alone(node: Path, hold: Hold, step: Start) -> None:
    """The process names the first component, which is elsewhere; this node knows the second."""
    assert run(node, "prolog", job=STEPPING, gpus="1") == 0
    process = hold(0, EARLIER, **components(EARLIER, STEPPING))
    unrecorded = hold(0, EARLIER, **components(EARLIER, UNRECORDED))
    step(UNRECORDED)
    left = hold(0, EARLIER, **components(EARLIER, LATER))
    assert run(node, "prolog") == 0
    assert [has_ended(each) for each in (process, unrecorded, left)] == [False, False, True]


@pytest.mark.usefixtures("nameless")
def test_the_epilog_of_a_component(node: Path, hold: Hold) -> None:
    """It ends what is left of the het job, unless another component still runs on the node."""
    assert run(node, "prolog", job=JOB, gpus="0") == 0
    assert run(node, "prolog", job=LATER, gpus="1") == 0
    process = hold(0, EARLIER, **components(JOB, LATER))
    assert run(node, "epilog", job=JOB) == 0
    assert not has_ended(process)
    assert run(node, "epilog", job=LATER, gpus="1") == 0
    assert has_ended(process)


def test_a_component_has_no_right_to_the_gpu_of_another(node: Path, hold: Hold) -> None:
    assert run(node, "prolog", job=JOB, gpus="0") == 0
    assert run(node, "prolog", job=LATER, gpus="1") == 0
    own, other = (hold(index, EARLIER, **components(JOB, LATER)) for index in (0, 1))
    assert run(node, "epilog", job=JOB) == 0
    assert (has_ended(own), has_ended(other)) == (True, False)


@pytest.mark.parametrize("number", ["../*", ".*", "1[0", "", "x\x1b[2J", "-1"])
def test_what_is_no_number_names_no_job(node: Path, hold: Hold, number: str) -> None:
    process = hold(0, None, SLURM_JOB_ID=number)
    assert run(node, "prolog") == 0
    assert not has_ended(process)


def test_the_epilog_ends_what_the_job_left(node: Path, hold: Hold) -> None:
    left, other, daemon = hold(0, JOB), hold(0, f"{JOB}7"), hold(0, None)
    assert run(node, "epilog") == 0
    assert (has_ended(left), has_ended(other), has_ended(daemon)) == (True, False, False)
    assert told(node) == []


@pytest.fixture
def hold_as_user(node: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start processes of the job's user that hold GPU 0, with nothing but this environment."""
    started = []

    def start(**env: str) -> subprocess.Popen[bytes]:
        user = {"user": _UID} if os.geteuid() == 0 else {}
        with (node / "gpu0").open() as gpu:
            process = subprocess.Popen(  # type: ignore[call-overload]
                ["sleep", "600"], env=env, pass_fds=[gpu.fileno()], cwd="/", **user
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_its_user_cannot_keep_a_process_by_naming_another_job_or_none(
    node: Path, hold_as_user: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Only another job of the same user keeps a process."""
    run(node, "prolog", job=LATER)  # a live job of somebody else
    run(node, "prolog", uid=_UID)
    escaping = [hold_as_user(**env) for env in (
        {"SLURM_JOB_ID": JOB, "SLURM_JOB_ID_HET_GROUP_9": LATER}, {"SLURM_JOB_ID": LATER}, {},
    )]  # fmt: skip
    assert run(node, "epilog", uid=_UID) == 0
    assert all(wait_ended(each) for each in escaping)


@pytest.mark.parametrize(("switch", "ends"), [("yes", True), ("no", False)])
def test_a_site_chooses_whether_what_names_no_job_is_ended(
    node: Path,
    hold_as_user: Callable[..., subprocess.Popen[bytes]],
    switch: str,
    ends: bool,
) -> None:
    with (node / "node.conf").open("a") as conf:
        conf.write(f"KILL_UNNAMED={switch}\n")
    unnamed, escaped, own = (hold_as_user(**env) for env in (
        {"SLURM_JOB_ID": "none"}, {"SLURM_JOB_ID": EARLIER}, {"SLURM_JOB_ID": JOB},
    ))  # fmt: skip
    assert run(node, "epilog", uid=_UID) == 0
    assert wait_ended(escaped)
    assert wait_ended(own)
    assert wait_ended(unnamed) if ends else unnamed.poll() is None


def test_another_job_of_the_user_keeps_its_processes(
    node: Path, hold_as_user: Callable[..., subprocess.Popen[bytes]]
) -> None:
    run(node, "prolog", job=LATER, uid=_UID)
    run(node, "prolog", uid=_UID)
    other, unnamed, own = (hold_as_user(**env) for env in (
        {"SLURM_JOB_ID": LATER}, {}, {"SLURM_JOB_ID": JOB},
    ))  # fmt: skip
    assert run(node, "epilog", uid=_UID) == 0
    assert wait_ended(own)
    assert (other.poll(), unnamed.poll()) == (None, None)


@pytest.mark.usefixtures("nameless")
def test_a_step_of_the_user_keeps_what_names_no_job(
    node: Path, hold_as_user: Start, step: Start
) -> None:
    """A job without GPUs has no record."""
    unnamed, own = hold_as_user(), step(LATER)
    assert run(node, "epilog", uid=_UID) == 0
    assert unnamed.poll() is None
    os.killpg(own.pid, signal.SIGKILL)
    own.wait()
    assert run(node, "epilog", uid=_UID) == 0
    assert wait_ended(unnamed)


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_nobody_stays_on_a_gpu_for_a_job_elsewhere_on_the_node(
    node: Path, hold_as_user: Start, step: Start, script: str
) -> None:
    """Not for one on another GPU, nor for one without GPUs, whether it is named or not."""
    assert run(node, "prolog", job=EARLIER, gpus="1", uid=_UID) == 0
    step(STEPPING)
    left = [hold_as_user(SLURM_JOB_ID=EARLIER), hold_as_user(SLURM_JOB_ID=STEPPING), hold_as_user()]
    assert run(node, script, uid=10011 if script == "prolog" else _UID) == 0
    assert all(wait_ended(each) for each in left)


def test_the_prolog_leaves_alone_who_shares_the_gpu(node: Path, hold_as_user: Start) -> None:
    assert run(node, "prolog", job=EARLIER, gpus="0", uid=_UID) == 0
    sharing = [hold_as_user(SLURM_JOB_ID=EARLIER), hold_as_user()]
    assert run(node, "prolog") == 0
    assert [each.poll() for each in sharing] == [None, None]


@pytest.mark.parametrize(("cgroup", "ends"), [
    ("/system.slice/slurmkit-gpu-exporter.service", False),  # its user is one of DynamicUser
    ("/system.slice/nvidia-dcgm.service", False),
    ("/user.slice/user-1000.slice/session-4.scope", False),
    ("/user.slice/user-1000.slice/user@1000.service/app.slice", False),
    ("/system.slice/slurmd.service", True),  # jobs without cgroups
    ("/system.slice/slurmstepd.scope/job_41/step_0/user/task_0", True),
    ("/system.slice/c1_slurmstepd.scope/job_41/step_0/user/task_0", True),
])  # fmt: skip
def test_services_and_logins_keep_their_processes(
    node: Path, hold_as_user: Start, cgroup: str, ends: bool
) -> None:
    grep = node / "bin" / "grep"
    grep.write_text(
        f"""#!/bin/bash
[[ $* == *"/cgroup"* ]] || exec {shutil.which("grep")} "$@"
printf "%s:0::{cgroup}\\n" "${{@:3}}"
"""
    )
    grep.chmod(0o755)
    unnamed = hold_as_user()
    assert run(node, "prolog") == 0
    assert wait_ended(unnamed) if ends else unnamed.poll() is None


def test_nobody_stays_by_naming_the_job_that_comes_next(node: Path, hold_as_user: Start) -> None:
    left = hold_as_user(SLURM_JOB_ID=JOB)
    assert run(node, "prolog") == 0
    assert wait_ended(left)


def test_only_the_jobs_own_gpus_are_looked_at(node: Path, hold: Hold) -> None:
    elsewhere = hold(1, EARLIER)
    assert run(node, "prolog") == 0
    assert not has_ended(elsewhere)


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_many_processes_cost_no_more_commands_than_one(node: Path, hold: Hold, script: str) -> None:
    """A job waits for them, and slurmd for BatchStartTimeout only."""
    for name in (
        "cut",
        "find",
        "grep",
        "head",
        "logger",
        "pgrep",
        "sed",
        "sort",
        "stat",
        "tr",
        "xargs",
    ):
        # No steps: those of tests beside this one come and go.
        real = "false" if name == "pgrep" else shutil.which(name) or "true"
        tool = node / "bin" / name
        tool.write_text(f'#!/bin/sh\necho {name} >>{node}/commands\nexec {real} "$@"\n', "utf-8")
        tool.chmod(0o755)
    counts = []
    for number in (1, 9):
        processes = [hold(0, JOB if script == "epilog" else EARLIER) for _ in range(number)]
        assert run(node, script) == 0
        assert all(map(has_ended, processes))
        counts.append(Counter((node / "commands").read_text("utf-8").split()))
        (node / "commands").unlink()
    assert counts[0] == counts[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_a_setuid_program_is_its_users(node: Path) -> None:
    """`passwd 3</dev/nvidia0` waits for as long as its user likes."""
    hide = f"import os, time; os.setresuid({_UID}, 0, 0); print(1, flush=True); time.sleep(600)"
    with (node / "gpu0").open() as gpu:
        process = subprocess.Popen(
            [sys.executable, "-c", hide], pass_fds=[gpu.fileno()], stdout=subprocess.PIPE
        )
    assert process.stdout
    try:
        assert process.stdout.readline()
        assert Path(f"/proc/{process.pid}").stat().st_uid == 0
        assert run(node, "epilog", uid=_UID) == 0
        assert wait_ended(process)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.wait(timeout=PATIENCE) == -signal.SIGKILL


def test_a_process_that_cannot_be_killed_drains_the_node(node: Path, hold: Hold) -> None:
    """A kill that does nothing stands for a process stuck in the driver."""
    stuck = hold(0, JOB)
    with (node / "node.conf").open("a") as conf:
        conf.write("kill() { :; }\nKILL_SECONDS=1\n")
    assert run(node, "epilog") == 1
    said = f"leftovers: processes of job {JOB} hold GPUs and cannot be killed: {stuck.pid}"
    assert told(node)[-1] == f"Reason=slurmkit: {said}"
    assert run(node, "prolog", job=LATER) == 1
    assert "leftovers: processes of ended jobs hold GPUs" in told(node)[-1]


def test_the_epilog_has_patience_with_a_process_that_is_slow_to_end(node: Path, hold: Hold) -> None:
    """Pages of hundreds of GB are not freed at once; nobody resumes a node that this drains."""
    slow = hold(0, JOB)
    with (node / "node.conf").open("a") as conf:
        conf.write('kill() { (sleep 7; command kill "$@") >/dev/null 2>&1 & }\n')
    assert run(node, "epilog") == 0
    assert has_ended(slow)
    assert told(node) == []


@pytest.mark.parametrize("shown", ["NodeName=c1 State=IDLE+DRAIN Reason=fans [root@now]\n", None])
def test_the_scripts_replace_no_reason(node: Path, shown: str | None) -> None:
    """It may be an administrator's, also where slurmctld does not say it."""
    (node / "gpu1").unlink()
    (node / "shown").write_text(shown or "", "utf-8")
    if shown is None:
        (node / "shown").unlink()
    assert run(node, "prolog", gpus="1") == 1
    assert told(node) == []


def test_beside_the_health_check_no_command_of_slurm_is_run(node: Path) -> None:
    checks = node / "checks"
    checks.mkdir()
    (checks / "health.json").touch()
    (node / "gpu1").unlink()
    assert run(node, "prolog", gpus="1") == 1
    assert told(node) == []
    said = f"devices: GPU 1 has no device file {node}/gpu1\n"
    assert (checks / "faults").read_text("utf-8") == said
    # A health check of long ago tells nobody anything.
    os.utime(checks / "health.json", (time.time() - 9000,) * 2)
    assert run(node, "prolog", gpus="1") == 1
    assert told(node)[-1] == f"Reason=slurmkit: {said.strip()}"


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_a_nodes_check_runs_where_the_settings_say_so(node: Path, script: str) -> None:
    (node / "kmsg").write_text(kmsg(xid("0000:07:00", 79, "GPU has fallen off the bus.")), "utf-8")
    assert run(node, script) == 0
    with (node / "node.conf").open("a") as conf:
        conf.write(f"CHECK_IN={script}\nCHECK_PATH={node}/bin:/usr/bin:/bin\n")
        conf.write("CHECK_PROLOG_SECONDS=100\nCHECK_EPILOG_SECONDS=100\n")
    assert run(node, script) == 1
    assert told(node)[-1] == "Reason=slurmkit: xid 0000:07:00.0: 79 GPU has fallen off the bus."


def test_a_check_that_does_not_work_fails_no_job(node: Path) -> None:
    with (node / "node.conf").open("a") as conf:
        conf.write("CHECK_IN=prolog\nCHECK_NONSENSE=1\n")
    assert run(node, "prolog") == 0
    assert told(node) == []
