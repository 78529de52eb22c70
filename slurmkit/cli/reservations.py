"""`slurmkit reservations`: the list of them, and bars on the days to come."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import msgspec

from slurmkit.capabilities.model import Capabilities, Reservation, Standing
from slurmkit.capabilities.nodes import folded
from slurmkit.capabilities.summary import reserved_gpus
from slurmkit.cli.show import table, terminal_columns
from slurmkit.cluster import Cluster
from slurmkit.durations import format_duration
from slurmkit.facts import clock
from slurmkit.text import printable
from slurmkit.timeline import DAY, Axis

_DAYS = 7.0
_NAMES = 16  # columns
_LEAST = 20
_MARKS = {True: "█", False: "░", None: "▒"}
_SAID = {True: "you", False: "no", None: "?"}
_COLUMNS = tuple("NAME STATE WHEN START END NODES GPUS FOR YOU FLAGS".split())


class _Group(click.Group):
    """Without a subcommand it lists; those that change something are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["create", "delete"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        from slurmkit.cli import reserving  # noqa: PLC0415 - the list needs none of it

        known = {"create": reserving.create_command, "delete": reserving.delete_command}
        return known.get(cmd_name)


@click.group("reservations", cls=_Group, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print reservations as JSON.")
@click.option(
    "--days",
    type=click.FloatRange(0.01, 366),
    help="Draw so many days.  [default: 7 on a terminal, none in a pipe]",
)
@click.pass_context
def reservations_command(ctx: click.Context, *, as_json: bool, days: float | None) -> None:
    """List the reservations of nodes: when, what, who may use them, and whether you may.

    Below they are drawn on the days to come. Operators create and delete them.

    \b
    Examples:
      slurmkit reservations
      slurmkit reservations --days 14
      slurmkit submit --reservation course --time 10 -- hostname
      slurmkit reservations --json | jq '.reservations[] | select(.may_use) | .name'
      slurmkit reservations create course --start 2026-12-24T10:00 --duration 2:00:00 \\
        --nodes c1 --users alice,bob
      slurmkit reservations delete course
    """
    if ctx.invoked_subcommand is not None:
        return
    cluster = Cluster()
    standing, capabilities = cluster.standing(), cluster.capabilities()
    found = sorted(standing.reservations, key=lambda each: each.start)
    if as_json:
        entries = [_entry(each, standing, capabilities) for each in found]
        click.echo(msgspec.json.encode({"taken": standing.taken, "reservations": entries}))
        return
    table(_COLUMNS, [_row(each, standing, capabilities) for each in found], right={"NODES", "GPUS"})
    if days is None and sys.stdout.isatty():
        days = _DAYS
    if found and days is not None:
        click.echo()
        click.echo("\n".join(_drawn(found, standing, days)))
    plural = "" if len(found) == 1 else "s"
    click.echo(
        f"{len(found)} reservation{plural}, from scontrol at {clock(standing.taken)}", err=True
    )


def _drawn(found: list[Reservation], standing: Standing, days: float) -> Iterator[str]:
    """A bar for each, from now on; which of them this person may use is said and drawn."""
    axis = Axis(standing.taken, days * DAY, max(_LEAST, terminal_columns() - _NAMES - 7))
    yield f"{'':{_NAMES + 7}}{axis.days()}"
    for each in found:
        may = _may_use(each, standing)
        bar = axis.bar(each.start, each.end, _MARKS[may])
        name = printable(each.name)[:_NAMES]
        said = _SAID[may] if bar.strip() else f"{_SAID[may]}  (later)"
        yield f"{name:<{_NAMES}}  {said:<3}  {bar}".rstrip()
    yield f"{_MARKS[True]} you may use it   {_MARKS[False]} you may not   > goes on   {days:g} days"


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
