"""500 hostile logins at the OpenID provider: forged, stale, foreign and senseless tokens, replays.

Each is one of the attacks below with random details, and must be refused for its own reason. Nobody
gets in; between them and after them an honest login still does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import random
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from joserfc.jwk import RSAKey
from oidc_lab import CLIENT, SECRET, OidcLab, ec_key, rsa_key, serving_oidc
from portal_lab import HOST, Browser, PortalLab, words_of
from report_books import BEGIN, run, write_books
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.portal.oidc_login import _REFUSED

SEED = int(os.environ.get("SLURMKIT_TEST_RANDOM_SEED", "23"))
ATTEMPTS = 500
Claims: TypeAlias = dict[str, Any]
Attack: TypeAlias = Callable[[OidcLab, Claims, random.Random], str]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_for_writing(f"sqlite:///{tmp_path_factory.mktemp('books')}/ledger.db") as ledger:
        write_books(ledger, [run("alice", BEGIN, BEGIN + 3600, gpus={"a100": 2})])
        yield ledger


# ---- tokens by hand: what no library would make


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def rs256(key: RSAKey, message: bytes) -> bytes:
    private = key.private_key
    assert private is not None
    return private.sign(message, padding.PKCS1v15(), hashes.SHA256())


def by_hand(header: Any, payload: Any, sign: Callable[[bytes], bytes]) -> str:
    start = f"{part(header)}.{part(payload)}"
    return f"{start}.{part(sign(start.encode()))}"


def as_signed(provider: OidcLab, payload: Any, **header: Any) -> str:
    """A token with the provider's own signature, whatever stands in it."""
    full = {"alg": "RS256", "kid": "rsa-1"} | header
    return by_hand(full, payload, lambda message: rs256(rsa_key("rsa-1"), message))


# ---- the attacks: a name, why it is refused, and a token


def broken_signature(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    start, _, signature = provider.signed(claims).rpartition(".")
    at = dice.randrange(len(signature) - 1)
    other = dice.choice("ABCDEFGHabcdefgh23456789".replace(signature[at], ""))
    return f"{start}.{signature[:at]}{other}{signature[at + 1 :]}"


def cut_signature(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    start, _, signature = provider.signed(claims).rpartition(".")
    return f"{start}.{signature[: dice.randrange(0, 200, 4)]}"


def changed_payload(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    header, _, signature = provider.signed(claims).split(".")
    changed = claims | {"sub": dice.choice(("vogel", "garcia", "bob"))}
    return f"{header}.{part(changed)}.{signature}"


def key_of_the_attacker(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    kid = dice.choice(("rsa-1", "ec-1"))
    key = rsa_key("attacker") if kid == "rsa-1" else ec_key("attacker")
    return provider.signed(claims, key, kid=kid)


def key_in_the_token(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    own = rsa_key("attacker")
    header = dice.choice(
        (
            {"jwk": own.as_dict(private=False)},
            {"jku": "https://evil.example/jwks"},
            {"x5u": "https://evil.example/chain.pem"},
        )
    )
    full = {"alg": "RS256", "kid": "rsa-1"} | header
    if "jwk" in header:
        full["jwk"] = {"kty": "RSA", "e": "AQAB"}  # within the limit of a header
    return by_hand(full, claims, lambda message: rs256(own, message))


def unsigned(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    header = {"alg": dice.choice(("none", "None", "NONE", "nOnE", "", "null"))}
    if dice.random() < 0.5:
        header["kid"] = "rsa-1"
    kept = provider.signed(claims).rpartition(".")[2]
    return f"{part(header)}.{part(claims)}.{dice.choice(('', kept))}"


def signed_with_what_is_public(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    """HS256 with the public key, or with the client's secret."""
    public = rsa_key("rsa-1").public_key
    pem, der = serialization.Encoding.PEM, serialization.Encoding.DER
    spki, pkcs1 = (
        serialization.PublicFormat.SubjectPublicKeyInfo,
        serialization.PublicFormat.PKCS1,
    )
    known = (
        public.public_bytes(pem, spki), public.public_bytes(der, spki),
        public.public_bytes(pem, pkcs1), public.public_bytes(pem, spki).strip(),
        json.dumps(rsa_key("rsa-1").as_dict(private=False)).encode(), SECRET.encode(), b"", b"x",
    )  # fmt: skip
    bits = dice.choice((256, 384, 512))
    header = {"alg": f"HS{bits}", "kid": dice.choice(("rsa-1", "ec-1"))}
    key = dice.choice(known)
    return by_hand(header, claims, lambda message: hmac.new(key, message, f"sha{bits}").digest())


def other_algorithms(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    header = {"alg": dice.choice(("RS1", "ES256K", "EdDSA", "RSA-OAEP", "dir", "rs256", ["RS256"]))}
    return by_hand(
        header | {"kid": "rsa-1"}, claims, lambda message: rs256(rsa_key("rsa-1"), message)
    )


def zero_signature(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    """CVE-2022-21449: r = s = 0 fits every message where that is not checked."""
    header = {"alg": "ES256", "kid": "ec-1"}
    return by_hand(header, claims, lambda _: bytes(dice.choice((64, 0, 32, 63, 65, 96))))


def key_of_the_other_kind(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    algorithm, kid = dice.choice((("ES256", "rsa-1"), ("RS256", "ec-1"), ("PS256", "ec-1")))
    return by_hand({"alg": algorithm, "kid": kid}, claims, lambda _: bytes(256))


def unknown_key(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    kid = dice.choice(("rsa-2", "", "../../dev/null", "RSA-1", "rsa-1 ", "' OR 1=1 --", "%", "0"))
    return provider.signed(claims, kid=kid)


def key_for_something_else(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    """Keys that the provider shows, but not to sign ID tokens."""
    kid = dice.choice(("for-encryption", "too-short", "symmetric", "broken"))
    return provider.signed(claims, rsa_key("attacker"), kid=kid)


def no_kid(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    """With several keys, a token must say which."""
    key = dice.choice((rsa_key("attacker"), rsa_key("rsa-1")))
    return by_hand({"alg": "RS256"}, claims, lambda message: rs256(key, message))


def senseless_header(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    header = dice.choice(
        (
            b"{", b"", b"[]", b'"alg"', b"null", b"5", b"\xff\xfe", b"[" * 500, {},
            {"kid": "rsa-1"}, {"alg": None}, {"alg": {}}, {"alg": "RS256", "kid": 5},
            {"alg": "RS256", "kid": ["x"]},
            {"alg": "RS256", "kid": "rsa-1", "crit": 5}, {"alg": "RS256", "kid": "rsa-1" * 200},
        )
    )  # fmt: skip
    return by_hand(header, claims, lambda message: rs256(rsa_key("rsa-1"), message))


def critical_header(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    header = dice.choice(
        ({"crit": ["b64"], "b64": False}, {"crit": ["exp"], "exp": 1}, {"crit": ["kid"]})
    )
    return as_signed(provider, claims, **header)


def other_kind_of_token(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    """Access tokens and the like have the provider's signature, too."""
    kind = dice.choice(("at+jwt", "application/at+jwt", "logout+jwt", "dpop+jwt", "JOSE", "", 5))
    return as_signed(provider, claims, typ=kind)


def senseless_payload(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    payload = dice.choice(
        (b"", b"{", b"[]", b'"x"', b"null", b"7", b"\xff\xfe{}", b"[" * 20_000, b"{}" * 2, [claims])
    )
    return as_signed(provider, payload)


def no_token(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    signed = provider.signed(claims)
    return dice.choice(
        (
            "", ".", "..", "...", "a.b", "a.b.c", "é.é.é", "\0.\0.\0", signed + ".", "." + signed,
            signed + "." + signed, signed.replace(".", "..", 1), signed.replace(".", " "),
            signed + "=", "Bearer " + signed, signed.partition(".")[2], "a.b.c.d.e",
            dice.randbytes(300).hex(), json.dumps({"payload": "", "signatures": []}),
        )
    )  # fmt: skip


def too_long(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    return provider.signed(claims | {"groups": "x" * dice.randrange(33_000, 150_000)})


def expired(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    end = int(provider.now) - dice.choice((60, 61, 3600, 10**6, 10**9, 2 * 10**9, 10**30))
    return provider.signed(claims | {"exp": end})


def from_the_future(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    later = int(provider.now) + dice.choice((61, 3600, 10**6, 10**30))
    return provider.signed(claims | {dice.choice(("nbf", "iat")): later})


def from_before_this_login(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    return provider.signed(claims | {"iat": int(provider.now) - dice.choice((61, 3600, 10**9))})


def senseless_times(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    name = dice.choice(("exp", "iat", "nbf"))
    value = dice.choice(
        ("never", "9999999999", None, True, [], {}, [2**40], float("nan"), float("inf"))
    )
    return as_signed(provider, claims | {name: value})


def other_issuer(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    own = provider.issuer
    other = dice.choice(
        (
            own + "/", own.upper(), own[:-1], own + "0", "https" + own[4:], "https://evil.example",
            own.replace("127.0.0.1", "localhost"), "", None, 5, [own], {own: 1}, own + "\0",
        )
    )  # fmt: skip
    return provider.signed(claims | {"iss": other})


def other_audience(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    other = dice.choice(
        (
            "other", CLIENT + " ", CLIENT.upper(), CLIENT[:-1], f"https://{HOST}", "", None, 5, [],
            ["other"], ["other", "more"], [CLIENT, 5], {CLIENT: 1}, True, f"{CLIENT} other",
        )
    )  # fmt: skip
    return provider.signed(claims | {"aud": other})


def other_party(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    if dice.random() < 0.3:
        return provider.signed(claims | {"aud": [CLIENT, "other"]})  # and no azp
    audience = dice.choice((CLIENT, [CLIENT], [CLIENT, "other"], ["other", CLIENT]))
    party = dice.choice(("other", "", None, 5, [CLIENT], CLIENT + " ", CLIENT.upper()))
    return provider.signed(claims | {"aud": audience, "azp": party})


def other_nonce(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    nonce = claims["nonce"]
    other = dice.choice(
        (
            "", None, "0" * 64, nonce[:-1], nonce + "0", nonce.upper() + "x", [nonce], {nonce: 1},
            5, True,
        )
    )  # fmt: skip
    return provider.signed(claims | {"nonce": other})


def missing_claim(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    name = dice.choice(("iss", "sub", "aud", "exp", "iat", "nonce"))
    return provider.signed({key: value for key, value in claims.items() if key != name})


def other_access_token(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    other = hashlib.sha256(dice.randbytes(8)).digest()[:16]
    return provider.signed(claims | {"at_hash": dice.choice((part(other), "x", "opaque"))})


def nobodys_id(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    """Name, user name and mail address of the token are those of vogel."""
    who = dice.choice(
        (
            "vogel@example.org", "Vogel", "VOGEL", "vogel ", " vogel", "2003", "3", "x" * 255,
            "uid=vogel", "*", "%", "_____", "vоgel", "' OR '1'='1", "root", "0",
        )
    )  # fmt: skip
    return provider.signed(claims | {"sub": who})


def id_of_another_kind(provider: OidcLab, claims: Claims, dice: random.Random) -> str:
    who = dice.choice(
        (5, None, True, [], ["vogel"], {"vogel": 1}, "", "x" * 256, 3.0, "vogel\0", "\ud800")
    )
    return as_signed(provider, claims | {"sub": who})


TOKENS: dict[Attack, str] = {
    broken_signature: "bad_signature",
    cut_signature: "bad_signature|Invalid",
    changed_payload: "bad_signature",
    key_of_the_attacker: "bad_signature",
    key_in_the_token: "bad_signature",
    unsigned: "unsupported_algorithm",
    signed_with_what_is_public: "unsupported_algorithm",
    other_algorithms: "unsupported_algorithm|'alg' in header must be a str",
    zero_signature: "bad_signature",
    key_of_the_other_kind: "has 0 keys",
    unknown_key: "the provider has no key",
    key_for_something_else: "the provider has no key",
    no_kid: "the provider has 2 keys",
    senseless_header: "the ID token: ",
    critical_header: "critical header|unsupported_header|bad_signature",
    other_kind_of_token: "no ID token, but a token of type|'typ' in header must be a str",
    senseless_payload: "the ID token: ",
    no_token: "the ID token: |gives no ID token",
    too_long: "longer than",
    expired: "expired_token",
    from_the_future: "not yet valid|issued in the future",
    from_before_this_login: "older than this login",
    senseless_times: "must be a NumericDate",
    other_issuer: "invalid_claim.*iss|missing_claim.*iss",
    other_audience: "invalid_claim.*aud|missing_claim.*aud",
    other_party: "azp",
    other_nonce: "nonce",
    missing_claim: "missing_claim",
    other_access_token: "at_hash",
    nobodys_id: "nobody in the ledger has the directory id",
    id_of_another_kind: "invalid_claim.*sub|no claim sub",
}


# ---- attacks on the way there and back


def replayed_answer(lab: PortalLab, provider: OidcLab, dice: random.Random) -> tuple[Browser, Any]:
    """Code and state of a login that was successful, also with its cookie."""
    victim, thief = lab.browser(), lab.browser()
    answer = victim.answer_of(provider)
    pending = victim.pending_logins
    assert pending
    assert victim.get(answer).status_code == 303
    log_out(victim)
    if dice.random() < 0.7:
        for name, cookie in pending.items():
            thief.client.set_cookie(name, cookie, domain=HOST)
    return thief, thief.get(answer)


def code_of_another_login(
    lab: PortalLab, provider: OidcLab, dice: random.Random
) -> tuple[Browser, Any]:
    """A stolen code, put into a login that the thief began: PKCE and nonce are others."""
    code = re.search("code=([^&]+)", lab.browser().answer_of(provider))
    thief = lab.browser()
    own = thief.answer_of(provider)
    assert code
    return thief, thief.get(re.sub("code=[^&]+", f"code={code[1]}", own))


def state_of_another_login(
    lab: PortalLab, provider: OidcLab, dice: random.Random
) -> tuple[Browser, Any]:
    victim, thief = lab.browser(), lab.browser()
    answer = victim.answer_of(provider)
    if dice.random() < 0.5:
        thief.start_login()
    return thief, thief.get(answer)


def token_of_another_login(
    lab: PortalLab, provider: OidcLab, dice: random.Random
) -> tuple[Browser, Any]:
    """The provider, or somebody in its place, sends the valid token of another login again."""
    kept: list[str] = []

    def keep(_: Any, claims: Claims) -> str:
        kept.append(provider.signed(claims))
        return kept[-1]

    provider.mint = keep
    victim, thief = lab.browser(), lab.browser()
    assert victim.log_in_at(provider).status_code == 303
    log_out(victim)
    provider.mint = lambda *_: kept[0]
    return thief, thief.log_in_at(provider)


def changed_state(lab: PortalLab, provider: OidcLab, dice: random.Random) -> tuple[Browser, Any]:
    thief = lab.browser()
    answer = thief.answer_of(provider)
    given = dice.choice(("state=", "state=x&", "state=%00x", "state=%C3%A9", "state=a&state=b"))
    return thief, thief.get(re.sub("state=[^&]+", given, answer))


def late_answer(lab: PortalLab, provider: OidcLab, dice: random.Random) -> tuple[Browser, Any]:
    thief = lab.browser()
    answer = thief.answer_of(provider)
    lab.now += dice.choice((600, 601, 86400))
    return thief, thief.get(answer)


def answer_of_another_provider(
    lab: PortalLab, provider: OidcLab, dice: random.Random
) -> tuple[Browser, Any]:
    thief = lab.browser()
    issuer = dice.choice(("https://evil.example", "", provider.issuer + "/"))
    return thief, thief.get(re.sub("iss=[^&]*", f"iss={issuer}", thief.answer_of(provider)))


FLOWS: dict[Callable[..., tuple[Browser, Any]], str] = {
    replayed_answer: "state is used once|has not begun a login",
    code_of_another_login: "invalid_grant",
    state_of_another_login: "has not begun a login",
    token_of_another_login: "nonce",
    changed_state: "state|400",
    late_answer: "minutes ago",
    answer_of_another_provider: "comes from",
}


def log_out(browser: Browser) -> None:
    assert browser.send("/logout").status_code == 303


def open_sessions(folder: Path) -> int:
    file = sqlite3.connect(folder / "portal" / "sessions.db")
    (count,) = file.execute("SELECT count(*) FROM sessions").fetchone()
    file.close()
    return int(count)


def log_in_honestly(lab: PortalLab, provider: OidcLab) -> None:
    browser = lab.browser()
    provider.mint, provider.now = provider.honest_token, lab.now
    assert browser.log_in_at(provider).status_code == 303
    assert browser.get("/account").status_code == 200
    log_out(browser)


def odd_keys() -> list[dict[str, Any]]:
    """Keys that a provider may show, and that nobody may sign with; one has the attacker's."""
    own = rsa_key("attacker").as_dict(private=False)
    short = base64.urlsafe_b64encode(b"\x01" * 128).rstrip(b"=").decode()
    return [
        own | {"kid": "for-encryption", "use": "enc"},
        own | {"kid": "too-short", "n": short},
        {"kty": "oct", "kid": "symmetric", "k": part(b"x" * 32)},
        {"kty": "RSA", "kid": "broken", "n": 5, "e": None},
        {"kty": "OKP", "kid": "ed", "crv": "Ed25519", "x": part(b"x" * 32)},
        {"kid": "no type"},
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory: each attempt is a transaction on disk, which a busy disk makes slow."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


@pytest.fixture
def provider() -> Iterator[OidcLab]:
    with serving_oidc() as made:
        made.keys = [rsa_key("rsa-1"), rsa_key("rsa-spare"), ec_key("ec-1")]
        shown = [*odd_keys(), *(key.as_dict(private=False) for key in made.keys), 5, None, "x"]
        made.answers["/jwks"] = (200, json.dumps({"keys": shown}).encode())
        yield made


def test_500_hostile_logins_and_nobody_gets_in(
    books: Ledger, folder: Path, provider: OidcLab
) -> None:
    lab = PortalLab(books, folder, login=("oidc",), provider=provider)
    dice = random.Random(SEED)
    attacks: list[Any] = [*TOKENS, *FLOWS]
    chosen = (attacks * (ATTEMPTS // len(attacks) + 1))[:ATTEMPTS]
    dice.shuffle(chosen)
    done: Counter[str] = Counter()
    for at, attack in enumerate(chosen):
        if at % 100 == 0:
            log_in_honestly(lab, provider)
        provider.mint, provider.now = provider.honest_token, lab.now
        provider.user = dice.choice(("alice", "bob", "vogel", "garcia"))
        # Each from another address: a limit of failures must not be what keeps them out.
        lab.address = f"2001:db8:{at:x}::1"
        lines = len(lab.lines)
        if attack in TOKENS:
            thief = lab.browser()
            provider.mint = lambda _, claims, attack=attack: attack(provider, claims, dice)
            answer = thief.log_in_at(provider)
        else:
            thief, answer = attack(lab, provider, dice)
        told = f"seed {SEED}, attempt {at}: {attack.__name__}"
        assert answer.status_code in {400, 403}, told
        assert answer.status_code == 400 or _REFUSED in words_of(answer.text), told
        assert not thief.cookie, told
        assert thief.get("/").status_code == 303, told
        assert open_sessions(folder) == 0, told
        said = [line for line in lab.lines[lines:] if line.startswith("login refused")]
        why = {**TOKENS, **FLOWS}[attack]
        if answer.status_code == 403:
            assert len(said) == 1, told
            assert re.search(f"via=oidc why=.*({why})", said[0], re.DOTALL), (told, said)
        done[attack.__name__] += 1
    log_in_honestly(lab, provider)
    assert done.total() == ATTEMPTS
    assert min(done.values()) >= 10
    assert set(done) == {attack.__name__ for attack in attacks}


def test_what_the_attacks_begin_with_gets_in(
    books: Ledger, folder: Path, provider: OidcLab
) -> None:
    """Tokens by hand as well: else the attacks could be refused for how they are written."""
    lab = PortalLab(books, folder, login=("oidc",), provider=provider)
    log_in_honestly(lab, provider)
    provider.mint = lambda _, claims: as_signed(provider, claims)
    assert lab.browser().log_in_at(provider).status_code == 303
