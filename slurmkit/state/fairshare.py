"""Fairshare (sshare) and its forecast, and the priority factors of pending jobs (sprio)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.formats.durations import format_duration, parse_elapsed
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import record_mark

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
# sprio's format letter for each factor; 22.05 and later know all of them.
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
FORMULA = "usage x 0.5^(t/half-life); LevelFS = share / part of the siblings' usage"
_NEVER = frozenset({"", "0", "00:00:00", "(null)", "N/A"})


class FairshareRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of sshare's tree: an account, or a user in one.

    Attributes:
        depth: 0 for the root.
        user: empty for an account.
        raw_shares: as set; None for the root, and when set to `parent`.
        shares: part of its siblings' shares (without Fair Tree, of the cluster's), 0 to 1.
        raw_usage: decayed TRES-seconds as billed.
        usage: part of the cluster's usage, 0 to 1.
        effective_usage: part of its siblings' usage (without Fair Tree, the part of the
            cluster's usage that counts for it).
        factor: the fairshare factor, 0 to 1, 1 is best; of users only.
        level: LevelFS, shares over usage: below 1 means more usage than share, infinite (null in
            JSON) means no usage; None without Fair Tree.

    Values that slurmctld has not computed yet are None; it does so every PriorityCalcPeriod.
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


class FairshareTree(msgspec.Struct, frozen=True):
    """The tree of shares in sshare's order, at `taken` in epoch seconds."""

    taken: float
    rows: tuple[FairshareRow, ...]

    def branches(self, user: str) -> tuple[tuple[FairshareRow, ...], ...]:
        """Return, for each line of the user, the path from the root account down to it."""
        return tuple(self._branch(at) for at, row in enumerate(self.rows) if row.user == user)

    def _branch(self, at: int) -> tuple[FairshareRow, ...]:
        upwards = [self.rows[at]]
        for row in reversed(self.rows[:at]):
            if not row.user and row.depth < upwards[-1].depth:
                upwards.append(row)
        return tuple(reversed(upwards))


class PriorityFactors(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a pending job's priority: each factor times its weight.

    Attributes:
        nice: subtracted from the priority.
        tres: weighted factors of single TRES as printed; empty for none.
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
    """Return the sshare command that prints all accounts, and the caller's or all users' lines."""
    fields = f"--format={','.join(_SHARE_FIELDS)}"
    return ("sshare", "--noheader", "--parsable2", fields, *(["--all"] if everybody else []))


def factors_command(user: str, mark: str) -> tuple[str, ...]:
    """Return the sprio command for a user's pending jobs; `mark` ends each field."""
    fields = "".join(f"{field}{mark}" for field in _FACTOR_FIELDS.values())
    return ("sprio", "--noheader", f"--user={user}", f"--format={fields}")


def read_shares(slurm: SlurmCommands, *, everybody: bool = False) -> FairshareTree:
    """Read the tree of shares from sshare, as far as slurmctld shows it to the caller.

    Raises:
        SlurmError: when slurmctld does not answer or the output cannot be parsed.
    """
    taken = time.time()
    text = slurm.run(shares_command(everybody=everybody))
    try:
        return FairshareTree(taken, parse_shares(text))
    except ValueError as error:
        raise SlurmError(f"sshare printed a line that cannot be read: {error}") from error


def parse_shares(text: str) -> tuple[FairshareRow, ...]:
    """Parse the output of `shares_command`.

    Raises:
        ValueError: for a line with other fields, or a malformed number.
    """
    rows = (dict(zip(_SHARE_FIELDS, line.split("|"), strict=True)) for line in text.splitlines())
    return tuple(map(_parse_share_row, rows))


def _parse_share_row(row: Mapping[str, str]) -> FairshareRow:
    account = row["Account"].lstrip(" ")
    known = not _is_not_computed(row)
    raw = row["RawShares"]
    return FairshareRow(
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


def _is_not_computed(row: Mapping[str, str]) -> bool:
    """Tell whether slurmctld has not computed a line yet; unused shares have LevelFS `inf`."""
    used, level, shares = (_number(row[key]) for key in ("EffectvUsage", "LevelFS", "NormShares"))
    return used == level == 0 and shares != 0


def _number(text: str) -> float | None:
    return float(text) if text else None


def read_factors(slurm: SlurmCommands, user: str) -> tuple[PriorityFactors, ...]:
    """Read the priority factors of a user's pending jobs from sprio; highest priority first.

    Raises:
        SlurmError: when slurmctld does not answer, or does not compute priorities.
    """
    mark = record_mark()
    text = slurm.run(factors_command(user, mark))
    try:
        factors = parse_factors(text, mark)
    except ValueError as error:
        raise SlurmError(f"sprio printed a line that cannot be read: {error}") from error
    return tuple(sorted(factors, key=lambda each: -each.priority))


def parse_factors(text: str, mark: str) -> tuple[PriorityFactors, ...]:
    """Parse the output of `factors_command`.

    Raises:
        ValueError: for a line with other fields, or a malformed number.
    """
    return tuple(
        _parse_factor_row(line.split(mark)[:-1]) for line in text.splitlines() if line.strip()
    )


def _parse_factor_row(fields: list[str]) -> PriorityFactors:
    row = dict(zip(_FACTOR_FIELDS, map(str.strip, fields), strict=True))
    tres = "" if row["tres"] in ("", "(null)", "0") else row["tres"]
    numbers = {
        name: int(float(value))
        for name, value in row.items()
        if name not in ("job_id", "partition", "tres")
    }
    return PriorityFactors(job_id=row["job_id"], partition=row["partition"], tres=tres, **numbers)


def describe_fairshare(branch: tuple[FairshareRow, ...]) -> str:
    """Describe a user's fairshare factor and its causes.

    `branch` is one from `FairshareTree.branches`.
    """
    own = branch[-1]
    where = f"{own.account} (partition {own.partition})" if own.partition else own.account
    factor = "not known yet" if own.factor is None else f"{own.factor:.2f} (1 is best)"
    levels = [_level(row) for row in branch if row.depth]
    start = f"the fairshare factor of {own.user} in {where} is {factor}: "
    return start + ("; within it " if own.level is not None else "; ").join(levels)


def _level(row: FairshareRow) -> str:
    name = row.user or row.account
    used = f"made {format_share(row.effective_usage)} of the usage"
    return f"{name} holds {format_share(row.shares)} of the shares and {used}"


def format_share(value: float | None) -> str:
    """Write a part of 1 as percent with three digits; `?` for None."""
    return "?" if value is None else f"{value * 100:.3g}%"


class FairshareForecast(msgspec.Struct, frozen=True):
    """One line of the tree if its user stops now and the siblings' usage does not change.

    Attributes:
        half_life: seconds.
        usage: decayed TRES-seconds now.
        others: decayed TRES-seconds of all siblings together.
        shares: the line's part of the siblings' shares, 0 to 1.
    """

    half_life: float
    usage: float
    others: float
    shares: float

    def usage_after(self, seconds: float) -> float:
        """Return the decayed TRES-seconds left after some seconds."""
        return float(self.usage * 0.5 ** (seconds / self.half_life))

    def level_after(self, seconds: float) -> float:
        """Return LevelFS after some seconds; infinite without usage."""
        mine = self.usage_after(seconds)
        return self.shares * (mine + self.others) / mine if mine else math.inf

    def seconds_to(self, level: float) -> float | None:
        """Return the seconds until LevelFS reaches a value: 0 if it has, None if it never will."""
        if self.level_after(0) >= level:
            return 0.0
        if not self.others or level <= self.shares:
            return None  # the line's usage stays all of the siblings' usage, however small it gets
        left = self.shares * self.others / (level - self.shares)
        return self.half_life * math.log2(self.usage / left)


def forecast_fairshare(
    row: FairshareRow, parent: FairshareRow, half_life: str
) -> FairshareForecast | None:
    """Make the forecast for a user's line; None if a value is unknown or nothing decays.

    Args:
        row: the user's line.
        parent: the account's line.
        half_life: PriorityDecayHalfLife as slurm.conf has it.
    """
    seconds = None if half_life in _NEVER else parse_elapsed(half_life)
    if not seconds or row.raw_usage is None or parent.raw_usage is None:
        return None
    if row.level is None or row.shares is None or parent.raw_usage < row.raw_usage:
        return None
    others = float(parent.raw_usage - row.raw_usage)
    return FairshareForecast(float(seconds), float(row.raw_usage), others, row.shares)


def describe_forecast(of: FairshareForecast, reset: str) -> list[str]:
    """Describe a forecast in sentences.

    Args:
        of: the forecast.
        reset: PriorityUsageResetPeriod as slurm.conf has it.
    """
    if not of.usage:
        return ["you have no usage that counts now, so nothing decays"]
    steps = (1, 2, 4)
    later = "; ".join(
        f"in {_days(n * of.half_life)} {of.usage_after(n * of.half_life):,.0f},"
        f" LevelFS {of.level_after(n * of.half_life):.3g}"
        for n in steps
    )
    now = f"if I stop now: {of.usage:,.0f} TRES-seconds, LevelFS {of.level_after(0):.3g}; {later}"
    when = of.seconds_to(1.0)
    until = (
        "LevelFS 1, where use equals share, is already reached"
        if when == 0
        else "LevelFS 1 is not reached while nobody else in the account uses anything"
        if when is None
        else f"LevelFS 1, where use equals share, is reached in {_days(when)}"
    )
    lines = [now, f"{until} ({FORMULA}; the others' usage as it is)"]
    if reset not in ("", "NONE", "(null)"):
        lines.append(f"all usage is also set to zero {reset.lower()} (PriorityUsageResetPeriod)")
    return lines


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else format_duration(int(seconds))
