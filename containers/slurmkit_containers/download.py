"""Fetch an image of a registry that gives it to anybody, where there is no enroot."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.errors import ImageError
from slurmkit.image import Image
from slurmkit_containers.archives import here, import_path, need_mksquashfs
from slurmkit_containers.cache import Made
from slurmkit_containers.importing import gib, need_room
from slurmkit_containers.registry import Session, Unasked, digest_of, read, tables
from slurmkit_containers.trust import Report

_PIECE = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def import_openly(image: Image, file: Path, report: Report) -> Made:
    """Write the squashfs file of an image: fetched as an OCI layout, then as any of these.

    Args:
        image: of a registry.
        file: what to write; the layout lies beside it meanwhile.
        report: told how far it is.

    Raises:
        ImageError: when the registry does not give it, or it is damaged, or has no room.
    """
    need_mksquashfs()
    layout = file.parent / "layout"
    try:
        session = Session(image)
        data, manifest = session.manifest(here())
        _write_layout(session, manifest, data, (layout, report))
    except Unasked as error:
        raise ImageError(
            f"{image.registry or 'Docker Hub'} does not give image {image} to anybody, or does not"
            " answer; with a password, import where enroot is on the PATH, or from a file of docker"
            " save: slurmkit image import ./FILE.tar"
        ) from error
    made = import_path(layout, file, report)
    return msgspec.structs.replace(made, architecture=made.architecture or here())


def _write_layout(
    session: Session, manifest: dict[str, Any], data: bytes, to: tuple[Path, Report]
) -> None:
    layout, report = to
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    wanted = [*tables([manifest.get("config")]), *tables(manifest.get("layers"))]
    total = sum(_size(each) for each in wanted)
    need_room(layout, total)
    done = 0
    for each in wanted:
        done = _fetch(session, each, blobs, (done, total, report))
    (blobs / digest_of(data).removeprefix("sha256:")).write_bytes(data)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
    index = {"manifests": [{"digest": digest_of(data)}]}
    (layout / "index.json").write_text(json.dumps(index), "utf-8")


def _size(blob: dict[str, Any]) -> int:
    size = blob.get("size")
    return size if isinstance(size, int) and size >= 0 else 0


def _fetch(
    session: Session, blob: dict[str, Any], blobs: Path, so_far: tuple[int, int, Report]
) -> int:
    """Fetch a blob, of no more bytes than the manifest says and no others; how many are done."""
    digest, (done, total, report) = str(blob.get("digest")), so_far
    if not _DIGEST.fullmatch(digest):
        raise ImageError(f"the image is damaged, or uses a digest other than sha256: {digest!r}")
    left, made = _size(blob), hashlib.sha256()
    with session.blob(digest) as answer, (blobs / digest[7:]).open("wb") as file:
        while left and (piece := read(answer, min(left, _PIECE))):
            file.write(piece)
            made.update(piece)
            left, done = left - len(piece), done + len(piece)
            report(f"fetching {gib(total)}", done, total)
    if f"sha256:{made.hexdigest()}" != digest:
        raise ImageError(f"what the registry gave has not the digest {digest}; try again")
    return done
