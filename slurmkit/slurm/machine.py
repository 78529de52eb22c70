"""The machine that Slurm's commands run on: its users, its files, its network."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from slurmkit.errors import BadInput

if TYPE_CHECKING:
    from slurmkit.slurm.commands import SlurmCommands


class PortConnection(Protocol):
    """A connection to a port, with the methods of a socket."""

    def recv(self, size: int, /) -> bytes:
        """Receive at most `size` bytes; none at the end."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Send all the bytes."""
        ...

    def shutdown(self, how: int, /) -> None:
        """Tell the other side that nothing more will be sent."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Machine(Protocol):
    """This machine, or a login node over SSH."""

    @property
    def is_here(self) -> bool:
        """Whether this is the local machine."""
        ...

    @property
    def name(self) -> str:
        """Host name, without a domain."""
        ...

    @property
    def user(self) -> str:
        """Login name of the user there.

        Raises:
            BadInput: when the machine does not know the user.
        """
        ...

    @property
    def folder(self) -> str:
        """The folder in which a job starts that names none."""
        ...

    def groups(self, user: str) -> tuple[str, ...]:
        """Return all groups of a user; none for an unknown user."""
        ...

    def uid(self, user: str) -> int | None:
        """Return the user id of a login name; None for an unknown one."""
        ...

    def login(self, uid: int) -> str | None:
        """Return the login name of a user id; None for an unknown one."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file.

        Raises:
            OSError: when the user may not look there.
        """
        ...

    def modified(self, path: str) -> float:
        """Return when a file was last written, in epoch seconds.

        Raises:
            OSError: when there is no such file, or the user may not look there.
        """
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a regular file for reading; opening a pipe could block, and a device could act.

        Raises:
            OSError: when it is no regular file or cannot be opened.
        """
        ...

    def dial(self, node: str, port: int) -> PortConnection:
        """Connect to a port of a node.

        Raises:
            OSError: when nothing answers.
        """
        ...


class LocalMachine:
    """This machine; see `Machine`."""

    is_here = True

    @property
    def name(self) -> str:
        return os.uname().nodename.partition(".")[0]

    @property
    def user(self) -> str:
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            unnamed = f"user id {os.getuid()} has no login name on this machine; give a login name"
            raise BadInput(unnamed) from None

    @property
    def folder(self) -> str:
        """The current directory.

        Raises:
            BadInput: when the current directory is gone or not accessible.
        """
        try:
            return str(Path.cwd())
        except OSError as error:
            raise BadInput(
                f"the current directory cannot be used ({error.strerror}); cd to another one"
            ) from error

    def groups(self, user: str) -> tuple[str, ...]:
        try:
            ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
        except KeyError:
            return ()
        return tuple(name for gid in ids if (name := _group_name(gid)))

    def uid(self, user: str) -> int | None:
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError:
            return None

    def login(self, uid: int) -> str | None:
        try:
            return pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return None

    def exists(self, path: str) -> bool:
        try:
            Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def modified(self, path: str) -> float:
        return Path(path).stat().st_mtime

    def open(self, path: str) -> BinaryIO:
        return open_regular_file(Path(path))

    def dial(self, node: str, port: int) -> PortConnection:
        import socket  # noqa: PLC0415 - few need it

        line = socket.create_connection((node, port), timeout=3)
        line.settimeout(None)
        return line


LOCAL_MACHINE = LocalMachine()


def machine_of(slurm: SlurmCommands) -> Machine:
    """Return the machine that runs the commands of a `SlurmCommands`: a login node, or this one."""
    return cast("Machine", getattr(slurm, "machine", LOCAL_MACHINE))


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file; a pipe would wait for its writer, and a device may act when opened.

    Raises:
        OSError: when it is no regular file or cannot be opened.
    """
    require_regular_file(path.stat().st_mode, str(path))
    # The owner of the directory may have put a pipe there since.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        require_regular_file(os.fstat(number).st_mode, str(path))
    except OSError:
        os.close(number)
        raise
    return os.fdopen(number, "rb")


def require_regular_file(mode: int, path: str) -> None:
    """Refuse a path that is no regular file.

    Raises:
        OSError: saying what it is instead.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file, so no output was saved there", path)


def _group_name(gid: int) -> str | None:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None
