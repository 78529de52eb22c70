"""Whether slurmdbd shows everybody's jobs to whoever runs this; books of some jobs are no books."""

from __future__ import annotations

import os
import pwd

from slurmkit.capabilities.text import settings
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm

_MAY_SEE_ALL = frozenset(("Administrator", "Operator"))


def only_own(slurm: Slurm) -> str:
    """The name of whoever runs this where PrivateData hides others' jobs; else nothing."""
    told = settings(slurm.run(["sacctmgr", "show", "configuration"]))
    hidden = told.get("PrivateData", "").lower().split(",")
    me, slurm_user = _me(), told.get("SlurmUser", "").partition("(")[0]
    if "jobs" not in hidden or os.geteuid() == 0 or me == slurm_user:
        return ""
    argv = ["sacctmgr", "--noheader", "--parsable2", "show", "user", me, "format=AdminLevel"]
    return "" if _MAY_SEE_ALL.intersection(slurm.run(argv).split()) else me


def partial_view(me: str) -> SlurmError:
    """What to say of a ledger that must have everybody's runs, naming the right that is missing."""
    return SlurmError(
        f"slurmdbd's PrivateData=jobs hides other people's jobs from {me}, and books of some"
        " jobs would be wrong; let an administrator run: sacctmgr modify user"
        f" {me} set adminlevel=Operator"
    )


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
