"""Where calls and their results lie: on this machine, or seen from it over SSH."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from slurmkit.errors import BadInput
from slurmkit.executor import resultfiles
from slurmkit.executor.folders import base_folder, own_folder, unwritten
from slurmkit.machine import HERE, Machine


class Store(Protocol):
    """A folder that the nodes share and its owner alone can enter.

    What is said to raise nothing else raises OSError, or SshError where it is reached over SSH.
    """

    @property
    def folder(self) -> str:
        """Its path on the cluster, absolute."""
        ...

    @property
    def machine(self) -> Machine:
        """From where it is reached."""
        ...

    def modules(self) -> tuple[str, list[str]]:
        """Where the caller's modules are found there: prefix of its Python, and search path."""
        ...

    def has(self, name: str) -> bool:
        """Whether something was added under a name."""
        ...

    def add(self, name: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        """Write a folder, whole or not at all; what is there already stays.

        Args:
            name: of the folder, relative.
            files: what each contains, by their names in it.
            folders: in it, empty.

        Raises:
            SlurmkitError: when it cannot be written.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a folder with what is in it; one that is not there is removed.

        Raises:
            BadInput: when it is somebody else's.
        """
        ...

    def names(self, paths: Sequence[str], *, anew: bool) -> Mapping[str, list[str] | OSError]:
        """What is in folders, or why one cannot be read.

        Args:
            paths: of the folders.
            anew: ask the server of the filesystem, not what is known of it.
        """
        ...

    def read(self, path: str) -> bytes:
        """A file that is ours alone.

        Raises:
            PermissionError: when it is not, saying so.
        """
        ...

    def mark(self, path: str) -> None:
        """Make an empty file."""
        ...


def named_by(contents: object, kind: str) -> str:
    """The name of a folder that tells what is in it, so that another is another."""
    return f"{kind}-{hashlib.sha256(repr(contents).encode()).hexdigest()[:16]}"


class Here:
    """See `Store`: on a filesystem of this machine.

    Args:
        folder: see `slurmkit.executor.folders.base_folder`.
    """

    machine: Machine = HERE

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._base = base_folder(folder)

    @property
    def folder(self) -> str:
        """See `Store.folder`."""
        return str(self._base)

    def modules(self) -> tuple[str, list[str]]:
        """See `Store.modules`."""
        return sys.prefix, [os.path.abspath(each) for each in sys.path]  # noqa: PTH100 - "" is a folder here

    def has(self, name: str) -> bool:
        """See `Store.has`."""
        return (self._base / name).is_dir()

    def add(self, name: str, files: Mapping[str, bytes], folders: Sequence[str] = ()) -> None:
        """See `Store.add`."""
        path = self._base / name
        above = own_folder(path.parent)
        try:
            aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=above))
            try:
                _fill(aside, files, folders)
                aside.rename(path)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        except OSError as error:
            if not path.is_dir():  # no other process was faster
                raise unwritten(str(path), error) from error

    def remove(self, path: str) -> None:
        """See `Store.remove`."""
        try:
            owner = Path(path).lstat().st_uid
        except FileNotFoundError:
            return
        if owner != os.geteuid():
            raise BadInput(f"{path} is not yours, and is left as it is")
        shutil.rmtree(path)

    def names(self, paths: Sequence[str], *, anew: bool) -> Mapping[str, list[str] | OSError]:
        """See `Store.names`."""
        return {path: _names(Path(path), anew=anew) for path in paths}

    def read(self, path: str) -> bytes:
        """See `Store.read`."""
        return resultfiles.read_private(path)

    def mark(self, path: str) -> None:
        """See `Store.mark`."""
        resultfiles.write_whole(path, b"")


def _names(folder: Path, *, anew: bool) -> list[str] | OSError:
    try:
        if anew:
            folder.chmod(0o700)  # a client of NFS asks its server, and sees what is new
        return [each.name for each in folder.iterdir()]
    except OSError as error:
        return error


def _fill(folder: Path, files: Mapping[str, bytes], folders: Sequence[str]) -> None:
    """Write what a folder is to contain, and onto the disk what stays there for long."""
    for inner in {*folders, *map(os.path.dirname, files)} - {""}:
        (folder / inner).mkdir(mode=0o700, parents=True, exist_ok=True)
    # Of a run nothing is known after a crash, and it has many files; what others share stays.
    write = resultfiles.write_new if folders else resultfiles.write_whole
    for inner, data in files.items():
        write(str(folder / inner), data)
