"""Slurm's own containers: srun(1), `--container=<path_to_container>`, an absolute path."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from container_lab import argv, cluster
from slurmkit_containers.runtimes.oci import Oci, read_bundle

from slurmkit.spec.containers import Container


def test_the_one_option() -> None:
    made = Oci().step(Container(image="/bundles/my mpi"), gpus=True)
    assert made.srun_options == ("--container=/bundles/my mpi",)
    assert argv(*made.srun_options, "--", "x") == ["--container=/bundles/my mpi", "--", "x"]
    assert (made.before, made.prefix, made.after) == ((), (), ())
    assert Oci().view(Container(image="/bundles/my mpi"), "/x") is None
    assert not list(Oci().needs(Container(image="/bundles/my mpi"), cluster()))


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("ubuntu", "oci cannot run an image of a registry (ubuntu); pyxis, enroot and Apptainer"),
        ("/x.sqsh", "oci cannot run a squashfs file (/x.sqsh)"),
        ("/x.sif", "oci cannot run a SIF file (/x.sif); Apptainer can"),
        ("./bundle", "needs the absolute path of an OCI bundle, not ./bundle"),
    ],
)
def test_images_it_cannot_run(image: str, says: str) -> None:
    (found,) = Oci().needs(Container(image=image), cluster())
    assert says in found.message
    assert found.severity == "error"


def test_nothing_else_can_be_asked_for() -> None:
    container = Container(
        image="/bundle",
        mounts=("/a",),
        workdir="/w",
        mount_home=True,
        remap_root=False,
        writable=True,
        entrypoint=True,
        entrypoint_log=True,
        environment=("A",),
        name="a",
        save="/y",
        unshare=("net",),
    )
    found = [f.message for f in Oci().needs(container, cluster())]
    assert len(found) == len(container.asked) - 1 == 10  # variables it keeps
    assert found[0] == "oci has no mounts for a container; pyxis, enroot and Apptainer have them"


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = cluster(SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert "no oci.conf next to slurm.conf" in str(Oci().available(here))
    (tmp_path / "oci.conf").touch()
    assert Oci().available(here) is None
    config = tmp_path / "config.toml"
    config.write_text('[containers]\nruntimes = ["oci"]\n', "utf-8")
    assert "no oci.conf" in str(Oci().available(cluster()))
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert Oci().available(cluster()) is None
    blind = type(here)(taken=0, release=(), cluster_name="", config={}, nodes=(), partitions=())
    assert Oci().available(blind) == "srun has no option --container"


def bundle(folder: Path, *env: str, cwd: str = "/") -> Container:
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/home", "type": "none", "source": "/home", "options": ["rbind", "ro"]},
    ]
    process = {"args": ["sh"], "env": env, "cwd": cwd}
    (folder / "config.json").write_text(json.dumps({"process": process, "mounts": mounts}), "utf-8")
    return Container(image=str(folder), environment=("A", "B", "C"))


def test_variables_of_the_job_win_over_those_of_the_bundle(tmp_path: Path) -> None:
    """As Slurm does: what config.json sets goes over what the step has (container.c)."""
    made = Oci().step(bundle(tmp_path, "A=image", "B=image", "X=image", "PATH=/bin"), gpus=False)
    inside = shlex.join([*made.prefix, "sh", "-c", 'echo "$A|$B|$C|$X"; env | grep -c SLURMKIT'])
    lines = ["export A='of the\njob' C=job; unset B", *made.before, "A=image B=image X=image"]
    script = "\n".join(["\n".join(lines[:-1]), f"export {lines[-1]}", inside])
    bare = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-c", script], env=bare, capture_output=True, text=True, check=False
    )
    assert done.stdout == "of the\njob|image|job|image\n0\n"


def test_only_what_the_bundle_sets_is_kept_from_it(tmp_path: Path) -> None:
    made = Oci().step(bundle(tmp_path, "X=image"), gpus=False)
    assert (made.before, made.prefix) == ((), ())
    unread = Oci().step(Container(image="/nowhere", environment=("A",)), gpus=False)
    assert unread.prefix[:2] == ("sh", "-c")


def test_what_a_bundle_sees_stands_in_it(tmp_path: Path) -> None:
    view = Oci().view(bundle(tmp_path), "/home/alice")
    assert view is not None
    assert view.sees("/home/alice/x")
    assert not view.sees("/proc")
    assert (view.start, view.is_asked) == (None, False)
    elsewhere = Oci().view(bundle(tmp_path, cwd="/home/bob"), "/home/alice")
    assert elsewhere is not None
    assert elsewhere.start == "/home/bob"


def test_the_bundle_of_the_guide_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/containers.md had no example for the Docker cluster."""
    guide = (Path(__file__).parents[3] / "docs" / "containers.md").read_text("utf-8")
    found = re.search(r"## Try it in the Docker.*?```bash\n(.*?)```", guide, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    subprocess.run(["bash", "-eu", "-c", found[1]], check=True)
    made = read_bundle("bundle")
    assert made is not None
    assert made.variables == {"SET"}
    assert made.view.sees("/usr/bin/cat")
    assert not made.view.sees("/mark")
    assert (tmp_path / "bundle/rootfs/mark").read_text("utf-8") == "of the image\n"
