"""What Slurm has counted, which limits it has, and what decides how it counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from slurmkit.errors import SlurmError
from slurmkit.formats.durations import parse_elapsed
from slurmkit.formats.scontrol import parse_names, parse_settings
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.associations import parse_assoc_mgr
from slurmkit.state.model import Limits, LimitUsage
from slurmkit_accounting.allocations.amounts import Unit

TargetKind = Literal["account", "qos"]
TRES: Mapping[Unit, str] = {"gpu": "gres/gpu", "billing": "billing"}
_QOS_COMMAND = ("sacctmgr", "-nP", "show", "qos", "format=name,flags,usagefactor")
_ASSOCIATIONS = ("sacctmgr", "-nP", "show", "assoc")
_NEVER = frozenset(("", "0", "00:00:00", "NONE", "(null)"))


class Counter(msgspec.Struct, frozen=True):
    """What Slurm has of one account or QOS for one TRES; all in minutes.

    Attributes:
        limit: GrpTRESMins; None is no limit.
        counted: what it compares the limit with.
        may_use: what running jobs may still use, up to their time limits.
        in_use: of the TRES, by running jobs now.
    """

    limit: int | None
    counted: int
    may_use: int
    in_use: int


class SlurmSite(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how Slurm counts; read from slurmctld and slurmdbd.

    Attributes:
        counters: by (`account` or `qos`, name, TRES).
        children: accounts below each account.
        qos_limits: what each QOS limits for all its jobs together: TRES of GrpTRESMins, and `wall`.
        qos_flags: flags of each QOS.
        usage_factors: of each QOS.
    """

    cluster: str
    config: dict[str, str]
    counters: dict[tuple[TargetKind, str, str], Counter]
    children: dict[str, tuple[str, ...]]
    qos_limits: dict[str, tuple[str, ...]]
    qos_flags: dict[str, tuple[str, ...]]
    usage_factors: dict[str, float]

    @property
    def enforced(self) -> frozenset[str]:
        """The words of AccountingStorageEnforce; `all` stands for all of them."""
        words = frozenset(parse_names(self.config.get("AccountingStorageEnforce", "").lower()))
        return words | {"associations", "limits", "qos", "safe"} if "all" in words else words

    @property
    def calc_seconds(self) -> int:
        """Seconds after which Slurm counts running jobs again (PriorityCalcPeriod)."""
        return parse_elapsed(self.config.get("PriorityCalcPeriod", "")) or 300

    def decays(self) -> bool:
        """Return whether the counters of associations, and of QOS without NoDecay, decay."""
        return self.config.get("PriorityDecayHalfLife", "") not in _NEVER

    def counts_use(self) -> bool:
        """Return whether slurmctld adds up use: only the plugin priority/multifactor does."""
        return self.config.get("PriorityType", "") in ("", "priority/multifactor")

    def resets(self) -> str:
        """Return how often all counters are set to 0; empty for never."""
        period = self.config.get("PriorityUsageResetPeriod", "")
        return "" if period in _NEVER else period

    def tracks(self, tres: str) -> bool:
        """Return whether accounting tracks a TRES."""
        return tres in parse_names(self.config.get("AccountingStorageTRES", ""))


def read_site(slurm: SlurmCommands) -> SlurmSite:
    """Read Slurm's limits, what it counted, and how it counts.

    Raises:
        SlurmError: when slurmctld or slurmdbd does not answer, or it cannot be read.
    """
    config = parse_settings(slurm.run(["scontrol", "show", "config"]))
    text = slurm.run(["scontrol", "show", "assoc_mgr", "flags=assoc,qos"])
    qos = slurm.run(_QOS_COMMAND)
    try:
        state = parse_assoc_mgr(text, "")
        counters: dict[tuple[TargetKind, str, str], Counter] = {}
        children: dict[str, list[str]] = {}
        for each in state.associations:
            if not each.user:
                counters.update(_counters("account", each.account, each.limits, each.usage))
                children.setdefault(each.parent, []).append(each.account)
        qos_limits = {one.name: _limited(one.limits) for one in state.qos}
        for one in state.qos:
            counters.update(_counters("qos", one.name, one.limits, one.usage))
        rows = [line.split("|") for line in qos.splitlines()]
        flags = {row[0]: parse_names(row[1]) for row in rows}
        factors = {row[0]: float(row[2] or 1) for row in rows}
    except (KeyError, ValueError, IndexError) as error:
        raise SlurmError(f"Slurm printed limits that cannot be read: {error}") from error
    return SlurmSite(
        cluster=config.get("ClusterName", ""),
        config=config,
        counters=counters,
        qos_limits=qos_limits,
        children={name: tuple(sorted(below)) for name, below in children.items()},
        qos_flags=flags,
        usage_factors=factors,
    )


def read_usable_qos(slurm: SlurmCommands, cluster: str) -> frozenset[str]:
    """Read which QOS the associations of users may use.

    Raises:
        SlurmError: when slurmdbd does not answer.
    """
    lines = slurm.run([*_ASSOCIATIONS, f"cluster={cluster}", "format=user,qos"]).splitlines()
    rows = [line.partition("|") for line in lines]
    return frozenset(name for user, _, names in rows if user for name in parse_names(names))


def _counters(
    kind: TargetKind, name: str, limits: Limits, usage: LimitUsage
) -> Iterator[tuple[tuple[TargetKind, str, str], Counter]]:
    for tres in TRES.values():
        yield (
            (kind, name, tres),
            Counter(
                limits.grp_tres_mins.get(tres),
                usage.tres_mins.get(tres, 0),
                usage.tres_run_mins.get(tres, 0),
                usage.tres.get(tres, 0),
            ),
        )


def _limited(limits: Limits) -> tuple[str, ...]:
    wall = () if limits.grp_wall is None else ("wall",)
    return (*limits.grp_tres_mins, *wall)
