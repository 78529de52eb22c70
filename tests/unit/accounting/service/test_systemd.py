"""What the service tells systemd, on a real socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurmkit_accounting.service.systemd import announced_to_systemd, notify, watchdog_seconds


@pytest.fixture
def heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that systemd would read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        path = tmp_path / "notify"
        listening.bind(str(path))
        listening.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        yield listening


def test_it_is_ready_and_then_stops(heard: socket.socket) -> None:
    with announced_to_systemd(lambda: True) as announce_stop:
        assert heard.recv(99) == b"READY=1"
        announce_stop()
    assert heard.recv(99) == b"STOPPING=1"


def test_signs_of_life_end_where_the_service_hangs_and_go_on_while_it_stops(
    heard: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "150000")
    alive, asked = threading.Event(), threading.Semaphore(0)
    alive.set()

    def look() -> bool:
        asked.release()
        return alive.is_set()

    with announced_to_systemd(look) as announce_stop:
        assert heard.recv(99) == b"READY=1"
        assert heard.recv(99) == b"WATCHDOG=1"
        alive.clear()
        for _ in range(3):  # asked again; nothing more is sent but what was on its way
            assert asked.acquire(timeout=20)
        assert set(_waiting(heard)) <= {b"WATCHDOG=1"}
        for _ in range(2):
            assert asked.acquire(timeout=20)
        assert _waiting(heard) == []
        announce_stop()
        assert heard.recv(99) == b"STOPPING=1"
        assert heard.recv(99) == b"WATCHDOG=1"
    _waiting(heard)
    assert _waiting(heard) == []  # the thread has ended


def _waiting(heard: socket.socket) -> list[bytes]:
    """Return the messages that were sent and not read yet."""
    found = []
    heard.setblocking(False)
    try:
        while True:
            found.append(heard.recv(99))
    except BlockingIOError:
        return found
    finally:
        heard.settimeout(20)


def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"slurmkit-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify("READY=1")
        assert listening.recv(99) == b"READY=1"


def test_nothing_is_sent_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "relative", "/nowhere/at/all"):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


@pytest.mark.parametrize(
    ("text", "pid", "seconds"),
    [("2000000", None, 2.0), ("2000000", "1", None), ("0", None, None), ("x", None, None)],
)
def test_the_time_of_the_watchdog(
    text: str, pid: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", text)
    if pid:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    assert watchdog_seconds() == seconds
