"""`slurmkit nodes` and `slurmkit gpus`: the nodes, and who is on which GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, groupby
from typing import Any

import click
import msgspec

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, format_table, in_colour, print_table
from slurmkit.cli.watch import show_repeatedly, watch_option
from slurmkit.cluster.cluster import Cluster
from slurmkit.formats.display import format_quantity, format_time, printable
from slurmkit.formats.memory import format_gib
from slurmkit.state.gpumap import (
    CLOSED,
    GroupGpusBy,
    choose_letters,
    count_by_holder,
    format_gpu_types,
    gpu_mark,
    mark_meanings,
    node_note,
    read_gpus,
)
from slurmkit.state.gpumap_model import (
    FreeGpus,
    Gpu,
    GpuMap,
    GpuSharing,
    describe_free_gpus,
    free_gpus,
)
from slurmkit.state.nodes import (
    NodeChoice,
    NodeRow,
    format_gpu_use,
    format_jobs,
    format_load,
    format_reason,
    read_nodes,
    select_nodes,
)

_LIST = tuple("NODE GPU TYPE STATE USER ACCOUNT JOBID SINCE PARTS".split())
_LIST_FIT = Fit(
    whole=("NODE", "GPU", "STATE", "USER", "JOBID", "SINCE"),
    wrapped=("PARTS",),
    least=("ACCOUNT", "SINCE"),
)
_FREE = ("TYPE", "FREE", "TOTAL", "LARGEST BLOCK", "ON", "UNUSABLE")
_COLOURS = tuple(
    "cyan magenta yellow blue green bright_red bright_cyan bright_magenta bright_yellow"
    " bright_blue bright_green".split()
)
_FREE_SCHEMA = "slurmkit.gpus.free/1"
_LEGEND_PER_LINE = 4  # entries of the legend in one line
_COLUMNS = tuple("NODE STATE PARTITIONS CPUS MEM LOAD GPUS JOBS REASON".split())
_NUMERIC = {"CPUS", "MEM", "LOAD"}
_FIT = Fit(
    whole=("NODE", "STATE"),
    wrapped=("GPUS", "REASON"),
    least=("LOAD", "PARTITIONS", "JOBS", "MEM", "CPUS"),
)


def node_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options that choose nodes."""
    listed = click.option(
        "--nodelist", "--node", default="", help="Only these nodes, e.g. c[1-3],c7."
    )
    parts = click.option("--partition", default="", help="Only nodes of these partitions: a,b.")
    return parts(listed(command))


@click.command("gpus")
@node_options
@click.option("--by", type=click.Choice(["user", "account", "job"]), default="user",
              show_default=True, help="Whom a letter stands for.")  # fmt: skip
@click.option(
    "--list", "as_list", is_flag=True, help="List one GPU per line, with its job and since when."
)
@click.option("--free", "only_free", is_flag=True, help="Show the free and usable GPUs, by type.")
@json_option("slurmkit.gpus/1", _FREE_SCHEMA, text="Print one row per GPU as JSON.")
@watch_option
def gpus_command(
    partition: str,
    nodelist: str,
    *,
    seconds: float | None,
    as_json: JsonOutput | None,
    **shown: Any,
) -> None:
    """Show who uses which GPU: one line per node, one cell per GPU, in the order of the indexes.

    The first two examples answer "Can I run on GPU 2 of node c3, and who uses it?". A letter is a
    user (named below the map), "." a free GPU, "x" a GPU of a drained or down node.

    \b
    Examples:
      slurmkit gpus
      slurmkit gpus --watch
      slurmkit gpus --node c3 --list
      slurmkit gpus --free
      slurmkit gpus --partition gpu --by account
      slurmkit gpus --json | jq '.rows[] | select(.node == "c3" and .index == 2)'
    """
    if shown["as_list"] and shown["only_free"]:
        raise click.UsageError("give either --list or --free, not both")
    slurm = Cluster().slurm
    choice = NodeChoice(partitions=split_names(partition), nodelist=nodelist)

    def look() -> tuple[Sequence[str], list[str]]:
        full = read_gpus(slurm)
        rows = select_nodes(full.nodes, choice)
        names = {row.name for row in rows}
        gpus = [gpu for gpu in full.gpus if gpu.node in names]
        notes = _notes(full, gpus, rows)
        if as_json:
            return [_gpus_json(full, gpus, rows, as_json, only_free=shown["only_free"])], notes
        return list(_gpu_lines(gpus, rows, **shown)), notes

    def look_again() -> tuple[Sequence[str], str]:
        lines, notes = look()
        return lines, "; ".join(notes)

    if seconds is not None:
        show_repeatedly(look_again, seconds, in_place=not as_json)
        return
    lines, notes = look()
    for line in lines:
        click.echo(line)
    for note in notes:
        click.echo(note, err=True)


def _gpu_lines(
    gpus: Sequence[Gpu],
    rows: Sequence[NodeRow],
    *,
    by: GroupGpusBy,
    as_list: bool,
    only_free: bool,
) -> Iterable[str]:
    """Return the lines to show: a table of GPUs or of free ones, or the map."""
    if only_free:
        return _free_lines(free_gpus(rows))
    if as_list:
        return format_table(_LIST, map(_gpu_row, gpus), fit=_LIST_FIT)
    return format_gpu_map(gpus, rows, by)


def _gpus_json(
    full: GpuMap,
    gpus: Sequence[Gpu],
    rows: Sequence[NodeRow],
    as_json: JsonOutput,
    *,
    only_free: bool,
) -> str:
    further = {"warnings": full.warnings, "seconds": full.seconds}
    if only_free:
        as_json = as_json.of(_FREE_SCHEMA)
        return as_json.encode(free_gpus(rows), taken=full.taken, further=further)
    return as_json.encode(gpus, taken=full.taken, further=further)


def _notes(full: GpuMap, gpus: Sequence[Gpu], rows: Sequence[NodeRow]) -> list[str]:
    """Return warnings, and a summary with the age of the data."""
    free = describe_free_gpus(free_gpus(rows))
    source = (
        f"{format_quantity(len(gpus), 'GPU')}: {free}; from slurmctld at {format_time(full.taken)}"
    )
    return [*(f"warning: {printable(warning)}" for warning in full.warnings), source]


def _free_lines(free: Iterable[FreeGpus]) -> Iterable[str]:
    rows = [
        (of.type or "untyped", str(of.free), str(of.total), str(of.largest), of.node or "-",
         str(of.stranded) if of.stranded else "-")
        for of in free
    ]  # fmt: skip
    return format_table(_FREE, rows, right={"FREE", "TOTAL", "LARGEST BLOCK", "UNUSABLE"})


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    """Return the row of a GPU for --list."""
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
        format_time(gpu.since) if gpu.since else nobody,
        " ".join([*_sharing_words("shard", gpu.shard), *_sharing_words("mps", gpu.mps)]),
    )


def _sharing_words(name: str, sharing: GpuSharing | None) -> list[str]:
    """Describe how many parts of a shared GPU are used, and by whom."""
    if sharing is None:
        return []
    used, total = ("?" if n is None else str(n) for n in (sharing.used, sharing.total))
    by = (f"{s.user} {s.job_id}:{'?' if s.amount is None else s.amount}" for s in sharing.by)
    who = ", ".join(by)
    return [f"{name} {used}/{total}" + (f" ({who})" if who else "")]


class _NodeLine(msgspec.Struct, frozen=True):
    """The line of a node: its name and GPU types, the cells of its GPUs, and a note after them."""

    name: str
    types: str
    cells: tuple[str, ...]
    note: str


def format_gpu_map(gpus: Sequence[Gpu], rows: Sequence[NodeRow], by: GroupGpusBy) -> Iterator[str]:
    """Yield a line for each node that has GPUs, then the meaning of letters and marks."""
    counted = count_by_holder(gpus, by)
    letter = choose_letters(tuple(counted))
    by_node = groupby(gpus, key=lambda gpu: gpu.node)
    cells = {node: tuple(gpu_mark(gpu, by, letter) for gpu in own) for node, own in by_node}
    lines = [_node_line(row, cells[row.name]) for row in rows if row.name in cells]
    if not lines:
        return
    colours = dict(zip(letter.values(), cycle(_COLOURS), strict=False)) | {CLOSED: "red"}
    yield from _map_lines(lines, colours)
    yield from _legend(letter, counted, {mark for line in lines for mark in line.cells}, colours)


def _node_line(row: NodeRow, cells: tuple[str, ...]) -> _NodeLine:
    name, note = printable(row.name), printable(node_note(row, cells))
    return _NodeLine(name, printable(format_gpu_types(row)), cells, note)


def _map_lines(lines: Sequence[_NodeLine], colours: dict[str, str]) -> Iterator[str]:
    """Yield a header with the GPU indexes, then the lines, in aligned columns."""
    most = max(len(line.cells) for line in lines)
    size = max(len(mark) for line in lines for mark in (*line.cells, str(most - 1)))
    name = max(len(line.name) for line in [*lines, _NodeLine("NODE", "", (), "")])
    types = max(len(line.types) for line in [*lines, _NodeLine("", "TYPE", (), "")])
    indices = " ".join(str(at).rjust(size) for at in range(most))
    yield f"{'NODE'.ljust(name)}  {'TYPE'.ljust(types)}  {indices}"
    for line in lines:
        drawn = " ".join(_colour_mark(mark, size, colours) for mark in line.cells)
        gap = " " * ((size + 1) * (most - len(line.cells)))
        note = f"{gap}  {line.note}" if line.note else ""
        yield f"{line.name.ljust(name)}  {line.types.ljust(types)}  {drawn}{note}".rstrip()


def _legend(
    letter: dict[str, str], counted: Counter[str], marks: set[str], colours: dict[str, str]
) -> Iterator[str]:
    """Yield what each letter and mark means, and how many GPUs each holder has."""
    entries = [
        f"{_colour_mark(sign, len(sign), colours)} {printable(name)}: {counted[name]}"
        for name, sign in letter.items()
    ]
    yield ""
    for at in range(0, len(entries), _LEGEND_PER_LINE):
        yield "   ".join(entries[at : at + _LEGEND_PER_LINE])
    yield "   ".join(f"{mark} {meaning}" for mark, meaning in mark_meanings(marks))


def _colour_mark(mark: str, size: int, colours: dict[str, str]) -> str:
    """Colour a mark; click removes the colour if the output is no terminal."""
    return in_colour(mark.rjust(size), colours.get(mark))


def split_names(text: str) -> tuple[str, ...]:
    """Split a list of names, `a,b` or `a, b`."""
    return tuple(filter(None, map(str.strip, text.split(","))))


@click.command("nodes")
@node_options
@click.option(
    "--state", "--states", default="", help="Only nodes in these states: idle,mix,drain,down …"
)
@json_option("slurmkit.nodes/1", text="Print rows as JSON.")
def nodes_command(partition: str, nodelist: str, state: str, *, as_json: JsonOutput | None) -> None:
    """List the nodes with their state, the reason for it, and what is in use on them.

    CPUS, MEM and GPUS show in use/total.

    \b
    Examples:
      slurmkit nodes
      slurmkit nodes --partition gpu --state idle,mix
      slurmkit nodes --state drain,down
      slurmkit nodes --json | jq '.rows[] | select(.reason != "") | [.name, .reason]'
    """
    snapshot = read_nodes(Cluster().slurm)
    choice = NodeChoice(
        partitions=split_names(partition), nodelist=nodelist, states=split_names(state)
    )
    rows = select_nodes(snapshot.rows, choice)
    if as_json:
        further = {"seconds": snapshot.seconds}
        as_json.print(rows, taken=snapshot.taken, further=further)
        return
    print_table(_COLUMNS, [_node_row(row) for row in rows], right=_NUMERIC, fit=_FIT)
    click.echo(f"{_count_nodes(rows)}; from slurmctld at {format_time(snapshot.taken)}", err=True)


def _count_nodes(rows: Sequence[NodeRow]) -> str:
    """Count the nodes by state, and the free GPUs."""
    kinds = Counter(row.kind for row in rows)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    plural = "" if len(rows) == 1 else "s"
    gpus = describe_free_gpus(free_gpus(rows))
    return f"{len(rows)} node{plural}: {counted or 'none'}; GPUs: {gpus}"


def _node_row(row: NodeRow) -> tuple[str, ...]:
    return (
        row.name,
        row.state.lower(),
        ",".join(row.partitions),
        f"{row.cpus_allocated}/{row.cpus}",
        f"{format_gib(row.memory_allocated)}/{format_gib(row.memory)}G",
        format_load(row),
        " ".join(format_gpu_use(row)),
        format_jobs(row),
        format_reason(row),
    )
