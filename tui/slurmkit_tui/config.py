"""The `[tui]` section of slurmkit's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from slurmkit.config import nearest
from slurmkit.errors import BadInput
from slurmkit_tui.views import VIEWS

Look = Literal["dark", "light", "no-colour"]


class TuiSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[tui]`: how `slurmkit tui` starts. Its options win over these.

    Attributes:
        theme: `dark`, `light`, or `no-colour`, which NO_COLOR means, too.
        interval: seconds between two questions, 2 at least.
        view: the view it starts with, by name.
        read_only: refuse everything that changes the cluster.
        columns: of a view, names in the order they have there; those chosen in the TUI win.
        keys: another key for an action, by the action's name; several keys with commas.
    """

    theme: Look = "dark"
    interval: Annotated[float, msgspec.Meta(ge=2)] = 10.0
    view: str = "queue"
    read_only: bool = False
    columns: dict[str, tuple[str, ...]] = {}
    keys: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Check what only the app knows: views, their columns, actions and keys."""
        if self.view != "queue":
            _check_view(self.view, "view")
        for view, names in self.columns.items():
            _check_columns(view, names)
        if self.keys:
            from slurmkit_tui.keymap import keymap  # noqa: PLC0415 - Textual, for few

            try:
                keymap(self.keys)
            except BadInput as error:
                raise ValueError(f"{error} - at `$.keys`") from error


def _check_view(name: str, key: str) -> None:
    known = [view.name for view in VIEWS]
    if name not in known:
        raise ValueError(f"no view {name!r}; {nearest(name, known, 'views')} - at `$.{key}`")


def _check_columns(view: str, names: tuple[str, ...]) -> None:
    from slurmkit_tui.listview import ListView  # noqa: PLC0415 - Textual, for few

    _check_view(view, "columns")
    kind = next(each for each in VIEWS if view == each.name).load()
    if not issubclass(kind, ListView):  # msgspec takes this for a refusal
        raise ValueError(f"view {view} has no columns - at `$.columns`")  # noqa: TRY004
    known = [column.name for column in kind.LISTING.columns]
    for name in names:
        if name not in known:
            hint = nearest(name, known, "columns")
            raise ValueError(f"view {view} has no column {name!r}; {hint} - at `$.columns`")
    if not names:
        raise ValueError(f"view {view} would show no column - at `$.columns`")
