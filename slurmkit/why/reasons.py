"""Slurm's reasons in words: what each means, who can change it, and what to do.

Names are those of Slurm 22.05 to 26.05 (src/common/job_state_reason.c, slurm_protocol_defs.c).
Reasons of limits have a grammar of their own: `limits.py`.
"""

from __future__ import annotations

import re

import msgspec

from slurmkit.why import limits

YOU = "you"
ADMIN = "an administrator"
TIME = "nobody: it passes by itself"
EITHER = "you or an administrator"


class Words(msgspec.Struct, frozen=True):
    """One reason in words.

    Attributes:
        meaning: what it means, one sentence without its full stop.
        who: who can change it.
        advice: what to do.
    """

    meaning: str
    who: str
    advice: str


_WAIT = "wait"
_RELEASE = "release it: slurmkit release JOB"
_LOOK = "see why it failed, mend that, then release it: slurmkit release JOB"
_OLD = "an old form of a limit reached; ask your administrator which, or see: slurmkit fairshare"
_PARTITION = "choose another partition: slurmkit update JOB --partition=NAME"

_PLAIN: dict[str, Words] = {
    "None": Words("the scheduler has not looked at it yet", TIME, "ask again in a minute"),
    "Prolog": Words("its nodes are being prepared: the prolog runs", TIME, _WAIT),
    "Priority": Words("jobs of higher priority wait for the same resources", TIME, _WAIT),
    "Resources": Words("it is next, and what it asks for is not free now", TIME, _WAIT),
    "Dependency": Words("it waits for another job, as it was told to", YOU, _WAIT),
    "DependencyNeverSatisfied": Words(
        "the job it depends on ended in another way than was asked for, so it never starts",
        YOU,
        "cancel it, or take the dependency away: scontrol update JobId=JOB Dependency=",
    ),
    "BeginTime": Words("it may not start before its begin time", YOU, _WAIT),
    "JobHeldUser": Words("its user holds it", EITHER, _RELEASE),
    "JobHeldAdmin": Words(
        "an administrator holds it, or its priority was set to 0",
        ADMIN,
        "ask your administrator why; its user cannot release it",
    ),
    "JobHoldMaxRequeue": Words(
        "it was put back into the queue too often (MaxBatchRequeue), and is held now", EITHER, _LOOK
    ),
    "JobArrayTaskLimit": Words(
        "as many tasks of this array run as it allows itself (%N of --array)",
        YOU,
        "raise it: scontrol update JobId=JOB ArrayTaskThrottle=N, 0 for no limit",
    ),
    "Licenses": Words("the licences it asks for are in use", TIME, _WAIT),
    "PartitionNodeLimit": Words(
        "it asks for more or fewer nodes than its partition allows, or the nodes are down",
        EITHER,
        "ask for fewer nodes, or choose another partition: slurmkit update JOB --partition=NAME",
    ),
    "PartitionTimeLimit": Words(
        "its time limit is more than its partition allows, so it does not start",
        EITHER,
        "lower it: slurmkit update JOB --time=LIMIT, or choose another partition",
    ),
    "PartitionDown": Words("its partition starts no jobs: it is set to DOWN", ADMIN, _PARTITION),
    "PartitionInactive": Words(
        "its partition takes and starts no jobs: it is INACTIVE", ADMIN, _PARTITION
    ),
    "PartitionConfig": Words(
        "it is against a limit of its partition",
        EITHER,
        "compare it with: slurmkit plan, or choose another partition",
    ),
    "Reservation": Words("its reservation has not begun, or is in use", TIME, _WAIT),
    "ReservationDeleted": Words(
        "its reservation was deleted, so it never starts",
        EITHER,
        "take the reservation away: scontrol update JobId=JOB ReservationName=",
    ),
    "ReservationInvalid": Words(
        "its reservation cannot be used by it",
        EITHER,
        "see: slurmkit reservations; or scontrol update JobId=JOB ReservationName=",
    ),
    "ReqNodeNotAvail": Words(
        "nodes it needs are down, drained or reserved", ADMIN, "wait, or ask for other nodes"
    ),
    "NodeDown": Words("a node it needs is down", ADMIN, "wait, or ask for other nodes"),
    "BadConstraints": Words(
        "no node can ever meet what it asks for, so it is held",
        YOU,
        "cancel it and submit it with less; slurmkit plan says what fits",
    ),
    "Constraints": Words(
        "no node meets its extra constraints now", EITHER, "wait, or submit it without them"
    ),
    "InvalidAccount": Words(
        "its account does not exist (any more), or its user is not in it",
        EITHER,
        "choose an account of yours: scontrol update JobId=JOB Account=NAME",
    ),
    "InvalidQOS": Words(
        "its QOS does not exist (any more), or its user may not use it",
        EITHER,
        "choose another: slurmkit update JOB --qos=NAME",
    ),
    "QOSNotAllowed": Words(
        "its partition does not allow its QOS",
        EITHER,
        "choose another: slurmkit update JOB --qos=NAME, or another partition",
    ),
    "AccountNotAllowed": Words(
        "its partition does not allow its account",
        EITHER,
        "choose another: scontrol update JobId=JOB Account=NAME, or another partition",
    ),
    "QOSUsageThreshold": Words(
        "its account's fairshare is below what its QOS asks for (UsageThreshold)",
        TIME,
        "wait until usage has decayed, or choose another QOS: slurmkit update JOB --qos=NAME",
    ),
    "MaxMemPerLimit": Words(
        "it asks for more memory per CPU or node than its partition allows (MaxMemPerCPU,"
        " MaxMemPerNode)",
        EITHER,
        "ask for less memory, or more CPUs for it",
    ),
    "AccountingPolicy": Words("it is against a limit of accounting", EITHER, _OLD),
    "AssociationJobLimit": Words("its account's job limit is reached", EITHER, _OLD),
    "AssociationResourceLimit": Words("its account's resource limit is reached", EITHER, _OLD),
    "AssociationTimeLimit": Words("its account's time limit is reached", EITHER, _OLD),
    "QOSJobLimit": Words("its QOS's job limit is reached", EITHER, _OLD),
    "QOSResourceLimit": Words("its QOS's resource limit is reached", EITHER, _OLD),
    "QOSTimeLimit": Words("its QOS's time limit is reached", EITHER, _OLD),
    "Cleaning": Words("its last run is still being cleaned up on the nodes", TIME, _WAIT),
    "SchedDefer": Words(
        "the cluster looks at new jobs only now and then (SchedulerParameters=defer)", TIME, _WAIT
    ),
    "BurstBufferResources": Words("its burst buffer has not enough room", TIME, _WAIT),
    "BurstBufferStageIn": Words("its data is being staged into the burst buffer", TIME, _WAIT),
    "BurstBufferOperation": Words(
        "an operation on its burst buffer failed", EITHER, "see SystemComment of: slurmkit job JOB"
    ),
    "FrontEndDown": Words("no front-end node is up", ADMIN, _WAIT),
    "BlockMaxError": Words("too many parts of its hardware block are in error", ADMIN, _WAIT),
    "BlockFreeAction": Words("its hardware block is being freed", TIME, _WAIT),
    "PowerNotAvail": Words("the cluster has not the power for it now", TIME, _WAIT),
    "PowerReserved": Words("the power it needs is reserved", TIME, _WAIT),
    "MaxPoweredUpNodes": Words(
        "as many nodes are powered up as may be (max_powered_nodes)", TIME, _WAIT
    ),
    "FedJobLock": Words("the clusters of the federation agree on where it runs", TIME, _WAIT),
    "MpiPortsBusy": Words("the ports that its MPI steps need are in use", TIME, _WAIT),
    "NvidiaImexChannels": Words("no NVIDIA IMEX channel is free for it", TIME, _WAIT),
    "SystemFailure": Words("Slurm itself failed on it", ADMIN, "tell your administrator"),
    "JobLaunchFailure": Words(
        "it could not be launched: a file system, a missing program or a broken node", EITHER, _LOOK
    ),
    "NonZeroExitCode": Words("its script ended with an exit code other than 0", YOU, "see its log"),
    "RaisedSignal": Words("a signal ended it", YOU, "see its log"),
    "TimeLimit": Words("it reached its time limit", YOU, "ask for more time"),
    "InactiveLimit": Words("its step launched nothing for too long (InactiveLimit)", YOU, _WAIT),
    "DeadLine": Words("it could not end before its deadline", YOU, "submit it with a later one"),
    "OutOfMemory": Words("it used more memory than it had", YOU, "ask for more memory"),
}

# What slurmctld writes instead of a name; `{}` of `meaning` is what the pattern captures.
_DESCRIBED: tuple[tuple[re.Pattern[str], Words], ...] = tuple(
    (re.compile(pattern, re.DOTALL), words)
    for pattern, words in (
        (
            r"ReqNodeNotAvail, ?UnavailableNodes:(.*)",
            Words("nodes it could use are down, drained or reserved: {}", ADMIN, _WAIT),
        ),
        (
            r"ReqNodeNotAvail, May be reserved for other job",
            Words("the nodes it needs may be reserved for other jobs", TIME, _WAIT),
        ),
        (
            r"ReqNodeNotAvail, Reserved for maintenance",
            Words(
                "it would still run when the maintenance of its nodes begins",
                EITHER,
                "lower its time limit so that it ends before: slurmkit update JOB --time=LIMIT",
            ),
        ),
        (
            r"Nodes required for job are DOWN, DRAINED.*",
            Words(
                "too few nodes of its partition are up and not taken by partitions of higher"
                " priority",
                ADMIN,
                "wait, ask for fewer nodes, or choose another partition",
            ),
        ),
        (
            r"launch failed requeued held",
            Words("a node could not start it (prolog failed), and it is held", EITHER, _LOOK),
        ),
        (
            r"launch failure limit exceeded requeued held",
            Words("nodes could not start it, several times, and it is held", EITHER, _LOOK),
        ),
        (
            r"user env retrieval failed requeued held",
            Words("its user's environment could not be read on the node", EITHER, _LOOK),
        ),
        (r"job requeued in held state", Words("it was put back and held", EITHER, _RELEASE)),
        (
            r"job requeued in special exit state",
            Words("it was put back after a special exit code, and is held", EITHER, _LOOK),
        ),
        (
            r"Job's (?:QOS|account) not (?:permitted|known).* \((.*)\)",
            Words("its partition does not let it in: {}", EITHER, _PARTITION),
        ),
        (
            r"uid \d+ not in group permitted to use this partition \((.*)",
            Words("its user is in none of its partition's groups ({}", EITHER, _PARTITION),
        ),
        (r"Reservation (.*) was deleted", _PLAIN["ReservationDeleted"]),
        (r"Reservation (.*) is invalid", _PLAIN["ReservationInvalid"]),
        (
            r"License request '(.*)' is no longer valid, holding job",
            Words(
                "its licences {} no longer exist, and it is held", ADMIN, "ask your administrator"
            ),
        ),
    )
)


def is_known(reason: str) -> bool:
    """Whether `reason` is a name that has words of its own."""
    return reason in _PLAIN or limits.parse(reason) is not None


def name_of(reason: str) -> str:
    """The name in a reason: `ReqNodeNotAvail` of `ReqNodeNotAvail, UnavailableNodes:c1`."""
    first = reason.partition(",")[0].strip()
    return first if is_known(first) else reason


def in_words(reason: str, job_id: str) -> Words:
    """Say a reason as Slurm prints it; one we do not know is said as it is.

    Args:
        reason: of `squeue -O Reason`: a name, names with commas, or free text.
        job_id: for the commands in the advice.
    """
    words = _find(reason)
    return Words(words.meaning, words.who, words.advice.replace("JOB", job_id))


def _find(reason: str) -> Words:
    if reason in _PLAIN:
        return _PLAIN[reason]
    for pattern, words in _DESCRIBED:
        if match := pattern.fullmatch(reason):
            return Words(words.meaning.format(*match.groups()), words.who, words.advice)
    if (limit := limits.parse(reason)) is not None:
        return Words(*limit.words)
    if (first := name_of(reason)) != reason:  # tasks of an array wait for different reasons
        return _find(first)
    return Words(f"Slurm says: {reason}", "unknown", "ask your administrator what it means")
