"""`slurmkit gpus`: who is on which GPU of which node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
import msgspec

from slurmkit.cli.gpugrid import draw
from slurmkit.cli.nodes import node_options, words
from slurmkit.cli.show import table
from slurmkit.cluster import Cluster
from slurmkit.facts import clock
from slurmkit.gpumap.drawing import By
from slurmkit.gpumap.free import FreeGpus, free_gpus, in_words
from slurmkit.gpumap.model import Gpu, GpuMap, Sharing
from slurmkit.gpumap.read import read_gpus
from slurmkit.nodes.read import NodeRow
from slurmkit.nodes.select import NodeChoice, select
from slurmkit.text import printable

_LIST = tuple("NODE GPU TYPE STATE USER ACCOUNT JOBID SINCE PARTS".split())
_FREE = ("TYPE", "FREE", "TOTAL", "LARGEST BLOCK", "ON", "UNUSABLE")


@click.command("gpus")
@node_options
@click.option("--by", type=click.Choice(["user", "account", "job"]), default="user",
              show_default=True, help="Whose letters to draw.")  # fmt: skip
@click.option("--list", "as_list", is_flag=True, help="One GPU a line, with job and start.")
@click.option("--free", "only_free", is_flag=True, help="What is free and usable, by type.")
@click.option("--json", "as_json", is_flag=True, help="Print one entry per GPU as JSON.")
def gpus_command(
    partition: str, nodelist: str, by: By, *, as_list: bool, only_free: bool, as_json: bool
) -> None:
    """Show who is on which GPU: a line for each node, a cell for each GPU, by index.

    "Can I run on GPU 2 of node c3, and who is on it?" is answered by the first two examples: a
    letter is a person (named below the map), "." a free GPU, "x" one of a drained or down node.

    \b
    Examples:
      slurmkit gpus
      slurmkit gpus --node c3 --list
      slurmkit gpus --free
      slurmkit gpus --partition gpu --by account
      slurmkit gpus --json | jq '.[] | select(.node == "c3" and .index == 2)'
    """
    if sum((as_list, only_free)) > 1:
        raise click.UsageError("give either --list or --free, not both")
    full = read_gpus(Cluster().slurm)
    rows = select(full.nodes, NodeChoice(partitions=words(partition), nodelist=nodelist))
    names = {row.name for row in rows}
    gpus = [gpu for gpu in full.gpus if gpu.node in names]
    if as_json:
        click.echo(msgspec.json.encode(free_gpus(rows) if only_free else gpus))
    elif only_free:
        _show_free(free_gpus(rows))
    elif as_list:
        table(_LIST, map(_listed, gpus))
    else:
        draw(gpus, rows, by)
    _say_source(full, gpus, rows)


def _say_source(full: GpuMap, gpus: Sequence[Gpu], rows: Sequence[NodeRow]) -> None:
    for warning in full.warnings:
        click.echo(f"warning: {printable(warning)}", err=True)
    free = in_words(free_gpus(rows))
    click.echo(f"{len(gpus)} GPUs: {free}; from slurmctld at {clock(full.taken)}", err=True)


def _show_free(free: Iterable[FreeGpus]) -> None:
    rows = [
        (of.type or "untyped", str(of.free), str(of.total), str(of.largest), of.node or "-",
         str(of.stranded) if of.stranded else "-")
        for of in free
    ]  # fmt: skip
    table(_FREE, rows, right={"FREE", "TOTAL", "LARGEST BLOCK", "UNUSABLE"})


def _listed(gpu: Gpu) -> tuple[str, ...]:
    several = "several" if len(gpu.sharers) > 1 else "?"
    nobody = several if gpu.state in ("held", "shared", "unknown") else "-"
    return (
        gpu.node,
        "?" if gpu.index is None else str(gpu.index),
        gpu.type or "?",
        gpu.state,
        gpu.user or nobody,
        gpu.account or nobody,
        gpu.job_id or nobody,
        clock(gpu.since) if gpu.since else nobody,
        " ".join([*_parts("shard", gpu.shard), *_parts("mps", gpu.mps)]),
    )


def _parts(name: str, sharing: Sharing | None) -> list[str]:
    if sharing is None:
        return []
    used, total = ("?" if n is None else str(n) for n in (sharing.used, sharing.total))
    by = (f"{s.user} {s.job_id}:{'?' if s.amount is None else s.amount}" for s in sharing.by)
    who = ", ".join(by)
    return [f"{name} {used}/{total}" + (f" ({who})" if who else "")]
