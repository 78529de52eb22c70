"""Host keys: read known_hosts files (sshd(8)), check a key, and add a trusted one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from slurmkit.errors import HostKeyRefused, SshError

_KRL = b"SSHKRL\n\0"  # how a binary file of revoked keys begins (PROTOCOL.krl)


class KnownHostKey(msgspec.Struct, frozen=True):
    """A host key in a known_hosts file.

    Attributes:
        kind: e.g. `ssh-ed25519`.
        data: the key in its wire format.
        revoked: whether the line is marked @revoked.
        where: file and line number.
    """

    kind: str
    data: bytes
    revoked: bool
    where: str


def load_host_keys(name: str, files: tuple[Path, ...]) -> list[KnownHostKey]:
    """Load the keys of a host; `name` is `[host]:port` for a port other than 22."""
    return [known for path in files for known in _keys_in_file(name, path)]


def _keys_in_file(name: str, path: Path) -> Iterator[KnownHostKey]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, 1):
        marker, *words = ["", *line.split()] if not line.startswith("@") else line.split()
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
            continue  # paramiko does not support @cert-authority
        if not _matches(name, words[0]):
            continue
        try:
            data = base64.b64decode(words[2], validate=True)
        except ValueError:
            continue
        yield KnownHostKey(words[1], data, marker == "@revoked", f"{path}, line {number}")


def _matches(name: str, patterns: str) -> bool:
    """Return whether a host name matches the first field of a known_hosts line."""
    if patterns.startswith("|1|"):
        return _matches_hash(name, patterns)
    matched = False
    for pattern in patterns.split(","):
        bare = pattern.removeprefix("!")
        # Brackets are part of a name with a port, not a set of letters.
        if fnmatchcase(name.lower(), bare.lower().replace("[", "[[]")):
            if pattern != bare:
                return False
            matched = True
    return matched


def _matches_hash(name: str, text: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in text[3:].split("|"))
    except ValueError:
        return False
    own = hmac.new(salt, name.encode(), hashlib.sha1).digest()  # OpenSSH's HashKnownHosts
    return hmac.compare_digest(own, digest)


def fingerprint(data: bytes) -> str:
    """Return the fingerprint of a key as ssh prints it: `SHA256:…`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def check_host_key(
    name: str, kind: str, data: bytes, known: list[KnownHostKey], accept: str
) -> None:
    """Check the key that a host shows; `accept` is the command that accepts it.

    Raises:
        HostKeyRefused: when it is revoked, differs from the known key, or is unknown.
    """
    seen = f"{kind} {fingerprint(data)}"
    same = [each for each in known if each.data == data]
    for each in same:
        if each.revoked:
            raise HostKeyRefused(
                f"the host key of {name} is revoked ({each.where}): {seen}; ask your administrator"
            )
    if same:
        return
    for each in known:
        if not each.revoked:
            raise HostKeyRefused(
                f"THE HOST KEY OF {name} HAS CHANGED: it shows {seen}, but {each.where} has"
                f" {each.kind} {fingerprint(each.data)}. Somebody may be listening in. Ask your"
                " administrator; if the change is right, remove that line, then accept the new key:"
                f" {accept}"
            )
    raise HostKeyRefused(
        f"the host key of {name} is not known: {seen}. Compare it with the fingerprint that your"
        f" site publishes, then accept it: {accept}"
    )


def check_not_revoked(name: str, kind: str, data: bytes, files: tuple[Path, ...]) -> None:
    """Check a host key against files of revoked keys: lists of keys, or KRLs (ssh-keygen(1)).

    Raises:
        HostKeyRefused: when the key is in one of them, or when one cannot be read: ssh then
            refuses every host, too.
    """
    for path in files:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise HostKeyRefused(
                f"cannot read the revoked host keys {path}: {error.strerror}; correct"
                " RevokedHostKeys in ~/.ssh/config"
            ) from error
        key = base64.b64encode(data)
        revoked = _in_krl(kind, key, path) if text.startswith(_KRL) else key in text.split()
        if revoked:
            raise HostKeyRefused(
                f"the host key of {name} is revoked ({path}): {kind} {fingerprint(data)}; ask your"
                " administrator"
            )


def _in_krl(kind: str, key: bytes, path: Path) -> bool:
    argv = ["ssh-keygen", "-Q", "-f", str(path), "/dev/stdin"]
    line = kind.encode() + b" " + key + b"\n"
    done = subprocess.run(argv, input=line, capture_output=True, check=False)
    if done.returncode not in (0, 1):
        words = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise HostKeyRefused(f"ssh-keygen cannot read the revoked host keys {path}: {words}")
    return done.returncode == 1


def trust_host_key(name: str, kind: str, data: bytes, path: Path) -> None:
    """Append a host's key to a known_hosts file.

    Raises:
        SshError: when the file cannot be written.
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
