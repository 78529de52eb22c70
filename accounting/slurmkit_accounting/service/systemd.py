"""Messages to systemd (sd_notify(3)): the service is ready, alive, or stopping.

Without NOTIFY_SOCKET, as outside of systemd, nothing is sent.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PINGS = 3  # in the time after which systemd takes the service for hung


def notify(state: str) -> None:
    """Send one message, e.g. `READY=1`; systemd that does not listen is no error."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address[0] == "@":  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.connect(address)
        sending.sendall(state.encode())


def watchdog_seconds() -> float | None:
    """Return within how many seconds systemd wants a sign of life; None if it wants none."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = os.environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) else None


@contextmanager
def announced_to_systemd(is_alive: Callable[[], bool]) -> Iterator[Callable[[], None]]:
    """Tell systemd that the service is ready, and until the end of the `with` that it is alive.

    Yields a function that announces the stop. From then on `is_alive` is not asked any more, since
    a service that stops finishes its task first.

    Args:
        is_alive: asked before each sign of life; without one, systemd restarts the service.
    """
    stopping, ended = threading.Event(), threading.Event()

    def announce_stop() -> None:
        stopping.set()
        notify("STOPPING=1")

    def ping(seconds: float) -> None:
        while not ended.wait(seconds):
            if stopping.is_set() or is_alive():
                notify("WATCHDOG=1")

    seconds = watchdog_seconds()
    thread = threading.Thread(target=ping, args=[(seconds or 0) / _PINGS], daemon=True)
    if seconds:
        thread.start()
    notify("READY=1")
    try:
        yield announce_stop
    finally:
        ended.set()
        if seconds:
            thread.join()
