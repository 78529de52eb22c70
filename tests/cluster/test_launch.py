"""Commands started on several nodes: torchrun, ranks of srun, MPI; who failed; where they meet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_lab import Lab
from launch_place import MPI4PY, TORCH, Place
from waiting import wait_for

pytestmark = pytest.mark.cluster

# All ranks send their number to the first, which sends the sum back: env:// in few words.
MEET = """
import os, socket, sys
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if len(sys.argv) > 1 and int(sys.argv[1]) == rank:
    print("no good", flush=True)
    raise SystemExit(7)
if rank == 0:
    server = socket.create_server(("", where[1]))
    peers = [server.accept()[0] for _ in range(size - 1)]
    total = sum(int(peer.recv(9)) for peer in peers)
    [peer.sendall(b"%d" % total) for peer in peers]
else:
    for _ in range(3000):
        try:
            peer = socket.create_connection(where)
            break
        except OSError:
            __import__("time").sleep(0.1)
    peer.sendall(b"%d" % rank)
    total = int(peer.recv(9))
print(socket.gethostname(), rank, os.environ["LOCAL_RANK"], total, where[1], flush=True)
"""
# What a script for the deepspeed command begins with.
DEEPSPEED = (
    "import argparse, os\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--local_rank', type=int, default=-1)\n"
    "assert parser.parse_args().local_rank == int(os.environ['LOCAL_RANK'])\n"
)
# accelerate is in no image: the options it reads of those it is given, and what it does with them.
ACCELERATE = """
import argparse, socket, sys
from torch.distributed import run
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--multi_gpu", action="store_true", required=True)
parser.add_argument("--deepspeed_multinode_launcher")
parser.add_argument("--rdzv_backend", default="static")
parser.add_argument("--main_process_ip")
parser.add_argument("--gpu_ids", choices=["all"], required=True)
for name in ("machine_rank", "num_machines", "num_processes", "main_process_port"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("script")
given = parser.parse_args()
args, _ = run.get_args_parser().parse_known_args([given.script])
args.nproc_per_node = str(given.num_processes // given.num_machines)
if given.num_machines > 1:
    assert socket.gethostname() == f"c{given.machine_rank + 1}"
    args.nnodes, args.node_rank = str(given.num_machines), given.machine_rank
    args.rdzv_backend = given.rdzv_backend
    args.rdzv_endpoint = f"{given.main_process_ip}:{given.main_process_port}"
run.run(args)
"""
MPI_C = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int rank, total;
    char host[99];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    gethostname(host, sizeof host);
    printf("%s %d 0 %d 0\n", host, rank, total);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
"""
# On 26.05 Debian's Slurm has no plugin that serves its OpenMPI.
_OWN_MPI = ("--mpi=mpirun", "--env=OMPI_MCA_btl_tcp_if_include=eth0")


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Place]:
    folder = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    made = Place(lab, folder)
    programs = {"meet.py": MEET, "torch4.py": TORCH, "mpi.py": MPI4PY, "deep.py": DEEPSPEED + TORCH}
    lab.run("mkdir", "-p", f"{folder}/accelerate/commands")
    for name, text in {**programs, "accelerate/commands/launch.py": ACCELERATE}.items():
        made.write(name, text)
    yield made
    lab.run("scancel", *made.jobs, check=False)
    lab.run("rm", "-r", folder)


def test_ranks_of_srun_meet(place: Place) -> None:
    job = place.submit("--launch=srun", "-N2", "--gpus-per-node=a100:3", "--", "python3", "meet.py")
    (port,) = place.ranks(job, 6, 2)
    assert int(port) > 60999


def test_jobs_that_start_together_on_the_same_nodes_do_not_clash(place: Place) -> None:
    words = ("--launch=srun", "-N2", "--gpus-per-node=a100:2", "--", "python3", "meet.py")
    jobs = [place.submit(*words) for _ in range(3)]
    assert len({port for job in jobs for port in place.ranks(job, 4, 2)}) == 3


def test_a_port_that_is_taken_is_avoided(place: Place) -> None:
    words = ("--launch=srun", "-wc1", "--gpus-per-node=a100:2", "--", "python3", "meet.py")
    first = int(min(place.ranks(place.submit(*words), 2, 1)))
    taken = range(first + 1, first + 40)
    listen = (
        "import socket, time; all = [socket.create_server(('', p)) for p in"
        f" range({taken.start}, {taken.stop})]; print('ready', flush=True); time.sleep(590)"
    )
    holder = place.submit("--launch=none", "-wc1", "--", "python3", "-c", listen)
    log = f"cat {place.folder}/slurm-{holder}.out 2>/dev/null; true"
    wait_for(lambda: "ready" in place.lab.run("sh", "-c", log).stdout)
    try:
        (port,) = place.ranks(place.submit(*words), 2, 1)
    finally:
        place.lab.run("scancel", holder)
    assert int(port) not in taken


def test_the_rank_that_failed_first_is_named(place: Place) -> None:
    words = ("--launch=srun", "--label", "-N2", "--gpus-per-node=a100:2")
    job = place.submit(*words, "--", "python3", "meet.py", "2")
    place.end(job)
    told = place.lab.run("slurmkit", "why", job).stdout
    assert "rank 2 on c2 failed first (exit code 7)" in told
    assert "last line of rank 2: no good" in told


@pytest.mark.slow
def test_a_rank_that_ends_well_does_not_end_the_others(place: Place) -> None:
    """Rank 0 writes the last checkpoint for longer than a minute."""
    last = (
        "import os, time; rank = os.environ['SLURM_PROCID'];"
        " time.sleep(75 if rank == '0' else 0); print('done', rank)"
    )
    job = place.submit("--launch=srun", "--partition=cpu", "-n2", "--", "python3", "-c", last)
    log = place.end(job)
    assert {"done 0", "done 1"} <= set(log.splitlines()), log


def test_each_rank_has_a_file_beside_the_jobs(place: Place) -> None:
    lab, words = place.lab, ("--launch=srun", "--log-per-rank", "-N2", "--gpus-per-node=a100:2")
    place.submit(*words, "--array=3", "--output=%x.%A_%a", "--", "python3", "meet.py", "2")
    job = f"{place.jobs[-1].partition('_')[0]}_3"
    place.wait(job)
    assert "no good" not in lab.run("slurmkit", "log", job).stdout
    assert lab.run("slurmkit", "log", "--rank=2", job).stdout == "no good\n"
    assert "last line of rank 2: no good" in lab.run("slurmkit", "why", job).stdout


@pytest.mark.parametrize(
    ("launcher", "nodes"), [("torchrun", 1), ("torchrun", 2), ("accelerate", 1), ("accelerate", 2),
                            ("deepspeed", 2)],
)  # fmt: skip
def test_workers_reduce_whatever_starts_them(place: Place, launcher: str, nodes: int) -> None:
    if place.lab.release != "24.11":
        pytest.skip("torchrun works in the image of 24.11 only")
    where = (f"--env=PYTHONPATH={place.folder}", f"-N{nodes}", "-wc1", "--gpus-per-node=a100:2")
    words = (f"--launch={launcher}", "--env=USE_LIBUV=0", *where)
    script = "deep.py" if launcher == "deepspeed" else "torch4.py"
    place.ranks(place.submit(*words, "--", "python3", script), 2 * nodes, nodes)


@pytest.mark.parametrize("program", ["C", "mpi4py"])
def test_mpi_starts_through_what_the_cluster_has(place: Place, program: str) -> None:
    if program == "C":
        if place.lab.release != "24.11":
            pytest.skip("a compiler is in the image of 24.11 only")
        place.write("mpi.c", MPI_C)
        place.lab.run("mpicc", "-o", f"{place.folder}/mpi", f"{place.folder}/mpi.c")
    command = ("./mpi",) if program == "C" else ("python3", "mpi.py")
    words = _OWN_MPI if place.lab.release == "26.05" else ()
    job = place.submit("--launch=mpi", *words, "-N2", "--ntasks-per-node=2", "--", *command)
    place.ranks(job, 4, 2)


@pytest.fixture(scope="module")
def four(lab: Lab) -> Iterator[tuple[str, ...]]:
    """Options for eight tasks on four nodes; no partition of the cluster has so many of a kind."""
    asked = ("scontrol", "create", "PartitionName=four", "Nodes=c[1-4]", "MaxTime=30")
    lab.run(*asked, service="ctld", user="")
    yield "--partition=four", "-N4", "--ntasks-per-node=2"
    lab.run("scontrol", "delete", "PartitionName=four", service="ctld", user="", check=False)


def test_ranks_meet_on_four_nodes(place: Place, four: tuple[str, ...]) -> None:
    place.ranks(place.submit("--launch=srun", *four, "--", "python3", "meet.py"), 8, 4)


def test_mpi_on_four_nodes(place: Place, four: tuple[str, ...]) -> None:
    words = _OWN_MPI if place.lab.release == "26.05" else ()
    place.ranks(place.submit("--launch=mpi", *words, *four, "--", "python3", "mpi.py"), 8, 4)


def test_torchrun_on_four_nodes(place: Place, four: tuple[str, ...]) -> None:
    if place.lab.release != "24.11":
        pytest.skip("torchrun works in the image of 24.11 only")
    words = ("--launch=torchrun", "--env=USE_LIBUV=0", *four, "--", "python3", "torch4.py")
    place.ranks(place.submit(*words), 8, 4)
