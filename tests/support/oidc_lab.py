"""An OpenID provider for tests: a real HTTP server on this host that signs real tokens.

It checks what a strict provider checks: client, secret, redirect address, PKCE, and that a code is
used once. What it signs can be changed (`mint`), and so can its answers (`answers`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import msgspec
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from portal_lab import HOST, NOW
from slurmkit_accounting.portal.openid_provider import OpenIdProvider
from slurmkit_accounting.portal.settings import OidcSection

CLIENT = "slurmkit: portal"  # with signs that must be encoded
SECRET = "s3cr=t/+%& with signs"
CALLBACK = f"https://{HOST}/login/oidc/callback"
Minting = Callable[["Grant", dict[str, Any]], str]


@cache
def rsa_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


@cache
def ec_key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid, "use": "sig"})


class Grant(msgspec.Struct, frozen=True):
    """What a code stands for."""

    user: str
    nonce: str
    challenge: str
    redirect_uri: str


class OidcLab:
    """The provider. `now`, `user` and all else may be changed while it runs."""

    def __init__(self) -> None:
        self.now = NOW
        self.user = "alice"  # who is logged in at the provider; their `sub`
        self.claims: dict[str, Any] = {}  # beside those of every token
        self.keys: list[RSAKey | ECKey] = [rsa_key("rsa-1"), ec_key("ec-1")]
        self.signs_with: RSAKey | ECKey = self.keys[0]
        self.mint: Minting = self.honest_token
        self.metadata: dict[str, Any] = {}  # changes of the discovery document
        self.answers: dict[str, tuple[int, bytes]] = {}  # by path, instead of the right ones
        self.asked: list[str] = []
        self.issuer = ""
        self._grants: dict[str, Grant] = {}

    # ---- what the portal knows of it

    def section(self, **changed: Any) -> OidcSection:
        usual = {"issuer": self.issuer, "client_id": CLIENT, "client_secret_file": "/x"}
        return OidcSection(**(usual | changed))

    def as_the_portal_sees_it(self, origin: str, clock: Callable[[], float]) -> OpenIdProvider:
        return OpenIdProvider(self.section(**self.settings), SECRET, origin, clock)

    settings: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

    # ---- what browsers and the portal ask

    def authorize(self, url: str) -> str:
        """Log the user in, and return where their browser is sent back to."""
        asked = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
        assert url.startswith(f"{self.issuer}/authorize?")
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT
        assert asked["redirect_uri"] == CALLBACK
        assert "openid" in asked["scope"].split()
        assert asked["code_challenge_method"] == "S256"
        assert len(asked["code_challenge"]) == 43
        assert len(asked["state"]) >= 20
        code = secrets.token_urlsafe(24)
        grant = Grant(self.user, asked["nonce"], asked["code_challenge"], asked["redirect_uri"])
        self._grants[code] = grant
        answer = {"code": code, "state": asked["state"], "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def standard_claims(self, grant: Grant) -> dict[str, Any]:
        now = int(self.now)
        return {
            "iss": self.issuer, "sub": grant.user, "aud": CLIENT, "exp": now + 300, "iat": now,
            "nonce": grant.nonce, "name": "Vogel", "email": "vogel@example.org",
            "preferred_username": "vogel",
        } | self.claims  # fmt: skip

    def honest_token(self, _: Grant, claims: dict[str, Any]) -> str:
        return self.signed(claims)

    def signed(self, claims: dict[str, Any], key: Any = None, **header: Any) -> str:
        key = key or self.signs_with
        algorithm = "ES256" if isinstance(key, ECKey) else "RS256"
        header = {"alg": algorithm, "kid": key.kid} | header
        return jwt.encode(header, claims, key, algorithms=[header["alg"]])

    def discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "end_session_endpoint": f"{self.issuer}/logout?realm=lab",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256", "ES256", "HS256", "none"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        } | self.metadata

    def key_set(self) -> dict[str, Any]:
        return {"keys": [key.as_dict(private=False) for key in self.keys]}

    def token_answer(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        if not self._is_the_client(form, authorization):
            return 401, {"error": "invalid_client"}
        grant = self._grants.pop(form.get("code", ""), None)
        verifier = form.get("code_verifier", "").encode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier).digest()).rstrip(b"=")
        if (
            grant is None
            or form.get("grant_type") != "authorization_code"
            or form.get("redirect_uri") != grant.redirect_uri
            or not 43 <= len(verifier) <= 128
            or challenge.decode() != grant.challenge
        ):
            return 400, {"error": "invalid_grant", "error_description": "the code is not valid"}
        token = self.mint(grant, self.standard_claims(grant))
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": token}

    def _is_the_client(self, form: dict[str, str], authorization: str) -> bool:
        if self.discovery()["token_endpoint_auth_methods_supported"] == ["client_secret_post"]:
            return (form.get("client_id"), form.get("client_secret")) == (CLIENT, SECRET)
        kind, _, text = authorization.partition(" ")
        client, _, secret = base64.b64decode(text).decode().partition(":")
        return (kind, unquote(client), unquote(secret)) == ("Basic", CLIENT, SECRET)

    def answer(self, path: str, body: str, authorization: str) -> tuple[int, bytes]:
        self.asked.append(path)
        if path in self.answers:
            return self.answers[path]
        if path == "/.well-known/openid-configuration":
            return 200, json.dumps(self.discovery()).encode()
        if path == "/jwks":
            return 200, json.dumps(self.key_set()).encode()
        if path == "/token":
            form = {name: values[0] for name, values in parse_qs(body).items()}
            status, said = self.token_answer(form, authorization)
            return status, json.dumps(said).encode()
        return 404, b"{}"


@contextmanager
def serving_oidc(certificate: Path | None = None) -> Iterator[OidcLab]:
    """Serve a provider on a free port, with TLS if there is a certificate (with its key)."""
    lab = OidcLab()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length).decode()
            authorization = self.headers.get("Authorization") or ""
            status, text = lab.answer(urlsplit(self.path).path, body, authorization)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815 - the name that http.server asks for

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that does not trust the certificate breaks the connection."""

    server = Server(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    lab.issuer = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield lab
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
