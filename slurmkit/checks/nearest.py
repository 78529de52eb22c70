"""The nearest request that fits: options changed one at a time until no check says no.

The checks themselves judge every candidate, so a fix of one limit keeps to all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from slurmkit.capabilities.model import Partition
from slurmkit.checks.again import Again, rebuilder
from slurmkit.checks.knobs import Knob, knobs
from slurmkit.checks.say import Pairs
from slurmkit.findings import Finding
from slurmkit.request import Request

Judge = Callable[[Request], Iterable[Finding]]

_STEPS = 8
# Of these a shorter time is the nearest way out, whatever else would do.
_TIMES = ("time", "wall", "mins", "deadline")


class Search:
    """Looks for fixes of one request.

    Args:
        request: the request that does not fit.
        judge: every check, without fixes of its own making.
    """

    def __init__(self, request: Request, judge: Judge) -> None:
        self._request = request
        self._judge = judge
        self._again: Again = rebuilder(request)

    def fix(self, finding: Finding) -> Pairs:
        """Options with which the request passes; () when none were found."""
        changed: dict[str, str] = {}
        state, given_up = self._request, set[str]()
        target: Finding | None = finding
        for _ in range(_STEPS):
            if target is None:
                break
            step = self._step(state, changed, target)
            if not step:
                if target.code == finding.code:
                    return ()
                given_up.add(target.code)
            else:
                changed |= step
                state = self._again(tuple(changed.items())) or state
            target = next((e for e in self._errors(state) if e.code not in given_up), None)
        return tuple(changed.items()) if finding.code not in self._codes(state) else ()

    def _errors(self, request: Request) -> list[Finding]:
        return [found for found in self._judge(request) if found.severity == "error"]

    def _codes(self, request: Request) -> set[str]:
        return {found.code for found in self._errors(request)}

    def _step(self, state: Request, changed: dict[str, str], target: Finding) -> dict[str, str]:
        """The one change that takes `target` away and leaves the most."""
        if target.fix and self._helps(changed, target.fix, target.code):
            return dict(target.fix)
        turned = [(kept, pairs) for kept, pairs in self._turned(state, changed, target)]
        if turned:
            return dict(max(turned, key=lambda found: found[0])[1])
        others = (p for p in self._elsewhere(state, target) if self._passes(changed, p))
        return dict(next(others, ()))

    def _turned(
        self, state: Request, changed: dict[str, str], target: Finding
    ) -> Iterator[tuple[float, Pairs]]:
        all_knobs = list(knobs(state))
        if any(word in target.code for word in _TIMES):
            time = [knob for knob in all_knobs if knob.name == "time"]
            found = list(self._lowered(time, changed, target))
            if found:
                yield from found
                return
        yield from self._lowered(all_knobs, changed, target)

    def _lowered(
        self, turning: Iterable[Knob], changed: dict[str, str], target: Finding
    ) -> Iterator[tuple[float, Pairs]]:
        for knob in turning:
            value = self._largest(knob, changed, target.code)
            if value is not None:
                yield value / knob.now, knob.make(value)

    def _largest(self, knob: Knob, changed: dict[str, str], code: str) -> int | None:
        """The largest value below now with which `code` is gone."""
        if knob.now < 2 or not self._helps(changed, knob.make(1), code):
            return None
        low, high = 1, knob.now
        while high - low > 1:
            middle = (low + high) // 2
            if self._helps(changed, knob.make(middle), code):
                low = middle
            else:
                high = middle
        return low

    def _helps(self, changed: dict[str, str], pairs: Pairs, code: str) -> bool:
        request = self._again(tuple({**changed, **dict(pairs)}.items()))
        return request is not None and code not in self._codes(request)

    def _passes(self, changed: dict[str, str], pairs: Pairs) -> bool:
        request = self._again(tuple({**changed, **dict(pairs)}.items()))
        return request is not None and not self._errors(request)

    def _elsewhere(self, state: Request, target: Finding) -> Iterator[Pairs]:
        """Another QOS, account or partition."""
        if "qos" in target.code and state.association is not None:
            now = state.qos.name if state.qos else ""
            yield from ((("qos", name),) for name in state.association.qos if name != now)
        if "account" in target.code:
            own = {a.account for a in state.standing.associations if a.user == state.standing.user}
            yield from ((("account", name),) for name in sorted(own - {state.account}))
        for partition in sorted(state.capabilities.partitions, key=lambda p: _wasted(state, p)):
            if partition.name != state.partition.name:
                yield (("partition", partition.name),)


def _wasted(request: Request, partition: Partition) -> bool:
    """Whether a job without GPUs would take up nodes that have some."""
    nodes = request.capabilities.nodes_of(partition.name)
    return request.spec.gpus is None and any(node.count("gpu") for node in nodes)
