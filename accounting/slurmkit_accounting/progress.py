"""Progress of an ingest on a terminal; nothing in a pipe or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from slurmkit_accounting.books import Entered


@contextmanager
def shown() -> Iterator[Callable[[Entered, float], None]]:
    """Show a bar on standard error while rows come in."""
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.fields[rows]} rows"))
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not _on_terminal()
    ) as progress:
        task = progress.add_task("ingest", total=1.0, rows=0)
        yield lambda entered, part: progress.update(task, completed=part, rows=entered.read)


def _on_terminal() -> bool:
    return sys.stderr.isatty()
