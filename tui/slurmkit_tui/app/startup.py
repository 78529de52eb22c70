"""The options that the TUI starts with, and its section `[tui]` of the configuration.

The command line wins over the configuration. So do columns that the user chose earlier.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import msgspec

from slurmkit.config.files import did_you_mean, load_section
from slurmkit.errors import BadInput
from slurmkit_tui.options import AppOptions, ThemeName
from slurmkit_tui.state_files import load_choices, save_columns
from slurmkit_tui.views import VIEWS


class TuiSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[tui]`: how `slurmkit tui` starts. Options on the command line win over it.

    Attributes:
        theme: `dark`, `light`, or `no-colour`, which the variable `NO_COLOR` also sets.
        interval: seconds between two queries of Slurm, at least 2.
        view: view that it starts with.
        read_only: refuse everything that changes the cluster.
        columns: by view, the names of its columns in order; columns chosen in the TUI override
            these.
        keys: other keys for actions, by the action's name; several keys with commas.
    """

    theme: ThemeName = "dark"
    interval: Annotated[float, msgspec.Meta(ge=2)] = 10.0
    view: str = "home"
    read_only: bool = False
    columns: dict[str, tuple[str, ...]] = {}
    keys: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Check names of views, columns, actions and keys, which only the app knows.

        Without Textual there is no app: `slurmkit config check` works on such a host, too.
        """
        if find_spec("textual") is None:
            return
        if self.view != "home":
            _check_view(self.view, "view")
        for view, names in self.columns.items():
            _check_columns(view, names)
        if self.keys:
            from slurmkit_tui.actions.keymap import parse_keymap  # noqa: PLC0415 - needs Textual

            try:
                parse_keymap(self.keys)
            except BadInput as error:
                raise ValueError(f"{error} - at `$.keys`") from error


def _check_view(name: str, key: str) -> None:
    known = [view.name for view in VIEWS]
    if name not in known:
        raise ValueError(
            f"there is no view {name!r}; {did_you_mean(name, known, 'views')} - at `$.{key}`"
        )


def _check_columns(view: str, names: tuple[str, ...]) -> None:
    from slurmkit_tui.views.base import TableView  # noqa: PLC0415 - needs Textual

    _check_view(view, "columns")
    kind = next(each for each in VIEWS if view == each.name).load()
    if not issubclass(kind, TableView):  # msgspec turns a ValueError into its own error
        raise ValueError(f"view {view} has no columns - at `$.columns`")  # noqa: TRY004
    known = [column.name for column in kind.LISTING.columns]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known, "columns")
            raise ValueError(f"view {view} has no column {name!r}; {hint} - at `$.columns`")
    if not names:
        raise ValueError(f"view {view} would show nothing; name a column - at `$.columns`")


def load_options(given: dict[str, Any]) -> AppOptions:
    """Combine command line, earlier choices and configuration into the app's options.

    Args:
        given: fields of `AppOptions` from the command line; None for those that were not given.

    Raises:
        BadConfig: for a wrong `[tui]` section.
    """
    section = load_section("tui", TuiSection)
    saved, trouble = load_choices()
    configured = {
        name: getattr(section, name) for name in ("theme", "interval", "view", "read_only")
    }
    on_command_line = {name: value for name, value in given.items() if value is not None}
    chosen = {**configured, **on_command_line}
    if given.get("mine") and given.get("view") is None and section.view == "home":
        chosen["view"] = "queue"  # Home has no list that could show only my jobs
    return AppOptions(
        **chosen,
        columns={**section.columns, **saved.columns},
        keys=_keys(section),
        keep_columns=save_columns,
        keep_drafts=True,
        keep_history=True,
        trouble=trouble,
    )


def _keys(section: TuiSection) -> dict[str, str]:
    if not section.keys:
        return {}
    from slurmkit_tui.actions.keymap import parse_keymap  # noqa: PLC0415 - needs Textual

    return parse_keymap(section.keys)
