"""ID tokens of an OpenID provider: signed by whom, for whom, and for which login.

OpenID Connect Core 1.0, section 3.1.3.7. joserfc checks signatures, Authlib the claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from slurmkit_accounting.portal.identity import LoginRefused
from slurmkit_accounting.service.signing_keys import MALFORMED, SigningKey

# Never `none`, and never HS*: whoever has the public key could sign with it.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
LEEWAY_SECONDS = 60  # by which the clocks of the provider and of this host may differ
_LONGEST_TOKEN = 32 * 1024  # bytes
_LONGEST_CLAIM = 255
_TYPES = frozenset(("jwt", "application/jwt"))  # other tokens of a provider are signed as well


class UnknownKey(LoginRefused):
    """A token signed with a key that the provider did not have when its keys were read."""


class ExpectedToken(msgspec.Struct, frozen=True, kw_only=True):
    """What an ID token must say.

    Attributes:
        issuer: the provider.
        client_id: the name of the pages there.
        nonce: sent with this login, and with no other.
        begun: when this login began, in epoch seconds.
        access_token: given with the ID token; `at_hash` must fit it.
    """

    issuer: str
    client_id: str
    nonce: str
    begun: int
    access_token: str


def check_id_token(
    token: str, keys: Sequence[SigningKey], expected: ExpectedToken, now: int
) -> Mapping[str, Any]:
    """Return the claims of an ID token that is valid for a login.

    Args:
        token: the token, in its compact form.
        keys: the provider's keys.
        expected: what it must say.
        now: epoch seconds.

    Raises:
        UnknownKey: when it names a key that is not among `keys`.
        LoginRefused: saying what is wrong with it.
    """
    if len(token) > _LONGEST_TOKEN:
        raise LoginRefused(f"the ID token is longer than {_LONGEST_TOKEN} bytes")
    registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    try:
        signed = jwt.decode(token, lambda found: _key_for(found.headers(), keys), registry=registry)
        claims = CodeIDToken(
            signed.claims,
            signed.header,
            options={
                "iss": {"essential": True, "value": expected.issuer},
                "aud": {"essential": True, "value": expected.client_id},
            },
            params={
                "client_id": expected.client_id,
                "nonce": expected.nonce,
                "access_token": expected.access_token,
            },
        )
        claims.validate(now=now, leeway=LEEWAY_SECONDS)
    except (JoseError, *MALFORMED) as error:
        raise LoginRefused(f"the ID token: {str(error) or type(error).__name__}") from error
    if claims.get("azp", expected.client_id) != expected.client_id:
        raise LoginRefused("the ID token was made for another client: azp")
    if claims["iat"] < expected.begun - LEEWAY_SECONDS:
        raise LoginRefused("the ID token is older than this login: iat")
    return dict(claims)


def claim_text(claims: Mapping[str, Any], name: str) -> str:
    """Return the text of a claim.

    Raises:
        LoginRefused: when the token does not have it, or it is no text of one line, or very long.
    """
    value = claims.get(name)
    if not (isinstance(value, str) and value.isprintable() and 0 < len(value) <= _LONGEST_CLAIM):
        raise LoginRefused(f"the ID token has no claim {name} that could be an id")
    return value


def _key_for(headers: Mapping[str, Any], keys: Sequence[SigningKey]) -> SigningKey:
    """Return the only key that may have signed a token with these headers."""
    if "crit" in headers:
        raise LoginRefused("the ID token has a critical header, which no ID token needs")
    if str(headers.get("typ", "jwt")).lower() not in _TYPES:
        raise LoginRefused(f"this is no ID token, but a token of type {headers['typ']}")
    kid, algorithm = headers.get("kid"), headers["alg"]
    named = [key for key in keys if kid is None or key.kid == kid]
    if not named:
        raise UnknownKey(f"the provider has no key {kid} for ID tokens")
    kind = "EC" if algorithm.startswith("ES") else "RSA"
    fitting = [
        key for key in named if key.key_type == kind and key.get("alg", algorithm) == algorithm
    ]
    if len(fitting) != 1:
        raise LoginRefused(f"the provider has {len(fitting)} keys {kid or ''} for {algorithm}")
    return fitting[0]
