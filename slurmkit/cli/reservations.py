"""`slurmkit reservations`."""

from __future__ import annotations

from collections.abc import Iterator

import click
import msgspec

from slurmkit.capabilities.model import Capabilities, Reservation, Standing
from slurmkit.capabilities.nodes import folded
from slurmkit.capabilities.summary import reserved_gpus
from slurmkit.cli.show import table
from slurmkit.cluster import Cluster
from slurmkit.durations import format_duration
from slurmkit.facts import clock

_COLUMNS = tuple("NAME STATE WHEN START END NODES GPUS FOR YOU FLAGS".split())


@click.command("reservations")
@click.option("--json", "as_json", is_flag=True, help="Print reservations as JSON.")
def reservations_command(*, as_json: bool) -> None:
    """List the reservations of nodes: when, what, who may use them, and whether you may.

    \b
    Examples:
      slurmkit reservations
      slurmkit submit --reservation course --time 10 -- hostname
      slurmkit reservations --json | jq '.reservations[] | select(.may_use) | .name'
    """
    cluster = Cluster()
    standing, capabilities = cluster.standing(), cluster.capabilities()
    found = sorted(standing.reservations, key=lambda each: each.start)
    if as_json:
        entries = [_entry(each, standing, capabilities) for each in found]
        click.echo(msgspec.json.encode({"taken": standing.taken, "reservations": entries}))
        return
    table(_COLUMNS, [_row(each, standing, capabilities) for each in found], right={"NODES", "GPUS"})
    plural = "" if len(found) == 1 else "s"
    click.echo(
        f"{len(found)} reservation{plural}, from scontrol at {clock(standing.taken)}", err=True
    )


def _entry(each: Reservation, standing: Standing, capabilities: Capabilities) -> dict[str, object]:
    return msgspec.structs.asdict(each) | {
        "gpus": reserved_gpus(each, capabilities),
        "may_use": _may_use(each, standing),
        "starts_in": max(0, each.start - round(standing.taken)),
    }


def _row(each: Reservation, standing: Standing, capabilities: Capabilities) -> tuple[str, ...]:
    gpus = reserved_gpus(each, capabilities)
    may = _may_use(each, standing)
    return (
        each.name,
        each.state,
        _when(each, standing.taken),
        clock(each.start),
        clock(each.end),
        folded(each.nodes) or "none yet",
        "?" if gpus is None else str(gpus),
        "; ".join(_for_whom(each)) or "everybody",
        "?" if may is None else "yes" if may else "no",
        ",".join(each.flags),
    )


def _when(each: Reservation, now: float) -> str:
    if each.start > now:
        return f"starts in {format_duration(round(each.start - now))}"
    return f"ends in {format_duration(max(0, round(each.end - now)))}"


def _for_whom(each: Reservation) -> Iterator[str]:
    listed = {
        "users": each.users,
        "groups": each.groups,
        "accounts": each.accounts,
        "QOS": each.qos,
        "partitions": each.allowed_partitions or tuple(filter(None, [each.partition])),
    }
    for kind, names in listed.items():
        may = [name for name in names if not name.startswith("-")]
        may_not = [name[1:] for name in names if name.startswith("-")]
        yield from [f"{kind} {','.join(may)}"] if may else []
        yield from [f"not {kind} {','.join(may_not)}"] if may_not else []


def _may_use(each: Reservation, standing: Standing) -> bool | None:
    """Whether a job in any of the user's accounts may; None when that cannot be told."""
    own = [found for found in standing.associations if found.user == standing.user]
    chains = [standing.chain(found) for found in own]
    accounts = [list(dict.fromkeys(above.account for above in chain)) for chain in chains]
    if any(each.admits(standing.user, names, standing.groups) for names in accounts):
        return True
    seen_to_the_top = chains and all(chain[-1].account == "root" for chain in chains)
    return False if seen_to_the_top else None
