"""The service on a Unix socket: the kernel says who asks, and nothing needs MUNGE."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from service_lab import FakeMunge, call
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.remote.client import RemoteLedger
from slurmkit_accounting.remote.protocol import (
    ServiceAnswer,
    ServiceQuery,
    SocketPeer,
    seal_query,
)
from slurmkit_accounting.service import listening
from slurmkit_accounting.service.listening import serving_on
from slurmkit_accounting.service.server import serve
from slurmkit_accounting.service.wsgi import query_application

from slurmkit.errors import BadConfig, NotVouched, ServiceError, SlurmkitError

ALICE, MALLORY = 10011, 10066
ME = os.getuid()


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A socket in a folder that everybody may enter; there is no MUNGE."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    yield folder / "ledger.sock"
    shutil.rmtree(folder)


def said(what: str, **facts: object) -> None:
    print(what, facts)  # shown where a test fails


def who_asks(uid: int, query: ServiceQuery) -> ServiceAnswer:
    return ServiceAnswer(msgspec.Raw(msgspec.json.encode([uid, query.arguments])))


def service(path: Path) -> Any:
    app = query_application(who_asks, said, on_socket=True)
    return serving_on(f"unix:{path}", app, 2, for_all=True)


def ask(path: Path, user: int = ME, **arguments: object) -> Any:
    section = ServiceSection(url=f"unix:{path}", user=str(user))
    return RemoteLedger(section).ask("who", arguments, list)


def as_user(uid: int, call: Callable[[], object]) -> Any:
    """Call a function in a process of another user; what it returns, or its error."""
    read_end, write_end = os.pipe()
    if not (child := os.fork()):
        try:
            os.setresuid(uid, uid, uid)
            done: object = call()
        except (SlurmkitError, OSError) as error:
            done = [type(error).__name__, str(error)]
        os.write(write_end, json.dumps(done).encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as answer:
        return json.loads(answer.read())


needs_root = pytest.mark.skipif(ME != 0, reason="only root can be other users")


@needs_root
def test_the_kernel_says_who_asks(path: Path) -> None:
    with service(path):
        assert ask(path, uid=0) == [ME, {"uid": 0}]  # whatever it claims
        assert as_user(ALICE, lambda: ask(path, uid=0)) == [ALICE, {"uid": 0}]
        assert as_user(MALLORY, lambda: ask(path)) == [MALLORY, {}]


@needs_root
def test_a_client_asks_nobody_but_the_account_of_the_service(path: Path) -> None:
    with service(path):
        kind, words = as_user(ALICE, lambda: ask(path, user=950))
    assert kind == "NotVouched"
    assert words.startswith("uid 0 listens on the socket, not uid 950; set [ledger.service] user")


def test_a_long_answer_comes_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit_accounting.remote.protocol.MAX_PAYLOAD", 1000)
    with service(path):
        assert ask(path, text="x" * 50_000)[1] == {"text": "x" * 50_000}


def test_what_is_no_query_is_refused() -> None:
    app = query_application(who_asks, said, on_socket=True)
    query = seal_query(ServiceQuery("who", {}), service=7, voucher=SocketPeer(7))
    assert call(app, query, REMOTE_ADDR="uid:7")[0] == "200 OK"
    for body in (b"MUNGE:xx:", b"{}", b"\xff", b""):
        assert call(app, body, REMOTE_ADDR="uid:7")[0] == "403 Forbidden"
    for sender in ("127.0.0.1", "localhost", "uid:", "uid:-1", "uid:x", None):
        assert call(app, query, REMOTE_ADDR=sender)[0] == "403 Forbidden"


def test_no_header_names_another_user(path: Path) -> None:
    """Where the other end only forwards, it is who asks."""
    with service(path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
        opened.connect(str(path))
        voucher = SocketPeer(ME)
        body = seal_query(ServiceQuery("who", {}), service=ME, voucher=voucher)
        names = ("Remote-Addr", "Remote_Addr", "X-Forwarded-For", "Forwarded", "X-Forwarded-Host")
        lines = "".join(f"{name}: uid:10011\r\n" for name in names)
        opened.sendall(
            f"POST /v1/query HTTP/1.0\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        with opened.makefile("rb") as answer:
            _, _, pieces = answer.read().partition(b"\r\n\r\n")
        (piece,) = pieces.splitlines()
        _, _, text = voucher.unseal(piece).payload.partition(b"\n")
        assert json.loads(text)["value"] == [ME, {}]


def test_everybody_may_connect_but_not_in_the_place_of_the_service(path: Path) -> None:
    with service(path):
        assert path.stat().st_mode & 0o777 == 0o666
    assert not path.exists()
    with serving_on(f"unix:{path}", query_application(who_asks, said), 2):
        assert path.stat().st_mode & 0o777 == 0o660  # as the pages have it, behind a proxy


def test_nothing_there(path: Path) -> None:
    with pytest.raises(ServiceError, match=r"does not answer: .*No such file"):
        ask(path)
    with pytest.raises(BadConfig, match="or unix:/PATH of a socket"):
        RemoteLedger(ServiceSection(url="ftp://x", user=str(ME))).ask("who", {}, list)


def test_one_user_cannot_take_all_connections(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(listening, "_CONNECTIONS_PER_ADDRESS", 2)
    with service(path):
        held = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for one in held:
            one.settimeout(20)
            one.connect(str(path))
        assert held[2].recv(1) == b""  # closed at once
        for one in held:
            one.close()


def test_it_starts_without_munge_only_on_sockets(path: Path, configure) -> None:
    configure(
        f'[ledger.service]\nuser = "{ME}"\nlisten = "127.0.0.1:0 unix:{path}"\n'
        'monitor = "127.0.0.1:0"\n'
    )
    with pytest.raises(ServiceError, match="munge is not on the PATH"):
        serve(None)
    configure(f'[ledger.service]\nuser = "{ME}"\nlisten = "unix:{path}"\nmonitor = "unix:{path}"\n')
    with pytest.raises(BadConfig, match="two listeners have the address unix:"):
        serve(None)


@pytest.mark.parametrize("listen", ["", " "])
def test_a_service_without_an_address_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configure, listen: str
) -> None:
    FakeMunge(tmp_path / "munge", monkeypatch)
    configure(f'[ledger.service]\nuser = "{ME}"\nlisten = "{listen}"\nmonitor = "127.0.0.1:0"\n')
    with pytest.raises(ServiceError, match="cannot listen on : "):
        serve(None)


def test_another_kind_of_message_is_noticed() -> None:
    with pytest.raises(NotVouched, match="not one of slurmkit on a Unix socket"):
        SocketPeer(7).unseal(b"not base64!")
