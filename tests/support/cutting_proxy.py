"""A proxy on 127.0.0.1 that hands bytes on until it is told to cut the line."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress


class CuttingProxy:
    """Counts bytes each way since `arm`; when the armed number is reached, both sides are cut.

    Attributes:
        up: bytes handed to the server since `arm`; `down` those handed to the client.
        turns: how often the client spoke again since `arm`, after the server had.
        cuts: how often it has cut.
        hold: while true, it keeps what comes: neither side gets a byte or an end.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.up = self.down = self.turns = self.cuts = 0
        self.hold = False
        self._spoke, self._closed = "", False
        self._limits: dict[str, int] = {}
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def arm(self, way: str = "", after: int = 0) -> None:
        """Cut once so many more bytes have gone `up` or `down`; never without a way."""
        with self._lock:
            self.up = self.down = self.turns = 0
            self._limits = {way: after} if way else {}

    def least(self, act: Callable[[], object]) -> dict[str, int]:
        """Bytes each way that something surely takes: it may take more when the line is slow."""
        found = []
        for _ in range(5):
            self.arm()
            act()
            found.append((self.up, self.down))
        return {"up": min(up for up, _ in found), "down": min(down for _, down in found)}

    def cut(self) -> None:
        """Cut every line now."""
        with self._lock:
            self._cut()

    def close(self) -> None:
        self._closed = True
        self._server.close()
        self.cut()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            with self._lock:
                self._open += [near, far]
                if self._closed:  # meanwhile
                    self._cut()
                    return
            for way, source, sink in (("up", near, far), ("down", far, near)):
                threading.Thread(target=self._copy, args=(way, source, sink), daemon=True).start()

    def _copy(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                while self.hold:
                    time.sleep(0.01)
                with self._lock:
                    piece, last = self._allowed(way, piece)
                    if piece:
                        sink.sendall(piece)
                    if last:
                        self._cut()
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _allowed(self, way: str, piece: bytes) -> tuple[bytes, bool]:
        self.turns += way == "up" != self._spoke
        self._spoke, gone = way, getattr(self, way)
        limit = self._limits.get(way)
        last = limit is not None and gone + len(piece) >= limit
        piece = piece[: limit - gone] if last and limit is not None else piece
        setattr(self, way, gone + len(piece))
        return piece, last

    def _cut(self) -> None:
        self._limits = {}
        self.cuts += 1
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open = []
