"""What is written down of a submit before it is sent, until its answer is there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.statehome import state_folder

_FOLDER = "sending"


class Sending(msgspec.Struct, frozen=True):
    """A submit whose answer is not there yet.

    Attributes:
        token: stands in the job's comment.
        cluster: its name in the configuration.
        mark: file on the login node that says how far the submit came there.
        name: of the job.
        since: epoch seconds at which it was sent.
    """

    token: str
    cluster: str
    mark: str
    name: str
    since: int


def note(sending: Sending) -> None:
    """Write it down.

    Raises:
        SlurmkitError: when that cannot be done: nothing is sent then.
    """
    path = _path(sending.token)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(msgspec.json.encode(sending))
    except OSError as error:
        raise SlurmkitError(
            f"nothing was submitted: it cannot be noted in {path.parent} ({error.strerror}), from"
            " where it would be found again should the connection break"
        ) from error


def done(sending: Sending) -> None:
    """Forget it: its answer is there."""
    _path(sending.token).unlink(missing_ok=True)


def noted(token: str) -> Sending | None:
    """What was written down of a token; None when that is nothing.

    Raises:
        BadInput: for what is no token.
    """
    if not token.isalnum():
        raise BadInput(f"{token!r} is not a token: letters and digits, as in slurmkit:TOKEN")
    try:
        return msgspec.json.decode(_path(token).read_bytes(), type=Sending)
    except (OSError, msgspec.DecodeError):
        return None


def all_noted() -> list[Sending]:
    """All submits whose answers never came, the oldest first."""
    names = [path.stem for path in state_folder(_FOLDER).glob("*.json")]
    found = [sending for name in names if name.isalnum() and (sending := noted(name))]
    return sorted(found, key=lambda sending: sending.since)


def _path(token: str) -> Path:
    return state_folder(_FOLDER) / f"{token}.json"
