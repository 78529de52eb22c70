"""Submit a job many times, in turn: through the library, and by a loop of sbatch in bash.

With the word `pyslurm`: the library by its backend of that name, and PySlurm alone in a loop.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from slurmkit.cluster.cluster import Cluster
from slurmkit.jobs.backends.choice import DefaultBackend
from slurmkit.planning.planner import plan
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.spec.jobspec import JobSpec

NAME = "bench-submit"
LOOP = 'for ((i = 0; i < $1; i++)); do sbatch --parsable "$2" >/dev/null || exit 1; done'

runs, jobs = map(int, sys.argv[1:3])
by_pyslurm = sys.argv[3:] == ["pyslurm"]
slurm = LocalSlurmCommands()
cluster = Cluster(slurm, DefaultBackend(slurm, "pyslurm" if by_pyslurm else "commands"))
options = {"job_name": NAME, "time": "1", "partition": "cpu", "output": "/dev/null"}
made = plan(JobSpec(command=("true",), hold=True, **options), cluster)
script = made.submissions[0].script


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def by_slurmkit() -> None:
    for _ in range(jobs):
        cluster.submit(made)


def by_sbatch() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        subprocess.run(["bash", "-c", LOOP, "bash", str(jobs), file.name], check=True)


def by_pyslurm_alone() -> None:
    """As its documentation has it, the job's environment made once."""
    import pyslurm  # noqa: PLC0415 - only where it is measured

    from slurmkit.jobs.backends.pyslurm import job_environment  # noqa: PLC0415 - as above

    asked = {"ntasks_per_node": 1, "cpus_per_task": 1, "nodes": 1, "priority": 0}
    asked |= {"name": NAME, "time_limit": 1, "partitions": "cpu", "standard_output": "/dev/null"}
    environment = job_environment(dict(made.submissions[0].options), cluster.capabilities().config)
    for _ in range(jobs):
        pyslurm.JobSubmitDescription(script=script, environment=environment, **asked).submit()


peer = by_pyslurm_alone if by_pyslurm else by_sbatch
try:
    if by_pyslurm:
        cluster.submit(made)  # imports PySlurm, and asks whether it may
    times = [(seconds(by_slurmkit), seconds(peer)) for _ in range(runs)]
finally:
    subprocess.run(["scancel", "--me", f"--name={NAME}"], check=False)
print(json.dumps({"slurmkit": [a for a, _ in times], "peer": [b for _, b in times]}))
