"""References to images: what they mean, and how each runtime wants them written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.errors import BadInput
from slurmkit.spec.images import Image

DIGEST = "sha256:" + "24127712aa9025dc" * 4


@pytest.mark.parametrize(
    ("text", "enroot", "apptainer"),
    [
        # enroot doc/cmd/import.md: docker://[USER@][REGISTRY#]IMAGE[:TAG], and its example
        (
            "docker://nvcr.io#nvidia/pytorch:25.06-py3",
            "docker://nvcr.io#nvidia/pytorch:25.06-py3",
            "docker://nvcr.io/nvidia/pytorch:25.06-py3",
        ),
        (
            "nvcr.io/nvidia/pytorch:25.06-py3",
            "docker://nvcr.io#nvidia/pytorch:25.06-py3",
            "docker://nvcr.io/nvidia/pytorch:25.06-py3",
        ),
        # enroot doc/cmd/create.md
        ("ubuntu:18.04", "docker://ubuntu:18.04", "docker://ubuntu:18.04"),
        ("nvidia/cuda", "docker://nvidia/cuda", "docker://nvidia/cuda"),
        # pyxis tests/docker_image.bats: the same image of Docker Hub
        ("docker.io/ubuntu:24.04", "docker://ubuntu:24.04", "docker://ubuntu:24.04"),
        ("docker.io#ubuntu:24.04", "docker://ubuntu:24.04", "docker://ubuntu:24.04"),
        (
            "dockerd://nvidia/cuda:11.8.0",
            "dockerd://nvidia/cuda:11.8.0",
            "docker-daemon:nvidia/cuda:11.8.0",
        ),
        ("dockerd://local", "dockerd://local", "docker-daemon:local:latest"),
        ("localhost:5000/a/b:1", "docker://localhost:5000#a/b:1", "docker://localhost:5000/a/b:1"),
        ("localhost/a", "docker://localhost#a", "docker://localhost/a"),
        ("$oauthtoken@nvcr.io#nvidia/x:1", "docker://$oauthtoken@nvcr.io#nvidia/x:1", None),
        ("alice@ex.org@reg.ex.org#x", "docker://alice@ex.org@reg.ex.org#x", None),
        # a digest in the tag's place: enroot 3.1 to 4.1, src/docker.sh
        (
            f"nvidia/cuda@{DIGEST}",
            f"docker://nvidia/cuda:{DIGEST}",
            f"docker://nvidia/cuda@{DIGEST}",
        ),
        (
            f"nvcr.io#a/b:1@{DIGEST}",
            f"docker://nvcr.io#a/b:{DIGEST}",
            f"docker://nvcr.io/a/b@{DIGEST}",
        ),
        (f"ubuntu:{DIGEST}", f"docker://ubuntu:{DIGEST}", f"docker://ubuntu@{DIGEST}"),
        ("/images/pytorch.sqsh", "/images/pytorch.sqsh", "/images/pytorch.sqsh"),
        ("./my images/x.sif", "./my images/x.sif", "./my images/x.sif"),
    ],
)
def test_spellings(text: str, enroot: str, apptainer: str | None) -> None:
    image = Image.parse(text)
    assert image.enroot == enroot
    assert image.pyxis == enroot.removeprefix("docker://")
    if apptainer is not None:
        assert image.apptainer == apptainer
    assert Image.parse(str(image)) == image


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ubuntu", "registry"),
        ("dockerd://x", "daemon"),
        ("/x.sqsh", "squashfs"),
        ("../x.squashfs", "squashfs"),
        ("./x.sif", "sif"),
        ("/bundles/mpi", "bundle"),
        ("./x.y/", "bundle"),
    ],
)
def test_kinds(text: str, kind: str) -> None:
    assert Image.parse(text).kind == kind


def test_a_relative_path_stays_unless_its_folder_is_given() -> None:
    assert Image.parse("./x.sqsh").name == "./x.sqsh"
    assert Image.parse("./x.sqsh", "/home/alice").name == "/home/alice/x.sqsh"
    assert Image.parse("../x.sqsh", "/home/alice").name == "/home/alice/../x.sqsh"
    assert Image.parse("/x.sqsh", "/home/alice").name == "/x.sqsh"
    assert Image.parse("ubuntu", "/home/alice").enroot == "docker://ubuntu"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not an image reference"),
        ("a\nb", "is not an image reference"),
        ("~/x.sqsh", "only a shell expands ~; write the whole path"),
        ("x.sqsh", "write ./x.sqsh"),
        ("images/x.sif", "write ./images/x.sif"),
        ("nvcr.io#NVIDIA/PyTorch:25.06-Py3", "write nvcr.io#nvidia/pytorch:25.06-Py3"),
        ("Ubuntu", "must be in lower case; write ubuntu"),
        ("nvcr.io#/nvidia/x", "write nvcr.io#nvidia/x"),
        ("a#b#c", "is not an image name"),
        ("#x", "is not a registry"),
        ("-x.org/y", "is not a registry"),
        ("nvcr.io:port/x", "is not a registry"),
        ("ubuntu:", "is not a tag"),
        ("ubuntu:a b", "is not a tag"),
        ("ubuntu:-x", "is not a tag"),
        ("nvcr.io/", "is not an image name"),
        ("a//b", "is not an image name"),
        ("$(id)", "is not an image name"),
        ("ubuntu@sha256:abc", "64 hexadecimal digits"),
        (f"ubuntu@sha512:{'a' * 128}", "64 hexadecimal digits"),
        ("`id`@nvcr.io#x", "is not a user name"),
        ("library://x", "library:// is not known"),
        ("dockerd://nvcr.io#x", "is not an image name"),
        ("docker:///x", "is not an image name"),
    ],
)
def test_refusals(text: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        Image.parse(text)
    assert says in str(refused.value)


@pytest.mark.parametrize("rest", ["nvcr.io#x", "nvcr.io/X", "nvcr.io#x@sha256:1", "ubuntu:-"])
def test_a_password_is_refused_and_not_shown(rest: str) -> None:
    with pytest.raises(BadInput, match="contains a password") as refused:
        Image.parse(f"alice:sesame@{rest}")
    assert "sesame" not in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_an_image_or_bad_input(text: str) -> None:
    try:
        image = Image.parse(text)
    except BadInput:
        return
    assert Image.parse(str(image)) == image
    assert not set(image.enroot) & set("\n\0")


PART = st.from_regex(r"[a-z0-9]+([._-][a-z0-9]+)?", fullmatch=True)


@given(
    st.sampled_from([None, "nvcr.io", "localhost:5000", "reg.example.org:443"]),
    st.lists(PART, min_size=1, max_size=3).map("/".join),
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,8}", fullmatch=True),
)
def test_docker_and_enroot_spellings_mean_the_same(
    registry: str | None, name: str, tag: str | None
) -> None:
    ending = f":{tag}" if tag else ""
    docker = Image.parse(f"docker://{registry or 'docker.io'}/{name}{ending}")
    assert docker == Image.parse(f"{registry or 'docker.io'}#{name}{ending}")
    assert (docker.registry, docker.name, docker.tag) == (registry, name, tag)
    assert docker.pyxis == (f"{registry}#" if registry else "") + name + ending
