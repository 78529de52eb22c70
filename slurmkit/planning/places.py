"""Where a job starts, and what of it is not sent to a cluster over SSH."""

from __future__ import annotations

import posixpath

import msgspec

from slurmkit.errors import BadInput
from slurmkit.machine import Machine
from slurmkit.planning.secrets import secret_variables
from slurmkit.spec import JobSpec


def on_machine(spec: JobSpec, machine: Machine) -> JobSpec:
    """The spec with its folder said, where that is not one of this machine.

    Raises:
        BadInput: for what has to be looked up or written on the login node itself.
    """
    if machine.is_here:
        return spec
    if spec.container is not None:
        raise BadInput(
            "a container's image is looked up on the login node: plan and submit this job there,"
            " or start the container in a script of your own (--script)"
        )
    if names := ", ".join(secret_variables(spec)):
        raise BadInput(
            f"{names} looks like a secret, which is not sent over SSH: keep it in a file of yours"
            " on the cluster, and let the job read that"
        )
    folder = posixpath.join(machine.folder, spec.chdir or "")
    return msgspec.structs.replace(spec, chdir=posixpath.normpath(folder))
