"""How usage fades, and what that does to LevelFS, when somebody uses nothing more.

Slurm halves usage every PriorityDecayHalfLife (slurm.conf(5)); Fair Tree's LevelFS is a share over
the part of its siblings' usage (https://slurm.schedmd.com/fair_tree.html).
"""

from __future__ import annotations

import math

import msgspec

from slurmkit.durations import format_duration, parse_elapsed
from slurmkit.fairshare import Share

FORMULA = "usage x 0.5^(t/half-life); LevelFS = share / part of the siblings' usage"
_NEVER = frozenset({"", "0", "00:00:00", "(null)", "N/A"})


class Forecast(msgspec.Struct, frozen=True):
    """One line of the tree when its user stops now and its siblings' usage stays as it is.

    Attributes:
        half_life: seconds.
        usage: decayed TRES-seconds now.
        others: those of its siblings together.
        shares: its part of the siblings' shares, 0 to 1.
    """

    half_life: float
    usage: float
    others: float
    shares: float

    def usage_after(self, seconds: float) -> float:
        """Decayed TRES-seconds that are left."""
        return float(self.usage * 0.5 ** (seconds / self.half_life))

    def level_after(self, seconds: float) -> float:
        """LevelFS then; infinite without use."""
        mine = self.usage_after(seconds)
        return self.shares * (mine + self.others) / mine if mine else math.inf

    def seconds_to(self, level: float) -> float | None:
        """When LevelFS reaches a value: 0 for now, None for never."""
        if self.level_after(0) >= level:
            return 0.0
        if not self.others or level <= self.shares:
            return None  # the part is all there is, however little that becomes
        left = self.shares * self.others / (level - self.shares)
        return self.half_life * math.log2(self.usage / left)


def forecast(row: Share, parent: Share, half_life: str) -> Forecast | None:
    """Of a line and the account above it; None where Slurm does not say enough.

    Args:
        row: of the user.
        parent: the account.
        half_life: PriorityDecayHalfLife as slurm.conf has it.
    """
    seconds = None if half_life in _NEVER else parse_elapsed(half_life)
    if not seconds or row.raw_usage is None or parent.raw_usage is None:
        return None
    if row.level is None or row.shares is None or parent.raw_usage < row.raw_usage:
        return None
    others = float(parent.raw_usage - row.raw_usage)
    return Forecast(float(seconds), float(row.raw_usage), others, row.shares)


def in_words(of: Forecast, reset: str) -> list[str]:
    """What becomes of it, in numbers.

    Args:
        of: the forecast.
        reset: PriorityUsageResetPeriod as slurm.conf has it.
    """
    if not of.usage:
        return ["nothing of yours fades: no usage counts now"]
    steps = (1, 2, 4)
    said = "; ".join(
        f"in {_days(n * of.half_life)} {of.usage_after(n * of.half_life):,.0f},"
        f" LevelFS {of.level_after(n * of.half_life):.3g}"
        for n in steps
    )
    now = f"if I stop now: {of.usage:,.0f} TRES-seconds, LevelFS {of.level_after(0):.3g}; {said}"
    when = of.seconds_to(1.0)
    until = (
        "LevelFS 1, use as large as share, is reached already"
        if when == 0
        else "LevelFS 1 is not reached while nobody else in the account uses anything"
        if when is None
        else f"LevelFS 1, use as large as share, is reached in {_days(when)}"
    )
    lines = [now, f"{until} ({FORMULA}; the others' usage as it is)"]
    if reset not in ("", "NONE", "(null)"):
        lines.append(f"all usage is also set to zero {reset.lower()} (PriorityUsageResetPeriod)")
    return lines


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else format_duration(int(seconds))
