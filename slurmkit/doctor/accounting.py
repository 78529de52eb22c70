"""Checks of accounting: what is recorded and enforced, and whether everybody has an account."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterator
from pathlib import Path

from slurmkit.doctor.case import Check, CheckContext, CheckFinding
from slurmkit.doctor.installation import service_user
from slurmkit.errors import SlurmkitError
from slurmkit.formats.scontrol import parse_names
from slurmkit.state.associations import current_user

_TRES = "AccountingStorageTRES"
_NO_LOGIN = ("nologin", "false")
_FIRST_UID, _LAST_UID = 1000, 60000  # uids of people in every distribution's login.defs
_SHOWN = 10
_ENFORCE = "AccountingStorageEnforce"
_LIMITS = tuple(
    "grptres grptresmins grptresrunmins grpjobs grpsubmit grpwall maxtres maxtresmins maxjobs"
    " maxsubmit maxwall".split()
)
_QOS_LIMITS = (*_LIMITS, "maxtrespu", "maxjobspu", "maxsubmitpu", "maxtrespa")
_STORE_FLAGS = {
    "job_comment": "comments: sacct cannot find a job by the mark slurmkit gave it",
    "job_script": "batch scripts: nobody can look up the script of an ended job",
    "job_env": "environments: nobody can look up the environment of an ended job",
}
_PRIVATE_DATA = {
    "jobs": "people see only their own jobs: the GPU map cannot name who holds other GPUs, and"
    " `why` cannot name the jobs ahead",
    "nodes": "people do not see nodes: `nodes`, `gpus` and the checks of `plan` do not work",
    "partitions": "people do not see partitions they may not use: `plan` cannot name them",
    "reservations": "people do not see reservations: `plan` and `why` cannot name them",
    "usage": "people see only their own usage: `fairshare` shows no other person's or account's",
    "accounts": "people do not see the limits of their accounts: `plan` cannot check them",
    "users": "people do not see other people's associations",
}


def check_gpu_tres(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that GPUs, their types and their shares are tracked TRES."""
    tracked = {name.lower() for name in parse_names(case.config.get(_TRES))}
    types = sorted({f"gres/gpu:{of.type}" for n in case.gpu_nodes for of in n.gpus if of.type})
    parts = sorted({f"gres/{n}" for x in case.gpu_nodes for n in ("shard", "mps") if x.count(n)})
    wanted = ["gres/gpu", *types, *parts] if case.gpu_nodes else []
    missing = [name for name in wanted if name.lower() not in tracked]
    fix = (_tracked_tres_setting(case, missing), "slurm.conf, then restart slurmctld")
    if "gres/gpu" in missing:
        yield CheckFinding(
            "error",
            f"{_TRES} has no gres/gpu, and {len(case.gpu_nodes)} nodes have GPUs",
            "no GPU-hours are counted, and limits on GPUs have no effect",
            *fix,
        )
    elif untracked := [name for name in missing if name in types]:
        yield CheckFinding("warning", f"{_TRES} lacks {', '.join(untracked)}",
                    "GPU-hours and limits cannot distinguish these GPU types", *fix)  # fmt: skip
    elif missing:
        yield CheckFinding("note", f"{_TRES} lacks {', '.join(missing)}",
                    "what jobs use of shared GPUs is not recorded", *fix)  # fmt: skip


def _tracked_tres_setting(case: CheckContext, missing: list[str]) -> str:
    """Return the setting with the missing TRES, without those that Slurm always tracks."""
    always = set("cpu mem energy node billing fs/disk vmem pages gres/gpumem gres/gpuutil".split())
    tracked = [name for name in parse_names(case.config.get(_TRES)) if name not in always]
    return f"{_TRES}={','.join(sorted({*tracked, *missing}))}"


def check_enforcement(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that associations, limits and QOS are enforced."""
    enforced = case.words(_ENFORCE)
    if "all" in enforced:
        return
    shown = ",".join(sorted(enforced)) or "none"
    fix = f"{_ENFORCE}=associations,limits,qos,safe"
    if not enforced & {"associations", "limits", "qos", "safe"}:
        yield CheckFinding(
            "warning",
            f"{_ENFORCE}={shown}: people without an association may submit",
            "their jobs are charged to nobody",
            fix,
        )
    if not enforced & {"limits", "safe"}:
        rows = [*_associations(case), *_qos(case)]
        count = sum(any(row.get(limit) for limit in _QOS_LIMITS) for row in rows)
        yield CheckFinding("error" if count else "warning",
                    f"{_ENFORCE}={shown}: limits are not enforced, {count or 'none'} are set",
                    "every limit that sacctmgr shows is ignored", fix)  # fmt: skip
    elif "qos" not in enforced:
        yield CheckFinding(
            "warning",
            f"{_ENFORCE}={shown}: Slurm does not check which QOS a person may use",
            "everybody may run with the highest QOS",
            fix,
        )


def check_safe_budgets(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that budgets in TRES-minutes have `safe`; else jobs start that the budget must kill."""
    enforced = case.words(_ENFORCE)
    if "limits" not in enforced or "safe" in enforced:
        return
    budgets = [
        *(_owner(row) for row in _associations(case) if row["grptresmins"]),
        *(f"QOS {row['name']}" for row in _qos(case) if row["grptresmins"]),
    ]
    if budgets:
        yield CheckFinding("warning",
                    f"{_ENFORCE} has limits without safe, and GrpTRESMins is set for"
                    f" {_first_names(budgets)}",
                    "jobs start that the budget cannot pay for, and are killed when it is used up",
                    f"{_ENFORCE}=associations,limits,qos,safe")  # fmt: skip


def _associations(case: CheckContext) -> list[dict[str, str]]:
    rows = case.accounting("assoc", ("cluster", "account", "user", *_LIMITS))
    return [row for row in rows if row["cluster"] == case.config.get("ClusterName")]


def _qos(case: CheckContext) -> list[dict[str, str]]:
    return case.accounting("qos", ("name", *_QOS_LIMITS))


def _owner(row: dict[str, str]) -> str:
    return f"{row['user']} in {row['account']}" if row["user"] else f"account {row['account']}"


def _first_names(what: list[str]) -> str:
    """Join names with commas, at most five of them."""
    more = len(what) - 5
    return ", ".join(what[:5]) + (f" and {more} more" if more > 0 else "")


def check_stored_fields(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that slurmdbd stores the comments, scripts and environments of jobs."""
    missing = [name for name in _STORE_FLAGS if name not in case.words("AccountingStoreFlags")]
    if missing:
        flags = ",".join(sorted({*case.words("AccountingStoreFlags"), *missing}))
        yield CheckFinding("note", f"AccountingStoreFlags lacks {', '.join(missing)}",
                    "not stored: " + "; ".join(_STORE_FLAGS[name] for name in missing),
                    f"AccountingStoreFlags={flags}")  # fmt: skip


def check_gathering(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that the use of CPU and memory is measured."""
    gathers = case.config.get("JobAcctGatherType", "")
    if not gathers or gathers.endswith("none"):
        yield CheckFinding("warning", "JobAcctGatherType is none",
                    "the CPU and memory that jobs really use are unknown: no efficiency, no advice",
                    "JobAcctGatherType=jobacct_gather/cgroup")  # fmt: skip


def check_private_data(case: CheckContext) -> Iterator[CheckFinding]:
    """Check which data is hidden from users, and what slurmkit cannot do without it."""
    hidden = [kind for kind in _PRIVATE_DATA if kind in case.words("PrivateData")]
    if hidden:
        yield CheckFinding("warning" if "nodes" in hidden else "note",
                    f"PrivateData={','.join(hidden)}",
                    "; ".join(_PRIVATE_DATA[kind] for kind in hidden),
                    "remove from PrivateData what people may see")  # fmt: skip


def check_fairshare(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that past use counts in the order of jobs."""
    if not case.config.get("PriorityType", "").endswith("multifactor"):
        yield CheckFinding("warning", f"PriorityType={case.config.get('PriorityType') or 'basic'}",
                    "jobs run in the order of submission; past use and shares do not count",
                    "PriorityType=priority/multifactor")  # fmt: skip
    elif case.config.get("PriorityWeightFairShare", "0") == "0":
        yield CheckFinding("warning", "PriorityWeightFairShare is 0",
                    "past use and shares do not count when jobs are ordered",
                    "PriorityWeightFairShare=100000")  # fmt: skip


def check_gpu_billing(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that GPUs have a billing weight."""
    free = [
        each.name
        for each in case.gpu_partitions()
        if not any(name.startswith("gres/gpu") for name in each.billing_weights)
    ]
    if free:
        yield CheckFinding("warning", f"TRESBillingWeights of {_first_names(free)} has no GRES/gpu",
                    "fair share and billing count CPUs alone: GPUs cost nothing",
                    'PartitionName=… TRESBillingWeights="CPU=1.0,GRES/gpu=16.0"')  # fmt: skip


CHECKS = (
    Check("gpu-tres", "GPUs and their types are recorded", check_gpu_tres),
    Check("enforce", "associations, limits and QOS are enforced", check_enforcement),
    Check("enforce-safe", "no budget is enforced without `safe`", check_safe_budgets),
    Check(
        "store-flags", "comments, scripts and environments of jobs are stored", check_stored_fields
    ),
    Check("gathering", "use of CPU and memory is measured", check_gathering),
    Check("private-data", "nothing that slurmkit needs is hidden", check_private_data),
    Check("fairshare", "past use counts when jobs are ordered", check_fairshare),
    Check("billing", "GPUs are billed", check_gpu_billing),
)


def check_own_association(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that you may submit at all."""
    name = current_user()
    if name == "root" or name in _users_with_association(case):
        return
    if name == service_user():  # it submits no jobs
        if not is_operator(case, name):
            yield no_operator_finding(name)
        return
    needed = bool(case.words("AccountingStorageEnforce") - {"nojobs", "nosteps"})
    yield CheckFinding("error" if needed else "note",
                f"{name} has no association with an account of this cluster",
                "every job of yours is refused" if needed else "your jobs are charged to nobody",
                f"sacctmgr add user {name} account=ACCOUNT",
                "as a Slurm administrator")  # fmt: skip


def check_directory_people(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that everybody in the directory has an association; only operators can see them all."""
    _require_operator(case)
    people = read_directory_people()
    if not people:
        raise SlurmkitError(
            "getent passwd lists nobody from a directory: there is no directory, or enumeration is"
            " off"
        )
    known = _users_with_association(case)
    if missing := sorted(set(people) - known):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        yield CheckFinding("warning",
                    f"{len(missing)} of {len(people)} people in the directory have no association:"
                    f" {', '.join(missing[:_SHOWN])}{more}",
                    "their jobs are refused, or charged to nobody",
                    f"sacctmgr add user {missing[0]} account=ACCOUNT",
                    "as a Slurm administrator")  # fmt: skip


def read_directory_people(local: Path = Path("/etc/passwd")) -> dict[str, str]:
    """Return the login names and groups of all who can log in and are not in the local file."""
    ours = {line.partition(":")[0] for line in local.read_text("utf-8", "replace").splitlines()}
    groups = {group.gr_gid: group.gr_name for group in grp.getgrall()}
    return {
        person.pw_name: groups.get(person.pw_gid, "")
        for person in pwd.getpwall()
        if _FIRST_UID <= person.pw_uid <= _LAST_UID
        and person.pw_name not in ours
        and not person.pw_shell.endswith(_NO_LOGIN)
    }


def no_operator_finding(account: str) -> CheckFinding:
    """Return the finding that the account of the ledger's service is no operator of Slurm."""
    return CheckFinding(
        "warning",
        f"{account}, the account of the ledger's service, lacks AdminLevel Operator in Slurm",
        "with PrivateData, the ledger has only jobs that everybody may see; and no policy of"
        " [reclaim] can act, because Slurm shows the service no script of a job",
        f"sacctmgr -i add user name={account} account=root adminlevel=Operator",
        "as a Slurm administrator",
    )


def _require_operator(case: CheckContext) -> None:
    """Raise SlurmkitError unless you are an operator of Slurm."""
    if not is_operator(case, current_user()):
        raise SlurmkitError("not checked: only Slurm operators see all associations")


def is_operator(case: CheckContext, user: str) -> bool:
    """Return whether a user is an operator or administrator of Slurm."""
    rows = case.accounting("user", ("user", "adminlevel"))
    levels = {row["user"]: row["adminlevel"] for row in rows}
    return levels.get(user, "None") != "None"


def _users_with_association(case: CheckContext) -> set[str]:
    """Return the users with an association in this cluster."""
    rows = case.accounting("assoc", ("cluster", "account", "user"))
    return {row["user"] for row in rows if row["cluster"] == case.config.get("ClusterName")}


PEOPLE_CHECKS = (
    Check("own-association", "you may submit", check_own_association),
    Check("directory", "everybody in the directory has an association", check_directory_people),
)
