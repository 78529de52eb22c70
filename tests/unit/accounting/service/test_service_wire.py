"""Queries and answers, sealed: who may open what, and everything that is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest
from service_lab import FakeMunge, call
from slurmkit_accounting.remote import protocol
from slurmkit_accounting.remote.protocol import (
    ServiceAnswer,
    ServiceFault,
    ServiceQuery,
    open_answer,
    open_query,
    seal,
    seal_answer,
    seal_query,
    unseal,
)
from slurmkit_accounting.service.log import request_id
from slurmkit_accounting.service.queries import QueryTurns
from slurmkit_accounting.service.wsgi import page_application, query_application

from slurmkit.errors import NotVouched, ServiceError

ALICE, KEEPER, MALLORY = 10011, 950, 10066


@pytest.fixture
def munge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMunge:
    fake = FakeMunge(tmp_path / "munge", monkeypatch)
    fake.be(ALICE)
    return fake


def sealed_by(munge: FakeMunge, uid: int, payload: bytes, reader: int) -> bytes:
    munge.be(uid)
    return seal(payload, reader=reader)


@pytest.mark.parametrize("payload", [b"", b"\n\n", b"a\n\nb\xff\x00\n"])
def test_a_payload_comes_out_as_it_went_in(munge: FakeMunge, payload: bytes) -> None:
    opened = unseal(seal(payload, reader=ALICE))
    assert (opened.uid, opened.payload) == (ALICE, payload)


def test_a_credential_is_good_once_and_for_its_reader_only(munge: FakeMunge) -> None:
    credential = seal(b"hi", reader=KEEPER)
    munge.be(MALLORY)
    with pytest.raises(NotVouched, match="is for another user"):
        unseal(credential)
    munge.be(KEEPER)
    assert unseal(credential).uid == ALICE
    with pytest.raises(NotVouched, match="was used before"):
        unseal(credential)


@pytest.mark.parametrize(
    ("code", "words"), [(15, "has expired"), (16, "comes from the future"), (14, "is invalid")]
)
def test_what_munged_refuses_is_said(munge: FakeMunge, code: int, words: str) -> None:
    munge.say(code)
    with pytest.raises(NotVouched, match=words):
        unseal(seal(b"hi", reader=ALICE))


def test_no_credential_at_all(munge: FakeMunge) -> None:
    with pytest.raises(NotVouched, match="is not a MUNGE credential"):
        unseal(b"{}")


def test_munged_that_is_down_and_munge_that_is_missing(
    munge: FakeMunge, monkeypatch: pytest.MonkeyPatch
) -> None:
    munge.say(6)
    with pytest.raises(ServiceError, match="is munged running"):
        unseal(seal(b"", reader=ALICE))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceError, match="munge is not on the PATH"):
        seal(b"", reader=ALICE)


def test_a_query_is_known_by_its_tag(munge: FakeMunge) -> None:
    query = ServiceQuery("usage", {"begin": "2026-10-01"})
    sealed = seal_query(query, service=KEEPER)
    munge.be(KEEPER)
    assert open_query(sealed) == (ALICE, query)
    for other in (b"{}", b"\xff", b'{"type": "something-else", "ask": "usage", "arguments": {}}'):
        with pytest.raises(NotVouched, match="holds no query"):
            open_query(sealed_by(munge, KEEPER, other, KEEPER))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_PAYLOAD", 40)


ANSWER = ServiceAnswer(msgspec.Raw(b'{"rows":[1,2,3]}'), "alice: own runs")


def answered(munge: FakeMunge, nonce: str = "n1", by: int = KEEPER) -> list[bytes]:
    munge.be(by)
    pieces = list(seal_answer(ANSWER, nonce, asker=ALICE))
    munge.be(ALICE)
    return pieces


@pytest.mark.usefixtures("small_pieces")
def test_an_answer_in_pieces(munge: FakeMunge) -> None:
    pieces = answered(munge)
    assert len(pieces) > 1
    assert open_answer(pieces, "n1", service=KEEPER) == ANSWER


@pytest.mark.usefixtures("small_pieces")
def test_a_cut_mixed_replayed_or_foreign_answer_is_noticed(munge: FakeMunge) -> None:
    with pytest.raises(NotVouched, match="was cut off"):
        open_answer(answered(munge)[:-1], "n1", service=KEEPER)
    with pytest.raises(NotVouched, match="0 of 1 pieces"):
        open_answer([], "n1", service=KEEPER)
    with pytest.raises(NotVouched, match="another query"):
        open_answer(answered(munge)[1:], "n1", service=KEEPER)
    with pytest.raises(NotVouched, match="another query"):
        open_answer(answered(munge, "n2"), "n1", service=KEEPER)
    with pytest.raises(NotVouched, match=f"comes from uid {MALLORY}"):
        open_answer(answered(munge, by=MALLORY), "n1", service=KEEPER)
    pieces = answered(munge)
    with pytest.raises(NotVouched, match="used before"):
        open_answer([pieces[0], pieces[0]], "n1", service=KEEPER)
    munge.be(MALLORY)
    with pytest.raises(NotVouched, match="is for another user"):
        open_answer(pieces, "n1", service=KEEPER)


def test_an_answer_that_is_too_large_is_an_error(
    munge: FakeMunge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_PAYLOAD", 1)
    monkeypatch.setattr(protocol, "MAX_PIECES", 4)
    with pytest.raises(ServiceError, match="too large"):
        list(seal_answer(ANSWER, "n1", asker=ALICE))


class Lines(list[tuple[str, dict[str, object]]]):
    def __call__(self, what: str, **facts: object) -> None:
        self.append((what, facts))


def test_the_door_answers_the_uid_that_munged_names(munge: FakeMunge) -> None:
    lines = Lines()
    app = query_application(lambda uid, query: ServiceAnswer(seen_as=f"{uid} {query.ask}"), lines)
    query = ServiceQuery("usage", {"uid": 0})  # whatever it claims
    sealed = seal_query(query, service=KEEPER)
    munge.be(KEEPER)
    status, body = call(app, sealed)
    assert status == "200 OK"
    again, words = call(app, sealed)
    assert (again, b"used before" in words) == ("403 Forbidden", True)
    munge.be(ALICE)
    answer = open_answer(body.splitlines(), query.nonce, service=KEEPER)
    assert answer.seen_as == f"{ALICE} usage"
    assert [what for what, _ in lines] == ["answered", "refused"]


def log_of(
    munge: FakeMunge, answer: Callable[[int, ServiceQuery], ServiceAnswer], name: str
) -> tuple[str, Lines]:
    lines = Lines()
    munge.be(ALICE)
    sealed = seal_query(ServiceQuery(name, {"month": "2026-11", "by": "user"}), service=KEEPER)
    munge.be(KEEPER)
    status, _ = call(query_application(answer, lines), sealed, REMOTE_ADDR="10.0.0.7")
    return status, lines


@pytest.mark.parametrize(
    ("name", "fault", "what"),
    [
        ("usage", None, "answered"),
        ("usage", ServiceFault("BadInput", "no such month"), "answered"),
        ("usage", ServiceFault("AccountExpired", "it has expired"), "refused"),
        ("change_mail_settings", None, "changed"),
        ("change_mail_settings", ServiceFault("BadInput", "no"), "answered"),
        ("grant_allocation", ServiceFault("NotAllowed", "only operators may"), "refused"),
        ("no_such_thing", ServiceFault("BadInput", "there is none"), "answered"),
    ],
)
def test_the_log_says_who_read_who_changed_and_who_was_refused(
    munge: FakeMunge, name: str, fault: ServiceFault | None, what: str
) -> None:
    status, lines = log_of(munge, lambda *_: ServiceAnswer(seen_as="alice", fault=fault), name)
    assert status == "200 OK"
    ((logged, facts),) = lines
    assert logged == what
    assert facts == {
        "uid": ALICE, "ask": name, "sender": "10.0.0.7", "shown_to": "alice",
        "arguments": '{"by":"user","month":"2026-11"}', "fault": fault and fault.message,
    }  # fmt: skip


def test_a_change_is_logged_even_if_its_answer_cannot_be_sent(
    munge: FakeMunge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seals(*_: object, **__: object) -> Iterator[bytes]:
        raise ServiceError("munged is gone")

    monkeypatch.setattr("slurmkit_accounting.service.wsgi.seal_answer", seals)
    status, lines = log_of(munge, lambda *_: ServiceAnswer(), "change_mail_settings")
    assert status.startswith("503")
    assert [what for what, _ in lines] == ["changed", "failed"]
    assert all(facts["uid"] == ALICE for _, facts in lines)


def test_an_unexpected_error_has_an_id_in_the_log_and_in_the_answer(munge: FakeMunge) -> None:
    ids: list[str] = []

    def fail(uid: int, query: ServiceQuery) -> ServiceAnswer:
        ids.append(request_id())
        raise RuntimeError("it broke")

    lines = Lines()
    sealed = seal_query(ServiceQuery("usage", {}), service=KEEPER)
    munge.be(KEEPER)
    status, body = call(query_application(fail, lines), sealed)
    assert status.startswith("500")
    assert body.decode().endswith(f"request={ids[0]}")
    ((what, facts),) = lines
    assert (what, facts["why"]) == ("failed", "RuntimeError: it broke")
    assert "test_service_wire.py:" in str(facts["at"])


def test_an_answer_is_sealed_within_the_turn_of_the_asker(munge: FakeMunge) -> None:
    """To seal a long answer takes long."""
    turn = QueryTurns()

    def seals(*_: object, **__: object) -> list[bytes]:
        with turn(ALICE), pytest.raises(ServiceError, match="still answering 2"), turn(ALICE):
            pass
        return [b"sealed"]

    munge.be(ALICE)
    app = query_application(lambda uid, query: ServiceAnswer(), Lines(), turn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slurmkit_accounting.service.wsgi.seal_answer", seals)
        sealed = seal_query(ServiceQuery("usage", {}), service=ALICE)
        assert call(app, sealed) == ("200 OK", b"sealed")
    with turn(ALICE), turn(ALICE):
        status, words = call(app, seal_query(ServiceQuery("usage", {}), service=ALICE))
    assert status == "503 Service Unavailable"
    assert words.startswith(b"the service is still answering 2 of your queries")


def test_the_door_refuses_what_is_no_query(munge: FakeMunge) -> None:
    app = query_application(lambda uid, query: ServiceAnswer(), Lines())
    assert call(app, b"x", PATH_INFO="/")[0] == "404 Not Found"
    assert call(app, b"x", REQUEST_METHOD="GET")[0] == "405 Method Not Allowed"
    assert call(app, b"x", CONTENT_LENGTH="9" * 9)[0] == "413 Request Entity Too Large"
    assert call(app, b"x", CONTENT_LENGTH="")[0] == "413 Request Entity Too Large"
    assert call(app, b"x")[0] == "403 Forbidden"
    munge.say(6)
    assert call(app, seal(b"", reader=ALICE))[0] == "503 Service Unavailable"


def test_a_query_that_is_too_deep_is_none(munge: FakeMunge) -> None:
    deep = b'{"type":"slurmkit-ledger-query-1","ask":"usage","arguments":{"x":' + b"[" * 100_000
    with pytest.raises(NotVouched, match="holds no query"):
        open_query(sealed_by(munge, ALICE, deep, ALICE))


def test_a_query_that_grows_when_it_is_opened_is_refused(munge: FakeMunge) -> None:
    """`munge --zip` packs a megabyte into some hundred bytes."""
    jobs = ",".join(["1"] * protocol.MAX_QUERY)
    query = msgspec.json.encode(ServiceQuery("usage", {"job": jobs}))
    with pytest.raises(NotVouched, match="the query is too large; at most 262144 bytes"):
        open_query(sealed_by(munge, ALICE, query, ALICE))


def test_an_answer_of_another_release_is_one_line(munge: FakeMunge) -> None:
    munge.be(KEEPER)
    head = b'{"type":"slurmkit-ledger-answer-1","nonce":"n","part":0,"parts":1}\n'
    credential = seal(head + b'{"value":1,"seen_as":2}', reader=ALICE)
    munge.be(ALICE)
    with pytest.raises(ServiceError, match="has another release of slurmkit"):
        open_answer([credential], "n", service=KEEPER)


def test_faults_are_sealed_too(munge: FakeMunge) -> None:
    app = query_application(
        lambda uid, query: ServiceAnswer(fault=ServiceFault("BadInput", "no")), Lines()
    )
    query = ServiceQuery("usage", {})
    sealed = seal_query(query, service=ALICE)
    _, body = call(app, sealed)
    assert open_answer(body.splitlines(), query.nonce, service=ALICE).fault == ServiceFault(
        "BadInput", "no"
    )


def test_pages() -> None:
    app = page_application({"/health": lambda _: (HTTPStatus.OK, "text/plain", b"well\n")})
    assert call(app, PATH_INFO="/health") == ("200 OK", b"well\n")
    assert call(app, PATH_INFO="/") == ("404 Not Found", b"the pages are /health\n")
    app = page_application({"/metrics": lambda kind: (HTTPStatus.OK, "text/plain", kind.encode())})
    assert call(app, PATH_INFO="/metrics", HTTP_ACCEPT="a/b") == ("200 OK", b"a/b")
    assert call(app, PATH_INFO="/metrics") == ("200 OK", b"")
