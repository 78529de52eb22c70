"""Read `scontrol show assoc_mgr`: limits as slurmctld enforces them, and what of them is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from slurmkit.capabilities import text as slurm_text
from slurmkit.capabilities.model import Association, Limits, Qos, Tres, Usage

_RECORD = re.compile(
    r"^(?P<kind>UserName|ClusterName|QOS)=(?:.*\n?)(?:^[ \t]+.*\n?)*", re.MULTILINE
)
_BLOCK = re.compile(r"^ {4}(?P<whose>Account|User) Limits\n(?P<rows>(?:^ {6}.*\n?)*)", re.MULTILINE)
_ROW = re.compile(r"^ {6}(?P<name>\S.*)\n(?P<pairs>(?:^ {8}.*\n?)*)", re.MULTILINE)
_NUMBERED = re.compile(r"(?P<name>.*?)(?:\((?P<id>\d+)\))?")  # `alice(10011)`


class AssocMgr(msgspec.Struct, frozen=True, kw_only=True):
    """What slurmctld says of one user.

    Attributes:
        cluster: its name, empty when no association was shown.
        known: whether slurmctld knows the user, and shows it.
        accounts: every account of the cluster that is shown, and the user's associations.
    """

    cluster: str = ""
    known: bool = False
    default_account: str | None = None
    associations: tuple[Association, ...] = ()
    qos: tuple[Qos, ...] = ()


def parse_assoc_mgr(text: str, user: str, uid: int | None = None) -> AssocMgr:
    """Read what `scontrol show assoc_mgr users=USER` printed.

    Args:
        text: its output, not in one-liner form.
        user: whose associations and use of QOS are meant.
        uid: the user's, for releases that name users by it alone; else taken from the text.

    Raises:
        ValueError: for a number that is none.
    """
    parts = [(match["kind"], match[0]) for match in _RECORD.finditer(text)]
    users = [slurm_text.pairs(part) for kind, part in parts if kind == "UserName"]
    own = next((found for found in users if _name(found["UserName"]) == user), None)
    found = [slurm_text.pairs(part) for kind, part in parts if kind == "ClusterName"]
    known_uid = uid if own is None else _id(own["UserName"])
    return AssocMgr(
        cluster=found[0]["ClusterName"] if found else "",
        known=own is not None,
        default_account=slurm_text.optional(own["DefAccount"]) if own else None,
        associations=tuple(map(_association, found)),
        qos=tuple(_qos(part, user, known_uid) for kind, part in parts if kind == "QOS"),
    )


def _name(text: str) -> str:
    match = _NUMBERED.fullmatch(text)
    return match["name"] if match else text


def _id(text: str) -> int | None:
    match = _NUMBERED.fullmatch(text)
    return int(match["id"]) if match and match["id"] else None


def _association(found: dict[str, str]) -> Association:
    user = _name(found["UserName"])
    return Association(
        account=found["Account"],
        user=user,
        partition=found["Partition"],
        parent=found["Account"] if user else _name(found["ParentAccount"]),
        limits=Limits(
            **_group_limits(found),
            max_jobs=_limit(found, "MaxJobs"),
            max_submit=_limit(found, "MaxSubmitJobs"),
            **_job_limits(found),
        ),
        usage=_group_usage(found),
    )


def _qos(text: str, user: str, uid: int | None) -> Qos:
    found = slurm_text.pairs(text.partition("\n    Account Limits\n")[0])
    blocks = {block["whose"]: list(_rows(block["rows"])) for block in _BLOCK.finditer(text)}
    accounts, users = blocks.get("Account", []), blocks.get("User", [])
    own = next((row for name, row in users if _name(name) == user or name == str(uid)), {})
    return Qos(
        name=_name(found["QOS"]),
        priority=int(found["Priority"]),
        preempt_mode=found["PreemptMode"].lower(),
        limits=Limits(
            **_group_limits(found),
            **_job_limits(found),
            min_tres_per_job=_tres_limits(found, "MinTRESPJ"),
            **_per_user(users[0][1] if users else {}),
            **_per_account(accounts[0][1] if accounts else {}),
        ),
        usage=_group_usage(found),
        user_usage=_share(own, "PU"),
        account_usage={name: _share(row, "PA") for name, row in accounts},
    )


def _rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each user's or account's part of a QOS; every one repeats the limits."""
    return ((row["name"], slurm_text.pairs(row["pairs"])) for row in _ROW.finditer(text))


def _limit(found: dict[str, str], key: str) -> int | None:
    return slurm_text.limit_and_use(found.get(key))[0]


def _used(found: dict[str, str], key: str) -> int:
    return slurm_text.limit_and_use(found.get(key))[1]


def _tres_limits(found: dict[str, str], key: str) -> Tres:
    return slurm_text.limits_and_uses(found.get(key))[0]


def _tres_used(found: dict[str, str], key: str) -> Tres:
    return slurm_text.limits_and_uses(found.get(key))[1]


def _group_limits(found: dict[str, str]) -> dict[str, Any]:
    return {
        "grp_tres": _tres_limits(found, "GrpTRES"),
        "grp_tres_mins": _tres_limits(found, "GrpTRESMins"),
        "grp_tres_run_mins": _tres_limits(found, "GrpTRESRunMins"),
        "grp_jobs": _limit(found, "GrpJobs"),
        "grp_submit": _limit(found, "GrpSubmitJobs"),
        "grp_wall": _limit(found, "GrpWall"),
    }


def _job_limits(found: dict[str, str]) -> dict[str, Any]:
    return {
        "max_wall": slurm_text.amount(found.get("MaxWallPJ")),
        "max_tres_per_job": _tres_limits(found, "MaxTRESPJ"),
        "max_tres_per_node": _tres_limits(found, "MaxTRESPN"),
        "max_tres_mins_per_job": _tres_limits(found, "MaxTRESMinsPJ"),
    }


def _per_user(found: dict[str, str]) -> dict[str, Any]:
    return {
        "max_jobs": _limit(found, "MaxJobsPU"),
        "max_submit": _limit(found, "MaxSubmitJobsPU"),
        "max_tres_per_user": _tres_limits(found, "MaxTRESPU"),
        "max_tres_run_mins_per_user": _tres_limits(found, "MaxTRESRunMinsPU"),
    }


def _per_account(found: dict[str, str]) -> dict[str, Any]:
    return {
        "max_jobs_per_account": _limit(found, "MaxJobsPA"),
        "max_submit_per_account": _limit(found, "MaxSubmitJobsPA"),
        "max_tres_per_account": _tres_limits(found, "MaxTRESPA"),
        "max_tres_run_mins_per_account": _tres_limits(found, "MaxTRESRunMinsPA"),
    }


def _group_usage(found: dict[str, str]) -> Usage:
    return Usage(
        tres=_tres_used(found, "GrpTRES"),
        tres_mins=_tres_used(found, "GrpTRESMins"),
        tres_run_mins=_tres_used(found, "GrpTRESRunMins"),
        jobs=_used(found, "GrpJobs"),
        submitted=_used(found, "GrpSubmitJobs"),
        wall=_used(found, "GrpWall"),
    )


def _share(found: dict[str, str], whose: str) -> Usage:
    return Usage(
        tres=_tres_used(found, f"MaxTRES{whose}"),
        tres_run_mins=_tres_used(found, f"MaxTRESRunMins{whose}"),
        jobs=_used(found, f"MaxJobs{whose}"),
        submitted=_used(found, f"MaxSubmitJobs{whose}"),
    )
