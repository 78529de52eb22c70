"""Groups within groups, at any time; they may contain each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from slurmkit_accounting.facts import Facts


class Nesting:
    """Answers which groups a member of some groups is in."""

    def __init__(self, within: Facts[int, int]) -> None:
        """`within`: by group, the groups that had it as a member."""
        self._within = within
        self._changes = sorted(set(within.changes()))
        self._known: dict[tuple[int, int], frozenset[int]] = {}

    def around(self, groups: Iterable[int], when: int) -> frozenset[int]:
        """The groups themselves and all that contain them, through any number of others."""
        found = [self._around(group, when) for group in groups]
        return found[0] if len(found) == 1 else frozenset().union(*found)

    def _around(self, group: int, when: int) -> frozenset[int]:
        # The answer is the same until a nesting changes, which is seldom.
        key = (group, bisect_right(self._changes, when))
        if key not in self._known:
            self._known[key] = frozenset(self._walk(group, when))
        return self._known[key]

    def _walk(self, group: int, when: int) -> set[int]:
        seen: set[int] = set()
        waiting = [group]
        while waiting:
            one = waiting.pop()
            if one not in seen:  # groups that contain each other end here
                seen.add(one)
                waiting += self._within.at(one, when)
        return seen
