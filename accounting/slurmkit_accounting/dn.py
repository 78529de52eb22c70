"""Names of entries in a directory, written so that equal ones are equal texts: RFC 4514."""

from __future__ import annotations

import re
from functools import lru_cache

from slurmkit.errors import DirectoryError

# ATTRIBUTE=VALUE and what follows it; a value may be quoted, and any sign in it escaped.
_PART = re.compile(
    r"""\s* ([A-Za-z][A-Za-z0-9-]*|[0-9]+(?:\.[0-9]+)*) \s* = \s*
        ("(?:\\.|[^"\\])*" | (?:\\[0-9A-Fa-f]{2}|\\.|[^\\"+,;])*) \s* ([+,;]|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(rb"\\(?:[0-9A-Fa-f]{2}|.)", re.DOTALL)
_BLANKS = re.compile(r" +")
_SPECIAL = re.compile(r"[\\,+=]")
_PLAIN = re.compile(r"(?:[a-z]+=[a-z0-9_.-]+(?:,|\Z))+")


@lru_cache(maxsize=100_000)
def normal_dn(dn: str) -> str:
    """Write a DN so that equal ones are equal texts.

    Case and the number of blanks do not count, nor the order of what `+` joins.

    Raises:
        DirectoryError: for a text that is no DN.
    """
    if _PLAIN.fullmatch(dn) and dn[-1] != ",":
        return dn
    names: list[list[str]] = [[]]
    at = 0
    while match := _PART.match(dn, at):
        name, value, sign = match.groups()
        names[-1].append(f"{name}={_one_spelling(value)}".lower())
        at = match.end()
        if not sign:
            return ",".join("+".join(sorted(parts)) for parts in names)
        if sign != "+":
            names.append([])
    raise DirectoryError(f"the directory holds {dn!r} where a DN belongs; nothing was changed")


def _one_spelling(value: str) -> str:
    r"""A comma may be written `\,` or `\2C`, and any letter as its bytes, RFC 4514 section 2.4."""
    value = value[1:-1] if value.startswith('"') else _without_blanks(value)
    raw = _ESCAPED.sub(lambda match: _meant(match[0][1:]), value.encode())
    text = _BLANKS.sub(" ", raw.decode("utf-8", "replace"))
    return _SPECIAL.sub(r"\\\g<0>", text)


def _without_blanks(value: str) -> str:
    bare = value.rstrip()
    signs = len(bare) - len(bare.rstrip("\\"))
    return bare + " " if signs % 2 else bare  # the first blank was escaped


def _meant(escaped: bytes) -> bytes:
    return bytes.fromhex(escaped.decode()) if len(escaped) == 2 else escaped
