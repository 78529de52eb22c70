"""The same calls through slurmkit and submitit, in turn, with as many tasks at once."""

import json
import os
import subprocess
import sys
import time

rounds, calls, peer, together = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
ASKED = {"time": "10", "partition": "cpu", "mem": "100M"}
OURS = f"""
import json, sys, time
from slurmkit import Executor
began = time.perf_counter()
with Executor(**json.loads(sys.argv[1])) as executor:
    results = executor.map(lambda x: x * x, range({calls}))
    first = (next(results), time.perf_counter() - began)
    rest = list(results)
print(json.dumps([first[1], time.perf_counter() - began, sum([first[0], *rest])]))
"""
THEIRS = f"""
import json, sys, time
import submitit
began = time.perf_counter()
executor = submitit.SlurmExecutor("{peer}/jobs-%j")
executor.update_parameters(**json.loads(sys.argv[1]))
jobs = executor.map_array(lambda x: x * x, range({calls}))
first = (jobs[0].result(), time.perf_counter() - began)
rest = [job.result() for job in jobs[1:]]
print(json.dumps([first[1], time.perf_counter() - began, sum([first[0], *rest])]))
"""

WAYS = {"slurmkit": (OURS, "array_throttle", ""), "submitit": (THEIRS, "array_parallelism", peer)}


def seconds(script: str, throttle: str, path: str, most: int) -> tuple[float, float]:
    """To the first and to the last result, from after the imports."""
    env = {**os.environ, "PYTHONPATH": path}
    argv = [sys.executable, "-c", script, json.dumps({**ASKED, throttle: most})]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env=env)
    first, last, total = json.loads(done.stdout)
    assert total == sum(x * x for x in range(calls))
    return first, last


def until_idle() -> None:
    """No jobs of the one are there when the other begins."""
    while subprocess.check_output(["squeue", "--noheader", "--me", "--format=%i"]):
        time.sleep(0.5)


found: dict[str, dict[str, list[float]]] = {}
for _ in range(rounds):
    for most in together:
        for name, way in WAYS.items():
            until_idle()
            first, last = seconds(*way, int(most))
            own = found.setdefault(f"{name} {most}", {"first": [], "last": []})
            own["first"].append(first)
            own["last"].append(last)
print(json.dumps(found))
