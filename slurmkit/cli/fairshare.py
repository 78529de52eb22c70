"""`slurmkit fairshare`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import click
import msgspec

from slurmkit.capabilities.standing import me
from slurmkit.cli.show import hanging, table
from slurmkit.cluster import Cluster
from slurmkit.errors import Refused
from slurmkit.facts import clock
from slurmkit.fairshare import Factors, Share, in_words, part, read_factors, read_shares
from slurmkit.text import printable

_COLUMNS = tuple("ACCOUNT USER SHARES NORM USAGE USED EFFECTIVE LEVELFS FACTOR".split())
# Factor, the column it is shown in, its weight in slurm.conf.
_FACTORS = (
    ("fairshare", "FAIRSHARE", "PriorityWeightFairShare"),
    ("age", "AGE", "PriorityWeightAge"),
    ("qos", "QOS", "PriorityWeightQOS"),
    ("job_size", "JOBSIZE", "PriorityWeightJobSize"),
    ("partition_factor", "PARTITION", "PriorityWeightPartition"),
    ("association", "ASSOC", "PriorityWeightAssoc"),
    ("tres", "TRES", "PriorityWeightTRES"),
    ("site", "SITE", ""),
    ("nice", "NICE", ""),
)


@click.command("fairshare")
@click.option("--all", "everybody", is_flag=True, help="Everybody's lines, not only yours.")
@click.option("--json", "as_json", is_flag=True, help="Print shares and factors as JSON.")
def fairshare_command(*, everybody: bool, as_json: bool) -> None:
    """Show the shares of accounts and what they used, where you stand, and your jobs' priority.

    USAGE is in billed TRES-seconds that fade with time, USED its part of the cluster's. EFFECTIVE
    is the part of the usage, NORM that of the shares, each among its siblings. LEVELFS below 1 is
    more use than share.

    \b
    Examples:
      slurmkit fairshare
      slurmkit fairshare --all
      slurmkit fairshare --json | jq '.shares[] | select(.user == "alice") | .factor'
    """
    cluster = Cluster()
    user = me(cluster.slurm)
    config = cluster.capabilities().config
    shares = read_shares(cluster.slurm, everybody=everybody)
    factors, trouble = _pending(cluster, user)
    words = [in_words(branch) for branch in shares.branches(user)]
    if as_json:
        weights = {name: _weight(config.get(key, "")) for name, _, key in _FACTORS if key}
        facts = {"taken": shares.taken, "shares": shares.rows, "standing": words}
        click.echo(msgspec.json.encode(facts | {"weights": weights, "factors": factors}))
        return
    table(_COLUMNS, map(_share_row, shares.rows), right=set(_COLUMNS[2:]))
    click.echo()
    for line in words or [f"sshare shows no share of {user}"]:
        hanging("", line, indent=0)
    _show_factors(factors, config)
    new = any(row.user and row.factor is None for row in shares.rows)
    for line in (
        *trouble,
        *_notes(config, new=new),
        f"from sshare and sprio at {clock(shares.taken)}",
    ):
        click.echo(printable(line), err=True)


def _pending(cluster: Cluster, user: str) -> tuple[tuple[Factors, ...], tuple[str, ...]]:
    try:
        return read_factors(cluster.slurm, user), ()
    except Refused as error:  # another priority plugin
        return (), (f"priority factors are unknown: {error}",)


def _share_row(row: Share) -> tuple[str, ...]:
    account = "  " * row.depth + row.account
    where = f"{account} ({row.partition})" if row.partition else account
    return (
        where,
        row.user,
        "" if row.raw_shares is None else str(row.raw_shares),
        part(row.shares) if row.depth else "",
        "?" if row.raw_usage is None else str(row.raw_usage),
        part(row.usage) if row.depth else "",
        part(row.effective_usage),
        "" if row.level is None else "inf" if math.isinf(row.level) else f"{row.level:.3f}",
        f"{row.factor:.3f}" if row.factor is not None else "?" if row.user else "",
    )


def _show_factors(factors: Sequence[Factors], config: dict[str, str]) -> None:
    shown = [each for each in _FACTORS if _counts(each[0], each[2], factors, config)]
    if not factors:
        return
    click.echo()
    header = ("JOBID", "IN", "PRIORITY", *(column for _, column, _ in shown))
    weights = ("weight", "", "", *(_weight(config.get(key, "")) or "" for _, _, key in shown))
    jobs = [_factor_row(job, [name for name, _, _ in shown]) for job in factors]
    table(header, [*jobs, weights], right=set(header[2:]))


def _counts(name: str, key: str, factors: Iterable[Factors], config: dict[str, str]) -> bool:
    """Whether a factor has a weight here, or a value for one of the jobs."""
    weighted = config.get(key, "0") not in ("0", "(null)")
    return weighted or any(getattr(job, name) for job in factors)


def _weight(text: str) -> str | None:
    return None if text in ("", "(null)") else text


def _factor_row(job: Factors, names: Iterable[str]) -> tuple[str, ...]:
    values = (str(getattr(job, name)) for name in names)
    return (job.job_id, job.partition, str(job.priority), *values)


def _notes(config: dict[str, str], *, new: bool) -> list[str]:
    """What of the configuration makes the numbers mean less than they seem to."""
    plugin = config.get("PriorityType", "unknown")
    if plugin != "priority/multifactor":
        return [f"shares do not count here: PriorityType is {plugin}"]
    if config.get("PriorityWeightFairShare") == "0":
        return ["shares do not count here: PriorityWeightFairShare is 0"]
    if new:
        period = config.get("PriorityCalcPeriod", "unknown")
        return [f"? is not worked out yet: slurmctld does it every {period} (PriorityCalcPeriod)"]
    return []
