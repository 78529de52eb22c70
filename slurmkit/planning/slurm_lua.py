"""The Lua table for job_submit.lua: a cluster's limits per node, and our refusal messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from slurmkit.planning.gpu_request import most_units_per_job, shares_across_gpus
from slurmkit.planning.refusals import REFUSAL_TEXTS, too_many_parts_code
from slurmkit.state.model import Capabilities, Node


def site_lua(capabilities: Capabilities) -> str:
    """Write the file that job_submit.lua reads; the same cluster gives the same limits.

    Each partition has the most GPUs of all types and of each type on one node, and the most
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
            "-- make it again when nodes change.",
            "return {",
            *_table_lines("words", _messages(several=shares_across_gpus(capabilities.config))),
            "    partitions = {",
            *(line for name, table in tables.items() for line in _partition_lines(name, table)),
            "    },",
            "}",
            "",
        ]
    )


def _limits(capabilities: Capabilities, nodes: tuple[Node, ...]) -> dict[str, dict[str, int]]:
    types = dict.fromkeys(g.type for n in nodes for g in n.gres if g.name == "gpu" and g.type)
    several = shares_across_gpus(capabilities.config)
    return {
        "most": {
            "gpu": _largest(node.count("gpu") for node in nodes),
            "shard": _largest(most_units_per_job(node, "shard", several=several) for node in nodes),
            "mps": _largest(most_units_per_job(node, "mps", several=several) for node in nodes),
        },
        "types": {name: _largest(node.count("gpu", name) for node in nodes) for name in types},
    }


def _messages(*, several: bool) -> dict[str, str]:
    """Return our messages; for shards and MPS those that are true on this cluster."""
    for_this_cluster = {
        too_many_parts_code(name, several=False): REFUSAL_TEXTS[
            too_many_parts_code(name, several=several)
        ]
        for name in ("shard", "mps")
    }
    return {**REFUSAL_TEXTS, **for_this_cluster}


def _largest(counts: Iterable[int]) -> int:
    return max(counts, default=0)


def _partition_lines(name: str, tables: Mapping[str, Mapping[str, object]]) -> list[str]:
    inner = [line for key, table in tables.items() for line in _table_lines(key, table)]
    return [
        f"        [{_lua_string(name)}] = {{",
        *(f"        {line}" for line in inner),
        "        },",
    ]


def _table_lines(name: str, table: Mapping[str, object]) -> list[str]:
    lines = (f"        [{_lua_string(key)}] = {_lua_value(value)}," for key, value in table.items())
    return [f"    {name} = {{", *lines, "    },"]


def _lua_value(value: object) -> str:
    return _lua_string(value) if isinstance(value, str) else str(value)


def _lua_string(text: str) -> str:
    """Write a Lua string; special characters are escaped as bytes, so that none ends it early."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03}" for b in text.encode())
    return '"' + "".join(plain) + '"'
