"""People: those of the directory whom Slurm does not know, and whoever asks."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterator
from pathlib import Path

from slurmkit.capabilities.standing import me
from slurmkit.doctor.case import Case
from slurmkit.doctor.model import Check, Found
from slurmkit.errors import SlurmkitError

_NO_LOGIN = ("nologin", "false")
_FIRST_UID, _LAST_UID = 1000, 60000  # of people, by login.defs of every distribution
_SHOWN = 10


def own(case: Case) -> Iterator[Found]:
    """Whether whoever asks may submit at all."""
    name = me()
    if name == "root" or name in _with_association(case):
        return
    needed = bool(case.words("AccountingStorageEnforce") - {"nojobs", "nosteps"})
    yield Found("error" if needed else "note",
                f"{name} has no association with an account of this cluster",
                "every job of yours is refused" if needed else "your jobs are charged to nobody",
                f"sacctmgr add user {name} account=ACCOUNT",
                "as a Slurm administrator")  # fmt: skip


def directory(case: Case) -> Iterator[Found]:
    """People of the directory without an association; only operators are shown everybody's."""
    _need_operator(case)
    people = directory_people()
    if not people:
        raise SlurmkitError(
            "the directory lists nobody here (getent passwd): there is none, or enumeration is off"
        )
    known = _with_association(case)
    if missing := sorted(set(people) - known):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        yield Found("warning",
                    f"{len(missing)} of {len(people)} people of the directory have no association:"
                    f" {', '.join(missing[:_SHOWN])}{more}",
                    "their jobs are refused, or charged to nobody",
                    f"sacctmgr add user {missing[0]} account=ACCOUNT",
                    "as a Slurm administrator")  # fmt: skip


def directory_people(local: Path = Path("/etc/passwd")) -> dict[str, str]:
    """Login names and groups of all who can log in and are not in the local file."""
    here = {line.partition(":")[0] for line in local.read_text("utf-8", "replace").splitlines()}
    groups = {group.gr_gid: group.gr_name for group in grp.getgrall()}
    return {
        person.pw_name: groups.get(person.pw_gid, "")
        for person in pwd.getpwall()
        if _FIRST_UID <= person.pw_uid <= _LAST_UID
        and person.pw_name not in here
        and not person.pw_shell.endswith(_NO_LOGIN)
    }


def _need_operator(case: Case) -> None:
    rows = case.accounting("user", ("user", "adminlevel"))
    levels = {row["user"]: row["adminlevel"] for row in rows}
    if levels.get(me(), "None") == "None":
        raise SlurmkitError("not checked: that is for Slurm's operators, who see all associations")


def _with_association(case: Case) -> set[str]:
    rows = case.accounting("assoc", ("cluster", "account", "user"))
    return {row["user"] for row in rows if row["cluster"] == case.config.get("ClusterName")}


CHECKS = (
    Check("own-association", "you may submit", own),
    Check("directory", "everybody of the directory has an association", directory),
)
