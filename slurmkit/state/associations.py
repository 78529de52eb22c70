"""A user's associations, QOS and limits: read from slurmctld, completed from slurmdbd.

sacctmgr tells what slurmctld does not show. While slurmdbd is down, its last answer counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats import scontrol as slurm_text
from slurmkit.formats.display import format_time
from slurmkit.formats.durations import parse_elapsed
from slurmkit.formats.tres import Tres
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import LOCAL_MACHINE, machine_of
from slurmkit.state.cache import cluster_key, load_cached, save_cached
from slurmkit.state.capabilities import read_reservations
from slurmkit.state.model import Association, Limits, LimitUsage, Qos, Reservation, Standing

QOS_LIMIT_FIELDS = {
    "max_jobs": "MaxJobsPU",
    "max_submit": "MaxSubmitPU",
    "max_tres_per_user": "MaxTRESPU",
    "max_tres_run_mins_per_user": "MaxTRESRunMinsPU",
    "max_jobs_per_account": "MaxJobsPA",
    "max_submit_per_account": "MaxSubmitPA",
    "max_tres_per_account": "MaxTRESPA",
    "max_tres_run_mins_per_account": "MaxTRESRunMinsPA",
}
"""Limits of a QOS that only sacctmgr shows: field of `Limits` -> name in sacctmgr."""
_QOS_FIELDS = {
    "name": "Name",
    "flags": "Flags",
    "preempts": "Preempt",
    "preempt_mode": "PreemptMode",
    "usage_factor": "UsageFactor",
    "limit_factor": "LimitFactor",
    "grace_time": "GraceTime",
    **QOS_LIMIT_FIELDS,
}
_PATIENCE = 15  # seconds; slurmdbd may be busy with a rollup, and a plan can do without it
_ASSOC_FIELDS = ("Cluster", "Account", "User", "Partition", "QOS", "DefaultQOS")
_FROM_SLURMDBD = "QOS flags, preemption, per-user limits of QOS, and the QOS that you may use"
_NAME = re.compile(r"[^\s,=|'\"\x00-\x1f-][^\s,=|'\"\x00-\x1f]*")
_RECORD = re.compile(
    r"^(?P<kind>UserName|ClusterName|QOS)=(?:.*\n?)(?:^[ \t]+.*\n?)*", re.MULTILINE
)
_BLOCK = re.compile(r"^ {4}(?P<whose>Account|User) Limits\n(?P<rows>(?:^ {6}.*\n?)*)", re.MULTILINE)
_ROW = re.compile(r"^ {6}(?P<name>\S.*)\n(?P<pairs>(?:^ {8}.*\n?)*)", re.MULTILINE)
_NUMBERED = re.compile(r"(?P<name>.*?)(?:\((?P<id>\d+)\))?")  # `alice(10011)`


class SlurmdbdDetails(msgspec.Struct, frozen=True):
    """The answers of sacctmgr, field by field as printed.

    Attributes:
        taken: epoch seconds at which sacctmgr was asked.
        qos: one row for each QOS, values by the keys of `_QOS_FIELDS`.
        associations: the user's, and the root account's; values by `_ASSOC_FIELDS`.
        reservations: names of the reservations that scontrol showed then.
    """

    taken: float
    qos: tuple[dict[str, str], ...] = ()
    associations: tuple[dict[str, str], ...] = ()
    reservations: tuple[str, ...] = ()


def details_key(key: str | None, user: str) -> str | None:
    """Return the cache key of a user's details, from the key of the cluster."""
    return f"{key}-{user}" if key else None


def read_details(slurm: SlurmCommands, user: str) -> SlurmdbdDetails:
    """Ask slurmdbd three short questions at once.

    Raises:
        SlurmError: when slurmdbd does not answer or its answer cannot be read.
    """
    taken = time.time()
    asked = sacctmgr_commands(user)
    with ThreadPoolExecutor(len(asked)) as pool:
        qos, own, root = pool.map(lambda argv: slurm.run(argv, timeout=_PATIENCE), asked.values())
    try:
        rows = (*_rows(own, _ASSOC_FIELDS), *_rows(root, _ASSOC_FIELDS))
        return SlurmdbdDetails(taken, tuple(_rows(qos, _QOS_FIELDS)), rows)
    except ValueError as error:
        raise SlurmError(f"sacctmgr printed a line that cannot be read: {error}") from error


def sacctmgr_commands(user: str) -> dict[str, tuple[str, ...]]:
    """Return the sacctmgr commands: QOS, the user's associations, the root account's."""
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


def with_qos_details(qos: Qos, details: SlurmdbdDetails) -> Qos:
    """Add a QOS's flags, what it preempts, and the limits that slurmctld shows only in use."""
    row = next((row for row in details.qos if row["name"] == qos.name), None)
    if row is None:
        return qos
    return msgspec.structs.replace(
        qos,
        flags=slurm_text.parse_names(row["flags"]),
        preempts=slurm_text.parse_names(row["preempts"]),
        preempt_mode=row["preempt_mode"].lower(),
        usage_factor=_factor(row["usage_factor"]),
        limit_factor=_factor(row["limit_factor"]),
        grace_time=parse_elapsed(row["grace_time"]) or 0,
        limits=_merged(qos.limits, row),
    )


def is_percentage(row: dict[str, str]) -> bool:
    """Return whether a QOS's TRES limits are percentages, which only slurmctld converts."""
    return "Relative" in slurm_text.parse_names(row["flags"])


def _factor(text: str) -> float:
    return float(text) if text else 1.0


def _merged(limits: Limits, row: dict[str, str]) -> Limits:
    """Return the limits with sacctmgr's added; a limit that slurmctld shows takes precedence."""
    from_sacctmgr: dict[str, Any] = {
        name: slurm_text.parse_tres_counts(row[name])
        if "_tres_" in name
        else slurm_text.parse_amount(row[name])
        for name in _QOS_FIELDS
        if name.startswith("max_") and not (is_percentage(row) and "_tres_" in name)
    }
    unseen = {
        name: value for name, value in from_sacctmgr.items() if getattr(limits, name) in (None, {})
    }
    return msgspec.structs.replace(limits, **unseen)


def with_association_details(
    association: Association, cluster: str, details: SlurmdbdDetails
) -> Association:
    """Add which QOS a user's association allows, and its default QOS."""
    if not association.user:
        return association
    rows = [row for row in details.associations if row["Cluster"] == cluster]
    own = next((row for row in rows if _same(row, association)), None)
    if own is None:
        return association
    root = next((row["DefaultQOS"] for row in rows if not row["User"]), None)
    qos = slurm_text.parse_names(own["QOS"])
    return msgspec.structs.replace(association, qos=qos, default_qos=_default_qos(own, qos, root))


def _same(row: dict[str, str], association: Association) -> bool:
    return (row["Account"], row["User"], row["Partition"]) == (
        association.account,
        association.user,
        association.partition,
    )


def _default_qos(own: dict[str, str], qos: tuple[str, ...], root: str | None) -> str:
    """Return the default QOS, as assoc_mgr_get_default_qos_info does; empty if unknown.

    Source: src/common/assoc_mgr.c.
    """
    if own["DefaultQOS"] in qos:
        return own["DefaultQOS"]
    if len(qos) == 1:
        return qos[0]
    return "" if root is None else root or "normal"


def read_standing(slurm: SlurmCommands, user: str, *, key: str | None = None) -> Standing:
    """Ask slurmctld and slurmdbd; while slurmdbd is down, use its last answer from the cache.

    Args:
        slurm: runs Slurm commands.
        user: login name.
        key: see `slurmkit.state.cache.load_capabilities`.

    Raises:
        BadInput: for text that cannot be a login name.
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
    answers, trouble = _details(details, reservations.result(), key)
    assoc_mgr = _with_details(_parse(text, user, machine.uid(user)), answers)
    return Standing(
        taken=taken,
        user=user,
        host=machine.name,
        groups=machine.groups(user),
        associations=assoc_mgr.associations,
        default_account=assoc_mgr.default_account,
        qos=assoc_mgr.qos,
        reservations=reservations.result(),
        hidden=(
            *(trouble or _hidden_qos(assoc_mgr, user)),
            *_hidden_accounts(assoc_mgr, user),
            *_hidden_limits(assoc_mgr, answers, text),
        ),
    )


def _details(
    asked: Future[SlurmdbdDetails], reservations: tuple[Reservation, ...], key: str | None
) -> tuple[SlurmdbdDetails, tuple[str, ...]]:
    try:
        details = asked.result()
    except SlurmError as error:
        copy = load_cached("details", key, SlurmdbdDetails)
        age = f"as of {format_time(copy.taken)}" if copy else "unknown"
        return copy or SlurmdbdDetails(0), (f"{_FROM_SLURMDBD}, are {age}: {error}",)
    names = tuple(each.name for each in reservations)
    details = msgspec.structs.replace(details, reservations=names)
    save_cached("details", key, details)
    return details, ()


def _parse(text: str, user: str, uid: int | None) -> AssocMgr:
    try:
        return parse_assoc_mgr(text, user, uid)
    except (KeyError, ValueError) as error:
        raise SlurmError(f"scontrol printed a limit that cannot be read: {error}") from error


def _with_details(assoc_mgr: AssocMgr, details: SlurmdbdDetails) -> AssocMgr:
    return msgspec.structs.replace(
        assoc_mgr,
        associations=tuple(
            with_association_details(each, assoc_mgr.cluster, details)
            for each in assoc_mgr.associations
        ),
        qos=tuple(with_qos_details(each, details) for each in assoc_mgr.qos),
    )


def _hidden_accounts(assoc_mgr: AssocMgr, user: str) -> Iterator[str]:
    shown = {each.account for each in assoc_mgr.associations if not each.user}
    own = {each.account for each in assoc_mgr.associations if each.user == user}
    if not own:
        yield f"slurmctld shows no association of {user}: there is none, or PrivateData hides it"
    if unseen := own - shown:
        yield (
            f"PrivateData hides the limits, and their use, of the accounts"
            f" {', '.join(sorted(unseen))} and of the accounts above them"
        )


def _hidden_qos(assoc_mgr: AssocMgr, user: str) -> Iterator[str]:
    for each in assoc_mgr.associations:
        if each.user == user and not (each.qos and each.default_qos):
            what = (
                f"the default QOS of {each.name}" if each.qos else f"which QOS {each.name} may use"
            )
            yield f"{what} is unknown: slurmdbd does not show it (PrivateData)"


def _hidden_limits(assoc_mgr: AssocMgr, details: SlurmdbdDetails, text: str) -> Iterator[str]:
    """Yield which limits are unknown, of the QOS that the user may use."""
    mine = {name for each in assoc_mgr.associations for name in each.qos}
    rows = {row["name"]: row for row in details.qos}
    for qos in assoc_mgr.qos:
        if qos.name not in mine:
            continue
        row = rows.get(qos.name)
        if row and is_percentage(row) and _lacks(qos, row):
            yield (
                f"per-user limits of QOS {qos.name} are percentages; Slurm shows them as numbers"
                " once somebody uses it"
            )
        if qos.limits.max_tres_run_mins_per_user and "MaxTRESRunMinsPU=" not in text:
            yield f"Slurm does not show how much of MaxTRESRunMinsPU of QOS {qos.name} is used"


def _lacks(qos: Qos, row: dict[str, str]) -> bool:
    per_user = row["max_tres_per_user"] and not qos.limits.max_tres_per_user
    per_account = row["max_tres_per_account"] and not qos.limits.max_tres_per_account
    return bool(per_user or per_account)


def current_user(slurm: SlurmCommands | None = None) -> str:
    """Return the login name of the user who runs this, on the machine of `slurm`.

    Raises:
        BadInput: when this machine does not know the user.
    """
    return (machine_of(slurm) if slurm else LOCAL_MACHINE).user


class AssocMgr(msgspec.Struct, frozen=True, kw_only=True):
    """The associations and QOS that slurmctld shows for one user.

    Attributes:
        cluster: its name; empty when no association was shown.
        known: whether slurmctld knows and shows the user.
        associations: the user's, and every account of the cluster that is shown.
    """

    cluster: str = ""
    known: bool = False
    default_account: str | None = None
    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()


def parse_assoc_mgr(text: str, user: str, uid: int | None = None) -> AssocMgr:
    """Parse what `scontrol show assoc_mgr users=USER` printed.

    Args:
        text: its output, not in one-liner form.
        user: login name; its associations and its use of QOS are returned.
        uid: the user's, for releases that print only the uid; else it is taken from the text.

    Raises:
        ValueError: for text that is not a number.
    """
    parts = [(match["kind"], match[0]) for match in _RECORD.finditer(text)]
    users = [slurm_text.parse_pairs(part) for kind, part in parts if kind == "UserName"]
    own = next((each for each in users if _name(each["UserName"]) == user), None)
    shown = [slurm_text.parse_pairs(part) for kind, part in parts if kind == "ClusterName"]
    known_uid = uid if own is None else _id(own["UserName"])
    return AssocMgr(
        cluster=shown[0]["ClusterName"] if shown else "",
        known=own is not None,
        default_account=slurm_text.optional(own["DefAccount"]) if own else None,
        associations=tuple(map(_association, shown)),
        qos=tuple(_qos(part, user, known_uid) for kind, part in parts if kind == "QOS"),
    )


def _name(text: str) -> str:
    match = _NUMBERED.fullmatch(text)
    return match["name"] if match else text


def _id(text: str) -> int | None:
    match = _NUMBERED.fullmatch(text)
    return int(match["id"]) if match and match["id"] else None


def _association(record: dict[str, str]) -> Association:
    user = _name(record["UserName"])
    return Association(
        account=record["Account"],
        user=user,
        partition=record["Partition"],
        parent=record["Account"] if user else _name(record["ParentAccount"]),
        limits=Limits(
            **_group_limits(record),
            max_jobs=_limit(record, "MaxJobs"),
            max_submit=_limit(record, "MaxSubmitJobs"),
            **_job_limits(record),
        ),
        usage=_group_usage(record),
    )


def _qos(text: str, user: str, uid: int | None) -> Qos:
    record = slurm_text.parse_pairs(text.partition("\n    Account Limits\n")[0])
    blocks = {block["whose"]: list(_block_rows(block["rows"])) for block in _BLOCK.finditer(text)}
    accounts, users = blocks.get("Account", []), blocks.get("User", [])
    own = next((row for name, row in users if _name(name) == user or name == str(uid)), {})
    return Qos(
        name=_name(record["QOS"]),
        priority=int(record["Priority"]),
        preempt_mode=record["PreemptMode"].lower(),
        limits=Limits(
            **_group_limits(record),
            **_job_limits(record),
            min_tres_per_job=_tres_limits(record, "MinTRESPJ"),
            **_per_user(users[0][1] if users else {}),
            **_per_account(accounts[0][1] if accounts else {}),
        ),
        usage=_group_usage(record),
        user_usage=_usage_per(own, "PU"),
        account_usage={name: _usage_per(row, "PA") for name, row in accounts},
    )


def _block_rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each user's or account's part of a QOS; every part repeats the limits."""
    return ((row["name"], slurm_text.parse_pairs(row["pairs"])) for row in _ROW.finditer(text))


def _limit(record: dict[str, str], key: str) -> int | None:
    return slurm_text.parse_limit_and_use(record.get(key))[0]


def _used(record: dict[str, str], key: str) -> int:
    return slurm_text.parse_limit_and_use(record.get(key))[1]


def _tres_limits(record: dict[str, str], key: str) -> Tres:
    return slurm_text.parse_limits_and_uses(record.get(key))[0]


def _tres_used(record: dict[str, str], key: str) -> Tres:
    return slurm_text.parse_limits_and_uses(record.get(key))[1]


def _group_limits(record: dict[str, str]) -> dict[str, Any]:
    return {
        "grp_tres": _tres_limits(record, "GrpTRES"),
        "grp_tres_mins": _tres_limits(record, "GrpTRESMins"),
        "grp_tres_run_mins": _tres_limits(record, "GrpTRESRunMins"),
        "grp_jobs": _limit(record, "GrpJobs"),
        "grp_submit": _limit(record, "GrpSubmitJobs"),
        "grp_wall": _limit(record, "GrpWall"),
    }


def _job_limits(record: dict[str, str]) -> dict[str, Any]:
    return {
        "max_wall": slurm_text.parse_amount(record.get("MaxWallPJ")),
        "max_tres_per_job": _tres_limits(record, "MaxTRESPJ"),
        "max_tres_per_node": _tres_limits(record, "MaxTRESPN"),
        "max_tres_mins_per_job": _tres_limits(record, "MaxTRESMinsPJ"),
    }


def _per_user(record: dict[str, str]) -> dict[str, Any]:
    return {
        "max_jobs": _limit(record, "MaxJobsPU"),
        "max_submit": _limit(record, "MaxSubmitJobsPU"),
        "max_tres_per_user": _tres_limits(record, "MaxTRESPU"),
        "max_tres_run_mins_per_user": _tres_limits(record, "MaxTRESRunMinsPU"),
    }


def _per_account(record: dict[str, str]) -> dict[str, Any]:
    return {
        "max_jobs_per_account": _limit(record, "MaxJobsPA"),
        "max_submit_per_account": _limit(record, "MaxSubmitJobsPA"),
        "max_tres_per_account": _tres_limits(record, "MaxTRESPA"),
        "max_tres_run_mins_per_account": _tres_limits(record, "MaxTRESRunMinsPA"),
    }


def _group_usage(record: dict[str, str]) -> LimitUsage:
    return LimitUsage(
        tres=_tres_used(record, "GrpTRES"),
        tres_mins=_tres_used(record, "GrpTRESMins"),
        tres_run_mins=_tres_used(record, "GrpTRESRunMins"),
        jobs=_used(record, "GrpJobs"),
        submitted=_used(record, "GrpSubmitJobs"),
        wall=_used(record, "GrpWall"),
    )


def _usage_per(record: dict[str, str], whose: str) -> LimitUsage:
    return LimitUsage(
        tres=_tres_used(record, f"MaxTRES{whose}"),
        tres_run_mins=_tres_used(record, f"MaxTRESRunMins{whose}"),
        jobs=_used(record, f"MaxJobs{whose}"),
        submitted=_used(record, f"MaxSubmitJobs{whose}"),
    )
