"""The nearest request that fits, found by changing one option at a time.

All checks judge every candidate, so a fix of one limit respects all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from slurmkit.errors import BadInput
from slurmkit.formats.durations import format_minutes
from slurmkit.formats.job_ids import parse_index_spans
from slurmkit.formats.memory import memory_option
from slurmkit.planning.checks.limits_use import time_limit_minutes
from slurmkit.planning.request import JobShape, Request, SiteState, fitting_nodes, request_for
from slurmkit.planning.shape import job_shape, load_gpu_type_names
from slurmkit.spec.findings import Finding, Pairs
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.sbatch_options import with_options
from slurmkit.state.arrays import format_indices
from slurmkit.state.model import Node, Partition

Check = Callable[[Request], Iterable[Finding]]
ChangedOptions = dict[str, str]
FindingKey = tuple[str, str]

_STEPS = 8
# For these errors a shorter time limit is preferred to any other change.
_TIME_WORDS = ("time", "wall", "mins", "deadline")
RequestBuilder = Callable[[Pairs], Request | None]
# Fields of a spec that decide its shape; most fixes that are tried change other fields only.
_SHAPING = (
    *("nodes ntasks ntasks_per_node cpus_per_task gpus partition constraint nodelist".split()),
    *("exclude ntasks_per_gpu cpus_per_gpu mincpus sockets_per_node cores_per_socket".split()),
    "threads_per_core",
)
FittedShape = tuple[JobShape, tuple[Node, ...]]
_GIB = 1024


class FixSearch:
    """A search for fixes of one request that has errors.

    Args:
        request: the request that does not fit.
        checks: all of them.
    """

    def __init__(self, request: Request, checks: Sequence[Check]) -> None:
        self._checks = checks
        self._again: RequestBuilder = request_builder(request)
        self._requests: dict[Pairs, Request | None] = {(): request}
        self._errors_found: dict[Pairs, tuple[Finding, ...]] = {}
        self._own_doubts: frozenset[FindingKey] = frozenset()  # those of the request as it is
        self._reported_by: dict[FindingKey, Check] = {}  # the check that reported an error
        self._fix_for_all: ChangedOptions | None = None

    def fix(self, finding: Finding) -> Pairs:
        """Return options with which the request passes, or at least without this finding.

        The result is empty when the search found none.
        """
        if self._fix_for_all is None:
            paths = map(self._path, self._errors({}))
            self._fix_for_all = next((path for path in paths if not self._errors(path)), {})
        changed = self._fix_for_all or self._path(finding)
        left = {each.code for each in self._errors(changed)}
        return tuple(changed.items()) if finding.code not in left else ()

    def _path(self, finding: Finding) -> ChangedOptions:
        """Return the changes that remove one error after the other, `finding` first."""
        changed: ChangedOptions = {}
        given_up = set[FindingKey]()
        target: Finding | None = finding
        for _ in range(_STEPS):
            if target is None:
                break
            step = self._step(changed, target)
            changed |= step
            given_up |= set() if step else {target.key}
            left = (each for each in self._errors(changed) if each.key not in given_up)
            target = next(left, None)
        return changed

    def _step(self, changed: ChangedOptions, target: Finding) -> ChangedOptions:
        """Return the change that removes `target` and keeps the most."""
        if target.fix and self._removes(changed, dict(target.fix), target):
            return dict(target.fix)
        lowered = list(self._lower_one(changed, target))
        if lowered:
            return dict(max(lowered, key=lambda share_and_options: share_and_options[0])[1])
        if all_lowered := self._lower_all(changed, target):
            return all_lowered
        others = (pairs for pairs in self._elsewhere(target) if self._passes(changed, dict(pairs)))
        return dict(next(others, ()))

    def _lower_one(self, changed: ChangedOptions, target: Finding) -> Iterator[tuple[float, Pairs]]:
        """Yield, for each amount whose lowering helps, the remaining share and the options."""
        amounts = self._knobs(changed)
        if any(word in target.code for word in _TIME_WORDS):
            time = [knob for knob in amounts if knob.name == "time"]
            lowered = list(self._lower_each(time, changed, target))
            if lowered:
                yield from lowered
                return
        yield from self._lower_each(amounts, changed, target)

    def _lower_all(self, changed: ChangedOptions, target: Finding) -> ChangedOptions:
        """Lower every amount to 1, then raise one after the other as far as possible."""
        amounts = self._knobs(changed)
        options = {name: value for knob in amounts for name, value in knob.make(1)}
        if not self._removes(changed, options, target):
            return {}
        for knob in amounts:
            own = dict(knob.make(1))
            rest = {name: value for name, value in options.items() if name not in own}
            if self._removes(changed, rest, target):
                options = rest
            else:
                value = self._largest(knob, changed | rest, target) or 1
                options = rest | dict(knob.make(value))
        return options

    def _knobs(self, changed: ChangedOptions) -> list[AdjustableAmount]:
        request = self._rebuilt(changed)
        return [knob for knob in adjustable_amounts(request) if knob.now > 1] if request else []

    def _lower_each(
        self, amounts: Iterable[AdjustableAmount], changed: ChangedOptions, target: Finding
    ) -> Iterator[tuple[float, Pairs]]:
        for knob in amounts:
            value = self._largest(knob, changed, target)
            if value is not None:
                yield value / knob.now, knob.make(value)

    def _largest(
        self, knob: AdjustableAmount, changed: ChangedOptions, target: Finding
    ) -> int | None:
        """Return the largest value below the present one with which `target` is gone."""
        if not self._removes(changed, dict(knob.make(1)), target):
            return None
        low, high = 1, knob.now
        while high - low > 1:
            middle = (low + high) // 2
            if self._removes(changed, dict(knob.make(middle)), target):
                low = middle
            else:
                high = middle
        return low

    def _removes(self, changed: ChangedOptions, more: ChangedOptions, target: Finding) -> bool:
        """Return whether `target` is gone; only the check that reported it is run again."""
        request = self._rebuilt(changed | more)
        if request is None:
            return False
        reported_by = self._reported_by.get(target.key)
        checks = [reported_by] if reported_by else self._checks
        left = (each for check in checks for each in check(request))
        return not any(each.keeps_from_starting and each.key == target.key for each in left)

    def _passes(self, changed: ChangedOptions, more: ChangedOptions) -> bool:
        then = changed | more
        return self._rebuilt(then) is not None and not self._errors(then)

    def _rebuilt(self, changed: ChangedOptions) -> Request | None:
        """Return the request with changed options; each is built once."""
        key = tuple(sorted(changed.items()))
        if key not in self._requests:
            self._requests[key] = self._again(key)
        return self._requests[key]

    def _errors(self, changed: ChangedOptions) -> tuple[Finding, ...]:
        """Return errors and new doubts about the request with changed options, judged once."""
        key = tuple(sorted(changed.items()))
        if key and () not in self._errors_found:
            self._errors({})
        if key not in self._errors_found:
            request = self._rebuilt(changed)
            found = tuple(self._judged(request)) if request else ()
            if not key:
                doubts = (each.key for each in found if each.severity != "error")
                self._own_doubts = frozenset(doubts)
            self._errors_found[key] = tuple(
                each
                for each in found
                if each.severity == "error" or each.key not in self._own_doubts
            )
        return self._errors_found[key]

    def _judged(self, request: Request) -> Iterator[Finding]:
        for check in self._checks:
            for finding in check(request):
                if finding.keeps_from_starting:
                    self._reported_by[finding.key] = check
                    yield finding

    def _elsewhere(self, target: Finding) -> Iterator[Pairs]:
        """Yield options for another QOS, account or partition."""
        asked = self._rebuilt({})
        if asked is None:
            return
        if "qos" in target.code and asked.association is not None:
            now = asked.qos.name if asked.qos else ""
            yield from ((("qos", name),) for name in asked.association.qos if name != now)
        if "account" in target.code:
            own = {a.account for a in asked.standing.associations if a.user == asked.standing.user}
            yield from ((("account", name),) for name in sorted(own - {asked.account}))
        for partition in sorted(
            asked.capabilities.partitions, key=lambda p: _wastes_gpus(asked, p)
        ):
            if partition.name != asked.partition.name:
                yield (("partition", partition.name),)


def _wastes_gpus(request: Request, partition: Partition) -> bool:
    """Return whether a job without GPUs would occupy nodes that have GPUs."""
    nodes = request.capabilities.nodes_of(partition.name)
    return request.spec.gpus is None and any(node.count("gpu") for node in nodes)


def request_builder(request: Request) -> RequestBuilder:
    """Return a function from options to the changed request; None where there is none."""
    shapes = _ShapeCache(request)

    def again(pairs: Pairs) -> Request | None:
        try:
            return _rebuild(request, with_options(request.spec, pairs), shapes)
        except BadInput:
            return None

    return again


def _rebuild(request: Request, spec: JobSpec, shapes: _ShapeCache) -> Request | None:
    asked = (spec.partition or request.partition.name).split(",")
    name = request.partition.name if request.partition.name in asked else asked[0]
    partition = request.capabilities.partition(name)
    fitted = shapes.of(spec, asked, partition) if partition else None
    if partition is None or fitted is None:
        return None
    shape, fitting = fitted
    site = SiteState(request.capabilities, request.standing)
    return request_for(spec, shape, partition, site, fitting)


class _ShapeCache:
    """A cache of the shapes of one spec as it is changed, and of the nodes that fit them."""

    def __init__(self, request: Request) -> None:
        self._known = request.capabilities
        self._names = load_gpu_type_names()
        self._found: dict[tuple[object, ...], FittedShape | None] = {}

    def of(self, spec: JobSpec, asked: list[str], partition: Partition) -> FittedShape | None:
        """Return the shape and its nodes; None where the GPUs asked for do not exist."""
        shaping = tuple(getattr(spec, name) for name in _SHAPING)
        key = (*shaping, *sorted(spec.options.items()), *asked, partition.name)
        if key not in self._found:
            self._found[key] = self._find(spec, asked, partition)
        return self._found[key]

    def _find(self, spec: JobSpec, asked: list[str], partition: Partition) -> FittedShape | None:
        partitions = tuple(filter(None, map(self._known.partition, asked)))
        kind, layout = shape = job_shape(spec, self._known, partitions, self._names)
        findings = (*(kind.findings if kind else ()), *layout.findings)
        if any(finding.severity == "error" for finding in findings):
            return None
        return shape, fitting_nodes(spec, kind, self._known.nodes_of(partition.name))


class AdjustableAmount(NamedTuple):
    """One amount that a fix may lower, from `now` down to 1.

    Attributes:
        make: takes the new amount and returns the options that ask for it.
    """

    name: str
    now: int
    make: Callable[[int], Pairs]


def adjustable_amounts(request: Request) -> Iterator[AdjustableAmount]:
    """Yield every adjustable amount of a request; of equally good ones the first is taken."""
    time = time_limit_minutes(request)
    if time is not None:
        yield AdjustableAmount("time", time, lambda value: (("time", format_minutes(value)),))
    yield from _memory(request)
    yield from _cpus(request)
    yield from _nodes(request)
    yield from _gpus(request)
    if request.spec.array is not None:
        tasks = request.tasks_in_array
        yield AdjustableAmount(
            "array", tasks, lambda value: (("array", first_tasks(request, value)),)
        )


def _memory(request: Request) -> Iterator[AdjustableAmount]:
    wanted, spec = request.per_node.get("mem"), request.spec
    if wanted is None:
        return
    name, times = "mem", 1
    if spec.mem_per_cpu is not None:
        name, times = "mem-per-cpu", request.per_node.get("cpu", 1)
    elif spec.mem_per_gpu is not None:
        name, times = "mem-per-gpu", request.per_node.get("gres/gpu", 1)
    yield AdjustableAmount(
        "mem", wanted // max(times, 1), lambda value: ((name, _whole_gib(value)),)
    )


def _whole_gib(mebibytes: int) -> str:
    """Return a memory option, rounded down to GiB above 2 GiB so that a fix reads well."""
    return memory_option(mebibytes - mebibytes % _GIB if mebibytes > 2 * _GIB else mebibytes)


def _cpus(request: Request) -> Iterator[AdjustableAmount]:
    spec = request.spec
    cpus = spec.cpus_per_task or request.cpus_per_task
    if spec.cpus_per_gpu is not None:
        yield AdjustableAmount("cpus", spec.cpus_per_gpu, _set("cpus-per-gpu"))
    elif cpus > 1:
        yield AdjustableAmount("cpus", cpus, lambda value: (("cpus-per-task", str(value)),))
    for name, tasks in (("ntasks-per-node", spec.ntasks_per_node), ("ntasks", spec.ntasks)):
        if tasks is not None and tasks > 1:
            yield AdjustableAmount("tasks", tasks, _set(name))


def _set(name: str) -> Callable[[int], Pairs]:
    return lambda value: ((name, str(value)),)


def _nodes(request: Request) -> Iterator[AdjustableAmount]:
    """Yield the number of nodes, with the same number of tasks on each."""
    spec, nodes = request.spec, request.nodes
    if nodes > 1 and spec.nodes is not None:
        yield AdjustableAmount("nodes", nodes, lambda value: _on_fewer_nodes(request, value))


def _on_fewer_nodes(request: Request, value: int) -> Pairs:
    spec, nodes = request.spec, request.nodes
    pairs: Pairs = (("nodes", str(value)),)
    if spec.ntasks is not None:
        pairs += (("ntasks", str(max(1, spec.ntasks * value // nodes))),)
    if spec.gpus is not None and spec.gpus.per == "job":
        kind = spec.gpus.mig or spec.gpus.type
        count = max(value, spec.gpus.count * value // nodes)
        pairs += (("gpus", f"{kind}:{count}" if kind else str(count)),)
    return pairs


def _gpus(request: Request) -> Iterator[AdjustableAmount]:
    gpus = request.spec.gpus
    if gpus is None or gpus.fraction is not None:
        return
    if gpus.shard or gpus.mps:
        name, units = ("shard", gpus.shard) if gpus.shard else ("mps", gpus.mps)
        yield AdjustableAmount("gpus", units or 1, lambda value: (("gres", f"{name}:{value}"),))
        return
    kind = gpus.mig or gpus.type
    prefix = f"{kind}:" if kind else ""
    if gpus.sockets:
        sockets = ("sockets-per-node", str(gpus.sockets))
        yield AdjustableAmount(
            "gpus",
            gpus.count // gpus.sockets,
            lambda value: (("gpus-per-socket", f"{prefix}{value}"), sockets),
        )
        return
    times = request.nodes if gpus.per == "job" and gpus.count % request.nodes == 0 else 1
    most = max((node.count("gpu", kind) for node in request.fitting), default=0)
    if gpus.per == "job" and request.spec.nodes is None and gpus.count > most > 0:
        times = most  # whole nodes: other numbers may not divide over few of them
    yield AdjustableAmount(
        "gpus", -(-gpus.count // times), lambda value: ((gpus.option, f"{prefix}{value * times}"),)
    )


def first_tasks(request: Request, count: int) -> str:
    """Return the first `count` tasks of the request's array, with the same `%` throttle."""
    text, sign, throttle = (request.spec.array or "").partition("%")
    parts = parse_index_spans(text)
    indexes = sorted(set().union(*parts)) if len(parts) > 1 else parts[0]
    return f"{format_indices(indexes[:count])}{sign}{throttle}"
