"""What a container may be asked to be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmkit.errors import BadInput
from slurmkit.spec.containers import Container, Mount


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        # pyxis args.c, parse_mount_option and add_mount
        ("/data", Mount("/data", "/data")),
        ("/data:/mnt", Mount("/data", "/mnt")),
        ("/data:/mnt:", Mount("/data", "/mnt")),
        ("/data:/mnt:ro+rprivate", Mount("/data", "/mnt", ("ro", "rprivate"))),
        ("./data:./mnt", Mount("./data", "./mnt")),
        (".hidden:/mnt", Mount(".hidden", "/mnt")),
        ("tmpfs:/tmp:size=10%", Mount("tmpfs", "/tmp", ("size=10%",))),
        ("umount:/sys", Mount("umount", "/sys")),
    ],
)
def test_mounts(text: str, mount: Mount) -> None:
    assert Mount.parse(text) == mount
    assert Mount.parse(str(mount)) == mount


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the source must be a path"),
        ("data:/mnt", "the source must be a path"),
        ("~/data:/mnt", "the source must be a path"),
        ("$HOME/data:/mnt", "the source must be a path"),
        (":/mnt", "the source must be a path"),
        ("/data::ro", "the target must be a path"),
        ("/data:mnt", "the target must be a path"),
        ("tmpfs", "the target must be a path"),
        ("/a,/b", "must not contain ','"),
        ("/a b:/mnt", "must not contain ' '"),
        ("/a$USER:/mnt", "must not contain '$'"),
        ("/a:/mnt`id`", "must not contain '`'"),
        ("/a*:/mnt", "must not contain '*'"),
        ('/a"b', "must not contain '\"'"),
        ("/a:/b:ro,nosuid", "'ro,nosuid' is not a mount flag; join flags with +"),
        ("/a:/b:ro:x", "'ro:x' is not a mount flag"),
        ("/a:/b:+ro", "'' is not a mount flag"),
        ("/a\n:/b", "is not of the form"),
    ],
)
def test_mounts_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        Mount.parse(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"image": None}, "needs an image"),
        ({"image": "Ubuntu"}, "must be in lower case"),
        ({"image": 7}, "is not an image reference"),
        ({"mounts": ("x",)}, "the source must be a path"),
        ({"mounts": "/x"}, "mounts is a tuple"),
        ({"workdir": "work"}, "workdir 'work' is not a path that begins with /"),
        ({"workdir": "/a\nb"}, "is not a path"),
        ({"save": "x.sqsh"}, "is not a path that begins with / or ."),
        ({"save": "/x/"}, "is a folder"),
        ({"mount_home": "yes"}, "mount_home must be true or false"),
        ({"writable": 1}, "writable must be true or false"),
        ({"entrypoint_log": None}, "entrypoint_log must be true or false"),
        (
            {"entrypoint": False, "entrypoint_log": True},
            "shows the output of the entry point, but entrypoint is false",
        ),
        ({"environment": ("A=1",)}, "'A=1' is not the name of a variable"),
        ({"environment": "A"}, "environment is a tuple"),
        ({"environment": ("A\n",)}, "is not the name of a variable"),
        ({"name": "a/b"}, "name 'a/b' is not a name"),
        ({"name": "a:b"}, "name 'a:b' is not a name"),
        ({"name": "-f"}, "name '-f' is not a name"),
        ({"unshare": ("pid",)}, "'pid' is not one of net, ipc, uts"),
        ({"runtime": "Pyxis"}, "runtime 'Pyxis' is not a name"),
    ],
)
def test_refusals(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as refused:
        Container(**{"image": "ubuntu", **fields})
    assert says in str(refused.value)


def test_a_kept_container_needs_no_image() -> None:
    kept = Container(name="train:exec")
    assert kept.source is None
    assert kept.asked == ("name",)


def test_fields_are_read_as_they_are_written() -> None:
    container = Container(image="ubuntu", mounts=("/a:/b:ro",), mount_home=False, unshare=("net",))
    written = msgspec.json.encode(container)
    assert msgspec.json.decode(written) == {
        "image": "ubuntu",
        "mounts": ["/a:/b:ro"],
        "mount-home": False,
        "unshare": ["net"],
    }
    assert msgspec.json.decode(written, type=Container) == container
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"image": "ubuntu", "mount": "/x"}, Container)


def test_paths_become_absolute_where_a_folder_is_given() -> None:
    container = Container(
        image="./x.sqsh",
        mounts=("./data", "./a:/b:ro", "/c", "tmpfs:/tmp", "./d:./e"),
        workdir="/b",
        save="./y.sqsh",
    )
    moved = container.at("/home/alice")
    assert moved.image == "/home/alice/x.sqsh"
    assert moved.mounts == (
        "/home/alice/data:/home/alice/data",
        "/home/alice/a:/b:ro",
        "/c:/c",
        "tmpfs:/tmp",
        "/home/alice/d:./e",
    )
    assert (moved.workdir, moved.save) == ("/b", "/home/alice/y.sqsh")
    assert moved.at("/elsewhere") == moved
    kept = Container(name="x")
    assert kept.at("/home/alice") == kept


@given(st.text(max_size=20))
def test_any_text_is_a_mount_or_bad_input(text: str) -> None:
    try:
        mount = Mount.parse(text)
    except BadInput:
        return
    assert Mount.parse(str(mount)) == mount
    assert not set(mount.source + mount.target) & set(' \t\n,:$`"\\*?[')
