"""What certifies who asks on a port of the service: munged, or a token of Slurm."""

from __future__ import annotations

import os
from functools import partial

from slurmkit.errors import BadConfig, ServiceError
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.remote.client import service_uid
from slurmkit_accounting.remote.https import is_loopback
from slurmkit_accounting.remote.protocol import MUNGE, Voucher, seal, unseal


def check_voucher(section: ServiceSection) -> None:
    """Check that clients will accept our answers, and that we can learn who asks.

    Raises:
        BadConfig: when the account, the key of tokens or an address cannot be used.
        ServiceError: when munge does not work.
    """
    if service_uid(section) != os.getuid():
        raise BadConfig(
            f"the service runs as uid {os.getuid()}, but [ledger.service] user is {section.user!r},"
            " and clients accept answers only from that account; set user here and for clients,"
            " or run the service as that account"
        )
    if port_voucher(section) is not MUNGE:
        _check_no_port_is_open(section)
    elif section.ports and unseal(seal(b"", reader=os.getuid())).uid != os.getuid():
        raise ServiceError(
            "munged reports another uid for this account; check that it runs on this host"
        )


def port_voucher(section: ServiceSection) -> Voucher:
    """Return what certifies who asks on a port; MUNGE if the service has none.

    Raises:
        BadConfig: when the key of tokens cannot be used.
    """
    if section.auth == "munge" or not section.ports:
        return MUNGE
    # joserfc takes a tenth of a second to import, and most sites have MUNGE.
    from slurmkit_accounting.service.slurm_tokens import (  # noqa: PLC0415
        TokenReader,
        load_token_keys,
    )

    if not section.jwt_key:
        raise BadConfig(
            '[ledger.service] jwt_key: auth = "jwt" needs the file of slurm.conf\'s'
            " AuthAltParameters, jwt_key or jwks"
        )
    load_token_keys(section.jwt_key)
    return TokenReader(partial(load_token_keys, section.jwt_key))


def _check_no_port_is_open(section: ServiceSection) -> None:
    """Check that no token comes in clear from another host: the service speaks no TLS itself."""
    for address in section.ports:
        if not is_loopback(address.rpartition(":")[0].strip("[]")):
            raise BadConfig(
                f'[ledger.service] listen: with auth = "jwt" {address} would get tokens of Slurm in'
                " clear; listen on 127.0.0.1:PORT, behind a web server of this host that speaks"
                " TLS (docs/service.md)"
            )
