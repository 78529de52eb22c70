"""Dialogs of a table: sort order, columns, and export to a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit_tui.actions.commands import ValuePrompt
from slurmkit_tui.widgets.dialogs import ChoiceDialog, ChoiceOption, MultiChoiceDialog, ValueDialog
from slurmkit_tui.widgets.listing import RowContext

if TYPE_CHECKING:
    from slurmkit_tui.host import AppHost
    from slurmkit_tui.views.base import TableView

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def open_sort(app: AppHost, view: TableView) -> None:
    """Open the dialog for the sort column; the same column again reverses the order."""
    options = [ChoiceOption(each.name, each.title, "") for each in view.LISTING.columns]

    def chosen(name: str | None) -> None:
        if name:
            view.set_row_query(view.row_query.sorted_by(name))

    app.push_screen(
        ChoiceDialog("Sort by; the same column again reverses the order", options), chosen
    )


def open_columns(app: AppHost, view: TableView) -> None:
    """Open the dialog for the columns."""
    shown = {column.name for column in view.table.columns}
    options = [ChoiceOption(each.name, each.title, "") for each in view.LISTING.columns]

    def chosen(names: Sequence[str] | None) -> None:
        if names:
            columns = [c for c in view.LISTING.columns if c.name in names]
            view.table.choose_columns(columns)
            try:
                app.options.keep_columns(view.NAME, [each.name for each in columns])
            except OSError as error:
                app.tell(f"these columns are not saved for the next start: {error}", "warning")

    app.push_screen(MultiChoiceDialog("Columns", options, shown), chosen)


def open_export(app: AppHost, view: TableView) -> None:
    """Ask for a new file, and write the rows shown to it."""
    wanted = ValuePrompt("File", "the name of a new file that ends with .csv or .json", _new_file)

    def typed(name: str | None) -> None:
        if name is not None:
            path = Path(name).expanduser().absolute()
            app.tell(f"wrote {view.LISTING.counted(write_rows(path, view))} to {path}")

    app.push_screen(ValueDialog(wanted, f"{view.NAME}.csv"), typed)


def _new_file(name: str) -> str:
    path = Path(name.strip()).expanduser()
    if path.suffix not in (".csv", ".json"):
        raise BadInput(f"{name}: the name must end with .csv or .json")
    if path.exists():
        raise BadInput(f"{name} is there already; choose another name")
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent}")
    return name.strip()


def write_rows(path: Path, view: TableView) -> int:
    """Write the rows shown with the columns shown, and return the number of rows."""
    rows = view.table.rows_shown
    heads, lines = [column.name for column in view.table.columns], cell_texts(view, rows)
    with path.open("x", encoding="utf-8", newline="") as file:
        if path.suffix == ".json":
            json.dump([dict(zip(heads, line, strict=True)) for line in lines], file, indent=1)
        else:
            writer = csv.writer(file)
            writer.writerow(heads)
            writer.writerows([[_harmless(text) for text in line] for line in lines])
    return len(rows)


def rows_as_text(view: TableView) -> str:
    """Return the chosen rows as text, with tabs between the columns shown."""
    out = io.StringIO()
    csv.writer(out, delimiter="\t", lineterminator="\n").writerows(
        cell_texts(view, view.table.chosen_rows)
    )
    return out.getvalue()


def cell_texts(view: TableView, rows: Sequence[Any]) -> list[list[str]]:
    """Return the full texts of the cells, safe to show."""
    arranged = view.table.arranged
    context = arranged.sheet.context if arranged else RowContext()
    return [[printable(c.text(row, context)) for c in view.table.columns] for row in rows]


def _harmless(text: str) -> str:
    """Quote a text that a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
