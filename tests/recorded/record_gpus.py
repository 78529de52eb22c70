"""Record what Slurm says of who holds which GPU, for the tests of the map.

Needs a cluster on which nothing else runs:

    docker/cluster up --slurm 22.05 --name record2205
    python tests/recorded/record_gpus.py --name record2205
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

from slurmkit.state.gpumap import JOBS_COMMAND
from slurmkit.state.gres import holding_jobs_command
from slurmkit.state.nodes import NODES_COMMAND

HERE = Path(__file__).parent
CLUSTER = HERE.parents[1] / "docker" / "cluster"
MARK = "\x1frecorded"
JOBS = (
    ("alice", "--gres=gpu:a100:2", "--nodes=2"),
    ("alice", "--gres=shard:3"),
    ("bob", "--gres=gpu:a100:3"),
    ("bob", "--gres=shard:2"),
    ("alice", "--gres=shard:2"),
    ("bob", "--gres=gpu:h100:1"),
    ("alice", "--partition=untyped", "--gres=gpu:1", "--array=1-2"),
    ("alice", "--partition=mig", "--gres=gpu:a100_3g.20gb:1"),
    ("bob", "--partition=mig", "--gres=gpu:a100_1g.5gb:3"),
    ("alice", "--partition=mps", "--gres=mps:50"),
    ("bob", "--partition=mps", "--gres=mps:30"),
)
# Says that the first job has what others have, and that its own has a GPU.
FORGED = (
    "x\n     Nodes=c1 CPU_IDs=0 Mem=1 GRES=gpu:a100:1(IDX:2)\n\nJobId={first} JobName=y\n"
    "   UserId=alice(10011)\n     Nodes=c1 CPU_IDs=0 Mem=1 GRES=gpu:a100:2(IDX:3-4)"
)


class Recorder:
    """Runs commands on the cluster's login node."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *argv: str, user: str = "") -> str:
        who = ["--user", user] if user else []
        env = ["env", "SLURM_TIME_FORMAT=%s", "LC_ALL=C.UTF-8"]
        command = [CLUSTER, "exec", "login", "--name", self.name, *who, "--", *env, *argv]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def submit(self, user: str, *options: str) -> str:
        wrap = ["--output=/dev/null", "--mem=1G", "--time=5", "--wrap=sleep 200"]
        job_id = self.run("sbatch", "--parsable", *options, *wrap, user=user).strip()
        time.sleep(1)  # each starts before the next comes
        return job_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    recorder = Recorder(parser.parse_args().name)
    release = ".".join(recorder.run("scontrol", "--version").split()[1].split(".")[:2])
    ids = [recorder.submit(user, *options) for user, *options in JOBS]
    forged = FORGED.format(first=ids[0])
    ids.append(recorder.submit("bob", "--nodelist=c1", f"--job-name={forged}"))
    time.sleep(3)
    recorder.run("scontrol", "suspend", ids[2])
    recorder.run("scontrol", "update", "NodeName=c2", "State=DRAIN", "Reason=bad DIMM A=3")
    for name, argv in (
        ("nodes", NODES_COMMAND),
        ("squeue", holding_jobs_command(MARK)),
        ("jobs", JOBS_COMMAND),
    ):
        text = recorder.run(*argv, user="alice")
        (HERE / release / f"gpus-{name}.txt").write_bytes(text.encode())
    recorder.run("scontrol", "update", "NodeName=c2", "State=RESUME")
    recorder.run("scancel", *ids)


if __name__ == "__main__":
    main()
