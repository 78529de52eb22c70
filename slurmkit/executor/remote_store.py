"""The store of calls and results on a cluster that is reached over SSH."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import posixpath
import secrets
import shlex
import stat
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any, cast

from slurmkit.errors import BadInput, SlurmError, SshError
from slurmkit.executor import resultfiles
from slurmkit.executor.payload import send_own_code
from slurmkit.executor.store import check_not_replaceable, write_error
from slurmkit.slurm.ssh.authentication import ask_in_main_thread
from slurmkit.slurm.ssh.login import SshSlurmCommands, absolute

_SECONDS = 600.0  # timeout of one command
_TIDYING = 10.0  # timeout of the clean-up after Ctrl-C, in seconds


class RemoteStore:
    """A `Store` in a folder of the login node that the nodes share.

    Args:
        slurm: runs commands on the cluster.
        folder: path there, absolute or relative to the home; by default in ~/.local/state.

    Raises:
        BadInput: when others could replace the folder.
        SshError: when it cannot be made.
    """

    def __init__(self, slurm: SshSlurmCommands, folder: str | None) -> None:
        self._slurm = slurm
        self.machine = slurm.machine
        above = ".local/state/slurmkit/calls" if folder is None else f"{folder}/.slurmkit-calls"
        self.folder = self._make_folder(absolute(above, slurm.node))
        slurm.connection.ask = ask_in_main_thread(slurm.connection.ask)

    def modules(self) -> tuple[str, list[str]]:
        """Return where the modules are that were sent; the cluster has no others."""
        return "", [send_own_code(self), self._slurm.folder]

    def has(self, name: str) -> bool:
        return self.machine.exists(f"{self.folder}/{name}")

    def add(self, name: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        """Send a folder as one tar file with a checksum."""
        packed = _pack(files, folders)
        path = f"{self.folder}/{name}"
        aside = f"{posixpath.dirname(path)}/.{secrets.token_hex(8)}"
        here, there, piece = (shlex.quote(each) for each in (path, aside, f"{aside}.tar"))
        checksum = hashlib.sha256(packed).hexdigest()
        wrong = "{ echo 'the upload arrived damaged; try again' >&2; exit 1; }"
        lines = (
            f"[ $(sha256sum <{piece} | cut -c -64) = {checksum} ] || {wrong}",
            f"mkdir -- {there} || exit 1",
            f"tar -x --no-same-owner -f {piece} -C {there} && rm -- {piece} || exit 1",
            f"mv -T -- {there} {here} 2>/dev/null || {{ rm -rf -- {there}; [ -d {here} ]; }}",
        )
        try:
            self._do(["mkdir"], f"mkdir -p -- {shlex.quote(posixpath.dirname(aside))}")
            self.machine.files.call(partial(_put, path=f"{aside}.tar", data=packed))
            self._do(["tar"], *lines)
        except BaseException as error:
            # A run (it has folders) is used by nobody else; other folders are shared.
            left = (there, piece, *((here,) if folders else ()))
            self._tidy(f"rm -rf -- {' '.join(left)}")
            if isinstance(error, OSError):
                raise write_error(path, error) from error
            raise

    def _tidy(self, line: str) -> None:
        """Remove what is left of an upload; a broken connection is tried three times."""
        for pause in (0.0, 0.2, 1.0):  # a broken connection is noticed a moment later
            time.sleep(pause)
            with suppress(SlurmError):
                self._do(["rm"], line, seconds=_TIDYING)
                return

    def remove(self, path: str) -> None:
        try:
            status = self.machine.files.call(lambda sftp: sftp.lstat(path))
        except FileNotFoundError:
            return
        if status.st_uid != self._slurm.node.uid:
            raise BadInput(f"{path} is not yours, so it is not removed")
        self._do(["rm"], f"rm -rf -- {shlex.quote(path)}")

    def names(self, paths: Sequence[str], *, fresh: bool) -> Mapping[str, list[str] | OSError]:
        """List all folders in one command."""
        quoted = [shlex.quote(path) for path in paths]
        # A chmod makes the NFS client ask its server, and so see new files.
        lines = [f"chmod 700 -- {' '.join(quoted)} 2>/dev/null"] if fresh and quoted else []
        lines += [f"echo /; ls -A -- {path} 2>/dev/null || echo //" for path in quoted]
        listings: list[list[str]] = []
        for line in self._do(["ls"], *lines, ":").splitlines():
            if line == "/":  # our separator: no file can have this name
                listings.append([])
            else:
                listings[-1].append(line)
        each = zip(paths, listings, strict=True)
        return {path: _no_such_folder(path) if "//" in names else names for path, names in each}

    def read(self, path: str) -> bytes:
        user = self._slurm.node.uid
        return self.machine.files.call(partial(_read_private, path=path, user=user))

    def mark(self, path: str) -> None:
        self.machine.files.call(lambda sftp: sftp.open(path, "w").close())

    def _make_folder(self, path: str) -> str:
        """Make and check the folder; return its path without links."""
        at, node = shlex.quote(path), self._slurm.node
        output = self._do(["mkdir"], f"mkdir -p -- {at} && cd -- {at} && chmod 700 . && pwd -P")
        base = output.rstrip("\n")
        look = self.machine.files.stat
        if not stat.S_ISDIR(look(base).st_mode) or look(base).st_uid != node.uid:
            raise BadInput(f"{base} is not a folder of yours; choose another: folder=…")
        check_not_replaceable(PurePosixPath(base), look, node.uid)
        return base

    def _do(self, argv: Sequence[str], *lines: str, seconds: float = _SECONDS) -> str:
        return self._slurm.run_lines(argv, ["umask 077", *lines], timeout=seconds)


def _no_such_folder(path: str) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _pack(files: Mapping[str, bytes], folders: Sequence[str]) -> bytes:
    """Pack files and folders into a tar file."""
    packed, now = io.BytesIO(), int(time.time())  # some sites remove files with old dates
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted({*folders, *map(posixpath.dirname, files)} - {""}):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o700, now
            archive.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), 0o600, now
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def _put(sftp: Any, path: str, data: bytes) -> None:
    """Write a new remote file."""
    file = sftp.open(path, "wx")
    try:
        file.set_pipelined(True)
        file.write(data[:-1])
        file.set_pipelined(False)  # the next write reads the answers to all writes before
        file.write(data[-1:])
    except BaseException:
        sftp.close()  # a request may be half sent, so the channel is of no more use
        raise
    file.close()


def _read_private(sftp: Any, path: str, user: int) -> bytes:
    """Read a file that only we can access; nobody else can replace it in a folder of ours."""
    resultfiles.check_private(sftp.lstat(path), path, user)
    with sftp.open(path, "rb") as file:
        status = file.stat()
        resultfiles.check_private(status, path, user)
        file.prefetch(status.st_size)
        data = cast("bytes", file.read())
    if len(data) != status.st_size:
        raise SshError(f"{path} was only partly read; slurmkit tries again")
    return data
