"""Checks of Slurm's daemons: they answer, agree on the time, and have matching releases."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmkit.doctor.case import Check, CheckContext, CheckFinding, Severity, parse_release
from slurmkit.doctor.installation import asks_by_munge, asks_by_token
from slurmkit.errors import ControllerDown, DatabaseDown, SlurmError, SlurmMissing
from slurmkit.formats.display import format_time as time_of
from slurmkit.formats.display import printable

OLDEST_RELEASE, NEWEST_RELEASE = (22, 5), (26, 5)
_AS_OF = re.compile(r"^Configuration data as of (\d+)", re.MULTILINE)
_BACKLOG = re.compile(r"^DBD Agent queue size:\s*(\d+)", re.MULTILINE)
_NO_SLURMCTLD = "while no slurmctld answers, nobody can submit; running jobs go on"
_METRICS_AUTH_SINCE = _SLUID_PATHS_SINCE = (26, 5)
_SKEW = 5.0  # seconds; munge refuses beyond 300


def check_slurmctld(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that slurmctld and its backups answer."""
    try:
        states = [state for _, _, state in case.controllers]
    except ControllerDown as error:
        yield CheckFinding(
            "error", str(error), _NO_SLURMCTLD, "a slurm.conf that names slurmctld's host"
        )
        return
    if not states:
        raise SlurmError("scontrol ping names no slurmctld")
    for role, host, state in case.controllers:
        if state != "UP":
            yield CheckFinding(
                "warning" if "UP" in states else "error",
                f"slurmctld ({role}) at {host} is {state}",
                _NO_SLURMCTLD,
                "systemctl start slurmctld",
                f"as root on {host}",
            )
    if "UP" in states and (since := case.config.get("BOOT_TIME", "")).isdigit():
        yield CheckFinding("ok", f"slurmctld answers; it has run since {time_of(int(since))}")


def check_slurmdbd(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that slurmdbd answers and knows this cluster."""
    if not case.config.get("AccountingStorageType", "").endswith("slurmdbd"):
        yield CheckFinding(
            "error",
            f"AccountingStorageType={case.config.get('AccountingStorageType') or 'none'}",
            "ended jobs are forgotten: no sacct, no limits, no fair share, no reports",
            "AccountingStorageType=accounting_storage/slurmdbd",
        )
        return
    try:
        rows = case.accounting("cluster", ("cluster", "controlhost"))
    except DatabaseDown as error:
        host = case.config.get("AccountingStorageHost", "its host")
        meaning = "ended jobs cannot be looked up, and limits cannot be changed; jobs go on"
        yield CheckFinding(
            "error", str(error), meaning, "systemctl start slurmdbd", f"as root on {host}"
        )
        return
    yield from _check_registered(case.config.get("ClusterName", ""), rows)


def _check_registered(name: str, rows: list[dict[str, str]]) -> Iterator[CheckFinding]:
    """Check that the cluster and its slurmctld are registered with slurmdbd."""
    known = {row["cluster"]: row["controlhost"] for row in rows}
    if name not in known:
        yield CheckFinding("warning", f"slurmdbd does not know the cluster {name}",
                    "its jobs are not recorded",
                    f"sacctmgr add cluster {name}", "as a Slurm administrator")  # fmt: skip
    elif not known[name]:
        yield CheckFinding("warning", f"no slurmctld of {name} is registered with slurmdbd",
                    "changes of limits reach slurmctld only when it is restarted",
                    "systemctl restart slurmctld", "as root on its host")  # fmt: skip


def check_slurmdbd_backlog(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that no records wait in slurmctld for slurmdbd."""
    found = _BACKLOG.search(case.ask_controller("sdiag"))
    if found is None:
        raise SlurmError("sdiag does not print the size of slurmdbd's queue")
    if waiting := int(found[1]):
        most = int(case.config.get("MaxDBDMsgs") or 0)
        yield CheckFinding(
            "warning" if waiting > 1000 else "note",
            f"waiting for slurmdbd: {waiting} record{'' if waiting == 1 else 's'}"
            + (f" (at most {most})" if most else ""),
            "sacct and reports lag behind; beyond the limit records are lost",
            "see slurmdbd's log and its database's load",
            f"on {case.config.get('AccountingStorageHost', 'its host')}",
        )


def check_release(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that slurmkit is tested with this release of Slurm."""
    if not case.release:
        raise SlurmError("slurmctld does not say its release")
    shown = ".".join(map(str, case.release))
    if case.release[:2] < OLDEST_RELEASE:
        yield CheckFinding("warning", f"Slurm {shown} is older than 22.05",
                    "slurmkit is not tested with it; GPUs may be read wrongly",
                    "upgrade Slurm", "this cluster")  # fmt: skip
    elif case.release[:2] > NEWEST_RELEASE:
        yield CheckFinding("note", f"Slurm {shown} is newer than 26.05",
                    "slurmkit is not tested with it yet", "upgrade slurmkit", "here")  # fmt: skip


def check_client_release(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that this machine's commands and slurmctld have one release."""
    here, there = parse_release(case.ask("scontrol", "--version")), case.release
    if here == there or not there:
        return
    mine, its = (".".join(map(str, each)) for each in (here, there))
    message = f"the commands here are from Slurm {mine}, slurmctld is from {its}"
    fix = (f"install Slurm {its}", "on this machine")
    if here[:2] > there[:2]:
        meaning = "Slurm supports commands that are older than slurmctld, not newer ones"
        yield CheckFinding("error", message, meaning, *fix)
    else:
        severity: Severity = "note" if here[:2] == there[:2] else "warning"
        meaning = "the commands may print less than slurmctld knows, or in another form"
        yield CheckFinding(severity, message, meaning, *fix)


def check_clock(case: CheckContext) -> Iterator[CheckFinding]:
    """Check this machine's clock against the time that slurmctld prints."""
    found = _AS_OF.search(case.config_text)
    if found is None:
        raise SlurmError("slurmctld does not print its time")
    before, after = case.config_asked
    theirs = int(found[1])
    skew = min(theirs + 1 - before, 0) or max(theirs - after, 0)  # slurmctld prints whole seconds
    if abs(skew) > _SKEW:
        yield CheckFinding(
            "error" if abs(skew) > 60 else "warning",
            f"this machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'}"
            " slurmctld's",
            "waiting and run times are shown wrongly; beyond 300 s munge refuses everything",
            "timedatectl set-ntp true",
            "as root on both machines",
        )


def check_munge(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that munge works here. With auth/slurm, only the ledger service may need it."""
    auth = case.config.get("AuthType", "")
    if auth == "auth/slurm":
        if not asks_by_munge():
            yield CheckFinding("ok", "AuthType=auth/slurm, and no client here needs munge")
        elif why := _munge_fault(case, or_missing="munge is not on the PATH"):
            yield CheckFinding("note", f"AuthType=auth/slurm, and munge does not work here: {why}",
                        "Slurm does not need it; the ledger service does, to know who asks: reports"
                        " and settings of mails do not work from here over the service",
                        'auth = "jwt" in [ledger.service] does without, and so does a Unix socket'
                        " on the service's host (docs/service.md); or install munge, with one key"
                        " on all hosts",
                        "in slurmkit's configuration")  # fmt: skip
    elif auth.endswith("munge") and (why := _munge_fault(case)):
        yield CheckFinding("error", f"munge does not work: {why}",
                    "Slurm cannot verify who you are: every command fails",
                    "systemctl restart munge; compare /etc/munge/munge.key on all machines",
                    "as root here")  # fmt: skip


def check_tokens(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that slurmctld gives the tokens with which this host asks the ledger's service."""
    if asks_by_token() and "auth/jwt" not in case.config.get("AuthAltTypes", "").split(","):
        yield CheckFinding(
            "warning",
            "AuthAltTypes has no auth/jwt, and clients here ask the ledger's service with tokens",
            "slurmctld gives nobody a token: reports and settings of mails work only for people who"
            " have one of another issuer in $SLURM_JWT",
            "AuthAltTypes=auth/jwt and AuthAltParameters=jwt_key=/etc/slurm/jwt_hs256.key"
            " (docs/service.md)",
            "slurm.conf; then restart slurmctld",
        )


def _munge_fault(case: CheckContext, *, or_missing: str = "") -> str:
    """Return why munge cannot encode and decode a credential; empty if it can.

    Args:
        case: the cluster.
        or_missing: returned if there is no munge here.

    Raises:
        SlurmError: when there is no munge here, and `or_missing` is empty.
    """
    try:
        status = case.ask("unmunge", stdin=case.ask("munge", "--no-input"))
    except SlurmMissing as error:
        if or_missing:
            return or_missing
        raise SlurmError("munge is not on the PATH") from error
    except SlurmError as error:
        status = str(error)
    return "" if "Success" in status else printable(status.partition("\n")[0])


def check_metrics(case: CheckContext) -> Iterator[CheckFinding]:
    """Check who may read slurmctld's metrics, which name users and accounts (slurm.conf(5))."""
    if not case.config.get("MetricsType") or case.config.get("MetricsAuthUsers"):
        return
    ignored = "ignore_private_data" in case.words("MetricsParameters")
    if case.words("PrivateData") and not ignored:
        return  # then only SlurmUser and root may read them
    if case.release[:2] >= _METRICS_AUTH_SINCE:
        fix = "MetricsAuthUsers=prometheus, the account that reads the metrics"
    else:
        fix = (
            "close slurmctld's port to everything but your hosts; Slurm 26.05 has MetricsAuthUsers"
        )
    shown = f"MetricsType={case.config['MetricsType']} without MetricsAuthUsers"
    private = " and with MetricsParameters=ignore_private_data" if ignored else ""
    yield CheckFinding("warning", shown + private,
                "everybody who reaches slurmctld's port can read the jobs of each user and account",
                fix)  # fmt: skip


def check_cgroup_names(case: CheckContext) -> Iterator[CheckFinding]:
    """Check whether cgroups are named by job id, as tools for older releases expect.

    From 26.05 on they have the SLUID of the job, with cgroup/v2 (cgroup.conf(5), CgroupJobIdPaths).
    """
    uses = {case.config.get("ProctrackType", ""), *case.words("TaskPlugin")}
    plugin = case.config.get("CgroupPlugin", "")
    if not uses & {"proctrack/cgroup", "task/cgroup"} or plugin in {"disabled", "cgroup/v1"}:
        return
    if case.release[:2] >= _SLUID_PATHS_SINCE and case.config.get("CgroupJobIdPaths") != "yes":
        yield CheckFinding("note",
                    f"CgroupPlugin={plugin or 'autodetect'} without CgroupJobIdPaths: with cgroup"
                    " v2 the cgroups of jobs have names such as sEKNKTV3WPV500, not job_123",
                    "exporters and scripts of older releases find no job there; those of slurmkit"
                    " take both names",
                    "CgroupJobIdPaths=yes, if you have such tools",
                    "cgroup.conf")  # fmt: skip


CHECKS = (
    Check("slurmctld", "slurmctld answers", check_slurmctld),
    Check("slurmdbd", "slurmdbd answers and knows this cluster", check_slurmdbd),
    Check("slurmdbd-backlog", "no records wait for slurmdbd", check_slurmdbd_backlog),
    Check("release", "this release of Slurm is supported", check_release),
    Check("client-release", "commands and slurmctld have the same release", check_client_release),
    Check("clock", "this machine's clock agrees with slurmctld's", check_clock),
    Check("munge", "munge works", check_munge),
    Check("tokens", "slurmctld gives the tokens that the ledger's service asks for", check_tokens),
    Check("metrics", "slurmctld's metrics are not open to everybody", check_metrics),
    Check("cgroup-names", "cgroups of jobs are named by job id", check_cgroup_names),
)
