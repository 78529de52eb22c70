"""Submit a job many times, in turn, through the library; the cluster's name is given or it is here.

Says for how many seconds; the jobs are held, then gone.
"""

import json
import sys
import time

from slurmkit.cluster.cluster import Cluster
from slurmkit.jobs.backends.commands import CommandsBackend
from slurmkit.planning.planner import plan
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.spec.jobspec import JobSpec

NAME = "bench-loop"
jobs, names = int(sys.argv[1]), sys.argv[2:]
slurm = LocalSlurmCommands()
cluster = Cluster(names[0]) if names else Cluster(slurm, CommandsBackend(slurm))
options = {"job_name": NAME, "time": "1", "partition": "cpu", "output": "/dev/null"}
made = plan(JobSpec(command=("true",), hold=True, **options), cluster)
try:
    cluster.submit(made)  # logs in
    began = time.perf_counter()
    for _ in range(jobs):
        cluster.submit(made)
    seconds = time.perf_counter() - began
finally:
    cluster.slurm.run(["scancel", "--me", f"--name={NAME}"])
print(json.dumps({"seconds": seconds}))
