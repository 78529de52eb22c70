"""enroot's file of credentials: where it is, and whether a password in it would be run as code."""

from __future__ import annotations

import os
from pathlib import Path


def credentials_file() -> Path:
    """Where enroot looks for credentials (its doc/configuration.md)."""
    given = os.environ.get("ENROOT_CONFIG_PATH")
    if given:
        return Path(given) / ".credentials"
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "enroot" / ".credentials"


def wrong_password() -> str | None:
    """Why enroot is not to be started: a password, which it would hand to a shell, begins with `$`.

    enroot takes the user of any registry from that file, also where the reference names none. A
    variable alone is let through; no value is ever shown.
    """
    file = credentials_file()
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot read {file}: {error.strerror}"
    for number, line in enumerate(lines, 1):
        # As enroot's common.sh: the sixth word and all after it.
        value = " ".join(line.split()[5:])
        name = value.removeprefix("$").removeprefix("{").removesuffix("}")
        if value.startswith("$") and not name.isidentifier():
            return (
                f"{file}, line {number}: the password begins with $, and enroot would run it as"
                " shell code; write the password itself, or $VARIABLE"
            )
    return None
