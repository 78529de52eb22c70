"""A service to ask, without a munged: who asks is said by a stand-in."""

from __future__ import annotations

import io
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurmkit_accounting.service.listening import serving_on

STAND_IN = Path(__file__).parent / "stand_in_munge.py"
SERVICE_UID = os.getuid()  # the account of [ledger.service] user in these tests


class FakeMunge:
    """`munge` and `unmunge` on a PATH of their own; `be` changes who calls them."""

    def __init__(self, folder: Path, monkeypatch: Any) -> None:
        self._set = monkeypatch.setenv
        self._unset = monkeypatch.delenv
        folder.mkdir()
        for name in ("munge", "unmunge"):
            script = folder / name
            text = STAND_IN.read_text().replace("/usr/bin/env python3", f"{sys.executable} -S")
            script.write_text(text)
            script.chmod(0o755)
        self._set("PATH", f"{folder}:{os.environ['PATH']}")
        self._set("STAND_IN_SEEN", str(folder / "seen"))

    def be(self, uid: int) -> None:
        self._set("STAND_IN_UID", str(uid))

    def say(self, code: int) -> None:
        self._set("STAND_IN_SAYS", str(code))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """An application on a free port; its URL."""
    with serving_on("127.0.0.1:0", app, 4) as port:
        yield f"http://127.0.0.1:{port}"


def call(app: Any, body: bytes = b"", **environ: Any) -> tuple[str, bytes]:
    """Ask an application directly; status and body."""
    said: list[str] = []
    usual = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/v1/query",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    text = b"".join(app(usual | environ, lambda status, _: said.append(status)))
    return said[0], text
