"""The two themes, for dark and for light terminals, and the style of each job state."""

from __future__ import annotations

from typing import get_args

from textual.theme import Theme

from slurmkit.formats.job_states import StateKind, state_kind

# Colours of users, accounts or jobs on the GPU map. Letters distinguish them; colours only help.
_ON_DARK = "#7fb3ff #ffa657 #d2a8ff #7ee0a1 #ff9bce #79e0d8 #e6db74 #f08d8d #a5b4fc #c3e88d"
_ON_LIGHT = "#0b5cad #8a4b00 #6639ba #116329 #99286e #0f6b66 #6b5900 #a02c2c #3b3fb5 #3f6212"
STATE_STYLES = frozenset(f"state--{each}" for each in get_args(StateKind))


def _holders(colours: str) -> dict[str, str]:
    return {f"holder-{number}": colour for number, colour in enumerate(colours.split())}


DARK = Theme(
    name="slurmkit-dark",
    dark=True,
    primary="#6cb6ff",
    secondary="#8ddbcb",
    accent="#f0b866",
    success="#7ee0a1",
    warning="#f0c674",
    error="#ff7b72",
    foreground="#d6deeb",
    background="#0e141b",
    surface="#141c26",
    panel="#1d2836",
    variables={"quiet": "#8796a8", **_holders(_ON_DARK)},
)
LIGHT = Theme(
    name="slurmkit-light",
    dark=False,
    primary="#0b5cad",
    secondary="#0f766e",
    accent="#8a4b00",
    success="#116329",
    warning="#7d4e00",
    error="#b3261e",
    foreground="#1f2328",
    background="#ffffff",
    surface="#f5f7f9",
    panel="#e6ebf0",
    variables={"quiet": "#5b6672", **_holders(_ON_LIGHT)},
)


def state_style(state: str) -> str:
    """Return the style class of a state; an unknown state looks like a failure, to be noticed."""
    return f"state--{state_kind(state)}"
