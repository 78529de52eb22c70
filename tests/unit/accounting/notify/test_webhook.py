"""Webhooks: verified, signed, and told apart when they are sent again."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from mail_lab import NOTICE, certificate
from slurmkit_accounting.config import WebhookSection
from slurmkit_accounting.notify.webhook import Webhook

from slurmkit.errors import BadConfig, MaybeSent, NotSent


class Receiver(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[str, dict[str, str], bytes]]] = []
    status = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, dict(self.headers), body))
        if not self.status:  # taken, and gone
            return
        self.send_response(self.status)
        self.send_header("Location", "https://elsewhere.example/")
        self.end_headers()
        self.wfile.write(b"said")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Webhook]:
    ca, context = certificate(tmp_path / "tls")
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
    Receiver.got, Receiver.status = [], 200
    webhook = Webhook()
    url = f"https://127.0.0.1:{server.server_port}/in?to=gpu"
    webhook.section = WebhookSection(url=url, secret_file=str(secret), ca_file=str(ca), timeout=5)
    yield webhook
    server.shutdown()
    server.server_close()


def test_a_notice_arrives_signed(hook: Webhook) -> None:
    hook.send(NOTICE)
    hook.send(NOTICE)
    (path, headers, body), (_, again, _) = Receiver.got
    assert path == "/in?to=gpu"
    told = json.loads(body)
    assert (told["kind"], told["facts"]) == ("month", {"month": "2026-10"})
    assert "html" not in told
    signed = f"{headers['X-Slurmkit-Time']}.".encode() + body
    mac = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
    assert headers["X-Slurmkit-Signature"] == f"sha256={mac}"
    assert headers["X-Slurmkit-Id"] == again["X-Slurmkit-Id"]


@pytest.mark.parametrize("status", [302, 400, 500])
def test_what_is_not_well_was_not_sent(hook: Webhook, status: int) -> None:
    Receiver.status = status
    with pytest.raises(NotSent, match=f"refused the notice: {status} said"):
        hook.send(NOTICE)
    assert len(Receiver.got) == 1  # no redirect was followed


def test_no_answer_is_a_doubt(hook: Webhook) -> None:
    Receiver.status = 0
    with pytest.raises(MaybeSent):
        hook.send(NOTICE)


def test_the_certificate_is_verified(hook: Webhook) -> None:
    hook.section = WebhookSection(url=hook.section.url, secret_file=hook.section.secret_file)
    with pytest.raises(NotSent, match="certificate verify failed"):
        hook.send(NOTICE)
    assert Receiver.got == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"url": "http://127.0.0.1/"}, "write https://"),
        ({"secret_file": ""}, "has no secret"),
        ({"secret_file": "/nowhere"}, "cannot read /nowhere"),
        ({"ca_file": "/nowhere"}, "cannot read /nowhere"),
    ],
)
def test_settings_that_cannot_be(hook: Webhook, change: dict[str, str], words: str) -> None:
    kept = {name: getattr(hook.section, name) for name in ("url", "secret_file", "ca_file")}
    hook.section = WebhookSection(**(kept | change))
    with pytest.raises(BadConfig, match=words):
        hook.send(NOTICE)


@pytest.mark.parametrize(
    "url", ["", "http://x/?token=s3cret", "https://", "https://[::1/", "https://x:99999/s3cret"]
)
def test_no_url_is_one_line_without_what_may_be_a_secret(hook: Webhook, url: str) -> None:
    hook.section = WebhookSection(url=url, secret_file=hook.section.secret_file)
    with pytest.raises(BadConfig, match="url is not an HTTPS URL") as caught:
        hook.send(NOTICE)
    assert "s3cret" not in str(caught.value)
