"""Folders of calls: ours alone, and where nobody else can put another into their place."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.statehome import state_folder

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def base_folder(folder: str | os.PathLike[str] | None) -> Path:
    """The folder below which calls are kept, made where it is missing.

    Args:
        folder: one that the nodes share; by default in `$XDG_STATE_HOME` or ~/.local/state. Links
            in it are followed now, once for all.

    Raises:
        BadInput: when others could put something else in its place: it holds code that is run.
        SlurmkitError: when it cannot be made.
    """
    base = state_folder("calls") if folder is None else Path(folder).absolute() / ".slurmkit-calls"
    if folder is None:
        own_folder(base.parent.resolve())  # the first of our commands may have made it for a group
    base = own_folder(base).resolve()  # what is used is what is checked, whatever becomes of links
    check_folder(base, os.stat, os.geteuid())
    return base


def check_folder(base: PurePath, look: Callable[[str], Any], user: int) -> None:
    """Refuse a folder into whose place others could put another: it holds code that is run.

    Args:
        base: absolute, without links.
        look: gives owner and mode of a folder, as `os.stat`.
        user: number of whose it is to be.

    Raises:
        BadInput: saying which folder is open to whom.
    """
    for each in (*reversed(base.parents), base):
        found = look(str(each))
        # Nobody else gets to what is below, whatever its modes say.
        if found.st_uid == user and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH):
            return
        is_open = found.st_mode & _OTHERS and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, user) or is_open:
            raise BadInput(
                f"others may write to {each}, so they could change what your jobs run; take that"
                " from them (chmod go-w), or name a folder below one that you alone can write to:"
                " folder=…"
            )


def own_folder(path: Path) -> Path:
    """Make a folder that its owner alone can enter, and what is missing above it, likewise.

    Raises:
        SlurmkitError: when it cannot be made.
    """
    try:
        _make(path)
        found = path.lstat()
    except OSError as error:
        raise SlurmkitError(
            f"cannot keep calls in {error.filename or path}: {error.strerror}; name another folder"
            " that the nodes share: folder=…"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise BadInput(f"{path} is not a folder of yours; remove it, or name another: folder=…")
    if found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def _make(path: Path) -> None:
    """What pathlib makes above a folder has the mode of the umask: others might write there."""
    if not path.parent.is_dir():
        _make(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


def unwritten(path: str, error: OSError) -> SlurmkitError:
    """The error of what cannot be kept."""
    return SlurmkitError(
        f"cannot keep calls in {error.filename or path}: {error.strerror}; make room there"
    )
