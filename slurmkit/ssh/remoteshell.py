"""What the login node's shell is told, so that any login shell does: bash, tcsh, fish.

The login shell is asked for `exec /bin/sh` alone. Its input is one function and a call of it: a
shell runs nothing of a function that was cut off, so a command comes whole or not at all, and no
argument of it shows in the list of processes before it runs.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence

import msgspec

COMMAND = "exec /bin/sh"
"""What is asked of the login shell."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Setting(msgspec.Struct, frozen=True):
    """Where commands run on a login node.

    Attributes:
        path: folders that go before those of PATH, with colons.
        folder: where they start; the home where empty.
        variables: further environment.
    """

    path: str = ""
    folder: str = ""
    variables: dict[str, str] = {}


def mark() -> str:
    """A line that nobody can have written before."""
    return f"slurmkit-{secrets.token_hex(8)}"


def function(lines: Iterable[str], begin: str = "") -> bytes:
    """The text for the shell: what it prints after `begin` is the command's own."""
    marks = [f"echo {begin}; echo {begin} >&2"] if begin else []
    body = "\n".join([*marks, *lines])
    return f"slurmkit() {{\n{body}\n}}\nslurmkit\n".encode()


def surroundings(setting: Setting, unset: Iterable[str], given: Mapping[str, str]) -> list[str]:
    """Lines that make the environment of a command."""
    names = [name for name in unset if _NAME.fullmatch(name)]
    found = [f"unset {' '.join(names)}"] if names else []
    if setting.path:
        found.append(f"PATH={shlex.quote(setting.path)}:$PATH; export PATH")
    pairs = {**setting.variables, **given}.items()
    found += [f"{name}={shlex.quote(value)}; export {name}" for name, value in pairs]
    if setting.folder:
        found.append(f"cd -- {shlex.quote(setting.folder)} || exit 1")
    return found


def call(argv: Sequence[str], stdin: str | None = None) -> str:
    """One command, its input a text or nothing."""
    words = shlex.join(argv)
    if stdin is None:
        return f"exec {words} </dev/null"
    return f"printf %s {shlex.quote(stdin)} | {words}"
