"""`--constraint` as Slurm reads it (sbatch(1)): which nodes may serve, and how many must.

Without parentheses features are taken strictly from left to right. A count (`a*2`) asks so many
of the nodes for a feature. Brackets hold choices: of `[a|b]` all nodes take the same one, of
`[a*2&b*1]` each counts for one. There is no NOT on any release.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from slurmkit.capabilities.model import Node

_TOKENS = re.compile(r"\*\d+|[&|,()\[\]]|[^&|,()\[\]*\s]+")
_COUNTED = re.compile(r"(\([^()]*\)|[^&|,()\[\]*\s]+)\*(\d+)")
_CHOICES = re.compile(r"\[([^\]]*)\]")


def feature_names(constraint: str) -> list[str]:
    """The features that a constraint names, in its order."""
    return [word for word in _TOKENS.findall(constraint) if word[0] not in "*&|,()[]"]


@lru_cache(maxsize=1024)  # many nodes have the same features
def satisfies(constraint: str | None, features: tuple[str, ...]) -> bool:
    """Whether a node with `features` may be one of the job's."""
    words = _TOKENS.findall(constraint or "")
    return _level(words, set(features), "")


def too_few(constraint: str, nodes: Sequence[Node], wanted: int) -> tuple[str, int, int] | None:
    """What more nodes must have than there are: the features, how many have and should have them.

    Args:
        constraint: what the job asks for.
        nodes: those it may get.
        wanted: nodes of the job.
    """
    for features, count in _counts(constraint):
        if (have := _having(features, nodes)) < count:
            return features, have, count
    for choices in _CHOICES.findall(constraint):
        if "|" in choices and "*" not in choices:
            most = max(_having(choice, nodes) for choice in choices.split("|"))
            if most < wanted:
                return f"one of {choices.replace('|', ', ')}", most, wanted
    return None


def _counts(constraint: str) -> Iterator[tuple[str, int]]:
    for match in _COUNTED.finditer(constraint):
        yield match[1].strip("()"), int(match[2])


def _having(features: str, nodes: Sequence[Node]) -> int:
    return sum(satisfies(features, node.features) for node in nodes)


def _level(words: list[str], have: set[str], end: str) -> bool:
    """Judge words up to `end`, which are taken out; nothing asked for is met."""
    found: bool | None = None
    sign = "&"
    while words:
        word = words.pop(0)
        if word == end:
            break
        if word in ("&", "|", ","):
            sign = word
        elif word not in (")", "]"):
            now = _term(word, words, have, counts_choose=end == "]")
            either = sign == "|" or end == "]"
            found = now if found is None else (found or now) if either else (found and now)
    return found is not False


def _term(word: str, words: list[str], have: set[str], *, counts_choose: bool) -> bool:
    ends = {"(": ")", "[": "]"}
    if word[0] == "*":
        return True  # a count without a feature
    met = _level(words, have, ends[word]) if word in ends else word in have
    if words and words[0][0] == "*":
        words.pop(0)
        return met or not counts_choose  # the other nodes need not have it
    return met
