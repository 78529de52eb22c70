"""Images without a registry: layers on top of each other, hostile ones, and what is checked."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from image_lab import (
    MKSQUASHFS,
    config_of,
    digest,
    docker_save,
    folder,
    hard,
    layout,
    link,
    member,
    stand_in,
    tar,
)
from slurmkit_containers.cache import ImageOrigin
from slurmkit_containers.importing import archives
from slurmkit_containers.importing.archives import MAGIC, GrowingFile, import_path, unpacker
from slurmkit_containers.importing.layers import LayerTree
from slurmkit_containers.importing.manifests import ImageSettings
from slurmkit_containers.trust import ignore_progress

from slurmkit.errors import BadInput, ImageError

FILES = tar(folder("./etc"), member("./etc/hello", b"hi"), folder("bin"))


@pytest.fixture(autouse=True)
def amd64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "local_architecture", lambda: "amd64")


@pytest.fixture
def squash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """mksquashfs is one that keeps the archive it is given."""
    stand_in(monkeypatch, tmp_path / "bin", mksquashfs=MKSQUASHFS)


def imported(source: Path) -> tuple[ImageOrigin, dict[str, tarfile.TarInfo], tarfile.TarFile]:
    """What is said of an image, and what mksquashfs was given."""
    file = source.parent / "work" / "x.sqsh"
    file.parent.mkdir(exist_ok=True)
    made = import_path(source, file, ignore_progress)
    archive = tarfile.open(fileobj=io.BytesIO(file.read_bytes()[96:]))  # noqa: SIM115 - small
    return made, {each.name: each for each in archive}, archive


def tree(*layers: bytes) -> dict[str, str]:
    """Layers on top of each other: path to text, `->` and target, or `/` for a folder."""
    made = LayerTree()
    for layer in layers:
        made.add(tarfile.open(fileobj=io.BytesIO(layer)))  # noqa: SIM115 - small
    out = io.BytesIO()
    made.write(out, lambda _: None)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        return {each.name: _shown(archive, each) for each in archive}


def _shown(archive: tarfile.TarFile, each: tarfile.TarInfo) -> str:
    assert (each.uid, each.gid) == (0, 0)
    if each.issym():
        return f"-> {each.linkname}"
    data = archive.extractfile(each)
    return "/" if data is None else data.read().decode()


def test_a_whiteout_hides_what_is_below_and_not_what_is_beside_it() -> None:
    below = tar(folder("a"), member("a/x", b"1"), member("a/y", b"1"), folder("b"), member("b/z"))
    above = tar(member("a/x", b"2"), member("a/.wh.x"), member(".wh.b"), member(".wh.none"))
    assert tree(below, above) == {"a": "/", "a/x": "2", "a/y": "1"}


def test_an_opaque_folder_hides_all_that_it_held() -> None:
    below = tar(folder("a"), member("a/x"), folder("a/d"), member("a/d/y"))
    above = tar(folder("a"), member("a/new", b"n"), member("a/.wh..wh..opq"))
    assert tree(below, above) == {"a": "/", "a/new": "n"}


@pytest.mark.parametrize("path", ["link", "a/link/b", "a/link"])
def test_a_folder_in_the_place_of_a_link_hides_nothing_behind_the_link(path: str) -> None:
    """Whiteouts apply to the folder of their own layer, in whatever order they are."""
    name = path.removesuffix("/b")
    below = tar(folder("target"), member("target/keep.txt", b"1"), folder("target/b"),
                member("target/b/x", b"2"), link(name, "/target"))  # fmt: skip
    kept = tree(below)
    entries = [member(f"{path}/new.txt", b"n"), member(f"{path}/.wh..wh..opq"), folder(path),
               member(f"{path}/.wh.keep.txt"), folder(name)]  # fmt: skip
    made = tree(below, tar(*entries))
    assert made == kept | {name: "/", path: "/", f"{path}/new.txt": "n"}


def test_a_folder_keeps_what_is_in_it_and_a_file_in_its_place_does_not() -> None:
    below = tar(folder("a"), member("a/x", b"1"))
    assert tree(below, tar(folder("a"))) == {"a": "/", "a/x": "1"}
    assert tree(below, tar(member("a", b"f"))) == {"a": "f"}
    assert tree(tar(member("a", b"f")), below) == {"a": "/", "a/x": "1"}


def test_a_hard_link_is_the_file_of_its_own_layer() -> None:
    below = tar(member("./x", b"old"), hard("y", "x"), hard("z", "./y"))
    assert tree(below, tar(member("x", b"new"))) == {"x": "new", "y": "old", "z": "old"}


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil", b"x")],
        [member("a/../../evil", b"x")],
        [folder(".."), member("../.ssh/authorized_keys")],
        [hard("x", "../../etc/shadow")],
        [hard("x", "/etc/shadow")],
        [hard("x", "x")],
        [hard("x", "y"), hard("y", "x")],
    ],
)
def test_what_points_outside_is_refused(members: list[Any]) -> None:
    with pytest.raises(ImageError, match=r"\.\. in it|is a hard link to"):
        tree(tar(*members))


def test_links_lead_nowhere_but_within_the_image(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    hostile = tar(
        link("out", str(outside)), member("out/evil", b"x"), link("up", "../../../.."),
        member("up/evil2", b"x"), member("/abs", b"x"),
    )  # fmt: skip
    found = tree(hostile)
    assert found[f"{outside}/evil".lstrip("/")] == "x"
    assert found["evil2"] == found["abs"] == "x"
    assert not list(outside.iterdir())


def test_a_path_through_a_link_of_a_lower_layer_is_the_file_it_means() -> None:
    usrmerge = tar(folder("usr"), folder("usr/lib"), link("lib", "usr/lib"))
    found = tree(usrmerge, tar(member("lib/a.so", b"a")), tar(member("lib/.wh.a.so")))
    assert found == {"usr": "/", "usr/lib": "/", "lib": "-> usr/lib"}


def test_links_in_a_circle_end() -> None:
    with pytest.raises(ImageError, match="too many links"):
        tree(tar(link("a", "b"), link("b", "a"), member("a/x")))


def test_devices_are_left_out() -> None:
    assert tree(tar(member("sda", kind=tarfile.BLKTYPE), member("m", kind=tarfile.CHRTYPE))) == {}


def test_a_layer_that_ends_within_a_file_is_damaged() -> None:
    """It was shown as `the operating system: None`."""
    layer, made = io.BytesIO(tar(member("etc/x", b"1" * 100_000))), LayerTree()
    made.add(tarfile.open(fileobj=layer))  # noqa: SIM115 - small
    layer.truncate(60_000)
    with pytest.raises(tarfile.TarError, match="unexpected end of data"):
        made.write(io.BytesIO(), lambda _: None)
    short = LayerTree()
    short.put_text("etc/x", "1")
    (node,) = (each for path, each in short.walk() if path == "etc/x")
    assert node.member is not None
    node.member.size = 100  # as tarfile's own OSError, which has no number
    with pytest.raises(tarfile.TarError, match=r"^etc/x: unexpected end of data$"):
        short.write(io.BytesIO(), lambda _: None)


@pytest.mark.parametrize(("kind", "mode"), [(tarfile.REGTYPE, 0o600), (tarfile.DIRTYPE, 0o700)])
def test_what_its_owner_cannot_open_is_made_so(kind: bytes, mode: int) -> None:
    made, data = member("x", kind=kind)
    made.mode = 0
    found = LayerTree()
    found.add(tarfile.open(fileobj=io.BytesIO(tar((made, data)))))  # noqa: SIM115 - small
    ((_, node),) = found.walk()
    assert node.tar_entry("x")[0].mode == mode


def test_odd_names_and_long_ones_stay() -> None:
    name = "ä\n\t" + "x" * 200
    assert tree(tar(folder("d" * 150), member(f"{'d' * 150}/{name}", b"1"))) == {
        "d" * 150: "/",
        f"{'d' * 150}/{name}": "1",
    }


@pytest.mark.usefixtures("squash")
def test_what_docker_save_wrote(tmp_path: Path) -> None:
    layers = [FILES, tar(member("etc/hello", b"ho"))]
    settings = {
        "Env": ["PATH=/opt/bin", "BAD\n=1", "NAME='; rm -rf /'"],
        "Entrypoint": ["/init", "it's"],
        "Cmd": ["serve"],
        "WorkingDir": "/work dir",
    }
    config = config_of(layers, **settings)
    made, files, archive = imported(docker_save(tmp_path / "x.tar", layers, config))
    assert made == ImageOrigin(
        source=str(tmp_path / "x.tar"), digest=digest(config), architecture="amd64"
    )

    def text(name: str) -> str:
        data = archive.extractfile(files[name])
        assert data is not None
        return data.read().decode()

    assert text("etc/hello") == "ho"
    assert text("etc/environment") == "PATH=/opt/bin\nNAME='; rm -rf /'\n"
    assert files["etc/rc"].mode == 0o755
    assert "cd '/work dir' &&" in text("etc/rc")
    assert text("etc/rc").endswith("exec /init 'it'\"'\"'s' serve\n")
    assert {"dev", "proc", "sys", "tmp"} <= files.keys()


def test_the_script_that_starts_the_container_runs_entry_point_and_command(tmp_path: Path) -> None:
    made = LayerTree()
    folder_there = str(tmp_path / "a b")
    config = ImageSettings(entrypoint=("echo", "it's"), command=("me",), workdir=folder_there)
    archives._prepare(made, config, "evil'\n$(touch x)")
    (script,) = (node.text for path, node in made.walk() if path == "etc/rc")
    assert script is not None
    for words, said in ((["you", "a  b"], "it's you a  b"), ([], "it's me")):
        argv = ["sh", "-c", script.decode(), "rc", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stdout == f"{said}\n"
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["a b"]


@pytest.mark.usefixtures("squash")
def test_the_image_for_this_machine_is_taken_from_a_layout(tmp_path: Path) -> None:
    ours, other = config_of([FILES]), config_of([FILES], architecture="arm64")
    source = layout(tmp_path / "oci", {"amd64": ([FILES], ours), "arm64": ([FILES], other)})
    made, files, _ = imported(source)
    assert "etc/hello" in files
    assert made.architecture == "amd64"
    listed = json.loads((source / "index.json").read_text("utf-8"))["manifests"]
    assert made.digest == listed[0]["digest"]


@pytest.mark.usefixtures("squash")
def test_a_layout_can_be_an_archive(tmp_path: Path) -> None:
    source = layout(tmp_path / "oci", {"amd64": ([FILES], config_of([FILES]))})
    with tarfile.open(tmp_path / "oci.tar", "w") as archive:
        archive.add(source, ".")
    assert "etc/hello" in imported(tmp_path / "oci.tar")[1]


@pytest.mark.usefixtures("squash")
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_root_file_system_as_an_archive_stays_as_it_is(tmp_path: Path, pack: Any) -> None:
    (tmp_path / "x.tar.gz").write_bytes(pack(FILES))
    made, files, _ = imported(tmp_path / "x.tar.gz")
    assert set(files) == {"etc", "etc/hello", "bin"}
    assert (made.digest, made.architecture) == (None, None)


def zstd(data: bytes) -> bytes:
    """Compressed by the program; where that is missing so is what is tried."""
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    return subprocess.run(["zstd", "-q"], input=data, capture_output=True, check=True).stdout


@pytest.mark.usefixtures("squash")
def test_layers_in_zstd_are_read(tmp_path: Path) -> None:
    big = tar(member("big", os.urandom(3 << 20)))
    config = config_of([FILES, big])
    source = layout(tmp_path / "oci", {"amd64": ([FILES, big], config)}, pack=zstd)
    made, files, _ = imported(source)
    assert made.architecture == "amd64"
    assert files["etc/hello"].size == 2
    assert files["big"].size == 3 << 20
    (tmp_path / "x.tar").write_bytes(zstd(big)[:-100])
    with pytest.raises(
        ImageError, match=r"x\.tar is damaged, or is not a tar archive: .*/\*stdin\*"
    ):
        imported(tmp_path / "x.tar")


def test_where_nothing_reads_zstd_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    head = b"\x28\xb5\x2f\xfd" + bytes(MAGIC)
    unpack = unpacker(head[:MAGIC])
    assert unpack is not None
    with pytest.raises(ImageError, match=r"x\.tar has layers .* install zstd, .* skopeo copy"):
        unpack(io.BytesIO(head), GrowingFile(io.BytesIO(), print), Path("x.tar"))
    assert unpacker(FILES[:MAGIC]) is None


@pytest.mark.usefixtures("squash")
@pytest.mark.parametrize(
    ("config", "why"),
    [
        (config_of([FILES], architecture="s390x"), "is for s390x, but this machine is amd64"),
        (config_of([FILES + bytes(1)]), "layer0/layer.tar is damaged: its digest is not sha256:"),
        (b"[", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "1 layers, but 0 layer digests"),
        (b"null", "1 layers, but 0 layer digests"),
    ],
)
def test_an_image_that_is_damaged_or_of_another_machine(
    tmp_path: Path, config: bytes, why: str
) -> None:
    with pytest.raises(ImageError, match=why):
        imported(docker_save(tmp_path / "x.tar", [FILES], config))


@pytest.mark.usefixtures("squash")
def test_settings_that_no_image_has_are_left_out(tmp_path: Path) -> None:
    odd = {"Env": ["A=\ud800", 1, "B=2"], "Entrypoint": {"a": 1}, "Cmd": "sh", "WorkingDir": [1]}
    source = docker_save(tmp_path / "x.tar", [FILES], config_of([FILES], **odd))
    _, files, archive = imported(source)
    data = archive.extractfile(files["etc/environment"])
    assert data is not None
    assert data.read() == b"B=2\n"


@pytest.mark.usefixtures("squash")
def test_a_layout_whose_blob_was_changed(tmp_path: Path) -> None:
    source = layout(tmp_path / "oci", {"amd64": ([FILES], config_of([FILES]))})
    name = json.loads((source / "index.json").read_text("utf-8"))["manifests"][0]["digest"]
    blob = source / "blobs" / name.replace(":", "/")
    blob.write_bytes(blob.read_bytes() + b" ")
    with pytest.raises(ImageError, match=r"the digest of .* is not sha256:"):
        imported(source)


@pytest.mark.usefixtures("squash")
@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sha256:../../../secret"])
def test_a_layout_that_names_files_outside_of_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("{}", "utf-8")
    source = layout(tmp_path / "oci", {"amd64": ([FILES], config_of([FILES]))})
    (source / "index.json").write_text(json.dumps({"manifests": [{"digest": name}]}), "utf-8")
    with pytest.raises(ImageError, match="uses a digest other than sha256"):
        imported(source)


@pytest.mark.usefixtures("squash")
def test_a_link_in_a_layout_to_a_file_outside_of_it(tmp_path: Path) -> None:
    source = layout(tmp_path / "oci", {"amd64": ([FILES], config_of([FILES]))})
    (tmp_path / "secret").write_text("{}", "utf-8")
    (source / "index.json").unlink()
    (source / "index.json").symlink_to(tmp_path / "secret")
    with pytest.raises((ImageError, BadInput), match=r"no index\.json|has no file"):
        imported(source)


@pytest.mark.usefixtures("squash")
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"no archive at all" * 100, "is damaged, or is not a tar archive"),
        (gzip.compress(FILES)[:-20], "is damaged, or is not a tar archive"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "is damaged, or is not a tar archive|install zstd"),
        (FILES[:-10000] + b"x" * 100, "is damaged, or is not a tar archive"),
    ],
    ids=["text", "gzip", "zstd", "tar"],
)
def test_what_is_no_archive(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ImageError, match=why):
        imported(tmp_path / "x.tar")


@pytest.mark.usefixtures("squash")
def test_a_folder_must_look_like_a_root_file_system(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(BadInput, match="for an OCI bundle, give its folder rootfs"):
        imported(tmp_path / "x")


@pytest.mark.skipif(
    not (shutil.which("mksquashfs") and shutil.which("unsquashfs")),
    reason="squashfs-tools are not installed",
)
def test_the_real_mksquashfs_takes_what_it_is_given(tmp_path: Path) -> None:
    long = "d" * 120
    files = tar(
        folder("etc"), member("etc/hello", b"hi" * 100_000), link("bin", "usr/bin"),
        folder(long), member(f"{long}/{'ä' * 90}", b"1"), hard("same", "etc/hello"),
    )  # fmt: skip
    config = config_of([files], Env=["A=1"])
    source = docker_save(tmp_path / "x.tar", [files], config)
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "x.sqsh"
    import_path(source, file, ignore_progress)
    assert list((tmp_path / "work").iterdir()) == [file]
    out = tmp_path / "out"
    subprocess.run(["unsquashfs", "-d", str(out), str(file)], check=True, capture_output=True)
    assert (out / "etc/hello").read_bytes() == (out / "same").read_bytes() == b"hi" * 100_000
    assert os.readlink(out / "bin") == "usr/bin"  # noqa: PTH115 - as it is written
    assert (out / "etc/environment").read_text("utf-8") == "A=1\n"
    assert (out / long / ("ä" * 90)).read_bytes() == b"1"
    assert out.stat().st_mode & 0o777 == 0o755


_REAL = pytest.mark.skipif(
    not (shutil.which("mksquashfs") and shutil.which("unsquashfs")),
    reason="squashfs-tools are not installed",
)


@_REAL
def test_no_file_of_an_image_has_roots_rights(tmp_path: Path) -> None:
    """set-user-ID bits were kept, and every file becomes root's."""
    program, (shared, _) = member("bin/su", b"x"), folder("tmp")
    program[0].mode, shared.mode = 0o6755, 0o1777
    files = tar(program, (shared, None))
    source = docker_save(tmp_path / "x.tar", [files], config_of([files]))
    root = tmp_path / "root" / "bin"
    root.mkdir(parents=True)
    (root / "su").write_bytes(b"x")
    (root / "su").chmod(0o6755)
    for what, name in ((source, "a.sqsh"), (root.parent, "b.sqsh")):
        import_path(what, tmp_path / name, ignore_progress)
        listed = subprocess.check_output(["unsquashfs", "-ll", str(tmp_path / name)], text=True)
        assert re.search(r"-rwxr-xr-x root/root .*/bin/su$", listed, re.M)
    listed = subprocess.check_output(["unsquashfs", "-ll", str(tmp_path / "a.sqsh")], text=True)
    assert re.search(r"drwxrwxrwt root/root .*/tmp$", listed, re.M)


@_REAL
@pytest.mark.parametrize(
    ("refused", "used"), [("none", "zstd"), ("zstd", "lz4"), ("-comp", "gzip")]
)
def test_images_are_packed_by_what_is_fast(
    refused: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gzip took 28 times the CPU time of zstd."""
    real = shutil.which("mksquashfs")
    lacks = f'#!/bin/bash\n[[ " $* " != *" {refused} "* ]] || exit 1\nexec {real} "$@"\n'
    stand_in(monkeypatch, tmp_path / "bin", mksquashfs=lacks)
    (tmp_path / "root" / "etc").mkdir(parents=True)
    file = tmp_path / "x.sqsh"
    import_path(tmp_path / "root", file, ignore_progress)
    said = subprocess.check_output(["unsquashfs", "-s", str(file)], text=True)
    assert f"Compression {used}" in said


@pytest.mark.parametrize(
    ("variables", "cpus", "most"),
    [
        ({}, 64, 4),
        ({}, 2, 2),
        ({"SLURM_JOB_ID": "7"}, 64, 64),
        ({"ENROOT_MAX_PROCESSORS": "9"}, 64, 9),
        ({"ENROOT_MAX_PROCESSORS": "0"}, 64, 4),
        ({"ENROOT_MAX_PROCESSORS": "99", "SLURM_JOB_ID": "7"}, 8, 8),
    ],
)
def test_a_login_node_is_not_taken_whole(
    variables: dict[str, str], cpus: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import took all processors of a login node."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cpus))
    for name in ("SLURM_JOB_ID", "ENROOT_MAX_PROCESSORS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    tells = MKSQUASHFS.replace("\n", f'\necho "$*" >{tmp_path}/told\n', 1)
    stand_in(monkeypatch, tmp_path / "bin", mksquashfs=tells)
    (tmp_path / "root" / "etc").mkdir(parents=True)
    import_path(tmp_path / "root", tmp_path / "x.sqsh", ignore_progress)
    assert f" -processors {most} " in (tmp_path / "told").read_text("utf-8")


@pytest.mark.usefixtures("squash")
@pytest.mark.parametrize("how", ["whole", "layer", "program", "sparse"])
def test_what_unpacks_to_far_too_much_is_not_imported(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """597 KiB became 600 MiB beside the cache, without any limit."""
    monkeypatch.setattr(archives, "_ANY_RATIO", 1 << 20)
    bomb = tar(folder("etc"), member("etc/zero", bytes(8 << 20)))
    file = tmp_path / "x.tar"
    if how == "whole":
        file.write_bytes(gzip.compress(bomb))
    elif how == "program":
        if shutil.which("zstd") is None:
            pytest.skip("zstd is not installed")
        monkeypatch.setitem(sys.modules, "compression.zstd", None)
        file.write_bytes(subprocess.check_output(["zstd", "-c"], input=bomb))
    elif how == "layer":
        layout(file.with_suffix(""), {"amd64": ([bomb], config_of([bomb]))})
        file = file.with_suffix("")
    else:
        sparse = tmp_path / "etc"
        sparse.mkdir()
        with (sparse / "zero").open("wb") as out:
            out.truncate(1 << 30)
        subprocess.run(["tar", "-S", "-cf", file, "-C", tmp_path, "etc"], check=True)
    with pytest.raises(ImageError, match=r"unpack to more than 100 times as much .* \./ROOTFS"):
        imported(file)
    assert not [left for left in (tmp_path / "work").iterdir() if left.stat().st_size > 1 << 20]


@pytest.mark.usefixtures("squash")
def test_a_small_file_does_not_become_600_mib(tmp_path: Path) -> None:
    """Holes in a file take no room in an archive, and squashfs writes zeros for them."""
    (tmp_path / "etc").mkdir()
    with (tmp_path / "etc" / "zero").open("wb") as out:
        out.truncate(600 << 20)
    subprocess.run(["tar", "-S", "-cf", tmp_path / "x.tar", "-C", tmp_path, "etc"], check=True)
    with pytest.raises(ImageError, match=r"unpack to more than 100 times as much"):
        imported(tmp_path / "x.tar")


@pytest.mark.usefixtures("squash")
def test_a_disk_is_not_filled_by_what_unpacks_to_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room that is free was never compared."""
    (tmp_path / "x.tar").write_bytes(gzip.compress(tar(member("etc/zero", bytes(8 << 20)))))
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ImageError, match="has no room"):
        imported(tmp_path / "x.tar")


def test_a_file_that_cannot_be_read_ends_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mksquashfs would put an empty file in its place, and end well, without this option."""
    refuses = MKSQUASHFS.replace("\n", '\n[[ " $* " == *" -exit-on-error "* ]] || exit 9\n', 1)
    stand_in(monkeypatch, tmp_path / "bin", mksquashfs=refuses)
    (tmp_path / "root" / "etc").mkdir(parents=True)
    made = import_path(tmp_path / "root", tmp_path / "x.sqsh", ignore_progress)
    assert made.source == str(tmp_path / "root")


def test_times_that_no_file_has_become_none() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for time in ("inf", "nan", "1e30", "-5", "7.5"):
            made = tarfile.TarInfo(time)
            made.pax_headers = {"mtime": time}
            archive.addfile(made)
    tree, written = LayerTree(), io.BytesIO()
    tree.add(tarfile.open(fileobj=io.BytesIO(out.getvalue())))  # noqa: SIM115 - small
    tree.write(written, lambda _: None)
    written.seek(0)
    with tarfile.open(fileobj=written) as archive:
        times = {each.name: each.mtime for each in archive}
    assert times == {"inf": 0, "nan": 0, "1e30": 0, "-5": 0, "7.5": 7}


_BROKEN_GZIP = gzip.compress(os.urandom(9000))[:4000] + b"\0" * 4000


@pytest.mark.parametrize(
    "data",
    [
        _BROKEN_GZIP,
        tar(link("manifest.json", "none")),
        tar(link("manifest.json", "manifest.json")),
        tar(link("manifest.json", "other"), link("other", "manifest.json")),
        tar(hard("manifest.json", "none")),
    ],
    ids=["gzip", "dangling", "itself", "circle", "hard"],
)
@pytest.mark.usefixtures("squash")
def test_an_archive_that_is_damaged_somehow_is_told_so(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ImageError, match="is damaged"):
        imported(tmp_path / "x.tar")
