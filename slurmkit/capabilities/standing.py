"""Ask where one user stands: associations, QOS, limits and their use, reservations."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from slurmkit.capabilities.assoc_mgr import AssocMgr, parse_assoc_mgr
from slurmkit.capabilities.cache import cluster_key, keep, kept
from slurmkit.capabilities.details import (
    Details,
    details_key,
    is_percentage,
    read_details,
    with_association_details,
    with_qos_details,
)
from slurmkit.capabilities.model import Qos, Reservation, Standing
from slurmkit.capabilities.reservations import read_reservations
from slurmkit.errors import BadInput, SlurmError
from slurmkit.machine import HERE, machine_of
from slurmkit.slurm import Slurm

_FROM_SLURMDBD = "QOS flags, what QOS preempt, their per-user limits, and which QOS you may use"

_NAME = re.compile(r"[^\s,=|'\"\x00-\x1f-][^\s,=|'\"\x00-\x1f]*")


def read_standing(slurm: Slurm, user: str, *, key: str | None = None) -> Standing:
    """Ask slurmctld and slurmdbd; while slurmdbd is down, what it said last is taken.

    Args:
        slurm: the border to Slurm.
        user: login name.
        key: see `slurmkit.capabilities.cache.load_capabilities`.

    Raises:
        BadInput: for a name that cannot be one.
        SlurmError: when slurmctld does not answer or its answer cannot be read.
    """
    if not _NAME.fullmatch(user):
        raise BadInput(f"{user!r} cannot be a login name; give one, e.g. alice")
    taken = time.time()
    key = details_key(key or cluster_key(slurm), user)
    argv = ["scontrol", "show", "assoc_mgr", f"users={user}", "flags=users,assoc,qos"]
    with ThreadPoolExecutor(3) as pool:  # the commands wait, they do not work
        limits = pool.submit(slurm.run, argv)
        reservations = pool.submit(read_reservations, slurm)
        details = pool.submit(read_details, slurm, user)
    text, machine = limits.result(), machine_of(slurm)
    known, trouble = _details(details, reservations.result(), key)
    found = _with_details(_parse(text, user, machine.uid(user)), known)
    return Standing(
        taken=taken,
        user=user,
        host=machine.name,
        groups=machine.groups(user),
        associations=found.associations,
        default_account=found.default_account,
        qos=found.qos,
        reservations=reservations.result(),
        hidden=(
            *(trouble or _hidden_qos(found, user)),
            *_hidden_accounts(found, user),
            *_hidden_limits(found, known, text),
        ),
    )


def _details(
    asked: Future[Details], reservations: tuple[Reservation, ...], key: str | None
) -> tuple[Details, tuple[str, ...]]:
    try:
        found = asked.result()
    except SlurmError as error:
        from slurmkit.facts import clock  # noqa: PLC0415 - rarely needed

        copy = kept("details", key, Details)
        age = f"as of {clock(copy.taken)}" if copy else "unknown"
        return copy or Details(0), (f"{_FROM_SLURMDBD}, are {age}: {error}",)
    names = tuple(each.name for each in reservations)
    found = msgspec.structs.replace(found, reservations=names)
    keep("details", key, found)
    return found, ()


def _parse(text: str, user: str, uid: int | None) -> AssocMgr:
    try:
        return parse_assoc_mgr(text, user, uid)
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed a limit that cannot be read: {error}") from error


def _with_details(found: AssocMgr, known: Details) -> AssocMgr:
    return msgspec.structs.replace(
        found,
        associations=tuple(
            with_association_details(each, found.cluster, known) for each in found.associations
        ),
        qos=tuple(with_qos_details(each, known) for each in found.qos),
    )


def _hidden_accounts(found: AssocMgr, user: str) -> Iterator[str]:
    shown = {each.account for each in found.associations if not each.user}
    own = {each.account for each in found.associations if each.user == user}
    if not own:
        yield f"slurmctld shows no association of {user}: there is none, or PrivateData hides it"
    if unseen := own - shown:
        yield (
            f"limits of the accounts {', '.join(sorted(unseen))} and of those above, and their"
            " use, are hidden by PrivateData"
        )


def _hidden_qos(found: AssocMgr, user: str) -> Iterator[str]:
    for each in found.associations:
        if each.user == user and not (each.qos and each.default_qos):
            what = (
                f"the default QOS of {each.name}" if each.qos else f"which QOS {each.name} may use"
            )
            yield f"{what} is unknown: slurmdbd does not show it (PrivateData)"


def _hidden_limits(found: AssocMgr, known: Details, text: str) -> Iterator[str]:
    """Name what cannot be told of the QOS that the user may use."""
    mine = {name for each in found.associations for name in each.qos}
    rows = {row["name"]: row for row in known.qos}
    for qos in found.qos:
        if qos.name not in mine:
            continue
        row = rows.get(qos.name)
        if row and is_percentage(row) and _lacks(qos, row):
            yield f"per-user limits of QOS {qos.name} are percentages, in numbers once it is used"
        if qos.limits.max_tres_run_mins_per_user and "MaxTRESRunMinsPU=" not in text:
            yield f"how much of MaxTRESRunMinsPU of QOS {qos.name} is used is not shown"


def _lacks(qos: Qos, row: dict[str, str]) -> bool:
    per_user = row["max_tres_per_user"] and not qos.limits.max_tres_per_user
    per_account = row["max_tres_per_account"] and not qos.limits.max_tres_per_account
    return bool(per_user or per_account)


def me(slurm: Slurm | None = None) -> str:
    """Login name of who runs this, on the machine of a border.

    Raises:
        BadInput: when this machine does not know the user.
    """
    return (machine_of(slurm) if slurm else HERE).user
