"""Node shapes: GPUs, CPUs, memory and disk together on one node, and enough such nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurmkit.capabilities.model import Node, Tres
from slurmkit.checks.places import candidates, left
from slurmkit.checks.say import Pairs, amount, error, memory, note, warning
from slurmkit.findings import Finding
from slurmkit.planning.requests import mebibytes, takes_whole_nodes
from slurmkit.request import Request
from slurmkit.text import printable
from slurmkit.valueforms import FORMS

_SHOWN = 4  # nodes named with their reasons


def shapes(request: Request) -> Iterator[Finding]:
    """No node has all of it at once, too few have, or those that have are down."""
    there, needs = candidates(request), _needs(request)
    if not there:
        yield from _wrong_kind(request, needs)
        return
    having = _holding(there, needs)
    if not having:
        yield _no_node(request, needs, there)
    elif len(having) < request.nodes:
        yield _too_few(request, needs, having)
    else:
        yield from _unusable(request, having)


def _holding(nodes: Sequence[Node], needs: Tres) -> list[Node]:
    """Nodes that have all of these amounts; of many, most have the same shape."""
    kinds = {_shape(node): node for node in nodes}
    known = {shape: holds(node, needs) for shape, node in kinds.items()}
    return [node for node in nodes if known[_shape(node)]]


def _shape(node: Node) -> tuple[object, ...]:
    return node.cpus, node.memory, node.tmp_disk, node.gres


def holds(node: Node, needs: Tres) -> bool:
    """Whether a node has all of these amounts."""
    return all(has(node, tres) >= count for tres, count in needs.items())


def has(node: Node, tres: str) -> int:
    """What a node has of one TRES; of one that is not looked at per node, enough."""
    if tres == "cpu":
        return node.cpus
    if tres == "mem":
        return node.memory
    if tres == "tmp":
        return node.tmp_disk
    if tres.startswith("gres/"):
        name, _, kind = tres.removeprefix("gres/").partition(":")
        return node.count(name, kind or None)
    return 1 << 62


def _needs(request: Request) -> Tres:
    tmp = request.spec.options.get("tmp", "")
    disk = {"tmp": mebibytes(tmp)} if FORMS["mem"].fits(tmp) else {}
    tasks_may_share = "overcommit" in request.spec.options
    cpus = {"cpu": 1} if tasks_may_share else {}
    return {**request.per_node, **_memory_of_whole(request), **cpus, **disk}


def _memory_of_whole(request: Request) -> Tres:
    """Slurm counts memory per CPU, or per GPU, for all of those of an exclusive job's nodes."""
    if "mem" in request.total and takes_whole_nodes(request.spec, request.partition):
        return {"mem": request.total["mem"] // request.nodes}
    return {}


def _no_node(request: Request, needs: Tres, there: Sequence[Node]) -> Finding:
    kinds = {_shape(node): node for node in there}.values()
    most = {tres: max(has(node, tres) for node in kinds) for tres in needs}
    over = {tres: count for tres, count in needs.items() if count > most[tres]}
    name = request.partition.name
    if over:
        tres, count = next(iter(over.items()))
        has_most = f"no node of partition {name} has more than {_amount(tres, most[tres])}"
        message = f"asks for {_amount(tres, count)} on a node; {has_most}"
    else:
        asks = ", ".join(_amount(tres, count) for tres, count in sorted(_broad(needs).items()))
        message = f"no node of partition {name} has all of this at once: {asks}"
    source = f"nodes of partition {name}"
    refused = f"{message}; sbatch would refuse it"
    return error("node-shape", refused, source)


def _wrong_kind(request: Request, needs: Tres) -> Iterator[Finding]:
    """The nodes chosen by name or feature have no such GPUs; that there are none others say."""
    spec = request.spec
    chosen = [("nodelist", spec.nodelist), ("constraint", spec.constraint)]
    given = [(name, text) for name, text in chosen if text]
    if not given or not left(request):
        return
    asks = ", ".join(_amount(t, n) for t, n in _broad(needs).items() if t.startswith("gres/"))
    options = " and ".join(f"--{name}={text}" for name, text in given)
    message = f"no node that {options} leaves has {asks}; sbatch would refuse it"
    fix = tuple((name, "") for name, _ in given)
    yield error("node-shape", message, f"nodes of partition {request.partition.name}", fix)


def _too_few(request: Request, needs: Tres, having: Sequence[Node]) -> Finding:
    asks = ", ".join(_amount(tres, count) for tres, count in sorted(_broad(needs).items()))
    name, there = request.partition.name, len(having)
    message = (
        f"asks for {request.nodes} nodes with {asks} each; partition {name} has {there};"
        " it can never start"
    )
    fix = _fewer_nodes(request, having)
    return error("node-count", message, f"nodes of partition {name}", fix)


def _fewer_nodes(request: Request, having: Sequence[Node]) -> Pairs:
    """The same number of GPUs on fewer nodes, where they fit."""
    gpus = request.spec.gpus
    if gpus is None or gpus.is_part or gpus.per != "node" or request.spec.ntasks:
        return ()
    typed = next((tres for tres in request.per_node if tres.startswith("gres/gpu:")), "gres/gpu")
    total = request.nodes * request.per_node.get("gres/gpu", 0)
    for nodes in range(len(having), 0, -1):
        on_each, rest = divmod(total, nodes)
        needs = {**request.per_node, "gres/gpu": on_each, typed: on_each}
        if not rest and sum(holds(node, needs) for node in having) >= nodes:
            kind = gpus.mig or gpus.type
            count = f"{kind}:{on_each}" if kind else str(on_each)
            return (("nodes", str(nodes)), ("gpus-per-node", count))
    return ()


def _unusable(request: Request, having: Sequence[Node]) -> Iterator[Finding]:
    usable = [node for node in having if node.usable]
    if len(usable) >= request.nodes:
        return
    out = [node for node in having if not node.usable]
    reasons = "; ".join(_state(node) for node in out[:_SHOWN])
    more = f" and {len(out) - _SHOWN} more" if len(out) > _SHOWN else ""
    message = (
        f"only {len(usable)} of the {len(having)} nodes that fit can be used now, and"
        f" {request.nodes} are needed: it waits for {reasons}{more}"
    )
    yield warning("nodes-down", message, f"nodes of partition {request.partition.name}")


def _state(node: Node) -> str:
    reason = f" ({printable(node.reason)})" if node.reason else ""
    return f"{node.name} {'+'.join(node.states)}{reason}"


def all_memory(request: Request) -> Iterator[Finding]:
    """`--mem=0` means all memory of each node; so does none where the site has no default."""
    yield from _no_memory_given(request)
    if request.spec.mem is not None and mebibytes(request.spec.mem) == 0:
        least = min((node.memory for node in request.fitting), default=None)
        at_least = f", at least {memory(least)}" if least else ""
        message = (
            f"--mem=0 takes all memory of each of its nodes{at_least}: no other job fits there"
        )
        yield note("mem-all", message, "sbatch(1) --mem")


def _no_memory_given(request: Request) -> Iterator[Finding]:
    spec, select = request.spec, request.capabilities.config.get("SelectTypeParameters", "")
    given = any((spec.mem, spec.mem_per_cpu, spec.mem_per_gpu))
    if given or "mem" in request.per_node or "MEMORY" not in select.upper():
        return
    message = (
        "no --mem given, and this cluster has no default: it takes all memory of each of its nodes,"
        " so no other job fits there"
    )
    yield warning("mem-all", message, "slurm.conf: DefMemPerNode and DefMemPerCPU are not set")


def _broad(needs: Tres) -> Tres:
    """Without the total of GPUs where their type is named, too."""
    typed = any(tres.startswith("gres/gpu:") for tres in needs)
    return {tres: count for tres, count in needs.items() if not (typed and tres == "gres/gpu")}


def _amount(tres: str, count: int) -> str:
    return f"{memory(count)} of local disk" if tres == "tmp" else amount(tres, count)
