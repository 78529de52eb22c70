"""How the app starts: as its options say, or else what was chosen before, or the configuration."""

from __future__ import annotations

from typing import Any

from slurmkit.config import load_section
from slurmkit_tui.config import TuiSection
from slurmkit_tui.options import Options


def options(given: dict[str, Any]) -> Options:
    """Put together how the app starts.

    Args:
        given: fields of `Options` that the command line gives; None for those it does not.

    Raises:
        BadConfig: for a wrong `[tui]` section.
    """
    from slurmkit_tui.remembered import keep_columns, recall  # noqa: PLC0415 - not for --help

    section = load_section("tui", TuiSection)
    kept, trouble = recall()
    said = {name: value for name, value in given.items() if value is not None}
    plain = {name: getattr(section, name) for name in ("theme", "interval", "view", "read_only")}
    return Options(
        **{**plain, **said},
        columns={**section.columns, **kept.columns},
        keys=_keys(section),
        keep_columns=keep_columns,
        keep_drafts=True,
        trouble=trouble,
    )


def _keys(section: TuiSection) -> dict[str, str]:
    if not section.keys:
        return {}
    from slurmkit_tui.keymap import keymap  # noqa: PLC0415 - for few

    return keymap(section.keys)
