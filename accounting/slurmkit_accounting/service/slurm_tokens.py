"""Who sends a query, by a token of Slurm's auth/jwt: the service's end of `remote.slurm_token`.

Slurm signs with HS256 and the key of AuthAltParameters=jwt_key, or a site's identity provider with
RS256 and a key of AuthAltParameters=jwks. The user is the claim `sun`, or the one of
userclaimfield (Slurm's auth_jwt.c).
"""

from __future__ import annotations

import os
import pwd
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey, RSAKey
from joserfc.jws import JWSRegistry

from slurmkit.errors import BadConfig, NotVouched, ServiceError
from slurmkit.formats.display import printable
from slurmkit_accounting.remote.protocol import OpenedCredential
from slurmkit_accounting.remote.slurm_token import CONTENT_TYPE, unpack
from slurmkit_accounting.service.signing_keys import MALFORMED, parse_keys

SUN = "sun"
LEEWAY_SECONDS = 60  # by which the clocks of slurmctld and of this host may differ
_LONGEST_TOKEN, _DOTS = 16 * 1024, 2  # bytes; RFC 7515, compact serialization
_LONGEST_NAME, _LONGEST_FILE = 255, 1 << 20
_SHORTEST_SECRET = 16  # bytes; Slurm refuses shorter ones (auth_jwt.c: MINIMUM_KEY_LENGTH)

TokenKey: TypeAlias = OctKey | RSAKey


class TokenKeys(msgspec.Struct, frozen=True):
    """The keys of one file: Slurm's own secret, or the public keys of a JWK set.

    Attributes:
        algorithm: `HS256` or `RS256`; a public key must never be taken for a secret.
        keys: one secret, or the keys of the set.
    """

    algorithm: str
    keys: tuple[TokenKey, ...]


def load_jwt_key(path: str) -> TokenKeys:
    """Load Slurm's own secret.

    Args:
        path: the file of AuthAltParameters=jwt_key.

    Raises:
        BadConfig: when it cannot be read, others can read it, or it is no secret.
    """
    mode, data = _read("jwt_key", path)
    if mode & stat.S_IRWXO:
        raise BadConfig(f"[ledger.service] jwt_key: everybody can read {path}: chmod o= {path}")
    if len(data) < _SHORTEST_SECRET or _is_document(data):
        raise BadConfig(
            f"[ledger.service] jwt_key: {path} ({len(data)} bytes) is no secret of Slurm; name a"
            " copy of AuthAltParameters=jwt_key; public keys of an identity provider belong to jwks"
        )
    return TokenKeys("HS256", (OctKey.import_key(data),))


def load_jwks(path: str) -> TokenKeys:
    """Load the public keys of an identity provider that may sign tokens (RFC 7517).

    Args:
        path: the file of AuthAltParameters=jwks.

    Raises:
        BadConfig: when it cannot be read, or has no key that Slurm uses.
    """
    _, data = _read("jwks", path)
    try:
        listed = msgspec.json.decode(data, type=_JwkSet).keys
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadConfig(f"[ledger.service] jwks: {path} is no set of keys: {error}") from error
    found = tuple(key for key in parse_keys(listed) if isinstance(key, RSAKey))  # as Slurm
    if not found:
        raise BadConfig(f"[ledger.service] jwks: {path} has no RSA key for signatures")
    return TokenKeys("RS256", found)


def _read(key: str, path: str) -> tuple[int, bytes]:
    """Return the mode and the content of a file that a key of the configuration names."""
    try:
        with Path(path).open("rb") as file:
            return os.fstat(file.fileno()).st_mode, file.read(_LONGEST_FILE)
    except OSError as error:
        raise BadConfig(
            f"[ledger.service] {key}: cannot read {path}: {error.strerror}; the service's account"
            " must be able to read it"
        ) from error


def _is_document(data: bytes) -> bool:
    """Return whether it is JSON or PEM, which others may know; also a broken one."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return text.lstrip("\ufeff \t\r\n").startswith(("{", "[", "-----BEGIN"))


class _JwkSet(msgspec.Struct):
    keys: list[dict[str, Any]]


class TokenReader:
    """Opens queries with tokens; seals nothing, since TLS is between client and service.

    Args:
        keys: read anew for each query, so that a new key is known at once.
        claim: the claim with the user's name.
        now: returns epoch seconds.
    """

    content_type = CONTENT_TYPE

    def __init__(
        self, keys: Callable[[], TokenKeys], claim: str = SUN, now: Callable[[], float] = time.time
    ) -> None:
        self._keys, self._claim, self._now = keys, claim, now

    def seal(self, payload: bytes, *, reader: int) -> bytes:
        """Return the payload in one line."""
        del reader
        return b64encode(payload)

    def unseal(self, credential: bytes) -> OpenedCredential:
        """Return the query and the uid of the user of its token.

        Raises:
            NotVouched: when the token is not valid, or this host does not know its user.
            ServiceError: when the keys cannot be read any more.
        """
        token, _, text = credential.strip().partition(b" ")
        if len(token) > _LONGEST_TOKEN or token.count(b".") != _DOTS:  # before the keys are read
            raise NotVouched("the message has no token of Slurm")
        name = check_token(token, self.known_keys(), int(self._now()), self._claim)
        try:
            uid = pwd.getpwnam(name).pw_uid
        except KeyError as error:
            raise NotVouched(
                f"the host of the service does not know user {name!r} of the token"
            ) from error
        return OpenedCredential(uid, unpack(text))

    def known_keys(self) -> TokenKeys:
        """Return the keys that may sign tokens now.

        Raises:
            ServiceError: when they cannot be read any more.
        """
        try:
            return self._keys()
        except BadConfig as error:
            raise ServiceError(str(error)) from error


def check_token(token: bytes, keys: TokenKeys, now: int, claim: str = SUN) -> str:
    """Return the user name of a token that is valid now.

    Raises:
        NotVouched: saying what is wrong with it.
    """
    registry = JWSRegistry(algorithms=[keys.algorithm])
    try:
        signed = jwt.decode(token, lambda found: _key_for(found.headers(), keys), registry=registry)
        wanted: dict[str, Any] = {name: {"essential": True} for name in ("exp", claim)}
        claims = jwt.JWTClaimsRegistry(now=now, leeway=LEEWAY_SECONDS, **wanted)
        claims.validate(signed.claims)
    except (JoseError, *MALFORMED) as error:
        words = printable(str(error)).rstrip(": ") or type(error).__name__
        raise NotVouched(
            f"the token of Slurm is not valid here: {words}; the service must have Slurm's key, and"
            " the clocks of both hosts must be right"
        ) from error
    if not signed.claims["exp"] > now:  # here no leeway: for Slurm it has ended, too
        raise NotVouched("the token of Slurm has expired, by the clock of the service")
    name = signed.claims[claim]
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME):
        raise NotVouched(f"the token of Slurm has no name of a user ({claim})")
    return name


def _key_for(headers: dict[str, object], keys: TokenKeys) -> TokenKey:
    """Return the only key that may have signed a token with these headers."""
    kid = headers.get("kid")
    if keys.algorithm == "HS256":
        return keys.keys[0]  # slurmctld names no key, or its own
    named: Sequence[TokenKey] = [key for key in keys.keys if kid is None or key.kid == kid]
    if len(named) != 1:
        raise NotVouched(f"{len(named)} keys of the set have the name {kid!r} of the token's key")
    return named[0]
