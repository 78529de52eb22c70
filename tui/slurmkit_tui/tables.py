"""What the dialogs of a table do: its order, its columns, and its rows in a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmkit.errors import BadInput
from slurmkit.text import printable
from slurmkit_tui.commands import Wanted
from slurmkit_tui.dialogs import Choose, Option, Prompt, Several
from slurmkit_tui.listing import Context

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp
    from slurmkit_tui.listview import ListView

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def open_sort(app: SlurmkitApp, view: ListView) -> None:
    """Let the person choose the column to sort by; the same once more turns it around."""
    options = [Option(each.name, each.title, "") for each in view.LISTING.columns]

    def chosen(name: str | None) -> None:
        if name:
            view.wish_for(view.wish.sorted_by(name))

    app.push_screen(Choose("Sort by; the same again turns it around", options), chosen)


def open_columns(app: SlurmkitApp, view: ListView) -> None:
    """Let the person choose the columns."""
    shown = {column.name for column in view.table.columns}
    options = [Option(each.name, each.title, "") for each in view.LISTING.columns]

    def chosen(names: Sequence[str] | None) -> None:
        if names:
            columns = [c for c in view.LISTING.columns if c.name in names]
            view.table.choose_columns(columns)
            try:
                app.options.keep_columns(view.NAME, [each.name for each in columns])
            except OSError as error:
                app.tell(f"these columns are not kept: {error}", "warning")

    app.push_screen(Several("Columns", options, shown), chosen)


def open_export(app: SlurmkitApp, view: ListView) -> None:
    """Write the rows shown to a file that is not there yet."""
    wanted = Wanted("File", "its ending says the format: .csv or .json", _new_file)

    def typed(name: str | None) -> None:
        if name is not None:
            path = Path(name).expanduser().absolute()
            app.tell(f"wrote {view.LISTING.counted(write(path, view))} to {path}")

    app.push_screen(Prompt(wanted, f"{view.NAME}.csv"), typed)


def _new_file(name: str) -> str:
    path = Path(name.strip()).expanduser()
    if path.suffix not in (".csv", ".json"):
        raise BadInput(f"{name}: write .csv or .json")
    if path.exists():
        raise BadInput(f"{name} is there already; choose another name")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent}")
    return name.strip()


def write(path: Path, view: ListView) -> int:
    """Write the rows shown, with the columns shown; returns how many."""
    rows = view.table.rows_shown
    heads, lines = [column.name for column in view.table.columns], texts(view, rows)
    with path.open("x", encoding="utf-8", newline="") as file:
        if path.suffix == ".json":
            json.dump([dict(zip(heads, line, strict=True)) for line in lines], file, indent=1)
        else:
            writer = csv.writer(file)
            writer.writerow(heads)
            writer.writerows([[_harmless(text) for text in line] for line in lines])
    return len(rows)


def copied(view: ListView) -> str:
    """The rows chosen, with tabs between the columns shown."""
    out = io.StringIO()
    csv.writer(out, delimiter="\t", lineterminator="\n").writerows(
        texts(view, view.table.rows_chosen)
    )
    return out.getvalue()


def texts(view: ListView, rows: Sequence[Any]) -> list[list[str]]:
    """The cells of rows, in full, safe to show."""
    arranged = view.table.arranged
    context = arranged.sheet.context if arranged else Context()
    return [[printable(c.text(row, context)) for c in view.table.columns] for row in rows]


def _harmless(text: str) -> str:
    """A spreadsheet would run what begins like a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
