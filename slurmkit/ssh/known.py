"""Host keys: what is known of a host, and what to say of a key that is not (sshd(8))."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from slurmkit.errors import HostKeyRefused, SshError


class Known(msgspec.Struct, frozen=True):
    """A line of a file of host keys that is about a host.

    Attributes:
        kind: as `ssh-ed25519`.
        data: the key as it goes over the wire.
        revoked: the key is not to be trusted any more.
        where: file and number of the line.
    """

    kind: str
    data: bytes
    revoked: bool
    where: str


def known_keys(name: str, files: tuple[Path, ...]) -> list[Known]:
    """What the files know of a host; `name` is `[host]:port` where the port is not 22."""
    return [known for path in files for known in _in_file(name, path)]


def _in_file(name: str, path: Path) -> Iterator[Known]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        marker, *words = ["", *line.split()] if not line.startswith("@") else line.split()
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
            continue  # of an authority's (@cert-authority) paramiko knows nothing
        if not _is_of(name, words[0]):
            continue
        try:
            data = base64.b64decode(words[2], validate=True)
        except ValueError:
            continue
        yield Known(words[1], data, marker == "@revoked", f"{path}, line {number}")


def _is_of(name: str, patterns: str) -> bool:
    if patterns.startswith("|1|"):
        return _is_hash_of(name, patterns)
    found = False
    for pattern in patterns.split(","):
        bare = pattern.removeprefix("!")
        # Brackets are part of a name with a port, not a set of letters.
        if fnmatchcase(name.lower(), bare.lower().replace("[", "[[]")):
            if pattern != bare:
                return False
            found = True
    return found


def _is_hash_of(name: str, text: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in text[3:].split("|"))
    except ValueError:
        return False
    found = hmac.new(salt, name.encode(), hashlib.sha1).digest()  # as OpenSSH hashes them
    return hmac.compare_digest(found, digest)


def fingerprint(data: bytes) -> str:
    """As ssh shows it: `SHA256:…`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def check(name: str, kind: str, data: bytes, known: list[Known]) -> None:
    """Let a host's key through.

    Raises:
        HostKeyRefused: when it is revoked, another than the one known, or not known.
    """
    seen = f"{kind} {fingerprint(data)}"
    same = [each for each in known if each.data == data]
    for each in same:
        if each.revoked:
            raise HostKeyRefused(f"the host key of {name} is revoked ({each.where}): {seen}")
    if same:
        return
    for each in known:
        if not each.revoked:
            raise HostKeyRefused(
                f"THE HOST KEY OF {name} HAS CHANGED: it shows {seen}, but {each.where} has"
                f" {each.kind} {fingerprint(each.data)}. Somebody may be listening in. Ask your"
                " administrator; if the change is right, remove that line and trust the new key"
            )
    raise HostKeyRefused(
        f"the host key of {name} is not known: {seen}. Compare it with what your site publishes,"
        " then accept it: slurmkit clusters trust NAME"
    )


def trust(name: str, kind: str, data: bytes, path: Path) -> None:
    """Write a host's key down.

    Raises:
        SshError: when that cannot be done.
    """
    line = f"{name} {kind} {base64.b64encode(data).decode()}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            torn = size > 0 and file.read(1) != b"\n"
            file.write((b"\n" if torn else b"") + line.encode())
    except OSError as error:
        raise SshError(f"cannot write {path}: {error.strerror}") from error
