"""What a person chose in the TUI and finds again at its next start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slurmkit_tui.logs import folder


class Remembered(msgspec.Struct):
    """What is kept.

    Attributes:
        columns: chosen for each view, by name.
    """

    columns: dict[str, tuple[str, ...]] = {}


def path() -> Path:
    """The file it is kept in."""
    return folder() / "tui.json"


def recall() -> tuple[Remembered, str]:
    """What is kept, and what is wrong with it; a broken file is no reason not to start."""
    try:
        return msgspec.json.decode(path().read_bytes(), type=Remembered), ""
    except FileNotFoundError:
        return Remembered(), ""
    except (OSError, msgspec.MsgspecError) as error:
        return Remembered(), f"columns chosen before are ignored: {path()}: {error}"


def keep_columns(view: str, columns: Sequence[str]) -> None:
    """Keep the columns of a view, beside those of the others.

    Raises:
        OSError: when the file cannot be written.
    """
    kept, _ = recall()
    kept.columns[view] = tuple(columns)
    write(path(), msgspec.json.encode(kept))


def write(target: Path, data: bytes) -> None:
    """Write a file of the state folder in one step, for its owner alone.

    Raises:
        OSError: when it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".tui-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, target)  # noqa: PTH105 - in one step, whatever else reads it
    except OSError:
        os.unlink(name)  # noqa: PTH108
        raise
