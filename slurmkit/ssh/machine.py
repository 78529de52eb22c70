"""The login node as a machine: its people, and its files over SFTP; see `slurmkit.machine`."""

from __future__ import annotations

import errno
import io
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import paramiko

from slurmkit.errors import ConnectionLost, SlurmError, SshError
from slurmkit.machine import Line, refuse_others
from slurmkit.ssh.shells import lost

if TYPE_CHECKING:
    from slurmkit.ssh.border import SshSlurm

_PIECE = 32768  # bytes of one request
_AT_ONCE = 16
_SECONDS = 60.0  # without a byte of an answer
ResultT = TypeVar("ResultT")


class LoginMachine:
    """See `slurmkit.machine.Machine`."""

    is_here = False

    def __init__(self, slurm: SshSlurm) -> None:
        self._slurm = slurm
        self.files = Files(slurm)
        self._logins: dict[int, str | None] = {}

    @property
    def name(self) -> str:
        """See `Machine.name`."""
        return self._slurm.node.name.partition(".")[0]

    @property
    def user(self) -> str:
        """See `Machine.user`."""
        return self._slurm.node.user

    @property
    def folder(self) -> str:
        """See `Machine.folder`."""
        return self._slurm.folder

    def groups(self, user: str) -> tuple[str, ...]:
        """See `Machine.groups`."""
        if user == self.user:
            return self._slurm.node.groups
        try:
            return tuple(self._slurm.run(["id", "-Gn", "--", user]).split())
        except SlurmError:
            return ()

    def uid(self, user: str) -> int | None:
        """See `Machine.uid`."""
        return self._slurm.node.uid if user == self.user else None

    def login(self, uid: int) -> str | None:
        """See `Machine.login`."""
        if uid not in self._logins:
            try:
                self._logins[uid] = self._slurm.run(["id", "-un", "--", str(uid)]).strip()
            except SlurmError:
                self._logins[uid] = None
        return self._logins[uid]

    def exists(self, path: str) -> bool:
        """See `Machine.exists`."""
        try:
            self.files.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def open(self, path: str) -> BinaryIO:
        """See `Machine.open`."""
        refuse_others(self.files.stat(path).st_mode or 0, path)
        raw = _RemoteFile(self.files, self.files.call(lambda sftp: sftp.open(path, "rb")))
        return cast("BinaryIO", io.BufferedReader(raw, _PIECE * _AT_ONCE))

    def dial(self, node: str, port: int) -> Line:
        """See `Machine.dial`."""
        return cast("Line", self._slurm.connection.dial(node, port))


class Files:
    """One SFTP session of the kept connection, used by one thread at a time."""

    def __init__(self, slurm: SshSlurm) -> None:
        self._slurm = slurm
        self._lock = threading.RLock()
        self._sftp: Any = None

    def call(self, act: Callable[[Any], ResultT]) -> ResultT:
        """Do something with the session; what broke the connection is not tried again.

        Raises:
            OSError: as of a local file.
            SshError: when there is no connection; `ConnectionLost` when it breaks.
        """
        with self._lock:
            try:
                return act(self._session())
            except (paramiko.SSHException, EOFError, TimeoutError) as error:
                self._end()
                raise lost(error) from error
            except paramiko.SFTPError as error:
                self._end()
                raise SshError(f"the login node's SFTP cannot be used: {error}") from error
            except OSError as error:
                if str(error) == "Socket is closed":
                    self._end()
                    raise lost(error) from error
                raise _named(error) from error
            except BaseException:  # an answer may be on its way that nobody waits for
                self._end()
                raise

    def stat(self, path: str) -> Any:
        """As os.stat; tried again once over a new connection."""
        try:
            return self.call(lambda sftp: sftp.stat(path))
        except ConnectionLost:
            return self.call(lambda sftp: sftp.stat(path))

    def _end(self) -> None:
        """The next use begins anew."""
        sftp, self._sftp = self._sftp, None
        if sftp is not None:
            with suppress(Exception):
                sftp.close()

    def _session(self) -> Any:
        channel = self._sftp and self._sftp.get_channel()
        if channel is None or channel.closed or not channel.get_transport().is_active():
            channel = self._slurm.connection.opened()
            channel.settimeout(_SECONDS)
            channel.invoke_subsystem("sftp")
            self._sftp = paramiko.SFTPClient(channel)
        return self._sftp


def _named(error: OSError) -> OSError:
    """SFTP has few numbers for what is wrong; the rest is words."""
    number = error.errno or errno.EIO
    return OSError(number, error.strerror or str(error) or "failed", error.filename)


class _RemoteFile(io.RawIOBase):
    """A file of the login node; long reads are asked for in pieces together."""

    def __init__(self, files: Files, file: Any) -> None:
        self._files = files
        self._file = file
        self._at = 0
        self._size = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            self._look()
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._at + _PIECE > self._size:
            self._look()
        length = max(1, min(len(view), self._size - self._at))
        at = range(self._at, self._at + length, _PIECE)
        asks = [(each, min(_PIECE, self._at + length - each)) for each in at]
        data = self._files.call(lambda _: self._read(asks))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read(self, asks: list[tuple[int, int]]) -> bytes:
        if len(asks) > 1:
            return b"".join(self._file.readv(asks))
        self._file.seek(asks[0][0])
        return cast("bytes", self._file.read(asks[0][1]))

    def _look(self) -> None:
        self._size = self._files.call(lambda _: self._file.stat().st_size) or 0

    def close(self) -> None:
        if not self.closed:
            super().close()
            with suppress(OSError, SshError):
                self._files.call(lambda _: self._file.close())


def is_folder(found: Any) -> bool:
    """Whether what `Files.stat` gave is of a folder."""
    return stat.S_ISDIR(found.st_mode or 0)
