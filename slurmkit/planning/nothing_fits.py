"""Why no GPUs of a cluster are what was asked for: what exists instead, and where."""

from __future__ import annotations

import math

from slurmkit.capabilities.model import Node
from slurmkit.capabilities.nodes import folded
from slurmkit.config import nearest
from slurmkit.findings import Finding
from slurmkit.gpus import Gpus
from slurmkit.planning.pool import (
    Pool,
    canonical,
    gpu_types,
    is_type,
    most_for_a_job,
    per_gpu,
    whole_gpus,
)
from slurmkit.refusals import per_job_code, words


def no_gpus(gpus: Gpus, pool: Pool, sliced: list[Node]) -> Finding:
    """There are no whole GPUs; `sliced` nodes have MIG slices."""
    where = ",".join(pool.partitions)
    if sliced:
        offered = ", ".join(gpu_types(sliced))
        message = f"partition {where} has no whole GPUs, only MIG slices: {offered}"
        option = "gpus-per-task" if gpus.per == "task" else "gpus-per-node"
        return gpu_error("gpu-mig-only", message, fix=((option, f"{gpu_types(sliced)[0]}:1"),))
    return gpu_error("gpu-none", f"partition {where} has no GPUs; {_offers(pool.everywhere)}")


def name_a_type(nodes: list[Node]) -> Finding:
    """Nodes where a GPU without a type could be whole or a slice."""
    offered = ", ".join(gpu_types(nodes))
    message = (
        f"GPUs without a type: {nodes[0].name} has whole GPUs and MIG slices side by side, and"
        f" Slurm would give either; name a type: {offered}"
    )
    return gpu_error("gpu-name-a-type", message)


def no_type(gpus: Gpus, wanted: str, pool: Pool) -> Finding:
    """GPUs of the type `wanted`, in lower case, are elsewhere or nowhere."""
    where, shown = ",".join(pool.partitions), gpus.mig or gpus.type or ""
    elsewhere = _partitions_with(wanted, pool)
    if elsewhere:
        message = f"no {shown} GPUs in partition {where}; partition {', '.join(elsewhere)} has them"
        return gpu_error("gpu-type-elsewhere", message, fix=(("partition", elsewhere[0]),))
    known = gpu_types(pool.everywhere)
    hint = f" {nearest(wanted, known)};" if known else ""
    untyped = [n.name for n in pool.nodes if whole_gpus(n, typed=False)]
    if untyped:
        hint += (
            f" the GPUs of {','.join(untyped)} have no type: ask for a plain number, or have the"
            " site name their type (gpu_type in [partition.NAME])"
        )
    return gpu_error(
        "gpu-no-such-type", f"no GPU type {shown!r} here;{hint} {_offers(pool.everywhere)}".strip()
    )


def _partitions_with(wanted: str, pool: Pool) -> list[str]:
    found: dict[str, None] = {}
    for node in pool.everywhere:
        named = [g.type for g in node.gres if g.name == "gpu" and g.type]
        spelled = {name for t in named for name in (t.casefold(), canonical(t, pool.names))}
        ends = any(t == wanted or t.endswith(f"_{wanted}") for t in spelled)
        found |= dict.fromkeys(node.partitions if ends else ())
    return [name for name in found if name not in pool.partitions]


def no_part(name: str, pool: Pool) -> Finding:
    """There are no shards, or no MPS, in the partition."""
    where = ",".join(pool.partitions)
    having = [n for n in pool.everywhere if n.count(name)]
    there = list(dict.fromkeys(p for n in having for p in n.partitions))
    if there:
        message = f"partition {where} has no {name}; partition {', '.join(there)} has"
        return gpu_error(f"{name}-elsewhere", message, fix=(("partition", there[0]),))
    return gpu_error(f"{name}-none", f"this cluster has no {name}; {_offers(pool.everywhere)}")


def no_fit(gpus: Gpus, pool: Pool, name: str, nodes: list[Node]) -> Finding:
    """`nodes` have shards or MPS, but not so many for one job, or not of that type."""
    fits = [n for n in nodes if is_type(n, gpus, pool.names)]
    if not fits:
        return other_type(gpus, pool, name)
    most = max(most_for_a_job(n, name, several=pool.several) for n in fits)
    code = per_job_code(name, several=pool.several)
    asked = gpus.shard or gpus.mps
    message = words(code, asked=asked, partition=",".join(pool.partitions), most=most)
    return gpu_error(code, message, fix=(("gres", f"{_typed_part(gpus, name)}:{most}"),))


def _typed_part(gpus: Gpus, name: str) -> str:
    return f"{name}:{gpus.type}" if gpus.type else name


def other_type(gpus: Gpus, pool: Pool, name: str) -> Finding:
    """There are shards (or MPS), but not of GPUs of this type."""
    cut = [n for n in pool.nodes if n.count(name)]
    offered = ", ".join(gpu_types(cut)) or "GPUs without a type"
    message = f"no {name} of {gpus.type} GPUs in partition {','.join(pool.partitions)}"
    away = [n for n in pool.everywhere if n.count(name) and is_type(n, gpus, pool.names)]
    there = list(dict.fromkeys(p for n in away for p in n.partitions))
    if there:
        message += f"; partition {', '.join(there)} has"
        return gpu_error(f"{name}-elsewhere", message, fix=(("partition", there[0]),))
    return gpu_error(f"{name}-other-type", f"{message}, nor anywhere; {name} is cut from {offered}")


def no_fraction(part: float, pool: Pool) -> Finding:
    """Nothing is there that a part of a GPU could be made of."""
    where = ",".join(pool.partitions)
    sharded = [n for n in pool.everywhere if per_gpu(n, "shard") and n.partitions]
    mps = [n for n in pool.everywhere if per_gpu(n, "mps") and n.partitions]
    message = f"{part:g} of a GPU: partition {where} has no shards"
    if sharded:
        there = sharded[0].partitions[0]
        fix = (("partition", there),)
        return gpu_error("fraction-elsewhere", f"{message}; partition {there} has", fix=fix)
    if mps:
        units = max(1, math.ceil(part * per_gpu(mps[0], "mps") - 1e-9))
        there = mps[0].partitions[0]
        message += f"; partition {there} has MPS"
        return gpu_error(
            "fraction-none", message, fix=(("gres", f"mps:{units}"), ("partition", there))
        )
    return gpu_error(
        "fraction-none", f"{message}, nor has this cluster; {_offers(pool.everywhere)}"
    )


def _offers(nodes: tuple[Node, ...]) -> str:
    """What GPUs exist and where: `it has a100 on c[1-2], GPUs without a type on c4`."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for gres in node.gres:
            if gres.name == "gpu":
                found.setdefault(gres.type or "GPUs without a type", []).append(node.name)
    listed = (f"{kind} on {folded(names)}" for kind, names in found.items())
    return f"the cluster has {', '.join(listed)}" if found else "the cluster has no GPUs at all"


def gpu_error(code: str, message: str, fix: tuple[tuple[str, str], ...] = ()) -> Finding:
    """An error about what the nodes have."""
    return Finding(
        severity="error", code=code, message=message, source="GRES of the nodes", fix=fix
    )
