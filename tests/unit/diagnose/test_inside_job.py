"""What is read on a node: a recorded /proc, real processes, NCCL's RAS, py-spy, and Python 3.6."""

from __future__ import annotations

import ast
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import TWO_GPUS, Stub, build

from slurmkit.diagnose import inside_job
from slurmkit.diagnose.inside_job import JobCgroup, Processes
from slurmkit.diagnose.probe import parse_parts

SOURCE = Path(inside_job.__file__).read_text("utf-8")
STAT = (
    "{pid} ({name}) {state} {parent} 1 1 0 -1 0 0 0 0 0 {user} {system} 0 0 20 0 {threads} 0 99 0"
)


class Proc:
    """A /proc of some processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "net").mkdir()

    def add(
        self, pid: int, *, parent: int = 1, name: str = "python3", state: str = "S", env: str = "",
        wait: str = "futex_wait_queue", tasks: str = "", cgroup: str = "0::/", argv: str = "",
    ) -> Path:  # fmt: skip
        own = self.folder / str(pid)
        (own / "fd").mkdir(parents=True)
        stat = STAT.format(
            pid=pid, name=name, state=state, parent=parent, user=250, system=50, threads=2
        )
        (own / "stat").write_text(stat)
        (own / "environ").write_bytes(env.replace(" ", "\0").encode())
        (own / "wchan").write_text(wait)
        (own / "comm").write_text(f"{name}\n")
        (own / "cmdline").write_bytes((argv or name).replace(" ", "\0").encode())
        (own / "cgroup").write_text(f"{cgroup}\n")
        (own / "io").write_text("rchar: 4096\nwchar: 1\n")
        (own / "status").write_text("Name:\tx\nTracerPid:\t0\nVmRSS:\t    2048 kB\n")
        for number, each in enumerate(tasks or state):
            task = own / "task" / str(pid + number)
            task.mkdir(parents=True)
            (task / "stat").write_text(stat.replace(f") {state} ", f") {each} ", 1))
            (task / "wchan").write_text(f"{wait}{number}")
        return own

    def listen(self, pid: int, port: int, inode: int) -> None:
        head = "  sl  local_address rem_address st tx_queue tr retrnsmt uid timeout inode\n"
        line = (
            f"   0: 0100007F:{port:04X} 00000000:0000 0A 0:0 00:0 00000000 1000 0 {inode} 1 0 0\n"
        )
        (self.folder / "net" / "tcp").write_text(head + line)
        (self.folder / str(pid) / "fd" / "3").symlink_to(f"socket:[{inode}]")

    def job(self, *ids: str, own_step: str = "7") -> Processes:
        return Processes(list(ids), own_step, str(self.folder))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def watched(job: Processes) -> dict[int, dict[str, object]]:
    return {each["pid"]: each for each in job.watch(0)["processes"]}


def test_it_runs_on_python_3_6_alone() -> None:
    ast.parse(SOURCE, feature_version=(3, 6))
    assert "from __future__" not in SOURCE  # `annotations` is of 3.7
    names = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(SOURCE))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert {str(name).partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_processes_of_the_job_are_found_by_variable_cgroup_and_parent(proc: Proc) -> None:
    proc.add(
        10,
        env="SLURM_JOB_ID=41 SLURM_STEP_ID=0 RANK=3 SECRET=hush",
        argv="python3 a/train.py --key hush",
    )
    proc.add(11, parent=10, env="")  # it has overwritten its environment
    proc.add(12, parent=11, name="worker")
    proc.add(13, cgroup="0::/system.slice/slurmstepd.scope/job_41/step_0/user/task_0")
    proc.add(14, env="SLURM_JOB_ID=42", cgroup="0::/x/job_41/step_0")  # another job's
    proc.add(15, env="SLURM_JOB_ID=41 SLURM_STEP_ID=7")  # of the probe's own step
    proc.add(16)
    found = watched(proc.job("41"))
    assert sorted(found) == [10, 11, 12, 13]
    assert (found[10]["rank"], found[10]["step"]) == ("3", "0")
    assert found[10]["command"] == "python3 train.py"
    assert "hush" not in json.dumps(found)


def test_what_a_process_did_is_counted(proc: Proc) -> None:
    proc.add(10, env="SLURM_JOB_ID=41", state="S", tasks="SD", wait="folio_wait_bit")
    proc.add(20, env="SLURM_JOB_ID=41", state="T", name="a) b")
    found = watched(proc.job("41"))
    assert found[10]["states"] == {"S": 8}
    assert found[10]["waits"] == {"folio_wait_bit": 8}
    assert found[10]["blocked"] == ["folio_wait_bit1"]
    assert found[10]["cpu"] == 0
    assert found[10]["cpu_total"] == pytest.approx(300 / os.sysconf("SC_CLK_TCK"))
    assert (found[10]["rss"], found[10]["threads"], found[10]["read"]) == (2048 * 1024, 2, 0)
    assert (found[20]["state"], found[20]["name"]) == ("T", "a) b")


def test_a_thread_that_wakes_between_two_looks_is_not_blocked(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that reads from a slow disk without pause: in D at each look, and never the same."""
    own = proc.add(10, env="SLURM_JOB_ID=41", state="D", tasks="DD", wait="folio_wait_bit")
    woken = [own / "task" / number / "status" for number in ("10", "11")]
    for path in woken:
        path.write_text("Name:\tx\nvoluntary_ctxt_switches:\t5\n")
    job = proc.job("41")

    def wake(_: float) -> None:
        count = int(woken[0].read_text().split()[-1]) + 1
        woken[0].write_text(f"Name:\tx\nvoluntary_ctxt_switches:\t{count}\n")

    monkeypatch.setattr("slurmkit.diagnose.inside_job.time.sleep", wake)
    assert watched(job)[10]["blocked"] == ["folio_wait_bit1"]


def test_threads_that_were_not_blocked_at_first_are_not_looked_at_again(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(10, env="SLURM_JOB_ID=41", tasks="S" * 60)
    job, looked = proc.job("41"), list[str]()
    state_of = job._state_of
    monkeypatch.setattr(
        job, "_state_of", lambda pid, task: looked.append(task) or state_of(pid, task)
    )
    watched(job)
    assert len(looked) == 60


FORKS = """
import os, sys, time
data = bytearray(b"x" * (64 << 20))
for _ in range(3):
    if os.fork() == 0:
        break
os.write(1, b"ready\\n")  # at once: others write there, too
time.sleep(60)
"""


def test_pages_that_workers_share_count_once() -> None:
    """Real processes: a loader and three workers that it has forked, with 64 MiB in common."""
    env = {**os.environ, "SLURM_JOB_ID": "987654321"}
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True) as one:
        try:
            assert one.stdout is not None
            assert [one.stdout.readline() for _ in range(4)] == [b"ready\n"] * 4
            found = Processes(["987654321"], "").watch(0)
        finally:
            os.killpg(one.pid, 9)
    assert len(found["processes"]) == 4
    assert sum(each["rss"] for each in found["processes"]) > 4 * (64 << 20)
    assert found["memory_by"] == "pss"
    assert 64 << 20 <= found["memory_used"] < 2 * (64 << 20)


def test_where_pss_cannot_be_read_the_cgroup_says_what_is_in_use(
    proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = "SLURM_JOB_ID=5"
    own = proc.add(11, env=env, cgroup="0::/slurm/job_5/step_0/user/task_0")
    proc.add(12, env=env, state="Z")
    (proc.folder / "12" / "status").write_text("Name:\tx\n")  # a zombie has no memory
    found = proc.job("5").watch(0)
    assert (found["memory_used"], found["memory_by"], found["memory_limit"]) == (None, "", None)
    (own / "smaps_rollup").write_text("0-1 ---p 0 00:00 0 [rollup]\nRss: 90 kB\nPss:  70 kB\n")
    found = proc.job("5").watch(0)
    assert (found["memory_used"], found["memory_by"]) == (70 << 10, "pss")
    (own / "smaps_rollup").unlink()
    usual = JobCgroup.__init__
    root = str(proc.folder / "cgroup")
    monkeypatch.setattr(
        JobCgroup, "__init__", lambda self, pid, folder: usual(self, pid, folder, root)
    )
    group = proc.folder / "cgroup" / "slurm" / "job_5"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("1500\n")
    (group / "memory.stat").write_text("active_file 7\ninactive_file 300\n")
    found = proc.job("5").watch(0)
    assert (found["memory_used"], found["memory_by"], found["memory_limit"]) == (
        700, "cgroup", 1500
    )  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "expected"), [("1500", 1500), ("max", None), (str(1 << 62), None)]
)
@pytest.mark.parametrize("version", [1, 2])
def test_the_memory_of_a_job_by_its_cgroup(
    proc: Proc, tmp_path: Path, limit: str, expected: int | None, version: int
) -> None:
    line = "9:memory:/slurm/uid_0/job_5/step_0" if version == 1 else "0::/slurm/job_5/step_0"
    proc.add(11, cgroup=line)
    folder = tmp_path / ("memory/slurm/uid_0/job_5" if version == 1 else "slurm/job_5")
    folder.mkdir(parents=True)
    names = ("usage_in_bytes", "limit_in_bytes") if version == 1 else ("current", "max")
    for name, text in zip(names, ("1000", limit), strict=True):
        (folder / f"memory.{name}").write_text(f"{text}\n")
    (folder / "memory.stat").write_text("inactive_file 300\ntotal_inactive_file 200\n")
    used = 800 if version == 1 else 700
    found = JobCgroup("11", str(proc.folder), str(tmp_path)).memory()
    assert found == (used, expected)
    assert JobCgroup("12", str(proc.folder), str(tmp_path)).memory() == (None, None)


@pytest.mark.parametrize(("free", "is_full"), [(16 << 20, False), ((16 << 20) - 1, True)])
def test_nothing_is_watched_where_the_job_has_no_memory_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], free: int, is_full: bool
) -> None:
    monkeypatch.setattr(JobCgroup, "memory", lambda _: ((300 << 20) - free, 300 << 20))
    monkeypatch.setenv("SLURMD_NODENAME", "c1")
    inside_job.main({"jobs": ["0"], "seconds": 0, "deadline": 60})
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.join(10)
            assert not timer.is_alive(), "its deadline would still end the process"
    node = parse_parts(capsys.readouterr().out.splitlines())["c1"]
    assert (node.full is not None, node.processes is None) == (is_full, is_full)
    if node.full is not None:
        assert (node.full.used, node.full.limit) == ((300 << 20) - free, 300 << 20)


def test_only_a_port_of_the_job_itself_is_asked(proc: Proc) -> None:
    proc.add(10, env="SLURM_JOB_ID=41")
    proc.add(20, env="SLURM_JOB_ID=42")
    proc.listen(20, 28028, 777)
    assert not proc.job("41").listens(28028)
    assert proc.job("42").listens(28028)
    assert not proc.job("42").listens(28029)
    assert inside_job.ask_nccl(proc.job("41")) == {"text": "", "problem": ""}


class Ras(socketserver.StreamRequestHandler):
    """NCCL's RAS; the first `silent` connections hear nothing, as from a stopped process."""

    silent = 0
    heard: list[str] = []  # noqa: RUF012 - of one test at a time

    def handle(self) -> None:
        if Ras.silent:
            Ras.silent -= 1
            self.rfile.read()
            return
        for line in self.rfile:
            word = line.decode().strip()
            self.heard.append(word)
            if word == "VERBOSE STATUS":
                self.wfile.write(b"Errors\n======\n\n" + b"x" * 100_000)
                return
            self.wfile.write(b"SERVER PROTOCOL 2\n" if word.startswith("CLIENT") else b"OK\n")


@pytest.fixture
def ras() -> Iterator[int]:
    Ras.heard, Ras.silent = [], 0
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ras) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("silent", [0, 1])
def test_nccl_is_asked_again_where_a_stopped_process_took_the_call(
    proc: Proc, ras: int, silent: int
) -> None:
    Ras.silent = silent
    proc.add(10, env=f"SLURM_JOB_ID=41 NCCL_RAS_ADDR=127.0.0.1:{ras}")
    proc.listen(10, ras, 777)
    found = inside_job.ask_nccl(proc.job("41"))
    assert found["problem"] == ""
    assert found["text"].startswith("Errors\n======\n")
    assert len(found["text"]) <= (1 << 16) + 4096  # no more than it is willing to read
    assert Ras.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 4", "VERBOSE STATUS"]


def test_py_spy_says_where_python_waits_or_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert inside_job.read_stack(1, str(tmp_path))["problem"].startswith(
        "py-spy is not installed: "
    )
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    assert inside_job.read_stack(12)["lines"] == ["dump --nonblocking --pid 12"]
    program.write_text("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2\nexit 1\n")
    assert "ptrace is forbidden" in inside_job.read_stack(12)["problem"]
    program.write_text("#!/bin/sh\necho 'Error: no Python there' >&2\nexit 1\n")
    assert inside_job.read_stack(12)["problem"] == "Error: no Python there"


def test_py_spy_of_the_process_own_environment_is_found(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    program = tmp_path / "venv" / "bin" / "py-spy"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    proc.add(10, env=f"VIRTUAL_ENV={tmp_path}/venv")
    assert inside_job.read_stack(10, str(proc.folder))["lines"] == ["found"]


def gpus_of_step(**env: str) -> dict[str, Any]:
    """What the program prints of GPUs in a step with these variables."""
    asked = json.dumps({"jobs": ["41"], "seconds": 0, "deadline": 20})
    done = subprocess.run(
        [sys.executable, "-IS", "-", asked],
        input=SOURCE, text=True, capture_output=True, timeout=60, check=True,
        env={"SLURMD_NODENAME": "c2", **env},
    )  # fmt: skip
    found = parse_parts(done.stdout.splitlines())["c2"].gpus
    return {"problem": found.problem, **{str(gpu.index): gpu for gpu in found.gpus}}


def test_without_a_driver_gpus_are_unknown() -> None:
    assert gpus_of_step() == {"problem": "there is no NVIDIA driver"}


def test_gpus_of_the_driver_get_slurms_index_only_where_that_is_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's first GPU is /dev/nvidia1."""
    library = build(tmp_path)
    state = tmp_path / "state"
    monkeypatch.setenv("NVML_STUB_STATE", str(state))
    stub = Stub(state)
    stub.set_up(*TWO_GPUS)
    stub.play(1, "busy", "70", "memory", "10G", "throttled", "hw_thermal", "temperature", "91")
    env = {"LD_LIBRARY_PATH": str(library.parent), "NVML_STUB_STATE": str(state)}
    # The step holds one of two GPUs that it sees: Slurm's 5 is /dev/nvidia1.
    found = gpus_of_step(SLURM_STEP_GPUS="5", CUDA_VISIBLE_DEVICES="1", **env)
    assert sorted(found) == ["5", "problem"]
    gpu = found["5"]
    assert (gpu.minor, gpu.utilization, gpu.degrees) == (1, 70, 91)
    assert (gpu.memory_used, gpu.memory_total) == (10240, 40960)
    assert gpu.throttled == ("hw_thermal",)
    other = gpus_of_step(SLURM_STEP_GPUS="5", CUDA_VISIBLE_DEVICES="0", **env)["5"]
    assert (other.minor, other.utilization, other.throttled) == (0, 0, ())
    # It sees only its own, as in a cgroup: then nothing says which is which.
    found = gpus_of_step(SLURM_STEP_GPUS="4,5", CUDA_VISIBLE_DEVICES="0,1", **env)
    assert sorted(found) == ["None", "problem"]
    # It holds none.
    assert gpus_of_step(**env) == {"problem": ""}


def test_the_program_ends_by_itself_with_0(tmp_path: Path) -> None:
    asked = {"jobs": ["41"], "seconds": 60, "deadline": 0.2}
    argv = [sys.executable, "-IS", "-", json.dumps(asked)]
    done = subprocess.run(
        argv, input=SOURCE, text=True, capture_output=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
