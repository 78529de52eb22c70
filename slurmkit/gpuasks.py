"""GPUs asked for by several options at once: per node, per task and in all must come to the same.

sbatch takes them together and works out nodes or tasks that were not given (sbatch(1) `--gpus`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slurmkit.errors import BadInput
from slurmkit.gpus import Gpus, Per
from slurmkit.spec import node_sizes

_SIZES = ("nodes", "ntasks", "ntasks_per_node")


def agreed(asked: Mapping[str, Gpus], given: Mapping[str, Any]) -> tuple[Gpus, dict[str, int]]:
    """One request out of what each option asks for, and the sizes of the job that follow from it.

    Args:
        asked: option without dashes to its GPUs; at least one.
        given: fields of the JobSpec so far.

    Raises:
        BadInput: naming two options that do not agree.
    """
    first, *more = asked
    counts: dict[Per, int] = {asked[first].per: asked[first].count}
    kind = asked[first]
    for name in more:
        kind = _same_kind((first, kind), (name, asked[name]))
        if counts.setdefault(asked[name].per, asked[name].count) != asked[name].count:
            raise _disagree(asked, "")
    sizes = {name: given[name] for name in _SIZES if isinstance(given.get(name), int)}
    found = _worked_out(counts, sizes) if more else sizes
    if more and not (_adds_up(counts, found) and _in_range(given.get("nodes"), found)):
        raise _disagree(asked, _words(sizes))
    per = next(each for each in ("node", "task", "job") if each in counts)
    gpus = msgspec.structs.replace(kind, count=counts[per], per=per)
    return gpus, {name: size for name, size in found.items() if name not in sizes}


def _same_kind(one: tuple[str, Gpus], other: tuple[str, Gpus]) -> Gpus:
    """The kind that both ask for; one may leave the type to the other."""
    (name, first), (more, second) = one, other
    names = {(g.mig or g.type or "").casefold() for g in (first, second)} - {""}
    if first.is_part or second.is_part or len(names) > 1:
        raise BadInput(
            f"--{more} asks for other GPUs than --{name}: {second} and {first}; a job has GPUs of"
            " one kind"
        )
    return first if first.mig or first.type else second


def _worked_out(counts: Mapping[Per, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that were not given, as far as the counts of GPUs tell them."""
    node, task, job = (counts.get(per) for per in ("node", "task", "job"))
    found = dict(sizes)
    if node and task:  # said even where it follows, or Slurm might put 3 tasks and 1 on two nodes
        found.setdefault("ntasks_per_node", node // task)
    if "nodes" in found and "ntasks_per_node" in found:
        found.setdefault("ntasks", found["nodes"] * found["ntasks_per_node"])
    if task and job:
        found.setdefault("ntasks", job // task)
    if node and job:
        found.setdefault("nodes", job // node)
    if node and task and "ntasks" in found:
        found.setdefault("nodes", max(1, found["ntasks"] * task // node))
    return found


def _adds_up(counts: Mapping[Per, int], sizes: Mapping[str, int]) -> bool:
    node, task, job = (counts.get(per) for per in ("node", "task", "job"))
    nodes, on_each = sizes.get("nodes", 1), sizes.get("ntasks_per_node", 1)
    tasks = sizes.get("ntasks", nodes * on_each)
    in_all = [node * nodes if node else None, task * tasks if task else None, job]
    whole_tasks = not (node and task and node % task)
    return whole_tasks and len({number for number in in_all if number is not None}) == 1


def _in_range(asked: int | str | None, sizes: Mapping[str, int]) -> bool:
    ends = node_sizes(asked)
    return not ends or min(ends) <= sizes.get("nodes", min(ends)) <= max(ends)


def _words(sizes: Mapping[str, int]) -> str:
    said = " ".join(f"--{name.replace('_', '-')}={size}" for name, size in sizes.items())
    return f" with {said}" if said else ""


def _disagree(asked: Mapping[str, Gpus], where: str) -> BadInput:
    words = {name: f"gpu:{gpus}" if name == "gres" else str(gpus) for name, gpus in asked.items()}
    said = " and ".join(f"--{name}={text}" for name, text in words.items())
    return BadInput(f"{said} do not agree{where}; give one of them, or numbers that come to one")
