"""Apptainer's words, as its cmd/internal/cli/action_flags.go has them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from container_lab import argv, cluster
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_containers.runtimes.apptainer import Apptainer

from slurmkit.errors import BadInput
from slurmkit.spec.containers import Container


def words(*, gpus: bool = False, **fields: Any) -> list[str]:
    made = Apptainer().step(Container(**{"image": "/x.sif", **fields}), gpus=gpus)
    assert not made.srun_options
    assert not made.after
    return list(made.prefix)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        # --bind src[:dest[:opts]], opts ro or rw
        ({"mounts": ("/a", "/b:/c:ro")}, ["--bind=/a:/a", "--bind=/b:/c:ro"]),
        # --pwd, of which --cwd is a newer name
        ({"workdir": "/w"}, ["--pwd=/w"]),
        ({"mount_home": False}, ["--no-home"]),
        ({"mount_home": True}, []),
        ({"remap_root": True}, ["--fakeroot"]),
        ({"remap_root": False}, []),
        ({"writable": True}, ["--writable-tmpfs"]),
        ({"writable": False}, []),
        ({"unshare": ("net", "ipc", "uts")}, ["--net", "--network=none", "--ipc", "--uts"]),
    ],
)
def test_every_option(fields: dict[str, Any], options: list[str]) -> None:
    assert words(**fields) == ["apptainer", "exec", *options, "/x.sif"]


def test_entry_point_and_gpus() -> None:
    assert words(entrypoint=True) == ["apptainer", "run", "/x.sif"]
    assert words(image="nvcr.io#nvidia/x:1")[-1] == "docker://nvcr.io/nvidia/x:1"


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        (("nvidiactl",), "APPTAINER_NV=1"),
        (("kfd", "dri"), "APPTAINER_ROCM=1"),
        (("nvidiactl", "kfd"), "APPTAINER_NV=1"),
        ((), "APPTAINER_NV=1"),
    ],
)
def test_the_node_says_whose_gpus_it_has(
    devices: tuple[str, ...], chosen: str, tmp_path: Path
) -> None:
    """By the variables of Apptainer's flags --nv and --rocm."""
    for name in devices:
        (tmp_path / name).touch()
    [line] = Apptainer().step(Container(image="/x.sif"), gpus=True).before
    script = f"{line.replace('/dev', str(tmp_path))}\nenv"
    both = {"APPTAINER_NV": "1", "APPTAINER_ROCM": "1"}  # of the job that submits this one
    done = subprocess.run(["bash", "-euc", script], capture_output=True, check=True, env=both)
    found = [each for each in done.stdout.decode().split() if each.startswith("APPTAINER")]
    assert [each for each in found if each.endswith("=1")] == [chosen]


def test_variables_of_the_node_win_over_those_of_the_image() -> None:
    """By APPTAINERENV_NAME, whatever the value holds; one that is not set stays so."""
    made = Apptainer().step(Container(image="/x.sif", environment=("A", "B", "C")), gpus=False)
    show = 'printf "%s|%s|%s" "$APPTAINERENV_A" "$APPTAINERENV_B" "${APPTAINERENV_C-unset}"'
    lines = "\n".join(["set -e", *made.before, show])
    given = {"A": "a b'$(id)\n`id`", "B": ""}
    done = subprocess.run(["bash", "-c", lines], capture_output=True, check=True, env=given)
    assert done.stdout.decode() == f"{given['A']}||unset"


@given(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=10))
def test_quoting_survives(text: str) -> None:
    try:
        made = words(image=f"/{text}.sif", mounts=(f"/{text}",), workdir=f"/{text}")
    except BadInput:
        return
    assert argv("--", *made, "x") == ["--", *made, "x"]


def test_what_it_lacks() -> None:
    container = Container(
        image="alice@nvcr.io#x/y:1",
        mounts=("tmpfs:/tmp", "umount:/a", "/a:/b:ro+nosuid", "/a:./b"),
        name="a",
        save="/y.sqsh",
        entrypoint_log=True,
    )
    found = [f.message for f in Apptainer().needs(container, cluster()) if f.severity == "error"]
    assert found == [
        "apptainer has no entrypoint-log for a container; pyxis from 0.20 on has it",
        "apptainer has no name for a container; pyxis and enroot have it",
        "apptainer has no save for a container; pyxis has it",
        "apptainer cannot mount tmpfs:/tmp; pyxis and enroot can",
        "apptainer cannot mount umount:/a; pyxis and enroot can",
        (
            "mount /a:/b:ro+nosuid: apptainer knows only ro and rw, not nosuid; pyxis and enroot"
            " know it"
        ),
        "mount /a:./b: apptainer needs an absolute target; pyxis does not",
        (
            "apptainer takes no user in a reference; write nvcr.io#x/y:1, and log in with"
            " apptainer registry login"
        ),
    ]
    notes = Apptainer().needs(Container(image="ubuntu", writable=True), cluster())
    assert [(f.severity, f.message.partition(" ")[0]) for f in notes] == [
        ("note", "each"),
        ("note", "files"),
    ]
    (bundle,) = Apptainer().needs(Container(image="/bundle"), cluster())
    assert "Slurm itself can, as the runtime oci" in bundle.message


def test_a_squashfs_file_loses_its_variables_and_that_is_told() -> None:
    (found,) = Apptainer().needs(Container(image="/x.sqsh"), cluster())
    assert found.severity == "warning"
    assert "does not set the variables of the image in /x.sqsh" in found.message
