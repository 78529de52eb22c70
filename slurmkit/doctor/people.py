"""Checks of people: your own association, and those of everybody in the directory."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterator
from pathlib import Path

from slurmkit.doctor.case import Check, CheckContext, CheckFinding
from slurmkit.errors import SlurmkitError
from slurmkit.state.associations import current_user

_NO_LOGIN = ("nologin", "false")
_FIRST_UID, _LAST_UID = 1000, 60000  # uids of people in every distribution's login.defs
_SHOWN = 10


def check_own_association(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that you may submit at all."""
    name = current_user()
    if name == "root" or name in _users_with_association(case):
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


def _require_operator(case: CheckContext) -> None:
    """Raise SlurmkitError unless you are an operator of Slurm."""
    rows = case.accounting("user", ("user", "adminlevel"))
    levels = {row["user"]: row["adminlevel"] for row in rows}
    if levels.get(current_user(), "None") == "None":
        raise SlurmkitError("not checked: only Slurm operators see all associations")


def _users_with_association(case: CheckContext) -> set[str]:
    """Return the users with an association in this cluster."""
    rows = case.accounting("assoc", ("cluster", "account", "user"))
    return {row["user"] for row in rows if row["cluster"] == case.config.get("ClusterName")}


CHECKS = (
    Check("own-association", "you may submit", check_own_association),
    Check("directory", "everybody in the directory has an association", check_directory_people),
)
