"""The limits that are tried, the requests beyond them, and what Slurm makes of each."""

from __future__ import annotations

from typing import Any, NamedTuple

STARTS = "it starts"
"""Slurm lets the job run that cannot do what it was meant to."""


class Case(NamedTuple):
    """A request beyond a limit.

    Attributes:
        asks: options of `slurmkit plan`, each `NAME=VALUE`, blank-separated.
        code: of the finding.
        slurm: pattern of the refusal or of the pending reason; STARTS when the job starts.
        level: of the finding.
    """

    asks: str
    code: str
    slurm: str
    level: str = "errors"


class Row(NamedTuple):
    """A job in the queue."""

    state: str
    reason: str


class Outcome(NamedTuple):
    """What became of a case.

    Attributes:
        code: exit code of `slurmkit plan`.
        plan: the row that `slurmkit plan --json` printed.
        said: job id, or what sbatch said.
        fix: the options of the fix.
        fixed: job id of the request with its fix, or why there is none.
        bad: the job as asked, once nothing moved any more; None when sbatch refused it.
        good: the job with its fix; None without one.
    """

    code: int
    plan: dict[str, Any]
    said: str
    fix: dict[str, str]
    fixed: str
    bad: Row | None = None
    good: Row | None = None


# --- partitions -----------------------------------------------------------------------------------

PARTITIONS = {
    "lim-time": "Nodes=c7 MaxTime=10",
    "lim-most": "Nodes=c[1-2] MaxNodes=1",
    "lim-least": "Nodes=c[1-2] MinNodes=2",
    "lim-cpus": "Nodes=c7 MaxCPUsPerNode=4",
    "lim-mem": "Nodes=c7 MaxMemPerNode=4096",
    "lim-drain": "Nodes=c7 State=DRAIN",
    "lim-inactive": "Nodes=c7 State=INACTIVE",
    "lim-accounts": "Nodes=c7 AllowAccounts=genomics",
    "lim-noaccount": "Nodes=c7 DenyAccounts=vision",
    "lim-qos": "Nodes=c7 AllowQos=high",
    "lim-noqos": "Nodes=c7 DenyQos=normal",
    "lim-group": "Nodes=c7 AllowGroups=genomics",
    "lim-root": "Nodes=c7 RootOnly=YES",
    "lim-resv": "Nodes=c7 ReqResv=YES",
    "lim-alloc": "Nodes=c7 AllocNodes=c1",
    "lim-judged": "Nodes=c7 QOS=lim-part",
}
# The words differ by release and by which scheduler looked last.
_DENIED = "PartitionConfig|not permitted|not in group|AccountNotAllowed|Nodes required for job"

OF_PARTITIONS = [
    Case("partition=lim-time time=20", "partition-max-time", "PartitionTimeLimit"),
    Case("partition=lim-most nodes=2", "partition-max-nodes", "PartitionNodeLimit"),
    Case("partition=lim-least nodes=1", "partition-min-nodes", "PartitionNodeLimit"),
    Case("partition=lim-cpus cpus-per-task=8", "partition-max-cpus-per-node", "available|Config"),
    Case("partition=lim-mem mem=8G", "partition-max-mem-per-node", "MaxMemPerLimit"),
    Case("partition=lim-drain", "partition-state", "not available"),
    Case("partition=lim-inactive", "partition-state", "not available"),
    Case("partition=lim-accounts", "partition-allow-accounts", _DENIED),
    Case("partition=lim-noaccount", "partition-deny-accounts", _DENIED),
    Case("partition=lim-qos", "partition-allow-qos", _DENIED),
    Case("partition=lim-noqos", "partition-deny-qos", _DENIED),
    Case("partition=lim-group", "partition-allow-groups", _DENIED),
    Case("partition=lim-root", "partition-root-only", "Access/permission denied"),
    Case("partition=lim-resv", "partition-needs-reservation", "Access/permission denied"),
    Case("partition=lim-alloc", "partition-alloc-nodes", "Access/permission denied"),
    Case("partition=lim-judged time=20", "qos-max-wall", "QOSMaxWallDurationPerJobLimit"),
]

# --- QOS ------------------------------------------------------------------------------------------

QOS = {
    "lim-wall": "MaxWall=10",
    "lim-deny": "MaxWall=10 Flags=DenyOnLimit",
    "lim-job": "MaxTRESPerJob=cpu=2",
    "lim-node": "MaxTRESPerNode=gres/gpu=2",
    "lim-user": "MaxTRESPerUser=gres/gpu=8",
    "lim-account": "MaxTRESPerAccount=node=1",
    "lim-grp": "GrpTRES=gres/gpu=2",
    "lim-min": "MinTRESPerJob=gres/gpu=2",
    "lim-mins": "MaxTRESMinsPerJob=gres/gpu=10",
    "lim-run": "GrpTRESRunMins=cpu=10",
    "lim-submit": "MaxSubmitJobsPerUser=2",
    "lim-none": "GrpJobs=0",
    "lim-reserved": "Flags=RequiresReservation",
    "lim-part": "MaxWall=10",
    "lim-others": "Priority=1",
}
GPU = "gpus-per-node=a100"

OF_QOS = [
    Case("partition=cpu qos=lim-wall time=20", "qos-max-wall", "QOSMaxWall"),
    Case("partition=cpu qos=lim-deny time=20", "qos-max-wall", "QOSMaxWall"),
    Case("partition=cpu qos=lim-job cpus-per-task=4", "qos-max-tres-per-job", "QOSMaxCpuPerJob"),
    Case(f"qos=lim-node {GPU}:4", "qos-max-tres-per-node", "QOSMaxGRESPerNode"),
    Case(f"qos=lim-user {GPU}:8 nodes=2", "qos-max-tres-per-user", "QOSMaxGRESPerUser"),
    Case("qos=lim-account nodes=2", "qos-max-tres-per-account", "MaxNodePerAccount|QOSMaxNode"),
    Case(f"qos=lim-grp {GPU}:4", "qos-grp-tres", "QOSGrpGRES"),
    Case(f"qos=lim-min {GPU}:1", "qos-min-tres-per-job", "QOSMinGRES"),
    Case(f"qos=lim-mins {GPU}:2 time=10", "qos-max-tres-mins-per-job", "QOSMaxGRESMinutes"),
    Case("partition=cpu qos=lim-run time=20", "qos-grp-tres-run-mins", "QOSGrpCPURunMinutes"),
    Case("partition=cpu qos=lim-submit array=0-4", "qos-max-submit", "QOSMaxSubmitJob"),
    Case("partition=cpu qos=lim-none", "qos-grp-jobs", "QOSGrpJobsLimit"),
    Case("partition=cpu qos=lim-reserved", "qos-needs-reservation", "Invalid qos"),
    Case("partition=cpu qos=lim-others", "qos-not-allowed", "Invalid qos"),
    Case("partition=cpu qos=lim-nowhere", "no-qos", "Invalid qos"),
]

# --- associations ---------------------------------------------------------------------------------

ACCOUNTS = {
    "lim-a-grp": "GrpTRES=gres/gpu=2",
    "lim-a-job": "MaxTRESPerJob=cpu=2",
    "lim-a-wall": "MaxWall=10",
    "lim-a-mins": "GrpTRESMins=gres/gpu=30",
    "lim-a-gwall": "GrpWall=30",
    "lim-a-submit": "GrpSubmitJobs=2",
    "lim-a-none": "MaxJobs=0",
}

OF_ACCOUNTS = [
    Case(f"account=lim-a-grp {GPU}:4", "assoc-grp-tres", "AssocGrpGRES"),
    Case("account=lim-a-job partition=cpu cpus-per-task=4", "assoc-max-tres-per-job", "AssocMaxC"),
    Case("account=lim-a-wall partition=cpu time=20", "assoc-max-wall", "AssocMaxWall"),
    Case(f"account=lim-a-mins {GPU}:1 time=60", "assoc-grp-tres-mins", STARTS),
    Case("account=lim-a-gwall partition=cpu time=60", "assoc-grp-wall", STARTS),
    Case("account=lim-a-submit partition=cpu array=0-4", "assoc-grp-submit", "AssocGrpSub"),
    Case("account=lim-a-none partition=cpu", "assoc-max-jobs", "AssocMaxJobsLimit"),
    Case("account=genomics partition=cpu", "no-association", "Invalid account"),
]

# --- nodes, arrays, times, reservations, dependencies ---------------------------------------------

_CONFIG = "node configuration is not available"

OTHERS = [
    Case(f"{GPU}:8 mem=600G", "node-shape", _CONFIG),
    Case(f"nodes=4 {GPU}:2", "node-count", f"{_CONFIG}|NodeLimit"),
    Case("partition=cpu constraint=lim-x", "no-feature", "Invalid feature"),
    Case("partition=cpu nodelist=c99", "no-node", "Invalid node name"),
    Case("partition=cpu exclude=c99", "no-node", "Invalid node name"),
    Case("nodelist=c7", "node-elsewhere", "not available|not in"),
    Case("partition=cpu licenses=lim-x:1", "no-license", "Invalid license"),
    Case("partition=cpu deadline=2020-01-01", "deadline-passed", "time limit is invalid"),
    Case(
        "partition=cpu time=10 deadline=now+5minutes",
        "deadline-too-near",
        "limit is invalid|DEADLINE",
    ),
    Case("partition=cpu reservation=lim-x", "no-reservation", "reservation is invalid"),
    Case("reservation=lim-bobs", "reservation-access", "[Aa]ccess denied to requested reserv"),
    Case("partition=cpu reservation=lim-mine", "reservation-nodes", "not available"),
    Case("partition=cpu dependency=afterok:999999", "dependency-unknown", f"dependency|{STARTS}"),
    Case("partition=cpu dependency=afterany:999999", "dependency-unknown", STARTS),
    Case("partition=cpu dependency=afterok:{failed}", "dependency-never", "DependencyNever"),
    Case("partition=untyped time=30", "reservation-in-the-way", "Reserved|ReqNode", "notes"),
    Case("partition=mps", "nodes-down", "ReqNodeNotAvail|Nodes required", "warnings"),
]
