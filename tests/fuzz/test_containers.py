"""Hostile image layers: nothing leaves the tree, no device comes in, no traceback."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path

from fuzzing import fuzz, mutated, odd_text
from slurmkit_containers.importing import archives
from slurmkit_containers.importing.archives import import_path

from slurmkit.errors import BadInput, ImageError

_NAMES = (
    "etc", "etc/passwd", "bin/sh", "a", "a/b", "a/b/c", "link", "link/x", ".wh.a", "a/.wh.b",
    ".wh..wh..opq", "a/.wh..wh..opq", "../out", "a/../../out", "/etc/x", "./a", ".", "..", "//a//b",
    ".wh...", ".wh.", "dev/sda",
)  # fmt: skip
_KINDS = (
    tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE,
    tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"Z",
)  # fmt: skip
_FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def _layer(chance: random.Random) -> bytes:
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=chance.choice(_FORMATS), errors="surrogateescape"
    ) as archive:
        for _ in range(chance.randrange(9)):
            archive.addfile(*_member(chance))
    data = bytearray(out.getvalue())
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)


def _member(chance: random.Random) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    name = chance.choice(_NAMES)
    name = (mutated(chance, name) if chance.random() < 0.1 else name)[:90].replace("\0", "")
    made = tarfile.TarInfo(name or "x")
    made.type = chance.choice(_KINDS)
    made.mode = chance.choice((0, 0o644, 0o755, 0o4755, 0o7777))
    made.uid = chance.choice((0, 1000, 2**21 - 1))
    made.mtime = chance.choice((0, 1, 2**33 - 1))
    made.linkname = chance.choice((*_NAMES, "/", "../../..", "/etc", "link", "a"))
    if chance.random() < 0.1:
        key, value = chance.choice(("path", "linkpath", "mtime", "size")), odd_text(chance, 3)
        made.pax_headers = {key: value.replace("\0", "")}
    if not made.isreg():
        return made, None
    data = chance.randbytes(chance.choice((0, 1, 511, 513)))
    made.size = len(data)
    return made, io.BytesIO(data)


def _check_tree(data: bytes, folder: Path) -> None:
    """Check the archive for mksquashfs, then unpack it where nothing filters it."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        links = set()
        for member in archive:
            parts = tuple(member.name.split("/"))
            assert not member.name.startswith("/"), member.name
            assert not {"..", ".", ""} & set(parts), member.name
            assert member.isreg() or member.isdir() or member.issym() or member.isfifo()
            assert (member.uid, member.gid) == (0, 0)
            assert not any(parts[:n] in links for n in range(1, len(parts))), member.name
            links |= {parts} if member.issym() else set()


def test_containers(tmp_path: Path, monkeypatch: object) -> None:
    written: list[bytes] = []

    def no_program(argv: object, file: Path, report: object, feed: object = None) -> None:
        out = io.BytesIO()
        feed(out)  # type: ignore[operator]
        written.append(out.getvalue())

    monkeypatch.setattr(archives, "run_child", no_program)  # type: ignore[attr-defined]
    monkeypatch.setattr(archives, "need_mksquashfs", lambda: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(archives, "_options", lambda _: ())  # type: ignore[attr-defined]
    source = tmp_path / "in" / "layer.tar"
    source.parent.mkdir()

    def case(chance: random.Random) -> None:
        written.clear()
        tree = archives.LayerTree()
        source.write_bytes(_layer(chance))
        try:
            if chance.random() < 0.5:
                import_path(source, tmp_path / "in" / "image", lambda *_: None)
            else:
                _two_layers(chance, tree, written)
        except (ImageError, BadInput):
            pass
        for data in written:
            _check_tree(data, tmp_path)
        assert [path.name for path in source.parent.iterdir()] == ["layer.tar"]

    fuzz("containers", case, at_least=2000)


def _two_layers(chance: random.Random, tree: archives.LayerTree, written: list[bytes]) -> None:
    out = io.BytesIO()
    try:
        for _ in range(chance.randrange(1, 4)):
            tree.add(tarfile.TarFile(fileobj=io.BytesIO(_layer(chance))))
        tree.write(out, lambda _: None)
    except archives._DAMAGED:  # as `import_path`, which makes it an ImageError
        return
    written.append(out.getvalue())
