"""Copy files to the login node: unchanged files are skipped, and each copy is verified."""

from __future__ import annotations

import hashlib
import os
import posixpath
import secrets
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from slurmkit.errors import SlurmError, SshError
from slurmkit.slurm.ssh.login import SshSlurmCommands, absolute

_LEFT_OUT = (".git", "__pycache__")
_ASKED = 500  # files in one sha256sum


class SendOptions(msgspec.Struct, frozen=True):
    """The target of a copy, and the files left out.

    Attributes:
        target: folder on the login node; if empty, the one in the configuration.
        exclude: patterns of names that are left out.
    """

    target: str = ""
    exclude: tuple[str, ...] = ()


class SendResult(msgspec.Struct, frozen=True):
    """The result of a copy.

    Attributes:
        folder: absolute path of the folder with the files.
        sent: number of files sent.
        same: number of files that were there already.
        size: bytes sent.
    """

    folder: str
    sent: int
    same: int
    size: int


def send_files(slurm: SshSlurmCommands, sources: Sequence[Path], choice: SendOptions) -> SendResult:
    """Send files and folders.

    Raises:
        SshError: when a file cannot be written, or its copy differs.
        OSError: when a file cannot be read.
    """
    folder = posixpath.normpath(posixpath.join(slurm.folder, expand_home(slurm, choice.target)))
    files = {name: path for source in sources for name, path in _files(source, choice)}
    here = {name: _checksum(path) for name, path in files.items()}
    there = _checksums(slurm, folder, files)
    wanted = [name for name in files if there.get(name) != here[name]]
    _make_folders(slurm, folder, wanted)
    for at in range(0, len(wanted), _ASKED):
        _put(slurm, folder, {name: (files[name], here[name]) for name in wanted[at : at + _ASKED]})
    size = sum(files[name].stat().st_size for name in wanted)
    return SendResult(folder, len(wanted), len(files) - len(wanted), size)


def expand_home(slurm: SshSlurmCommands, path: str) -> str:
    """Make a path that begins with ~ absolute; leave any other as it is."""
    return absolute(path, slurm.node) if path.startswith("~") else path


def _files(source: Path, choice: SendOptions) -> Iterator[tuple[str, Path]]:
    """Yield regular files below a source with their relative names; links are followed."""
    source = Path(os.path.abspath(source))  # noqa: PTH100 - `.` has no name of its own
    if source.is_file():
        yield source.name, source
        return
    for above, folders, names in os.walk(source):
        folders[:] = sorted(each for each in folders if not _is_left_out(each, choice))
        for name in sorted(names):
            path = Path(above, name)
            if not _is_left_out(name, choice) and path.is_file():
                yield path.relative_to(source.parent).as_posix(), path


def _is_left_out(name: str, choice: SendOptions) -> bool:
    return any(fnmatch(name, pattern) for pattern in (*_LEFT_OUT, *choice.exclude))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(slurm: SshSlurmCommands, folder: str, names: Iterable[str]) -> dict[str, str]:
    """Read the checksums of files that exist there.

    Names that sha256sum would print escaped are left out.
    """
    plain = [name for name in names if "\n" not in name and "\\" not in name]
    checksums: dict[str, str] = {}
    for at in range(0, len(plain), _ASKED):
        words = _relative(plain[at : at + _ASKED])
        ask = f"cd {shlex.quote(folder)} 2>/dev/null && sha256sum -- {words} 2>/dev/null || :"
        for line in slurm.run_lines(["sha256sum"], [ask], timeout=600).splitlines():
            checksum, _, name = line.partition("  ./")
            checksums[name] = checksum
    return checksums


def _make_folders(slurm: SshSlurmCommands, folder: str, names: Iterable[str]) -> None:
    wanted = sorted({posixpath.dirname(posixpath.join(folder, name)) for name in names})
    if wanted:
        made = f"mkdir -p -- {' '.join(map(shlex.quote, wanted))}"
        slurm.run_lines(["mkdir"], [made], timeout=60)


def _put(slurm: SshSlurmCommands, folder: str, batch: Mapping[str, tuple[Path, str]]) -> None:
    """Write files under temporary names, verify them all, then rename them into place.

    So nobody ever sees half a file.

    Raises:
        SshError: when a file cannot be written, or its copy differs.
    """
    end, call = f".{secrets.token_hex(4)}.part", slurm.machine.files.call
    aside_of = {name: name + end for name in batch}
    place = folder
    try:
        _make_private(slurm, folder, aside_of.values())
        for name, (path, _) in batch.items():
            place = posixpath.join(folder, name)
            call(partial(_write, path=path, aside=place + end))
        copies = _checksums(slurm, folder, aside_of.values())
        for name, (_, checksum) in batch.items():
            if copies.get(name + end, checksum) != checksum:
                raise SshError(f"{folder}/{name} arrived damaged: its checksum differs; try again")
        for name in batch:
            place = posixpath.join(folder, name)
            call(partial(_rename, aside=place + end, path=place))
            del aside_of[name]
    except OSError as error:
        raise SshError(f"cannot write {place} on the login node: {error.strerror}") from error
    finally:
        with suppress(SlurmError):
            _remove(slurm, folder, aside_of.values())


def _make_private(slurm: SshSlurmCommands, folder: str, names: Iterable[str]) -> None:
    """Make empty files that nobody else can open; SFTP would make them readable for all.

    A failure here is not reported: the write that follows fails in the same way, and names it.
    """
    make = f"cd {shlex.quote(folder)} && umask 077 && touch -- {_relative(names)}"
    slurm.run_lines(["touch"], [f"({make}) 2>/dev/null || :"], timeout=60)


def _write(sftp: Any, path: Path, aside: str) -> None:
    """Write a file that is there already; it gets the mode of the original once it is whole."""
    sftp.put(str(path), aside, confirm=True)
    sftp.chmod(aside, stat.S_IMODE(path.stat().st_mode))


def _rename(sftp: Any, aside: str, path: str) -> None:
    sftp.posix_rename(aside, path)


def _remove(slurm: SshSlurmCommands, folder: str, names: Iterable[str]) -> None:
    if words := _relative(names):
        remove = f"cd {shlex.quote(folder)} && rm -f -- {words}"
        slurm.run_lines(["rm"], [f"({remove}) 2>/dev/null || :"], timeout=60)


def _relative(names: Iterable[str]) -> str:
    """Quote names as words of sh, so that none is taken for an option."""
    return " ".join(shlex.quote(f"./{name}") for name in names)
