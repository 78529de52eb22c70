"""The themes, for dark and for light terminals, and the style of each job state.

ssh does not hand on COLORTERM, so most terminals at a login node count as having 256 colours. A
colour between these would be shown as the nearest one, which for our dark greys is navy blue:
there the themes have only colours of the 256. A terminal with 16 colours would show most of ours as
the same grey, and our borders black on black: there the themes have only those 16.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, get_args

from textual.theme import Theme

from slurmkit.formats.job_states import StateKind, state_kind

STATE_STYLES = frozenset(f"state--{each}" for each in get_args(StateKind))
_NAMES = ("dark", "light", "dark-256", "light-256", "dark-16", "light-16")
# Each row has the colours of these themes, in this order.
_COLOURS = {
    "primary": "#6cb6ff, #0b5cad, #5fafff, #005faf, #55ffff, #0000aa",
    "secondary": "#8ddbcb, #0f766e, #87d7d7, #008787, #00aaaa, #aa00aa",
    "accent": "#f0b866, #8a4b00, #ffaf5f, #875f00, #ff55ff, #aa5500",
    "success": "#7ee0a1, #116329, #87d787, #005f00, #55ff55, #00aa00",
    "warning": "#f0c674, #7d4e00, #ffd787, #875f00, #ffff55, #aa5500",
    "error": "#ff7b72, #b3261e, #ff8787, #af0000, #ff5555, #aa0000",
    "foreground": "#d6deeb, #1f2328, #dadada, #1c1c1c, #ffffff, #000000",
    "background": "#0e141b, #ffffff, #121212, #ffffff, #000000, #ffffff",
    "surface": "#141c26, #f5f7f9, #1c1c1c, #eeeeee, #000000, #ffffff",
    "panel": "#1d2836, #e6ebf0, #303030, #dadada, #555555, #aaaaaa",
}
_VARIABLES = {
    # Texts of few of the 16 colours can be read on a grey bar.
    "bar": "#1d2836, #e6ebf0, #303030, #dadada, #000000, #ffffff",
    "footer-background": "-, -, -, -, #000000, #ffffff",
    "text-muted": "-, -, -, -, #aaaaaa, #555555",
    "text-error": "-, -, -, -, #ffffff, #000000",
    "quiet": "#8796a8, #5b6672, #949494, #626262, #aaaaaa, #555555",
    "cursor-bar": "#6cb6ff 25%, #0b5cad 25%, #444444, #afd7ff, #0000aa, #55ffff",
    "chosen-bar": "#f0b866 25%, #8a4b00 25%, #5f5f00, #ffd7af, #aa5500, #ffff55",
    "found-bar": "#6cb6ff 30%, #0b5cad 30%, #005f87, #87d7ff, #aa00aa, #55ff55",
    "error-bar": "#ff7b72 20%, #b3261e 20%, #5f0000, #ffd7d7, #aa0000, #ff5555",
    # Textual would blend those of scroll bars and of a list's chosen line.
    "scrollbar": "-, -, #444444, #bcbcbc, -, -",
    "scrollbar-hover": "-, -, #626262, #949494, -, -",
    "scrollbar-background": "-, -, #121212, #ffffff, -, -",
    "scrollbar-background-hover": "-, -, #121212, #ffffff, -, -",
    "scrollbar-background-active": "-, -, #121212, #ffffff, -, -",
    "scrollbar-corner-color": "-, -, #121212, #ffffff, -, -",
    "block-cursor-blurred-background": "-, -, #444444, #afd7ff, -, -",
}
# Users, accounts or jobs on the GPU map. Letters distinguish them; colours only help.
_HOLDERS = (
    "#7fb3ff #ffa657 #d2a8ff #7ee0a1 #ff9bce #79e0d8 #e6db74 #f08d8d #a5b4fc #c3e88d",
    "#0b5cad #8a4b00 #6639ba #116329 #99286e #0f6b66 #6b5900 #a02c2c #3b3fb5 #3f6212",
    "#87afff #ffaf5f #d7afff #87d7af #ff87d7 #87d7d7 #d7d75f #ff8787 #afafff #afd787",
    "#005faf #875f00 #5f00af #005f00 #87005f #005f5f #5f5f00 #af0000 #0000af #5f8700",
    "#5555ff #00aaaa #aa00aa #00aa00 #ff55ff #55ffff #aa5500 #ff5555 #ffff55 #55ff55",
    "#0000aa #aa5500 #aa00aa #00aa00 #00aaaa #aa0000 #5555ff #555555 #000000 #ff55ff",
)


def _column(rows: Mapping[str, str], at: int) -> dict[str, Any]:
    cells = {role: row.split(", ")[at] for role, row in rows.items()}
    return {role: colour for role, colour in cells.items() if colour != "-"}


def _make_theme(name: str) -> Theme:
    at = _NAMES.index(name)
    holders = {f"holder-{number}": each for number, each in enumerate(_HOLDERS[at].split())}
    return Theme(
        name=f"slurmkit-{name}",
        dark=name.startswith("dark"),
        variables=_column(_VARIABLES, at) | holders,
        **_column(_COLOURS, at),
    )


THEMES = {
    colours: (_make_theme(f"dark{more}"), _make_theme(f"light{more}"))
    for colours, more in {"": "", "256": "-256", "standard": "-16"}.items()
}
"""The dark and the light theme for each number of colours; see `choose_theme`."""


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
