"""What images say of themselves: indexes, manifests, configurations, as OCI and Docker write them.

Forms: the OCI image specification (image-index.md, manifest.md, config.md), which Docker's own are
like, and Docker's image-spec v1.2 (`manifest.json` of an archive). Nothing of it is trusted: what
has another type than it must have is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import msgspec

from slurmkit.errors import ImageError

Table = dict[str, Any]

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\n\r\0]*", re.ASCII)
_ODD = re.compile("[\\0\ud800-\udfff]")  # what no file can have in a name or a text


class Blob(msgspec.Struct, frozen=True):
    """A layer or configuration, and how many bytes it has as it is kept."""

    digest: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """What one image consists of; layers from the lowest up."""

    config: Blob
    layers: tuple[Blob, ...]


class Settings(msgspec.Struct, frozen=True):
    """What an image's configuration says.

    Attributes:
        architecture: as Docker names it; None where it says none.
        layers: digests of the layers without compression.
        variables: each `NAME=VALUE`.
        workdir: empty for none.
    """

    architecture: str | None = None
    layers: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def parsed(data: bytes) -> Any:
    """Read JSON.

    Raises:
        ValueError: when it is none.
    """
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def digest_of(data: bytes) -> str:
    """The digest of a manifest or another blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def checked(digest: str) -> str:
    """The same digest, as one that can be a part of a path.

    Raises:
        ImageError: when it is none.
    """
    if not _DIGEST.fullmatch(digest):
        raise ImageError(f"the image is damaged, or uses a digest other than sha256: {digest!r}")
    return digest


def is_index(table: Table) -> bool:
    """Whether it lists images, of which one is for this machine."""
    return "manifests" in table


def fitting(index: Table, architecture: str) -> tuple[list[str], str]:
    """Digests of the images for an architecture, and in words which ones there are.

    One that names none fits; what is for no Linux, as an attestation, does not.
    """
    platforms = {_text(e.get("digest")): _table(e.get("platform")) for e in _tables(index)}
    linux = {d: p.get("architecture") for d, p in platforms.items() if _is_linux(p)}
    there = sorted({str(name) for name in linux.values() if name}) or ["none named"]
    return [d for d, name in linux.items() if name in (None, architecture)], ", ".join(there)


def _is_linux(platform: Table) -> bool:
    return platform.get("os") in (None, "linux")


def manifest_of(table: Table) -> Manifest:
    """Read a manifest."""
    layers = table.get("layers")
    found = [_table(each) for each in layers] if isinstance(layers, list) else []
    return Manifest(_blob(_table(table.get("config"))), tuple(map(_blob, found)))


def saved(listed: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Of Docker's `manifest.json`: names in the archive of each configuration and its layers."""
    images = map(_table, listed) if isinstance(listed, list) else ()
    return [(_text(each.get("Config")), _texts(each.get("Layers"))) for each in images]


def settings_of(table: Table) -> Settings:
    """Read a configuration."""
    config, name = _table(table.get("config")), table.get("architecture")
    return Settings(
        architecture=name if isinstance(name, str) and name else None,
        layers=_texts(_table(table.get("rootfs")).get("diff_ids")),
        variables=tuple(e for e in _texts(config.get("Env")) if _VARIABLE.fullmatch(e)),
        workdir=next(iter(_texts([config.get("WorkingDir")])), ""),
        entrypoint=_texts(config.get("Entrypoint")),
        command=_texts(config.get("Cmd")),
    )


def _tables(index: Table) -> list[Table]:
    found = index.get("manifests")
    return [_table(each) for each in found] if isinstance(found, list) else []


def _blob(table: Table) -> Blob:
    size = table.get("size")
    return Blob(_text(table.get("digest")), size if isinstance(size, int) and size > 0 else 0)


def _table(value: object) -> Table:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(each for each in found if isinstance(each, str) and not _ODD.search(each))
