"""GrpTRESMins in Slurm: what it should be for each balance, and how to get there.

Slurm compares GrpTRESMins with a counter of its own: TRES-minutes of all jobs of an association
(with those below it) or of a QOS. The counter began before the allocation did, and may decay. So
the limit that enforces a balance is what Slurm has counted, and what is left. At submit
DenyOnLimit compares a job with the whole limit, whatever was counted: to refuse jobs, the counter
of the QOS is set to 0 and the limit to what is left. Sources: `_apply_decay` and
`_apply_new_usage` in src/plugins/priority/multifactor/priority_multifactor.c,
`_qos_policy_validate`, `acct_policy_job_runnable_post_select` and `acct_policy_job_time_out` in
src/slurmctld/acct_policy.c, `assoc_mgr_update_qos_usage` in src/common/assoc_mgr.c, in 22.05 to
26.05.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from slurmkit.errors import BadInput
from slurmkit_accounting.allocations.amounts import MINUTE_MS, Unit
from slurmkit_accounting.allocations.balance import AllocationBalance, Balance
from slurmkit_accounting.allocations.limit_causes import (
    LastLimit,
    Ledgered,
    date_has_come,
    find_causes,
)
from slurmkit_accounting.allocations.model import Holder
from slurmkit_accounting.allocations.site import TRES, Counter, SlurmSite, TargetKind
from slurmkit_accounting.config import AllocationSection

OLDEST = 3 * 3600  # seconds; an older ledger explains no difference
_NAME = re.compile(r"[\w.+@-]{1,100}", re.ASCII)
_UNSAFE = re.compile(r"[^\w.+@-]", re.ASCII)
_UNITS: Mapping[str, Unit] = {tres: unit for unit, tres in TRES.items()}
_NOTHING = Counter(None, 0, 0, 0)


class WantedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of one balance; amounts in minutes of the TRES.

    Attributes:
        holder: None for a limit that `allocation apply` set and that no balance needs any more.
        target: name of the account or QOS; empty if unknown.
        before: the limit now; None is no limit.
        after: the limit that enforces the balance; None is none.
        counted: what Slurm has counted; None if it does not know the target.
        left: what the ledger has left, whole minutes, at least 0.
        slack: by how much the two may differ because they were not read at one time.
        commands: for sacctmgr; none if nothing has to change.
        reset: for sacctmgr, once the limit is there: sets the counter of the QOS to 0.
        causes: why the two count, or may count, differently.
        problem: why no limit is set; empty if one is.
        is_due: whether there is something to enforce now; false before an allocation begins.
    """

    holder: Holder | None
    unit: Unit
    target_kind: TargetKind
    target: str
    tres: str
    before: int | None = None
    after: int | None = None
    counted: int | None = None
    left: int = 0
    slack: int = 0
    last_entry: int = 0
    commands: tuple[tuple[str, ...], ...] = ()
    reset: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    problem: str = ""
    is_due: bool = True

    @property
    def slurm_left(self) -> int | None:
        """What Slurm has left; None without a limit."""
        if self.before is None or self.counted is None:
            return None
        return max(self.before - self.counted, 0)

    @property
    def difference(self) -> int | None:
        """Slurm's minutes left, less the ledger's; None without a limit."""
        return None if self.slurm_left is None else self.slurm_left - self.left


def is_explained(one: WantedLimit) -> bool:
    """Return whether Slurm has left what the ledger has, but for the time of reading."""
    if one.problem or one.holder is None:
        return not one.is_due
    return one.difference is not None and abs(one.difference) <= one.slack


def plan_limits(
    known: Ledgered,
    site: SlurmSite,
    section: AllocationSection,
    free: Collection[str] = (),
) -> list[WantedLimit]:
    """Return the limit of each balance, and the commands that set those that are not right.

    Limits that `allocation apply` set and that are not wanted any more follow at the end.

    Args:
        known: what the ledger says.
        site: what Slurm says.
        section: what the site wants.
        free: names of accounts or QOS whose allocations have ended, to take their limits away.

    Raises:
        BadInput: when a limit in `free` is not there to be taken away.
    """
    planner = _Planner(known, site, section, free)
    wanted = [planner.plan(balance) for balance in known.balances]
    in_force = {(one.holder, one.unit) for one in known.balances if _is_in_force(one)}
    wanted = _without_clashes(wanted, planner.kind, in_force)
    needed = {(one.target_kind, one.target, one.tres) for one in wanted if one.is_due}
    wanted += planner.plan_rest(needed)
    freed = {one.target for one in wanted if one.commands and one.after is None}
    for name in free:
        if name not in freed:
            raise BadInput(
                f"the limit of {name} cannot be taken away: slurmkit allocation apply has set none"
                " there, or an allocation is in force or will begin"
            )
    return wanted


def _without_clashes(
    wanted: Sequence[WantedLimit],
    kind: TargetKind,
    in_force: Collection[tuple[Holder | None, Unit]],
) -> list[WantedLimit]:
    """Enforce one balance by a target: with accounts the first one's, with QOS none of several.

    Of an account, the first balance with an allocation in force; if there is none, the first.
    """
    users = defaultdict(list)
    for one in sorted(wanted, key=lambda one: (one.holder, one.unit) not in in_force):
        if one.is_due and one.target and (kind == "qos" or not one.problem):
            users[_place(one)].append(one)
    found = []
    for one in wanted:
        mine = users[_place(one)]
        others = [other for other in mine if other.holder != one.holder]
        if one.problem or one not in mine or not others or (kind != "qos" and one is mine[0]):
            found.append(one)
            continue
        if kind == "qos":
            names = ", ".join(sorted({str(other.holder) for other in others}))
            problem = (
                f"QOS {one.target} would also be that of {names}; write {{kind}} into [allocation]"
                ' qos, e.g. "alloc_{kind}_{name}"'
            )
            without = _without_limit(one, problem)
        else:
            problem = f"account {one.target} enforces the balance of {mine[0].holder} already"
            without = _without_limit(msgspec.structs.replace(one, target=""), problem)
        found.append(without if (one.holder, one.unit) in in_force else _not_due(without))
    return found


def _place(one: WantedLimit) -> tuple[str, str]:
    """Return what only one holder may have: an account for one TRES, or a QOS, whose jobs count."""
    return one.target, one.tres if one.target_kind == "account" else ""


def _not_due(one: WantedLimit) -> WantedLimit:
    """Return a balance that cannot be enforced, and need not be: its allocations have ended."""
    problem = f"its allocations have ended; {one.problem}"
    return msgspec.structs.replace(one, problem=problem, is_due=False)


def _without_limit(one: WantedLimit, problem: str) -> WantedLimit:
    return WantedLimit(
        holder=one.holder,
        unit=one.unit,
        target_kind=one.target_kind,
        target=one.target,
        tres=one.tres,
        left=one.left,
        problem=problem,
    )


class _Planner:
    """Decides about each balance, and about the limits that are left over."""

    def __init__(
        self, known: Ledgered, site: SlurmSite, section: AllocationSection, free: Collection[str]
    ) -> None:
        self.kind: TargetKind = "qos" if section.enforce == "qos" else "account"
        self._known, self._site, self._section = known, site, section
        self._free = frozenset(free)
        self._added: set[str] = set()
        self._last = {(one.target_kind, one.target, one.tres): one for one in known.last_limits}
        self._unknown = {one.holder: one.why for one in known.unknown}
        self._why_none = ""
        if not section.enforce:
            self._why_none = "nothing is enforced: [allocation] enforce is empty"
        elif section.at_end == "warn":
            self._why_none = '[allocation] at_end is "warn": no limit is set'

    def plan(self, balance: Balance) -> WantedLimit:
        """Return the limit of a balance, or why there is none."""
        target = self._target(balance)
        one = WantedLimit(
            holder=balance.holder,
            unit=balance.unit,
            target_kind=self.kind,
            target=target,
            tres=TRES[balance.unit],
            left=max(balance.left_ms, 0) // MINUTE_MS,
            last_entry=balance.newest_entry,
        )
        if self._why_none:
            return msgspec.structs.replace(one, problem=self._why_none, is_due=False)
        if target in self._free and not _is_in_force(balance):
            return self._take_away(one)
        if why := self._why_not_due(balance, target):
            return msgspec.structs.replace(one, problem=why, is_due=False)
        if problem := self._problem(balance):
            without = msgspec.structs.replace(one, problem=problem)
            was_set = (self.kind, target, one.tres) in self._last
            return without if was_set or _is_in_force(balance) else _not_due(without)
        return self._plan_limit(one, balance)

    def plan_rest(self, needed: Collection[tuple[str, str, str]]) -> Iterator[WantedLimit]:
        """Yield the limits that `allocation apply` set and that are those of no balance."""
        for key, last in self._last.items():
            counter = self._site.counters.get(key, _NOTHING)
            limit = counter.limit
            # A limit that somebody else has set since is theirs.
            if limit is None or not last.is_of_apply(limit) or key in needed:
                continue
            one = WantedLimit(
                holder=None,
                unit=_UNITS[last.tres],
                target_kind=last.target_kind,
                target=last.target,
                tres=last.tres,
                before=limit,
                counted=counter.counted,
            )
            if self._why_none or last.target_kind != self.kind or last.target in self._free:
                cause = "no longer wanted: slurmkit allocation apply takes this limit away"
                yield msgspec.structs.replace(self._take_away(one), causes=(cause,))
            else:
                yield msgspec.structs.replace(one, problem=_left_over(last))

    def _target(self, balance: Balance) -> str:
        if self.kind == "qos":
            return _qos_name(self._section, balance.holder)
        return balance.accounts[0] if len(balance.accounts) == 1 else ""

    def _why_not_due(self, balance: Balance, target: str) -> str:
        """Return why there is nothing to enforce now; empty if there is."""
        taken = self._known.taken
        begun = [one for one in balance.allocations if one.begin <= taken and not _is_void(one)]
        if not begun:
            return "no allocation has begun yet"
        last = self._last.get((self.kind, target, TRES[balance.unit]))
        freed = (
            last is not None
            and (last.outcome, last.after) == ("set", None)
            and last.last_entry == balance.newest_entry
            and not _is_in_force(balance)
        )
        return "its allocations have ended, and its limit was taken away" if freed else ""

    def _problem(self, balance: Balance) -> str:
        """Return why a balance cannot be enforced; empty if it can."""
        tres = TRES[balance.unit]
        if not self._site.tracks(tres):
            return f"AccountingStorageTRES lacks {tres}: Slurm does not count it"
        unknown = "" if balance.accounts else self._unknown.get(balance.holder, "")
        if self.kind == "account" and (problem := _problem_of_accounts(balance)):
            return f"{problem}; {unknown}" if unknown else problem
        if unknown:
            return unknown
        here = [name for name in balance.accounts if ("account", name, tres) in self._site.counters]
        if not here and (self.kind == "account" or balance.holder.kind != "pi"):
            return f"Slurm has no account {', '.join(balance.accounts)}"
        return self._problem_of_qos(self._target(balance)) if self.kind == "qos" else ""

    def _problem_of_qos(self, name: str) -> str:
        """Return why a QOS cannot enforce a balance; empty if it can."""
        if "{name}" not in (pattern := self._section.qos):  # one of the site's own
            return f'[allocation] qos = "{pattern}" lacks {{name}}; write e.g. "alloc_{{name}}"'
        if name in self._known.free_qos:
            return f"[allocation] free_qos names QOS {name}: no allocation pays for its jobs"
        return ""

    def _plan_limit(self, one: WantedLimit, balance: Balance) -> WantedLimit:
        key = (self.kind, one.target, one.tres)
        counter = self._site.counters.get(key)
        there = counter or _NOTHING
        last = self._last.get(key)
        slack = _slack(there, self._known.age, self._site)
        refuses = self.kind == "qos" and self._section.at_end == "refuse"
        why_no_reset = self._why_no_reset(one, there) if refuses else ""
        resets = refuses and not why_no_reset
        after = one.left if resets else there.counted + one.left
        keeps = _keeps(there, last, balance, after, slack, self._known.taken)
        causes = find_causes(balance, there, last, self._known, self._site, (self.kind, one.target))
        reset = resets and there.counted > (slack if keeps else 0)
        has_flags = self.kind == "account" or not self._flag_changes(one.target)
        right = (keeps or there.limit == after) and has_flags and not reset
        return msgspec.structs.replace(
            one,
            before=there.limit,
            after=there.limit if right else after,
            counted=None if counter is None else there.counted,
            slack=slack,
            commands=() if right else self._limit_commands(one, after),
            reset=_reset_command(one.target) if reset else (),
            causes=(*((f"refuse: {why_no_reset}",) if why_no_reset else ()), *causes),
        )

    def _why_no_reset(self, one: WantedLimit, there: Counter) -> str:
        """Return why the counter of a QOS must not be set to 0; empty if it may."""
        others = [tres for tres in self._site.qos_limits.get(one.target, ()) if tres != one.tres]
        also = [each for each in self._known.balances if each.holder == one.holder]
        what = "jobs of more than was granted are refused, others wait"
        if others or len(also) > 1:
            return f"QOS {one.target} has other limits that need its counter, so {what}"
        if self._known.clusters > 1:
            return f"other clusters may have QOS {one.target}, so {what}"
        # Between both commands the new limit meets the old counter.
        ends_jobs = there.in_use and there.counted >= one.left
        if ends_jobs and "safe" not in self._site.enforced:
            return f"without safe, Slurm would end running jobs, so {what}"
        return ""

    def _take_away(self, one: WantedLimit) -> WantedLimit:
        key = (one.target_kind, one.target, one.tres)
        there, last = self._site.counters.get(key, _NOTHING), self._last.get(key)
        if there.limit is None or last is None or not last.is_of_apply(there.limit):
            why = "its allocations have ended, and it has no limit of slurmkit allocation apply"
            return msgspec.structs.replace(one, problem=why, is_due=False)
        return msgspec.structs.replace(
            one,
            before=there.limit,
            counted=there.counted,
            commands=self._limit_commands(one, -1),
        )

    def _limit_commands(self, one: WantedLimit, minutes: int) -> tuple[tuple[str, ...], ...]:
        limit = f"GrpTRESMins={one.tres}={minutes}"
        if one.target_kind == "account":
            where = ("where", f"name={one.target}", f"cluster={self._site.cluster}")
            return (("sacctmgr", "-i", "modify", "account", *where, "set", limit),)
        if one.target not in self._site.qos_flags and one.target not in self._added:
            self._added.add(one.target)
            flags = f"Flags={','.join(self._wanted_flags())}"
            return (("sacctmgr", "-i", "add", "qos", f"name={one.target}", flags, limit),)
        changes = self._flag_changes(one.target, is_limited=minutes >= 0)
        first = [_qos_command(one.target, change) for change in changes[:-1]]
        return (*first, _qos_command(one.target, *changes[-1:], limit))

    def _flag_changes(self, target: str, *, is_limited: bool = True) -> list[str]:
        """Return what corrects the flags of a QOS that is there; a command takes one of them."""
        if target not in self._site.qos_flags:
            return []
        has = self._site.qos_flags[target]
        wanted = self._wanted_flags() if is_limited else ()
        missing = [flag for flag in wanted if flag not in has]
        changes = [f"Flags+={','.join(missing)}"] if missing else []
        if "DenyOnLimit" in has and "DenyOnLimit" not in wanted:
            changes.insert(0, "Flags-=DenyOnLimit")
        return changes

    def _wanted_flags(self) -> tuple[str, ...]:
        return ("NoDecay", "DenyOnLimit") if self._section.at_end == "refuse" else ("NoDecay",)


def _qos_command(target: str, *changes: str) -> tuple[str, ...]:
    return ("sacctmgr", "-i", "modify", "qos", "where", f"name={target}", "set", *changes)


def _reset_command(target: str) -> tuple[str, ...]:
    return _qos_command(target, "RawUsage=0")


def _left_over(last: LastLimit) -> str:
    return (
        "no balance that can be enforced needs this limit; to take it away: slurmkit allocation"
        f" apply --free {last.target}"
    )


def _keeps(
    there: Counter, last: LastLimit | None, balance: Balance, after: int, slack: int, now: int
) -> bool:
    """Return whether the limit in Slurm may stay, although some minutes may be missing."""
    return (
        there.limit is not None
        and last is not None
        and last.outcome == "set"
        and last.after == there.limit
        and last.last_entry == balance.newest_entry
        and not date_has_come(balance, last, now)
        and abs(after - there.limit) <= slack
    )


def _is_in_force(balance: Balance) -> bool:
    return any(one.state == "in force" for one in balance.allocations)


def _is_void(one: AllocationBalance) -> bool:
    """Return whether an allocation ended before it began."""
    return one.finish is not None and one.finish <= one.begin


def _qos_name(section: AllocationSection, holder: Holder) -> str:
    """Return the name of a holder's QOS, in lower case: sacctmgr stores names of QOS so."""
    named = section.qos.replace("{kind}", holder.kind).replace("{name}", holder.name)
    return _UNSAFE.sub("_", named).lower()


def _problem_of_accounts(balance: Balance) -> str:
    """Return why no association can enforce a balance; empty if one can."""
    if len(balance.accounts) != 1:
        names = ", ".join(balance.accounts) or "none"
        return (
            f"an association can enforce it for exactly one account, not for: {names}; set"
            ' [allocation] enforce = "qos"'
        )
    (account,) = balance.accounts
    if balance.shared:
        return (
            f"account {account} also has use of another PI; grant to the account, or set"
            ' [allocation] enforce = "qos"'
        )
    return "" if _NAME.fullmatch(account) else f"{account!r} cannot be the name of a Slurm account"


def _slack(counter: Counter, age: int | None, site: SlurmSite) -> int:
    """Return the minutes by which ledger and Slurm may differ because of when they were read."""
    seconds = min(age or 0, OLDEST) + site.calc_seconds
    return -(-counter.in_use * seconds // 60) + 1
