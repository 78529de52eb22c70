"""Seal and open messages with MUNGE: munged vouches for the sender's uid and refuses replays.

Only this module runs `munge` and `unmunge`. Payloads go through pipes, never in an argv.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import msgspec

from slurmkit.errors import NotVouched, ServiceError

MAX_PAYLOAD = 512 * 1024  # bytes; munged takes at most 1 MiB, credential and all
_SECONDS = 20  # munged answers within milliseconds
# Exit codes of unmunge are munge's error numbers (munge.h).
_REFUSED = {
    8: "is not a MUNGE credential",
    14: "is invalid: it was changed on the way, or the two hosts have different MUNGE keys",
    15: "has expired; if it was sent just now, set the clocks of both hosts right",
    16: "comes from the future; set the clocks of both hosts right",
    17: "was used before: each is good for one message; ask again",
    18: "is for somebody else",
}
_NO_MUNGED = (2, 6, 7)


class Opened(msgspec.Struct, frozen=True):
    """A message and the uid that munged says has sent it."""

    uid: int
    payload: bytes


def seal(payload: bytes, *, reader: int) -> bytes:
    """Make a credential that only the user with uid `reader` can open.

    Raises:
        ServiceError: when munge is missing or munged does not answer.
    """
    code, credential, said = _run(("munge", f"--restrict-uid={reader}"), payload)
    if code:
        raise _broken("munge", code, said)
    return credential.strip()


def unseal(credential: bytes) -> Opened:
    """Open a credential, once.

    Raises:
        NotVouched: when munged refuses it: replayed, expired, rewound, forged, for another uid.
        ServiceError: when munge is missing or munged does not answer.
    """
    # Metadata, one a line; an empty line; the payload. Numeric, so nobody's names are in it.
    argv = ("unmunge", "--numeric", "--keys=STATUS,UID,LENGTH")
    code, printed, said = _run(argv, credential)
    if code in _REFUSED:
        raise NotVouched(f"the credential {_REFUSED[code]}")
    if code:
        raise _broken("unmunge", code, said)
    head, _, payload = printed.partition(b"\n\n")
    facts = dict(line.split(":", 1) for line in head.decode("ascii").splitlines())
    if facts["STATUS"].strip() != "0" or int(facts["LENGTH"]) != len(payload):
        raise NotVouched("unmunge printed something else than it opened; ask again")
    return Opened(int(facts["UID"]), payload)


def _run(argv: Sequence[str], stdin: bytes) -> tuple[int, bytes, str]:
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=_SECONDS, check=False)
    except FileNotFoundError as error:
        raise ServiceError(
            f"{argv[0]} is not on the PATH; the ledger's service needs MUNGE on both sides"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(f"{argv[0]} does not work: {error}") from error
    return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")


def _broken(command: str, code: int, said: str) -> ServiceError:
    words = said.strip().removeprefix(f"{command}: Error: ") or f"exit code {code}"
    hint = "; is munged running on this host?" if code in _NO_MUNGED else ""
    return ServiceError(f"{command} failed: {words}{hint}")
