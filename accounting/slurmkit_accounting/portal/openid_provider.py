"""The site's OpenID provider: its discovery document, its keys, and codes given for ID tokens.

OpenID Connect Core and Discovery 1.0, with PKCE (RFC 7636) and the issuer in answers (RFC 9207).
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
from authlib.common.urls import add_params_to_uri
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge

from slurmkit.errors import BadConfig, ServiceError
from slurmkit_accounting.portal.id_token import (
    ExpectedToken,
    UnknownKey,
    check_id_token,
    claim_text,
)
from slurmkit_accounting.portal.identity import LoginRefused
from slurmkit_accounting.portal.settings import OidcSection
from slurmkit_accounting.remote.https import ask, is_https_or_loopback
from slurmkit_accounting.service.signing_keys import SigningKey, parse_keys

METADATA_SECONDS = 3600  # for which the discovery document is cached
KEYS_SECONDS = 600  # for which keys are cached: so long, a withdrawn key is still accepted
NEW_KEY_SECONDS = 60  # between two reads of the keys because of a token with an unknown key
RETRY_SECONDS = 10  # after which a provider that failed is asked again
_MOST_BYTES = 256 * 1024  # of an answer
_DISCOVERY = "/.well-known/openid-configuration"
_FORM = "application/x-www-form-urlencoded"
_FoundT = TypeVar("_FoundT")


class ProviderFailed(ServiceError):
    """A provider that does not answer, or whose discovery document does not fit the settings."""


class ProviderMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What is used of a discovery document; OpenID Connect Discovery 1.0, section 3."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool | None = None


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[Any]


class _TokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    id_token: str | None = None
    access_token: str | None = None
    error: str | None = None
    error_description: str | None = None


class _Cached(Generic[_FoundT]):
    """A document of the provider that is cached for a while."""

    def __init__(self, read: Callable[[], _FoundT], clock: Callable[[], float]) -> None:
        self._read, self._clock = read, clock
        self._lock = threading.Lock()
        self._read_at, self._failed_at, self._why = 0.0, 0.0, ""
        self.last: _FoundT | None = None

    def current(self, most_seconds: int) -> _FoundT:
        """Return it, read at most so many seconds ago.

        Raises:
            ProviderFailed: when it cannot be read; for a moment it is not tried again.
        """
        with self._lock:
            # A clock that was set back makes both old, not new for a long time.
            now = self._clock()
            if self.last is not None and 0 <= now - self._read_at < most_seconds:
                return self.last
            if self._why and 0 <= now - self._failed_at < RETRY_SECONDS:
                raise ProviderFailed(self._why)
            try:
                self.last = self._read()
            except ProviderFailed as error:
                # From now on: whoever waited here meanwhile does not wait for another timeout.
                self._failed_at, self._why = self._clock(), str(error)
                raise
            self._read_at, self._why = now, ""
            return self.last


class OpenIdProvider:
    """The provider of `[ledger.portal.oidc]`, asked when people log in.

    Args:
        section: `[ledger.portal.oidc]`.
        secret: of the pages, at the provider.
        origin: of the pages, as browsers write it.
        clock: returns epoch seconds.

    Raises:
        BadConfig: when the CA file cannot be read, or the secret has characters that none can have.
    """

    def __init__(
        self,
        section: OidcSection,
        secret: str,
        origin: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (secret and secret.isascii() and secret.isprintable()):
            raise BadConfig(
                "[ledger.portal.oidc] client_secret_file holds no secret; write the one that the"
                " provider gave for client_id into it, on one line"
            )
        try:
            self._trusted = ssl.create_default_context(cafile=section.ca_file or None)
        except OSError as error:
            raise BadConfig(
                f"[ledger.portal.oidc] ca_file: cannot read {section.ca_file}: {error}"
            ) from error
        self._section, self._secret, self._clock = section, secret, clock
        self._origin = origin
        self._metadata = _Cached(self._read_metadata, clock)
        self._keys = _Cached(self._read_keys, clock)

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends browsers back to; it must be registered there."""
        return f"{self._origin}/login/oidc/callback"

    def metadata(self) -> ProviderMetadata:
        """Return the discovery document.

        Raises:
            ProviderFailed: when it cannot be read, or does not fit the settings.
        """
        return self._metadata.current(METADATA_SECONDS)

    def login_url(self, *, state: str, nonce: str, verifier: str) -> str:
        """Return the provider's page to log in at.

        Args:
            state: comes back with the browser.
            nonce: comes back in the ID token.
            verifier: of PKCE; only its SHA-256 is sent now.

        Raises:
            ProviderFailed: when the provider is not known yet, and does not answer.
        """
        uri = prepare_grant_uri(
            self.metadata().authorization_endpoint,
            client_id=self._section.client_id,
            response_type="code",
            redirect_uri=self.redirect_uri,
            scope=" ".join(dict.fromkeys(("openid", *self._section.scopes))),
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return str(uri)

    def known_logout_url(self) -> str:
        """Return the provider's page to log out at; empty without one, or before it was read."""
        metadata = self._metadata.last
        if metadata is None or not metadata.end_session_endpoint:
            return ""
        asked = {
            "client_id": self._section.client_id,
            "post_logout_redirect_uri": f"{self._origin}/login",
        }
        return str(add_params_to_uri(metadata.end_session_endpoint, asked.items()))

    def check_answer(self, issuer: str | None) -> None:
        """Check that the answer to a login comes from this provider (RFC 9207).

        Raises:
            LoginRefused: when it names another issuer, or none although this provider always does.
            ProviderFailed: when the provider is not known yet, and does not answer.
        """
        if issuer is None and self.metadata().authorization_response_iss_parameter_supported:
            raise LoginRefused("the answer to the login names no issuer")
        if issuer is not None and issuer != self._section.issuer:
            raise LoginRefused(f"the answer to the login comes from {issuer}")

    def person_id(self, code: str, *, nonce: str, verifier: str, begun: int) -> str:
        """Give a code for an ID token, and return the id in its claim.

        Args:
            code: what the browser brought.
            nonce: of this login.
            verifier: of this login, for PKCE.
            begun: when this login began, in epoch seconds.

        Raises:
            LoginRefused: when the provider does not take the code, or its token is not valid.
            ProviderFailed: when the provider does not answer.
        """
        answer = self._token_for(code, verifier)
        expected = ExpectedToken(
            issuer=self._section.issuer,
            client_id=self._section.client_id,
            nonce=nonce,
            begun=begun,
            access_token=answer.access_token or "",
        )
        token, now = answer.id_token or "", int(self._clock())
        try:
            claims = check_id_token(token, self._keys.current(KEYS_SECONDS), expected, now)
        except UnknownKey:
            claims = check_id_token(token, self._keys.current(NEW_KEY_SECONDS), expected, now)
        return claim_text(claims, self._section.claim)

    def _token_for(self, code: str, verifier: str) -> _TokenAnswer:
        metadata = self.metadata()
        body = prepare_token_request(
            "authorization_code",
            redirect_uri=self.redirect_uri,
            code=code,
            code_verifier=verifier,
        )
        headers = {"Content-Type": _FORM, "Accept": "application/json"}
        _, headers, body = self._client_auth(metadata).prepare(
            "POST", metadata.token_endpoint, headers, body
        )
        status, text = self._ask(metadata.token_endpoint, body, headers)
        if status not in {200, 400, 401, 403}:
            raise ProviderFailed(f"{metadata.token_endpoint} answers {status}")
        try:
            answer = msgspec.json.decode(text, type=_TokenAnswer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise LoginRefused(
                f"the provider's answer to the code cannot be read: {error}"
            ) from error
        if status != 200 or answer.error or not answer.id_token:
            why = f"{answer.error or status} {answer.error_description or ''}".strip()
            raise LoginRefused(f"the provider gives no ID token for the code: {why}")
        return answer

    def _client_auth(self, metadata: ProviderMetadata) -> Any:
        client_id, secret = self._section.client_id, self._secret
        methods = metadata.token_endpoint_auth_methods_supported
        if methods is None or "client_secret_basic" in methods:
            # RFC 6749 section 2.3.1: encoded as in a form first.
            return ClientAuth(quote(client_id, ""), quote(secret, ""), "client_secret_basic")
        if "client_secret_post" in methods:
            return ClientAuth(client_id, secret, "client_secret_post")
        raise ProviderFailed(
            f"{self._section.issuer} takes a client secret neither as client_secret_basic nor as"
            " client_secret_post"
        )

    def _read_metadata(self) -> ProviderMetadata:
        issuer = self._section.issuer
        url = issuer.rstrip("/") + _DISCOVERY
        found = self._read_document(url, ProviderMetadata)
        if found.issuer != issuer:
            raise ProviderFailed(
                f"{url} is of the issuer {found.issuer}, but [ledger.portal.oidc] issuer is"
                f" {issuer}; write it exactly as it stands there"
            )
        endpoints = [found.authorization_endpoint, found.token_endpoint, found.jwks_uri]
        for each in (*endpoints, *filter(None, [found.end_session_endpoint])):
            over_tls = each.startswith("https://") or issuer.startswith("http://")
            if not (over_tls and is_https_or_loopback(each)):
                raise ProviderFailed(f"{url} names {each}, which is no https address")
        if "S256" not in (found.code_challenge_methods_supported or ("S256",)):
            raise ProviderFailed(f"{issuer} does not know PKCE with S256")
        return found

    def _read_keys(self) -> tuple[SigningKey, ...]:
        uri = self.metadata().jwks_uri
        keys = parse_keys(self._read_document(uri, _KeySet).keys)
        if not keys:
            raise ProviderFailed(f"{uri} has no RSA or EC key that may sign ID tokens")
        return keys

    def _read_document(self, url: str, kind: type[_FoundT]) -> _FoundT:
        status, text = self._ask(url, None, {"Accept": "application/json"})
        if status != 200:
            raise ProviderFailed(f"{url} answers {status}")
        try:
            return msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProviderFailed(f"{url} cannot be read: {error}") from error

    def _ask(self, url: str, body: str | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return status and body of an answer; a redirect is not followed."""
        try:
            return ask(
                url,
                headers,
                body=body,
                timeout=self._section.timeout,
                trusted=self._trusted,
                most=_MOST_BYTES,
            )
        except OSError as error:
            raise ProviderFailed(str(error)) from error
