"""Images without a registry: what `docker save` writes, OCI layouts, and root file systems.

Form of a layout: the OCI image specification (image-layout.md). What a file says of itself is
checked against its digests.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import platform
import shlex
import shutil
import tarfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from slurmkit.errors import BadInput, ImageError
from slurmkit.image import KERNELS
from slurmkit_containers.blobs import Blobs
from slurmkit_containers.cache import Made
from slurmkit_containers.importing import gib, need_room, run_child
from slurmkit_containers.layers import Tree
from slurmkit_containers.manifests import (
    Settings,
    Table,
    checked,
    digest_of,
    fitting,
    is_index,
    manifest_of,
    saved,
    settings_of,
)
from slurmkit_containers.trust import Report

_ARCHITECTURES = {kernel: ours for ours, kernel in KERNELS.items()}
# ValueError, OverflowError, KeyError, RecursionError: tarfile, of what it does not look at itself.
_DAMAGED = (
    *(tarfile.TarError, EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error),
    *(ValueError, OverflowError, KeyError, RecursionError),
)
_RC_LOCAL = "# read by /etc/rc when the container starts\n"


def here() -> str:
    """This machine's architecture as Docker names it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def need_mksquashfs() -> None:
    """Refuse where images cannot be written.

    Raises:
        ImageError: then.
    """
    if shutil.which("mksquashfs") is None:
        raise ImageError("mksquashfs is not on the PATH; install squashfs-tools")


def import_path(source: Path, file: Path, report: Report) -> Made:
    """Write the squashfs file of an image or root file system that lies on a disk.

    Args:
        source: a tar archive or folder.
        file: what to write.
        report: told how far it is.

    Raises:
        BadInput: for what is neither.
        ImageError: when it is damaged, of another architecture, or cannot be written.
    """
    need_mksquashfs()
    if source.is_dir() and not (source / "oci-layout").exists():
        return _folder(source, file, report)
    with ExitStack() as stack:
        try:
            return _packed(source, file, report, stack)
        except _DAMAGED as error:
            raise ImageError(f"{source} is damaged, or no tar archive: {error}") from error


def _folder(source: Path, file: Path, report: Report) -> Made:
    if not any((source / name).is_dir() for name in ("bin", "usr", "etc")):
        raise BadInput(
            f"{source} is no root file system: it has no bin, usr or etc; of an OCI bundle give"
            " its folder rootfs"
        )
    # Links are kept as links, and devices and pipes never opened.
    argv = ["mksquashfs", str(source.resolve()), str(file), *_OPTIONS]
    run_child(argv, file, report)
    return Made(source=str(source.resolve()))


# Without times of its own, what has the same files is the same squashfs file, and kept once.
_OPTIONS = shlex.split(
    "-all-root -root-mode 755 -mkfs-time 0 -no-xattrs -no-progress -noappend -no-recovery"
    " -exit-on-error"
)


def _packed(source: Path, file: Path, report: Report, stack: ExitStack) -> Made:
    blobs = Blobs(source, stack, file.parent)
    tree = Tree()
    digest: str | None = None
    config = Settings()
    layers: tuple[str, ...] = ()
    if blobs.has("index.json") and blobs.has("oci-layout"):
        digest, config, layers = _of_layout(blobs)
    elif blobs.has("manifest.json"):
        digest, config, layers = _of_docker(blobs)
    elif blobs.archive is not None:
        tree.add(blobs.archive)
    else:
        raise BadInput(f"{source} has an oci-layout, but no index.json")
    if config.architecture not in (None, here()):
        raise ImageError(f"{source} is for {config.architecture}, and this machine is {here()}")
    ids = config.layers
    if len(ids) != len(layers):
        raise ImageError(f"{source} is damaged: {len(layers)} layers, and digests of {len(ids)}")
    for at, name in enumerate(layers):
        report(f"reading layer {at + 1} of {len(layers)}", 0, None)
        plain = blobs.plain(blobs.open(name))
        _compare(plain, ids[at], f"{source}: layer {name}")
        tree.add(stack.enter_context(tarfile.TarFile(fileobj=plain)))
    if digest is not None:
        _prepare(tree, config, str(source))
    _squash(tree, file, report)
    return Made(source=str(source.resolve()), digest=digest, architecture=config.architecture)


def _of_docker(blobs: Blobs) -> tuple[str, Settings, tuple[str, ...]]:
    images = saved(blobs.table("manifest.json"))
    if len(images) != 1:
        raise BadInput("the archive holds several images, or none; save the one wanted by itself")
    name, layers = images[0]
    # Docker's id of an image is the digest of its configuration.
    return digest_of(blobs.small(name)), settings_of(_read(blobs, name)), layers


def _of_layout(blobs: Blobs) -> tuple[str, Settings, tuple[str, ...]]:
    found, digest = _read(blobs, "index.json"), ""
    for _ in range(3):  # an index in the index: one image for several architectures
        if is_index(found):
            digest = _ours(found)
            found = _read(blobs, _blob(digest), digest)
    manifest = manifest_of(found)
    config = manifest.config.digest
    layers = tuple(_blob(layer.digest) for layer in manifest.layers)
    return digest, settings_of(_read(blobs, _blob(config), config)), layers


def _read(blobs: Blobs, name: str, digest: str | None = None) -> Table:
    found = blobs.table(name, digest)
    return found if isinstance(found, dict) else {}


def _ours(index: Table) -> str:
    """The digest of the one image for this machine."""
    found, there = fitting(index, here())
    if len(found) != 1:
        raise BadInput(
            f"the archive holds {len(found)} images for {here()} (architectures: {there}); one"
            " is wanted"
        )
    return found[0]


def _blob(digest: str) -> str:
    return f"blobs/{checked(digest).replace(':', '/')}"


def _compare(plain: IO[bytes], wanted: str, what: str) -> None:
    made = hashlib.sha256()
    while piece := plain.read(1 << 20):
        made.update(piece)
    plain.seek(0)
    if f"sha256:{made.hexdigest()}" != wanted:
        raise ImageError(f"{what} is damaged: its digest is not {wanted}")


def _prepare(tree: Tree, config: Settings, source: str) -> None:
    """Write what enroot's `start` reads of an image: variables, and how its command starts.

    So a job finds the same in it as if enroot had imported it (enroot's doc/image-format.md).
    """
    entrypoint = config.entrypoint
    command = config.command if entrypoint or config.command else ("/bin/sh",)
    folder = shlex.quote(config.workdir or "/")
    lines = (
        f"# slurmkit-source: {source!a}",
        f"mkdir -p {folder} 2>/dev/null",
        f"cd {folder} && unset OLDPWD || exit 1",
        "if [ -s /etc/rc.local ]; then . /etc/rc.local; fi",
        "if [ $# -gt 0 ]; then",
        f'    exec {shlex.join(entrypoint)} "$@"',
        "fi",
        f"exec {shlex.join([*entrypoint, *command])}",
    )
    tree.put_text("etc/environment", "".join(f"{each}\n" for each in config.variables))
    tree.put_text("etc/rc", "\n".join(lines) + "\n", mode=0o755)
    tree.put_text("etc/rc.local", _RC_LOCAL)
    tree.put_text("etc/fstab", "")
    for path in ("dev", "proc", "sys", "tmp"):
        tree.put_folder(path)


def _squash(tree: Tree, file: Path, report: Report) -> None:
    total, done = tree.size, 0
    # Compressed, it is rarely more than half; this only stops what can never fit.
    need_room(file.parent, total // 4)

    def feed(pipe: IO[bytes]) -> None:
        def count(size: int) -> None:
            nonlocal done
            done += size
            report(f"packing {gib(total)}", done, total)

        tree.write(pipe, count)

    run_child(
        ["mksquashfs", "-", str(file), "-tar", "-root-time", "0", *_OPTIONS], file, report, feed
    )
