"""The grammar of reasons that name a limit, such as `AssocGrpGRES` or `QOSMaxCpuPerUserLimit`."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Owner = Literal["association", "qos"]
Whose = Literal["group", "user", "account", "job", "node"]

_NAME = re.compile(
    r"(?P<owner>Assoc|QOS|)(?P<bound>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|Mem(?:ory)?|Node|Energy|GRES|License|BB|Billing|Unknown"
    r"|SubmitJobs?|Jobs?|Wall(?:Duration)?)"
    r"(?P<measure>Run(?:Minutes|Mins)|Minutes|)(?P<per>PerJob|PerNode|PerUser|PerAccount|)"
    r"(?:Limit|NotSatisfied)?"
)
_TRES = {
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
_SAID = {
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


class Kind(msgspec.Struct, frozen=True):
    """One kind of limit.

    Attributes:
        slurm: its name in sacctmgr.
        limit: field of `slurmkit.capabilities.model.Limits`.
        used: field of `Usage` it is compared with; empty where the job alone is.
        whose: whose use is counted.
        means: what a job that waits for it is told; `{holder}` and `{what}` are filled in.
    """

    slurm: str
    limit: str
    used: str
    whose: Whose
    means: str

    @property
    def per_tres(self) -> bool:
        """Whether it is set for each TRES."""
        return "tres" in self.limit


# By (bound, measure, per) of the name; minutes are of what has been used, or may still be.
_OF_TRES: dict[tuple[str, str, str], Kind] = {
    ("Grp", "", ""): Kind(
        "GrpTRES",
        "grp_tres",
        "tres",
        "group",
        "all jobs of {holder} together hold as many {what} as they may",
    ),
    ("Grp", "Minutes", ""): Kind(
        "GrpTRESMins",
        "grp_tres_mins",
        "tres_mins",
        "group",
        "all jobs of {holder} together have used up their minutes of {what}",
    ),
    ("Grp", "Run", ""): Kind(
        "GrpTRESRunMins",
        "grp_tres_run_mins",
        "tres_run_mins",
        "group",
        "all jobs of {holder} together may still use as many minutes of {what} as they may",
    ),
    ("Max", "", "PerJob"): Kind(
        "MaxTRESPerJob",
        "max_tres_per_job",
        "",
        "job",
        "it asks for more {what} than {holder} allows a job",
    ),
    ("Max", "", "PerNode"): Kind(
        "MaxTRESPerNode",
        "max_tres_per_node",
        "",
        "node",
        "it asks for more {what} on a node than {holder} allows a job",
    ),
    ("Max", "Minutes", "PerJob"): Kind(
        "MaxTRESMinsPerJob",
        "max_tres_mins_per_job",
        "",
        "job",
        "its {what} times its time limit are more than {holder} allows a job",
    ),
    ("Max", "", "PerUser"): Kind(
        "MaxTRESPerUser",
        "max_tres_per_user",
        "tres",
        "user",
        "its user's jobs hold as many {what} as {holder} allows a user",
    ),
    ("Max", "", "PerAccount"): Kind(
        "MaxTRESPerAccount",
        "max_tres_per_account",
        "tres",
        "account",
        "its account's jobs hold as many {what} as {holder} allows an account",
    ),
    ("Max", "Run", "PerUser"): Kind(
        "MaxTRESRunMinsPerUser",
        "max_tres_run_mins_per_user",
        "tres_run_mins",
        "user",
        "its user's jobs may still use as many minutes of {what} as {holder} allows a user",
    ),
    ("Max", "Run", "PerAccount"): Kind(
        "MaxTRESRunMinsPerAccount",
        "max_tres_run_mins_per_account",
        "tres_run_mins",
        "account",
        "its account's jobs may still use as many minutes of {what} as {holder} allows an account",
    ),
    ("Min", "", ""): Kind(
        "MinTRESPerJob",
        "min_tres_per_job",
        "",
        "job",
        "it asks for fewer {what} than {holder} wants of a job",
    ),
}
_OF_JOBS: dict[tuple[str, str, str], Kind] = {
    ("Grp", "Job", ""): Kind(
        "GrpJobs", "grp_jobs", "jobs", "group", "as many jobs of {holder} run as may"
    ),
    ("Grp", "Sub", ""): Kind(
        "GrpSubmitJobs",
        "grp_submit",
        "submitted",
        "group",
        "as many jobs of {holder} are in the queue as may",
    ),
    ("Grp", "Wal", ""): Kind(
        "GrpWall",
        "grp_wall",
        "wall",
        "group",
        "all jobs of {holder} together have used up their wall time",
    ),
    ("Max", "Job", ""): Kind(
        "MaxJobs",
        "max_jobs",
        "jobs",
        "user",
        "as many jobs of its user run as {holder} allows",
    ),
    ("Max", "Job", "PerUser"): Kind(
        "MaxJobsPerUser",
        "max_jobs",
        "jobs",
        "user",
        "as many jobs of its user run as {holder} allows a user",
    ),
    ("Max", "Job", "PerAccount"): Kind(
        "MaxJobsPerAccount",
        "max_jobs_per_account",
        "jobs",
        "account",
        "as many jobs of its account run as {holder} allows an account",
    ),
    ("Max", "Sub", ""): Kind(
        "MaxSubmitJobs",
        "max_submit",
        "submitted",
        "user",
        "as many jobs of its user are in the queue as {holder} allows",
    ),
    ("Max", "Sub", "PerUser"): Kind(
        "MaxSubmitJobsPerUser",
        "max_submit",
        "submitted",
        "user",
        "as many jobs of its user are in the queue as {holder} allows a user",
    ),
    ("Max", "Sub", "PerAccount"): Kind(
        "MaxSubmitJobsPerAccount",
        "max_submit_per_account",
        "submitted",
        "account",
        "as many jobs of its account are in the queue as {holder} allows an account",
    ),
    ("Max", "Wal", "PerJob"): Kind(
        "MaxWall", "max_wall", "", "job", "its time limit is more than {holder} allows"
    ),
}


# Associations and QOS name some limits differently that are kept in the same place.
KINDS = tuple({kind.limit: kind for kind in (*_OF_TRES.values(), *_OF_JOBS.values())}.values())


class LimitReason(msgspec.Struct, frozen=True):
    """What a reason says of a limit.

    Attributes:
        owner: whether an association's limit is meant, or a QOS's.
        tres: which TRES: a name, or the beginning of one (`gres/`); empty for any or for none.
    """

    owner: Owner
    kind: Kind
    tres: str

    @property
    def waits(self) -> bool:
        """Whether it passes by itself, once others end or usage has decayed."""
        return self.kind.used != ""

    @property
    def words(self) -> tuple[str, str, str]:
        """What it means, who can change it, and what to do."""
        holder = "its account" if self.owner == "association" else "its QOS"
        means = self.kind.means.format(holder=holder, what=_SAID[self.tres])
        means = f"{means} ({self.kind.slurm})"
        if self.waits:
            return means, "an administrator; or it passes by itself", self._wait
        return f"{means}, so it does not start", "you or an administrator", self._ask_other

    @property
    def _wait(self) -> str:
        if self.kind.used in ("tres_mins", "wall"):
            return "wait until usage has decayed, use another account, or ask your administrator"
        other = "account" if self.owner == "association" else "QOS"
        return f"wait for jobs of theirs to end, ask for less, or use another {other}"

    @property
    def _ask_other(self) -> str:
        if self.kind.limit == "max_wall":
            return "lower its time limit: slurmkit update JOB --time=LIMIT, or use another QOS"
        more = "more" if self.kind.limit == "min_tres_per_job" else "less"
        return f"ask for {more}, or use another account or QOS"


def parse(reason: str) -> LimitReason | None:
    """Read the name of a limit reason; None for any other."""
    match = _NAME.fullmatch(reason)
    if match is None:
        return None
    bound, what, per = match["bound"], match["what"], match["per"]
    measure = "Run" if match["measure"].startswith("Run") else match["measure"]
    owner: Owner = "association" if match["owner"] == "Assoc" else "qos"
    if what in _TRES:
        kind, tres = _OF_TRES.get((bound, measure, per)), _TRES[what]
    else:
        kind, tres = _OF_JOBS.get((bound, what[:3], per)), ""
    return LimitReason(owner, kind, tres) if kind else None
