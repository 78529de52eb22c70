"""What the login node's shell is told, so that any login shell does: bash, tcsh, fish.

The login shell is asked for `exec /bin/sh` alone. Its input is a group of lines for each command: a
shell runs nothing of a group that was cut off, so a command comes whole or not at all, and no
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


def greeting(begin: str) -> bytes:
    """What a new shell is told first: what is printed before `begin` is the login shell's own."""
    return f"echo {begin}; echo {begin} >&2\n".encode()


def group(lines: Iterable[str], end: str) -> bytes:
    """Lines in a shell of their own, with `end` after both outputs, and the exit code."""
    body = "\n".join(lines)
    told = f"printf '\\n{end}\\n' >&2; printf '\\n{end} %s\\n' \"$slurmkit_code\""
    return f"(\n{body}\n) </dev/null\nslurmkit_code=$?; {told}\n".encode()


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
    if not stdin.endswith("\n"):
        return f"printf %s {shlex.quote(stdin)} | {words}"
    end = mark()  # a process less
    return f"exec {words} <<'{end}'\n{stdin}{end}"
