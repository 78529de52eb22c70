"""What certifies who asks the service: munged, or tokens of Slurm. Checked before it serves."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from slurmkit.errors import BadConfig, ServiceError
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.remote.client import service_uid
from slurmkit_accounting.remote.protocol import UNIX, seal, unseal

if TYPE_CHECKING:
    from slurmkit_accounting.service.slurm_tokens import TokenReader


def check_vouchers(section: ServiceSection) -> None:
    """Check that clients will accept our answers, and that we can learn who asks.

    Raises:
        BadConfig: when the account or the keys of tokens cannot be used.
        ServiceError: when munge does not work, and a port needs it.
    """
    if service_uid(section) != os.getuid():
        raise BadConfig(
            f"the service runs as uid {os.getuid()}, but [ledger.service] user is {section.user!r},"
            " and clients accept answers only from that account; set user here and for clients,"
            " or run the service as that account"
        )
    if section.jwt_socket:
        token_voucher(section)
    elif section.jwt_key or section.jwks:
        raise BadConfig(
            "[ledger.service] jwt_key and jwks are of no use without jwt_socket; name the socket of"
            " the site's web server there (docs/service.md)"
        )
    by_munge = [one for one in section.addresses if not one.startswith(UNIX)]
    if by_munge and unseal(seal(b"", reader=os.getuid())).uid != os.getuid():
        raise ServiceError(
            "munged reports another uid for this account; check that it runs on this host"
        )


def token_voucher(section: ServiceSection) -> TokenReader:
    """Return what certifies who asks through the site's web server.

    Raises:
        BadConfig: when the keys of tokens cannot be used.
    """
    # joserfc takes a tenth of a second to import, and most sites have MUNGE.
    from slurmkit_accounting.service.slurm_tokens import (  # noqa: PLC0415
        TokenReader,
        load_jwks,
        load_jwt_key,
    )

    if not section.jwt_socket.startswith("/"):
        raise BadConfig(
            f"[ledger.service] jwt_socket: write the path of a socket, /…, not {section.jwt_socket}"
        )
    if bool(section.jwt_key) == bool(section.jwks):
        raise BadConfig(
            "[ledger.service] jwt_socket needs jwt_key or jwks, and not both: the file that"
            " slurm.conf's AuthAltParameters names so"
        )
    by_provider = partial(load_jwks, section.jwks)
    load = by_provider if section.jwks else partial(load_jwt_key, section.jwt_key)
    load()
    return TokenReader(load, section.jwt_user_claim)
