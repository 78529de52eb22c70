"""Clusters reached over SSH: one kept connection, and Slurm's commands run on the login node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmkit.errors import MissingExtra

if TYPE_CHECKING:
    from slurmkit.backends.commands import CommandsBackend
    from slurmkit.ssh.border import SshSlurm


def reached(name: str) -> tuple[SshSlurm, CommandsBackend]:
    """The border and the backend of a cluster in the configuration; nothing is asked of it yet.

    Raises:
        BadInput: when there is none of that name.
        MissingExtra: when paramiko is not installed.
    """
    try:
        from slurmkit.ssh.border import border_of  # noqa: PLC0415 - needs the extra
        from slurmkit.ssh.once import OnceBackend  # noqa: PLC0415 - needs the extra
    except ModuleNotFoundError as error:
        if error.name != "paramiko":
            raise
        raise MissingExtra(
            "clusters over SSH need paramiko, which is not installed;"
            " run: pip install 'slurmkit-hpc[ssh]'"
        ) from error
    slurm = border_of(name)
    return slurm, OnceBackend(slurm)
