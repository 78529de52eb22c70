"""The themes, for dark and for light terminals, and the style of each job state.

ssh does not hand on COLORTERM, so most terminals at a login node count as having 256 colours. A
colour between these would be shown as the nearest one, which for our dark greys is navy blue:
there the themes have only colours of the 256. A terminal with 16 colours would show most of ours as
the same grey, and our borders black on black: there the themes have only those 16.
"""

from __future__ import annotations

import os
from typing import get_args

from textual.theme import Theme

from slurmkit.formats.job_states import StateKind, state_kind

# Colours of users, accounts or jobs on the GPU map. Letters distinguish them; colours only help.
_ON_DARK = "#7fb3ff #ffa657 #d2a8ff #7ee0a1 #ff9bce #79e0d8 #e6db74 #f08d8d #a5b4fc #c3e88d"
_ON_LIGHT = "#0b5cad #8a4b00 #6639ba #116329 #99286e #0f6b66 #6b5900 #a02c2c #3b3fb5 #3f6212"
STATE_STYLES = frozenset(f"state--{each}" for each in get_args(StateKind))


def _holders(colours: str) -> dict[str, str]:
    return {f"holder-{number}": colour for number, colour in enumerate(colours.split())}


def _bars(bar: str, under_mouse: str, background: str, chosen: str) -> dict[str, str]:
    """Return the colours of scroll bars and of a list's chosen line; Textual would blend them."""
    return {
        "scrollbar": bar,
        "scrollbar-hover": under_mouse,
        "scrollbar-background": background,
        "scrollbar-background-hover": background,
        "scrollbar-background-active": background,
        "scrollbar-corner-color": background,
        "block-cursor-blurred-background": chosen,
    }


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
    variables={
        "bar": "#1d2836",
        "quiet": "#8796a8",
        "cursor-bar": "#6cb6ff 25%",
        "chosen-bar": "#f0b866 25%",
        "found-bar": "#6cb6ff 30%",
        "error-bar": "#ff7b72 20%",
        **_holders(_ON_DARK),
    },
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
    variables={
        "bar": "#e6ebf0",
        "quiet": "#5b6672",
        "cursor-bar": "#0b5cad 25%",
        "chosen-bar": "#8a4b00 25%",
        "found-bar": "#0b5cad 30%",
        "error-bar": "#b3261e 20%",
        **_holders(_ON_LIGHT),
    },
)
DARK_256 = Theme(
    name="slurmkit-dark-256",
    dark=True,
    primary="#5fafff",
    secondary="#87d7d7",
    accent="#ffaf5f",
    success="#87d787",
    warning="#ffd787",
    error="#ff8787",
    foreground="#dadada",
    background="#121212",
    surface="#1c1c1c",
    panel="#303030",
    variables={
        "bar": "#303030",
        "quiet": "#949494",
        "cursor-bar": "#444444",
        "chosen-bar": "#5f5f00",
        "found-bar": "#005f87",
        "error-bar": "#5f0000",
        **_bars("#444444", "#626262", "#121212", "#444444"),
        **_holders(
            "#87afff #ffaf5f #d7afff #87d7af #ff87d7 #87d7d7 #d7d75f #ff8787 #afafff #afd787"
        ),
    },
)
LIGHT_256 = Theme(
    name="slurmkit-light-256",
    dark=False,
    primary="#005faf",
    secondary="#008787",
    accent="#875f00",
    success="#005f00",
    warning="#875f00",
    error="#af0000",
    foreground="#1c1c1c",
    background="#ffffff",
    surface="#eeeeee",
    panel="#dadada",
    variables={
        "bar": "#dadada",
        "quiet": "#626262",
        "cursor-bar": "#afd7ff",
        "chosen-bar": "#ffd7af",
        "found-bar": "#87d7ff",
        "error-bar": "#ffd7d7",
        **_bars("#bcbcbc", "#949494", "#ffffff", "#afd7ff"),
        **_holders(
            "#005faf #875f00 #5f00af #005f00 #87005f #005f5f #5f5f00 #af0000 #0000af #5f8700"
        ),
    },
)
DARK_16 = Theme(
    name="slurmkit-dark-16",
    dark=True,
    primary="#55ffff",
    secondary="#00aaaa",
    accent="#ff55ff",
    success="#55ff55",
    warning="#ffff55",
    error="#ff5555",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#555555",
    variables={
        "bar": "#000000",  # texts of few of the 16 colours can be read on a grey one
        "footer-background": "#000000",
        "text-muted": "#aaaaaa",
        "text-error": "#ffffff",
        "quiet": "#aaaaaa",
        "cursor-bar": "#0000aa",
        "chosen-bar": "#aa5500",
        "found-bar": "#aa00aa",
        "error-bar": "#aa0000",
        **_holders(
            "#5555ff #00aaaa #aa00aa #00aa00 #ff55ff #55ffff #aa5500 #ff5555 #ffff55 #55ff55"
        ),
    },
)
LIGHT_16 = Theme(
    name="slurmkit-light-16",
    dark=False,
    primary="#0000aa",
    secondary="#aa00aa",
    accent="#aa5500",
    success="#00aa00",
    warning="#aa5500",
    error="#aa0000",
    foreground="#000000",
    background="#ffffff",
    surface="#ffffff",
    panel="#aaaaaa",
    variables={
        "bar": "#ffffff",
        "footer-background": "#ffffff",
        "text-muted": "#555555",
        "text-error": "#000000",
        "quiet": "#555555",
        "cursor-bar": "#55ffff",
        "chosen-bar": "#ffff55",
        "found-bar": "#55ff55",
        "error-bar": "#ff5555",
        **_holders(
            "#0000aa #aa5500 #aa00aa #00aa00 #00aaaa #aa0000 #5555ff #555555 #000000 #ff55ff"
        ),
    },
)
THEMES = {
    "": (DARK, LIGHT),
    "256": (DARK_256, LIGHT_256),
    "standard": (DARK_16, LIGHT_16),
}


def choose_theme(*, dark: bool, colours: str | None) -> Theme:
    """Return the theme for a dark or light terminal.

    Args:
        dark: whether it is dark.
        colours: how many it has, as Rich names it: `standard` are 16; `256`; all for other names.
    """
    return THEMES.get(colours or "", THEMES[""])[0 if dark else 1]


def state_style(state: str) -> str:
    """Return the style class of a state; an unknown state looks like a failure, to be noticed."""
    return f"state--{state_kind(state)}"


def has_plain_signs() -> bool:
    """Return whether the terminal is one without block characters, by its TERM."""
    term = os.environ.get("TERM", "")
    return term in ("dumb", "linux", "ansi") or term.startswith("vt")
