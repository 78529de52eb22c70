"""The two themes: one for dark rooms, one for paper-like terminals."""

from __future__ import annotations

from textual.theme import Theme

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
    variables={"quiet": "#8796a8"},
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
    variables={"quiet": "#5b6672"},
)
