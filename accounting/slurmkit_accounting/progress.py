"""Progress of an ingest on a terminal; nothing in a pipe or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from slurmkit_accounting.books import Entered


@contextmanager
def shown() -> Iterator[Callable[[Entered], None]]:
    """Show a bar on standard error while rows come in; sacct does not say how many will."""
    columns = (TextColumn("reading sacct"), BarColumn(), TextColumn("{task.fields[rows]} rows"))
    console = Console(stderr=True)
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not _on_terminal()
    ) as progress:
        task = progress.add_task("ingest", total=None, rows=0)
        yield lambda entered: progress.update(task, rows=entered.read)


def _on_terminal() -> bool:
    return sys.stderr.isatty()
