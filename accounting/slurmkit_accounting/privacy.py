"""Whether slurmdbd shows everybody's jobs to whoever runs this; books of some jobs are no books."""

from __future__ import annotations

import os
import pwd

from slurmkit.capabilities.text import settings
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm

_MAY_SEE_ALL = frozenset(("Administrator", "Operator"))


def refuse_a_partial_view(slurm: Slurm) -> None:
    """Raise SlurmError where PrivateData hides others' jobs, naming the right that is missing."""
    told = settings(slurm.run(["sacctmgr", "show", "configuration"]))
    hidden = told.get("PrivateData", "").lower().split(",")
    if "jobs" not in hidden or os.geteuid() == 0 or _me() in told.get("SlurmUser", ""):
        return
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", _me(), "format=AdminLevel"]
    if not _MAY_SEE_ALL.intersection(slurm.run(argv).split()):
        raise SlurmError(
            f"slurmdbd's PrivateData=jobs hides other people's jobs from {_me()}, and books of some"
            " jobs would be wrong; let an administrator run: sacctmgr modify user"
            f" {_me()} set adminlevel=Operator"
        )


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
