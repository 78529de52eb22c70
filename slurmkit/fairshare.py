"""Shares of a cluster and their use (sshare); what pending jobs' priority is made of (sprio)."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.queue.rows import record_mark
from slurmkit.slurm import Slurm

_SHARE_FIELDS = (
    "Account",
    "User",
    "Partition",
    "RawShares",
    "NormShares",
    "RawUsage",
    "NormUsage",
    "EffectvUsage",
    "FairShare",
    "LevelFS",
)
# sprio's letter for each factor; all of them are known from 22.05 on.
_FACTOR_FIELDS = {
    "job_id": "%i",
    "partition": "%r",
    "priority": "%Y",
    "site": "%S",
    "age": "%A",
    "association": "%B",
    "fairshare": "%F",
    "job_size": "%J",
    "partition_factor": "%P",
    "qos": "%Q",
    "nice": "%N",
    "tres": "%T",
}


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One line of sshare's tree: an account, or a user in one.

    Attributes:
        depth: 0 for the root.
        user: empty for an account.
        raw_shares: as set; None for the root and for shares of the parent.
        shares: part of the shares of its siblings (of the cluster, without Fair Tree), 0 to 1.
        raw_usage: decayed TRES-seconds as billed.
        usage: part of the cluster's usage, 0 to 1.
        effective_usage: part of its siblings' usage (without Fair Tree, the part of the
            cluster's that counts for it).
        factor: the fairshare factor, 0 to 1, 1 is best; of users only.
        level: LevelFS, shares over usage: below 1 is more use than share, infinite (in JSON
            null) is no use; None without Fair Tree.

    What slurmctld has not worked out yet, which it does every PriorityCalcPeriod, is None.
    """

    depth: int
    account: str
    user: str = ""
    partition: str = ""
    raw_shares: int | None = None
    shares: float | None = None
    raw_usage: int | None = None
    usage: float | None = None
    effective_usage: float | None = None
    factor: float | None = None
    level: float | None = None


class Shares(msgspec.Struct, frozen=True):
    """The tree of shares in sshare's order, at `taken` in epoch seconds."""

    taken: float
    rows: tuple[Share, ...]

    def branches(self, user: str) -> tuple[tuple[Share, ...], ...]:
        """For each of the user's lines, it and those of the accounts above, from the top."""
        return tuple(self._branch(at) for at, row in enumerate(self.rows) if row.user == user)

    def _branch(self, at: int) -> tuple[Share, ...]:
        found = [self.rows[at]]
        for row in reversed(self.rows[:at]):
            if not row.user and row.depth < found[-1].depth:
                found.append(row)
        return tuple(reversed(found))


class Factors(msgspec.Struct, frozen=True, kw_only=True):
    """What a pending job's priority is made of: factors times their weights.

    Attributes:
        nice: what is taken off.
        tres: weighted factors of single TRES as printed, empty for none.
    """

    job_id: str
    partition: str
    priority: int
    site: int
    age: int
    association: int
    fairshare: int
    job_size: int
    partition_factor: int
    qos: int
    nice: int
    tres: str


def shares_command(*, everybody: bool) -> tuple[str, ...]:
    """Every account, and the users' lines of the asker or of all."""
    fields = f"--format={','.join(_SHARE_FIELDS)}"
    return ("sshare", "--noheader", "--parsable2", fields, *(["--all"] if everybody else []))


def factors_command(user: str, mark: str) -> tuple[str, ...]:
    """The user's pending jobs; `mark` ends each field."""
    fields = "".join(f"{field}{mark}" for field in _FACTOR_FIELDS.values())
    return ("sprio", "--noheader", f"--user={user}", f"--format={fields}")


def read_shares(slurm: Slurm, *, everybody: bool = False) -> Shares:
    """Ask slurmctld for the tree of shares that it shows the asker.

    Raises:
        SlurmError: when it does not answer or its answer cannot be read.
    """
    taken = time.time()
    text = slurm.run(shares_command(everybody=everybody))
    try:
        return Shares(taken, parse_shares(text))
    except ValueError as error:
        raise SlurmError(f"sshare printed a line that cannot be read: {error}") from error


def parse_shares(text: str) -> tuple[Share, ...]:
    """Read what `shares_command` prints.

    Raises:
        ValueError: for a line of other fields, or a number that is none.
    """
    rows = (dict(zip(_SHARE_FIELDS, line.split("|"), strict=True)) for line in text.splitlines())
    return tuple(map(_share, rows))


def _share(row: Mapping[str, str]) -> Share:
    account = row["Account"].lstrip(" ")
    known = not _is_new(row)
    raw = row["RawShares"]
    return Share(
        depth=len(row["Account"]) - len(account),
        account=account,
        user=row["User"],
        partition=row["Partition"],
        raw_shares=int(raw) if raw.isdigit() else None,
        shares=_number(row["NormShares"]),
        raw_usage=int(row["RawUsage"]) if row["RawUsage"] else None,
        usage=_number(row["NormUsage"]),
        effective_usage=_number(row["EffectvUsage"]) if known else None,
        factor=_number(row["FairShare"]) if known else None,
        level=_number(row["LevelFS"]) if known else None,
    )


def _is_new(row: Mapping[str, str]) -> bool:
    """Whether slurmctld has worked out nothing of it yet: shares without use have LevelFS `inf`."""
    used, level, shares = (_number(row[key]) for key in ("EffectvUsage", "LevelFS", "NormShares"))
    return used == level == 0 and shares != 0


def _number(text: str) -> float | None:
    return float(text) if text else None


def read_factors(slurm: Slurm, user: str) -> tuple[Factors, ...]:
    """Ask what the priority of a user's pending jobs is made of; highest first.

    Raises:
        SlurmError: when slurmctld does not answer, or does not compute priorities.
    """
    mark = record_mark()
    text = slurm.run(factors_command(user, mark))
    try:
        found = parse_factors(text, mark)
    except ValueError as error:
        raise SlurmError(f"sprio printed a line that cannot be read: {error}") from error
    return tuple(sorted(found, key=lambda each: -each.priority))


def parse_factors(text: str, mark: str) -> tuple[Factors, ...]:
    """Read what `factors_command` prints.

    Raises:
        ValueError: for a line of other fields, or a number that is none.
    """
    return tuple(_factors(line.split(mark)[:-1]) for line in text.splitlines() if line.strip())


def _factors(fields: list[str]) -> Factors:
    row = dict(zip(_FACTOR_FIELDS, map(str.strip, fields), strict=True))
    tres = "" if row["tres"] in ("", "(null)", "0") else row["tres"]
    numbers = {
        name: int(float(value))
        for name, value in row.items()
        if name not in ("job_id", "partition", "tres")
    }
    return Factors(job_id=row["job_id"], partition=row["partition"], tres=tres, **numbers)


def in_words(branch: tuple[Share, ...]) -> str:
    """Say in one sentence where a user stands, and why; for a branch of `Shares.branches`."""
    own = branch[-1]
    where = f"{own.account} (partition {own.partition})" if own.partition else own.account
    factor = "not known yet" if own.factor is None else f"{own.factor:.2f} (1 is best)"
    levels = [_level(row) for row in branch if row.depth]
    said = f"the fairshare factor of {own.user} in {where} is {factor}: "
    return said + ("; within it " if own.level is not None else "; ").join(levels)


def _level(row: Share) -> str:
    name = row.user or row.account
    used = f"made {part(row.effective_usage)} of the usage"
    return f"{name} holds {part(row.shares)} of the shares and {used}"


def part(value: float | None) -> str:
    """Write a part of 1 in percent; `?` for an unknown one."""
    return "?" if value is None else f"{value * 100:.3g}%"
