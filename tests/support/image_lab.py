"""Images made by hand, and stand-ins for the programs that import them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The begin of a squashfs file of 96 bytes, as far as it is looked at.
HEAD = r"hsqs" + r"\0" * 36 + r"\140" + r"\0" * 7
_BEGIN = f"head() {{ printf '{HEAD}'; printf '%048d' 0; }}"

# Stands in for `enroot import` and for the registry behind it: writes what looks like squashfs,
# slowly enough that others come meanwhile, and counts how often. Its `digest` says $DIGEST.
ENROOT = f"""#!/bin/bash
{_BEGIN}
if [ "$1" = digest ]; then [ -n "$DIGEST" ] && echo "$DIGEST"; exit; fi
echo "$*" >>"$COUNT"
while [ $# -gt 0 ]; do [ "$1" = --output ] && file=$2; image=$1; shift; done
printf hsqs >"$file"
sleep "${{SLOW:-0}}"
{{ head; echo "$image"; }} >"$file"
"""

# Stands in for `mksquashfs - FILE -tar`: the archive it is given comes after 96 bytes.
MKSQUASHFS = f"""#!/bin/bash
{_BEGIN}
{{ head; [ "$1" != - ] || cat; }} >"$2"
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, **scripts: str) -> None:
    """Put scripts at the begin of the PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def member(
    name: str, data: bytes | None = b"", *, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes | None]:
    """One member of an archive."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o755
    made.size = len(data or b"") if kind == tarfile.REGTYPE else 0
    return made, data if kind == tarfile.REGTYPE else None


def folder(name: str) -> tuple[tarfile.TarInfo, bytes | None]:
    return member(name, kind=tarfile.DIRTYPE)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes | None]:
    return member(name, kind=tarfile.SYMTYPE, link=target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes | None]:
    return member(name, kind=tarfile.LNKTYPE, link=target)


def tar(*members: tuple[tarfile.TarInfo, bytes | None]) -> bytes:
    """An archive of members as they are given, in order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for made, data in members:
            archive.addfile(made, io.BytesIO(data) if data is not None else None)
    return out.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(layers: list[bytes], **settings: Any) -> bytes:
    """An image's configuration."""
    made = {
        "architecture": settings.pop("architecture", "amd64"),
        "rootfs": {"type": "layers", "diff_ids": list(map(digest, layers))},
        "config": settings,
    }
    return json.dumps(made).encode()


def docker_save(path: Path, layers: list[bytes], config: bytes) -> Path:
    """What `docker save` wrote before release 25."""
    names = [f"layer{at}/layer.tar" for at in range(len(layers))]
    listed = [{"Config": "config.json", "RepoTags": ["x:1"], "Layers": names}]
    files = [member(name, data) for name, data in zip(names, layers, strict=True)]
    manifest = member("manifest.json", json.dumps(listed).encode())
    path.write_bytes(tar(*files, member("config.json", config), manifest))
    return path


def layout(
    path: Path,
    images: dict[str, tuple[list[bytes], bytes]],
    pack: Callable[[bytes], bytes] = gzip.compress,
) -> Path:
    """An OCI layout as a folder, its layers compressed; of images by architecture."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, Any]:
        (blobs / digest(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": digest(data), "size": len(data)}

    listed = []
    for architecture, (layers, config) in images.items():
        packed = [put(pack(layer)) for layer in layers]
        manifest = json.dumps({"config": put(config), "layers": packed}).encode()
        listed.append({**put(manifest), "platform": {"architecture": architecture}})
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}', "utf-8")
    (path / "index.json").write_text(json.dumps({"manifests": listed}), "utf-8")
    return path
