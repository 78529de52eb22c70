"""Checks of nodes: whether enough have all that is asked for, and which ones the job selects.

One node must have the GPUs, CPUs, memory and disk all at once. Nodes are selected by name or
feature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from slurmkit.config.files import did_you_mean
from slurmkit.formats.display import printable
from slurmkit.formats.memory import format_mib
from slurmkit.formats.scontrol import expand_nodes, fold_nodes
from slurmkit.formats.tres import Tres, format_tres
from slurmkit.planning.amounts import gres_count, parse_memory_mib, takes_whole_nodes
from slurmkit.planning.request import (
    Request,
    feature_names,
    find_shortage,
    least_nodes_of,
    satisfies,
    selected_by_spec,
)
from slurmkit.spec.findings import OVERCOMMITTED, Finding, Pairs, error, note, warning
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Node

# Field of JobSpec and of Node.
_PROCESSORS = {
    "sockets": ("sockets_per_node", "sockets"),
    "cores per socket": ("cores_per_socket", "cores_per_socket"),
    "threads per core": ("threads_per_core", "threads_per_core"),
}
_SHOWN = 4  # nodes named with their reasons
_LONG_NODELIST_SINCE = (23, 2)
_TASKS_NEED_CPUS_SINCE = (24, 11)
_OVERCOMMIT = "sbatch(1) --overcommit"


def node_shapes(request: Request) -> Iterator[Finding]:
    """Report that no node has all of it at once, that too few have, or that those are down."""
    there, needs = candidate_nodes(request), _needs(request)
    if not there:
        yield from _none_selected(request, needs)
        return
    having = _holding(there, needs)
    if not having:
        yield _no_node(request, needs, there)
    elif len(having) < request.nodes:
        yield _too_few(request, needs, having)
    elif lacking := _named_without(request, needs):
        yield _lacking(request, needs, lacking)
    else:
        yield from _unusable(request, having)


def _named_without(request: Request, needs: Tres) -> list[Node]:
    """Return nodes of `--nodelist` that the job gets all of, and that lack some of its amounts."""
    named = _node_set(request.spec.nodelist)
    here = [n for n in request.capabilities.nodes_of(request.partition.name) if n.name in named]
    if len(named) > request.nodes:  # then Slurm chooses of them
        return []
    return [node for node in here if not has_all(node, needs)]


def _lacking(request: Request, needs: Tres, lacking: Sequence[Node]) -> Finding:
    first, names = lacking[0], {node.name for node in lacking}
    asks = ", ".join(
        _amount(tres, count)
        for tres, count in sorted(_without_gpu_total(needs).items())
        if tres_of_node(first, tres) < count
    )
    message = (
        f"--nodelist names {first.name}, which does not have {asks}; leave out"
        f" {_folded_set(names)}; sbatch would refuse it"
    )
    left = _node_set(request.spec.nodelist) - names
    source = f"nodes of partition {request.partition.name}"
    return error("node-shape", message, source, (("nodelist", _folded_set(left)),))


def whole_nodes_of_parts(request: Request) -> Iterator[Finding]:
    """Report shards or MPS on whole nodes: Slurm never finds the resources for such a job."""
    asked_for = [tres for tres in request.per_node if tres.startswith(("gres/shard", "gres/mps"))]
    if not asked_for or not takes_whole_nodes(request.spec, request.partition):
        return
    name, part = request.partition.name, asked_for[0].removeprefix("gres/")
    asked = request.spec.exclusive is True
    whole, source = (
        ("with --exclusive", "sbatch(1) --exclusive")
        if asked
        else (f"in partition {name}, which gives whole nodes", f"partition {name}: OverSubscribe")
    )
    message = f"asks for parts of GPUs ({part}) {whole}; it can never start; ask for whole GPUs"
    yield error("parts-on-whole-nodes", message, source, (("exclusive", ""),) if asked else ())


def mixed_gpu_types(request: Request) -> Iterator[Finding]:
    """Warn of several nodes that may get different types of GPUs, since none was named."""
    gpus = request.spec.gpus
    if gpus is None or gpus.type or gpus.mig or gpus.is_part or request.nodes < 2:
        return
    nodes = _holding(request.fitting, _needs(request))
    held = [gres for node in nodes for gres in node.gres if gres.name == "gpu" and not gres.is_mig]
    types = sorted({gres.type for gres in held if gres.type})
    if len(types) > 1:
        message = (
            f"the nodes may get different GPUs: partition {request.partition.name} has"
            f" {', '.join(types)}; name a type, e.g. {types[0]}:{gpus.count}"
        )
        yield warning("gpu-types-mixed", message, f"nodes of partition {request.partition.name}")


def _holding(nodes: Sequence[Node], needs: Tres) -> list[Node]:
    """Return the nodes that have all of these amounts; equal node shapes are judged once."""
    kinds = {_shape(node): node for node in nodes}
    known = {shape: has_all(node, needs) for shape, node in kinds.items()}
    return [node for node in nodes if known[_shape(node)]]


def _shape(node: Node) -> tuple[object, ...]:
    processors = (getattr(node, field) for _, field in _PROCESSORS.values())
    return node.cpus, node.memory, node.tmp_disk, node.gres, *processors


def has_all(node: Node, needs: Tres) -> bool:
    """Return whether a node has all of these amounts."""
    return all(tres_of_node(node, tres) >= count for tres, count in needs.items())


def tres_of_node(node: Node, tres: str) -> int:
    """Return how much of one TRES a node has; unlimited for a TRES that is not counted per node."""
    if tres == "cpu":
        return node.cpus
    if tres == "mem":
        return node.memory
    if tres == "tmp":
        return node.tmp_disk
    if tres in _PROCESSORS:
        return int(getattr(node, _PROCESSORS[tres][1]))
    if tres.startswith("gres/"):
        return gres_count(node, tres)
    return 1 << 62


def _needs(request: Request) -> Tres:
    spec, asked = request.spec, request.per_node
    disk = {"tmp": parse_memory_mib(spec.tmp)} if spec.tmp else {}
    cpus = {"cpu": max(asked["cpu"], spec.mincpus or 0, cpus_of_most_tasks(request))}
    memory_: Tres = {}
    # On whole nodes Slurm counts memory per CPU, or per GPU, for all CPUs or GPUs of the node.
    if "mem" in request.total and takes_whole_nodes(request.spec, request.partition):
        memory_ = {"mem": request.total["mem"] // request.nodes}
    return {**asked, **memory_, **cpus, **disk, **_processors(spec)}


def cpus_of_most_tasks(request: Request) -> int:
    """Return the CPUs of as many tasks as `--ntasks-per-node` allows: a node must have so many.

    That holds also where the job has fewer tasks, and with `--overcommit`: `_can_job_run_on_node`
    (`min_cpus_per_node`) in src/plugins/select/cons_tres/job_test.c, in 22.05 to 26.05.
    """
    spec = request.spec
    spread = spec.gpus is not None and spec.gpus.per == "task"  # then the layout sets the number
    return 0 if spread else (spec.ntasks_per_node or 0) * request.cpus_per_task


def tasks_of_sockets(request: Request) -> Iterator[Finding]:
    """Report more tasks on a node than its sockets take with `--ntasks-per-socket`."""
    each, there = request.spec.ntasks_per_socket, candidate_nodes(request)
    tasks = max(1, request.per_node.get("cpu", 1) // max(request.cpus_per_task, 1))
    if each is None or not there:
        return
    # a larger number is refused, whatever the tasks: `_allocate_sc` (`threads_per_socket`)
    threads = max(node.cores_per_socket * node.threads_per_core for node in there)
    if 0 < threads < each:
        name = request.partition.name
        message = (
            f"--ntasks-per-socket={each}: no socket in partition {name} has more than"
            f" {_amount('cpu', threads)}; sbatch would refuse it"
        )
        most: Pairs = (("ntasks-per-socket", str(threads)),)
        yield error("tasks-per-socket", message, f"nodes of partition {name}", most)
        return
    sockets = max(node.sockets for node in there)
    if tasks <= each * sockets:
        return
    name = request.partition.name
    message = (
        f"{tasks} tasks on a node with --ntasks-per-socket={each}: no node of partition {name} has"
        f" more than {_amount('sockets', sockets)}; sbatch would refuse it"
    )
    fix: Pairs = (("ntasks-per-socket", str(-(-tasks // sockets))),)
    yield error("tasks-per-socket", message, f"nodes of partition {name}", fix)


def overcommitted_cpus(request: Request) -> Iterator[Finding]:
    """Report tasks for which slurmctld finds no CPUs, although `--overcommit` lets them share.

    From 24.11 on slurmctld places tasks only where CPUs are left for them (`dist_tasks` in
    src/plugins/select/cons_tres/dist_tasks.c: ESLURM_BAD_TASK_COUNT). A job with `--overcommit` is
    given the CPUs of one task on each node (`eval_nodes_cpus_to_use` in
    src/plugins/topology/common/eval_nodes.c); more tasks share them only where the job has no TRES
    per task, and sbatch makes one of `--cpus-per-task` (`_validate_tres_per_task` in
    src/common/slurm_opt.c). On whole nodes tasks never share CPUs (`_set_task_dist_internal`).
    """
    spec = request.spec
    there = sorted((node.cpus for node in candidate_nodes(request)), reverse=True)
    if not spec.overcommit or not there or request.capabilities.release < _TASKS_NEED_CPUS_SINCE:
        return
    nodes = max(request.most_nodes or 0, request.nodes)
    on = "1 node" if nodes == 1 else f"{nodes} nodes"
    if takes_whole_nodes(spec, request.partition):
        each = request.cpus_per_task
        room = sum(max(1, cpus // each) for cpus in there[:nodes])
        if request.tasks > room:
            message = (
                f"{request.tasks} tasks of {_amount('cpu', each)} each on {on}, which it has whole:"
                f" tasks do not share the CPUs of whole nodes, so at most {room} fit; it would pend"
                " for ever"
            )
            yield error(OVERCOMMITTED, message, _OVERCOMMIT)
    elif request.tasks > nodes and (spec.cpus_per_task or "tres-per-task" in spec.options):
        yield _one_task_on_a_node(request, on)


def _one_task_on_a_node(request: Request, on: str) -> Finding:
    """Return the error about tasks on nodes of which each gives CPUs to one task.

    Other options may give the job more CPUs on a node: then it is a doubt.
    """
    spec, fix = request.spec, (("overcommit", ""),)
    never = (
        f"with --overcommit and --cpus-per-task Slurm starts one task on a node, not"
        f" {request.tasks} on {on}"
    )
    change = "leave out --overcommit, or --cpus-per-task: then a node gives all tasks one CPU"
    more_cpus = request.raised_cpus or spec.mincpus or any(_processors(spec).values())
    if more_cpus or any(tres.startswith("gres/") for tres in request.per_node):
        message = f"{never}, unless its nodes give it more CPUs for other options; {change}"
        return warning(OVERCOMMITTED, message, _OVERCOMMIT, fix)
    return error(OVERCOMMITTED, f"{never}; it would pend for ever; {change}", _OVERCOMMIT, fix)


def _processors(spec: JobSpec) -> Tres:
    """Return the sockets, cores and threads that a node needs (sbatch(1) --extra-node-info)."""
    asked = {name: getattr(spec, field) for name, (field, _) in _PROCESSORS.items()}
    return {name: count for name, count in asked.items() if count is not None}


def _no_node(request: Request, needs: Tres, there: Sequence[Node]) -> Finding:
    kinds = {_shape(node): node for node in there}.values()
    most = {tres: max(tres_of_node(node, tres) for node in kinds) for tres in needs}
    over = {tres: count for tres, count in needs.items() if count > most[tres]}
    name = request.partition.name
    if over:
        tres, count = next(iter(over.items()))
        has_most = f"no node of partition {name} has more than {_amount(tres, most[tres])}"
        message = f"asks for {_amount(tres, count)} on a node; {has_most}"
    else:
        asks = ", ".join(
            _amount(tres, count) for tres, count in sorted(_without_gpu_total(needs).items())
        )
        message = f"no node of partition {name} has all of this at once: {asks}"
    source = f"nodes of partition {name}"
    refused = f"{message}; sbatch would refuse it"
    return error("node-shape", refused, source)


def _none_selected(request: Request, needs: Tres) -> Iterator[Finding]:
    """Report that no node of the partition is left, or that none of those left has the GRES.

    A constraint that no node has, and all nodes in `--exclude`, are reported by other checks.
    """
    spec, name = request.spec, request.partition.name
    here, left = request.capabilities.nodes_of(name), selected_nodes(request)
    by_other_checks = not any(satisfies(spec.constraint, node.features) for node in here)
    out = _node_set(spec.exclude)
    if by_other_checks or all(node.name in out for node in here):
        return  # also where slurmctld hides the nodes
    options = ("nodelist", "constraint", "exclude")
    given = [(option, text) for option in options if (text := getattr(spec, option))]
    by = " and ".join(f"--{option}={text}" for option, text in given)
    nodes = f"no node of partition {name}{f' that {by} leaves' if given else ''}"
    asks = ", ".join(
        _amount(t, n) for t, n in _without_gpu_total(needs).items() if t.startswith("gres/")
    )
    message = f"{nodes} has {asks}" if left else f"there is {nodes}"
    refused = f"{message}; sbatch would refuse it"
    fix = tuple((option, "") for option, _ in given)
    yield error("node-shape", refused, f"nodes of partition {name}", fix)


def _too_few(request: Request, needs: Tres, having: Sequence[Node]) -> Finding:
    asks = ", ".join(
        _amount(tres, count) for tres, count in sorted(_without_gpu_total(needs).items())
    )
    name, there = request.partition.name, len(having)
    message = (
        f"asks for {request.nodes} nodes with {asks} each; partition {name} has {there};"
        " it can never start"
    )
    fix = _fewer_nodes(request, having)
    return error("node-count", message, f"nodes of partition {name}", fix)


def _fewer_nodes(request: Request, having: Sequence[Node]) -> Pairs:
    """Return options for the same number of GPUs on fewer nodes, where they fit."""
    gpus = request.spec.gpus
    if gpus is None or gpus.is_part or gpus.per != "node" or request.spec.ntasks:
        return ()
    typed = next((tres for tres in request.per_node if tres.startswith("gres/gpu:")), "gres/gpu")
    total = request.nodes * request.per_node.get("gres/gpu", 0)
    for nodes in range(len(having), 0, -1):
        on_each, rest = divmod(total, nodes)
        needs = {**request.per_node, "gres/gpu": on_each, typed: on_each}
        if not rest and sum(has_all(node, needs) for node in having) >= nodes:
            kind = gpus.mig or gpus.type
            count = f"{kind}:{on_each}" if kind else str(on_each)
            return (("nodes", str(nodes)), ("gpus-per-node", count))
    return ()


def _unusable(request: Request, having: Sequence[Node]) -> Iterator[Finding]:
    usable = [node for node in having if node.usable]
    if len(usable) >= request.nodes:
        return
    out = [node for node in having if not node.usable]
    reasons = "; ".join(
        f"{node.name} {'+'.join(node.states)}"
        f"{f' ({printable(node.reason)})' if node.reason else ''}"
        for node in out[:_SHOWN]
    )
    more = f" and {len(out) - _SHOWN} more" if len(out) > _SHOWN else ""
    message = (
        f"only {len(usable)} of the {len(having)} nodes that fit can be used now, and the job needs"
        f" {request.nodes}: it waits for {reasons}{more}"
    )
    yield warning("nodes-down", message, f"nodes of partition {request.partition.name}")


def whole_node_memory(request: Request) -> Iterator[Finding]:
    """Report that the job takes all memory of its nodes.

    `--mem=0` means that; so does no `--mem` where the site has no default.
    """
    yield from _no_memory_given(request)
    if request.spec.mem is not None and parse_memory_mib(request.spec.mem) == 0:
        least = min((node.memory for node in request.fitting), default=None)
        at_least = f", at least {format_mib(least)}" if least else ""
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


def _without_gpu_total(needs: Tres) -> Tres:
    """Return the amounts without the total of GPUs where their type is named, too."""
    typed = any(tres.startswith("gres/gpu:") for tres in needs)
    return {tres: count for tres, count in needs.items() if not (typed and tres == "gres/gpu")}


def _amount(tres: str, count: int) -> str:
    if tres in _PROCESSORS:
        return f"{count} {tres}"
    return f"{format_mib(count)} of local disk" if tres == "tmp" else format_tres(tres, count)


def candidate_nodes(request: Request) -> tuple[Node, ...]:
    """Return nodes of the partition, in any state, that fit the spec's selection and its GPUs."""
    fitting = {node.name for node in request.fitting}
    return tuple(
        n for n in selected_nodes(request) if n.name in fitting or _has_requested_gres(n, request)
    )


def selected_nodes(request: Request) -> tuple[Node, ...]:
    """Return nodes of the partition, in any state, that the spec itself selects."""
    here = request.capabilities.nodes_of(request.partition.name)
    return selected_by_spec(request.spec, here, request.nodes)


def _has_requested_gres(node: Node, request: Request) -> bool:
    asked = [tres for tres in request.per_node if tres.startswith("gres/")]
    typed = [tres for tres in asked if ":" in tres] or asked
    if "gres/gpu" in typed and all(g.is_mig for g in node.gres if g.name == "gpu"):
        return False
    return all(gres_count(node, tres) for tres in typed)


def constraint_features(request: Request) -> Iterator[Finding]:
    """Report a feature that no node has, or a combination that too few nodes have."""
    constraint, nodes = request.spec.constraint, request.capabilities.nodes
    if constraint is None or not nodes:
        return
    known = sorted({feature for node in nodes for feature in node.features})
    missing = [name for name in feature_names(constraint) if name not in known]
    if missing:
        yield _no_feature(request, missing[0], known)
        return
    yield from _feature_combination(request, constraint)


def _feature_combination(request: Request, constraint: str) -> Iterator[Finding]:
    here = request.capabilities.nodes_of(request.partition.name)
    if not any(satisfies(constraint, node.features) for node in here):
        name = request.partition.name
        have = sorted({feature for node in here for feature in node.features})
        offers = f"its nodes have {', '.join(have)}" if have else "its nodes have no features"
        message = f"no node of partition {name} has {constraint}; {offers}; sbatch would refuse it"
        yield error("constraint", message, f"nodes of partition {name}")
    elif (least := least_nodes_of(constraint)) > max(request.most_nodes or 0, request.nodes):
        message = f"{constraint} needs at least {least} nodes, and the job asks for {request.nodes}"
        refused = f"{message}; sbatch would refuse it"
        yield error("constraint-count", refused, "--constraint", (("nodes", str(least)),))
    elif short := find_shortage(constraint, here, request.nodes):
        asked, there, wanted = short
        name = request.partition.name
        message = f"{wanted} nodes must have {asked}; partition {name} has {there}"
        refused = f"{message}; sbatch would refuse it"
        yield error("constraint-count", refused, f"nodes of partition {name}")


def preferred_features(request: Request) -> Iterator[Finding]:
    """Report `--prefer` of features that no node of the partition has: sbatch refuses it.

    Source: `job_allocate` in src/slurmctld/job_mgr.c; a job is tested with what it prefers.
    """
    preferred = request.spec.options.get("prefer", "")
    here = request.capabilities.nodes_of(request.partition.name)
    parameters = request.capabilities.config.get("SchedulerParameters", "")
    if not preferred or not here or "ignore_prefer_validation" in parameters:
        return
    if not any(satisfies(preferred, node.features) for node in here):
        name = request.partition.name
        have = sorted({feature for node in here for feature in node.features})
        offers = f"its nodes have {', '.join(have)}" if have else "its nodes have no features"
        message = (
            f"no node of partition {name} has {preferred} (--prefer); {offers}; sbatch would refuse"
            " it"
        )
        yield error("prefer", message, f"nodes of partition {name}", (("prefer", ""),))


def _no_feature(request: Request, name: str, known: list[str]) -> Finding:
    hint = did_you_mean(name, known) if known else "this cluster's nodes have none"
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
    if plugins != "(null)":  # a reboot may add the feature
        source = f"slurm.conf: NodeFeaturesPlugins={plugins}"
        return warning("no-feature", f"{message}; Slurm may have to reboot nodes", source)
    refused = f"{message}; sbatch would refuse it"
    return error("no-feature", refused, "ActiveFeatures of the nodes", fix)


def named_nodes(request: Request) -> Iterator[Finding]:
    """Report named nodes that are unknown, elsewhere, too many, or also excluded."""
    spec, name = request.spec, request.partition.name
    there = {node.name for node in request.capabilities.nodes}
    if not there:  # PrivateData hides them
        return
    for option, text in (("nodelist", spec.nodelist), ("exclude", spec.exclude)):
        yield from _unknown(option, text, there)
    wanted, out = _node_set(spec.nodelist), _node_set(spec.exclude)
    here = {node.name for node in request.capabilities.nodes_of(name)}
    yield from _too_long(request, wanted & there)
    if away := (wanted & there) - here:
        yield from _in_other_partitions(request, wanted, away)
    if both := wanted & out:
        message = (
            f"{_folded_set(both)} is both in --nodelist and in --exclude; sbatch would refuse it"
        )
        yield error("node-both-ways", message, "--exclude", (("exclude", _folded_set(out - both)),))
    if here and out >= here and not wanted & out:
        message = f"--exclude leaves no node of partition {name}; sbatch would refuse it"
        yield error("node-all-excluded", message, "--exclude", (("exclude", ""),))


def _too_long(request: Request, wanted: set[str]) -> Iterator[Finding]:
    """Report more named nodes than asked for: from 23.02 on Slurm takes those it needs."""
    nodes = request.nodes
    if request.capabilities.release < _LONG_NODELIST_SINCE and len(wanted) > nodes:
        message = f"--nodelist names {len(wanted)} nodes, the job asks for {nodes}"
        fix: Pairs = (("nodelist", _folded_set(set(sorted(wanted)[:nodes]))),)
        yield error("node-list-long", f"{message}; sbatch would refuse it", "--nodelist", fix)


def _in_other_partitions(request: Request, wanted: set[str], away: set[str]) -> Iterator[Finding]:
    """Report named nodes of other partitions; of a longer list Slurm takes those it needs."""
    if len(wanted) > request.nodes <= len(wanted - away):
        return
    message = (
        f"{_folded_set(away)} is not in partition {request.partition.name}; it can never start"
    )
    yield error(
        "node-elsewhere", message, "--nodelist", (("nodelist", _folded_set(wanted - away)),)
    )


def _unknown(option: str, text: str | None, there: set[str]) -> Iterator[Finding]:
    names = _node_set(text)
    missing = sorted(names - there)
    if missing:
        hint = did_you_mean(missing[0], sorted(there))
        message = f"no node {missing[0]!r} (--{option}); {hint}; sbatch would refuse it"
        yield error("no-node", message, f"--{option}", ((option, _folded_set(names & there)),))


def _node_set(text: str | None) -> set[str]:
    return set(expand_nodes(text))


def _folded_set(names: set[str]) -> str:
    return fold_nodes(sorted(names)) if names else ""
