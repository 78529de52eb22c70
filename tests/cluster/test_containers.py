"""Jobs whose steps run in containers, without root, their image a folder or a file of alice's.

OCI bundles are started by Slurm itself with crun. pyxis and enroot are tried where their packages
were dropped into docker/packages/ before the image was built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_lab import Lab
from launch_place import MPI4PY, TORCH, Place
from waiting import wait_for

pytestmark = pytest.mark.cluster

GUIDE = (Path(__file__).parents[2] / "docs" / "containers.md").read_text("utf-8")

_ROOT = "proc dev usr etc run home tmp var/lib var/run/slurm"
# What of the node the container sees; PMIx meets below /var/lib, where slurmd keeps its own.
_SET = ["SET=image", "OTHER=image"]
_SEEN = ("proc", "dev", "usr", "etc", "run", "home", "tmp", "var/lib")


def bundle(uid: int, gid: int) -> str:
    """config.json of a bundle that anyone can start: the node's programs, a root of its own."""
    same = [{"containerID": uid, "hostID": uid, "size": 1}]
    mounts = [
        {"destination": f"/{name}", "type": "none", "source": f"/{name}", "options": ["rbind"]}
        for name in _SEEN
    ]
    process = {"user": {"uid": uid, "gid": gid}, "args": ["true"], "env": _SET, "cwd": "/"}
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
    """A folder with the root of an image in it."""
    if lab.run("unshare", "-Ur", "true", service="c1", check=False).returncode:
        pytest.skip("this host lets nobody make a user namespace in a container")
    folder = lab.run("mktemp", "-d", "/home/alice/containers.XXXXXX").stdout.strip()
    place = Place(lab, folder)
    root = f"{folder}/bundle/rootfs"
    lab.run("sh", "-c", f"mkdir -p {root} && cd {root} && mkdir -p {_ROOT}")
    lab.run("sh", "-c", f"cd {root} && for d in bin lib lib64 sbin; do ln -s usr/$d $d; done")
    place.write("bundle/rootfs/mark", "of the image\n")
    place.write("bundle/rootfs/etc/environment", "\n".join([*_SET, ""]))
    place.write("ranks.py", _in_image(MPI4PY))
    place.write("torch_ranks.py", _in_image(TORCH))
    yield place
    for job in place.jobs:
        lab.run("scancel", job, check=False)
        place.wait(job)
    lab.run("rm", "-rf", folder)


@pytest.fixture(scope="module")
def oci(place: Place) -> tuple[str, ...]:
    """Options for a bundle."""
    lab = place.lab
    if lab.run("test", "-f", "/etc/slurm/oci.conf", service="c1", check=False).returncode:
        pytest.skip(f"this cluster has no oci.conf for Slurm {lab.release}")
    uid, gid = (int(lab.run("id", option).stdout) for option in ("-u", "-g"))
    place.write("bundle/config.json", bundle(uid, gid))
    return (f"--container-image={place.folder}/bundle",)


@pytest.fixture(scope="module")
def squashfs(place: Place) -> Iterator[tuple[str, ...]]:
    """Options for the same as a squashfs file, imported once."""
    lab = place.lab
    if lab.run("sh", "-c", "command -v enroot", service="c1", check=False).returncode:
        pytest.skip("enroot is not in the image: no package of it was in docker/packages/")
    lab.run("slurmkit", "image", "import", f"{place.folder}/bundle/rootfs", "--as=containers-test")
    seen = "/usr:/usr:ro,/etc/alternatives:/etc/alternatives:ro,/home"
    yield "--container-image=local/containers-test", f"--container-mounts={seen}"
    lab.run("slurmkit", "image", "prune", "local/containers-test", check=False)


@pytest.fixture(params=["oci", "pyxis", "enroot"])
def inside(request: pytest.FixtureRequest, place: Place) -> tuple[str, ...]:
    """Options for each runtime that is here."""
    if request.param == "oci":
        found: tuple[str, ...] = request.getfixturevalue("oci")
        return found
    options: tuple[str, ...] = request.getfixturevalue("squashfs")
    if request.param == "pyxis" and "container-image" not in place.lab.run("srun", "--help").stdout:
        pytest.skip("pyxis is not in the image: no package of it was in docker/packages/")
    return (*options, f"--container-runtime={request.param}")


def _in_image(program: str) -> str:
    return f"assert open('/mark').read() == 'of the image\\n'\n{program}"


def test_mpi_on_two_nodes(place: Place, inside: tuple[str, ...]) -> None:
    listed = place.lab.run("srun", "--mpi=list")
    if "pmix" not in listed.stdout + listed.stderr:
        pytest.skip(f"Debian's Slurm {place.lab.release} has no PMIx")
    words = ("--launch=mpi", "--nodes=2", "--ntasks-per-node=2", *inside)
    place.ranks(place.submit(*words, "--", "python3", f"{place.folder}/ranks.py"), 4, 2)


def test_torchrun_on_two_nodes(place: Place, inside: tuple[str, ...]) -> None:
    if place.lab.release != "24.11":
        pytest.skip("torchrun works in the image of 24.11 only")
    words = ("--launch=torchrun", "--nodes=2", "--gpus-per-node=a100:2", *inside)
    place.ranks(place.submit(*words, "--", f"{place.folder}/torch_ranks.py"), 4, 2)


def test_a_command_that_fails_is_told(place: Place, inside: tuple[str, ...]) -> None:
    job = place.submit(*inside, "--", "sh", "-c", "cat /mark; exit 7")
    assert "of the image" in place.end(job)
    assert place.lab.run("slurmkit", "wait", job, check=False).returncode == 7


def test_variables_of_the_job_win_over_those_of_the_image(
    place: Place, inside: tuple[str, ...]
) -> None:
    given = ("--env=SET=of the job", "--env=MORE=1")
    job = place.submit(*given, *inside, "--", "sh", "-c", 'echo "$SET|$OTHER|$MORE"')
    assert "of the job|image|1\n" in place.end(job)


def test_a_plan_names_what_the_bundle_does_not_see(place: Place, oci: tuple[str, ...]) -> None:
    """As it is: a script beside which the job starts is not found, and by its whole path it is."""
    there = ("--container-runtime=oci", f"--chdir={place.folder}", "--time=5", *oci, "--")
    words = ("slurmkit", "plan", *there, "cat")
    said = place.lab.run(*words, "ranks.py").stderr
    assert "ranks.py is not found in the container" in said
    assert f"not in {place.folder}; give its whole path" in said
    assert (
        "not found in the container" not in place.lab.run(*words, f"{place.folder}/ranks.py").stderr
    )
    assert "No such file" in place.end(place.submit(*oci, "--", "cat", "ranks.py"))
    assert "MPI" in place.end(place.submit(*oci, "--", "cat", f"{place.folder}/ranks.py"))


def test_the_example_of_the_guide_runs(place: Place, oci: tuple[str, ...]) -> None:
    """docs/containers.md had no example for this cluster."""
    del oci  # where it is not, this is skipped
    found = re.search(
        r"## Try it in the Docker.*?```bash\n(.*?)```.*?\$ (slurmkit .*?)\n", GUIDE, re.S
    )
    assert found is not None
    folder = f"{place.folder}/guide"
    script = f"mkdir {folder} && cd {folder}\n{found[1]}\n{found[2]}\n"
    place.lab.run("bash", "-eu", "-c", script)
    assert place.lab.run("cat", f"{folder}/mark.out").stdout == "of the image\n"


def test_a_cancelled_job_leaves_nothing_running(place: Place, inside: tuple[str, ...]) -> None:
    lab = place.lab
    job = place.submit(*inside, "--", "sleep", "98765")
    runs = ("squeue", "-h", "-t", "R", "-o", "%N", "-j", job)
    wait_for(lambda: lab.run(*runs, check=False).stdout)
    node = lab.run(*runs).stdout.strip()
    running = ("pgrep", "-f", "^(/usr)?(/bin/)?sleep 98765")
    wait_for(lambda: lab.run(*running, service=node, check=False).stdout)
    lab.run("scancel", job)
    place.wait(job)
    wait_for(lambda: not lab.run(*running, service=node, check=False).stdout)


def test_functions_run_in_it(place: Place, inside: tuple[str, ...]) -> None:
    """By the python3 of the image: what else they need lies in the folder of the calls."""
    given = dict(word.removeprefix("--container-").split("=", 1) for word in inside)
    mounts = tuple(filter(None, given.get("mounts", "").split(",")))
    script = f"""
from slurmkit import Executor
from slurmkit.spec.containers import Container
inside = Container(image={given["image"]!r}, mounts={mounts!r}, runtime={given.get("runtime")!r})
with Executor(partition="cpu", time="5", mem="200M", container=inside) as executor:
    print(executor.submit(lambda: open("/mark").read()).result(400))
"""
    python = "/opt/slurmkit/venv/bin/python"
    assert place.lab.run(python, "-", input=script).stdout == "of the image\n\n"
