"""Ask a web server: over TLS with a verified certificate, without following a redirect."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from urllib.parse import urlsplit


def is_https_or_loopback(text: str) -> bool:
    """Return whether a URL is `https`, or `http` to this host; without user and fragment."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname or "", url.port
    except ValueError:
        return False
    plain = url.scheme == "http" and is_loopback(host)
    readable = text.isascii() and text.isprintable() and " " not in text
    more = "#" in text or "@" in url.netloc
    return bool(host and readable and (plain or url.scheme == "https") and not more)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ask(
    url: str,
    headers: Mapping[str, str],
    *,
    body: str | None = None,
    timeout: float,
    trusted: ssl.SSLContext,
    most: int,
) -> tuple[int, bytes]:
    """Return status and body of the answer to a GET, or with a body to a POST.

    Args:
        url: as `is_https_or_loopback` takes it.
        headers: of the request.
        body: of a POST.
        timeout: seconds for the whole answer.
        trusted: whose certificates are trusted.
        most: bytes of the answer.

    Raises:
        OSError: when there is no whole answer; its text says why.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=trusted)
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=timeout)
    )
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    # The timeout is for each part of an answer; one that comes byte by byte has an end, too.
    late_words = f"{url} gives no whole answer within {timeout:g} s"
    too_late = threading.Event()
    end = threading.Timer(timeout, _break_off, (connection, too_late))
    end.daemon = True
    end.start()
    try:
        with closing(connection):
            connection.request("GET" if body is None else "POST", path, body, dict(headers))
            answer = connection.getresponse()
            text = answer.read(most + 1)
    except (OSError, http.client.HTTPException) as error:
        if too_late.is_set():
            raise OSError(late_words) from error
        raise OSError(f"{url} does not answer: {str(error) or type(error).__name__}") from error
    finally:
        end.cancel()
    if too_late.is_set():  # the rest of a body that was cut off is not missed by http.client
        raise OSError(late_words)
    if len(text) > most:
        raise OSError(f"{url} answers with more than {most} bytes")
    return answer.status, text


def _break_off(connection: http.client.HTTPConnection, too_late: threading.Event) -> None:
    too_late.set()
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
