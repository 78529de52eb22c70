"""The nearest request that fits: options changed one at a time until no check says no.

The checks themselves judge every candidate, so a fix of one limit keeps to all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from slurmkit.capabilities.model import Partition
from slurmkit.checks.again import Again, rebuilder
from slurmkit.checks.knobs import Knob, knobs
from slurmkit.checks.say import Pairs
from slurmkit.findings import Finding
from slurmkit.request import Request

Check = Callable[[Request], Iterable[Finding]]
Changed = dict[str, str]
Key = tuple[str, str]

_STEPS = 8
# Of these a shorter time is the nearest way out, whatever else would do.
_TIMES = ("time", "wall", "mins", "deadline")


class Search:
    """Looks for fixes of one request.

    Args:
        request: the request that does not fit.
        checks: all of them.
    """

    def __init__(self, request: Request, checks: Sequence[Check]) -> None:
        self._checks = checks
        self._again: Again = rebuilder(request)
        self._requests: dict[Pairs, Request | None] = {(): request}
        self._known: dict[Pairs, tuple[Finding, ...]] = {}
        self._from: dict[Key, Check] = {}  # which check an error is from
        self._whole: Changed | None = None

    def fix(self, finding: Finding) -> Pairs:
        """Options with which the request passes, or else at least without this finding.

        Nothing was found where there are none.
        """
        if self._whole is None:
            paths = map(self._path, self._errors({}))
            self._whole = next((path for path in paths if not self._errors(path)), {})
        changed = self._whole or self._path(finding)
        left = {each.code for each in self._errors(changed)}
        return tuple(changed.items()) if finding.code not in left else ()

    def _path(self, finding: Finding) -> Changed:
        """Take one error after the other away, `finding` first."""
        changed: Changed = {}
        given_up = set[Key]()
        target: Finding | None = finding
        for _ in range(_STEPS):
            if target is None:
                break
            step = self._step(changed, target)
            changed |= step
            given_up |= set() if step else {_key(target)}
            left = (each for each in self._errors(changed) if _key(each) not in given_up)
            target = next(left, None)
        return changed

    def _step(self, changed: Changed, target: Finding) -> Changed:
        """The change that takes `target` away and leaves the most."""
        if target.fix and self._helps(changed, dict(target.fix), target):
            return dict(target.fix)
        turned = list(self._turned(changed, target))
        if turned:
            return dict(max(turned, key=lambda found: found[0])[1])
        if squeezed := self._squeezed(changed, target):
            return squeezed
        others = (pairs for pairs in self._elsewhere(target) if self._passes(changed, dict(pairs)))
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

    def _squeezed(self, changed: Changed, target: Finding) -> Changed:
        """Every knob turned to its end, then one after the other back as far as it goes."""
        turning = self._knobs(changed)
        made = {name: value for knob in turning for name, value in knob.make(1)}
        if not self._helps(changed, made, target):
            return {}
        for knob in turning:
            rest = {name: made[name] for name in made.keys() - dict(knob.make(1)).keys()}
            if self._helps(changed, rest, target):
                made = rest
            else:
                value = self._largest(knob, changed | rest, target) or 1
                made = rest | dict(knob.make(value))
        return made

    def _knobs(self, changed: Changed) -> list[Knob]:
        request = self._made(changed)
        return [knob for knob in knobs(request) if knob.now > 1] if request else []

    def _lowered(
        self, turning: Iterable[Knob], changed: Changed, target: Finding
    ) -> Iterator[tuple[float, Pairs]]:
        for knob in turning:
            value = self._largest(knob, changed, target)
            if value is not None:
                yield value / knob.now, knob.make(value)

    def _largest(self, knob: Knob, changed: Changed, target: Finding) -> int | None:
        """The largest value below now with which `target` is gone."""
        if not self._helps(changed, dict(knob.make(1)), target):
            return None
        low, high = 1, knob.now
        while high - low > 1:
            middle = (low + high) // 2
            if self._helps(changed, dict(knob.make(middle)), target):
                low = middle
            else:
                high = middle
        return low

    def _helps(self, changed: Changed, more: Changed, target: Finding) -> bool:
        """Whether `target` is gone; only the check that it is from has to be asked."""
        request = self._made(changed | more)
        if request is None:
            return False
        asked = [self._from[_key(target)]] if _key(target) in self._from else self._checks
        left = (each for check in asked for each in check(request))
        return not any(each.severity == "error" and _key(each) == _key(target) for each in left)

    def _passes(self, changed: Changed, more: Changed) -> bool:
        then = changed | more
        return self._made(then) is not None and not self._errors(then)

    def _made(self, changed: Changed) -> Request | None:
        """The request with options changed, made once."""
        key = tuple(sorted(changed.items()))
        if key not in self._requests:
            self._requests[key] = self._again(key)
        return self._requests[key]

    def _errors(self, changed: Changed) -> tuple[Finding, ...]:
        """Errors of the request with options changed, looked for once."""
        key = tuple(sorted(changed.items()))
        if key not in self._known:
            request = self._made(changed)
            self._known[key] = tuple(self._judged(request)) if request else ()
        return self._known[key]

    def _judged(self, request: Request) -> Iterator[Finding]:
        for check in self._checks:
            for finding in check(request):
                if finding.severity == "error":
                    self._from[_key(finding)] = check
                    yield finding

    def _elsewhere(self, target: Finding) -> Iterator[Pairs]:
        """Another QOS, account or partition."""
        asked = self._made({})
        if asked is None:
            return
        if "qos" in target.code and asked.association is not None:
            now = asked.qos.name if asked.qos else ""
            yield from ((("qos", name),) for name in asked.association.qos if name != now)
        if "account" in target.code:
            own = {a.account for a in asked.standing.associations if a.user == asked.standing.user}
            yield from ((("account", name),) for name in sorted(own - {asked.account}))
        for partition in sorted(asked.capabilities.partitions, key=lambda p: _wasted(asked, p)):
            if partition.name != asked.partition.name:
                yield (("partition", partition.name),)


def _key(finding: Finding) -> Key:
    """Tell apart errors of one kind: a QOS may limit CPUs and GPUs."""
    return finding.code, finding.source


def _wasted(request: Request, partition: Partition) -> bool:
    """Whether a job without GPUs would take up nodes that have some."""
    nodes = request.capabilities.nodes_of(partition.name)
    return request.spec.gpus is None and any(node.count("gpu") for node in nodes)
