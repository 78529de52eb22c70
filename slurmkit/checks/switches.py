"""The cluster's own switches or blocks, looked up only for a job that asks how it lies on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from slurmkit.capabilities.nodes import folded, node_names
from slurmkit.capabilities.text import records
from slurmkit.checks.say import note, warning
from slurmkit.durations import format_duration, parse_time_limit
from slurmkit.errors import BadInput, SlurmError
from slurmkit.findings import Finding
from slurmkit.request import Request
from slurmkit.slurm import Slurm

TOO_FEW = "switches-too-few"
"""Code of the finding that a job does not fit on so few switches."""

SHOW = ("scontrol", "show", "topology")
"""Command that is asked."""
_SOURCE = " ".join(SHOW)
_WAIT = 300  # seconds; slurm.conf(5), SchedulerParameters=max_switch_wait


def check_topology(slurm: Slurm, requests: Sequence[Request]) -> tuple[Finding, ...]:
    """Say on which switches or blocks a job with `--switches` or `--segment` may lie.

    Args:
        slurm: the border.
        requests: the job in each partition it may run in.
    """
    if not requests:
        return ()
    spec, plugin = requests[0].spec, requests[0].capabilities.config.get("TopologyPlugin", "")
    asks_tree = spec.switches is not None and "tree" in plugin
    if not asks_tree and (spec.segment is None or "block" not in plugin):
        return ()
    fitting = {node.name for request in requests for node in request.fitting}
    try:
        places = _places(slurm.run(SHOW), fitting, tree=asks_tree)
    except SlurmError:  # what it would say is not needed to send the job
        return ()
    return tuple(_said(requests[0], plugin, places)) if places else ()


def _places(text: str, fitting: set[str], *, tree: bool) -> dict[str, list[str]]:
    """Leaf switches, or blocks, and the nodes of each that the job may get."""
    key = "SwitchName" if tree else "BlockName"
    found = {
        record[key]: [name for name in node_names(record.get("Nodes")) if name in fitting]
        for record in records(text, key)
        if not tree or record.get("Level") == "0"
    }
    return {name: nodes for name, nodes in found.items() if nodes}


def _said(request: Request, plugin: str, places: Mapping[str, list[str]]) -> Iterator[Finding]:
    what = "leaf switches" if "tree" in plugin else "blocks"
    words = ", ".join(f"{name} ({folded(nodes)})" for name, nodes in places.items())
    yield note("topology", f"{plugin}: the job's nodes are on {what} {words}", _SOURCE)
    if "tree" in plugin and request.spec.switches is not None:
        yield from _too_few(request, request.spec.switches, places)


def _too_few(request: Request, asked: str, places: Mapping[str, list[str]]) -> Iterator[Finding]:
    count, _, given = asked.partition("@")
    sizes = sorted((len(nodes) for nodes in places.values()), reverse=True)
    needed = next((n for n in range(1, len(sizes) + 1) if sum(sizes[:n]) >= request.nodes), None)
    if needed is None or needed <= int(count):
        return
    wait = format_duration(_waits(request, given))
    message = (
        f"{request.nodes} nodes do not fit on {count} of the leaf switches: it would wait {wait}"
        " for that in vain, and then get more of them"
    )
    yield warning(TOO_FEW, message, _SOURCE, (("switches", str(needed)),))


def _waits(request: Request, given: str) -> int:
    """Seconds that Slurm waits for so few switches: what is asked for, no longer than it allows."""
    parameters = request.capabilities.config.get("SchedulerParameters", "")
    found = re.search(r"\bmax_switch_wait=(\d+)", parameters)
    longest = int(found[1]) if found else _WAIT
    with suppress(BadInput):  # of no time at all
        return min(longest, parse_time_limit(given)) if given else longest
    return 0
