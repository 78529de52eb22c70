"""Look at the processes of a job on one node, from a step of that job.

slurmkit sends this file to `python3 -` on each node of the job. It runs on the node's own Python,
from 3.6 on: it stands alone, and needs the standard library only. It reads /proc, asks the NVIDIA
driver and NCCL, and changes nothing. It prints each part as soon as it has it, and always ends by
itself and with exit code 0: srun drops what other nodes print after one that fails.
"""

import ctypes
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

MARK = "slurmkit-why"
"""The first word of each line that is for slurmkit; anything else is of the site's own scripts."""
_LINE = 700  # characters of one line; srun may mix longer lines of two nodes
_LOOKS = 8  # in the time in which processes are watched
_MOST_PROCESSES = 400
_MOST_THREADS = 64  # of one process
_NAMES = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "RANK", "NCCL_RAS_ADDR", "VIRTUAL_ENV")
_RAS_ADDRESS = "127.0.0.1:28028"
_RAS_BYTES = 1 << 16
_STACK_LINES = 60
_STACK_SECONDS = 10
_NO_PY_SPY = "py-spy is not installed: it is on PyPI; install it in the environment of the job"
_NEEDED = 16 << 20  # bytes of the job's memory beyond those of a Python that has begun
_MEMORY_SECONDS = 2.0  # for the memory of all processes
_LISTENS = "0A"  # state of a socket in /proc/net/tcp
_THROTTLED = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


def main(asked: "dict[str, Any]") -> None:
    """Print what is asked for.

    Args:
        asked: `jobs`, the ids that the job's processes may have as SLURM_JOB_ID; `seconds` to watch
            them; `deadline`, after which this ends, in seconds; `stacks`, node to process ids whose
            Python stacks are wanted, in place of all else.
    """
    end = threading.Timer(asked["deadline"], os._exit, (0,))
    end.daemon = True
    end.start()
    try:
        _answer(asked)
    finally:
        end.cancel()


def _answer(asked: "dict[str, Any]") -> None:
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    used, limit = JobCgroup("self").memory()
    if used is not None and limit and limit - used < _NEEDED:
        # This program's own memory counts for the job; so it ends before it needs more.
        _print_part(node, "full", {"used": used, "limit": limit, "taken": time.time()})
        return
    if asked.get("stacks"):
        _print_part(node, "stacks", [read_stack(pid) for pid in asked["stacks"].get(node, [])])
        return
    job = Processes(asked["jobs"], os.environ.get("SLURM_STEP_ID", ""))
    _print_part(node, "processes", job.watch(asked["seconds"]))
    _print_part(node, "gpus", read_gpus(os.environ))
    if os.environ.get("SLURM_NODEID", "0") == "0":
        _print_part(node, "nccl", ask_nccl(job))


def _print_part(node: str, name: str, value: "Any") -> None:
    """Print a part as short lines: mark, node, part, number of the line, of how many, text."""
    text = json.dumps(value)
    pieces = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    for number, piece in enumerate(pieces, 1):
        print(MARK, node, name, number, len(pieces), piece)
    sys.stdout.flush()


class Processes:
    """The processes of a job on this node.

    Args:
        jobs: ids that they may have as SLURM_JOB_ID.
        own_step: step id of this program, which is left out.
        proc: the folder of /proc; another one in tests.
    """

    def __init__(self, jobs: "list[str]", own_step: str, proc: str = "/proc") -> None:
        self._jobs = set(jobs)
        self._own_step = own_step
        self._proc = proc
        self.known = {}  # type: dict[int, dict[str, str]]
        self.left_out = 0
        self._find()

    def _find(self) -> None:
        """Find the processes of this user that belong to the job, and their variables."""
        mine, parents = [], {}
        for name in os.listdir(self._proc):
            if name.isdigit() and self._is_mine(name):
                mine.append(int(name))
                parents[int(name)] = int((self.stat(name) or ["", "0"])[1])
        env = {pid: self._variables(pid) for pid in mine}
        ids = {pid for pid in mine if self._is_of_job(pid, env[pid])}
        # A program may overwrite its environment, for example to change its title.
        grown = True
        while grown:
            more = {pid for pid in mine if pid not in ids and parents[pid] in ids}
            grown = bool(more)
            ids |= more
        ids -= self._own(parents, env)
        self.left_out = max(0, len(ids) - _MOST_PROCESSES)
        self.known = {pid: env[pid] for pid in sorted(ids)[:_MOST_PROCESSES]}

    def _is_mine(self, name: str) -> bool:
        try:
            return os.stat(f"{self._proc}/{name}").st_uid == os.getuid()
        except OSError:
            return False

    def _is_of_job(self, pid: int, env: "dict[str, str]") -> bool:
        if env.get("SLURM_JOB_ID"):
            return env["SLURM_JOB_ID"] in self._jobs
        groups = self._read(pid, "cgroup")
        return any(f"/job_{job}/" in groups for job in self._jobs)

    def _own(self, parents: "dict[int, int]", env: "dict[int, dict[str, str]]") -> "set[int]":
        """Return this process, its ancestors, and other processes of its step."""
        own, pid = set(), os.getpid()
        while pid in parents:
            own.add(pid)
            pid = parents[pid]
        if self._own_step:
            own |= {pid for pid in env if env[pid].get("SLURM_STEP_ID") == self._own_step}
        return own

    def _variables(self, pid: int) -> "dict[str, str]":
        """Return the few variables of a process that matter here, and no others."""
        found = {}
        for each in self._read(pid, "environ").split("\0"):
            name, _, value = each.partition("=")
            if name in _NAMES:
                found[name] = value
        return found

    def _read(self, pid: "Any", name: str) -> str:
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb") as file:
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""

    def stat(self, path: "Any") -> "list[str] | None":
        """Return the fields of a stat file from the state on; None if the process is gone."""
        text = self._read(path, "stat")
        return text[text.rindex(")") + 2 :].split() if ")" in text else None

    def watch(self, seconds: float) -> "dict[str, Any]":
        """Watch the processes for some seconds, and return what each did."""
        began = time.time()
        first = {pid: (self._cpu(pid), self._bytes_read(pid)) for pid in self.known}
        seen = {pid: _Seen() for pid in self.known}
        for look in range(_LOOKS):
            if look:
                time.sleep(seconds / (_LOOKS - 1))
            for pid, each in seen.items():
                self._look(pid, each)
        lasted = time.time() - began
        found = [self._process(pid, seen[pid], *first[pid]) for pid in self.known]
        cgroup = self._cgroup()
        used, by = self._memory_used(cgroup)
        return {
            "began": began,
            "seconds": lasted,
            "left_out": self.left_out,
            "memory_limit": cgroup.memory()[1],
            "memory_used": used,
            "memory_by": by,
            "processes": [each for each in found if each],
        }

    def _look(self, pid: int, seen: "_Seen") -> None:
        fields = self.stat(pid)
        if fields is None:
            return
        seen.states[fields[0]] += 1
        seen.waits[self._wait_of(pid) if fields[0] in "SD" else ""] += 1
        tasks = self._threads(pid) if seen.blocked is None else list(seen.blocked)
        blocked = {
            task: self._switches(pid, task) for task in tasks if self._state_of(pid, task) == "D"
        }
        before = seen.blocked
        seen.blocked = {
            task: count
            for task, count in blocked.items()
            if before is None or before[task] == count
        }

    def _wait_of(self, pid: "Any") -> str:
        """Return the kernel function in which a process sleeps, else its system call."""
        place = self._read(pid, "wchan")
        if place not in ("", "0"):
            return place
        call = self._read(pid, "syscall").split(" ")[0].strip()
        return f"system call {call}" if call.isdigit() else ""

    def _threads(self, pid: int) -> "list[str]":
        try:
            return os.listdir(f"{self._proc}/{pid}/task")[:_MOST_THREADS]
        except OSError:
            return []

    def _state_of(self, pid: int, task: str) -> str:
        fields = self.stat(f"{pid}/task/{task}")
        return fields[0] if fields else ""

    def _switches(self, pid: int, task: str) -> str:
        """Return how often a thread has gone to sleep; one that waits all the time stays asleep."""
        text = self._read(f"{pid}/task/{task}", "status")
        return " ".join(
            re.findall(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)
        )

    def _cpu(self, pid: int) -> "float | None":
        """Return the CPU seconds that a process has used."""
        fields = self.stat(pid)
        if fields is None:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _bytes_read(self, pid: int) -> "int | None":
        """Return the bytes that a process has read, from files, pipes and sockets."""
        match = re.search(r"^rchar: (\d+)", self._read(pid, "io"), re.MULTILINE)
        return int(match.group(1)) if match else None

    def _process(
        self, pid: int, seen: "_Seen", cpu: "float | None", read: "int | None"
    ) -> "dict[str, Any] | None":
        fields = self.stat(pid)
        if fields is None or cpu is None:
            return None
        env = self.known[pid]
        status = dict(
            line.split(":", 1) for line in self._read(pid, "status").splitlines() if ":" in line
        )
        rss, tracer = status.get("VmRSS", ""), status.get("TracerPid", "0").strip()
        now, cpu_now = self._bytes_read(pid), self._cpu(pid)
        blocked = sorted(seen.blocked or {})
        return {
            "pid": pid,
            "parent": int(fields[1]),
            "rank": env.get("RANK", ""),
            "task": env.get("SLURM_PROCID", ""),
            "step": env.get("SLURM_STEP_ID", ""),
            "name": self._read(pid, "comm").strip(),
            "command": self._command(pid),
            "state": fields[0],
            "states": dict(seen.states),
            "waits": dict(seen.waits),
            "blocked": [self._wait_of(f"{pid}/task/{task}") for task in blocked],
            "cpu": None if cpu_now is None else cpu_now - cpu,
            "cpu_total": cpu_now,
            "read": None if now is None or read is None else now - read,
            "rss": int(rss.split()[0]) * 1024 if rss else None,
            "threads": int(fields[17]),
            "tracer": int(tracer) if tracer.isdigit() else 0,
        }

    def _command(self, pid: int) -> str:
        """Return the program and its script; further arguments may be secret."""
        words = [each for each in self._read(pid, "cmdline").split("\0") if each]
        if not words:
            return ""
        shown = os.path.basename(words[0])
        if shown.startswith("python"):
            module = words.index("-m") + 1 if "-m" in words else 0
            scripts = [os.path.basename(each) for each in words[1:] if each.endswith(".py")]
            if 0 < module < len(words):
                shown += " -m " + words[module]
            elif scripts:
                shown += " " + scripts[0]
        elif shown in ("sh", "bash", "dash") and len(words) > 1 and words[1][0] not in "-+":
            shown += " " + os.path.basename(words[1])
        return shown[:80]

    def _cgroup(self) -> "JobCgroup":
        """Return the cgroup of the job, of the first process that is in it."""
        found = [JobCgroup(str(pid), self._proc) for pid in self.known]
        return next((each for each in found if each.folder), JobCgroup("", self._proc))

    def _memory_used(self, cgroup: "JobCgroup") -> "tuple[int | None, str]":
        """Return the memory in use, and what says so: `pss`, `cgroup`, or nothing.

        Processes that were forked share pages, for example the workers of a loader. Each page
        counts once here, while it counts for each process in their resident memory (RSS).
        """
        end, total = time.time() + _MEMORY_SECONDS, 0
        for pid in self.known:
            match = re.search(r"^Pss:\s*(\d+) kB", self._read(pid, "smaps_rollup"), re.MULTILINE)
            if match:
                total += int(match.group(1)) * 1024
            elif self._has_memory(pid):
                break
            if time.time() > end:
                break
        else:
            if self.known and not self.left_out:
                return total, "pss"
        used = cgroup.memory()[0]
        return used, "" if used is None else "cgroup"

    def _has_memory(self, pid: int) -> bool:
        """Tell whether a process is there and has memory; a zombie has none."""
        return "VmRSS:" in self._read(pid, "status")

    def variable(self, name: str) -> str:
        """Return a variable of the first process that has it; empty if none has."""
        return next((env[name] for env in self.known.values() if env.get(name)), "")

    def listens(self, port: int) -> bool:
        """Tell whether a process of the job listens on a TCP port."""
        inodes = set()
        for name in ("tcp", "tcp6"):
            for line in self._read("net", name).splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
        return bool(inodes) and any(
            link in inodes for pid in self.known for link in self._links(pid)
        )

    def _links(self, pid: int) -> "Iterator[str]":
        folder = f"{self._proc}/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names:
            try:
                yield os.readlink(f"{folder}/{name}")
            except OSError:
                continue


class JobCgroup:
    """The memory cgroup of the job that a process belongs to.

    Args:
        pid: the process; `self` for this one.
        proc: the folder of /proc; another one in tests.
        root: the folder of the cgroups; another one in tests.
    """

    def __init__(self, pid: str, proc: str = "/proc", root: str = "/sys/fs/cgroup") -> None:
        self.folder = ""
        self._is_old = False  # of version 1
        for line in _lines(f"{proc}/{pid}/cgroup") if pid else []:
            match = re.match(r"\d+:([^:]*):(.*/job_\d+)(/|$)", line)
            if match and match.group(1) in ("", "memory"):
                self._is_old = match.group(1) == "memory"
                self.folder = root + ("/memory" if self._is_old else "") + match.group(2)
                return

    def memory(self) -> "tuple[int | None, int | None]":
        """Return the bytes in use and the limit; None if unknown, or without a limit.

        Pages of files that were not used lately are left out: the kernel frees them first.
        """
        if not self.folder:
            return None, None
        names = ("limit_in_bytes", "usage_in_bytes") if self._is_old else ("max", "current")
        limit, used = (_first_number(f"{self.folder}/memory.{name}") for name in names)
        idle = "total_inactive_file " if self._is_old else "inactive_file "
        lines = _lines(f"{self.folder}/memory.stat")
        free = next((int(line[len(idle) :]) for line in lines if line.startswith(idle)), 0)
        is_limited = limit is not None and limit < 1 << 60
        return None if used is None else max(used - free, 0), limit if is_limited else None


class _Seen:
    """What several looks at a process saw."""

    def __init__(self) -> None:
        self.states = Counter()  # type: Counter[str]
        self.waits = Counter()  # type: Counter[str]
        self.blocked = None  # type: dict[str, str] | None


def _lines(path: str) -> "list[str]":
    try:
        with open(path) as file:
            return file.read().splitlines()
    except (OSError, ValueError):
        return []


def _first_number(path: str) -> "int | None":
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _NvmlMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def read_gpus(env: "Any") -> "dict[str, Any]":
    """Ask the NVIDIA driver about the GPUs that this step may use.

    Returns:
        `gpus`, each with its number `minor` in the name of its device file, and Slurm's `index` if
        that is certain; or `problem`.
    """
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {"gpus": [], "problem": "there is no NVIDIA driver"}
    if nvml.nvmlInit_v2() != 0:
        return {"gpus": [], "problem": "the NVIDIA driver does not answer"}
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return {"gpus": [], "problem": "the NVIDIA driver does not list its GPUs"}
    held = [each for each in env.get("SLURM_STEP_GPUS", "").split(",") if each.isdigit()]
    files = [each for each in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.isdigit()]
    # With more GPUs in sight than the step holds, CUDA_VISIBLE_DEVICES has the numbers of the
    # device files, in the order of Slurm's indices.
    whole_node = count.value > len(held)
    is_certain = whole_node and len(files) == len(held)
    index_of = {files[at]: held[at] for at in range(len(held))} if is_certain else {}
    gpus = []
    for number in range(count.value):
        gpu = _read_gpu(nvml, number)
        if gpu is None or (whole_node and str(gpu["minor"]) not in index_of):
            continue
        index = index_of.get(str(gpu["minor"]))
        gpus.append(dict(gpu, index=None if index is None else int(index)))
    return {"gpus": gpus, "problem": "", "taken": time.time()}


def _read_gpu(nvml: "Any", number: int) -> "dict[str, Any] | None":
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) != 0:
        return None

    def ask(name: str, value: "Any", *first: "Any") -> "Any":
        function = getattr(nvml, name, None)
        return value if function and function(handle, *first, ctypes.byref(value)) == 0 else None

    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong())
    if reasons is None:  # its name before driver 535
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong())
    memory = ask("nvmlDeviceGetMemoryInfo", _NvmlMemory())
    use = ask("nvmlDeviceGetUtilizationRates", _Utilization())
    return {
        "minor": _value(ask("nvmlDeviceGetMinorNumber", ctypes.c_uint())),
        "utilization": None if use is None else use.gpu,
        "memory_used": None if memory is None else memory.used >> 20,
        "memory_total": None if memory is None else memory.total >> 20,
        "throttled": None if reasons is None else _names_of(reasons.value),
        "degrees": _value(ask("nvmlDeviceGetTemperature", ctypes.c_uint(), 0)),
        "clock": _value(ask("nvmlDeviceGetClockInfo", ctypes.c_uint(), 1)),
        "top_clock": _value(ask("nvmlDeviceGetMaxClockInfo", ctypes.c_uint(), 1)),
    }


def _value(number: "Any") -> "int | None":
    """Return the value of a C number; one that is 0 counts as false."""
    return None if number is None else number.value


def _names_of(bits: int) -> "list[str]":
    return [name for bit, name in _THROTTLED.items() if bits & bit]


def ask_nccl(job: Processes, patience: float = 4.0) -> "dict[str, Any]":
    """Ask NCCL's RAS of the job for its state; see NCCL's user guide, RAS.

    Several processes of the node listen on the same port, and a stopped one does not answer: so
    it is asked up to three times.

    Returns:
        `text`, the answer; both empty if no process of the job listens there.
    """
    address = job.variable("NCCL_RAS_ADDR") or _RAS_ADDRESS
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not job.listens(int(port)):
        return {"text": "", "problem": ""}
    problem = ""
    for _ in range(3):
        try:
            return {"text": _ask_ras(host.strip("[]"), int(port), patience), "problem": ""}
        except OSError as error:
            problem = str(error) or "it gives no answer"
    return {"text": "", "problem": f"NCCL's RAS at {address}: {problem}"}


def _ask_ras(host: str, port: int, patience: float) -> str:
    end = time.time() + patience + 4
    with socket.create_connection((host, port), timeout=1.5) as line:
        _say(line, "CLIENT PROTOCOL 2\n")
        if not _hear(line, time.time() + 1.5, to_line_end=True).upper().startswith("SERVER"):
            raise OSError("it is not NCCL")
        _say(line, f"TIMEOUT {patience:.0f}\n")
        _hear(line, time.time() + 1.5, to_line_end=True)
        _say(line, "VERBOSE STATUS\n")
        return _hear(line, end)


def _say(line: socket.socket, text: str) -> None:
    line.sendall(text.encode())


def _hear(line: socket.socket, end: float, *, to_line_end: bool = False) -> str:
    """Read until the end of the connection, or of a line; at most 64 KiB and until `end`."""
    heard = b""
    while len(heard) < _RAS_BYTES and not (to_line_end and heard.endswith(b"\n")):
        left = end - time.time()
        if left <= 0:
            break
        line.settimeout(left)
        try:
            piece = line.recv(4096)
        except OSError:  # socket.timeout is one, and a TimeoutError only from 3.10 on
            break
        if not piece:
            break
        heard += piece
    if not heard:
        raise OSError("it gives no answer")
    return heard.decode("utf-8", "replace")


def read_stack(pid: int, proc: str = "/proc") -> "dict[str, Any]":
    """Return the Python stack of a process, from py-spy; it does not stop the process."""
    program = _find_py_spy(pid, proc)
    if program is None:
        return {"pid": pid, "lines": [], "problem": _NO_PY_SPY}
    try:
        done = subprocess.run(  # noqa: UP022 - capture_output is of Python 3.7
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=_STACK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"pid": pid, "lines": [], "problem": f"py-spy: {error}"}
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if done.returncode:
        messages = done.stderr.decode("utf-8", "replace").strip().splitlines()
        problem = messages[0][:200] if messages else f"py-spy ended with {done.returncode}"
        if re.search(r"(?i)permission|not permitted", " ".join(messages)):
            problem = "py-spy may not look into the process: ptrace is forbidden on this node"
        return {"pid": pid, "lines": [], "problem": problem}
    return {"pid": pid, "lines": [line[:300] for line in lines[:_STACK_LINES]], "problem": ""}


def _find_py_spy(pid: int, proc: str) -> "str | None":
    """Return py-spy of the PATH, or of the Python environment of the process."""
    found = shutil.which("py-spy")
    if found:
        return found
    folders = []
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            folders.append(os.path.dirname(file.read().split(b"\0")[0].decode()))
        with open(f"{proc}/{pid}/environ", "rb") as file:
            named = [each for each in file.read().split(b"\0") if each.startswith(b"VIRTUAL_ENV=")]
        folders += [each.partition(b"=")[2].decode() + "/bin" for each in named]
    except (OSError, ValueError):
        pass
    return shutil.which(
        "py-spy", path=os.pathsep.join(filter(os.path.isabs, folders)) or os.devnull
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
