"""A folder on the cluster for launches, with small MPI and torch programs."""

from __future__ import annotations

from cluster_lab import Lab
from waiting import wait_for

TORCH = """
import os, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, total = dist.get_rank(), torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
said = [socket.gethostname(), rank, os.environ["LOCAL_RANK"], int(total.item()), 0]
os.write(1, (" ".join(map(str, said)) + chr(10)).encode())
dist.barrier()
dist.destroy_process_group()
"""
MPI4PY = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank, op=MPI.SUM)
print(socket.gethostname(), world.rank, 0, total, 0, flush=True)
"""


class Place:
    """A folder of alice's with programs, and jobs that run there."""

    def __init__(self, lab: Lab, folder: str) -> None:
        self.lab = lab
        self.folder = folder
        self.jobs: list[str] = []

    def write(self, name: str, text: str) -> None:
        self.lab.run("sh", "-c", f"cat >{self.folder}/{name}", input=text)

    def submit(self, *words: str) -> str:
        options = ("--parsable", f"--chdir={self.folder}", "--time=10")
        said = self.lab.run("slurmkit", "submit", *options, *words).stdout
        self.jobs.append(said.strip())
        return self.jobs[-1]

    def end(self, job_id: str) -> str:
        """Wait for a job; its log."""
        self.wait(job_id)
        return self.log(job_id)

    def wait(self, job_id: str) -> None:
        def has_ended() -> bool:
            said = self.lab.run("squeue", "-h", "-j", job_id, check=False)
            # A slurmctld that does not answer in time has no row, either.
            return not said.stdout and (said.returncode == 0 or "Invalid job id" in said.stderr)

        wait_for(has_ended, seconds=600)

    def log(self, job_id: str) -> str:
        return self.lab.run("cat", f"{self.folder}/slurm-{job_id}.out").stdout

    def ranks(self, job_id: str, size: int, nodes: int) -> set[str]:
        """The ports of a job whose ranks have all met, evenly on its nodes."""
        log = self.end(job_id)
        rows = [line.split() for line in log.splitlines() if line.count(" ") == 4]
        rows = [row for row in rows if row[1].isdigit()]
        assert sorted(int(rank) for _, rank, *_ in rows) == list(range(size)), log
        assert {int(total) for *_, total, _ in rows} == {sum(range(size))}
        hosts = [host for host, *_ in rows]
        assert {hosts.count(host) for host in set(hosts)} == {size // nodes}
        return {port for *_, port in rows}
