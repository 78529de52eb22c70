"""Where a job may run: features, nodes named or left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmkit.capabilities.model import Node
from slurmkit.capabilities.nodes import folded, node_names
from slurmkit.checks.say import Pairs, error, warning
from slurmkit.config import nearest
from slurmkit.findings import Finding
from slurmkit.planning.constraint import feature_names, satisfies, too_few
from slurmkit.request import Request

_CHOOSES_SINCE = (23, 2)


def candidates(request: Request) -> tuple[Node, ...]:
    """Nodes of the partition in any state that the spec's choices and kind of GPU leave."""
    fitting = {node.name for node in request.fitting}
    return tuple(n for n in left(request) if n.name in fitting or _is_kind(n, request))


def left(request: Request) -> tuple[Node, ...]:
    """Nodes of the partition in any state that `constraint`, `nodelist` and `exclude` leave."""
    spec = request.spec
    here = request.capabilities.nodes_of(request.partition.name)
    excluded, named = _expand(spec.exclude), _expand(spec.nodelist)
    enough = len(named & {node.name for node in here}) >= request.nodes
    return tuple(
        node
        for node in here
        if node.name not in excluded
        and (not enough or node.name in named)
        and satisfies(spec.constraint, node.features)
    )


def _is_kind(node: Node, request: Request) -> bool:
    asked = [tres for tres in request.per_node if tres.startswith("gres/")]
    typed = [tres for tres in asked if ":" in tres] or asked
    if "gres/gpu" in typed and all(g.is_mig for g in node.gres if g.name == "gpu"):
        return False
    return all(node.count(*_name(tres)) for tres in typed)


def _name(tres: str) -> tuple[str, str | None]:
    name, _, kind = tres.removeprefix("gres/").partition(":")
    return name, kind or None


def features(request: Request) -> Iterator[Finding]:
    """A feature that no node has, or a combination that too few nodes of the partition have."""
    constraint, nodes = request.spec.constraint, request.capabilities.nodes
    if constraint is None or not nodes:
        return
    known = sorted({feature for node in nodes for feature in node.features})
    missing = [name for name in feature_names(constraint) if name not in known]
    if missing:
        yield _no_feature(request, missing[0], known)
        return
    yield from _together(request, constraint)


def _together(request: Request, constraint: str) -> Iterator[Finding]:
    here = request.capabilities.nodes_of(request.partition.name)
    if not any(satisfies(constraint, node.features) for node in here):
        name = request.partition.name
        have = sorted({feature for node in here for feature in node.features})
        offers = f"its nodes have {', '.join(have)}" if have else "its nodes have no features"
        message = f"no node of partition {name} has {constraint}; {offers}; sbatch would refuse it"
        yield error("constraint", message, f"nodes of partition {name}")
    elif short := too_few(constraint, here, request.nodes):
        asked, there, wanted = short
        name = request.partition.name
        message = f"{wanted} nodes must have {asked}; partition {name} has {there}"
        refused = f"{message}; sbatch would refuse it"
        yield error("constraint-count", refused, f"nodes of partition {name}")


def _no_feature(request: Request, name: str, known: list[str]) -> Finding:
    hint = nearest(name, known) if known else "this cluster's nodes have none"
    if name.startswith("!"):
        hint = f"Slurm has no NOT; leave nodes out with --exclude, {hint}"
    fix: Pairs = ()
    near = re.search(r"did you mean '(.+)'", hint)
    if near:
        changed = re.sub(rf"\b{re.escape(name)}\b", near[1], request.spec.constraint or "")
        fix = (("constraint", changed),)
    elif not known or request.spec.constraint == name:
        fix = (("constraint", ""),)
    message = f"no node has the feature {name!r} now; {hint}"
    plugins = request.capabilities.config.get("NodeFeaturesPlugins", "(null)")
    if plugins != "(null)":  # a reboot may bring it
        source = f"slurm.conf: NodeFeaturesPlugins={plugins}"
        return warning("no-feature", f"{message}; Slurm may have to reboot nodes", source)
    refused = f"{message}; sbatch would refuse it"
    return error("no-feature", refused, "ActiveFeatures of the nodes", fix)


def named_nodes(request: Request) -> Iterator[Finding]:
    """Nodes that do not exist, are elsewhere, are too many, or are both wanted and left out."""
    spec, name = request.spec, request.partition.name
    there = {node.name for node in request.capabilities.nodes}
    if not there:  # PrivateData hides them
        return
    for option, text in (("nodelist", spec.nodelist), ("exclude", spec.exclude)):
        yield from _unknown(option, text, there)
    wanted, out = _expand(spec.nodelist), _expand(spec.exclude)
    here = {node.name for node in request.capabilities.nodes_of(name)}
    yield from _too_long(request, wanted & there)
    if away := (wanted & there) - here:
        yield from _away(request, wanted, away)
    if both := wanted & out:
        message = f"{_fold(both)} is both in --nodelist and in --exclude; sbatch would refuse it"
        yield error("node-both-ways", message, "--exclude", (("exclude", _fold(out - both)),))
    if here and out >= here and not wanted & out:
        message = f"--exclude leaves no node of partition {name}; sbatch would refuse it"
        yield error("node-all-excluded", message, "--exclude", (("exclude", ""),))


def _too_long(request: Request, wanted: set[str]) -> Iterator[Finding]:
    """More nodes named than asked for: Slurm takes those it needs, but not before 23.02."""
    nodes = request.nodes
    if request.capabilities.release < _CHOOSES_SINCE and len(wanted) > nodes:
        message = f"--nodelist names {len(wanted)} nodes, the job asks for {nodes}"
        fix: Pairs = (("nodelist", _fold(set(sorted(wanted)[:nodes]))),)
        yield error("node-list-long", f"{message}; sbatch would refuse it", "--nodelist", fix)


def _away(request: Request, wanted: set[str], away: set[str]) -> Iterator[Finding]:
    """Nodes of other partitions; of a longer list Slurm takes those it needs."""
    if len(wanted) > request.nodes <= len(wanted - away):
        return
    message = f"{_fold(away)} is not in partition {request.partition.name}; it can never start"
    yield error("node-elsewhere", message, "--nodelist", (("nodelist", _fold(wanted - away)),))


def _unknown(option: str, text: str | None, there: set[str]) -> Iterator[Finding]:
    names = _expand(text)
    missing = sorted(names - there)
    if missing:
        hint = nearest(missing[0], sorted(there))
        message = f"no node {missing[0]!r} (--{option}); {hint}; sbatch would refuse it"
        yield error("no-node", message, f"--{option}", ((option, _fold(names & there)),))


def _expand(text: str | None) -> set[str]:
    return set(node_names(text))


def _fold(names: set[str]) -> str:
    return folded(sorted(names)) if names else ""
