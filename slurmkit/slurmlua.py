"""What job_submit.lua needs to know of a cluster: its limits, and our words, as a Lua table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from slurmkit.capabilities.model import Capabilities, Node
from slurmkit.planning.pool import from_several, most_for_a_job
from slurmkit.refusals import WORDS, per_job_code


def site_lua(capabilities: Capabilities) -> str:
    """Write the file that job_submit.lua reads; the same cluster gives the same limits.

    Of each partition: the most GPUs of all types and of each type on one node, and the most
    shards and MPS units that a job can get on one node.
    """
    release = ".".join(map(str, capabilities.release))
    taken = datetime.fromtimestamp(capabilities.taken, UTC).strftime("%Y-%m-%d %H:%M UTC")
    tables = {
        partition.name: _limits(capabilities, capabilities.nodes_of(partition.name))
        for partition in capabilities.partitions
    }
    return "\n".join(
        [
            "-- What job_submit.lua refuses with, and the limits of each partition's nodes.",
            f"-- Made by `slurmkit config slurm-lua`, Slurm {release}, {taken};",
            "-- to be made anew when nodes change.",
            "return {",
            *_table("words", _words(several=from_several(capabilities.config))),
            "    partitions = {",
            *(line for name, table in tables.items() for line in _partition(name, table)),
            "    },",
            "}",
            "",
        ]
    )


def _limits(capabilities: Capabilities, nodes: tuple[Node, ...]) -> dict[str, dict[str, int]]:
    types = dict.fromkeys(g.type for n in nodes for g in n.gres if g.name == "gpu" and g.type)
    several = from_several(capabilities.config)
    return {
        "most": {
            "gpu": _most(node.count("gpu") for node in nodes),
            "shard": _most(most_for_a_job(node, "shard", several=several) for node in nodes),
            "mps": _most(most_for_a_job(node, "mps", several=several) for node in nodes),
        },
        "types": {name: _most(node.count("gpu", name) for node in nodes) for name in types},
    }


def _words(*, several: bool) -> dict[str, str]:
    """Our words, those of shards and MPS as they are true here."""
    parts = ("shard", "mps")
    true = {
        per_job_code(name, several=False): WORDS[per_job_code(name, several=several)]
        for name in parts
    }
    return {**WORDS, **true}


def _most(counts: Iterable[int]) -> int:
    return max(counts, default=0)


def _partition(name: str, tables: Mapping[str, Mapping[str, object]]) -> list[str]:
    inner = [line for key, table in tables.items() for line in _table(key, table)]
    return [f"        [{_quoted(name)}] = {{", *(f"        {line}" for line in inner), "        },"]


def _table(name: str, table: Mapping[str, object]) -> list[str]:
    lines = (f"        [{_quoted(key)}] = {_value(value)}," for key, value in table.items())
    return [f"    {name} = {{", *lines, "    },"]


def _value(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """A Lua string; every sign but the plainest as its bytes, so that nothing ends it early."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03}" for b in text.encode())
    return '"' + "".join(plain) + '"'
