"""Folders of calls: ours alone, on a filesystem that the nodes share, with the worker in them."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from slurmkit import __version__, resumable
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.executor import resultfiles, worker
from slurmkit.statehome import state_folder

PROGRAM = "slurmkit_worker.py"
"""The worker's name there: what lies beside a program hides modules of the same name."""
_STAND_IN = f"{worker.WITHOUT}/slurmkit"  # for jobs that have none: those of an image, say
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
    for each in (*reversed(base.parents), base):
        if _is_closed(each):
            break
        _check(each)
    return base


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


def _is_closed(path: Path) -> bool:
    """Whether nobody else gets to what is below, whatever its modes say."""
    found = path.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH)


def _check(path: Path) -> None:
    """Whoever may rename what lies in a folder could put code of their own into its place."""
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()) or (
        found.st_mode & _OTHERS and not found.st_mode & stat.S_ISVTX
    ):
        raise BadInput(
            f"others may write to {path}, so they could change what your jobs run; take that from"
            " them (chmod go-w), or name a folder below one that you alone can write to: folder=…"
        )


def with_worker(base: Path) -> Path:
    """The folder with the worker and the cloudpickle of this Python, made where it is missing.

    Its name tells its contents, so that jobs which wait find what they were sent with.
    """
    contents = _contents()
    digest = hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest()
    folder = base / f"worker-{digest[:16]}"
    if not folder.is_dir():
        aside = Path(tempfile.mkdtemp(prefix=".worker-", dir=base))
        for name, data in contents.items():
            (aside / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            resultfiles.write_whole(str(aside / name), data)
        try:
            aside.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(aside)
    return folder


def _contents() -> dict[str, bytes]:
    import cloudpickle  # noqa: PLC0415 - it takes 20 ms

    found = {f"cloudpickle/{p.name}": p for p in Path(cloudpickle.__file__).parent.glob("*.py")}
    found[PROGRAM] = Path(worker.__file__)
    found["slurmkit_resultfiles.py"] = Path(resultfiles.__file__)
    found[f"{_STAND_IN}/resumable.py"] = Path(resumable.__file__)
    read = {name: path.read_bytes() for name, path in found.items()}
    names = "from slurmkit.resumable import Resumable, checkpoint_wanted"
    text = f"__version__ = {__version__!r}\n{names}\n"
    return {**read, f"{_STAND_IN}/__init__.py": text.encode()}
