"""Public keys that an identity provider signs tokens with: JWK sets (RFC 7517)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from joserfc.util import base64_to_int

SigningKey: TypeAlias = RSAKey | ECKey
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What joserfc raises beside its own errors for what is no key or token at all."""
_SHORTEST_RSA = 2048  # bits, NIST SP 800-131A
_KEY_TYPES: dict[str, type[SigningKey]] = {"RSA": RSAKey, "EC": ECKey}
_PUBLIC_MEMBERS = frozenset(("kty", "kid", "use", "alg", "crv", "n", "e", "x", "y"))


def parse_keys(listed: Iterable[Any]) -> tuple[SigningKey, ...]:
    """Return the keys of a JWK set that may sign tokens; others are left out."""
    found = []
    for one in listed:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig":
            continue
        public = {name: value for name, value in one.items() if name in _PUBLIC_MEMBERS}
        with suppress(JoseError, *MALFORMED):
            kind = _KEY_TYPES[public["kty"]]
            if kind is RSAKey and base64_to_int(public["n"]).bit_length() < _SHORTEST_RSA:
                continue
            found.append(kind.import_key(public))
    return tuple(found)
