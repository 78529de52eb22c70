"""Parser of `scontrol show assoc_mgr`: limits as slurmctld enforces them, and their use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from slurmkit.formats import scontrol as slurm_text
from slurmkit.formats.tres import Tres
from slurmkit.state.model import Association, Limits, LimitUsage, Qos

_RECORD = re.compile(
    r"^(?P<kind>UserName|ClusterName|QOS)=(?:.*\n?)(?:^[ \t]+.*\n?)*", re.MULTILINE
)
_BLOCK = re.compile(r"^ {4}(?P<whose>Account|User) Limits\n(?P<rows>(?:^ {6}.*\n?)*)", re.MULTILINE)
_ROW = re.compile(r"^ {6}(?P<name>\S.*)\n(?P<pairs>(?:^ {8}.*\n?)*)", re.MULTILINE)
_NUMBERED = re.compile(r"(?P<name>.*?)(?:\((?P<id>\d+)\))?")  # `alice(10011)`


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
    blocks = {block["whose"]: list(_rows(block["rows"])) for block in _BLOCK.finditer(text)}
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


def _rows(text: str) -> Iterator[tuple[str, dict[str, str]]]:
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
