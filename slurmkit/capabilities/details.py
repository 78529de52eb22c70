"""What slurmctld does not show of QOS and associations, from slurmdbd through sacctmgr."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from slurmkit.capabilities import text as slurm_text
from slurmkit.capabilities.model import Association, Limits, Qos
from slurmkit.errors import SlurmError
from slurmkit.slurm import Slurm

# sacctmgr field for each of ours.
_QOS_FIELDS = {
    "name": "Name",
    "flags": "Flags",
    "preempts": "Preempt",
    "preempt_mode": "PreemptMode",
    "usage_factor": "UsageFactor",
    "limit_factor": "LimitFactor",
    "grace_time": "GraceTime",
    "max_jobs": "MaxJobsPU",
    "max_submit": "MaxSubmitPU",
    "max_tres_per_user": "MaxTRESPU",
    "max_tres_run_mins_per_user": "MaxTRESRunMinsPU",
    "max_jobs_per_account": "MaxJobsPA",
    "max_submit_per_account": "MaxSubmitPA",
    "max_tres_per_account": "MaxTRESPA",
    "max_tres_run_mins_per_account": "MaxTRESRunMinsPA",
}
_PATIENCE = 15  # seconds; a plan can do without slurmdbd, and it may be busy rolling up
_ASSOC_FIELDS = ("Cluster", "Account", "User", "Partition", "QOS", "DefaultQOS")


class Details(msgspec.Struct, frozen=True):
    """The answers of sacctmgr, field by field as printed.

    Attributes:
        taken: epoch seconds at which sacctmgr was asked.
        qos: one row for each QOS, values by the keys of `_QOS_FIELDS`.
        associations: the user's, and the root account's; values by `_ASSOC_FIELDS`.
        reservations: names of those that scontrol showed at the time.
    """

    taken: float
    qos: tuple[dict[str, str], ...] = ()
    associations: tuple[dict[str, str], ...] = ()
    reservations: tuple[str, ...] = ()


def details_key(key: str | None, user: str) -> str | None:
    """The key under which a user's details are kept, given that of the cluster."""
    return f"{key}-{user}" if key else None


def read_details(slurm: Slurm, user: str) -> Details:
    """Ask slurmdbd, in three short questions at once.

    Raises:
        SlurmError: when slurmdbd does not answer or its answer cannot be read.
    """
    taken = time.time()
    asked = questions(user)
    with ThreadPoolExecutor(len(asked)) as pool:
        qos, own, root = pool.map(lambda argv: slurm.run(argv, timeout=_PATIENCE), asked.values())
    try:
        rows = (*_rows(own, _ASSOC_FIELDS), *_rows(root, _ASSOC_FIELDS))
        return Details(taken, tuple(_rows(qos, _QOS_FIELDS)), rows)
    except ValueError as error:
        raise SlurmError(f"sacctmgr printed a line that cannot be read: {error}") from error


def questions(user: str) -> dict[str, tuple[str, ...]]:
    """The commands asked: QOS, the user's associations, that of the root account."""
    show = ("sacctmgr", "--noheader", "--parsable2", "show")  # names only, so `|` is safe
    fields = f"format={','.join(_ASSOC_FIELDS)}"
    return {
        "qos": (*show, "qos", f"format={','.join(_QOS_FIELDS.values())}"),
        "assoc": (*show, "assoc", "where", f"user={user}", fields),
        "root": (*show, "assoc", "where", "account=root", "user=", fields),
    }


def _rows(text: str, fields: Iterable[str]) -> Iterator[dict[str, str]]:
    names = tuple(fields)
    for line in text.splitlines():
        yield dict(zip(names, line.split("|"), strict=True))


def with_qos_details(qos: Qos, details: Details) -> Qos:
    """Fill in a QOS's flags, what it preempts, and limits that show only while they are used."""
    row = next((row for row in details.qos if row["name"] == qos.name), None)
    if row is None:
        return qos
    return msgspec.structs.replace(
        qos,
        flags=slurm_text.names(row["flags"]),
        preempts=slurm_text.names(row["preempts"]),
        preempt_mode=row["preempt_mode"].lower(),
        usage_factor=_factor(row["usage_factor"]),
        limit_factor=_factor(row["limit_factor"]),
        grace_time=slurm_text.seconds(row["grace_time"]),
        limits=_merged(qos.limits, row),
    )


def is_percentage(row: dict[str, str]) -> bool:
    """Whether a QOS's TRES limits are percentages, which only slurmctld makes numbers of."""
    return "Relative" in slurm_text.names(row["flags"])


def _factor(text: str) -> float:
    return float(text) if text else 1.0


def _merged(limits: Limits, row: dict[str, str]) -> Limits:
    """Where slurmctld shows a limit, its word counts."""
    said: dict[str, Any] = {
        name: slurm_text.tres(row[name]) if "_tres_" in name else slurm_text.amount(row[name])
        for name in _QOS_FIELDS
        if name.startswith("max_") and not (is_percentage(row) and "_tres_" in name)
    }
    unseen = {name: value for name, value in said.items() if getattr(limits, name) in (None, {})}
    return msgspec.structs.replace(limits, **unseen)


def with_association_details(found: Association, cluster: str, details: Details) -> Association:
    """Fill in which QOS a user's association allows, and which one is taken if none is named."""
    if not found.user:
        return found
    rows = [row for row in details.associations if row["Cluster"] == cluster]
    own = next((row for row in rows if _same(row, found)), None)
    if own is None:
        return found
    root = next((row["DefaultQOS"] for row in rows if not row["User"]), None)
    qos = slurm_text.names(own["QOS"])
    return msgspec.structs.replace(found, qos=qos, default_qos=_default_qos(own, qos, root))


def _same(row: dict[str, str], found: Association) -> bool:
    return (row["Account"], row["User"], row["Partition"]) == (
        found.account,
        found.user,
        found.partition,
    )


def _default_qos(own: dict[str, str], qos: tuple[str, ...], root: str | None) -> str:
    """By src/common/assoc_mgr.c, assoc_mgr_get_default_qos_info; empty where that is unknown."""
    if own["DefaultQOS"] in qos:
        return own["DefaultQOS"]
    if len(qos) == 1:
        return qos[0]
    return "" if root is None else root or "normal"
