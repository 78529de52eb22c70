"""The machine that Slurm's commands run on: who works there, and the files it sees."""

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
    from slurmkit.slurm import Slurm
    from slurmkit.ssh.border import SshSlurm


class Line(Protocol):
    """A connection to a port, as a socket is."""

    def recv(self, size: int, /) -> bytes:
        """What came next, nothing at the end."""
        ...

    def sendall(self, data: bytes, /) -> None:
        """Hand it all on."""
        ...

    def shutdown(self, how: int, /) -> None:
        """Say that nothing more will be sent."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Machine(Protocol):
    """This machine, or a login node over SSH."""

    @property
    def is_here(self) -> bool:
        """Whether it is this one."""
        ...

    @property
    def name(self) -> str:
        """Its own name, without a domain."""
        ...

    @property
    def user(self) -> str:
        """Login name of who works there.

        Raises:
            BadInput: when the machine does not know the user.
        """
        ...

    @property
    def folder(self) -> str:
        """Where jobs start that name no folder."""
        ...

    def groups(self, user: str) -> tuple[str, ...]:
        """All groups of somebody, none of who is not known."""
        ...

    def uid(self, user: str) -> int | None:
        """Number of somebody, None of who is not known."""
        ...

    def login(self, uid: int) -> str | None:
        """Login name of a number, None of one that is not known."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file.

        Raises:
            OSError: when we may not even look.
        """
        ...

    def open(self, path: str) -> BinaryIO:
        """Open a file that is one to read it: a pipe would wait, and a device may act.

        Raises:
            OSError: when it is none, or cannot be opened.
        """
        ...

    def dial(self, node: str, port: int) -> Line:
        """Connect to a port of a node.

        Raises:
            OSError: when nothing answers.
        """
        ...


class Here:
    """This machine; see `Machine`."""

    is_here = True

    @property
    def name(self) -> str:
        """See `Machine.name`."""
        return os.uname().nodename.partition(".")[0]

    @property
    def user(self) -> str:
        """See `Machine.user`."""
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            unnamed = f"this machine has no name for user id {os.getuid()}; name a user"
            raise BadInput(unnamed) from None

    @property
    def folder(self) -> str:
        """See `Machine.folder`.

        Raises:
            BadInput: when it is gone or closed to us.
        """
        try:
            return str(Path.cwd())
        except OSError as error:
            raise BadInput(
                f"the current directory cannot be used ({error.strerror}); cd to another one"
            ) from error

    def groups(self, user: str) -> tuple[str, ...]:
        """See `Machine.groups`."""
        try:
            ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
        except KeyError:
            return ()
        return tuple(name for gid in ids if (name := _group_name(gid)))

    def uid(self, user: str) -> int | None:
        """See `Machine.uid`."""
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError:
            return None

    def login(self, uid: int) -> str | None:
        """See `Machine.login`."""
        try:
            return pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return None

    def exists(self, path: str) -> bool:
        """See `Machine.exists`."""
        try:
            Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def open(self, path: str) -> BinaryIO:
        """See `Machine.open`."""
        return open_regular(Path(path))

    def dial(self, node: str, port: int) -> Line:
        """See `Machine.dial`."""
        import socket  # noqa: PLC0415 - few need it

        line = socket.create_connection((node, port), timeout=3)
        line.settimeout(None)
        return line


HERE = Here()


def machine_of(slurm: Slurm) -> Machine:
    """The machine on which a border runs its commands; this one unless it says otherwise."""
    return cast("SshSlurm", slurm).machine if hasattr(slurm, "machine") else HERE


def open_regular(path: Path) -> BinaryIO:
    """Open a file that is one: a pipe would wait for its writer, and a device may act when opened.

    Raises:
        OSError: when it is none, or cannot be opened.
    """
    refuse_others(path.stat().st_mode, str(path))
    # Whoever owns the directory may have put a pipe there since.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        refuse_others(os.fstat(number).st_mode, str(path))
    except OSError:
        os.close(number)
        raise
    return os.fdopen(number, "rb")


def refuse_others(mode: int, path: str) -> None:
    """Refuse what is no regular file.

    Raises:
        OSError: saying what it is.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file, so no output was kept there", path)


def _group_name(gid: int) -> str | None:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None
