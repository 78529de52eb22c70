"""Stores of calls and their results: the interface, and the store on this machine.

Jobs run code from a store, so only its owner may be able to replace its folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Protocol

from slurmkit.config.paths import describe_write_error, state_folder
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.executor import resultfiles
from slurmkit.slurm.machine import LOCAL_MACHINE, Machine

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Store(Protocol):
    """A folder that the nodes share and that only its owner can enter.

    Each method may raise OSError; a store over SSH may also raise SshError.
    """

    @property
    def folder(self) -> str:
        """Absolute path on the cluster."""
        ...

    @property
    def machine(self) -> Machine:
        """The machine through which the folder is reached."""
        ...

    def modules(self) -> tuple[str, list[str]]:
        """Return where jobs find the caller's modules: prefix of its Python, and search path."""
        ...

    def has(self, name: str) -> bool:
        """Return whether a folder of this name was added."""
        ...

    def add(self, name: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        """Write a folder, whole or not at all; an existing folder stays as it is.

        Args:
            name: relative name of the folder.
            files: contents of its files by relative name.
            folders: relative names of empty folders in it.

        Raises:
            SlurmkitError: when it cannot be written.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a folder with its contents; a missing folder is no error.

        Raises:
            BadInput: when another user owns it.
        """
        ...

    def names(self, paths: Sequence[str], *, fresh: bool) -> Mapping[str, list[str] | OSError]:
        """List folders; the value is the error for a folder that cannot be read.

        Args:
            paths: paths of the folders.
            fresh: ask the file server, not the cache of the NFS client.
        """
        ...

    def read(self, path: str) -> bytes:
        """Read a file that only its owner can access.

        Raises:
            PermissionError: when others own it or can access it.
        """
        ...

    def mark(self, path: str) -> None:
        """Write an empty file."""
        ...


def content_name(contents: object, kind: str) -> str:
    """Return a content-addressed folder name: other contents, other name."""
    return f"{kind}-{hashlib.sha256(repr(contents).encode()).hexdigest()[:16]}"


class LocalStore:
    """A `Store` on a filesystem of this machine.

    Args:
        folder: see `slurmkit.executor.store.make_base_folder`.
    """

    machine: Machine = LOCAL_MACHINE

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._base = make_base_folder(folder)

    @property
    def folder(self) -> str:
        return str(self._base)

    def modules(self) -> tuple[str, list[str]]:
        return sys.prefix, [os.path.abspath(each) for each in sys.path]  # noqa: PTH100 - "" is a folder here

    def has(self, name: str) -> bool:
        return (self._base / name).is_dir()

    def add(self, name: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        path = self._base / name
        above = make_private_folder(path.parent)
        try:
            aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=above))
            try:
                _fill(aside, files, folders)
                aside.rename(path)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        except OSError as error:
            if not path.is_dir():  # no other process was faster
                raise write_error(str(path), error) from error

    def remove(self, path: str) -> None:
        try:
            owner = Path(path).lstat().st_uid
        except FileNotFoundError:
            return
        if owner != os.geteuid():
            raise BadInput(f"{path} is not yours, so it is not removed")
        try:
            shutil.rmtree(path)
        except OSError:  # a job that was cancelled wrote its mark meanwhile
            shutil.rmtree(path)

    def names(self, paths: Sequence[str], *, fresh: bool) -> Mapping[str, list[str] | OSError]:
        return {path: _names(Path(path), fresh=fresh) for path in paths}

    def read(self, path: str) -> bytes:
        return resultfiles.read_private(path)

    def mark(self, path: str) -> None:
        resultfiles.write_whole(path, b"")


def _names(folder: Path, *, fresh: bool) -> list[str] | OSError:
    try:
        if fresh:
            folder.chmod(0o700)  # a client of NFS asks its server, and sees what is new
        return [each.name for each in folder.iterdir()]
    except OSError as error:
        return error


def _fill(folder: Path, files: Mapping[str, bytes], folders: Sequence[str]) -> None:
    """Write the files and folders of a new folder."""
    for inner in {*folders, *map(os.path.dirname, files)} - {""}:
        (folder / inner).mkdir(mode=0o700, parents=True, exist_ok=True)
    # A run (it has folders) is lost in a crash anyway and has many files: no fsync. The program and
    # the modules are shared by later runs: fsync.
    write = resultfiles.write_new if folders else resultfiles.write_whole
    for inner, data in files.items():
        write(str(folder / inner), data)


def make_base_folder(folder: str | os.PathLike[str] | None) -> Path:
    """Make the folder below which calls are stored, and return its path without links.

    Args:
        folder: a folder that the nodes share; by default in `$XDG_STATE_HOME` or ~/.local/state.

    Raises:
        BadInput: when others could replace it: it holds code that jobs run.
        SlurmkitError: when it cannot be made.
    """
    base = state_folder("calls") if folder is None else Path(folder).absolute() / ".slurmkit-calls"
    if folder is None:
        make_private_folder(
            base.parent.resolve()
        )  # an earlier command may have made it group-writable
    base = make_private_folder(base).resolve()  # links that change later must not undo the check
    check_not_replaceable(base, os.stat, os.geteuid())
    return base


def check_not_replaceable(base: PurePath, look: Callable[[str], Any], user: int) -> None:
    """Refuse a folder that others could replace by another: it holds code that jobs run.

    Args:
        base: absolute path without links.
        look: returns owner and mode of a path, like `os.stat`.
        user: uid that must own the folder.

    Raises:
        BadInput: naming the folder that others can write to.
    """
    for each in (*reversed(base.parents), base):
        status = look(str(each))
        # Nobody else can enter this folder, so the modes below it do not matter.
        if status.st_uid == user and not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return
        is_open = status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, user) or is_open:
            raise BadInput(
                f"others may write to {each}, so they could change what your jobs run; forbid that"
                " (chmod go-w), or choose a folder inside one that only you can write to: folder=…"
            )


def make_private_folder(path: Path) -> Path:
    """Make a folder, and missing parents, that only their owner can enter.

    Raises:
        SlurmkitError: when it cannot be made.
    """
    try:
        _make_private(path)
        status = path.lstat()
    except OSError as error:
        raise SlurmkitError(
            f"cannot write calls to {error.filename or path}: {error.strerror}; choose another"
            " folder that the nodes share: folder=…"
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise BadInput(f"{path} is not a folder of yours; remove it, or choose another: folder=…")
    if status.st_mode & 0o077:
        path.chmod(0o700)
    return path


def _make_private(path: Path) -> None:
    """Make a folder and its parents with mode 0700; pathlib's `parents` would use the umask."""
    if not path.parent.is_dir():
        _make_private(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def write_error(path: str, error: OSError) -> SlurmkitError:
    """Return the error for calls that could not be written."""
    return SlurmkitError(
        f"cannot write calls to {error.filename or path}: {describe_write_error(error)}"
    )
