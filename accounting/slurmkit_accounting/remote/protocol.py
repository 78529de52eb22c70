"""The protocol of client and service: one sealed query, an answer in sealed pieces.

Every message carries a tag with its purpose, so that a credential made for something else is never
accepted. Each piece of an answer carries the query's nonce, its own number and the number of
pieces, so that a forged, mixed or truncated answer is noticed. MUNGE seals all messages between
hosts, and munged vouches for the sender's uid; or TLS and a token of Slurm do (`slurm_token`). On a
Unix socket nobody else can read or change them, and the kernel vouches for both ends, see unix(7),
SO_PEERCRED.
"""

from __future__ import annotations

import secrets
import socket
import struct
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from slurmkit.errors import NotVouched, ServiceError

PATH = "/v1/query"
MAX_QUERY = 256 * 1024  # bytes of a query, sealed or opened: MUNGE can compress what it seals
MAX_PIECES = 512
MAX_PAYLOAD = 512 * 1024  # bytes; munged takes credentials of at most 1 MiB
_MUNGE_SECONDS = 20  # time limit; munged normally answers within milliseconds
# The exit codes of unmunge are munge's error numbers (munge.h).
_REFUSALS = {
    8: "is not a MUNGE credential",
    **dict.fromkeys(range(9, 14), "has a version, cipher or realm that munged does not know here"),
    14: "is invalid: it was changed on the way, or the two hosts have different MUNGE keys",
    15: "has expired; if it was sent just now, set the clocks of both hosts right",
    16: "comes from the future; set the clocks of both hosts right",
    17: "was used before, but each is valid only once; try again",
    18: "is for another user; the account of [ledger.service] user must have the same uid on both"
    " hosts",
}
_NO_MUNGED = (2, 6, 7)
_UCRED = struct.Struct("iII")  # struct ucred: process, user, group
UNIX = "unix:"
"""What the address of a Unix socket begins with: `unix:/PATH`."""


class ServiceQuery(
    msgspec.Struct, frozen=True, tag="slurmkit-ledger-query-1", forbid_unknown_fields=True
):
    """A query to the ledger's service.

    Attributes:
        ask: name of a function of the read API.
        arguments: arguments by name, as JSON types.
        nonce: random; different for each query.
    """

    ask: str
    arguments: dict[str, Any]
    nonce: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))


class ServiceFault(msgspec.Struct, frozen=True):
    """An error in place of an answer: its class name and its message."""

    kind: str
    message: str


class ServiceAnswer(msgspec.Struct, frozen=True):
    """The service's answer to a query: a value as JSON, or a fault.

    Attributes:
        value: the result of the function of the read API.
        seen_as: who the service takes the asker for, and what they may see.
        fault: why there is no value; None if there is one.
    """

    value: msgspec.Raw = msgspec.Raw(b"null")
    seen_as: str = ""
    fault: ServiceFault | None = None


class _AnswerPiece(
    msgspec.Struct, frozen=True, tag="slurmkit-ledger-answer-1", forbid_unknown_fields=True
):
    nonce: str
    part: int
    parts: int


class OpenedCredential(msgspec.Struct, frozen=True):
    """An opened credential: the payload, and the sender's uid, as certified."""

    uid: int
    payload: bytes


class Voucher(Protocol):
    """What seals messages, and certifies who sent them."""

    content_type: str

    def seal(self, payload: bytes, *, reader: int) -> bytes:
        """Return a credential of the payload, in one line, that only uid `reader` can open."""
        ...

    def unseal(self, credential: bytes) -> OpenedCredential:
        """Open a credential.

        Raises:
            NotVouched: when it is not valid.
        """
        ...


class Munge:
    """Messages that munged seals, on any transport."""

    content_type = "application/x-munge"

    def seal(self, payload: bytes, *, reader: int) -> bytes:
        return seal(payload, reader=reader)

    def unseal(self, credential: bytes) -> OpenedCredential:
        return unseal(credential)


class SocketPeer:
    """Messages on a Unix socket, to and from the process at its other end."""

    content_type = "application/x-slurmkit"

    def __init__(self, uid: int) -> None:
        self._uid = uid

    def seal(self, payload: bytes, *, reader: int) -> bytes:
        """Return the payload in one line.

        Raises:
            NotVouched: when another user than `reader` is at the other end.
        """
        if reader != self._uid:
            raise NotVouched(
                f"uid {self._uid} listens on the socket, not uid {reader}; set [ledger.service]"
                " user to the account that the service runs as"
            )
        return b64encode(payload)

    def unseal(self, credential: bytes) -> OpenedCredential:
        """Return what a line holds.

        Raises:
            NotVouched: when it holds something else.
        """
        try:
            return OpenedCredential(self._uid, b64decode(credential.strip(), validate=True))
        except ValueError as error:
            raise NotVouched("the message is not one of slurmkit on a Unix socket") from error


def connect_to_socket(path: str, timeout: float) -> socket.socket:
    """Connect to a Unix socket.

    Raises:
        OSError: when nobody listens there, or this user may not connect.
    """
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.settimeout(timeout)
    try:
        opened.connect(path)
    except OSError:
        opened.close()
        raise
    return opened


def peer_uid(connection: socket.socket) -> int:
    """Return the uid of the process at the other end of a Unix socket."""
    asked = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(asked)[1])


MUNGE = Munge()


def seal_query(query: ServiceQuery, *, service: int, voucher: Voucher = MUNGE) -> bytes:
    """Seal a query for the service's uid.

    Raises:
        NotVouched: when somebody else is there in its place.
        ServiceError: when munge does not work.
    """
    return voucher.seal(msgspec.json.encode(query), reader=service)


def open_query(credential: bytes, voucher: Voucher = MUNGE) -> tuple[int, ServiceQuery]:
    """Open a sealed query; return the asker's uid and the query.

    Raises:
        NotVouched: when it is not certified, is not a query, or is too large.
        ServiceError: when munge does not work.
    """
    opened = voucher.unseal(credential)
    if len(opened.payload) > MAX_QUERY:
        raise NotVouched(
            f"the query is too large; at most {MAX_QUERY} bytes are allowed; use fewer filters"
        )
    try:
        return opened.uid, msgspec.json.decode(opened.payload, type=ServiceQuery)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotVouched(
            f"the credential holds no query that this release can read ({error}); install the same"
            " release of slurmkit on the client and the service"
        ) from error


def seal_answer(
    answer: ServiceAnswer, nonce: str, *, asker: int, voucher: Voucher = MUNGE
) -> Iterator[bytes]:
    """Seal an answer for the asker's uid; yield one piece per line.

    Raises:
        ServiceError: when the answer is too large, or munge does not work.
    """
    whole = msgspec.json.encode(answer)
    parts = -(-len(whole) // MAX_PAYLOAD)
    if parts > MAX_PIECES:
        raise ServiceError("the answer is too large to send; choose a shorter time window")
    for part in range(parts):
        head = msgspec.json.encode(_AnswerPiece(nonce, part, parts))
        body = whole[part * MAX_PAYLOAD : (part + 1) * MAX_PAYLOAD]
        yield voucher.seal(head + b"\n" + body, reader=asker) + b"\n"


def open_answer(
    credentials: Iterable[bytes], nonce: str, *, service: int, voucher: Voucher = MUNGE
) -> ServiceAnswer:
    """Open the pieces of the answer to the query with a nonce.

    Args:
        credentials: the sealed pieces, in order.
        nonce: nonce of the query.
        service: uid of the service.
        voucher: opens them.

    Raises:
        NotVouched: when a piece is not from the service, belongs to another answer, or is missing.
        ServiceError: when munge does not work, or the service has another release.
    """
    texts: list[bytes] = []
    parts = 1
    for credential in credentials:
        opened = voucher.unseal(credential)
        if opened.uid != service:
            raise NotVouched(
                f"the answer comes from uid {opened.uid}, but the service runs as uid {service};"
                " set [ledger.service] user to the account it runs as"
            )
        piece, text = _split_piece(opened.payload)
        if (piece.nonce, piece.part) != (nonce, len(texts)) or piece.parts > MAX_PIECES:
            raise NotVouched("the answer belongs to another query; try again")
        texts.append(text)
        parts = piece.parts
    if len(texts) != parts:
        raise NotVouched(f"the answer was cut off: {len(texts)} of {parts} pieces came; try again")
    try:
        return msgspec.json.decode(b"".join(texts), type=ServiceAnswer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceError(
            f"the service has another release of slurmkit: {error}; upgrade the older one"
        ) from error


def _split_piece(payload: bytes) -> tuple[_AnswerPiece, bytes]:
    head, _, text = payload.partition(b"\n")
    try:
        return msgspec.json.decode(head, type=_AnswerPiece), text
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotVouched("the answer does not come from slurmkit's ledger service") from error


def seal(payload: bytes, *, reader: int) -> bytes:
    """Return a credential of the payload that only uid `reader` can open.

    Raises:
        ServiceError: when munge is missing or munged does not answer.
    """
    code, credential, error_text = _run_munge(("munge", f"--restrict-uid={reader}"), payload)
    if code:
        raise _munge_error("munge", code, error_text)
    return credential.strip()


def unseal(credential: bytes) -> OpenedCredential:
    """Open a credential; munged opens each one only once.

    Raises:
        NotVouched: when munged refuses it: replayed, expired, from the future, forged, or for
            another uid.
        ServiceError: when munge is missing or munged does not answer.
    """
    # Output: metadata, one per line; an empty line; the payload. Numeric: no names to parse.
    argv = ("unmunge", "--numeric", "--keys=STATUS,UID,LENGTH")
    code, printed, error_text = _run_munge(argv, credential)
    if code in _REFUSALS:
        raise NotVouched(f"the credential {_REFUSALS[code]}")
    if code:
        raise _munge_error("unmunge", code, error_text)
    head, _, payload = printed.partition(b"\n\n")
    facts = dict(line.split(":", 1) for line in head.decode("ascii").splitlines())
    if facts["STATUS"].strip() != "0" or int(facts["LENGTH"]) != len(payload):
        raise NotVouched("the output of unmunge is incomplete; try again")
    return OpenedCredential(int(facts["UID"]), payload)


def _run_munge(argv: Sequence[str], stdin: bytes) -> tuple[int, bytes, str]:
    """Run a command; return its exit code, output and error text."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=_MUNGE_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise ServiceError(
            f"{argv[0]} is not on the PATH; the ledger's service uses MUNGE here; without it, see"
            " docs/service.md"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"{argv[0]} does not work: {error}") from error
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def _munge_error(command: str, code: int, error_text: str) -> ServiceError:
    words = error_text.strip().removeprefix(f"{command}: Error: ") or f"exit code {code}"
    if code in _NO_MUNGED:
        words += "; is munged running on this host? Without MUNGE, see docs/service.md"
    return ServiceError(f"{command} failed: {words}")
