"""Queries with a token of Slurm's auth/jwt, where there is no MUNGE: the client's end.

slurmctld makes a token for whoever asks it (`scontrol token`, slurm.conf(5) AuthAltTypes), and
whoever has a token is that user, for slurmrestd too. So a query goes only where TLS has verified
the other end; then the answer needs no seal of its own.
"""

from __future__ import annotations

import os
import subprocess
from base64 import b64decode, b64encode

from slurmkit.errors import NotVouched, ServiceError
from slurmkit_accounting.remote.protocol import OpenedCredential

CONTENT_TYPE = "application/x-slurmkit-token"
VARIABLE = "SLURM_JWT"
"""The variable that Slurm's commands take a token from, and print it with."""
_ASK = ("scontrol", "token", "lifespan=120")
FRESH_SECONDS = 60.0
"""For how long a token serves for further queries."""
GIVEN = f"; the token is that of ${VARIABLE}: unset it, or set a new one"
_SECONDS = 20


class TokenBearer:
    """Queries with a token of this user; answers from the service that TLS has verified.

    Args:
        token: a JWT.
        service: uid of the service.
    """

    content_type = CONTENT_TYPE

    def __init__(self, token: str, service: int) -> None:
        self._token = token.encode("ascii", "replace")
        self._service = service

    def seal(self, payload: bytes, *, reader: int) -> bytes:
        """Return the token and the payload in one line."""
        del reader  # TLS has verified the other end
        return self._token + b" " + b64encode(payload)

    def unseal(self, credential: bytes) -> OpenedCredential:
        """Return what a line of the answer holds.

        Raises:
            NotVouched: when it holds something else.
        """
        return OpenedCredential(self._service, unpack(credential))


def unpack(text: bytes) -> bytes:
    """Return what a line or its last word holds.

    Raises:
        NotVouched: when it is not base64.
    """
    try:
        return b64decode(text.strip(), validate=True)
    except ValueError as error:
        raise NotVouched("the message is not one of slurmkit with a token of Slurm") from error


def own_token() -> str:
    """Return a token of this user: that of $SLURM_JWT, else a new one of slurmctld.

    Raises:
        ServiceError: when Slurm gives none.
    """
    if given := os.environ.get(VARIABLE, "").strip():
        return given
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}  # empty
    try:
        done = subprocess.run(
            _ASK, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_SECONDS, env=environ,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceError(
            f"no token of Slurm: scontrol token: {error}; scontrol must be on the PATH, or"
            f" ${VARIABLE} have a token"
        ) from error
    name, _, token = done.stdout.strip().partition("=")
    if done.returncode or name != VARIABLE or not token:
        why = done.stderr.strip() or "it printed no token"
        raise ServiceError(
            f"Slurm gives no token: scontrol token: {why}; it needs AuthAltTypes=auth/jwt in"
            " slurm.conf"
        )
    return token
