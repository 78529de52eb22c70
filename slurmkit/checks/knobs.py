"""What of a request can be made smaller, and the options that do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from slurmkit.arrays import fold
from slurmkit.checks.say import Pairs, memory_option, wall
from slurmkit.checks.walls import minutes
from slurmkit.jobs.ids import spans
from slurmkit.request import Request

_GIB = 1024


class Knob(NamedTuple):
    """One amount that a fix may lower, from `now` down to 1."""

    name: str
    now: int
    make: Callable[[int], Pairs]


def knobs(request: Request) -> Iterator[Knob]:
    """Every knob of a request; of two that keep as much, the first is taken."""
    time = minutes(request)
    if time is not None:
        yield Knob("time", time, lambda value: (("time", wall(value)),))
    yield from _memory(request)
    yield from _cpus(request)
    yield from _nodes(request)
    yield from _gpus(request)
    if request.spec.array is not None:
        tasks = request.tasks_in_array
        yield Knob("array", tasks, lambda value: (("array", first(request, value)),))


def _memory(request: Request) -> Iterator[Knob]:
    wanted, spec = request.per_node.get("mem"), request.spec
    if wanted is None:
        return
    name, times = "mem", 1
    if spec.mem_per_cpu is not None:
        name, times = "mem-per-cpu", request.per_node.get("cpu", 1)
    elif spec.mem_per_gpu is not None:
        name, times = "mem-per-gpu", request.per_node.get("gres/gpu", 1)
    yield Knob("mem", wanted // max(times, 1), lambda value: ((name, _whole_gib(value)),))


def _whole_gib(mebibytes: int) -> str:
    """Rounded down to GiB where there are some, so that a fix reads well."""
    return memory_option(mebibytes - mebibytes % _GIB if mebibytes > 2 * _GIB else mebibytes)


def _cpus(request: Request) -> Iterator[Knob]:
    spec = request.spec
    cpus = spec.cpus_per_task or request.cpus_per_task
    if cpus > 1:
        yield Knob("cpus", cpus, lambda value: (("cpus-per-task", str(value)),))
    for name, tasks in (("ntasks-per-node", spec.ntasks_per_node), ("ntasks", spec.ntasks)):
        if tasks is not None and tasks > 1:
            yield Knob("tasks", tasks, _set(name))


def _set(name: str) -> Callable[[int], Pairs]:
    return lambda value: ((name, str(value)),)


def _nodes(request: Request) -> Iterator[Knob]:
    """Fewer nodes, with as many tasks on each."""
    spec, nodes = request.spec, request.nodes
    if nodes > 1 and spec.nodes is not None:
        yield Knob("nodes", nodes, lambda value: _on_fewer(request, value))


def _on_fewer(request: Request, value: int) -> Pairs:
    spec, nodes = request.spec, request.nodes
    pairs: Pairs = (("nodes", str(value)),)
    if spec.ntasks is not None:
        pairs += (("ntasks", str(max(1, spec.ntasks * value // nodes))),)
    if spec.gpus is not None and spec.gpus.per == "job":
        kind = spec.gpus.mig or spec.gpus.type
        count = max(value, spec.gpus.count * value // nodes)
        pairs += (("gpus", f"{kind}:{count}" if kind else str(count)),)
    return pairs


def _gpus(request: Request) -> Iterator[Knob]:
    gpus = request.spec.gpus
    if gpus is None or gpus.fraction is not None:
        return
    if gpus.shard or gpus.mps:
        name, units = ("shard", gpus.shard) if gpus.shard else ("mps", gpus.mps)
        yield Knob("gpus", units or 1, lambda value: (("gres", f"{name}:{value}"),))
        return
    kind = gpus.mig or gpus.type
    prefix = f"{kind}:" if kind else ""
    times = request.nodes if gpus.per == "job" and gpus.count % request.nodes == 0 else 1
    yield Knob(
        "gpus", gpus.count // times, lambda value: ((gpus.option, f"{prefix}{value * times}"),)
    )


def first(request: Request, count: int) -> str:
    """The first so many tasks of the request's array, with the same `%` throttle."""
    text, sign, throttle = (request.spec.array or "").partition("%")
    found = spans(text)
    indexes = sorted(set().union(*found)) if len(found) > 1 else found[0]
    return f"{fold(indexes[:count])}{sign}{throttle}"
