"""Jobs whose steps run in containers: OCI bundles that Slurm starts by crun, without root."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from cluster_lab import Lab
from test_launch import MPI4PY, TORCH, Place

pytestmark = pytest.mark.cluster

_ROOT = "proc dev usr etc run home tmp var/lib var/run/slurm"
# What of the node the container sees; PMIx meets below /var/lib, where slurmd keeps its own.
_SEEN = ("proc", "dev", "usr", "etc", "run", "home", "tmp", "var/lib")


def bundle(uid: int, gid: int) -> str:
    """config.json of a bundle that anyone can start: the node's programs, a root of its own."""
    same = [{"containerID": uid, "hostID": uid, "size": 1}]
    mounts = [
        {"destination": f"/{name}", "type": "none", "source": f"/{name}", "options": ["rbind"]}
        for name in _SEEN
    ]
    process = {"user": {"uid": uid, "gid": gid}, "args": ["true"], "env": [], "cwd": "/"}
    namespaces = [{"type": "mount"}, {"type": "user"}]
    mapped = {"uidMappings": same, "gidMappings": [{**same[0], "containerID": gid, "hostID": gid}]}
    return json.dumps(
        {
            "ociVersion": "1.0.2",
            "process": process,
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "linux": {**mapped, "namespaces": namespaces},
        }
    )


@pytest.fixture(scope="module")
def place(lab: Lab) -> Iterator[Place]:
    """A folder with a bundle in it, where the cluster can start one."""
    if lab.run("test", "-f", "/etc/slurm/oci.conf", service="c1", check=False).returncode:
        pytest.skip(f"this cluster has no oci.conf for Slurm {lab.release}")
    if lab.run("unshare", "-Ur", "true", service="c1", check=False).returncode:
        pytest.skip("this host lets nobody make a user namespace in a container")
    folder = lab.run("mktemp", "-d", "/home/alice/containers.XXXXXX").stdout.strip()
    place = Place(lab, folder)
    root = f"{folder}/bundle/rootfs"
    lab.run("sh", "-c", f"mkdir -p {root} && cd {root} && mkdir -p {_ROOT}")
    lab.run("sh", "-c", f"cd {root} && for d in bin lib lib64 sbin; do ln -s usr/$d $d; done")
    uid, gid = (int(lab.run("id", option).stdout) for option in ("-u", "-g"))
    place.write("bundle/config.json", bundle(uid, gid))
    place.write("bundle/rootfs/mark", "of the image\n")
    yield place
    for job in place.jobs:
        lab.run("scancel", job, check=False)
        place.wait(job)
    lab.run("rm", "-rf", folder)


def _image(place: Place) -> str:
    return f"--container-image={place.folder}/bundle"


def _in_bundle(place: Place, program: str) -> str:
    return f"assert open('/mark').read() == 'of the image\\n'\n{program}"


def test_mpi_in_a_container_on_two_nodes(place: Place) -> None:
    listed = place.lab.run("srun", "--mpi=list")
    if "pmix" not in listed.stdout + listed.stderr:
        pytest.skip(f"Debian's Slurm {place.lab.release} has no PMIx")
    place.write("ranks.py", _in_bundle(place, MPI4PY))
    words = ("--launch=mpi", "--nodes=2", "--ntasks-per-node=2")
    job = place.submit(*words, _image(place), "--", "python3", f"{place.folder}/ranks.py")
    place.ranks(job, 4, 2)


def test_torchrun_in_a_container_on_two_nodes(place: Place) -> None:
    if place.lab.run("test", "-e", "/usr/bin/torchrun", service="c1", check=False).returncode:
        pytest.skip("no torchrun on the nodes of this release's cluster")
    place.write("torch_ranks.py", _in_bundle(place, TORCH))
    words = ("--launch=torchrun", "--nodes=2", "--gpus-per-node=a100:2", _image(place))
    place.ranks(place.submit(*words, "--", f"{place.folder}/torch_ranks.py"), 4, 2)


def test_a_command_that_fails_in_its_container_is_told(place: Place) -> None:
    job = place.submit(_image(place), "--", "sh", "-c", "cat /mark; exit 7")
    assert "of the image" in place.end(job)
    said = place.lab.run("slurmkit", "wait", job, check=False)
    assert said.returncode == 7


def test_a_cancelled_job_leaves_nothing_running(place: Place) -> None:
    lab = place.lab
    job = place.submit(_image(place), "--", "sleep", "98765")
    deadline = time.monotonic() + 60
    while not (node := lab.run("squeue", "-h", "-t", "R", "-o", "%N", "-j", job).stdout.strip()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    running = ("pgrep", "-f", "^(/usr)?(/bin/)?sleep 98765")
    while lab.run(*running, service=node, check=False).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    lab.run("scancel", job)
    place.wait(job)
    while not lab.run(*running, service=node, check=False).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.5)
