"""Parse the metadata of images: indexes, manifests and configurations of OCI and Docker.

Formats: the OCI image specification (image-index.md, manifest.md, config.md), to which Docker's
are similar, and Docker's image-spec v1.2 (`manifest.json` of an archive). Nothing is trusted: a
value of the wrong type counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec

from slurmkit.errors import ImageError

JsonObject = dict[str, Any]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\n\r\0]*", re.ASCII)
_ODD = re.compile("[\\0\ud800-\udfff]")  # characters that no file name or text file can have


class Blob(msgspec.Struct, frozen=True):
    """A layer or configuration, with its digest and its stored size in bytes."""

    digest: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """The configuration and the layers of one image, lowest layer first."""

    config: Blob
    layers: tuple[Blob, ...]


class ImageSettings(msgspec.Struct, frozen=True):
    """The settings in an image's configuration.

    Attributes:
        architecture: as Docker names it; None if not given.
        layers: digests of the uncompressed layers.
        variables: each `NAME=VALUE`.
        workdir: empty for none.
    """

    architecture: str | None = None
    layers: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def parse_json(data: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: when it is not valid JSON.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def digest_of(data: bytes) -> str:
    """Return the digest of a manifest or another blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def check_digest(digest: str) -> str:
    """Return a digest unchanged, after checking that it is safe as part of a path.

    Raises:
        ImageError: when it is not a SHA-256 digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise ImageError(f"the image is damaged, or uses a digest other than sha256: {digest!r}")
    return digest


def is_index(table: JsonObject) -> bool:
    """Return whether it is an index, a list of images for several architectures."""
    return "manifests" in table


def images_for(index: JsonObject, architecture: str) -> tuple[list[str], str]:
    """Return the digests of an index's images for an architecture, and a list of all of these.

    An image without an architecture fits. An image for another system than Linux does not; an
    attestation is one of these.
    """
    images = _tables(index.get("manifests"))
    platforms = {_text(e.get("digest")): _table(e.get("platform")) for e in images}
    linux = {
        digest: platform.get("architecture")
        for digest, platform in platforms.items()
        if platform.get("os") in (None, "linux")
    }
    available = sorted({str(name) for name in linux.values() if name}) or ["none named"]
    return [d for d, name in linux.items() if name in (None, architecture)], ", ".join(available)


def parse_manifest(table: JsonObject) -> Manifest:
    """Parse a manifest."""
    layers = _tables(table.get("layers"))
    return Manifest(_blob(_table(table.get("config"))), tuple(map(_blob, layers)))


def parse_docker_manifest(listed: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Parse Docker's `manifest.json`: each image's configuration and layers, as names of files."""
    images = _tables(listed)
    return [(_text(each.get("Config")), _texts(each.get("Layers"))) for each in images]


def parse_image_settings(table: JsonObject) -> ImageSettings:
    """Parse a configuration."""
    config, name = _table(table.get("config")), table.get("architecture")
    return ImageSettings(
        architecture=name if isinstance(name, str) and name else None,
        layers=_texts(_table(table.get("rootfs")).get("diff_ids")),
        variables=tuple(e for e in _texts(config.get("Env")) if _VARIABLE.fullmatch(e)),
        workdir=next(iter(_texts([config.get("WorkingDir")])), ""),
        entrypoint=_texts(config.get("Entrypoint")),
        command=_texts(config.get("Cmd")),
    )


def _tables(value: object) -> list[JsonObject]:
    return [_table(each) for each in value] if isinstance(value, list) else []


def _blob(table: JsonObject) -> Blob:
    size = table.get("size")
    return Blob(_text(table.get("digest")), size if isinstance(size, int) and size > 0 else 0)


def _table(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else []
    return tuple(each for each in values if isinstance(each, str) and not _ODD.search(each))
