"""Do the same for several jobs: what fails is told, the rest is done, the command ends with 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from slurmkit.errors import SlurmkitError
from slurmkit.jobs.job import Job
from slurmkit.text import printable


def each(jobs: Iterable[Job], act: Callable[[Job], None]) -> list[SlurmkitError]:
    """Act on every job; returns the errors of those it did not work for, for `fail_with`."""
    failed: list[SlurmkitError] = []
    for job in jobs:
        try:
            act(job)
        except SlurmkitError as error:
            failed.append(error)
    return failed


def fail_with(failed: Sequence[SlurmkitError]) -> None:
    """Tell all errors but the last one and raise that; nothing when there is none.

    Raises:
        SlurmkitError: the last of them.
    """
    for error in failed[:-1]:
        say(str(error))
    if failed:
        raise failed[-1]


def say(words: str) -> None:
    """Print a line about what is going on to standard error."""
    click.echo(f"slurmkit: {printable(words)}", err=True)
