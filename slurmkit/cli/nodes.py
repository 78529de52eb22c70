"""`slurmkit nodes`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from slurmkit.cli.show import table
from slurmkit.cluster import Cluster
from slurmkit.facts import clock
from slurmkit.gpumap.free import free_gpus, in_words
from slurmkit.nodes.cells import counted_gpus, gib, jobs_on, load, why
from slurmkit.nodes.read import NodeRow, read_nodes
from slurmkit.nodes.select import NodeChoice, select

_COLUMNS = tuple("NODE STATE PARTITIONS CPUS MEM LOAD GPUS JOBS REASON".split())
_NUMERIC = {"CPUS", "MEM", "LOAD"}


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose nodes."""
    listed = click.option("--nodelist", "--node", default="", help="Only these, e.g. c[1-3],c7.")
    parts = click.option("--partition", default="", help="Only nodes of these partitions: a,b.")
    return parts(listed(command))


def words(text: str) -> tuple[str, ...]:
    """Split a list of names `a,b`."""
    return tuple(word for word in text.split(",") if word)


@click.command("nodes")
@node_options
@click.option(
    "--state", "--states", default="", help="Only nodes in these states: idle,mix,drain,down …"
)
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON.")
def nodes_command(partition: str, nodelist: str, state: str, *, as_json: bool) -> None:
    """List the nodes: their state and why, and what of them is in use.

    CPUS, MEM and GPUS are in use / there are.

    \b
    Examples:
      slurmkit nodes
      slurmkit nodes --partition gpu --state idle,mix
      slurmkit nodes --state drain,down
      slurmkit nodes --json | jq '.rows[] | select(.reason != "") | [.name, .reason]'
    """
    snapshot = read_nodes(Cluster().slurm)
    choice = NodeChoice(partitions=words(partition), nodelist=nodelist, states=words(state))
    rows = select(snapshot.rows, choice)
    if as_json:
        click.echo(msgspec.json.encode(msgspec.structs.replace(snapshot, rows=rows)))
        return
    table(_COLUMNS, [_row(row) for row in rows], right=_NUMERIC)
    click.echo(f"{_summary(rows)}; from slurmctld at {clock(snapshot.taken)}", err=True)


def _summary(rows: Sequence[NodeRow]) -> str:
    kinds = Counter(row.kind for row in rows)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    plural = "" if len(rows) == 1 else "s"
    gpus = in_words(free_gpus(rows))
    return f"{len(rows)} node{plural}: {counted or 'none'}; GPUs: {gpus}"


def _row(row: NodeRow) -> tuple[str, ...]:
    return (
        row.name,
        row.state.lower(),
        ",".join(row.partitions),
        f"{row.cpus_allocated}/{row.cpus}",
        f"{gib(row.memory_allocated)}/{gib(row.memory)}G",
        load(row),
        " ".join(counted_gpus(row)),
        jobs_on(row),
        why(row),
    )
