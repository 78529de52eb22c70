"""Queries with a token of Slurm's auth/jwt: who is believed, and where a token goes."""

from __future__ import annotations

import hmac
import json
import os
import pwd
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from mail_lab import certificate
from service_lab import call
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.remote import client, slurm_token
from slurmkit_accounting.remote.client import RemoteLedger
from slurmkit_accounting.remote.protocol import ServiceAnswer, ServiceQuery, seal_query
from slurmkit_accounting.remote.slurm_token import TokenBearer
from slurmkit_accounting.service.slurm_tokens import (
    TokenReader,
    check_token,
    load_jwks,
    load_jwt_key,
)
from slurmkit_accounting.service.vouchers import check_vouchers
from slurmkit_accounting.service.wsgi import query_application

from slurmkit.errors import BadConfig, NotVouched, ServiceError

NOW = 1_795_000_000
SECRET = b"\x00{not json}\xff" + bytes(range(32))
ME = pwd.getpwuid(os.getuid()).pw_name
CLAIMS = {"sun": ME, "iat": NOW - 5, "exp": NOW + 100}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwt_hs256.key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


def token(claims: dict[str, Any] | None = None, *, secret: bytes = SECRET, **header: Any) -> bytes:
    head = {"alg": "HS256", "typ": "JWT", **header}
    return jwt.encode(head, claims or CLAIMS, OctKey.import_key(secret)).encode()


def by_hand(header: dict[str, Any], secret: bytes = SECRET) -> bytes:
    """Sign what no library would."""
    text = part(header) + b"." + part(CLAIMS)
    signature = hmac.digest(secret, text, "sha256")
    return text + b"." + urlsafe_b64encode(signature).rstrip(b"=")


def part(content: object) -> bytes:
    return urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")


def test_a_token_of_slurm_names_its_user(key_file: Path) -> None:
    assert check_token(token(), load_jwt_key(str(key_file)), NOW) == ME


UNSIGNED = b".".join((part({"alg": "none"}), part(CLAIMS), b""))


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(token(secret=b"another key of 32 bytes or more!"), id="another key"),
        pytest.param(UNSIGNED, id="unsigned"),
        pytest.param(token() + b"A", id="changed signature"),
        pytest.param(b".".join((token().split(b".")[0], part(CLAIMS | {"sun": "root"}),
                                token().split(b".")[2])), id="changed user"),
        pytest.param(token(CLAIMS | {"exp": NOW}), id="expired"),
        pytest.param(token({"sun": ME, "iat": NOW}), id="without an end"),
        pytest.param(token(CLAIMS | {"nbf": NOW + 120}), id="not yet"),
        pytest.param(token(CLAIMS | {"iat": NOW + 120}), id="from the future"),
        pytest.param(token({"exp": NOW + 9, "iat": NOW}), id="without a user"),
        pytest.param(token(CLAIMS | {"sun": ""}), id="an empty user"),
        pytest.param(token(CLAIMS | {"sun": ["root"]}), id="a list of users"),
        pytest.param(token(CLAIMS | {"sun": "root\n"}), id="a name of two lines"),
        pytest.param(token(CLAIMS | {"exp": "9" * 4000}), id="an end that is no number"),
        pytest.param(by_hand({"alg": "HS256", "crit": ["x"], "x": 1}), id="critical header"),
        pytest.param(by_hand({"alg": "hs256"}), id="no such algorithm"),
        pytest.param(b"", id="empty"),
        pytest.param(b"a.b.c", id="no token"),
        pytest.param(b"\xff" * 40, id="bytes"),
    ],
)  # fmt: skip
def test_nothing_else_is_believed(key_file: Path, forged: bytes) -> None:
    with pytest.raises(NotVouched):
        check_token(forged, load_jwt_key(str(key_file)), NOW)


def test_keys_of_a_sites_own_provider(tmp_path: Path) -> None:
    ours, other = (RSAKey.generate_key(2048, {"kid": kid}) for kid in ("ours", "other"))
    path = tmp_path / "jwks.json"
    keys = [key.as_dict(private=False) for key in (ours, other)]
    path.write_text(json.dumps({"keys": [*keys, {"kty": "oct", "k": "x"}]}), "utf-8")
    known = load_jwks(str(path))
    head = {"alg": "RS256", "kid": "ours"}
    assert check_token(jwt.encode(head, CLAIMS, ours).encode(), known, NOW) == ME
    with pytest.raises(NotVouched):
        check_token(jwt.encode(head, CLAIMS, other).encode(), known, NOW)
    forged = by_hand({"alg": "HS256", "kid": "ours"}, ours.as_pem(private=False))
    with pytest.raises(NotVouched):  # a public key is no secret
        check_token(forged, known, NOW)
    with pytest.raises(NotVouched, match="0 keys"):
        check_token(jwt.encode(head | {"kid": "x"}, CLAIMS, ours).encode(), known, NOW)


def test_a_key_that_cannot_be_used_is_named(tmp_path: Path, key_file: Path) -> None:
    with pytest.raises(BadConfig, match="cannot read"):
        load_jwt_key(str(tmp_path / "none"))
    key_file.chmod(0o644)
    with pytest.raises(BadConfig, match="everybody can read"):
        load_jwt_key(str(key_file))
    key_file.chmod(0o600)
    key_file.write_bytes(b"short")
    with pytest.raises(BadConfig, match="5 bytes"):
        load_jwt_key(str(key_file))
    key_file.write_text('{"keys": [{"kty": "EC"}]}', "utf-8")
    with pytest.raises(BadConfig, match="no RSA key"):
        load_jwks(str(key_file))
    key_file.write_bytes(SECRET)
    with pytest.raises(BadConfig, match="no set of keys"):
        load_jwks(str(key_file))


@pytest.mark.parametrize(
    "text",
    [
        '{"keys": [{"kty": "RSA", "nbf": 1493763266}]}',
        '{"keys": [{"kty": "RSA", "ext": true, "x5t": null}]}',
        '\ufeff{"keys": []}',
        '{"kty": "RSA", "n": "AQAB", "e": "AQAB"}',
        '{"issuer": "https://idp.example.org", "jwks_uri": "https://idp.example.org/keys"}',
        "[]" + " " * 16,
        '{"keys": [{"kty": "RSA", ',
        "-----BEGIN PRIVATE KEY-----\nMIIE",
    ],
)
def test_what_everybody_can_read_is_never_taken_for_a_secret(key_file: Path, text: str) -> None:
    key_file.write_text(text, "utf-8")
    with pytest.raises(BadConfig, match="belong to jwks"):
        load_jwt_key(str(key_file))


def test_keys_have_more_than_is_needed(tmp_path: Path) -> None:
    """Providers add times, flags and certificates."""
    ours = RSAKey.generate_key(2048, {"kid": "ours"})
    more = {"nbf": 1493763266, "ext": True, "x5t": None, "x5c": ["AA=="]}
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [ours.as_dict(private=False) | more]}), "utf-8")
    head, named = {"alg": "RS256", "kid": "ours"}, {"preferred_username": ME, "sun": "root"}
    signed = jwt.encode(head, CLAIMS | named, ours).encode()
    assert check_token(signed, load_jwks(str(path)), NOW, "preferred_username") == ME


def service(key_file: Path, said: list[tuple[str, object]] | None = None) -> Any:
    def who(uid: int, query: ServiceQuery) -> ServiceAnswer:
        return ServiceAnswer(msgspec.Raw(msgspec.json.encode([uid, query.arguments])))

    def log(what: str, **facts: object) -> None:
        if said is not None:
            said.append((f"{what} {facts.get('sender')}", facts.get("why")))

    reader = TokenReader(lambda: load_jwt_key(str(key_file)), now=lambda: NOW)
    return query_application(who, log, proxied=reader)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def behind_tls(app: Any, folder: Path) -> Iterator[tuple[str, Path]]:
    """An application behind TLS; its URL, and the certificate to trust."""
    pem, context = certificate(folder)
    with make_server("127.0.0.1", 0, app, handler_class=_Quiet) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}", pem
        finally:
            server.shutdown()
            thread.join()


def test_a_query_is_answered_as_its_user(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(slurm_token.VARIABLE, token().decode())
    with behind_tls(service(key_file), tmp_path / "tls") as (url, trusted):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        section = ServiceSection(url=url, user=str(os.getuid()), auth="jwt")
        assert RemoteLedger(section).ask("who", {"a": 1}, list) == [os.getuid(), {"a": 1}]


def test_a_token_serves_for_some_queries(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make() -> str:
        made.append(token().decode())
        return made[-1]

    monkeypatch.setattr(client, "own_token", make)
    with behind_tls(service(key_file), tmp_path / "tls") as (url, trusted):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        ledger = RemoteLedger(ServiceSection(url=url, user=str(os.getuid()), auth="jwt"))
        for _ in range(3):
            ledger.ask("who", {}, list)
    assert len(made) == 1


def test_a_refused_token_of_the_environment_is_named(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(slurm_token.VARIABLE, token(CLAIMS | {"exp": NOW - 100}).decode())
    with behind_tls(service(key_file), tmp_path / "tls") as (url, trusted):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        section = ServiceSection(url=url, user=str(os.getuid()), auth="jwt")
        with pytest.raises(ServiceError, match=r"expired.*\$SLURM_JWT: unset it"):
            RemoteLedger(section).ask("who", {}, list)


def test_nobody_without_the_right_certificate_gets_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(slurm_token.VARIABLE, token().decode())
    got: list[object] = []
    other, _ = certificate(tmp_path / "other")
    with behind_tls(lambda environ, _: got.append(environ), tmp_path / "tls") as (url, _):
        monkeypatch.setenv("SSL_CERT_FILE", str(other))
        section = ServiceSection(url=url, user=str(os.getuid()), auth="jwt")
        with pytest.raises(ServiceError, match="does not trust the certificate"):
            RemoteLedger(section).ask("who", {}, list)
    assert not got


def test_the_host_must_know_the_user(key_file: Path) -> None:
    said: list[tuple[str, object]] = []
    bearer = TokenBearer(token(CLAIMS | {"sun": "nobody-here"}).decode(), 1)
    sealed = seal_query(ServiceQuery("who", {}), service=1, voucher=bearer)
    forwarded = {"HTTP_X_FORWARDED_FOR": "10.9.9.9, 10.0.0.7"}  # its own word, then the server's
    status, body = call(service(key_file, said), sealed, **forwarded)
    assert status.startswith("403")
    assert b"does not know user 'nobody-here'" in body
    assert said[0][0] == "refused 10.0.0.7"


def test_what_is_no_token_is_refused_before_the_keys_are_read(tmp_path: Path) -> None:
    sealed = [b"", b"a.b AAAA", b"a" * 20_000 + b".b.c AAAA"]
    for one in sealed:
        status, body = call(service(tmp_path / "no key"), one)
        assert (status[:3], body) == ("403", b"the message has no token of Slurm")
    status, body = call(service(tmp_path / "no key"), token() + b" AAAA")
    assert status.startswith("503")


def test_a_web_server_without_a_service_is_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad_gateway(_: object, start: Any) -> list[bytes]:
        start("502 Bad Gateway", [("Content-Type", "text/html; charset=iso-8859-1")])
        return [b"<html>" + b"x" * 4000]

    monkeypatch.setenv(slurm_token.VARIABLE, token().decode())
    with behind_tls(bad_gateway, tmp_path / "tls") as (url, trusted):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        section = ServiceSection(url=url, user=str(os.getuid()), auth="jwt")
        with pytest.raises(ServiceError, match=r"answers 502 Bad Gateway: the service.*there$"):
            RemoteLedger(section).ask("who", {}, list)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"jwt_key": "KEY"}, "of no use without jwt_socket"),
        ({"jwt_socket": "/x"}, "needs jwt_key or jwks, and not both"),
        ({"jwt_socket": "/x", "jwt_key": "KEY", "jwks": "KEY"}, "and not both"),
        ({"jwt_socket": "unix:/x", "jwt_key": "KEY"}, "write the path of a socket"),
        ({"jwt_socket": "/x", "jwt_key": "/none"}, "cannot read /none"),
    ],
)
def test_settings_that_cannot_work_are_named(
    key_file: Path, settings: dict[str, str], words: str
) -> None:
    made = {name: value.replace("KEY", str(key_file)) for name, value in settings.items()}
    with pytest.raises(BadConfig, match=words):
        check_vouchers(ServiceSection(user=str(os.getuid()), listen="unix:/y", **made))


def test_munge_and_tokens_are_not_taken_for_each_other(key_file: Path) -> None:
    status, _ = call(service(key_file), b"MUNGE:AwQFAAA=:")
    assert status.startswith("403")


@pytest.mark.parametrize("header", [{"alg": "\ud800"}, {"alg": "HS256", "crit": ["\ud800"]}])
def test_no_token_makes_the_service_fail(key_file: Path, header: dict[str, Any]) -> None:
    sealed = by_hand(header) + b" AAAA"
    status, _ = call(service(key_file), sealed)
    assert status.startswith("403")


@pytest.mark.parametrize("host", ["ledger", "127.0.0.1", "localhost", "[::1]"])
def test_a_token_never_goes_out_in_clear(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """On this host, too, somebody else may listen while the service is down."""
    monkeypatch.setattr(client, "own_token", lambda: pytest.fail("asked for a token"))
    section = ServiceSection(url=f"http://{host}:6830", user="0", auth="jwt")
    with pytest.raises(BadConfig, match="must be https://HOST"):
        RemoteLedger(section).ask("who", {}, list)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo SLURM_JWT=abc.def.ghi", ""),
        ("echo >&2 'scontrol: error: no auth/jwt'; exit 1", "no auth/jwt"),
        ("echo hello", "printed no token"),
    ],
)
def test_slurm_gives_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.delenv(slurm_token.VARIABLE, raising=False)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if not says:
        assert slurm_token.own_token() == "abc.def.ghi"
        return
    with pytest.raises(ServiceError, match=says):
        slurm_token.own_token()
