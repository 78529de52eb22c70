"""What client and service say to each other: one sealed query, an answer in sealed pieces.

Every message names what it is for, so that a credential made for something else is never taken
for one of ours. The pieces of an answer carry the query's nonce, their number and how many there
are: a forged, mixed or cut answer is noticed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from slurmkit.errors import NotVouched, ServiceError
from slurmkit_accounting.service.munge import MAX_PAYLOAD, seal, unseal

PATH = "/v1/query"
MAX_QUERY = 256 * 1024  # bytes of a sealed query
MAX_PIECES = 512


class Query(msgspec.Struct, frozen=True, tag="slurmkit-ledger-query-1", forbid_unknown_fields=True):
    """A question to the ledger.

    Attributes:
        ask: name of a function of the read API.
        arguments: its arguments by name, as JSON has them.
        nonce: new for each query.
    """

    ask: str
    arguments: dict[str, Any]
    nonce: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))


class Fault(msgspec.Struct, frozen=True):
    """Why there is no answer: the class of the error, and its line."""

    kind: str
    message: str


class Answer(msgspec.Struct, frozen=True):
    """What the service says: a value as JSON, or why there is none.

    Attributes:
        value: what the function of the read API returned.
        seen_as: who the service takes the asker for, and what they may see.
    """

    value: msgspec.Raw = msgspec.Raw(b"null")
    seen_as: str = ""
    fault: Fault | None = None


class _Piece(
    msgspec.Struct, frozen=True, tag="slurmkit-ledger-answer-1", forbid_unknown_fields=True
):
    nonce: str
    part: int
    parts: int


def seal_query(query: Query, *, service: int) -> bytes:
    """Seal a query for the service's uid.

    Raises:
        ServiceError: when munge does not work.
    """
    return seal(msgspec.json.encode(query), reader=service)


def open_query(credential: bytes) -> tuple[int, Query]:
    """Open a query: the asker's uid, and what they ask.

    Raises:
        NotVouched: when munged refuses it, or it is no query.
        ServiceError: when munge does not work.
    """
    opened = unseal(credential)
    try:
        return opened.uid, msgspec.json.decode(opened.payload, type=Query)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotVouched(
            f"the credential holds no query that this release reads ({error}); have the client and"
            " the service the same release of slurmkit?"
        ) from error


def seal_answer(answer: Answer, nonce: str, *, asker: int) -> Iterator[bytes]:
    """Seal an answer for the asker's uid, a piece a line.

    Raises:
        ServiceError: when it is too large, or munge does not work.
    """
    whole = msgspec.json.encode(answer)
    parts = -(-len(whole) // MAX_PAYLOAD)
    if parts > MAX_PIECES:
        raise ServiceError("the answer is too large to send; ask for a shorter window")
    for part in range(parts):
        head = msgspec.json.encode(_Piece(nonce, part, parts))
        body = whole[part * MAX_PAYLOAD : (part + 1) * MAX_PAYLOAD]
        yield seal(head + b"\n" + body, reader=asker) + b"\n"


def open_answer(credentials: Iterable[bytes], nonce: str, *, service: int) -> Answer:
    """Open the pieces of an answer to the query with that nonce.

    Raises:
        NotVouched: when a piece is not from the service, not of this answer, or missing.
        ServiceError: when munge does not work, or the answer is of another release.
    """
    texts: list[bytes] = []
    parts = 1
    for credential in credentials:
        opened = unseal(credential)
        if opened.uid != service:
            raise NotVouched(
                f"the answer comes from uid {opened.uid}, but the service runs as uid {service};"
                " set [ledger.service] user to the account it runs as"
            )
        piece, text = _piece(opened.payload)
        if (piece.nonce, piece.part) != (nonce, len(texts)) or piece.parts > MAX_PIECES:
            raise NotVouched("the answer belongs to another question; ask again")
        texts.append(text)
        parts = piece.parts
    if len(texts) != parts:
        raise NotVouched(f"the answer was cut off: {len(texts)} of {parts} pieces came; ask again")
    try:
        return msgspec.json.decode(b"".join(texts), type=Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceError(
            f"the service has another release of slurmkit: {error}; upgrade the older one"
        ) from error


def _piece(payload: bytes) -> tuple[_Piece, bytes]:
    head, _, text = payload.partition(b"\n")
    try:
        return msgspec.json.decode(head, type=_Piece), text
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotVouched("the answer is not one of slurmkit's ledger service") from error
