"""The program of a benchmark's jobs, run for real: the disk here, and PyTorch by a stand-in."""

from __future__ import annotations

import ast
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from slurmkit_accounting.benchmarks import inside
from waiting import PATIENCE

PROGRAM = Path(inside.__file__)
# What the program uses of PyTorch. Each call takes some time of a clock that only it moves, so the
# right values are known. A GPU whose UUID ends in `slow` takes twice as long, `dead` fails.
TORCH = """
import os, time
__version__ = "9.9"
NOW, CALLS, USED = [0.0], [], os.environ.get("CUDA_VISIBLE_DEVICES", "")
time.perf_counter = lambda: NOW[0]
TIMES = {"float32": 0.02, "bfloat16": 0.01, "copy": 0.004}
float32, bfloat16 = "float32", "bfloat16"
def take(what): NOW[0] += TIMES[what] * (2 if USED.endswith("slow") else 1)
class Tensor:
    def __init__(self, dtype): self.dtype = dtype
    def to(self, dtype): return Tensor(dtype)
    def copy_(self, source): take("copy")
def randn(*size, device):
    if USED.endswith("dead"): raise RuntimeError("CUDA error: uncorrectable ECC error\\nmore")
    return Tensor("float32")
def empty(*size, device, dtype): return Tensor(dtype)
def empty_like(other): return Tensor(other.dtype)
def matmul(first, second, out): take(first.dtype)
def get_num_threads(): return 3
class version: cuda = "12.9"
class backends:
    class cuda:
        class matmul: allow_tf32 = True
class cuda:
    is_available = staticmethod(lambda: bool(USED))
    synchronize = staticmethod(lambda: None)
    get_device_name = staticmethod(lambda number: "Stand-in")
"""
SMI = """#!/bin/sh
echo "0, GPU-good, 1320, NVIDIA H100, 570.1"
echo "1, GPU-slow, 1321, NVIDIA H100, 570.1"
echo "2, GPU-dead, [N/A], NVIDIA H100, 570.1"
"""


def ask(folder: Path, *tests: str, **more: Any) -> dict[str, Any]:
    usual = {"seconds": 0.5, "device_seconds": 60, "disk": str(folder), "disk_mib": 64}
    given = {"tests": tests, "out": str(folder / "out.jsonl"), "disk_seconds": 30, "gpus": True}
    return {**usual, **given, **more}


def run(folder: Path, asked: dict[str, Any], **env: str) -> list[dict[str, Any]]:
    variables = {**os.environ, **env}
    argv = [sys.executable, str(PROGRAM), json.dumps(asked)]
    subprocess.run(argv, env=variables, check=True, timeout=PATIENCE, capture_output=True)
    return [json.loads(line) for line in (folder / "out.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture
def torch(tmp_path: Path) -> dict[str, str]:
    """Variables with which a Python has the stand-in for PyTorch, and the node three GPUs."""
    (tmp_path / "torch.py").write_text(TORCH, "utf-8")
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI, "utf-8")
    smi.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    return {"PYTHONPATH": str(tmp_path), "PATH": path, "SLURM_JOB_ID": "12"}


def test_a_nodes_python_can_run_it() -> None:
    """RHEL 8 has 3.6: no walrus, no keyword-only marks; and nothing but the standard library."""
    tree = ast.parse(PROGRAM.read_text("utf-8"), feature_version=(3, 6))
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {"torch"}
    for each in ast.walk(tree):
        found = [getattr(each, part, None) for part in ("annotation", "returns")]
        assert not any(isinstance(part, ast.Subscript | ast.BinOp) for part in found)


def test_the_disk_is_written_and_read_and_nothing_stays(tmp_path: Path) -> None:
    lines = run(tmp_path, ask(tmp_path, "disk"))
    assert [line["benchmark"] for line in lines] == ["disk_write", "disk_read"]
    assert all(line["value"] > 0 and line["unit"] == "MB/s" for line in lines)
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True
    ).stdout
    method = lines[0]["method"]
    assert method.startswith(f"up to 64 MiB in {tmp_path} (")
    assert "fsync" in method
    if "tmpfs" in kind or "overlay" in kind:  # stat has other names for others
        assert f"({kind.strip().removesuffix('fs')}" in method
    assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl", "home"}


def test_it_writes_as_much_as_it_says(tmp_path: Path) -> None:
    """The kernel's own count of what the process wrote."""
    before = int(Path("/proc/self/io").read_text("utf-8").split()[3])  # wchar
    values, method = inside.measure_disk(str(tmp_path), 96, 30)
    wrote = int(Path("/proc/self/io").read_text("utf-8").split()[3]) - before
    assert method.startswith("up to 96 MiB")
    assert 96 * 2**20 <= wrote < 101 * 2**20  # and one block that tries O_DIRECT
    assert set(values) == {"disk_write", "disk_read"}


def test_it_never_fills_a_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "_free_mib", lambda _: 900)
    read, blocks = inside._read, list[int]()

    def note(file: int, block: mmap.mmap, count: int, direct: bool) -> float:
        blocks.append(count)
        return read(file, block, count, direct)

    monkeypatch.setattr(inside, "_read", note)
    inside.measure_disk(str(tmp_path), 10_000, 30)
    assert blocks == [22]  # 88 MiB, a tenth in blocks of 4 MiB
    monkeypatch.setattr(inside, "_free_mib", lambda _: 600)
    with pytest.raises(inside.Unmeasured, match="600 MiB free; a tenth of it is written"):
        inside.measure_disk(str(tmp_path), 10_000, 30)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_slow_disk_is_written_less_and_compared_with_the_others(tmp_path: Path) -> None:
    before = int(Path("/proc/self/io").read_text("utf-8").split()[3])  # wchar
    _, slow = inside.measure_disk(str(tmp_path), 64, 0)
    wrote = int(Path("/proc/self/io").read_text("utf-8").split()[3]) - before
    assert 4 * 2**20 <= wrote < 9 * 2**20  # one block, and one that tries O_DIRECT
    _, quick = inside.measure_disk(str(tmp_path), 64, 30)
    assert slow == quick


def test_nothing_stays_of_one_that_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, str(PROGRAM), json.dumps(ask(tmp_path, "disk", disk_mib=16384))]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as started:
        deleted: list[str] = []
        limit = time.monotonic() + PATIENCE
        while not deleted and started.poll() is None and time.monotonic() < limit:
            files = Path(f"/proc/{started.pid}/fd")
            links = [str(link.readlink()) for link in files.iterdir() if link.is_symlink()]
            deleted = [link for link in links if link.endswith("(deleted)")]
        started.send_signal(signal.SIGKILL)
    assert deleted
    assert not [path for path in tmp_path.iterdir() if "benchmark" in path.name]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    lines = run(tmp_path, ask(tmp_path, "disk", disk="/no/such/folder"))
    assert [(line["value"], line["trouble"]) for line in lines] == [
        (None, "cannot write in /no/such/folder: No such file or directory")
    ] * 2


def test_each_gpu_is_measured_by_itself(tmp_path: Path, torch: dict[str, str]) -> None:
    lines = run(tmp_path, ask(tmp_path, "gpu"), **torch)
    found = {(line["gpu"], line["benchmark"]): line["value"] for line in lines}
    flops, copied = 2 * 8192**3, 2 * 2**30
    assert found["GPU-good", "matmul_fp32"] == pytest.approx(flops / 0.02 / 1e12)
    assert found["GPU-good", "matmul_bf16"] == pytest.approx(flops / 0.01 / 1e12)
    assert found["GPU-good", "memory"] == pytest.approx(copied / 0.004 / 1e9)
    assert found["GPU-slow", "memory"] == pytest.approx(copied / 0.008 / 1e9)
    dead = [line for line in lines if line["gpu"] == "GPU-dead"]
    assert [(line["value"], line["trouble"]) for line in dead] == [
        (None, "CUDA error: uncorrectable ECC error")
    ] * 3
    assert lines[0].items() >= {
        "gpu_serial": "1320", "gpu_name": "NVIDIA H100", "driver": "570.1", "torch": "9.9",
        "job_id": "12", "unit": "TFLOP/s", "method": "8192 x 8192",
    }.items()  # fmt: skip
    assert lines[0]["versions"]["cuda"] == "12.9"
    assert dead[0]["gpu_serial"] == ""


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", ["GPU-good", "GPU-slow", "GPU-dead"]),
        ("1", ["GPU-slow"]),
        ("2,0", ["GPU-dead", "GPU-good"]),
        ("GPU-slow", ["GPU-slow"]),
        ("MIG-1a,MIG-2b", ["MIG-1a", "MIG-2b"]),
    ],
)
def test_the_gpus_of_the_job(
    torch: dict[str, str], monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    monkeypatch.setenv("PATH", torch["PATH"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.gpu for gpu in inside.find_gpus()] == expected


def test_gpus_of_others_are_known_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/no/such")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0,1")
    assert [gpu.gpu for gpu in inside.find_gpus()] == ["index 0", "index 1"]
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES")
    assert inside.find_gpus() == []


def test_the_cpu_in_place_of_gpus(tmp_path: Path, torch: dict[str, str]) -> None:
    lines = run(tmp_path, ask(tmp_path, "cpu"), **torch)
    assert [line["benchmark"] for line in lines] == ["cpu_matmul_fp32", "cpu_memory"]
    assert lines[0]["value"] == pytest.approx(2 * 1024**3 / 0.02 / 1e9)
    assert lines[0]["method"].startswith("1024 x 1024, 3 threads of ")
    assert "gpu" not in lines[0]


def test_without_pytorch_the_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcuda.so.1')", "utf-8")
    lines = run(tmp_path, ask(tmp_path, "cpu"), PYTHONPATH=str(tmp_path))
    why = f"{sys.executable} has no PyTorch (libcuda.so.1); name one that has: --python PATH"
    assert {(line["value"], line["trouble"]) for line in lines} == {(None, why)}


def test_one_that_hangs_or_crashes_is_told(tmp_path: Path) -> None:
    hangs = "import time; time.sleep(600)"
    crashes = "import os, sys; print('Bus error', file=sys.stderr, flush=True); os._exit(3)"
    for code, seconds, words in (
        (hangs, 1, "it was not over after 1 s"),
        (crashes, 60, f"{sys.executable} ended with 3: Bus error"),
    ):
        (tmp_path / "torch.py").write_text(code, "utf-8")
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        asked = ask(tmp_path, "cpu", device_seconds=seconds)
        assert run(tmp_path, asked, PYTHONPATH=str(tmp_path))[0]["trouble"] == words


def test_one_that_no_signal_ends_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in state D, whose end may never come; the other devices are measured all the same."""
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda _: None)
        for _ in range(2):
            with pytest.raises(inside.Unmeasured, match="it was not over after 1 s"):
                inside.measure_apart({"seconds": 0.1, "device_seconds": 1}, "cpu", "")
    left = [inside._left_behind.pop() for _ in range(2)]
    for process in left:
        assert process.poll() is None  # it still hangs, and nobody has waited for it
        process.kill()
        process.communicate()


def test_a_node_whose_gpus_are_gone(tmp_path: Path) -> None:
    quiet = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "PATH": "/no/such"}
    lines = run(tmp_path, ask(tmp_path, "gpu"), **quiet)
    assert {line["trouble"] for line in lines} == {"no GPU is visible to the job"}
    assert [line["benchmark"] for line in lines] == list(inside.OF_GPU)
