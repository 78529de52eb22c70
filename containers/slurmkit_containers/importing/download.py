"""Fetch a public image from a registry without enroot."""

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
from slurmkit.formats.memory import format_bytes
from slurmkit.spec.images import Image
from slurmkit_containers.cache import ImageOrigin
from slurmkit_containers.importing.archives import import_path, local_architecture, need_mksquashfs
from slurmkit_containers.importing.importer import check_room
from slurmkit_containers.importing.manifests import (
    Blob,
    Manifest,
    check_digest,
    digest_of,
    parse_manifest,
)
from slurmkit_containers.importing.registry import (
    NoRegistryAnswer,
    RegistrySession,
    UntrustedRegistry,
    read_registry_answer,
)
from slurmkit_containers.trust import LINE_STAYS, ReportProgress

_PIECE = 1 << 20
_PAUSES = (1.0, 2.0, 5.0, 10.0)
"""Seconds before each retry. After as many breaks in a row without progress, the import fails."""


def import_public_image(image: Image, file: Path, report: ReportProgress) -> ImageOrigin:
    """Fetch an image as an OCI layout, and write its squashfs file.

    Args:
        image: an image of a registry.
        file: the file to write; the layout is kept next to it during the import.
        report: called with the progress.

    Raises:
        ImageError: when the registry refuses it, it is damaged, or it does not fit on the disk.
    """
    need_mksquashfs()
    layout = file.parent / "layout"
    try:
        session = RegistrySession(image)
        data, table = session.manifest(local_architecture())
        _write_layout(session, parse_manifest(table), data, layout=layout, report=report)
    except UntrustedRegistry as error:
        raise ImageError(str(error)) from error
    except NoRegistryAnswer as error:
        why = f" ({error})" if str(error) else ""
        raise ImageError(
            f"{image.registry or 'Docker Hub'} does not give image {image} without a password, or"
            f" does not answer{why}; if it needs a password, import it where enroot is on the PATH,"
            " or from a file of docker save: slurmkit image import ./FILE.tar"
        ) from error
    made = import_path(layout, file, report)
    return msgspec.structs.replace(made, architecture=made.architecture or local_architecture())


def _write_layout(
    session: RegistrySession,
    manifest: Manifest,
    data: bytes,
    *,
    layout: Path,
    report: ReportProgress,
) -> None:
    """Fetch all blobs of a manifest, and write an OCI layout; `data` is the manifest's JSON."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    wanted = dict.fromkeys((manifest.config, *manifest.layers))
    total, done = sum(blob.size for blob in wanted), 0
    check_room(layout, total)
    for blob in wanted:

        def fetched(size: int, before: int = done) -> None:
            report(f"fetching {format_bytes(total)}", before + size, total)

        _fetch(session, blob, blobs, fetched=fetched, report=report)
        done += blob.size
    (blobs / digest_of(data).removeprefix("sha256:")).write_bytes(data)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
    index = {"manifests": [{"digest": digest_of(data)}]}
    (layout / "index.json").write_text(json.dumps(index), "utf-8")


def _fetch(
    session: RegistrySession,
    blob: Blob,
    blobs: Path,
    *,
    fetched: Callable[[int], None],
    report: ReportProgress,
) -> None:
    """Fetch a blob, at most as many bytes as the manifest says, and check its digest.

    If the connection breaks, go on from the last byte.

    Args:
        session: the image at its registry.
        blob: what to fetch.
        blobs: the folder to write to.
        fetched: called with the bytes that are there.
        report: called when the connection breaks.
    """
    digest, breaks = hashlib.sha256(), 0
    with (blobs / check_digest(blob.digest).removeprefix("sha256:")).open("wb") as file:
        while file.tell() < blob.size:
            before = file.tell()
            with _broken_if(before > 0 or breaks > 0):
                for piece in _pieces(session, blob, before):
                    file.write(piece)
                    digest.update(piece)
                    fetched(file.tell())
            breaks = 0 if file.tell() - before >= _PIECE else breaks + 1
            if file.tell() < blob.size:
                _wait(breaks, done=file.tell(), size=blob.size, report=report)
    if f"sha256:{digest.hexdigest()}" != blob.digest:
        raise ImageError(
            f"the data from the registry does not have the digest {blob.digest}; try again"
        )


def _pieces(session: RegistrySession, blob: Blob, begin: int) -> Iterator[bytes]:
    """Yield a blob from the byte `begin` on, until it is complete or the connection breaks."""
    left = blob.size - begin
    with session.blob(blob.digest, begin) as answer:
        while left and (piece := _read_unless_broken(answer, min(left, _PIECE))):
            left -= len(piece)
            yield piece


def _read_unless_broken(answer: IO[bytes], most: int) -> bytes:
    with suppress(NoRegistryAnswer):  # broken: keep what came before
        return read_registry_answer(answer, most)
    return b""


@contextmanager
def _broken_if(begun: bool) -> Iterator[None]:  # noqa: FBT001 - private
    """Suppress a missing answer once a part was fetched: the connection may come back."""
    try:
        yield
    except NoRegistryAnswer:
        if not begun:
            raise


def _wait(breaks: int, *, done: int, size: int, report: ReportProgress) -> None:
    """Wait until the connection may have come back.

    Args:
        breaks: how often it broke in a row without progress.
        done: bytes of the layer that are there.
        size: bytes of the layer.
        report: called with what happened.

    Raises:
        ImageError: when it broke too often.
    """
    where = f"{format_bytes(done)} of {format_bytes(size)} of a layer"
    if breaks > len(_PAUSES):
        raise ImageError(
            f"the connection to the registry broke {breaks} times in a row, at {where};"
            " the partial download is removed: import again when the network is better"
        )
    report(f"the connection broke at {where}: going on from there", LINE_STAYS, None)
    time.sleep(_PAUSES[breaks - 1] if breaks else 0)
