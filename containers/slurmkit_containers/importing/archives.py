"""Images imported from files: archives of `docker save`, OCI layouts, and root file systems.

Format of a layout: the OCI image specification (image-layout.md). Contents are unpacked (gzip, xz
or zstd) and checked against their digests.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import lzma
import os
import platform
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from slurmkit.errors import BadInput, ImageError
from slurmkit.formats.memory import format_bytes
from slurmkit.spec.images import KERNEL_ARCHITECTURES
from slurmkit_containers.cache import ImageOrigin
from slurmkit_containers.importing.importer import check_room, run_child
from slurmkit_containers.importing.layers import LayerTree
from slurmkit_containers.importing.manifests import (
    ImageSettings,
    JsonObject,
    check_digest,
    digest_of,
    images_for,
    is_index,
    parse_docker_manifest,
    parse_image_settings,
    parse_json,
    parse_manifest,
)
from slurmkit_containers.trust import ReportProgress

_ARCHITECTURES = {kernel: ours for ours, kernel in KERNEL_ARCHITECTURES.items()}
# tarfile raises ValueError, OverflowError, KeyError and RecursionError for some damaged archives.
_DAMAGED = (
    *(tarfile.TarError, EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error),
    *(ValueError, OverflowError, KeyError, RecursionError),
)
_RC_LOCAL = "# read by /etc/rc when the container starts\n"
# With a fixed creation time, equal contents give equal files, which the cache keeps once.
_OPTIONS = shlex.split(
    "-all-root -root-mode 755 -mkfs-time 0 -no-xattrs -no-progress -noappend -no-recovery"
    " -exit-on-error"
)
# All files become root's, so a set-user-ID bit would give root's rights where an image is mounted.
_NO_SETUID = ("-action", "chmod(ug-s)@true")
# Fastest first. The default, gzip, takes 28 times the CPU time of zstd to save 8 % of the size.
_COMPRESSORS: tuple[tuple[str, ...], ...] = (
    ("-comp", "zstd", "-Xcompression-level", "1"),
    ("-comp", "lz4"),
)
_MOST_PROCESSORS = 4  # outside of a job: other people work on a login node, too
_MOST_RATIO = 100  # of unpacked to packed bytes; gzip can have 1032
_ANY_RATIO = 256 << 20  # bytes that may be unpacked whatever the ratio

_SMALL = 16 << 20  # bytes; no manifest or configuration is larger
MAGIC = 6
"""Number of bytes at the start of a file that identify its compression."""
_PIECE = 1 << 20
_SMALL_PIECE = 1 << 16
Unpack = Callable[[IO[bytes], "GrowingFile", Path], None]
"""Unpacks the first file into the second, a real file; error messages name the path.

Raises ImageError if nothing here reads the format or it unpacks to too much, OSError if the disk is
full, and EOFError (or an error of gzip or lzma) if the file is damaged.
"""


def local_architecture() -> str:
    """Return this machine's architecture, as Docker names it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def need_mksquashfs() -> None:
    """Check that mksquashfs is installed.

    Raises:
        ImageError: when it is not.
    """
    if shutil.which("mksquashfs") is None:
        raise ImageError("mksquashfs is not on the PATH; install squashfs-tools")


def import_path(source: Path, file: Path, report: ReportProgress) -> ImageOrigin:
    """Write the squashfs file of an image or root file system on disk.

    Args:
        source: a tar archive or folder.
        file: the file to write.
        report: called with the progress.

    Raises:
        BadInput: when `source` is neither an image nor a root file system.
        ImageError: when it is damaged, for another architecture, or cannot be written.
    """
    need_mksquashfs()
    if source.is_dir() and not (source / "oci-layout").exists():
        return _folder(source, file, report)
    with ExitStack() as stack:
        try:
            return _packed(source, file, report, stack)
        except _DAMAGED as error:
            raise ImageError(f"{source} is damaged, or is not a tar archive: {error}") from error


def _folder(source: Path, file: Path, report: ReportProgress) -> ImageOrigin:
    if not any((source / name).is_dir() for name in ("bin", "usr", "etc")):
        raise BadInput(
            f"{source} is not a root file system: it has no bin, usr or etc; for an OCI bundle,"
            " give its folder rootfs"
        )
    # mksquashfs keeps links as links, and never opens devices and pipes.
    argv = ["mksquashfs", str(source.resolve()), str(file), *_NO_SETUID, *_options(file.parent)]
    run_child(argv, file, report)
    return ImageOrigin(source=str(source.resolve()))


def _packed(source: Path, file: Path, report: ReportProgress, stack: ExitStack) -> ImageOrigin:
    blobs = ImageFiles(source, stack, file.parent)
    tree = LayerTree()
    digest: str | None = None
    config = ImageSettings()
    layers: tuple[str, ...] = ()
    if blobs.has("index.json") and blobs.has("oci-layout"):
        digest, config, layers = _of_layout(blobs)
    elif blobs.has("manifest.json"):
        digest, config, layers = _of_docker(blobs)
    elif blobs.archive is not None:
        tree.add(blobs.archive)
    else:
        raise BadInput(f"{source} has an oci-layout, but no index.json")
    if config.architecture not in (None, local_architecture()):
        raise ImageError(
            f"{source} is for {config.architecture}, but this machine is {local_architecture()}"
        )
    ids = config.layers
    if len(ids) != len(layers):
        raise ImageError(f"{source} is damaged: {len(layers)} layers, but {len(ids)} layer digests")
    for at, name in enumerate(layers):
        report(f"reading layer {at + 1} of {len(layers)}", 0, None)
        plain = blobs.plain(blobs.open(name))
        _compare(plain, ids[at], f"{source}: layer {name}")
        tree.add(stack.enter_context(tarfile.TarFile(fileobj=plain)))
    if digest is not None:
        _prepare(tree, config, str(source))
    check_growth(tree.size, blobs.packed, source)
    _squash(tree, file, report)
    return ImageOrigin(
        source=str(source.resolve()), digest=digest, architecture=config.architecture
    )


def _of_docker(blobs: ImageFiles) -> tuple[str, ImageSettings, tuple[str, ...]]:
    images = parse_docker_manifest(blobs.table("manifest.json"))
    if len(images) != 1:
        raise BadInput(
            "the archive holds several images, or none; save only one: docker save -o FILE IMAGE"
        )
    name, layers = images[0]
    # Docker's id of an image is the digest of its configuration.
    return digest_of(blobs.small(name)), parse_image_settings(_read(blobs, name)), layers


def _of_layout(blobs: ImageFiles) -> tuple[str, ImageSettings, tuple[str, ...]]:
    table, digest = _read(blobs, "index.json"), ""
    for _ in range(3):  # an index may contain an index: one image for several architectures
        if is_index(table):
            digest = _digest_for_this_machine(table)
            table = _read(blobs, _blob(digest), digest)
    manifest = parse_manifest(table)
    config = manifest.config.digest
    layers = tuple(_blob(layer.digest) for layer in manifest.layers)
    return digest, parse_image_settings(_read(blobs, _blob(config), config)), layers


def _read(blobs: ImageFiles, name: str, digest: str | None = None) -> JsonObject:
    table = blobs.table(name, digest)
    return table if isinstance(table, dict) else {}


def _digest_for_this_machine(index: JsonObject) -> str:
    """Return the digest of the only image for this machine."""
    digests, available = images_for(index, local_architecture())
    if len(digests) != 1:
        raise BadInput(
            f"the archive holds {len(digests)} images for {local_architecture()}"
            f" (architectures: {available}); it must hold exactly one"
        )
    return digests[0]


def _blob(digest: str) -> str:
    return f"blobs/{check_digest(digest).replace(':', '/')}"


def _compare(plain: IO[bytes], wanted: str, what: str) -> None:
    digest = hashlib.sha256()
    while piece := plain.read(1 << 20):
        digest.update(piece)
    plain.seek(0)
    if f"sha256:{digest.hexdigest()}" != wanted:
        raise ImageError(f"{what} is damaged: its digest is not {wanted}")


def _prepare(tree: LayerTree, config: ImageSettings, source: str) -> None:
    """Add the files that `enroot start` reads: variables, and how the command is started.

    Then the image is the same as if enroot had imported it (enroot's doc/image-format.md).
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


def _squash(tree: LayerTree, file: Path, report: ReportProgress) -> None:
    total, done = tree.size, 0
    # A squashfs file is about half the size. A quarter refuses only what can never fit.
    check_room(file.parent, total // 4)

    def feed(pipe: IO[bytes]) -> None:
        def count(size: int) -> None:
            nonlocal done
            done += size
            report(f"packing {format_bytes(total)}", done, total)

        tree.write(pipe, count)

    argv = ["mksquashfs", "-", str(file), "-tar", "-root-time", "0", *_options(file.parent)]
    run_child(argv, file, report, feed)


def _options(folder: Path) -> tuple[str, ...]:
    """Return the options of mksquashfs, with the fastest compression that it has.

    Its help lists the compressors in another way in each release. So an empty image is packed.

    Args:
        folder: a folder to write to.
    """
    known = (compressor for compressor in _COMPRESSORS if _packs(compressor, folder / "probe"))
    return (*_OPTIONS, "-processors", str(_processors()), *next(known, ()))


def _packs(compressor: tuple[str, ...], probe: Path) -> bool:
    argv = ["mksquashfs", "-", str(probe), "-tar", *_OPTIONS, *compressor]
    done = subprocess.run(argv, input=bytes(10240), capture_output=True, check=False)
    probe.unlink(missing_ok=True)
    return done.returncode == 0


def _processors() -> int:
    """Return how many processors to use: those of a job, else a few; fewer if enroot uses fewer."""
    here = len(os.sched_getaffinity(0))
    most = here if "SLURM_JOB_ID" in os.environ else _MOST_PROCESSORS
    given = os.environ.get("ENROOT_MAX_PROCESSORS", "")
    return min(here, int(given) if given.isdecimal() and int(given) else most)


def check_growth(unpacked: int, packed: int, source: Path) -> None:
    """Check that an archive does not unpack to far more than a real image does.

    Raises:
        ImageError: for more than 256 MiB that are also more than 100 times the packed size.
    """
    if unpacked > max(_ANY_RATIO, _MOST_RATIO * packed):
        raise ImageError(
            f"{source} is not imported: its {format_bytes(packed)} unpack to more than"
            f" {_MOST_RATIO} times as much ({format_bytes(unpacked)}), as no real image does; if"
            " this one is right, unpack it yourself and import its folder:"
            " slurmkit image import ./ROOTFS"
        )


class ImageFiles:
    """The files of an archive or folder, by name.

    Args:
        source: the archive or folder.
        stack: closes all files that are opened.
        scratch: folder for uncompressed temporary files.

    Attributes:
        archive: the open archive; None for a folder.
        packed: bytes of the files that were read.
    """

    def __init__(self, source: Path, stack: ExitStack, scratch: Path) -> None:
        self._source, self._stack, self._scratch = source, stack, scratch
        self.packed = self._unpacked = 0
        self.archive: tarfile.TarFile | None = None
        self._members: dict[str, tarfile.TarInfo] = {}
        if not source.is_dir():
            plain = self.plain(stack.enter_context(source.open("rb")))
            self.archive = stack.enter_context(tarfile.TarFile(fileobj=plain))
            self._members = {m.name.removeprefix("./"): m for m in self.archive}

    def open(self, name: str) -> IO[bytes]:
        """Open a file.

        Raises:
            ImageError: when there is no file of that name.
        """
        found: IO[bytes] | None = None
        if self.archive is not None and name in self._members:
            member = self._meant(name)
            found = None if member is None else self.archive.extractfile(member)
        elif self.archive is None and _is_below(self._source, name):
            found = (self._source / name).open("rb")
        if found is None:
            raise ImageError(f"{self._source} is damaged: it has no file {name!r}")
        return self._stack.enter_context(found)

    def _meant(self, name: str) -> tarfile.TarInfo | None:
        """Return a file; follow one link, since layers in older Docker archives are links."""
        member = self._members[name]
        if not member.issym():
            return member
        base = name.rpartition("/")[0].split("/") if "/" in name else []
        for part in member.linkname.split("/"):
            base = base[:-1] if part == ".." else [*base, part]
        found = self._members.get("/".join(base))
        return found if found is not None and found.isreg() else None

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        if self.archive is None:
            return _is_below(self._source, name)
        return name in self._members

    def small(self, name: str) -> bytes:
        """Return the bytes of a manifest or configuration."""
        return self.open(name).read(_SMALL)

    def table(self, name: str, digest: str | None = None) -> Any:
        """Parse a JSON file, after comparing it with its digest.

        Raises:
            ImageError: when the digest differs or the file is not JSON.
        """
        data = self.small(name)
        if digest is not None and digest_of(data) != digest:
            raise ImageError(f"{self._source} is damaged: the digest of {name} is not {digest}")
        try:
            return parse_json(data)
        except ValueError as error:
            raise ImageError(f"{self._source} is damaged: {name} is not JSON: {error}") from error

    def plain(self, file: IO[bytes]) -> IO[bytes]:
        """Return the file uncompressed; a compressed one is unpacked to a temporary file."""
        head = file.read(MAGIC)
        self.packed += file.seek(0, os.SEEK_END)
        file.seek(0)
        if (unpack := unpacker(head)) is None:
            return file
        nameless = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - see next
        bare = cast("IO[bytes]", self._stack.enter_context(nameless))
        unpack(file, GrowingFile(bare, self._check_size), self._source)
        self._unpacked += bare.seek(0, os.SEEK_END)
        bare.seek(0)
        return bare

    def _check_size(self, size: int) -> None:
        """Check the size of a file that is being unpacked, together with those before.

        What is then free must hold at least a part of the squashfs file.
        """
        check_growth(self._unpacked + size, self.packed, self._source)
        check_room(self._scratch, size // 4)


class GrowingFile:
    """A file that is checked before it grows.

    Args:
        file: a real file, open for writing.
        check: raises if the file must not have that many bytes.
    """

    def __init__(self, file: IO[bytes], check: Callable[[int], None]) -> None:
        self._file, self._check = file, check

    def write(self, piece: bytes) -> int:
        """Write a piece, if the file may have it."""
        self._check(self._file.tell() + len(piece))
        return self._file.write(piece)

    def fileno(self) -> int:
        """Return its descriptor, for another process that writes to it."""
        return self._file.fileno()

    def check_size(self) -> None:
        """Check what another process has written so far."""
        self._check(os.fstat(self._file.fileno()).st_size)


def _is_below(folder: Path, name: str) -> bool:
    path = (folder / name).resolve()
    return path.is_relative_to(folder.resolve()) and path.is_file()


def unpacker(head: bytes) -> Unpack | None:
    """Return the function that unpacks a file starting with these `MAGIC` bytes; None if plain."""
    return next((way for magic, way in _WAYS if head.startswith(magic)), None)


def _gzip(file: IO[bytes], out: GrowingFile, source: Path) -> None:
    del source
    with gzip.open(file) as plain:
        shutil.copyfileobj(plain, out, _PIECE)


def _xz(file: IO[bytes], out: GrowingFile, source: Path) -> None:
    del source
    with lzma.open(file) as plain:
        shutil.copyfileobj(plain, out, _PIECE)


def _zstd(file: IO[bytes], out: GrowingFile, source: Path) -> None:
    try:
        python: Any = import_module("compression.zstd")
    except ImportError:
        return _zstd_program(file, out, source)
    try:
        with python.open(file) as plain:
            shutil.copyfileobj(plain, out, _PIECE)
    except python.ZstdError as error:
        raise EOFError(f"zstd: {error}") from error


def _zstd_program(file: IO[bytes], out: GrowingFile, source: Path) -> None:
    program = shutil.which("zstd")
    if program is None:
        raise ImageError(
            f"{source} has layers that are compressed with zstd, and this machine cannot read them:"
            " install zstd, or use Python 3.14 or later; or convert the image to gzip: skopeo"
            " copy --dest-compress-format gzip --dest-force-compress-format"
        )
    with tempfile.TemporaryFile() as errors:
        argv = [program, "--decompress", "--stdout", "--quiet", "--no-progress"]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out.fileno(), stderr=errors)
        try:
            with suppress(BrokenPipeError), cast("IO[bytes]", child.stdin) as pipe:
                while piece := file.read(_SMALL_PIECE):
                    pipe.write(piece)
                    out.check_size()
            code = child.wait()
            out.check_size()
        finally:
            child.kill()
            child.wait()
        if code:
            errors.seek(0)
            _failed(errors.read(4096).decode("utf-8", "replace").strip())


def _failed(words: str) -> None:
    full = os.strerror(errno.ENOSPC)
    if full.lower() in words.lower():
        raise OSError(errno.ENOSPC, full)
    raise EOFError(words or "zstd failed")


_WAYS: tuple[tuple[bytes, Unpack], ...] = (
    (b"\x1f\x8b", _gzip),
    (b"\xfd7zXZ\0", _xz),
    (b"\x28\xb5\x2f\xfd", _zstd),
)
