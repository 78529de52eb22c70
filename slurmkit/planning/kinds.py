"""Which GPUs of a cluster are meant: names matched, parts made whole, typing judged by node set.

Facts that the rules rest on: gres.shtml and sbatch(1); that a shard of a type allocates and then
fails in every step, that Slurm miscounts a job over typed and untyped nodes, and that a plain
`gpu:1` is satisfied by a MIG slice were seen on 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from slurmkit.capabilities.model import Node
from slurmkit.capabilities.nodes import folded
from slurmkit.findings import Finding, Severity
from slurmkit.gpus import Gpus
from slurmkit.planning.nothing_fits import (
    gpu_error,
    name_a_type,
    no_fit,
    no_fraction,
    no_gpus,
    no_part,
    no_type,
    other_type,
)
from slurmkit.planning.pool import (
    Names,
    Pool,
    canonical,
    gpu_types,
    is_type,
    most_for_a_job,
    per_gpu,
    whole_gpus,
)
from slurmkit.refusals import words

_UNSHARED = "shards share a GPU without isolating memory: one job can take all of it"


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
    return _typed(gpus, pool) if gpus.type else _untyped(gpus, pool, many=many, least=least)


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


def _untyped(gpus: Gpus, pool: Pool, *, many: bool, least: int) -> Kind:
    typed = [n for n in pool.nodes if whole_gpus(n, typed=True)]
    plain = [n for n in pool.nodes if whole_gpus(n, typed=False)]
    sliced = [n for n in pool.nodes if any(g.is_mig for g in n.gres)]
    if not typed and not plain:
        return Kind(findings=(no_gpus(gpus, pool, sliced),))
    whole = {n.name for n in (*typed, *plain)}
    both = [n for n in sliced if n.name in whole]
    if both:
        return Kind(findings=(name_a_type(both),))
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
    there, wanted = gpu_types(pool.nodes), canonical(gpus.type or "", pool.names)
    exact = [t for t in there if t.casefold() == (gpus.type or "").casefold()]
    fits = exact or [t for t in there if canonical(t, pool.names) == wanted]
    if len(fits) == 1:
        return Kind(type=fits[0], fitting=_having(pool.nodes, fits[0]))
    if fits:
        return Kind(type=gpus.type, findings=(_several(gpus, fits),))
    proof = _proved(wanted, pool)
    return proof or Kind(type=gpus.type, findings=(no_type(gpus, wanted, pool),))


def _several(gpus: Gpus, fits: list[str]) -> Finding:
    message = f"GPU type {gpus.type} stands for several here, and a job has one; name it: "
    fix = ((gpus.option, f"{fits[0]}:{gpus.count}"),)
    return gpu_error("gpu-several-types", message + ", ".join(fits), fix=fix)


def _proved(wanted: str, pool: Pool) -> Kind | None:
    """Untyped GPUs whose type is known from a node feature or from the configuration."""
    plain = [n for n in pool.nodes if whole_gpus(n, typed=False)]
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
    fits = [t for t in gpu_types(pool.nodes) if _is_profile(t, gpus, pool.names)]
    if len(fits) == 1:
        return Kind(type=fits[0], fitting=_having(pool.nodes, fits[0]))
    if fits:
        choices = ", ".join(f"gpu:{t}" for t in fits)
        message = words("mig-profile", asked=gpus.mig, types=choices)
        return Kind(type=gpus.mig, findings=(gpu_error("mig-profile", message),))
    return Kind(type=gpus.mig, findings=(no_type(gpus, (gpus.mig or "").casefold(), pool),))


def _is_profile(type_: str, gpus: Gpus, names: Names) -> bool:
    """`3g.20gb` means `a100_3g.20gb`; with a type only that of this GPU, by any of its names."""
    spelled, profile = type_.casefold(), (gpus.mig or "").casefold()
    if spelled != profile and not spelled.endswith((f"_{profile}", f"-{profile}")):
        return False
    whole = spelled.removesuffix(profile).rstrip("_-")
    wanted = (gpus.type or "").casefold()
    return spelled.startswith(wanted) or canonical(whole, names) == canonical(wanted, names)


# --- parts of a GPU -----------------------------------------------------------------------------


def _part(gpus: Gpus, pool: Pool, name: str, units: int) -> Kind:
    nodes = [n for n in pool.nodes if n.count(name)]
    if not nodes:
        return Kind(gres=name, units=units, findings=(no_part(name, pool),))
    large = [n for n in nodes if most_for_a_job(n, name, several=pool.several) >= units]
    fits = [n for n in large if is_type(n, gpus, pool.names)]
    if not fits:
        return Kind(gres=name, units=units, findings=(no_fit(gpus, pool, name, nodes),))
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
    nodes = [n for n in cut_up if is_type(n, gpus, pool.names)]
    if not nodes:
        why = other_type(gpus, pool, "shard") if cut_up else no_fraction(part, pool)
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


def _note(code: str, message: str) -> Finding:
    return Finding(severity="note", code=code, message=message, source="GRES of the nodes")


def _gpus(nodes: Iterable[Node], least: int) -> int:
    """GPUs on nodes that have at least so many."""
    return sum(count for node in nodes if (count := node.count("gpu")) >= least)


def _having(nodes: Iterable[Node], type_: str) -> tuple[Node, ...]:
    return tuple(n for n in nodes if n.count("gpu", type_))
