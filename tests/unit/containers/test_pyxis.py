"""pyxis's options as its own README and args.c have them, on the releases that sites run."""

from __future__ import annotations

from typing import Any

import pytest
from container_lab import RELEASES, argv, cluster
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_containers.runtimes.pyxis import Pyxis

from slurmkit.errors import BadInput
from slurmkit.spec.containers import Container
from slurmkit.state.capabilities import _CONTAINER_OPTION


def options(**fields: Any) -> tuple[str, ...]:
    return Pyxis().step(Container(**fields), gpus=True).srun_options


GOLDEN: list[tuple[dict[str, Any], list[str], str]] = [
    # fields, options, the first release with them
    # README.md, "srun"
    ({"image": "almalinux:9"}, ["--container-image=almalinux:9"], "0.11"),
    (
        {"image": "almalinux:9", "mounts": ("/etc/os-release:/host/os-release",)},
        ["--container-image=almalinux:9", "--container-mounts=/etc/os-release:/host/os-release"],
        "0.11",
    ),
    # README.md, "sbatch"; its \# is for a #SBATCH line
    (
        {"image": "nvcr.io/nvidia/pytorch:21.12-py3"},
        ["--container-image=nvcr.io#nvidia/pytorch:21.12-py3"],
        "0.11",
    ),
    # args.c, spank_opts: [USER@][REGISTRY#]IMAGE[:TAG]|PATH
    (
        {"image": "alice@reg.example.org:5000/a/b:1"},
        ["--container-image=alice@reg.example.org:5000#a/b:1"],
        "0.11",
    ),
    ({"image": "./x.sqsh"}, ["--container-image=./x.sqsh"], "0.11"),
    # tests/docker_image.bats, "dockerd:// import"; pyxis_slurmstepd.c, enroot_container_create
    (
        {"image": "dockerd://nvidia/cuda:11.8.0-base-ubuntu22.04"},
        ["--container-image=dockerd://nvidia/cuda:11.8.0-base-ubuntu22.04"],
        "0.15",
    ),
    # args.c: SRC:DST[:FLAGS][,SRC:DST...]; flags joined with +, e.g. ro+rprivate; SRC alone
    (
        {"image": "x", "mounts": ("/a:/b:ro+rprivate", "/c", "./d:./e", "tmpfs:/tmp", "umount:/f")},
        [
            "--container-image=x",
            "--container-mounts=/a:/b:ro+rprivate,/c:/c,./d:./e,tmpfs:/tmp,umount:/f",
        ],
        "0.11",
    ),
    # args.c: container-workdir PATH, container-name NAME, container-save PATH
    ({"image": "x", "workdir": "/w"}, ["--container-image=x", "--container-workdir=/w"], "0.11"),
    ({"image": "x", "name": "n"}, ["--container-image=x", "--container-name=n"], "0.11"),
    ({"name": "n"}, ["--container-name=n"], "0.11"),
    (
        {"image": "x", "save": "/y.sqsh"},
        ["--container-image=x", "--container-save=/y.sqsh"],
        "0.11",
    ),
    # args.c, spank_option_container_name: auto, create, exec, no_exec
    ({"name": "n:no_exec"}, ["--container-name=n:no_exec"], "0.15"),
    (
        {"image": "x", "name": "n:create"},
        ["--container-image=x", "--container-name=n:create"],
        "0.15",
    ),
    # args.c: has_arg is 0, so never a value
    ({"image": "x", "mount_home": True}, ["--container-image=x", "--container-mount-home"], "0.11"),
    (
        {"image": "x", "mount_home": False},
        ["--container-image=x", "--no-container-mount-home"],
        "0.11",
    ),
    ({"image": "x", "remap_root": True}, ["--container-image=x", "--container-remap-root"], "0.11"),
    (
        {"image": "x", "remap_root": False},
        ["--container-image=x", "--no-container-remap-root"],
        "0.11",
    ),
    ({"image": "x", "entrypoint": True}, ["--container-image=x", "--container-entrypoint"], "0.11"),
    (
        {"image": "x", "entrypoint": False},
        ["--container-image=x", "--no-container-entrypoint"],
        "0.11",
    ),
    ({"image": "x", "writable": True}, ["--container-image=x", "--container-writable"], "0.11"),
    ({"image": "x", "writable": False}, ["--container-image=x", "--container-readonly"], "0.11"),
    # args.c at v0.15.0: container-env NAME[,NAME...]
    (
        {"image": "x", "environment": ("A", "B")},
        ["--container-image=x", "--container-env=A,B"],
        "0.15",
    ),
    # args.c at v0.20.0: container-entrypoint-log, has_arg 0
    (
        {"image": "x", "entrypoint": True, "entrypoint_log": True},
        ["--container-image=x", "--container-entrypoint", "--container-entrypoint-log"],
        "0.20",
    ),
    # args.c at v0.24.0: container-unshare NS[,NS...], "Supported: net, ipc, uts."
    (
        {"image": "x", "unshare": ("net", "ipc", "uts")},
        ["--container-image=x", "--container-unshare=net,ipc,uts"],
        "0.24",
    ),
]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("fields", "golden", "since"), GOLDEN)
def test_every_option_on_every_release(
    fields: dict[str, Any], golden: list[str], since: str, release: str
) -> None:
    container = Container(**fields)
    findings = list(Pyxis().needs(container, cluster(release)))
    if RELEASES.index(release) >= RELEASES.index(since):
        assert [f.severity for f in findings] == (["warning"] if "unshare" in fields else [])
        assert list(options(**fields)) == golden
    else:
        assert {finding.severity for finding in findings} == {"error"}
        (last,) = findings
        assert since in last.message


def test_the_goldens_have_every_field_and_every_option() -> None:
    fields = {name for fields, _, _ in GOLDEN for name in fields}
    assert fields == {*Container.__struct_fields__} - {"runtime"}
    given = {word.partition("=")[0].removeprefix("--") for _, words, _ in GOLDEN for word in words}
    known = set(cluster("0.24").container_options) - {"container", "container-id"}
    assert {name.removeprefix("no-") for name in given} == known


def test_what_an_old_release_lacks_is_said_with_what_has_it() -> None:
    container = Container(image="dockerd://x", name="n:create", unshare=("net",))
    assert [finding.message for finding in Pyxis().needs(container, cluster("0.11"))] == [
        "pyxis here has no --container-unshare; pyxis has it from 0.24 on",
        "pyxis here cannot import from a Docker daemon; pyxis can from 0.15 on",
        (
            "pyxis here is older than 0.15, and before 0.14 the mode would become part of the"
            " container's name; write name n alone"
        ),
    ]
    (sif,) = Pyxis().needs(Container(image="/x.sif"), cluster("0.24"))
    assert sif.message == "pyxis cannot run a SIF file (/x.sif); Apptainer can"


def test_where_it_is() -> None:
    assert Pyxis().available(cluster("0.11")) is None
    assert "is not installed" in str(Pyxis().available(cluster()))
    blind = type(cluster())(
        taken=0, release=(), cluster_name="", config={}, nodes=(), partitions=()
    )
    assert "the options of srun could not be read" in str(Pyxis().available(blind))


def test_the_options_of_the_readme_are_found_in_srun_help() -> None:
    """README.md of v0.24.0, the lines as srun prints them."""
    shown = """
      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container
      --container-name=NAME   [pyxis] name to use for saving and loading the
      --container-mount-home  [pyxis] bind mount the user's home directory.
      --no-container-mount-home
                              [pyxis] do not bind mount the user's home
      --container-unshare=NS[,NS...]
"""
    assert _CONTAINER_OPTION.findall(shown) == [
        "container-image",
        "container-name",
        "container-mount-home",
        "container-unshare",
    ]


PATHS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=10)


@given(PATHS, st.lists(PATHS, max_size=3), PATHS, PATHS)
def test_whatever_is_accepted_reaches_srun_as_it_is(
    image: str, mounts: list[str], workdir: str, save: str
) -> None:
    try:
        container = Container(
            image=f"/{image}.sqsh",
            mounts=tuple(f"/{mount}:/m" for mount in mounts),
            workdir=f"/{workdir}",
            save=f"/{save}.sqsh",
        )
    except BadInput:
        return
    made = Pyxis().step(container, gpus=False).srun_options
    assert argv(*made, "--", "python", "a b") == [*made, "--", "python", "a b"]
    assert made[0] == f"--container-image=/{image}.sqsh"
    assert f"--container-workdir=/{workdir}" in made
