"""The style in which each kind of job state is shown."""

from __future__ import annotations

from typing import get_args

from slurmkit.states import Kind, kind

STYLES = frozenset(f"state--{each}" for each in get_args(Kind))


def style(state: str) -> str:
    """The style class of a state; one we do not know is shown like a failure, to be seen."""
    return f"state--{kind(state)}"
