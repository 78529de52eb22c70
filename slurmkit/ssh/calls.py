"""Calls and results on a cluster reached over SSH; see `slurmkit.executor.store.Store`."""

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
from slurmkit.executor.folders import check_folder, unwritten
from slurmkit.executor.owncode import send_own_code
from slurmkit.ssh.asking import in_main_thread
from slurmkit.ssh.border import SshSlurm, absolute

_SECONDS = 600.0  # for what is sent together
_TIDYING = 10.0  # seconds, with somebody waiting who pressed Ctrl-C


class There:
    """A folder on the login node, which the nodes share.

    Args:
        slurm: the border to the cluster.
        folder: path there, from the home where it is relative; by default in ~/.local/state.

    Raises:
        BadInput: when others could put something else in its place.
        SshError: when it cannot be made.
    """

    def __init__(self, slurm: SshSlurm, folder: str | None) -> None:
        self._slurm = slurm
        self.machine = slurm.machine
        above = ".local/state/slurmkit/calls" if folder is None else f"{folder}/.slurmkit-calls"
        self.folder = self._made(absolute(above, slurm.node))
        slurm.connection.ask = in_main_thread(slurm.connection.ask)

    def modules(self) -> tuple[str, list[str]]:
        """See `Store.modules`: nothing of this machine's is there but what is sent."""
        return "", [send_own_code(self), self._slurm.folder]

    def has(self, name: str) -> bool:
        """See `Store.has`."""
        return self.machine.exists(f"{self.folder}/{name}")

    def add(self, name: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        """See `Store.add`: all in one piece, which is compared with what was sent."""
        packed = _packed(files, folders)
        path = f"{self.folder}/{name}"
        aside = f"{posixpath.dirname(path)}/.{secrets.token_hex(8)}"
        here, there, piece = (shlex.quote(each) for each in (path, aside, f"{aside}.tar"))
        checksum = hashlib.sha256(packed).hexdigest()
        wrong = "{ echo 'it arrived otherwise than it was sent; try again' >&2; exit 1; }"
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
            left = (there, piece, *((here,) if folders else ()))  # a run is nobody else's
            with suppress(SlurmError):
                self._do(["rm"], f"rm -rf -- {' '.join(left)}", seconds=_TIDYING)
            if isinstance(error, OSError):
                raise unwritten(path, error) from error
            raise

    def remove(self, path: str) -> None:
        """See `Store.remove`."""
        try:
            found = self.machine.files.call(lambda sftp: sftp.lstat(path))
        except FileNotFoundError:
            return
        if found.st_uid != self._slurm.node.uid:
            raise BadInput(f"{path} is not yours, and is left as it is")
        self._do(["rm"], f"rm -rf -- {shlex.quote(path)}")

    def names(self, paths: Sequence[str], *, anew: bool) -> Mapping[str, list[str] | OSError]:
        """See `Store.names`: one question for all."""
        quoted = [shlex.quote(path) for path in paths]
        # A client of NFS asks its server, and sees what is new.
        lines = [f"chmod 700 -- {' '.join(quoted)} 2>/dev/null"] if anew and quoted else []
        lines += [f"echo /; ls -A -- {path} 2>/dev/null || echo //" for path in quoted]
        found: list[list[str]] = []
        for line in self._do(["ls"], *lines, ":").splitlines():
            if line == "/":  # which no name has
                found.append([])
            else:
                found[-1].append(line)
        each = zip(paths, found, strict=True)
        return {path: _gone(path) if "//" in names else names for path, names in each}

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        return self.machine.files.call(partial(_private, path=path, user=self._slurm.node.uid))

    def mark(self, path: str) -> None:
        """See `Store.mark`."""
        self.machine.files.call(lambda sftp: sftp.open(path, "w").close())

    def _made(self, path: str) -> str:
        """Make the folder; its path without links, which is what is checked."""
        at, node = shlex.quote(path), self._slurm.node
        said = self._do(["mkdir"], f"mkdir -p -- {at} && cd -- {at} && chmod 700 . && pwd -P")
        base = said.rstrip("\n")
        look = self.machine.files.stat
        if not stat.S_ISDIR(look(base).st_mode) or look(base).st_uid != node.uid:
            raise BadInput(f"{base} is not a folder of yours; name another: folder=…")
        check_folder(PurePosixPath(base), look, node.uid)
        return base

    def _do(self, argv: Sequence[str], *lines: str, seconds: float = _SECONDS) -> str:
        return self._slurm.told(argv, ["umask 077", *lines], timeout=seconds)


def _gone(path: str) -> OSError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _packed(files: Mapping[str, bytes], folders: Sequence[str]) -> bytes:
    packed, now = io.BytesIO(), int(time.time())  # some sites remove what is old
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
    file = sftp.open(path, "wx")
    try:
        file.set_pipelined(True)
        file.write(data[:-1])
        file.set_pipelined(False)  # now the answers to all that was written are read
        file.write(data[-1:])
    except BaseException:
        sftp.close()  # with half a request on its way nothing more can be said
        raise
    file.close()


def _private(sftp: Any, path: str, user: int) -> bytes:
    """A file that is ours alone; in a folder of ours nobody else puts another in its place."""
    resultfiles.check_private(sftp.lstat(path), path, user)
    with sftp.open(path, "rb") as file:
        found = file.stat()
        resultfiles.check_private(found, path, user)
        file.prefetch(found.st_size)
        data = cast("bytes", file.read())
    if len(data) != found.st_size:
        raise SshError(f"{path} was not read whole; it is tried again")
    return data
