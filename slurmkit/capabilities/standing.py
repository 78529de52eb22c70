"""Ask where one user stands: associations, QOS, limits and their use, reservations."""

from __future__ import annotations

import grp
import os
import pwd
import time
from concurrent.futures import ThreadPoolExecutor

from slurmkit.capabilities.assoc_mgr import AssocMgr, parse_assoc_mgr
from slurmkit.capabilities.details import (
    Details,
    read_details,
    with_association_details,
    with_qos_details,
)
from slurmkit.capabilities.model import Standing
from slurmkit.capabilities.reservations import read_reservations
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm


def read_standing(slurm: Slurm, user: str) -> Standing:
    """Ask slurmctld live; what only slurmdbd knows is unknown, and said so, while it is down.

    Raises:
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    taken = time.time()
    argv = ["scontrol", "show", "assoc_mgr", f"users={user}", "flags=users,assoc,qos"]
    with ThreadPoolExecutor(3) as pool:  # the commands wait, they do not work
        text = pool.submit(slurm.run, argv)
        reservations = pool.submit(read_reservations, slurm)
        details = pool.submit(_details, slurm, user, taken)
    try:
        found = parse_assoc_mgr(text.result(), user, _uid(user))
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed a limit that cannot be read: {error}") from error
    known, trouble = details.result()
    return Standing(
        taken=taken,
        user=user,
        groups=_groups(user),
        associations=tuple(
            with_association_details(each, found.cluster, known) for each in found.associations
        ),
        default_account=found.default_account,
        qos=tuple(with_qos_details(each, known) for each in found.qos),
        reservations=reservations.result(),
        hidden=(*trouble, *_hidden(found, user)),
    )


def _details(slurm: Slurm, user: str, taken: float) -> tuple[Details, tuple[str, ...]]:
    try:
        return read_details(slurm, user, taken), ()
    except SlurmError as error:
        unknown = "QOS flags, per-user limits of QOS, and which QOS you may use are unknown"
        return Details(taken, (), ()), (f"{unknown}: {error}",)


def _hidden(found: AssocMgr, user: str) -> tuple[str, ...]:
    accounts = {each.account for each in found.associations if not each.user}
    own = [each for each in found.associations if each.user == user]
    said = []
    if not own:
        said.append(f"slurmctld shows no association of {user}")
    if unseen := sorted(each.account for each in own if each.account not in accounts):
        said.append(f"limits of the accounts {', '.join(unseen)} and above: PrivateData hides them")
    return tuple(said)


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _groups(user: str) -> tuple[str, ...]:
    try:
        ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return ()
    return tuple(name for gid in ids if (name := _group_name(gid)))


def _group_name(gid: int) -> str | None:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return None
