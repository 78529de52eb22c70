"""The client of the ledger's service."""

from __future__ import annotations

import http.client
import os
import pwd
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from slurmkit import errors
from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, LedgerError, ServiceError, SlurmkitError
from slurmkit.formats.display import printable
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.remote.protocol import (
    MAX_PAYLOAD,
    MUNGE,
    PATH,
    UNIX,
    ServiceAnswer,
    ServiceQuery,
    SocketPeer,
    Voucher,
    connect_to_socket,
    open_answer,
    peer_uid,
    seal_query,
)
from slurmkit_accounting.remote.slurm_token import (
    FRESH_SECONDS,
    GIVEN,
    VARIABLE,
    TokenBearer,
    own_token,
)

_SCHEMES: dict[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,  # behind a site's own proxy
}
_LONGEST_LINE = 4 * MAX_PAYLOAD
_LONGEST_REFUSAL = 2000

AnswerT = TypeVar("AnswerT")


class RemoteLedger:
    """A ledger behind a service; functions of the read API take it in place of an open ledger.

    Attributes:
        source: the service's URL, or the address of its socket.
        seen_as: who the service takes us for, and what we may see; empty before the first answer.
    """

    def __init__(self, section: ServiceSection) -> None:
        self._section = section
        self._service = service_uid(section)
        self._token, self._token_made = "", float("-inf")
        self.source = section.url
        self.seen_as = ""

    def ask(self, name: str, arguments: dict[str, Any], wanted: type[AnswerT]) -> AnswerT:
        """Call a function of the read API at the service.

        Args:
            name: name of the function.
            arguments: arguments by name.
            wanted: type of the result.

        Raises:
            NotVouched: when nothing vouches for the answer.
            ServiceError: when the service cannot be reached.
            SlurmkitError: any error that the function raised at the service.
        """
        query = ServiceQuery(name, msgspec.to_builtins(arguments))
        answer = self._answer(query)
        if answer.fault:
            raise fault_error(answer.fault.kind, answer.fault.message)
        self.seen_as = answer.seen_as
        try:
            return msgspec.json.decode(answer.value, type=wanted)
        except msgspec.ValidationError as error:
            raise ServiceError(
                f"the service at {self.source} has another release of slurmkit: {error}; upgrade"
                " the older one"
            ) from error

    def _answer(self, query: ServiceQuery) -> ServiceAnswer:
        try:
            with closing(_connection(self._section)) as connection:
                voucher = self._voucher(connection)
                sealed = seal_query(query, service=self._service, voucher=voucher)
                connection.request("POST", PATH, sealed, {"Content-Type": voucher.content_type})
                response = connection.getresponse()
                if response.status != http.HTTPStatus.OK:
                    raise self._refusal_error(response, voucher)
                return open_answer(
                    _lines(response), query.nonce, service=self._service, voucher=voucher
                )
        except ssl.SSLCertVerificationError as error:
            raise ServiceError(
                f"this host does not trust the certificate of {self.source}:"
                f" {error.verify_message}; add its authority to the CA certificates of the system,"
                " or write the name that the certificate has"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ServiceError(
                f"the ledger's service at {self.source} does not answer:"
                f" {str(error) or type(error).__name__};"
                " ask your administrator, or read a ledger of your own with --db"
            ) from error

    def _refusal_error(self, response: http.client.HTTPResponse, voucher: Voucher) -> ServiceError:
        """Return the error of a refusal, which is plain text that nobody has certified."""
        if not response.getheader("Content-Type", "").startswith("text/plain"):
            return ServiceError(
                f"the web server at {self.source} answers {response.status} {response.reason}: the"
                " service behind it does not run, or is not there"
            )
        text = printable(response.read(_LONGEST_REFUSAL).decode("utf-8", "replace").strip())
        given = isinstance(voucher, TokenBearer) and os.environ.get(VARIABLE, "").strip()
        hint = GIVEN if given and response.status == http.HTTPStatus.FORBIDDEN else ""
        words = text or response.reason
        return ServiceError(f"the ledger's service refuses the query: {words}{hint}")

    def _voucher(self, connection: http.client.HTTPConnection) -> Voucher:
        """Return what certifies who asks; of a socket, that is known once it is connected."""
        if isinstance(connection, _SocketConnection):
            connection.connect()
            return SocketPeer(peer_uid(connection.sock))
        if self._section.auth == "munge":
            return MUNGE
        # Not to this host's own ports either: while the service is down, anybody may listen there.
        if not isinstance(connection, http.client.HTTPSConnection):
            raise BadConfig(
                f'[ledger.service] url: with auth = "jwt" it must be https://HOST or unix:/PATH,'
                f" not {self.source}: who gets your token of Slurm can act as you"
            )
        if time.monotonic() - self._token_made > FRESH_SECONDS:
            self._token, self._token_made = own_token(), time.monotonic()
        return TokenBearer(self._token, self._service)


def configured_remote() -> RemoteLedger | None:
    """Return the service of `[ledger.service] url`; None if that is empty.

    Raises:
        BadConfig: when the URL is not valid, or the service's account is unknown here.
    """
    section = load_section("ledger.service", ServiceSection)
    return RemoteLedger(section) if section.url else None


def service_uid(section: ServiceSection) -> int:
    """Return the uid of the account that the service runs as.

    Raises:
        BadConfig: when this host does not know the account.
    """
    if section.user.isdecimal():
        return int(section.user)
    try:
        return pwd.getpwnam(section.user).pw_uid
    except KeyError as error:
        raise BadConfig(
            f"[ledger.service] user: there is no user {section.user!r} on this host; name the"
            " account that the service runs as, or give its uid"
        ) from error


def is_the_service(section: ServiceSection) -> bool:
    """Return whether this process runs as the service's account."""
    me = os.geteuid()
    with suppress(KeyError):
        return section.user in {str(me), pwd.getpwuid(me).pw_name}
    return section.user == str(me)


class _SocketConnection(http.client.HTTPConnection):
    """A connection to the service on its own host."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost")
        self._path, self._seconds = path, timeout

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = connect_to_socket(self._path, self._seconds)


def _connection(section: ServiceSection) -> http.client.HTTPConnection:
    if section.url.startswith(UNIX):
        return _SocketConnection(section.url.removeprefix(UNIX), section.timeout)
    try:
        url = urlsplit(section.url)
        kind = _SCHEMES[url.scheme]
        return kind(url.hostname or "", url.port, timeout=section.timeout)
    except (KeyError, ValueError, http.client.InvalidURL) as error:
        raise BadConfig(
            f"[ledger.service] url: {section.url!r} is not valid; write http://HOST:PORT,"
            " https://HOST, or unix:/PATH of a socket"
        ) from error


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := response.readline(_LONGEST_LINE):
        yield line


def fault_error(kind: str, message: str) -> SlurmkitError:
    """Return the error of a fault; `LedgerError` if this release has no such class."""
    error_class = getattr(errors, kind, None)
    if isinstance(error_class, type) and issubclass(error_class, SlurmkitError):
        return error_class(message)
    return LedgerError(message)
