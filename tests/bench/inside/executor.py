"""The same calls through slurmkit and through submitit, in turn, each as its users write it."""

import json
import os
import subprocess
import sys
import time

rounds, calls, peer = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ASKED = {"time": "10", "partition": "cpu", "mem": "100M"}
TOGETHER = 8  # of submitit's: with more at once its sruns outlive their credentials here
OURS = f"""
import json, time
from slurmkit import Executor
began = time.perf_counter()
with Executor(**{ASKED!r}) as executor:
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
executor.update_parameters(array_parallelism={TOGETHER}, **{ASKED!r})
jobs = executor.map_array(lambda x: x * x, range({calls}))
first = (jobs[0].result(), time.perf_counter() - began)
rest = [job.result() for job in jobs[1:]]
print(json.dumps([first[1], time.perf_counter() - began, sum([first[0], *rest])]))
"""


def seconds(script: str, path: str) -> tuple[float, float]:
    """To the first and to the last result, from after the imports."""
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True, env=env
    )
    first, last, total = json.loads(done.stdout)
    assert total == sum(x * x for x in range(calls))
    return first, last


def until_idle() -> None:
    """No jobs of the one are there when the other begins."""
    while subprocess.check_output(["squeue", "--noheader", "--me", "--format=%i"]):
        time.sleep(0.5)


found: dict[str, dict[str, list[float]]] = {}
for _ in range(rounds):
    for name, script, path in (("slurmkit", OURS, ""), ("submitit", THEIRS, peer)):
        until_idle()
        first, last = seconds(script, path)
        own = found.setdefault(name, {"first": [], "last": []})
        own["first"].append(first)
        own["last"].append(last)
print(json.dumps(found))
