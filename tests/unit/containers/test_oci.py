"""Slurm's own containers: srun(1), `--container=<path_to_container>`, an absolute path."""

from __future__ import annotations

from pathlib import Path

import pytest
from container_lab import argv, cluster
from slurmkit_containers.oci import Oci

from slurmkit.container import Container


def test_the_one_option() -> None:
    made = Oci().step(Container(image="/bundles/my mpi"), gpus=True)
    assert made.srun_options == ("--container=/bundles/my mpi",)
    assert argv(*made.srun_options, "--", "x") == ["--container=/bundles/my mpi", "--", "x"]
    assert (made.before, made.prefix, made.after) == ((), (), ())
    assert not list(Oci().needs(Container(image="/bundles/my mpi"), cluster()))


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("ubuntu", "oci cannot run an image of a registry (ubuntu); pyxis, enroot and Apptainer"),
        ("/x.sqsh", "oci cannot run a squashfs file (/x.sqsh)"),
        ("/x.sif", "oci cannot run a SIF file (/x.sif); Apptainer can"),
        ("./bundle", "wants the absolute path of an OCI bundle, not ./bundle"),
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
    assert len(found) == len(container.asked) == 11
    assert found[0] == "oci has no mounts for a container; pyxis, enroot and Apptainer have them"


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = cluster(SLURM_CONF=str(tmp_path / "slurm.conf"))
    assert "no oci.conf beside slurm.conf" in str(Oci().available(here))
    (tmp_path / "oci.conf").touch()
    assert Oci().available(here) is None
    config = tmp_path / "config.toml"
    config.write_text('[containers]\nruntimes = ["oci"]\n', "utf-8")
    assert "no oci.conf" in str(Oci().available(cluster()))
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    assert Oci().available(cluster()) is None
    blind = type(here)(taken=0, release=(), cluster_name="", config={}, nodes=(), partitions=())
    assert Oci().available(blind) == "srun knows no --container"
