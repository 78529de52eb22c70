"""Parsers of sacct's fields (numbers, times, states, TRES), and doubts about GPU counts.

Invalid texts raise ValueError. The number of GPUs in AllocTRES is doubtful where ReqTRES or the
GPUs of the nodes contradict it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import TypeVar

from slurmkit.errors import BadInput, SlurmError
from slurmkit.formats import durations
from slurmkit.formats.scontrol import expand_nodes
from slurmkit.formats.tres import GPU_TRES, gpu_count, gpu_types, parse_tres
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.capabilities import parse_nodes
from slurmkit_accounting.sacct.rows import RunColumns

TextT = TypeVar("TextT", bound=Hashable)
ValueT = TypeVar("ValueT")

_NO_TIME = frozenset(("", "0", "Unknown", "None", "N/A", "INVALID"))
# DBIndex is unsigned since 24.11 and is stored as signed; all other numbers are far smaller.
_HALF = 2**63
# The year 2106. Later times are invalid, so that sums of seconds stay within 64 bits; the next two
# numbers are Slurm's NO_VAL and INFINITE (slurm.h), which slurmdbd has stored as times.
LATEST_TIME = 2**32 - 3
_MOST_MILLISECONDS = LATEST_TIME * 86_400_000
_MOST = 10**8  # nodes, CPUs or GPUs of one job
# Without --noconvert, sacct divides AllocNodes by 1024 where the result is whole or a half.
_IN_K = re.compile(r"([1-9][0-9]{0,8})(\.50)?K", re.ASCII)
_BIGGEST = _HALF - 1
_REMEMBERED = 2**14
_NO_ENERGY = 2**60  # Slurm prints 2^64 - 2 for "no value"
# GRES that usage counts in addition to `gres/gpu`: GPUs by type, and parts of GPUs.
_COUNTED_GRES = (f"{GPU_TRES}:", "gres/shard", "gres/mps")
_ASKED = ("scontrol", "--all", "--oneliner", "show", "node")


class ParseCache(dict[TextT, ValueT]):
    """A cache that parses each distinct text once: most values repeat."""

    def __init__(self, read: Callable[[TextT], ValueT]) -> None:
        super().__init__()
        self._read = read

    def __missing__(self, text: TextT) -> ValueT:
        if len(self) >= _REMEMBERED:
            self.clear()
        value = self[text] = self._read(text)
        return value


def parse_number(text: str, biggest: int = _BIGGEST) -> int:
    """Parse a text of digits alone."""
    if text.isascii() and text.isdigit() and (value := int(text)) <= biggest:
        return value
    raise ValueError(text)


def parse_optional_number(text: str) -> int | None:
    """Parse a number; None if the text is empty."""
    return parse_number(text) if text else None


def parse_count(text: str) -> int:
    """Parse a count of nodes, CPUs or GPUs, `1536` or `1.50K`; 0 if the text is empty."""
    if match := _IN_K.fullmatch(text):
        text = str(int(match[1]) * 1024 + (512 if match[2] else 0))
    return parse_number(text, _MOST) if text else 0


def parse_db_index(text: str) -> int | None:
    """Parse a DBIndex to the signed number that is stored; None for 0 or an empty text."""
    value = parse_number(text, 2 * _HALF - 1) if text else 0
    return (value if value < _HALF else value - 2 * _HALF) or None


def parse_time(text: str) -> int | None:
    """Parse a time printed with SLURM_TIME_FORMAT=%s as epoch seconds; None for no time."""
    return None if text in _NO_TIME else parse_number(text, LATEST_TIME)


def parse_required_time(text: str) -> int:
    """Parse a time that must be present, as epoch seconds."""
    return parse_number(text, LATEST_TIME)


def is_no_time(text: str) -> bool:
    """Return whether a text is one of Slurm's words for an unknown time."""
    return text in _NO_TIME


def parse_base_state(text: str) -> str:
    """Return the base state: `CANCELLED` of `CANCELLED by 10001`."""
    return text.partition(" ")[0]


def parse_cancelled_by(text: str) -> int | None:
    """Parse the uid of `CANCELLED by 10001`; None if there is none."""
    _, _, uid = text.partition(" by ")
    return parse_number(uid) if uid.isdigit() else None


def parse_elapsed_seconds(text: str) -> int:
    """Parse `[D-]HH:MM:SS`, `MM:SS.mmm` or seconds as whole seconds; 0 if the text is empty."""
    return parse_elapsed_milliseconds(text) // 1000 if text else 0


def parse_elapsed_milliseconds(text: str) -> int:
    """Parse the same forms as milliseconds; an empty text is an error."""
    milliseconds = durations.parse_elapsed_milliseconds(text)
    if milliseconds is None or milliseconds > _MOST_MILLISECONDS:
        raise ValueError(text)
    return milliseconds


def parse_limit_seconds(text: str) -> int | None:
    """Return the seconds of a TimelimitRaw; None for `UNLIMITED`, `Partition_Limit` and others."""
    try:
        return durations.parse_time_limit(text)
    except BadInput:
        return None


def parse_joules(text: str) -> int | None:
    """Parse joules; None if not measured, which Slurm prints as 0."""
    value = parse_number(text, 2 * _HALF) if text else 0
    return value if 0 < value < _NO_ENERGY else None


def parse_tres_cpus(tres: str) -> int | None:
    """Return the CPUs of an AllocTRES text; None if it has none."""
    count = parse_tres(tres).get("cpu")
    return None if count is None else parse_number(count, _MOST)


def parse_tres_nodes(tres: str) -> int:
    """Return the nodes of an AllocTRES text; 0 if it has none."""
    return parse_number(parse_tres(tres).get("node", "0"), _MOST)


def parse_tres_gpus(tres: str) -> int:
    """Return the GPUs of an AllocTRES text.

    Usage also counts GPUs by type, shards and MPS, so an invalid count of one of them is an error.
    """
    for name, count in parse_tres(tres).items():
        if name == GPU_TRES or name.startswith(_COUNTED_GRES):
            parse_number(count, _MOST)  # Slurm has printed 2^64 - 2 for "no value"
    return parse_number(str(gpu_count(tres)), _MOST)


def find_gpu_doubt(allocated: str, requested: str) -> str | None:
    """Return why the number of GPUs in AllocTRES cannot be trusted: it differs from ReqTRES.

    Two differences are no reason for doubt. More GPUs together with more CPUs are whole nodes
    (--exclusive). More GPUs on more nodes come from a range of nodes.
    """
    got, asked = parse_tres(allocated), parse_tres(requested)
    total = gpu_count(allocated)
    typed = sum(int(count) for kind, count in got.items() if kind.startswith(f"{GPU_TRES}:"))
    if GPU_TRES in got and typed > total:
        return f"AllocTRES has {typed} GPUs by type and {total} in all"
    wanted = gpu_count(requested)
    nothing = not got.keys() & {"cpu", "node", GPU_TRES}  # the run never had a node
    if nothing or not wanted or wanted == total or _whole_nodes(got, asked):
        return None
    if wanted * _nodes(got) == total * _nodes(asked):
        return None
    return f"AllocTRES has {total} GPUs, ReqTRES {wanted}"


def _whole_nodes(got: dict[str, str], asked: dict[str, str]) -> bool:
    """Return whether more CPUs per node were allocated than requested."""
    cpus_got, cpus_asked = (int(tres.get("cpu", 0)) for tres in (got, asked))
    return 0 < cpus_asked * _nodes(got) < cpus_got * _nodes(asked)


def _nodes(tres: dict[str, str]) -> int:
    return int(tres.get("node", 1))


class NodeGpus:
    """The GPUs of the nodes as they are now, read from Slurm when first needed.

    Args:
        slurm: runs the Slurm commands.
        since: epoch seconds. Runs that ended before are not checked: the nodes may have changed.
    """

    def __init__(self, slurm: SlurmCommands, since: int) -> None:
        self._slurm = slurm
        self._since = since
        self._known: dict[tuple[str, str], str | None] = {}

    def look(self, columns: RunColumns) -> None:
        """Set `find_gpu_doubt` of runs that have more GPUs than their nodes."""
        names = ("doubt", "gpus", "end", "alloc_tres", "node_list")
        rows = zip(*(columns[name] for name in names), strict=True)
        columns["doubt"] = [
            self._why(tres, nodes)
            if gpus and doubt is None and (end is None or end >= self._since)
            else doubt
            for doubt, gpus, end, tres, nodes in rows
        ]

    def _why(self, tres: str, nodes: str) -> str | None:
        both = tres, nodes
        if both not in self._known:
            self._known[both] = self._compared(tres, nodes)
        return self._known[both]

    def _compared(self, tres: str, nodes: str) -> str | None:
        try:
            names = expand_nodes(nodes)
        except ValueError:
            return None
        if not names or any(name not in self._gpus for name in names):
            return None
        return find_excess_gpus(tres, (self._gpus[name] for name in names))

    @cached_property
    def _gpus(self) -> dict[str, Counter[str]]:
        """GPUs by node and by type in lower case; empty if Slurm does not show the nodes."""
        try:
            nodes = parse_nodes(self._slurm.run(_ASKED))
        except (SlurmError, KeyError, ValueError):
            return {}
        by_node: dict[str, Counter[str]] = {}
        for node in nodes:
            gpus = by_node[node.name] = Counter()
            for gres in node.gres:
                if gres.name == "gpu":
                    gpus[(gres.type or "").lower()] += gres.count
        return by_node


def find_excess_gpus(tres: str, nodes: Iterable[Counter[str]]) -> str | None:
    """Return why an AllocTRES text exceeds the GPUs of its nodes (by type); None if it does not."""
    there = sum(nodes, Counter[str]())
    held = gpu_count(tres)
    if held > there.total():
        return f"AllocTRES has {held} GPUs, its nodes {there.total()}"
    for kind, count in gpu_types(tres).items():
        if kind and count > there[kind.lower()]:
            return f"AllocTRES has {count} {kind}, its nodes {there[kind.lower()]}"
    return None
