"""`slurmkit fairshare`: shares, usage, and the priority of pending jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_table, print_wrapped
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import Refused
from slurmkit.formats.display import format_time, printable
from slurmkit.state.associations import current_user
from slurmkit.state.fairshare import (
    FairshareRow,
    PriorityFactors,
    describe_fairshare,
    format_share,
    read_factors,
    read_shares,
)

_COLUMNS = tuple("ACCOUNT USER SHARES NORM USAGE USED EFFECTIVE LEVELFS FACTOR".split())

_FIT = Fit(
    whole=("ACCOUNT", "USER", "LEVELFS", "FACTOR"), least=("USAGE", "NORM", "USED", "SHARES")
)


class _FactorColumn(NamedTuple):
    """A field of `PriorityFactors`, its column in the table, and its weight's key in slurm.conf."""

    field: str
    column: str
    weight_key: str


_FACTORS = (
    _FactorColumn("fairshare", "FAIRSHARE", "PriorityWeightFairShare"),
    _FactorColumn("age", "AGE", "PriorityWeightAge"),
    _FactorColumn("qos", "QOS", "PriorityWeightQOS"),
    _FactorColumn("job_size", "JOBSIZE", "PriorityWeightJobSize"),
    _FactorColumn("partition_factor", "PARTITION", "PriorityWeightPartition"),
    _FactorColumn("association", "ASSOC", "PriorityWeightAssoc"),
    _FactorColumn("tres", "TRES", "PriorityWeightTRES"),
    _FactorColumn("site", "SITE", ""),
    _FactorColumn("nice", "NICE", ""),
)


@click.command("fairshare")
@click.option(
    "--all", "everybody", is_flag=True, help="Show the shares of all users, not only yours."
)
@json_option("slurmkit.fairshare/1", text="Print shares and factors as JSON.")
def fairshare_command(*, everybody: bool, as_json: JsonOutput | None) -> None:
    """Show the shares and usage of accounts, your own standing, and the priority of your jobs.

    USAGE is in billed TRES-seconds, which decay with time. USED is the part of the whole cluster's
    usage. NORM is the part of the shares, and EFFECTIVE the part of the usage, among the entries
    with the same parent. A LEVELFS below 1 means more usage than share.

    \b
    Examples:
      slurmkit fairshare
      slurmkit fairshare --all
      slurmkit fairshare --json | jq '.rows[] | select(.user == "alice") | .factor'
    """
    cluster = Cluster()
    user = current_user(cluster.slurm)
    config = cluster.capabilities().config
    shares = read_shares(cluster.slurm, everybody=everybody)
    factors, trouble = _read_pending_factors(cluster, user)
    words = [describe_fairshare(branch) for branch in shares.branches(user)]
    if as_json:
        weights = {
            factor.field: _weight(config.get(factor.weight_key, ""))
            for factor in _FACTORS
            if factor.weight_key
        }
        further = {"standing": words, "weights": weights, "factors": factors}
        as_json.print(shares.rows, taken=shares.taken, further=further)
        return
    print_table(_COLUMNS, map(_share_row, shares.rows), right=set(_COLUMNS[2:]), fit=_FIT)
    click.echo()
    for line in words or [f"sshare shows no share of {user}"]:
        print_wrapped("", line, indent=0)
    _print_factors(factors, config)
    new = any(row.user and row.factor is None for row in shares.rows)
    for line in (
        *trouble,
        *_notes(config, new=new),
        f"from sshare and sprio at {format_time(shares.taken)}",
    ):
        click.echo(printable(line), err=True)


def _read_pending_factors(
    cluster: Cluster, user: str
) -> tuple[tuple[PriorityFactors, ...], tuple[str, ...]]:
    """Read the priority factors of a user's pending jobs, or return why they are unknown."""
    try:
        return read_factors(cluster.slurm, user), ()
    except Refused as error:  # another priority plugin
        return (), (f"priority factors are unknown: {error}",)


def _share_row(row: FairshareRow) -> tuple[str, ...]:
    """Return the row of an association, indented by its depth."""
    account = "  " * row.depth + row.account
    where = f"{account} ({row.partition})" if row.partition else account
    return (
        where,
        row.user,
        "" if row.raw_shares is None else str(row.raw_shares),
        format_share(row.shares) if row.depth else "",
        "?" if row.raw_usage is None else str(row.raw_usage),
        format_share(row.usage) if row.depth else "",
        format_share(row.effective_usage),
        "" if row.level is None else "inf" if math.isinf(row.level) else f"{row.level:.3f}",
        f"{row.factor:.3f}" if row.factor is not None else "?" if row.user else "",
    )


def _print_factors(factors: Sequence[PriorityFactors], config: dict[str, str]) -> None:
    """Print each job's factors, and their weights; only those with a weight or a value."""
    if not factors:
        return
    shown = [
        factor
        for factor in _FACTORS
        if config.get(factor.weight_key, "0") not in ("0", "(null)")
        or any(getattr(job, factor.field) for job in factors)
    ]
    click.echo()
    header = ("JOBID", "IN", "PRIORITY", *(factor.column for factor in shown))
    weights = (_weight(config.get(factor.weight_key, "")) or "" for factor in shown)
    fit = Fit(whole=("JOBID", "PRIORITY"), least=("IN",))
    rows = [
        (
            job.job_id,
            job.partition,
            str(job.priority),
            *(str(getattr(job, factor.field)) for factor in shown),
        )
        for job in factors
    ]
    print_table(header, [*rows, ("weight", "", "", *weights)], right=set(header[2:]), fit=fit)


def _weight(text: str) -> str | None:
    return None if text in ("", "(null)") else text


def _notes(config: dict[str, str], *, new: bool) -> list[str]:
    """Return notes on settings that make the numbers mean less than they seem to."""
    plugin = config.get("PriorityType", "unknown")
    if plugin != "priority/multifactor":
        return [f"shares have no effect here: PriorityType is {plugin}"]
    if config.get("PriorityWeightFairShare") == "0":
        return ["shares have no effect here: PriorityWeightFairShare is 0"]
    if new:
        period = config.get("PriorityCalcPeriod", "unknown")
        return [f"? is not computed yet: slurmctld does that every {period} (PriorityCalcPeriod)"]
    return []
