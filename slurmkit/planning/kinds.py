"""Which GPUs of a cluster are meant: names matched, parts made whole, typing judged by node set.

Facts that the rules rest on: gres.shtml and sbatch(1); that a shard of a type allocates and then
fails in every step, that Slurm miscounts a job over typed and untyped nodes, and that a plain
`gpu:1` is satisfied by a MIG slice were seen on 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from slurmkit.capabilities.model import Node
from slurmkit.capabilities.nodes import folded
from slurmkit.findings import Finding, Severity
from slurmkit.gpus import Gpus
from slurmkit.refusals import words
from slurmkit.valueforms import nearest

_UNSHARED = "shards share a GPU without isolating memory: one job can take all of it"


class Names(msgspec.Struct, frozen=True):
    """What the site's configuration says of GPU types.

    Attributes:
        aliases: other names of a type in lower case, to the type.
        by_partition: partition to the type of its untyped GPUs.
    """

    aliases: Mapping[str, str] = msgspec.field(default_factory=dict)
    by_partition: Mapping[str, str] = msgspec.field(default_factory=dict)


class Pool(msgspec.Struct, frozen=True):
    """The nodes a job may get, and the rest of the cluster for advice.

    Attributes:
        nodes: of the partitions asked for, whatever their state.
        partitions: names of those.
        everywhere: all nodes of the cluster.
    """

    nodes: tuple[Node, ...]
    partitions: tuple[str, ...]
    everywhere: tuple[Node, ...]
    names: Names = Names()


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs meant, as this cluster has them.

    Attributes:
        gres: `gpu`, `shard` or `mps`.
        type: GRES type to ask for as the cluster spells it, None for an untyped request.
        units: shards or MPS units on each node; 0 for whole GPUs and MIG slices.
        fitting: nodes that have such GPUs.
        constraint: a node feature that must be asked for, because it proves the type.
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
        """The most of such GPUs, shards or MPS units on one node."""
        return max((node.count(self.gres, self.type) for node in self.fitting), default=0)


def kind_of(gpus: Gpus, pool: Pool, *, many: bool, least: int = 1) -> Kind:
    """Find out what `gpus` means in `pool`; its findings hold an error when nothing fits.

    Args:
        gpus: as they were asked for.
        pool: where they are looked for.
        many: whether the job may spread over several nodes.
        least: whole GPUs that each of them must have.
    """
    if not pool.everywhere:
        return _unknown(gpus)
    if gpus.shard:
        return _part(gpus, pool, "shard", gpus.shard)
    if gpus.mps:
        return _part(gpus, pool, "mps", gpus.mps)
    if gpus.fraction:
        return _fraction(gpus, pool)
    if gpus.mig:
        return _mig(gpus, pool)
    return _typed(gpus, pool) if gpus.type else _untyped(pool, many=many, least=least)


def _unknown(gpus: Gpus) -> Kind:
    """As it was asked for: slurmctld does not show its nodes to this user."""
    message = "the nodes are not known here (PrivateData), so their GPUs could not be checked"
    asked = Kind(
        gres="mps" if gpus.mps else "shard" if gpus.shard else "gpu",
        type=None if gpus.is_part else gpus.mig or gpus.type,
        units=gpus.shard or gpus.mps or 0,
    )
    severity: Severity = "error" if gpus.fraction else "warning"
    message += "; ask for shard:N or mps:N instead of a fraction" if gpus.fraction else ""
    found = Finding(
        severity=severity,
        code="unknown-nodes",
        message=message,
        source="scontrol show node",
        unsafe=gpus.fraction is not None,
    )
    return msgspec.structs.replace(asked, findings=(found,))


# --- whole GPUs ---------------------------------------------------------------------------------


def _untyped(pool: Pool, *, many: bool, least: int) -> Kind:
    typed = [n for n in pool.nodes if _whole(n, typed=True)]
    plain = [n for n in pool.nodes if _whole(n, typed=False)]
    sliced = [n for n in pool.nodes if any(g.is_mig for g in n.gres)]
    if not typed and not plain:
        return Kind(findings=(_no_gpus(pool, sliced),))
    whole = {n.name for n in (*typed, *plain)}
    both = [n for n in sliced if n.name in whole]
    if both:
        return Kind(findings=(_name_a_type(both),))
    kept, other = (typed, plain)
    if _gpus(typed, least) < _gpus(plain, least):
        kept, other = (plain, typed)
    if not many:
        kept, other = [*kept, *other], []
    exclude = tuple(n.name for n in (*other, *sliced)) if other or sliced else ()
    return Kind(fitting=tuple(kept), exclude=exclude, findings=tuple(_left_out(other, sliced)))


def _left_out(other: list[Node], sliced: list[Node]) -> Iterator[Finding]:
    if other:
        names = folded(n.name for n in other)
        yield _note(
            "gpu-mixed-typing",
            f"{names} left out: some nodes name their GPU type and others do not, and Slurm"
            " miscounts a job over both",
        )
    if sliced:
        names = folded(n.name for n in sliced)
        yield _note("gpu-mig-left-out", f"{names} left out: their GPUs are MIG slices, not whole")


def _typed(gpus: Gpus, pool: Pool) -> Kind:
    there, wanted = _types(pool.nodes), _canonical(gpus.type or "", pool.names)
    exact = [t for t in there if t.casefold() == (gpus.type or "").casefold()]
    fits = exact or [t for t in there if _canonical(t, pool.names) == wanted]
    if len(fits) == 1:
        return Kind(type=fits[0], fitting=_having(pool.nodes, fits[0]))
    if fits:
        return Kind(type=gpus.type, findings=(_several(gpus, fits),))
    proof = _proved(wanted, pool)
    return proof or Kind(type=gpus.type, findings=(_no_type(gpus, wanted, pool),))


def _several(gpus: Gpus, fits: list[str]) -> Finding:
    message = f"GPU type {gpus.type} stands for several here, and a job has one; name it: "
    fix = (("gpus-per-node", f"{fits[0]}:{gpus.count}"),)
    return _error("gpu-several-types", message + ", ".join(fits), fix=fix)


def _proved(wanted: str, pool: Pool) -> Kind | None:
    """Untyped GPUs whose type is known from a node feature or from the configuration."""
    plain = [n for n in pool.nodes if _whole(n, typed=False)]
    featured = [n for n in plain if wanted in {f.casefold() for f in n.features}]
    if featured:
        feature = next(f for f in featured[0].features if f.casefold() == wanted)
        why = f"the nodes do not name their GPU type; the feature {feature!r} proves it"
        return Kind(
            fitting=tuple(featured), constraint=feature, findings=(_note("gpu-by-feature", why),)
        )
    mapped = {p for p, t in pool.names.by_partition.items() if t.casefold() == wanted}
    known = tuple(n for n in plain if mapped & set(n.partitions))
    if not known:
        return None
    names = {n.name for n in known}
    others = tuple(n.name for n in pool.nodes if n.name not in names and n.count("gpu"))
    where = ", ".join(sorted(mapped & {p for n in known for p in n.partitions}))
    why = f"asked for untyped: the configuration says that partition {where} has {wanted}"
    return Kind(fitting=known, exclude=others, findings=(_note("gpu-by-partition", why),))


# --- MIG slices ---------------------------------------------------------------------------------


def _mig(gpus: Gpus, pool: Pool) -> Kind:
    fits = [t for t in _types(pool.nodes) if _is_profile(t, gpus)]
    if len(fits) == 1:
        return Kind(type=fits[0], fitting=_having(pool.nodes, fits[0]))
    if fits:
        choices = ", ".join(f"gpu:{t}" for t in fits)
        message = words("mig-profile", asked=gpus.mig, types=choices)
        return Kind(type=gpus.mig, findings=(_error("mig-profile", message),))
    return Kind(type=gpus.mig, findings=(_no_type(gpus, (gpus.mig or "").casefold(), pool),))


def _is_profile(type_: str, gpus: Gpus) -> bool:
    """`3g.20gb` means `a100_3g.20gb`, and with a type only that of this GPU."""
    spelled, profile = type_.casefold(), (gpus.mig or "").casefold()
    if gpus.type and not spelled.startswith(gpus.type.casefold()):
        return False
    return spelled == profile or spelled.endswith((f"_{profile}", f"-{profile}"))


# --- parts of a GPU -----------------------------------------------------------------------------


def _part(gpus: Gpus, pool: Pool, name: str, units: int) -> Kind:
    nodes = [n for n in pool.nodes if n.count(name)]
    if not nodes:
        return Kind(gres=name, units=units, findings=(_no_part(name, pool),))
    fits = [n for n in nodes if per_gpu(n, name) >= units and _is_type(n, gpus, pool.names)]
    if not fits:
        return Kind(gres=name, units=units, findings=(_no_fit(gpus, pool, name, nodes),))
    names = {n.name for n in fits}
    out = tuple(n.name for n in nodes if n.name not in names)
    said = [_note(f"{name}-shared", _UNSHARED)] if name == "shard" else []
    if gpus.type:
        said.append(
            _note(f"{name}-untyped", f"asked for untyped: steps of {name}:TYPE fail on Slurm")
        )
    return Kind(gres=name, units=units, fitting=tuple(fits), exclude=out, findings=tuple(said))


def _fraction(gpus: Gpus, pool: Pool) -> Kind:
    part = gpus.fraction or 0.0
    cut_up = [n for n in pool.nodes if per_gpu(n, "shard")]
    nodes = [n for n in cut_up if _is_type(n, gpus, pool.names)]
    if not nodes:
        why = _other_type(gpus, pool, "shard") if cut_up else _no_fraction(part, pool)
        # Nothing can be sent for it: a whole GPU is not what was asked for.
        return Kind(gres="shard", findings=(msgspec.structs.replace(why, unsafe=True),))
    # Where nodes cut their GPUs differently, the cut that most GPUs have decides.
    cuts = Counter[int]()
    for node in nodes:
        cuts[per_gpu(node, "shard")] += node.count("gpu")
    cut = cuts.most_common(1)[0][0]
    units = max(1, math.ceil(part * cut - 1e-9))
    fits = tuple(n for n in nodes if per_gpu(n, "shard") == cut)
    names = {n.name for n in fits}
    out = tuple(n.name for n in pool.nodes if n.count("shard") and n.name not in names)
    said = f"{part:g} of a GPU is {units} of its {cut} shards; {_UNSHARED}"
    note = _note("fraction-as-shards", said)
    return Kind(gres="shard", units=units, fitting=fits, exclude=out, findings=(note,))


def per_gpu(node: Node, name: str) -> int:
    """Shards or MPS units that one GPU of a node is cut into."""
    gpus = node.count("gpu")
    return node.count(name) // gpus if gpus else 0


# --- when nothing fits --------------------------------------------------------------------------


def _no_gpus(pool: Pool, sliced: list[Node]) -> Finding:
    where = ",".join(pool.partitions)
    if sliced:
        offered = ", ".join(_types(sliced))
        message = f"partition {where} has no whole GPUs, only MIG slices: {offered}"
        return _error("gpu-mig-only", message, fix=(("gpus-per-node", f"{_types(sliced)[0]}:1"),))
    return _error("gpu-none", f"partition {where} has no GPUs; {_offers(pool.everywhere)}")


def _name_a_type(nodes: list[Node]) -> Finding:
    offered = ", ".join(_types(nodes))
    message = (
        f"GPUs without a type: {nodes[0].name} has whole GPUs and MIG slices side by side, and"
        f" Slurm would give either; name a type: {offered}"
    )
    return _error("gpu-name-a-type", message)


def _no_type(gpus: Gpus, wanted: str, pool: Pool) -> Finding:
    where, shown = ",".join(pool.partitions), gpus.mig or gpus.type or ""
    elsewhere = _partitions_with(wanted, pool)
    if elsewhere:
        message = f"no {shown} GPUs in partition {where}; partition {', '.join(elsewhere)} has them"
        return _error("gpu-type-elsewhere", message, fix=(("partition", elsewhere[0]),))
    known = _types(pool.everywhere)
    hint = f" {nearest(wanted, known)};" if known else ""
    untyped = [n.name for n in pool.nodes if _whole(n, typed=False)]
    if untyped:
        hint += (
            f" the GPUs of {','.join(untyped)} have no type: ask for a plain number, or have the"
            " site name their type (gpu_type in [partition.NAME])"
        )
    return _error(
        "gpu-no-such-type", f"no GPU type {shown!r} here;{hint} {_offers(pool.everywhere)}".strip()
    )


def _partitions_with(wanted: str, pool: Pool) -> list[str]:
    found: dict[str, None] = {}
    for node in pool.everywhere:
        named = [g.type for g in node.gres if g.name == "gpu" and g.type]
        spelled = {name for t in named for name in (t.casefold(), _canonical(t, pool.names))}
        ends = any(t == wanted or t.endswith(f"_{wanted}") for t in spelled)
        found |= dict.fromkeys(node.partitions if ends else ())
    return [name for name in found if name not in pool.partitions]


def _no_part(name: str, pool: Pool) -> Finding:
    where = ",".join(pool.partitions)
    having = [n for n in pool.everywhere if n.count(name)]
    there = list(dict.fromkeys(p for n in having for p in n.partitions))
    if there:
        message = f"partition {where} has no {name}; partition {', '.join(there)} has"
        return _error(f"{name}-elsewhere", message, fix=(("partition", there[0]),))
    return _error(f"{name}-none", f"this cluster has no {name}; {_offers(pool.everywhere)}")


def _no_fit(gpus: Gpus, pool: Pool, name: str, nodes: list[Node]) -> Finding:
    fits = [n for n in nodes if _is_type(n, gpus, pool.names)]
    if not fits:
        return _other_type(gpus, pool, name)
    most = max(per_gpu(n, name) for n in fits)
    code = f"{name}s-per-gpu" if name == "shard" else f"{name}-per-gpu"
    asked = gpus.shard or gpus.mps
    message = words(code, asked=asked, partition=",".join(pool.partitions), most=most)
    return _error(code, message, fix=(("gres", f"{_typed_part(gpus, name)}:{most}"),))


def _typed_part(gpus: Gpus, name: str) -> str:
    return f"{name}:{gpus.type}" if gpus.type else name


def _other_type(gpus: Gpus, pool: Pool, name: str) -> Finding:
    """There are shards (or MPS), but not of GPUs of this type."""
    cut = [n for n in pool.nodes if n.count(name)]
    offered = ", ".join(_types(cut)) or "GPUs without a type"
    message = f"no {name} of {gpus.type} GPUs in partition {','.join(pool.partitions)}"
    away = [n for n in pool.everywhere if n.count(name) and _is_type(n, gpus, pool.names)]
    there = list(dict.fromkeys(p for n in away for p in n.partitions))
    if there:
        message += f"; partition {', '.join(there)} has"
        return _error(f"{name}-elsewhere", message, fix=(("partition", there[0]),))
    return _error(f"{name}-other-type", f"{message}, nor anywhere; {name} is cut from {offered}")


def _no_fraction(part: float, pool: Pool) -> Finding:
    where = ",".join(pool.partitions)
    sharded = [n for n in pool.everywhere if per_gpu(n, "shard") and n.partitions]
    mps = [n for n in pool.everywhere if per_gpu(n, "mps") and n.partitions]
    message = f"{part:g} of a GPU: partition {where} has no shards"
    if sharded:
        there = sharded[0].partitions[0]
        fix = (("partition", there),)
        return _error("fraction-elsewhere", f"{message}; partition {there} has", fix=fix)
    if mps:
        units = max(1, math.ceil(part * per_gpu(mps[0], "mps") - 1e-9))
        there = mps[0].partitions[0]
        message += f"; partition {there} has MPS"
        return _error(
            "fraction-none", message, fix=(("gres", f"mps:{units}"), ("partition", there))
        )
    return _error("fraction-none", f"{message}, nor has this cluster; {_offers(pool.everywhere)}")


def _offers(nodes: tuple[Node, ...]) -> str:
    """What GPUs exist and where: `it has a100 on c[1-2], GPUs without a type on c4`."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for gres in node.gres:
            if gres.name == "gpu":
                found.setdefault(gres.type or "GPUs without a type", []).append(node.name)
    listed = (f"{kind} on {folded(names)}" for kind, names in found.items())
    return f"the cluster has {', '.join(listed)}" if found else "the cluster has no GPUs at all"


# --- node sets ----------------------------------------------------------------------------------


def _whole(node: Node, *, typed: bool) -> bool:
    return any(g.name == "gpu" and not g.is_mig and bool(g.type) is typed for g in node.gres)


def _gpus(nodes: Iterable[Node], least: int) -> int:
    """GPUs on nodes that have at least so many."""
    return sum(count for node in nodes if (count := node.count("gpu")) >= least)


def _types(nodes: Iterable[Node]) -> list[str]:
    """GPU types of some nodes, in order."""
    named = (g.type for n in nodes for g in n.gres if g.name == "gpu" and g.type)
    return list(dict.fromkeys(named))


def _having(nodes: Iterable[Node], type_: str) -> tuple[Node, ...]:
    return tuple(n for n in nodes if n.count("gpu", type_))


def _is_type(node: Node, gpus: Gpus, names: Names) -> bool:
    wanted = _canonical(gpus.type, names) if gpus.type else None
    return wanted is None or wanted in {_canonical(t, names) for t in _types([node])}


def _canonical(name: str, names: Names) -> str:
    return names.aliases.get(name.casefold(), name).casefold()


def _error(code: str, message: str, fix: tuple[tuple[str, str], ...] = ()) -> Finding:
    return Finding(
        severity="error", code=code, message=message, source="GRES of the nodes", fix=fix
    )


def _note(code: str, message: str) -> Finding:
    return Finding(severity="note", code=code, message=message, source="GRES of the nodes")
