"""Pending reasons in words: what each means, who can change it, and what to do.

The names are those of Slurm 22.05 to 26.05 (src/common/job_state_reason.c, slurm_protocol_defs.c).
The names of limit reasons are parsed, not listed: see `LimitReason`.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

YOU = "you"
ADMIN = "an administrator"
TIME = "nobody: it passes by itself"
EITHER = "you or an administrator"


class ReasonText(msgspec.Struct, frozen=True):
    """One pending reason in words.

    Attributes:
        meaning: what it means, one sentence without a full stop.
        who: who can change it.
        advice: what to do.
    """

    meaning: str
    who: str
    advice: str


_WAIT = "wait"
_ASK = "wait, or ask your administrator"
_RELEASE = "release it: slurmkit release JOB"
_LOOK = "see why it failed, correct that, then release it: slurmkit release JOB"
_OLD = "this old reason names no limit; ask your administrator, or see: slurmkit fairshare"
_PARTITION = "choose another partition: slurmkit update JOB --partition=NAME"

TEXT_BY_NAME: dict[str, ReasonText] = {
    "None": ReasonText("the scheduler has not looked at it yet", TIME, "ask again in a minute"),
    "Prolog": ReasonText("its nodes are being prepared: the prolog runs", TIME, _WAIT),
    "Priority": ReasonText("jobs of higher priority wait for the same resources", TIME, _WAIT),
    "Resources": ReasonText("the resources it asks for are not free now", TIME, _WAIT),
    "Dependency": ReasonText(
        "it waits for another job (--dependency)",
        YOU,
        "wait, or remove the dependency: scontrol update JobId=JOB Dependency=",
    ),
    "DependencyNeverSatisfied": ReasonText(
        "it never starts: the job it waits for did not end as its dependency requires",
        YOU,
        "cancel it, or remove the dependency: scontrol update JobId=JOB Dependency=",
    ),
    "BeginTime": ReasonText(
        "it may not start before its begin time",
        YOU,
        "wait, or let it start sooner: scontrol update JobId=JOB StartTime=now",
    ),
    # Of `scontrol uhold` by an operator, too, e.g. by the service that gives idle GPUs back.
    "JobHeldUser": ReasonText(
        "it is on hold, and its user can release it (Slurm does not say who held it)",
        EITHER,
        _RELEASE,
    ),
    "JobHeldAdmin": ReasonText(
        "an administrator has put it on hold, or its priority was set to 0",
        ADMIN,
        "ask your administrator why; its user cannot release it",
    ),
    "JobHoldMaxRequeue": ReasonText(
        "it was requeued too often (MaxBatchRequeue) and is now on hold", EITHER, _LOOK
    ),
    "JobArrayTaskLimit": ReasonText(
        "its array already runs as many tasks at once as --array allows (%N)",
        YOU,
        "raise it: scontrol update JobId=JOB ArrayTaskThrottle=N, 0 for no limit",
    ),
    "Licenses": ReasonText("the licences it asks for are in use", TIME, _WAIT),
    "PartitionNodeLimit": ReasonText(
        "it asks for more or fewer nodes than its partition allows, or the nodes are down",
        EITHER,
        "ask for fewer nodes, or choose another partition: slurmkit update JOB --partition=NAME",
    ),
    "PartitionTimeLimit": ReasonText(
        "its time limit is more than its partition allows, so it does not start",
        EITHER,
        "lower it: slurmkit update JOB --time=LIMIT, or choose another partition",
    ),
    "PartitionDown": ReasonText(
        "its partition starts no jobs: it is set to DOWN", ADMIN, _PARTITION
    ),
    "PartitionInactive": ReasonText(
        "its partition accepts no jobs and starts none: it is INACTIVE", ADMIN, _PARTITION
    ),
    "PartitionConfig": ReasonText(
        "it exceeds a limit of its partition",
        EITHER,
        "see which limit: slurmkit plan; or choose another partition",
    ),
    "Reservation": ReasonText("its reservation has not begun, or is in use", TIME, _WAIT),
    "ReservationDeleted": ReasonText(
        "its reservation was deleted, so it never starts",
        EITHER,
        "remove the reservation: scontrol update JobId=JOB ReservationName=",
    ),
    "ReservationInvalid": ReasonText(
        "it cannot use its reservation",
        EITHER,
        "see: slurmkit reservations; or remove it: scontrol update JobId=JOB ReservationName=",
    ),
    "ReqNodeNotAvail": ReasonText(
        "nodes it needs are down, drained or reserved", ADMIN, "wait, or ask for other nodes"
    ),
    "NodeDown": ReasonText("a node it needs is down", ADMIN, "wait, or ask for other nodes"),
    "BadConstraints": ReasonText(
        "no node can ever provide what it asks for, so it is on hold",
        YOU,
        "cancel it and submit it with less; slurmkit plan shows what fits",
    ),
    "Constraints": ReasonText(
        "no node meets its extra constraints now", EITHER, "wait, or submit it without them"
    ),
    "InvalidAccount": ReasonText(
        "its account does not exist (any more), or its user is not in it",
        EITHER,
        "choose an account of yours: scontrol update JobId=JOB Account=NAME",
    ),
    "InvalidQOS": ReasonText(
        "its QOS does not exist (any more), or its user may not use it",
        EITHER,
        "choose another: slurmkit update JOB --qos=NAME",
    ),
    "QOSNotAllowed": ReasonText(
        "its partition does not allow its QOS",
        EITHER,
        "choose another: slurmkit update JOB --qos=NAME, or another partition",
    ),
    "AccountNotAllowed": ReasonText(
        "its partition does not allow its account",
        EITHER,
        "choose another: scontrol update JobId=JOB Account=NAME, or another partition",
    ),
    "QOSUsageThreshold": ReasonText(
        "its account's fairshare is below the value that its QOS requires (UsageThreshold)",
        TIME,
        "wait until usage has decayed, or choose another QOS: slurmkit update JOB --qos=NAME",
    ),
    "MaxMemPerLimit": ReasonText(
        "it asks for more memory per CPU or node than its partition allows (MaxMemPerCPU,"
        " MaxMemPerNode)",
        EITHER,
        "ask for less memory, or for more CPUs",
    ),
    "AccountingPolicy": ReasonText("it has reached an accounting limit", EITHER, _OLD),
    "AssociationJobLimit": ReasonText("its account's job limit is reached", EITHER, _OLD),
    "AssociationResourceLimit": ReasonText("its account's resource limit is reached", EITHER, _OLD),
    "AssociationTimeLimit": ReasonText("its account's time limit is reached", EITHER, _OLD),
    "QOSJobLimit": ReasonText("its QOS's job limit is reached", EITHER, _OLD),
    "QOSResourceLimit": ReasonText("its QOS's resource limit is reached", EITHER, _OLD),
    "QOSTimeLimit": ReasonText("its QOS's time limit is reached", EITHER, _OLD),
    "Cleaning": ReasonText("its last run is still being cleaned up on the nodes", TIME, _WAIT),
    "SchedDefer": ReasonText(
        "the cluster looks at new jobs only now and then (SchedulerParameters=defer)", TIME, _WAIT
    ),
    "BurstBufferResources": ReasonText("its burst buffer has too little free space", TIME, _WAIT),
    "BurstBufferStageIn": ReasonText("its data is being staged into the burst buffer", TIME, _WAIT),
    "BurstBufferOperation": ReasonText(
        "an operation on its burst buffer failed", EITHER, "see SystemComment of: slurmkit job JOB"
    ),
    "FrontEndDown": ReasonText("no front-end node is up", ADMIN, _ASK),
    "BlockMaxError": ReasonText("too many parts of its hardware block are in error", ADMIN, _ASK),
    "BlockFreeAction": ReasonText("its hardware block is being freed", TIME, _WAIT),
    "PowerNotAvail": ReasonText(
        "the cluster has too little electric power for it now", TIME, _WAIT
    ),
    "PowerReserved": ReasonText("the power it needs is reserved", TIME, _WAIT),
    "MaxPoweredUpNodes": ReasonText(
        "no more nodes may be powered up now (max_powered_nodes)", TIME, _WAIT
    ),
    "FedJobLock": ReasonText("the clusters of the federation agree on where it runs", TIME, _WAIT),
    "MpiPortsBusy": ReasonText("the ports that its MPI steps need are in use", TIME, _WAIT),
    "NvidiaImexChannels": ReasonText("no NVIDIA IMEX channel is free for it", TIME, _WAIT),
    "SystemFailure": ReasonText("Slurm itself failed on it", ADMIN, "tell your administrator"),
    "JobLaunchFailure": ReasonText(
        "it could not be launched; causes: a file system, a missing program, a broken node",
        EITHER,
        _LOOK,
    ),
    "NonZeroExitCode": ReasonText(
        "its script ended with an exit code other than 0", YOU, "see its log"
    ),
    "RaisedSignal": ReasonText("a signal ended it", YOU, "see its log"),
    "TimeLimit": ReasonText("it reached its time limit", YOU, "ask for more time"),
    "InactiveLimit": ReasonText(
        "its step launched nothing for too long (InactiveLimit)",
        EITHER,
        "start its steps sooner, or ask your administrator for a longer InactiveLimit",
    ),
    "DeadLine": ReasonText(
        "it could not end before its deadline", YOU, "submit it with a later one"
    ),
    "OutOfMemory": ReasonText("it used more memory than it had", YOU, "ask for more memory"),
}

# Free texts that slurmctld writes instead of a name. `{}` in `meaning` is the pattern's group.
_TEXT_BY_PATTERN: tuple[tuple[re.Pattern[str], ReasonText], ...] = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (
            r"ReqNodeNotAvail, ?UnavailableNodes:(.*)",
            ReasonText("nodes it could use are down, drained or reserved: {}", ADMIN, _ASK),
        ),
        (
            r"ReqNodeNotAvail, May be reserved for other job",
            ReasonText("the nodes it needs may be reserved for other jobs", TIME, _WAIT),
        ),
        (
            r"ReqNodeNotAvail, Reserved for maintenance",
            ReasonText(
                "it would still run when the maintenance of its nodes begins",
                EITHER,
                "lower its time limit so that it ends before: slurmkit update JOB --time=LIMIT",
            ),
        ),
        (
            r"Nodes required for job are DOWN, DRAINED.*",
            ReasonText(
                "too few nodes of its partition are up and not taken by partitions of higher"
                " priority",
                ADMIN,
                "wait, ask for fewer nodes, or choose another partition",
            ),
        ),
        (
            r"launch failed requeued held",
            ReasonText("a node could not start it (prolog failed); it is on hold", EITHER, _LOOK),
        ),
        (
            r"launch failure limit exceeded requeued held",
            ReasonText("nodes failed to start it several times; it is on hold", EITHER, _LOOK),
        ),
        (
            r"user env retrieval failed requeued held",
            ReasonText("its user's environment could not be read on the node", EITHER, _LOOK),
        ),
        (
            r"job requeued in held state",
            ReasonText(
                "it was requeued and put on hold; so are jobs with --requeue=expedite whose script"
                " failed on nodes that are fine",
                EITHER,
                "read its log; then release it, or cancel it: slurmkit release JOB",
            ),
        ),
        (
            r"job requeued in special exit state",
            ReasonText("it was requeued after a special exit code and is on hold", EITHER, _LOOK),
        ),
        (
            r"Job's (?:QOS|account) not (?:permitted|known).* \((.*)\)",
            ReasonText("its partition does not accept it: {}", EITHER, _PARTITION),
        ),
        (
            r"uid \d+ not in group permitted to use this partition \((.*)",
            ReasonText("its user is in none of its partition's groups ({}", EITHER, _PARTITION),
        ),
        (r"Reservation (.*) was deleted", TEXT_BY_NAME["ReservationDeleted"]),
        (r"Reservation (.*) is invalid", TEXT_BY_NAME["ReservationInvalid"]),
        (
            r"License request '(.*)' is no longer valid, holding job",
            ReasonText(
                "its licences {} no longer exist; it is on hold", ADMIN, "ask your administrator"
            ),
        ),
    )
)


# Slurm plans a start for jobs with these, and with reasons that pass by themselves.
_PLANNED = ("BeginTime", "NodeDown", "ReqNodeNotAvail")
_NOT_PLANNED = ("QOSUsageThreshold",)


def may_be_planned(reason: str) -> bool:
    """Return whether Slurm plans a start for jobs with this reason.

    For other reasons, such as a limit, slurmctld may still print a start time, which means nothing.
    """
    name = reason_name(reason)
    return name in _PLANNED or (_find_text(reason).who == TIME and name not in _NOT_PLANNED)


def is_known_reason(reason: str) -> bool:
    """Return whether `reason` is a name that we know."""
    return reason in TEXT_BY_NAME or parse_limit_reason(reason) is not None


def reason_name(reason: str) -> str:
    """Return the name in a reason: `ReqNodeNotAvail` of `ReqNodeNotAvail, UnavailableNodes:c1`."""
    first = reason.partition(",")[0].strip()
    return first if is_known_reason(first) else reason


def explain_reason(reason: str, job_id: str) -> ReasonText:
    """Return what a reason means, who can change it, and what to do; an unknown one is quoted.

    Args:
        reason: output of `squeue -O Reason`: a name, names with commas, or free text.
        job_id: filled into the commands of the advice.
    """
    words = _find_text(reason)
    return ReasonText(words.meaning, words.who, words.advice.replace("JOB", job_id))


def _find_text(reason: str) -> ReasonText:
    if reason in TEXT_BY_NAME:
        return TEXT_BY_NAME[reason]
    for pattern, words in _TEXT_BY_PATTERN:
        if match := pattern.fullmatch(reason):
            return ReasonText(words.meaning.format(*match.groups()), words.who, words.advice)
    if (limit := parse_limit_reason(reason)) is not None:
        return ReasonText(*limit.texts)
    if (first := reason_name(reason)) != reason:  # an array's tasks may have several reasons
        return _find_text(first)
    return ReasonText(f"Slurm says: {reason}", "unknown", "ask your administrator what it means")


LimitOwner = Literal["association", "qos"]
LimitScope = Literal["group", "user", "account", "job", "node"]

_LIMIT_NAME = re.compile(
    r"(?P<owner>Assoc|QOS|)(?P<bound>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|Mem(?:ory)?|Node|Energy|GRES|License|BB|Billing|Unknown"
    r"|SubmitJobs?|Jobs?|Wall(?:Duration)?)"
    r"(?P<measure>Run(?:Minutes|Mins)|Minutes|)(?P<per>PerJob|PerNode|PerUser|PerAccount|)"
    r"(?:Limit|NotSatisfied)?"
)
_LIMIT_TRES = {
    "Cpu": "cpu",
    "CPU": "cpu",
    "Mem": "mem",
    "Memory": "mem",
    "Node": "node",
    "Energy": "energy",
    "GRES": "gres/",
    "License": "license/",
    "BB": "bb/",
    "Billing": "billing",
    "Unknown": "",
}
_TRES_NAMES = {
    "cpu": "CPUs",
    "mem": "memory",
    "node": "nodes",
    "energy": "energy",
    "gres/": "GPUs or other generic resources",
    "license/": "licences",
    "bb/": "burst buffer",
    "billing": "billing units",
    "": "resources",
}


class LimitKind(msgspec.Struct, frozen=True):
    """One kind of accounting limit.

    Attributes:
        slurm: its name in sacctmgr.
        limit: its field in the model of limits in `slurmkit.state.model`.
        used: the usage field it is compared with; empty if the job alone is compared.
        whose: whose use counts.
        means: what the reason means; `{holder}` and `{what}` are filled in.
    """

    slurm: str
    limit: str
    used: str
    whose: LimitScope
    means: str

    @property
    def per_tres(self) -> bool:
        """Whether the limit is set per TRES."""
        return "tres" in self.limit


# By (bound, measure, per) of the reason's name. `Minutes` limits count used TRES-minutes; `Run`
# limits count the TRES-minutes that running jobs may still use.
_LIMITS_PER_TRES: dict[tuple[str, str, str], LimitKind] = {
    ("Grp", "", ""): LimitKind(
        "GrpTRES",
        "grp_tres",
        "tres",
        "group",
        "all jobs of {holder} together hold the allowed maximum of {what}",
    ),
    ("Grp", "Minutes", ""): LimitKind(
        "GrpTRESMins",
        "grp_tres_mins",
        "tres_mins",
        "group",
        "all jobs of {holder} together have used up their minutes of {what}",
    ),
    ("Grp", "Run", ""): LimitKind(
        "GrpTRESRunMins",
        "grp_tres_run_mins",
        "tres_run_mins",
        "group",
        "the running jobs of {holder} together hold the allowed maximum of {what} times"
        " remaining time",
    ),
    ("Max", "", "PerJob"): LimitKind(
        "MaxTRESPerJob",
        "max_tres_per_job",
        "",
        "job",
        "it asks for more {what} than {holder} allows a job",
    ),
    ("Max", "", "PerNode"): LimitKind(
        "MaxTRESPerNode",
        "max_tres_per_node",
        "",
        "node",
        "it asks for more {what} on a node than {holder} allows a job",
    ),
    ("Max", "Minutes", "PerJob"): LimitKind(
        "MaxTRESMinsPerJob",
        "max_tres_mins_per_job",
        "",
        "job",
        "its {what} times its time limit are more than {holder} allows a job",
    ),
    ("Max", "", "PerUser"): LimitKind(
        "MaxTRESPerUser",
        "max_tres_per_user",
        "tres",
        "user",
        "its user's jobs hold the maximum of {what} that {holder} allows a user",
    ),
    ("Max", "", "PerAccount"): LimitKind(
        "MaxTRESPerAccount",
        "max_tres_per_account",
        "tres",
        "account",
        "its account's jobs hold the maximum of {what} that {holder} allows an account",
    ),
    ("Max", "Run", "PerUser"): LimitKind(
        "MaxTRESRunMinsPerUser",
        "max_tres_run_mins_per_user",
        "tres_run_mins",
        "user",
        "its user's running jobs hold the maximum of {what} times remaining time that {holder}"
        " allows a user",
    ),
    ("Max", "Run", "PerAccount"): LimitKind(
        "MaxTRESRunMinsPerAccount",
        "max_tres_run_mins_per_account",
        "tres_run_mins",
        "account",
        "its account's running jobs hold the maximum of {what} times remaining time that {holder}"
        " allows an account",
    ),
    ("Min", "", ""): LimitKind(
        "MinTRESPerJob",
        "min_tres_per_job",
        "",
        "job",
        "it asks for less {what} than {holder} requires of a job",
    ),
}
_LIMITS_ON_JOBS: dict[tuple[str, str, str], LimitKind] = {
    ("Grp", "Job", ""): LimitKind(
        "GrpJobs",
        "grp_jobs",
        "jobs",
        "group",
        "{holder} already has the allowed maximum of running jobs",
    ),
    ("Grp", "Sub", ""): LimitKind(
        "GrpSubmitJobs",
        "grp_submit",
        "submitted",
        "group",
        "{holder} already has the allowed maximum of jobs in the queue",
    ),
    ("Grp", "Wal", ""): LimitKind(
        "GrpWall",
        "grp_wall",
        "wall",
        "group",
        "all jobs of {holder} together have used up their wall time",
    ),
    ("Max", "Job", ""): LimitKind(
        "MaxJobs",
        "max_jobs",
        "jobs",
        "user",
        "its user already runs as many jobs as {holder} allows",
    ),
    ("Max", "Job", "PerUser"): LimitKind(
        "MaxJobsPerUser",
        "max_jobs",
        "jobs",
        "user",
        "its user already runs as many jobs as {holder} allows a user",
    ),
    ("Max", "Job", "PerAccount"): LimitKind(
        "MaxJobsPerAccount",
        "max_jobs_per_account",
        "jobs",
        "account",
        "its account already runs as many jobs as {holder} allows an account",
    ),
    ("Max", "Sub", ""): LimitKind(
        "MaxSubmitJobs",
        "max_submit",
        "submitted",
        "user",
        "its user already has as many jobs in the queue as {holder} allows",
    ),
    ("Max", "Sub", "PerUser"): LimitKind(
        "MaxSubmitJobsPerUser",
        "max_submit",
        "submitted",
        "user",
        "its user already has as many jobs in the queue as {holder} allows a user",
    ),
    ("Max", "Sub", "PerAccount"): LimitKind(
        "MaxSubmitJobsPerAccount",
        "max_submit_per_account",
        "submitted",
        "account",
        "its account already has as many jobs in the queue as {holder} allows an account",
    ),
    ("Max", "Wal", "PerJob"): LimitKind(
        "MaxWall", "max_wall", "", "job", "its time limit is more than {holder} allows"
    ),
}


# Associations and QOS have different names for some limits. Keep one entry for each field.
LIMIT_KINDS = tuple(
    {kind.limit: kind for kind in (*_LIMITS_PER_TRES.values(), *_LIMITS_ON_JOBS.values())}.values()
)


class LimitReason(msgspec.Struct, frozen=True):
    """A parsed limit reason.

    Attributes:
        owner: whether the limit is an association's or a QOS's.
        tres: the TRES: a name, or the start of one (`gres/`); empty for any or none.
    """

    owner: LimitOwner
    kind: LimitKind
    tres: str

    @property
    def waits(self) -> bool:
        """Whether the job can start later without a change: jobs end, or usage decays."""
        return self.kind.used != ""

    @property
    def texts(self) -> tuple[str, str, str]:
        """The meaning of the reason, who can change it, and the advice."""
        holder = "its account" if self.owner == "association" else "its QOS"
        means = self.kind.means.format(holder=holder, what=_TRES_NAMES[self.tres])
        means = f"{means} ({self.kind.slurm})"
        if self.waits:
            return means, "an administrator; or it passes by itself", self._advice
        return f"{means}, so it does not start", "you or an administrator", self._advice

    @property
    def _advice(self) -> str:
        if self.kind.used in ("tres_mins", "wall"):
            return "wait until usage has decayed, use another account, or ask your administrator"
        if self.waits:
            other = "account" if self.owner == "association" else "QOS"
            return f"wait until some of these jobs end, ask for less, or use another {other}"
        if self.kind.limit == "max_wall":
            return "lower its time limit: slurmkit update JOB --time=LIMIT, or use another QOS"
        more = "more" if self.kind.limit == "min_tres_per_job" else "less"
        return f"ask for {more}, or use another account or QOS"


def parse_limit_reason(reason: str) -> LimitReason | None:
    """Parse the name of a limit reason; None for any other reason."""
    match = _LIMIT_NAME.fullmatch(reason)
    if match is None:
        return None
    bound, what, per = match["bound"], match["what"], match["per"]
    measure = "Run" if match["measure"].startswith("Run") else match["measure"]
    owner: LimitOwner = "association" if match["owner"] == "Assoc" else "qos"
    if what in _LIMIT_TRES:
        kind, tres = _LIMITS_PER_TRES.get((bound, measure, per)), _LIMIT_TRES[what]
    else:
        kind, tres = _LIMITS_ON_JOBS.get((bound, what[:3], per)), ""
    return LimitReason(owner, kind, tres) if kind else None
