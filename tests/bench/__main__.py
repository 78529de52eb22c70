"""`make bench`: each budget beside its peer or limit, in one run on the Docker cluster."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import time
from pathlib import Path

CLUSTER = Path(__file__).parents[2] / "docker" / "cluster"
PYTHON = "/opt/slurmkit/venv/bin/python"
RUNS = 7
# Timed on the login node itself, so that the way into the container does not count.
TIMER = """
import subprocess, sys, time
def once(argv):
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began
once(sys.argv[2:])
print(*(once(sys.argv[2:]) for _ in range(int(sys.argv[1]))))
"""


def median_ms(name: str, *argv: str) -> float:
    """Median of several runs of a command on the login node, milliseconds."""
    inside = [PYTHON, "-c", TIMER, str(RUNS), *argv]
    command = [str(CLUSTER), "exec", "login", "--name", name, "--user", "alice", "--", *inside]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return statistics.median(map(float, done.stdout.split())) * 1000


def main() -> None:
    """Print a table of what was measured, its limit, and whether it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="lab", help="Docker cluster to measure on")
    name = parser.parse_args().name
    bare = median_ms(name, PYTHON, "-c", "")
    imported = median_ms(name, PYTHON, "-c", "import slurmkit")
    squeue = median_ms(name, "squeue")
    queue = median_ms(name, "slurmkit", "queue")
    rows = [
        ("import slurmkit", imported, "bare Python + 30 ms", bare, imported <= bare + 30),
        ("slurmkit queue, start to end", queue, "squeue + 100 ms", squeue, queue <= squeue + 100),
    ]
    print(f"{time.strftime('%Y-%m-%d')}, median of {RUNS}, on the login node of cluster {name}\n")
    print("| what | measured, ms | limit | of that, ms | holds |\n|---|---|---|---|---|")
    for what, measured, limit, peer, holds in rows:
        print(f"| {what} | {measured:.0f} | {limit} | {peer:.0f} | {'yes' if holds else 'NO'} |")


if __name__ == "__main__":
    main()
