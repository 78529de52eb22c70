"""The GPUs of a cluster that a request means, given as type, MIG slice, shard, MPS or fraction.

`GpuPool` holds the nodes whose GPUs a job may get. An error for GPUs that they do not have says
what exists instead, and where.

The rules rest on gres.shtml, on sbatch(1), and on these observations on 22.05, 24.11 and 26.05. A
shard with a type gets an allocation and then fails in every step. Slurm miscounts a job over nodes
with typed and untyped GPUs. A MIG slice satisfies a plain `gpu:1`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slurmkit.config.files import did_you_mean
from slurmkit.formats.scontrol import fold_nodes
from slurmkit.planning.refusals import refusal_text, too_many_parts_code
from slurmkit.spec.findings import Finding, Severity
from slurmkit.spec.gpus import Gpus
from slurmkit.state.model import Node

_UNSHARED = "shards share a GPU without isolating memory: one job can take all of it"


class ResolvedGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a request means, as this cluster names them.

    Attributes:
        gres: `gpu`, `shard` or `mps`.
        type: GRES type to ask for, as the cluster spells it; None for an untyped request.
        units: shards or MPS units on each node; 0 for whole GPUs and MIG slices.
        fitting: nodes that have such GPUs.
        constraint: node feature that the job must ask for, because it tells the GPU type.
        exclude: nodes of the pool that the request would wrongly match.
    """

    gres: str = "gpu"
    type: str | None = None
    units: int = 0
    fitting: tuple[Node, ...] = ()
    constraint: str | None = None
    exclude: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def most(self) -> int:
        """The largest number of such GPUs, shards or MPS units on one node."""
        return max((node.count(self.gres, self.type) for node in self.fitting), default=0)


def resolve_gpus(gpus: Gpus, pool: GpuPool, *, many: bool, least: int = 1) -> ResolvedGpus:
    """Return the GPUs that `gpus` means in `pool`; `findings` has an error when nothing fits.

    Args:
        gpus: what the user asked for.
        pool: the nodes to choose from.
        many: whether the job may spread over several nodes.
        least: whole GPUs that each node must have.
    """
    if not pool.everywhere:
        return _unknown(gpus)
    if gpus.shard:
        return _shards_or_mps(gpus, pool, "shard", gpus.shard)
    if gpus.mps:
        return _shards_or_mps(gpus, pool, "mps", gpus.mps)
    if gpus.fraction:
        return _fraction(gpus, pool)
    if gpus.mig:
        return _mig(gpus, pool)
    return _typed(gpus, pool) if gpus.type else _untyped(gpus, pool, many=many, least=least)


def _unknown(gpus: Gpus) -> ResolvedGpus:
    """Return the GPUs as the user wrote them: slurmctld hides the nodes from this user."""
    message = "Slurm does not show you the nodes (PrivateData), so their GPUs could not be checked"
    asked = ResolvedGpus(
        gres="mps" if gpus.mps else "shard" if gpus.shard else "gpu",
        type=None if gpus.is_part else gpus.mig or gpus.type,
        units=gpus.shard or gpus.mps or 0,
    )
    severity: Severity = "error" if gpus.fraction else "warning"
    message += "; ask for shard:N or mps:N instead of a fraction" if gpus.fraction else ""
    finding = Finding(
        severity=severity,
        code="unknown-nodes",
        message=message,
        source="scontrol show node",
        unsafe=gpus.fraction is not None,
    )
    return msgspec.structs.replace(asked, findings=(finding,))


# --- whole GPUs ---------------------------------------------------------------------------------


def _untyped(gpus: Gpus, pool: GpuPool, *, many: bool, least: int) -> ResolvedGpus:
    typed = [n for n in pool.nodes if has_whole_gpus(n, typed=True)]
    plain = [n for n in pool.nodes if has_whole_gpus(n, typed=False)]
    sliced = [n for n in pool.nodes if any(g.is_mig for g in n.gres)]
    if not typed and not plain:
        return ResolvedGpus(findings=(no_whole_gpus(gpus, pool, sliced),))
    whole = {n.name for n in (*typed, *plain)}
    both = [n for n in sliced if n.name in whole]
    if both:
        return ResolvedGpus(findings=(type_needed(both),))
    used, other = (typed, plain)
    if _gpus(typed, least) < _gpus(plain, least):
        used, other = (plain, typed)
    if not many:
        used, other = [*used, *other], []
    exclude = tuple(n.name for n in (*other, *sliced)) if other or sliced else ()
    return ResolvedGpus(
        fitting=tuple(used), exclude=exclude, findings=tuple(_left_out(other, sliced))
    )


def _left_out(other: list[Node], sliced: list[Node]) -> Iterator[Finding]:
    if other:
        names = fold_nodes(n.name for n in other)
        yield _note(
            "gpu-mixed-typing",
            f"{names} left out: some nodes name their GPU type and others do not, and Slurm"
            " miscounts a job over both",
        )
    if sliced:
        names = fold_nodes(n.name for n in sliced)
        yield _note("gpu-mig-left-out", f"{names} left out: their GPUs are MIG slices, not whole")


def _typed(gpus: Gpus, pool: GpuPool) -> ResolvedGpus:
    there, wanted = gpu_types(pool.nodes), canonical_gpu_type(gpus.type or "", pool.names)
    exact = [t for t in there if t.casefold() == (gpus.type or "").casefold()]
    fits = exact or [t for t in there if canonical_gpu_type(t, pool.names) == wanted]
    if len(fits) == 1:
        return ResolvedGpus(type=fits[0], fitting=_nodes_with_type(pool.nodes, fits[0]))
    if fits:
        return ResolvedGpus(type=gpus.type, findings=(_several(gpus, fits),))
    proof = _type_from_site(wanted, pool)
    return proof or ResolvedGpus(type=gpus.type, findings=(no_type(gpus, wanted, pool),))


def _several(gpus: Gpus, fits: list[str]) -> Finding:
    message = f"GPU type {gpus.type} stands for several here, and a job can have one; name one: "
    fix = ((gpus.option, f"{fits[0]}:{gpus.count}"),)
    return gpu_error("gpu-several-types", message + ", ".join(fits), fix=fix)


def _type_from_site(wanted: str, pool: GpuPool) -> ResolvedGpus | None:
    """Return untyped GPUs whose type a node feature or the configuration tells."""
    plain = [n for n in pool.nodes if has_whole_gpus(n, typed=False)]
    featured = [n for n in plain if wanted in {f.casefold() for f in n.features}]
    if featured:
        feature = next(f for f in featured[0].features if f.casefold() == wanted)
        why = f"the nodes do not name their GPU type; the feature {feature!r} proves it"
        return ResolvedGpus(
            fitting=tuple(featured), constraint=feature, findings=(_note("gpu-by-feature", why),)
        )
    mapped = {p for p, t in pool.names.by_partition.items() if t.casefold() == wanted}
    known = tuple(n for n in plain if mapped & set(n.partitions))
    if not known:
        return None
    names = {n.name for n in known}
    others = tuple(n.name for n in pool.nodes if n.name not in names and n.count("gpu"))
    where = ", ".join(sorted(mapped & {p for n in known for p in n.partitions}))
    why = f"requested without a type: the configuration says that partition {where} has {wanted}"
    return ResolvedGpus(fitting=known, exclude=others, findings=(_note("gpu-by-partition", why),))


# --- MIG slices ---------------------------------------------------------------------------------


def _mig(gpus: Gpus, pool: GpuPool) -> ResolvedGpus:
    fits = [t for t in gpu_types(pool.nodes) if _is_profile(t, gpus, pool.names)]
    if len(fits) == 1:
        return ResolvedGpus(type=fits[0], fitting=_nodes_with_type(pool.nodes, fits[0]))
    if fits:
        choices = ", ".join(f"gpu:{t}" for t in fits)
        message = refusal_text("mig-profile", asked=gpus.mig, types=choices)
        return ResolvedGpus(type=gpus.mig, findings=(gpu_error("mig-profile", message),))
    return ResolvedGpus(type=gpus.mig, findings=(no_type(gpus, (gpus.mig or "").casefold(), pool),))


def _is_profile(type_: str, gpus: Gpus, names: GpuTypeNames) -> bool:
    """Return whether a GRES type has the MIG profile asked for.

    `3g.20gb` means `a100_3g.20gb`; with a GPU type only that of this GPU, by any of its names.
    """
    spelled, profile = type_.casefold(), (gpus.mig or "").casefold()
    if spelled != profile and not spelled.endswith((f"_{profile}", f"-{profile}")):
        return False
    whole = spelled.removesuffix(profile).rstrip("_-")
    wanted = (gpus.type or "").casefold()
    return spelled.startswith(wanted) or canonical_gpu_type(whole, names) == canonical_gpu_type(
        wanted, names
    )


# --- parts of a GPU -----------------------------------------------------------------------------


def _shards_or_mps(gpus: Gpus, pool: GpuPool, name: str, units: int) -> ResolvedGpus:
    nodes = [n for n in pool.nodes if n.count(name)]
    if not nodes:
        return ResolvedGpus(gres=name, units=units, findings=(no_shards_or_mps(name, pool),))
    large = [n for n in nodes if most_units_per_job(n, name, several=pool.several) >= units]
    fits = [n for n in large if has_requested_type(n, gpus, pool.names)]
    if not fits:
        return ResolvedGpus(
            gres=name, units=units, findings=(too_few_shards_or_mps(gpus, pool, name, nodes),)
        )
    names = {n.name for n in fits}
    out = tuple(n.name for n in nodes if n.name not in names)
    notes = [_note(f"{name}-shared", _UNSHARED)] if name == "shard" else []
    if gpus.type:
        notes.append(
            _note(
                f"{name}-untyped", f"requested without a type: steps with {name}:TYPE fail on Slurm"
            )
        )
    return ResolvedGpus(
        gres=name, units=units, fitting=tuple(fits), exclude=out, findings=tuple(notes)
    )


def _fraction(gpus: Gpus, pool: GpuPool) -> ResolvedGpus:
    part = gpus.fraction or 0.0
    cut_up = [n for n in pool.nodes if units_per_gpu(n, "shard")]
    nodes = [n for n in cut_up if has_requested_type(n, gpus, pool.names)]
    if not nodes:
        why = shards_of_other_type(gpus, pool, "shard") if cut_up else no_fraction(part, pool)
        # Do not send it: a whole GPU is not what the user asked for.
        return ResolvedGpus(gres="shard", findings=(msgspec.structs.replace(why, unsafe=True),))
    # Where nodes divide their GPUs differently, the most common number of shards decides.
    cuts = Counter[int]()
    for node in nodes:
        cuts[units_per_gpu(node, "shard")] += node.count("gpu")
    cut = cuts.most_common(1)[0][0]
    units = max(1, math.ceil(part * cut - 1e-9))
    fits = tuple(n for n in nodes if units_per_gpu(n, "shard") == cut)
    names = {n.name for n in fits}
    out = tuple(n.name for n in pool.nodes if n.count("shard") and n.name not in names)
    message = f"{part:g} of a GPU is {units} of its {cut} shards; {_UNSHARED}"
    note = _note("fraction-as-shards", message)
    return ResolvedGpus(gres="shard", units=units, fitting=fits, exclude=out, findings=(note,))


def _note(code: str, message: str) -> Finding:
    return Finding(severity="note", code=code, message=message, source="GRES of the nodes")


def _gpus(nodes: Iterable[Node], least: int) -> int:
    """Count the GPUs of nodes that have at least `least`."""
    return sum(count for node in nodes if (count := node.count("gpu")) >= least)


def _nodes_with_type(nodes: Iterable[Node], type_: str) -> tuple[Node, ...]:
    return tuple(n for n in nodes if n.count("gpu", type_))


class GpuTypeNames(msgspec.Struct, frozen=True):
    """The site's configuration of GPU types.

    Attributes:
        aliases: alias in lower case to type.
        by_partition: partition to the type of its untyped GPUs.
    """

    aliases: Mapping[str, str] = msgspec.field(default_factory=dict)
    by_partition: Mapping[str, str] = msgspec.field(default_factory=dict)


class GpuPool(msgspec.Struct, frozen=True):
    """The nodes that a job may get, and the rest of the cluster for advice.

    Attributes:
        nodes: of the partitions asked for, whatever their state.
        partitions: names of these partitions.
        everywhere: all nodes of the cluster.
        several: whether a job's shards on a node may come from several GPUs.
    """

    nodes: tuple[Node, ...]
    partitions: tuple[str, ...]
    everywhere: tuple[Node, ...]
    names: GpuTypeNames = GpuTypeNames()
    several: bool = False


def no_whole_gpus(gpus: Gpus, pool: GpuPool, sliced: list[Node]) -> Finding:
    """Return the error that there are no whole GPUs; `sliced` nodes have MIG slices."""
    where = ",".join(pool.partitions)
    if sliced:
        offered = ", ".join(gpu_types(sliced))
        message = (
            f"partition {where} has no whole GPUs, only MIG slices: {offered}; without a type Slurm"
            " would give any of them"
        )
        option = "gpus-per-task" if gpus.per == "task" else "gpus-per-node"
        return gpu_error("gpu-mig-only", message, fix=((option, f"{gpu_types(sliced)[0]}:1"),))
    return gpu_error("gpu-none", f"partition {where} has no GPUs; {_gpus_offered(pool.everywhere)}")


def type_needed(nodes: list[Node]) -> Finding:
    """Return the error that a GPU without a type could be whole or a MIG slice on these nodes."""
    offered = ", ".join(gpu_types(nodes))
    message = (
        f"GPUs without a type: {nodes[0].name} has whole GPUs and MIG slices side by side, and"
        f" Slurm would give either; name a type: {offered}"
    )
    return gpu_error("gpu-name-a-type", message)


def no_type(gpus: Gpus, wanted: str, pool: GpuPool) -> Finding:
    """Return the error that GPUs of type `wanted` (lower case) are elsewhere or nowhere."""
    where, shown = ",".join(pool.partitions), gpus.mig or gpus.type or ""
    elsewhere = _partitions_with(wanted, pool)
    count = 1 if gpus.per == "job" else gpus.count
    enough = [name for name, most in elsewhere.items() if most >= count]
    if elsewhere:
        has = ", ".join(enough or elsewhere)
        at_most = "" if enough else f", at most {max(elsewhere.values())} on a node"
        message = f"no {shown} GPUs in partition {where}; partition {has} has them{at_most}"
        return gpu_error("gpu-type-elsewhere", message, fix=(("partition", has.split(", ")[0]),))
    known = gpu_types(pool.everywhere)
    hint = f" {did_you_mean(wanted, known)};" if known else ""
    untyped = [n.name for n in pool.nodes if has_whole_gpus(n, typed=False)]
    if untyped:
        hint += (
            f" the GPUs of {','.join(untyped)} have no type: ask for a plain number, or have the"
            " site name their type (gpu_type in [partition.NAME])"
        )
    return gpu_error(
        "gpu-no-such-type",
        f"no GPU type {shown!r} here;{hint} {_gpus_offered(pool.everywhere)}".strip(),
    )


def _partitions_with(wanted: str, pool: GpuPool) -> dict[str, int]:
    """Return other partitions with GPUs of a type, and the most of them on one of their nodes."""
    partitions: dict[str, int] = {}
    for node in pool.everywhere:
        count = sum(
            gres.count
            for gres in node.gres
            if gres.name == "gpu" and gres.type and _is_spelled(wanted, gres.type, pool.names)
        )
        for name in node.partitions if count else ():
            partitions[name] = max(count, partitions.get(name, 0))
    return {name: most for name, most in partitions.items() if name not in pool.partitions}


def _is_spelled(wanted: str, type_: str, names: GpuTypeNames) -> bool:
    spelled = (type_.casefold(), canonical_gpu_type(type_, names))
    return any(name == wanted or name.endswith(f"_{wanted}") for name in spelled)


def no_shards_or_mps(name: str, pool: GpuPool) -> Finding:
    """Return the error that the partition has no shards, or no MPS."""
    where = ",".join(pool.partitions)
    having = [n for n in pool.everywhere if n.count(name)]
    there = list(dict.fromkeys(p for n in having for p in n.partitions))
    if there:
        message = f"partition {where} has no {name}; partition {', '.join(there)} has {name}"
        return gpu_error(f"{name}-elsewhere", message, fix=(("partition", there[0]),))
    return gpu_error(
        f"{name}-none", f"this cluster has no {name}; {_gpus_offered(pool.everywhere)}"
    )


def too_few_shards_or_mps(gpus: Gpus, pool: GpuPool, name: str, nodes: list[Node]) -> Finding:
    """Return the error that `nodes` have too few shards or MPS units per job, or another type."""
    fits = [n for n in nodes if has_requested_type(n, gpus, pool.names)]
    if not fits:
        return shards_of_other_type(gpus, pool, name)
    most = max(most_units_per_job(n, name, several=pool.several) for n in fits)
    code = too_many_parts_code(name, several=pool.several)
    asked = gpus.shard or gpus.mps
    message = refusal_text(code, asked=asked, partition=",".join(pool.partitions), most=most)
    gres = f"{name}:{gpus.type}" if gpus.type else name
    return gpu_error(code, message, fix=(("gres", f"{gres}:{most}"),))


def shards_of_other_type(gpus: Gpus, pool: GpuPool, name: str) -> Finding:
    """Return the error that there are shards (or MPS), but not of GPUs of this type."""
    cut = [n for n in pool.nodes if n.count(name)]
    offered = ", ".join(gpu_types(cut)) or "GPUs without a type"
    message = f"no {name} of {gpus.type} GPUs in partition {','.join(pool.partitions)}"
    away = [n for n in pool.everywhere if n.count(name) and has_requested_type(n, gpus, pool.names)]
    there = list(dict.fromkeys(p for n in away for p in n.partitions))
    if there:
        message += f"; partition {', '.join(there)} has {name}"
        return gpu_error(f"{name}-elsewhere", message, fix=(("partition", there[0]),))
    return gpu_error(
        f"{name}-other-type", f"{message}, nor in any other; {name} comes from {offered}"
    )


def no_fraction(part: float, pool: GpuPool) -> Finding:
    """Return the error that a fraction of a GPU cannot be made of shards here."""
    where = ",".join(pool.partitions)
    sharded = [n for n in pool.everywhere if units_per_gpu(n, "shard") and n.partitions]
    mps = [n for n in pool.everywhere if units_per_gpu(n, "mps") and n.partitions]
    message = f"{part:g} of a GPU: partition {where} has no shards"
    if sharded:
        there = sharded[0].partitions[0]
        fix = (("partition", there),)
        return gpu_error("fraction-elsewhere", f"{message}; partition {there} has shards", fix=fix)
    if mps:
        units = max(1, math.ceil(part * units_per_gpu(mps[0], "mps") - 1e-9))
        there = mps[0].partitions[0]
        message += f"; partition {there} has MPS"
        return gpu_error(
            "fraction-none", message, fix=(("gres", f"mps:{units}"), ("partition", there))
        )
    return gpu_error(
        "fraction-none",
        f"{message}, and no other partition has any; {_gpus_offered(pool.everywhere)}",
    )


def _gpus_offered(nodes: tuple[Node, ...]) -> str:
    """Describe the GPUs there are: `the cluster has a100 on c[1-2], GPUs without a type on c4`."""
    nodes_by_type: dict[str, list[str]] = {}
    for node in nodes:
        for gres in node.gres:
            if gres.name == "gpu":
                nodes_by_type.setdefault(gres.type or "GPUs without a type", []).append(node.name)
    listed = (f"{kind} on {fold_nodes(names)}" for kind, names in nodes_by_type.items())
    return (
        f"the cluster has {', '.join(listed)}"
        if nodes_by_type
        else "the cluster has no GPUs at all"
    )


def gpu_error(code: str, message: str, fix: tuple[tuple[str, str], ...] = ()) -> Finding:
    """Return an error about the GPUs of the nodes."""
    return Finding(
        severity="error", code=code, message=message, source="GRES of the nodes", fix=fix
    )


def shares_across_gpus(config: Mapping[str, str]) -> bool:
    """Return whether a job's shards on a node may come from several GPUs (slurm.conf(5)).

    The same holds for MPS units.
    """
    return "MULTIPLE_SHARING_GRES_PJ" in config.get("SelectTypeParameters", "").upper()


def most_units_per_job(node: Node, name: str, *, several: bool) -> int:
    """Return the shards or MPS units that one job can get on a node."""
    return node.count(name) if several else units_per_gpu(node, name)


def units_per_gpu(node: Node, name: str) -> int:
    """Return the shards or MPS units of one GPU of a node."""
    gpus = node.count("gpu")
    return node.count(name) // gpus if gpus else 0


def has_whole_gpus(node: Node, *, typed: bool) -> bool:
    """Return whether a node has whole GPUs with a type (`typed`), or without one."""
    return any(g.name == "gpu" and not g.is_mig and bool(g.type) is typed for g in node.gres)


def gpu_types(nodes: Iterable[Node]) -> list[str]:
    """Return the GPU types of some nodes, in order."""
    named = (g.type for n in nodes for g in n.gres if g.name == "gpu" and g.type)
    return list(dict.fromkeys(named))


def has_requested_type(node: Node, gpus: Gpus, names: GpuTypeNames) -> bool:
    """Return whether the GPUs of a node have the type asked for, if any."""
    wanted = canonical_gpu_type(gpus.type, names) if gpus.type else None
    return wanted is None or wanted in {canonical_gpu_type(t, names) for t in gpu_types([node])}


def canonical_gpu_type(name: str, names: GpuTypeNames) -> str:
    """Return the type that a name stands for, in lower case."""
    return names.aliases.get(name.casefold(), name).casefold()
