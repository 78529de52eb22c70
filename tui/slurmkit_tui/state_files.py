"""Files that the TUI keeps: choices for its next start, and logs of commands and errors."""

from __future__ import annotations

import contextlib
import shlex
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from slurmkit.config.paths import state_folder, write_private_file
from slurmkit.formats.display import printable

_LARGEST = 1 << 20  # bytes of the error log; a larger one is deleted


class SavedChoices(msgspec.Struct):
    """Choices saved between two starts.

    Attributes:
        columns: names of the chosen columns, by view.
    """

    columns: dict[str, tuple[str, ...]] = {}


def saved_choices_path() -> Path:
    """Return the path of the file of saved choices."""
    return state_folder() / "tui.json"


def load_choices() -> tuple[SavedChoices, str]:
    """Load the saved choices and a warning; a broken file gives none, so that the TUI starts."""
    try:
        return msgspec.json.decode(saved_choices_path().read_bytes(), type=SavedChoices), ""
    except FileNotFoundError:
        return SavedChoices(), ""
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
        return SavedChoices(), f"your saved columns cannot be read: {saved_choices_path()}: {error}"


def save_columns(view: str, columns: Sequence[str]) -> None:
    """Save the columns of one view; those of other views stay.

    Raises:
        OSError: when the file cannot be written.
    """
    saved, _ = load_choices()
    saved.columns[view] = tuple(columns)
    write_state_file(saved_choices_path(), msgspec.json.encode(saved))


def write_state_file(target: Path, data: bytes) -> None:
    """Write a file of the state folder atomically, readable by its owner alone.

    Raises:
        OSError: when it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private_file(target, data)


def error_log_path() -> Path:
    """Return the path of the error log, for bug reports."""
    return state_folder() / "tui.log"


def action_log_path() -> Path:
    """Return the path of the log of commands that were run."""
    return state_folder() / "tui-actions.log"


def log_command(
    cluster: str | None, argv: list[str], error: Exception | None, done: str = "done"
) -> None:
    """Log a command that was run, and its result."""
    result = done if error is None else f"failed: {error}"
    line = f"{cluster or 'cluster unknown'} {shlex.join(argv)} {result}"
    _append(action_log_path(), " ", printable(line))


def log_error(error: BaseException) -> None:
    """Log an unexpected error with its traceback."""
    with contextlib.suppress(OSError):
        if error_log_path().stat().st_size > _LARGEST:
            error_log_path().unlink()
    _append(error_log_path(), "\n", "".join(traceback.format_exception(error)))


def _append(path: Path, gap: str, text: str) -> None:
    """Append a text with the time; a full disk is ignored, so that work can go on."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{at}{gap}{text}\n")
