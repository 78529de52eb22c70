"""How far an import is, on a terminal; and its end on a signal."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from slurmkit.text import printable
from slurmkit_containers.trust import STAYS, Report

_EVERY = 0.1  # seconds
_WORDS = 50  # columns


@contextmanager
def progress() -> Iterator[Report]:
    """Show on standard error what is reported; what does not stay only if that is a terminal."""
    if not sys.stderr.isatty():
        yield _stays
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it, and it costs
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), DownloadColumn(binary_units=True), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, last = bar.add_task("beginning", total=None), 0.0

        def report(words: str, done: int, total: int | None) -> None:
            nonlocal last
            if done == STAYS:
                bar.console.print(printable(words), markup=False, highlight=False)
                return
            now = time.monotonic()
            if now - last >= _EVERY or done == total:
                last = now
                bar.update(task, description=words[:_WORDS], completed=done, total=total)

        yield report


def _stays(words: str, done: int, total: int | None) -> None:
    del total
    if done == STAYS:
        click.echo(printable(words), err=True)


@contextmanager
def stoppable() -> Iterator[None]:
    """End on SIGTERM and SIGHUP as on Ctrl-C, so that nothing half done stays."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL  # nohup ignores SIGHUP, and is right
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
