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
Changed = dict[str, str]

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
        self._known: dict[Pairs, tuple[Request | None, tuple[Finding, ...]]] = {}
        self._whole: Changed | None = None

    def fix(self, finding: Finding) -> Pairs:
        """Options with which the request passes; () when none were found."""
        if self._whole is None:
            self._whole = self._path(self._errors({})[0])
        if self._whole and not self._errors(self._whole):
            return tuple(self._whole.items())
        changed = self._path(finding)
        return tuple(changed.items()) if finding.code not in self._codes(changed) else ()

    def _path(self, finding: Finding) -> Changed:
        """Take one error after the other away, `finding` first."""
        changed: Changed = {}
        given_up = set[str]()
        target: Finding | None = finding
        for _ in range(_STEPS):
            if target is None:
                break
            step = self._step(changed, target)
            changed |= step
            given_up |= set() if step else {target.code}
            left = (each for each in self._errors(changed) if each.code not in given_up)
            target = next(left, None)
        return changed

    def _step(self, changed: Changed, target: Finding) -> Changed:
        """The change that takes `target` away and leaves the most."""
        if target.fix and self._helps(changed, target.fix, target.code):
            return dict(target.fix)
        turned = list(self._turned(changed, target)) or list(self._two(changed, target))
        if turned:
            return dict(max(turned, key=lambda found: found[0])[1])
        others = (pairs for pairs in self._elsewhere(target) if self._passes(changed, pairs))
        return dict(next(others, ()))

    def _turned(self, changed: Changed, target: Finding) -> Iterator[tuple[float, Pairs]]:
        """How much is kept by lowering one knob, for each that helps."""
        turning = self._knobs(changed)
        if any(word in target.code for word in _TIMES):
            time = [knob for knob in turning if knob.name == "time"]
            found = list(self._lowered(time, changed, target))
            if found:
                yield from found
                return
        yield from self._lowered(turning, changed, target)

    def _two(self, changed: Changed, target: Finding) -> Iterator[tuple[float, Pairs]]:
        """As `_turned`, with another knob turned to its end first."""
        for knob in self._knobs(changed):
            least = knob.make(1)
            then = changed | dict(least)
            for kept, pairs in self._lowered(self._knobs(then), then, target):
                yield kept / knob.now, (*least, *pairs)

    def _knobs(self, changed: Changed) -> list[Knob]:
        request = self._made(changed)
        return [knob for knob in knobs(request) if knob.now > 1] if request else []

    def _lowered(
        self, turning: Iterable[Knob], changed: Changed, target: Finding
    ) -> Iterator[tuple[float, Pairs]]:
        for knob in turning:
            value = self._largest(knob, changed, target.code)
            if value is not None:
                yield value / knob.now, knob.make(value)

    def _largest(self, knob: Knob, changed: Changed, code: str) -> int | None:
        """The largest value below now with which `code` is gone."""
        if not self._helps(changed, knob.make(1), code):
            return None
        low, high = 1, knob.now
        while high - low > 1:
            middle = (low + high) // 2
            if self._helps(changed, knob.make(middle), code):
                low = middle
            else:
                high = middle
        return low

    def _helps(self, changed: Changed, pairs: Pairs, code: str) -> bool:
        then = changed | dict(pairs)
        return self._made(then) is not None and code not in self._codes(then)

    def _passes(self, changed: Changed, pairs: Pairs) -> bool:
        then = changed | dict(pairs)
        return self._made(then) is not None and not self._errors(then)

    def _made(self, changed: Changed) -> Request | None:
        return self._look(changed)[0]

    def _errors(self, changed: Changed) -> tuple[Finding, ...]:
        return self._look(changed)[1]

    def _codes(self, changed: Changed) -> set[str]:
        return {found.code for found in self._errors(changed)}

    def _look(self, changed: Changed) -> tuple[Request | None, tuple[Finding, ...]]:
        """The request with options changed, and its errors; each is judged once."""
        key = tuple(sorted(changed.items()))
        if key not in self._known:
            request = self._again(key) if changed else self._request
            said = self._judge(request) if request else ()
            self._known[key] = request, tuple(f for f in said if f.severity == "error")
        return self._known[key]

    def _elsewhere(self, target: Finding) -> Iterator[Pairs]:
        """Another QOS, account or partition."""
        asked = self._request
        if "qos" in target.code and asked.association is not None:
            now = asked.qos.name if asked.qos else ""
            yield from ((("qos", name),) for name in asked.association.qos if name != now)
        if "account" in target.code:
            own = {a.account for a in asked.standing.associations if a.user == asked.standing.user}
            yield from ((("account", name),) for name in sorted(own - {asked.account}))
        for partition in sorted(asked.capabilities.partitions, key=lambda p: _wasted(asked, p)):
            if partition.name != asked.partition.name:
                yield (("partition", partition.name),)


def _wasted(request: Request, partition: Partition) -> bool:
    """Whether a job without GPUs would take up nodes that have some."""
    nodes = request.capabilities.nodes_of(partition.name)
    return request.spec.gpus is None and any(node.count("gpu") for node in nodes)
