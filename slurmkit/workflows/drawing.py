"""The graph of a workflow as a tree in which each job stands once.

A job stands below the last job that everything on the way to it goes through (its immediate
dominator), and after all it waits for: what fans out is indented, what joins it again is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Graph = Mapping[str, Sequence[str]]
"""Each job's name to those it waits for, in an order in which these stand before it."""

_MANY = 3


def tree(graph: Graph) -> list[tuple[str, str]]:
    """Each job's name as it is drawn, with its branches before it, and its name."""
    parents = dominators(graph)
    below: dict[str | None, list[str]] = {}
    for name in graph:
        below.setdefault(parents[name], []).append(name)
    lines: list[tuple[str, str]] = []
    stack = [(root, "", "") for root in reversed(below.get(None, []))]
    while stack:  # a chain may be longer than Python nests calls
        name, branches, stem = stack.pop()
        lines.append((branches + name, name))
        children = below.get(name, [])
        for child in reversed(children):
            last = child == children[-1]
            branch, further = ("└─ ", "   ") if last else ("├─ ", "│  ")
            stack.append((child, stem + branch, stem + further))
    return lines


def dominators(graph: Graph) -> dict[str, str | None]:
    """Of each job, the last one that every way to it goes through; None where there is none."""
    found: dict[str, str | None] = {}
    for name, before in graph.items():
        chains = [_chain(each, found) for each in before]
        others = [set(chain) for chain in chains[1:]]
        nearest = chains[0] if chains else []
        found[name] = next((each for each in nearest if all(each in o for o in others)), None)
    return found


def _chain(name: str, parents: Mapping[str, str | None]) -> list[str]:
    """A job, and what stands above it."""
    chain = [name]
    while (above := parents[chain[-1]]) is not None:
        chain.append(above)
    return chain


def waits_for(edges: Sequence[str], parent: str | None) -> str:
    """What a line says beside its place: nothing where it waits just for what stands above it."""
    if not edges or list(edges) == [parent]:
        return ""
    if len(edges) <= _MANY:
        return f"after {', '.join(edges)}"
    return f"after {edges[0]} … {edges[-1]} ({len(edges)} jobs)"
