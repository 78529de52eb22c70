"""Send notices to a webhook: JSON over HTTPS, signed with a shared secret."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ssl
import time
from contextlib import closing, suppress
from urllib.parse import SplitResult, urlsplit

import msgspec

from slurmkit.config.files import load_section, read_secret_file
from slurmkit.errors import BadConfig, MaybeSent, NotSent
from slurmkit_accounting.config import WebhookSection
from slurmkit_accounting.plugins import Notice

_LONGEST_ANSWER = 300


class Webhook:
    """The notifier `webhook`.

    The body is the notice as a JSON object, without its HTML. `X-Slurmkit-Signature` is `sha256=`
    and a hex HMAC-SHA256 with the shared secret. It covers the text of `X-Slurmkit-Time` (epoch
    seconds), a dot, and the body. A receiver should refuse notices older than some minutes.
    `X-Slurmkit-Id` is the same when the same notice is sent again.
    """

    def __init__(self) -> None:
        self.section = load_section("webhook", WebhookSection)

    def send(self, notice: Notice) -> None:
        """Post one notice; any status from 200 to 299 is success, a redirect is not followed.

        Raises:
            BadConfig: when `[webhook]` has no HTTPS URL or no secret.
            NotSent: when the server cannot be reached, or refuses the notice.
            MaybeSent: when the connection broke before the server answered.
        """
        url, host, port = _parse_url(self.section.url)
        fields = msgspec.to_builtins(notice)
        body = msgspec.json.encode({name: fields[name] for name in fields if name != "html"})
        headers = signature_headers(body, self._secret()) | {
            "Content-Type": "application/json",
            "X-Slurmkit-Id": hashlib.sha256(notice.identity.encode()).hexdigest()[:32],
        }
        connection = http.client.HTTPSConnection(
            host, port, timeout=self.section.timeout, context=self._trusted()
        )
        path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        with closing(connection):
            _post(connection, path, body, headers)

    def _secret(self) -> str:
        secret = read_secret_file("[webhook] secret_file", self.section.secret_file)
        if not secret:
            raise BadConfig("[webhook] has no secret; set secret_file to a file that contains one")
        return secret

    def _trusted(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.section.ca_file or None)
        except OSError as error:
            raise BadConfig(f"[webhook] ca_file: cannot read {self.section.ca_file}") from error


def _parse_url(text: str) -> tuple[SplitResult, str, int | None]:
    """Return the parts, host and port of an HTTPS URL; raises `BadConfig`."""
    with suppress(ValueError):  # a bad IPv6 address or port
        url = urlsplit(text)
        if url.scheme == "https" and url.hostname:
            return url, url.hostname, url.port
    # The message does not show the URL: it may contain a token.
    raise BadConfig("[webhook] url is not an HTTPS URL; write https://HOST/PATH")


def signature_headers(body: bytes, secret: str, now: int | None = None) -> dict[str, str]:
    """Return the headers that prove the sender and the time to the receiver."""
    moment = str(int(time.time()) if now is None else now)
    mac = hmac.new(secret.encode(), f"{moment}.".encode() + body, hashlib.sha256)
    return {"X-Slurmkit-Time": moment, "X-Slurmkit-Signature": f"sha256={mac.hexdigest()}"}


def _post(
    connection: http.client.HTTPSConnection, path: str, body: bytes, headers: dict[str, str]
) -> None:
    where = f"the webhook {connection.host}"
    try:
        connection.connect()
    except (OSError, http.client.HTTPException) as error:
        raise NotSent(f"{where} cannot be reached: {error}") from error
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        text = response.read(_LONGEST_ANSWER).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        raise MaybeSent(f"the connection to {where} broke before it answered: {error}") from error
    if not 200 <= response.status < 300:
        raise NotSent(f"{where} refused the notice: {response.status} {text or response.reason}")
