"""Why Slurm counts otherwise than the ledger, or does not enforce the limits that were set."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from slurmkit.formats.releases import ENDS_KEPT_SINCE, format_release
from slurmkit_accounting.allocations.balance import Balance
from slurmkit_accounting.allocations.model import Holder
from slurmkit_accounting.allocations.site import TRES, Counter, SlurmSite, TargetKind
from slurmkit_accounting.config import AllocationSection

# Seconds for which an apply may have run: it read the balances before it noted the time.
_APPLY_SECONDS = 3600


class LastLimit(msgspec.Struct, frozen=True):
    """The limit that `allocation apply` set last.

    Attributes:
        last_entry: number of the newest entry that it has in it; 0 if none is.
        at: epoch seconds.
        outcome: `set`, `failed`, or `unknown` if the command was cut off.
        read_back: the last limit that Slurm was seen to have; None for none.
    """

    target_kind: TargetKind
    target: str
    tres: str
    after: int | None
    last_entry: int
    at: int
    outcome: str
    read_back: int | None = None

    def is_of_apply(self, limit: int) -> bool:
        """Return whether a limit that Slurm has is one that `allocation apply` set."""
        return limit in (self.after, self.read_back)


class UnknownHolder(msgspec.Struct, frozen=True):
    """A holder whose use the ledger cannot find any more, and why."""

    holder: Holder
    why: str


class Ledgered(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says, for the comparison with Slurm.

    Attributes:
        taken: epoch seconds.
        age: seconds since the jobs were last read; None for never.
        last_limits: the limit set last, of each target and TRES.
        clusters: how many clusters the ledger has.
        weighted: GPU types that do not count as one GPU.
        parts: shards and MPS.
        unknown: holders whose use the ledger cannot find.
        free_qos: QOS whose jobs no allocation pays for.
    """

    balances: tuple[Balance, ...]
    taken: int
    age: int | None
    last_limits: tuple[LastLimit, ...] = ()
    clusters: int = 1
    weighted: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    unknown: tuple[UnknownHolder, ...] = ()
    free_qos: tuple[str, ...] = ()


def find_causes(
    balance: Balance,
    counter: Counter,
    last: LastLimit | None,
    known: Ledgered,
    site: SlurmSite,
    target: tuple[TargetKind, str],
) -> Iterator[str]:
    """Yield why ledger and Slurm may count differently, the likeliest first."""
    tres = TRES[balance.unit]
    yield from _changed_since(balance, counter, last, known.taken)
    yield from _counted_otherwise(site, *target, known.free_qos)
    yield from _overridden(site, *target, tres)
    factors = sorted(qos for qos, factor in site.usage_factors.items() if factor != 1)
    if factors:
        yield f"usage factor: Slurm charges jobs of QOS {', '.join(factors)} more or less"
    if balance.unit == "gpu" and known.weighted:
        yield f"weights: Slurm counts {', '.join(known.weighted)} as whole GPUs"
    if balance.unit == "gpu" and known.parts:
        yield f"weights: Slurm does not count {', '.join(known.parts)} as {tres}, the ledger does"
    if known.clusters > 1:
        yield (
            "other clusters: the ledger also counts the jobs there, and each cluster may use all"
            " that is left"
        )
    if balance.shared:
        yield "shared accounts: other PIs use them, too"
    if counter.in_use or known.age is None or known.age > site.calc_seconds:
        age = "never" if known.age is None else f"{known.age // 60} min ago"
        yield f"age: the ledger read the jobs {age}; {counter.in_use} {tres} are in use"


def date_has_come(balance: Balance, last: LastLimit, now: int) -> bool:
    """Return whether an allocation began or ended since a limit was set."""
    since = last.at - _APPLY_SECONDS
    dates = [date for one in balance.allocations for date in (one.begin, one.finish)]
    return any(date is not None and since < date <= now for date in dates)


def _changed_since(
    balance: Balance, counter: Counter, last: LastLimit | None, now: int
) -> Iterator[str]:
    """Yield what happened since a limit was set."""
    if last is None:
        if counter.limit is not None:
            yield f"somebody else set the limit of {counter.limit:,} minutes; apply replaces it"
        return
    if last.outcome != "set":
        yield "the last apply was cut off or failed; run it again"
    elif last.after != counter.limit:
        was = "none" if last.after is None else f"{last.after:,}"
        yield f"somebody else changed the limit: it was set to {was} minutes"
    if last.last_entry < balance.newest_entry:
        yield "the allocation was changed since the last apply"
    if date_has_come(balance, last, now):
        yield "an allocation began or ended since the last apply"


def _counted_otherwise(
    site: SlurmSite, kind: TargetKind, name: str, free_qos: Sequence[str]
) -> Iterator[str]:
    """Yield what Slurm's settings do with its counter, and what else it counts."""
    if not site.counts_use():
        yield f"no counting: PriorityType={site.config['PriorityType']} does not add up use"
    if kind == "account" and site.decays():
        half = site.config.get("PriorityDecayHalfLife", "")
        yield f"decay: Slurm halves what it counted every {half} (PriorityDecayHalfLife)"
    if kind == "qos" and name not in site.qos_flags:
        yield f"no QOS: Slurm has no QOS {name} yet; slurmkit allocation apply makes it"
    elif kind == "qos" and site.decays() and "NoDecay" not in site.qos_flags[name]:
        yield f"decay: QOS {name} lacks the flag NoDecay"
    if site.resets():
        often = site.resets().lower()
        yield f"reset: Slurm forgets what it counted {often} (PriorityUsageResetPeriod)"
    if kind == "account" and site.children.get(name):
        below = ", ".join(site.children[name])
        yield f"child accounts: Slurm also counts {below}"
    free = ", ".join(free_qos)
    if kind == "account" and free:
        yield f"free QOS: Slurm also counts jobs of QOS {free}, the ledger does not"
    if kind == "qos":
        but = f" but those of QOS {free}" if free else ""
        yield f"other QOS: Slurm counts only jobs of QOS {name}, the ledger all jobs{but}"
    release = site.config.get("SLURM_VERSION", "")
    if "" < release < format_release(ENDS_KEPT_SINCE):
        yield (
            f"requeues: if a job that had ended is requeued, sacct of Slurm {release} may say that"
            " it ran until then; Slurm's counter does not have that time"
        )


def _overridden(site: SlurmSite, kind: TargetKind, name: str, tres: str) -> Iterator[str]:
    """Yield the QOS whose own limit comes before that of an account."""
    others = [qos for qos, limited in site.qos_limits.items() if tres in limited and qos != name]
    if kind == "account" and others:
        yield (
            f"overridden: QOS {', '.join(sorted(others))} has a limit of {tres} of its own, so the"
            " account's limit does not hold for its jobs"
        )


def site_remarks(
    site: SlurmSite,
    section: AllocationSection,
    *,
    clusters: int = 1,
    enforcing: Collection[str] = (),
    free_qos: Sequence[str] = (),
) -> Iterator[str]:
    """Yield what everybody should know about how Slurm enforces limits here.

    Args:
        site: what Slurm says.
        section: what the site wants.
        clusters: how many clusters the ledger has.
        enforcing: the QOS that enforce balances.
        free_qos: QOS whose jobs no allocation pays for.
    """
    if not section.enforce:
        yield 'nothing is enforced: [allocation] enforce is empty; set it to "association" or "qos"'
    elif section.at_end == "warn":
        yield 'nothing is enforced: [allocation] at_end is "warn"'
    if "limits" not in site.enforced:
        yield "AccountingStorageEnforce lacks limits: Slurm enforces nothing"
    elif "safe" not in site.enforced:
        yield (
            "AccountingStorageEnforce lacks safe: Slurm starts a job while anything is left, and"
            " kills it when nothing is left"
        )
    yield from _remarks_on_counting(site, section)
    if section.at_end in ("refuse", "lower") and section.enforce != "qos":
        yield f'at_end = "{section.at_end}" works only with enforce = "qos"; jobs wait instead'
    elif section.at_end == "lower" and not free_qos:
        yield (
            'at_end = "lower" works only with a QOS in free_qos, where the ledger is; jobs wait'
            " instead"
        )
    if unknown := [name for name in free_qos if name not in site.qos_flags]:
        yield f"Slurm has no QOS {', '.join(unknown)}, which free_qos names"
    if section.enforce:
        yield from _other_limits(site, section, enforcing)
    if section.enforce and clusters > 1:
        yield (
            f"the ledger has {clusters} clusters: until the next apply on each, what is left may be"
            " used once on each of them"
        )


def _remarks_on_counting(site: SlurmSite, section: AllocationSection) -> Iterator[str]:
    if not site.counts_use():
        yield (
            f"PriorityType={site.config['PriorityType']} does not add up use: a limit is only what"
            " was left at the last apply"
        )
    if section.enforce == "association" and site.decays():
        yield (
            "Slurm's counters decay (PriorityDecayHalfLife): what it counted shrinks, so apply"
            " again at least daily, or enforce by QOS with NoDecay"
        )
    if site.resets():
        yield f"Slurm sets its counters to 0 {site.resets().lower()}: apply again right after that"


def _other_limits(
    site: SlurmSite, section: AllocationSection, enforcing: Collection[str]
) -> Iterator[str]:
    """Yield the QOS of the site that have limits of a TRES that allocations are in."""
    for tres in TRES.values():
        others = sorted(
            qos
            for qos, limited in site.qos_limits.items()
            if tres in limited and qos not in enforcing
        )
        if others and section.enforce == "association":
            yield (
                f"QOS {', '.join(others)} has GrpTRESMins of {tres} of its own: for its jobs, and"
                " for those in partitions with this QOS, it overrides the limit of an account"
            )
        elif others:
            yield (
                f"QOS {', '.join(others)} has GrpTRESMins of {tres} of its own: as the QOS of a"
                " partition it overrides that of the job, unless that has OverPartQOS"
            )
