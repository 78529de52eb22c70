"""Slurm's daemons: whether they answer, agree on the time, and are of releases that go together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmkit.doctor.case import Case, numbers
from slurmkit.doctor.model import Check, Found, Severity
from slurmkit.errors import ControllerDown, DatabaseDown, SlurmError, SlurmMissing
from slurmkit.facts import clock as time_of
from slurmkit.text import printable

OLDEST, NEWEST = (22, 5), (26, 5)
_AS_OF = re.compile(r"^Configuration data as of (\d+)", re.MULTILINE)
_BACKLOG = re.compile(r"^DBD Agent queue size:\s*(\d+)", re.MULTILINE)
_SILENT = "while no slurmctld answers nothing can be submitted; running jobs go on"
_SKEW = 5.0  # seconds; munge refuses beyond 300


def controller(case: Case) -> Iterator[Found]:
    """Slurmctld and its backups."""
    try:
        states = [state for _, _, state in case.controllers]
    except ControllerDown as error:
        yield Found("error", str(error), _SILENT, "a slurm.conf that names slurmctld's host")
        return
    if not states:
        raise SlurmError("scontrol ping names no slurmctld")
    for role, host, state in case.controllers:
        if state != "UP":
            yield Found(
                "warning" if "UP" in states else "error",
                f"slurmctld ({role}) at {host} is {state}",
                _SILENT,
                "systemctl start slurmctld",
                f"as root on {host}",
            )
    if "UP" in states and (since := case.config.get("BOOT_TIME", "")).isdigit():
        yield Found("ok", f"slurmctld answers, and has since {time_of(int(since))}")


def database(case: Case) -> Iterator[Found]:
    """Slurmdbd, and whether it knows this cluster."""
    if not case.config.get("AccountingStorageType", "").endswith("slurmdbd"):
        yield Found(
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
        meaning = "no ended job can be looked up, and no limit changed; jobs go on meanwhile"
        yield Found("error", str(error), meaning, "systemctl start slurmdbd", f"as root on {host}")
        return
    yield from _registered(case.config.get("ClusterName", ""), rows)


def _registered(name: str, rows: list[dict[str, str]]) -> Iterator[Found]:
    known = {row["cluster"]: row["controlhost"] for row in rows}
    if name not in known:
        yield Found("warning", f"slurmdbd does not know the cluster {name}",
                    "its jobs are not recorded",
                    f"sacctmgr add cluster {name}", "as a Slurm administrator")  # fmt: skip
    elif not known[name]:
        yield Found("warning", f"no slurmctld of {name} is registered with slurmdbd",
                    "changes of limits reach slurmctld only when it is restarted",
                    "systemctl restart slurmctld", "as root on its host")  # fmt: skip


def backlog(case: Case) -> Iterator[Found]:
    """Records that slurmctld could not hand to slurmdbd yet."""
    found = _BACKLOG.search(case.ask_controller("sdiag"))
    if found is None:
        raise SlurmError("sdiag does not print the size of slurmdbd's queue")
    if waiting := int(found[1]):
        most = int(case.config.get("MaxDBDMsgs") or 0)
        yield Found(
            "warning" if waiting > 1000 else "note",
            f"waiting for slurmdbd: {waiting} record{'' if waiting == 1 else 's'}"
            + (f" (at most {most})" if most else ""),
            "sacct and reports lag behind; beyond the limit records are lost",
            "see slurmdbd's log and its database's load",
            f"on {case.config.get('AccountingStorageHost', 'its host')}",
        )


def release(case: Case) -> Iterator[Found]:
    """Whether slurmkit knows this release of Slurm."""
    if not case.release:
        raise SlurmError("slurmctld does not say its release")
    shown = ".".join(map(str, case.release))
    if case.release[:2] < OLDEST:
        yield Found("warning", f"Slurm {shown} is older than 22.05",
                    "slurmkit is not tested with it; GPUs may be read wrongly",
                    "upgrade Slurm", "this cluster")  # fmt: skip
    elif case.release[:2] > NEWEST:
        yield Found("note", f"Slurm {shown} is newer than 26.05",
                    "slurmkit is not tested with it yet", "upgrade slurmkit", "here")  # fmt: skip


def client(case: Case) -> Iterator[Found]:
    """Whether this machine's commands and slurmctld are of one release."""
    here, there = numbers(case.ask("scontrol", "--version")), case.release
    if here == there or not there:
        return
    mine, its = (".".join(map(str, each)) for each in (here, there))
    message = f"the commands here are of Slurm {mine}, slurmctld is of {its}"
    fix = (f"install Slurm {its}", "on this machine")
    if here[:2] > there[:2]:
        meaning = "Slurm supports commands that are older than slurmctld, not newer ones"
        yield Found("error", message, meaning, *fix)
    else:
        severity: Severity = "note" if here[:2] == there[:2] else "warning"
        yield Found(severity, message, "commands may print less, or otherwise", *fix)


def clock(case: Case) -> Iterator[Found]:
    """How far this machine's clock is from slurmctld's, which prints its own."""
    found = _AS_OF.search(case.config_text)
    if found is None:
        raise SlurmError("slurmctld does not print its time")
    before, after = case.config_asked
    theirs = int(found[1])
    skew = min(theirs + 1 - before, 0) or max(theirs - after, 0)  # it prints whole seconds
    if abs(skew) > _SKEW:
        yield Found(
            "error" if abs(skew) > 60 else "warning",
            f"this machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'}"
            " slurmctld's",
            "waiting and run times are shown wrongly; beyond 300 s munge refuses everything",
            "timedatectl set-ntp true",
            "as root on both machines",
        )


def munge(case: Case) -> Iterator[Found]:
    """Whether a credential can be made here and read again."""
    if not case.config.get("AuthType", "").endswith("munge"):
        return
    try:
        status = case.ask("unmunge", stdin=case.ask("munge", "--no-input"))
    except SlurmMissing as error:
        raise SlurmError("munge is not on the PATH") from error
    except SlurmError as error:
        status = str(error)
    if "Success" not in status:
        first = printable(status.partition("\n")[0])
        yield Found("error", f"munge does not work: {first}",
                    "Slurm takes nobody for who he is: every command fails",
                    "systemctl restart munge; compare /etc/munge/munge.key on all machines",
                    "as root here")  # fmt: skip


CHECKS = (
    Check("slurmctld", "slurmctld answers", controller),
    Check("slurmdbd", "slurmdbd answers and knows this cluster", database),
    Check("slurmdbd-backlog", "no records wait for slurmdbd", backlog),
    Check("release", "this release of Slurm is supported", release),
    Check("client-release", "commands and slurmctld are of one release", client),
    Check("clock", "this machine's clock agrees with slurmctld's", clock),
    Check("munge", "munge works", munge),
)
