"""Names for shell completion, from what is kept on disk alone."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable

from slurmkit.capabilities.cache import kept, local_key
from slurmkit.capabilities.details import Details, details_key
from slurmkit.capabilities.model import Capabilities
from slurmkit.chosen import chosen
from slurmkit.errors import BadInput

_OF_CLUSTER: dict[str, Callable[[Capabilities], Iterable[str]]] = {
    "partition": lambda found: (each.name for each in found.partitions),
    "node": lambda found: (each.name for each in found.nodes),
    "feature": lambda found: (name for each in found.nodes for name in each.features),
    "gpu": lambda found: (
        gres.type for each in found.nodes for gres in each.gres if gres.name == "gpu" and gres.type
    ),
    "license": lambda found: found.licenses,
}
_OF_USER: dict[str, Callable[[Details], Iterable[str]]] = {
    "qos": lambda found: (name for row in found.associations for name in row["QOS"].split(",")),
    "account": lambda found: (row["Account"] for row in found.associations if row["User"]),
    "reservation": lambda found: found.reservations,
}


def cached_names(kind: str, *, key: str | None = None) -> list[str]:
    """Names that were last seen, in order; none where nothing is kept. No command is run.

    Args:
        kind: `partition`, `node`, `feature`, `gpu` (its types), `license`; `qos` and `account`
            that this user may use; `reservation`.
        key: see `slurmkit.capabilities.cache.load_capabilities`.
    """
    key = key or _key()
    found: Iterable[str] = ()
    if kind in _OF_USER:
        details = kept("details", details_key(key, _me()), Details)
        found = _OF_USER[kind](details) if details else ()
    elif kind in _OF_CLUSTER:
        capabilities = kept("capabilities", key, Capabilities)
        found = _OF_CLUSTER[kind](capabilities) if capabilities else ()
    return sorted({name for name in found if name})


def _key() -> str:
    """That of the cluster which is meant; it is not asked anything."""
    if not (name := chosen()):
        return local_key()
    from slurmkit.ssh.section import key_of, section_of  # noqa: PLC0415 - few need it

    try:
        return key_of(name, section_of(name))
    except BadInput:
        return ""


def _me() -> str:
    """The name that `standing.me` gives here; over SSH nobody's, as it is not known unasked."""
    if chosen():
        return ""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
