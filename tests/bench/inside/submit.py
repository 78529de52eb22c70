"""Submit a job many times: through the library, and by a loop of sbatch in bash, in turn."""

import json
import subprocess
import sys
import tempfile
import time

from slurmkit import Cluster, JobSpec, plan

NAME = "bench-submit"
LOOP = 'for ((i = 0; i < $1; i++)); do sbatch --parsable "$2" >/dev/null || exit 1; done'

runs, jobs = map(int, sys.argv[1:])
cluster = Cluster()
options = {"job_name": NAME, "time": "1", "partition": "cpu", "output": "/dev/null"}
made = plan(JobSpec(command=("true",), hold=True, **options), cluster)


def by_slurmkit() -> float:
    began = time.perf_counter()
    for _ in range(jobs):
        cluster.submit(made)
    return time.perf_counter() - began


def by_sbatch(path: str) -> float:
    began = time.perf_counter()
    subprocess.run(["bash", "-c", LOOP, "bash", str(jobs), path], check=True)
    return time.perf_counter() - began


with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
    script.write(made.submissions[0].script)
    script.flush()
    try:
        times = [(by_slurmkit(), by_sbatch(script.name)) for _ in range(runs)]
    finally:
        subprocess.run(["scancel", "--me", f"--name={NAME}"], check=False)
print(json.dumps({"slurmkit": [a for a, _ in times], "sbatch": [b for _, b in times]}))
