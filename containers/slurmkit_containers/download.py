"""Fetch an image of a registry that gives it to anybody, where there is no enroot."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from slurmkit.errors import ImageError
from slurmkit.image import Image
from slurmkit_containers.archives import here, import_path, need_mksquashfs
from slurmkit_containers.cache import Made
from slurmkit_containers.importing import gib, need_room
from slurmkit_containers.manifests import Blob, Manifest, checked, digest_of, manifest_of
from slurmkit_containers.registry import Session, Unasked, read
from slurmkit_containers.trust import STAYS, Report

_PIECE = 1 << 20
_PAUSES = (1.0, 2.0, 5.0, 10.0)
"""Seconds before each new try; as many breaks without a piece in between are borne."""


class _To(msgspec.Struct, frozen=True):
    layout: Path
    report: Report


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
        data, found = session.manifest(here())
        _write_layout(session, manifest_of(found), data, _To(layout, report))
    except Unasked as error:
        raise ImageError(
            f"{image.registry or 'Docker Hub'} does not give image {image} to anybody, or does not"
            " answer; with a password, import where enroot is on the PATH, or from a file of docker"
            " save: slurmkit image import ./FILE.tar"
        ) from error
    made = import_path(layout, file, report)
    return msgspec.structs.replace(made, architecture=made.architecture or here())


def _write_layout(session: Session, manifest: Manifest, data: bytes, to: _To) -> None:
    blobs = to.layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    wanted = dict.fromkeys((manifest.config, *manifest.layers))
    total, done = sum(blob.size for blob in wanted), 0
    need_room(to.layout, total)
    for blob in wanted:
        begun = done

        def tell(size: int, begun: int = begun) -> None:
            to.report(f"fetching {gib(total)}", begun + size, total)

        _fetch(session, blob, blobs, (tell, to.report))
        done += blob.size
    (blobs / digest_of(data).removeprefix("sha256:")).write_bytes(data)
    (to.layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
    index = {"manifests": [{"digest": digest_of(data)}]}
    (to.layout / "index.json").write_text(json.dumps(index), "utf-8")


def _fetch(
    session: Session, blob: Blob, blobs: Path, by: tuple[Callable[[int], None], Report]
) -> None:
    """Fetch a blob, of no more bytes than the manifest says and no others.

    Where the connection breaks it goes on from what is there.
    """
    (tell, report), made, breaks = by, hashlib.sha256(), 0
    with (blobs / checked(blob.digest).removeprefix("sha256:")).open("wb") as file:
        while file.tell() < blob.size:
            before = file.tell()
            with _broken_if(before > 0 or breaks > 0):
                for piece in _pieces(session, blob, before):
                    file.write(piece)
                    made.update(piece)
                    tell(file.tell())
            breaks = 0 if file.tell() - before >= _PIECE else breaks + 1
            if file.tell() < blob.size:
                _wait(breaks, (file.tell(), blob.size), report)
    if f"sha256:{made.hexdigest()}" != blob.digest:
        raise ImageError(f"what the registry gave has not the digest {blob.digest}; try again")


def _pieces(session: Session, blob: Blob, begin: int) -> Iterator[bytes]:
    """What is given of a blob from the byte `begin` on, until the connection ends."""
    left = blob.size - begin
    with session.blob(blob.digest, begin) as answer:
        while left and (piece := _read_on(answer, min(left, _PIECE))):
            left -= len(piece)
            yield piece


def _read_on(answer: IO[bytes], most: int) -> bytes:
    with suppress(Unasked):  # broken: what came before is kept
        return read(answer, most)
    return b""


@contextmanager
def _broken_if(begun: bool) -> Iterator[None]:  # noqa: FBT001 - private
    """Once some of it was given, no answer is a connection that may come back."""
    try:
        yield
    except Unasked:
        if not begun:
            raise


def _wait(breaks: int, where: tuple[int, int], report: Report) -> None:
    """Give the connection time to come back.

    Raises:
        ImageError: when it broke too often with nothing much in between.
    """
    done, size = map(gib, where)
    if breaks > len(_PAUSES):
        raise ImageError(
            f"the connection to the registry broke {breaks} times in a row, at {done} of {size} of"
            " a layer; nothing of it is kept: run it again when the network is better"
        )
    report(f"the connection broke at {done} of {size} of a layer: going on from there", STAYS, None)
    time.sleep(_PAUSES[breaks - 1] if breaks else 0)
