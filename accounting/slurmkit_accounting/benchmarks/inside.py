"""The benchmark inside a job: measure this node's GPUs and disk, a line of JSON for each value.

This file is copied next to the results, and run there by whatever Python 3 the node has, from 3.6
on: it stands alone, and needs the standard library only. GPUs are measured by PyTorch where that
Python has it, each GPU in a process of its own.
"""

import errno
import json
import mmap
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

UNITS = {
    "matmul_fp32": "TFLOP/s",
    "matmul_bf16": "TFLOP/s",
    "memory": "GB/s",
    "cpu_matmul_fp32": "GFLOP/s",
    "cpu_memory": "GB/s",
    "disk_write": "MB/s",
    "disk_read": "MB/s",
}
"""The benchmarks and their units; a GB is 10^9 bytes, an MB 10^6."""
OF_GPU = ("matmul_fp32", "matmul_bf16", "memory")
OF_CPU = ("cpu_matmul_fp32", "cpu_memory")
OF_DISK = ("disk_write", "disk_read")
MOST_DISK_MIB = 16384
_BLOCK = 4 * 2**20  # bytes of one write
LEAST_DISK_MIB = 64
_SHARE_OF_FREE = 10  # at most a tenth of the free space is written
_ROUNDS = 10  # of each measurement; their median counts
_TAIL = 300  # characters of the last line of a program's output
_SMI_SECONDS = 60
_SMI = "index,uuid,serial,name,driver_version"
_OCTAL = re.compile(r"\\([0-7]{3})")


class GpuDevice(NamedTuple):
    """A GPU of this job.

    Attributes:
        visible: what `CUDA_VISIBLE_DEVICES` selects it by.
        gpu: UUID, else the index.
    """

    visible: str
    gpu: str
    serial: str = ""
    name: str = ""
    driver: str = ""


class Unmeasured(Exception):
    """Something cannot be measured; the message says why."""


# --- The disk ---------------------------------------------------------------------------------


def measure_disk(folder: str, mib: int, seconds: float) -> "tuple[dict[str, float], str]":
    """Write and read a file, and remove it; return MB/s by benchmark, and the method.

    The file has no name while it is written, so nothing stays of it, however this process ends.

    Args:
        folder: where the file is made.
        mib: its size; it is smaller where a tenth of the free space is.
        seconds: writing stops after this time.

    Raises:
        Unmeasured: when there is too little space, or the folder cannot be written.
    """
    blocks = min(mib, MOST_DISK_MIB, _free_mib(folder) // _SHARE_OF_FREE) * 2**20 // _BLOCK
    if blocks * _BLOCK < LEAST_DISK_MIB * 2**20:
        raise Unmeasured(
            f"{folder} has {_free_mib(folder)} MiB free; a tenth of it is written, at least"
            f" {LEAST_DISK_MIB} MiB"
        )
    with mmap.mmap(-1, _BLOCK) as block:
        block.write(os.urandom(_BLOCK))  # so that no filesystem can compress it
        try:
            file, direct = _open_nameless(folder, block)
            try:
                wrote, took = _write(file, block, blocks, seconds)
                read = _read(file, block, wrote, direct)
            finally:
                os.close(file)
        except OSError as error:
            raise Unmeasured(f"cannot write in {folder}: {error.strerror}") from error
    size = wrote * _BLOCK
    cache = "O_DIRECT" if direct else "cache dropped before the read"
    kind = filesystem_type(folder) or "unknown filesystem"
    # Not how much was written: a slow disk stops early, and is still compared with the others.
    method = f"up to {min(mib, MOST_DISK_MIB)} MiB in {folder} ({kind}), fsync, {cache}"
    return {"disk_write": size / took / 1e6, "disk_read": size / read / 1e6}, method


def _free_mib(folder: str) -> int:
    try:
        space = os.statvfs(folder)
    except OSError as error:
        raise Unmeasured(f"cannot write in {folder}: {error.strerror}") from error
    return space.f_bavail * space.f_frsize // 2**20


def _open_nameless(folder: str, block: "mmap.mmap") -> "tuple[int, bool]":
    """Return a new file without a name, and whether it is written past the page cache."""
    for direct in (os.O_DIRECT, 0):
        handle, name = tempfile.mkstemp(prefix=".slurmkit-benchmark-", dir=folder)
        os.close(handle)
        try:
            file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | direct)
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
            continue
        finally:
            os.unlink(name)  # noqa: PTH108 - as os.open
        if not direct:
            return file, False
        try:
            os.write(file, block)
        except OSError as error:  # it opens, and then cannot
            os.close(file)
            if error.errno != errno.EINVAL:
                raise
        else:
            os.lseek(file, 0, os.SEEK_SET)
            return file, True
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _write(file: int, block: "mmap.mmap", blocks: int, seconds: float) -> "tuple[int, float]":
    """Write at most so many blocks, in about so many seconds; return how many, and the time."""
    started, wrote = time.perf_counter(), 0
    while wrote < blocks and (not wrote or time.perf_counter() - started < seconds):
        if os.write(file, block) != _BLOCK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        wrote += 1
    os.fsync(file)
    return wrote, time.perf_counter() - started


def _read(file: int, block: "mmap.mmap", blocks: int, direct: bool) -> float:  # noqa: FBT001
    """Read the blocks; return the time."""
    if not direct:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.lseek(file, 0, os.SEEK_SET)
    started = time.perf_counter()
    for _ in range(blocks):
        if os.readv(file, [block]) != _BLOCK:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
    return time.perf_counter() - started


def filesystem_type(folder: str) -> str:
    """Return the filesystem type of a folder; empty when unknown."""
    path, best, kind = Path(os.path.realpath(folder)), -1, ""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = Path(_OCTAL.sub(lambda match: chr(int(match.group(1), 8)), left.split()[4]))
        if len(mount.parts) >= best and (mount == path or mount in path.parents):
            best, kind = len(mount.parts), right.split()[0]
    return kind


# --- GPUs, and the CPU in their place -----------------------------------------------------------


def find_gpus() -> "list[GpuDevice]":
    """Return the GPUs that this job may use, in the driver's order."""
    visible = [word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
    known = _ask_driver()
    driver = known[0].driver if known else ""
    if any(word.startswith("MIG-") for word in visible):
        return [GpuDevice(word, word, driver=driver) for word in visible]
    if not known:  # not NVIDIA's
        words = visible or os.environ.get("ROCR_VISIBLE_DEVICES", "").split(",")
        return [GpuDevice(word, f"index {word}") for word in words if word]
    if visible and all(word.isdigit() and int(word) < len(known) for word in visible):
        return [known[int(word)] for word in visible]
    named = [gpu for gpu in known if gpu.gpu in visible]
    return named or known


def _ask_driver() -> "list[GpuDevice]":
    """Return what nvidia-smi lists; nothing where it is not there."""
    try:
        text = subprocess.check_output(
            ["nvidia-smi", "--query-gpu=" + _SMI, "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SMI_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(text.decode("utf-8", "replace"))


def parse_gpus(text: str) -> "list[GpuDevice]":
    """Parse nvidia-smi's list of GPUs."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(_SMI.split(",")) and words[0].isdigit():
            serial = "" if words[2].startswith("[") or words[2] == "0" else words[2]
            found.append(GpuDevice(words[1], words[1], serial, words[3], words[4]))
    return found


_left_behind = []  # type: list[subprocess.Popen[bytes]]


def measure_apart(ask: "dict[str, Any]", kind: str, visible: str) -> "dict[str, Any]":
    """Measure one GPU, or the CPU, in a process of its own.

    Args:
        ask: see `main`.
        kind: `cuda` or `cpu`.
        visible: the GPU.

    Raises:
        Unmeasured: when that process fails or takes too long.
    """
    env = dict(os.environ)
    if kind == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = visible
    argv = [sys.executable, __file__, "--device", kind, str(ask["seconds"])]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )
    try:
        output, errors = process.communicate(timeout=ask["device_seconds"])
    except subprocess.TimeoutExpired as error:
        # One that hangs in the driver (state D) does not end by that: nobody waits for it.
        process.kill()
        _left_behind.append(process)
        raise Unmeasured(f"it was not over after {ask['device_seconds']} s") from error
    try:
        found = json.loads(output.decode("utf-8", "replace").strip().splitlines()[-1])
    except (IndexError, ValueError) as error:
        last = errors.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        words = f"{sys.executable} ended with {process.returncode}: {last[-1][-_TAIL:]}"
        raise Unmeasured(words) from error
    if "trouble" in found:
        raise Unmeasured(found["trouble"])
    return dict(found)


def measure_device(kind: str, seconds: float) -> "dict[str, Any]":
    """Measure the one device that this process sees; this part imports PyTorch.

    Returns:
        `values` with a value and a method for each benchmark, `torch`, `name` and `versions`.

    Raises:
        Unmeasured: when PyTorch is missing, or has no such device.
    """
    try:
        import torch  # noqa: PLC0415 - not there where it is not needed
    except ImportError as error:
        raise Unmeasured(
            f"{sys.executable} has no PyTorch ({error}); name one that has: --python PATH"
        ) from error
    on_gpu = kind == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise Unmeasured(f"PyTorch {torch.__version__} sees no GPU")
    if on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = False
    wait = torch.cuda.synchronize if on_gpu else _nothing
    threads = torch.get_num_threads()
    by = "" if on_gpu else f", {threads} threads of {cpu_model()}"
    size, mib = (8192, 1024) if on_gpu else (1024, 128)
    values = {}
    types = [("matmul_fp32", torch.float32)] + ([("matmul_bf16", torch.bfloat16)] if on_gpu else [])
    for name, dtype in types:
        first, second = (torch.randn(size, size, device=kind).to(dtype) for _ in range(2))
        out = torch.empty(size, size, device=kind, dtype=dtype)

        def multiply(first: Any = first, second: Any = second, out: Any = out) -> None:
            torch.matmul(first, second, out=out)

        rate = 2.0 * size**3 / time_call(multiply, wait, seconds) / (1e12 if on_gpu else 1e9)
        values[name] = (rate, f"{size} x {size}{by}")
    source = torch.randn(mib * 2**18, device=kind)
    target = torch.empty_like(source)
    took = time_call(lambda: target.copy_(source), wait, seconds)
    values["memory"] = (2 * mib * 2**20 / took / 1e9, f"copy of {mib} MiB{by}")
    return {
        "values": {(name if on_gpu else "cpu_" + name): each for name, each in values.items()},
        "torch": str(torch.__version__),
        "name": torch.cuda.get_device_name(0) if on_gpu else cpu_model(),
        "versions": {"cuda": str(torch.version.cuda)} if on_gpu else {},
    }


def _nothing() -> None:
    """Wait for nothing: a CPU is done when it returns."""


def time_call(call: Any, wait: Any, seconds: float) -> float:
    """Return the seconds that a call takes: the median of several rounds of many calls.

    Args:
        call: what is measured.
        wait: returns when all calls are done.
        seconds: how long it is measured, about.
    """
    for _ in range(3):
        call()
    wait()
    started = time.perf_counter()
    call()
    wait()
    once = max(time.perf_counter() - started, 1e-7)
    calls = max(1, int(seconds / _ROUNDS / once))
    took = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        took.append((time.perf_counter() - started) / calls)
    return median(took)


def cpu_model() -> str:
    """Return the name of this node's CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return "unknown CPU"
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, "unknown CPU")


# --- The results --------------------------------------------------------------------------------


class Results:
    """The file of results, a line for each measurement."""

    def __init__(self, path: str) -> None:
        self.path = path

    def add(self, benchmark: str, value: "float | None", **facts: Any) -> None:
        """Append one measurement; `trouble` says why there is no value."""
        line = {
            "benchmark": benchmark,
            "value": value,
            "unit": UNITS[benchmark],
            "at": int(time.time()),
            "job_id": os.environ.get("SLURM_JOB_ID", ""),
            "node": os.environ.get("SLURMD_NODENAME", ""),
            **facts,
        }
        what = f"{benchmark} {facts.get('gpu', '')}".strip()
        shown = f"{value:.4g} {UNITS[benchmark]}" if value is not None else facts.get("trouble")
        sys.stdout.write(f"{what}: {shown}\n")
        sys.stdout.flush()
        with open(self.path, "a", encoding="utf-8") as file:  # noqa: PTH123 - appends
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def run_disk(ask: "dict[str, Any]", results: Results) -> None:
    """Measure the disk."""
    try:
        values, method = measure_disk(ask["disk"], ask["disk_mib"], ask["disk_seconds"])
    except Unmeasured as error:
        for name in OF_DISK:
            results.add(name, None, trouble=str(error), method="")
        return
    for name, value in values.items():
        results.add(name, value, method=method)


def run_device(ask: "dict[str, Any]", results: Results, gpu: "GpuDevice | None") -> None:
    """Measure one GPU, or the CPU without one."""
    facts = {"versions": {"python": "%d.%d.%d" % sys.version_info[:3]}}  # type: dict[str, Any]  # noqa: UP031
    names = OF_GPU if gpu else OF_CPU
    if gpu:
        facts.update(gpu=gpu.gpu, gpu_serial=gpu.serial, gpu_name=gpu.name, driver=gpu.driver)
    try:
        found = measure_apart(ask, "cuda" if gpu else "cpu", gpu.visible if gpu else "")
    except Unmeasured as error:
        for name in names:
            results.add(name, None, trouble=str(error), method="", **facts)
        return
    facts["versions"].update(found["versions"])
    facts["torch"] = found["torch"]
    if gpu and not gpu.name:
        facts["gpu_name"] = found["name"]
    for name, (value, method) in found["values"].items():
        results.add(name, value, method=method, **facts)


def main(ask: "dict[str, Any]") -> int:
    """Measure this node.

    Args:
        ask: `tests` (of `gpu`, `cpu`, `disk`), `out` (file of results), `seconds` of each
            measurement of a device, `device_seconds` at most of each device, `disk` (a folder),
            `disk_mib`, `disk_seconds`, and `gpus`, whether the node has any.
    """
    results = Results(ask["out"])
    if "disk" in ask["tests"]:
        run_disk(ask, results)
    if "cpu" in ask["tests"]:
        run_device(ask, results, None)
    if "gpu" in ask["tests"]:
        gpus = find_gpus()
        for gpu in gpus:
            run_device(ask, results, gpu)
        if ask["gpus"] and not gpus:
            for name in OF_GPU:
                results.add(name, None, trouble="no GPU is visible to the job", method="")
    return 0


def main_of_device(kind: str, seconds: float) -> int:
    """Measure in this process, and print the result as JSON."""
    try:
        found = measure_device(kind, seconds)
    except Unmeasured as error:
        found = {"trouble": str(error)}
    except RuntimeError as error:  # of CUDA: out of memory, an Xid
        lines = str(error).splitlines() or [type(error).__name__]
        found = {"trouble": lines[0][:_TAIL]}
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "--device":
        sys.exit(main_of_device(sys.argv[2], float(sys.argv[3])))
    sys.exit(main(json.loads(sys.argv[1])))
