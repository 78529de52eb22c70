"""Read the queue into typed rows, beside squeue printing the same fields, in turn."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from slurmkit.slurm.commands import LocalSlurmCommands, environment_for
from slurmkit.slurm.records import record_mark
from slurmkit.state.queue import read_queue
from slurmkit.state.queue_rows import QUEUE_FIELDS, squeue_format

PLAIN = dict(os.environ)
OURS = environment_for(["squeue"], os.environ)  # its tuning makes raw squeue quicker, too
TICK = 0.001


def squeue(*options: str, env: dict[str, str] = OURS) -> float:
    """Seconds that squeue takes to print into memory."""
    began = time.perf_counter()
    subprocess.run(["squeue", *options], check=True, stdout=subprocess.PIPE, env=env)
    return time.perf_counter() - began


def snapshot() -> tuple[float, int, float]:
    """Seconds that typed rows take, how many they are, and the longest wait of another thread."""
    waits, over = [0.0], threading.Event()

    def tick() -> None:
        while not over.is_set():
            began = time.perf_counter()
            time.sleep(TICK)
            waits.append(time.perf_counter() - began - TICK)

    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.perf_counter()
    queue = read_queue(LocalSlurmCommands())
    took = time.perf_counter() - began
    over.set()
    ticker.join()
    return took, len(queue.rows), max(waits)


def memory() -> float:
    """Megabytes by which the process has grown at most so far."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


runs, json_runs = map(int, sys.argv[1:])
before = memory()
_, rows, _ = snapshot()
grown = memory() - before
raw = ["--noheader", "-O", squeue_format(record_mark())]
squeue(*raw)
times = [(squeue(*raw), *snapshot()) for _ in range(runs)]
found = {
    "rows": rows,
    "fields": len(QUEUE_FIELDS),
    "raw": [each[0] for each in times],
    "typed": [each[1] for each in times],
    "waits": [each[3] for each in times],
    "megabytes": grown,
    "json": [squeue("--json", env=PLAIN) for _ in range(json_runs)],
}
print(json.dumps(found))
