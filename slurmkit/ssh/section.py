"""Section `[clusters.NAME]`: which clusters there are beside the one of this machine."""

from __future__ import annotations

import zlib

import msgspec

from slurmkit.config import load_tables, nearest
from slurmkit.errors import BadInput


class ClusterSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Section `[clusters.NAME]`. What is not given here is taken from ~/.ssh/config.

    Attributes:
        host: a Host of ~/.ssh/config, or the name of the login node; NAME by default.
        user: login name there.
        port: of its sshd.
        identity: file of the key to log in with.
        ssh_config: a file to read in place of ~/.ssh/config and /etc/ssh/ssh_config.
        path: folder of Slurm's commands on the login node, or several with colons; looked for by
            default.
        folder: where jobs start and code is sent on the login node; the home by default.
    """

    host: str = ""
    user: str = ""
    port: int = 0
    identity: str = ""
    ssh_config: str = ""
    path: str = ""
    folder: str = ""


def sections() -> dict[str, ClusterSection]:
    """All clusters in the configuration, by their names."""
    return load_tables("clusters", ClusterSection)


def key_of(name: str, section: ClusterSection) -> str:
    """Names a cluster where something is kept of it; another for another host or person."""
    return f"{name}-ssh-{zlib.crc32(repr(section).encode()):08x}"


def place_of(name: str, section: ClusterSection) -> str:
    """Names a cluster where jobs are remembered, however it is reached and used."""
    where = (section.host, section.user, section.port)
    return f"{name}-ssh-{zlib.crc32(repr(where).encode()):08x}"


def section_of(name: str) -> ClusterSection:
    """The section of one cluster.

    Raises:
        BadInput: when there is none, with the nearest name.
    """
    known = sections()
    if name in known:
        return known[name]
    hint = (
        nearest(name, sorted(known), "clusters")
        if known
        else f'none is configured; write [clusters.{name}] and host = "…" into the configuration'
    )
    raise BadInput(f"no cluster {name!r}; {hint}")
