"""What the service's schedule does: the one place that knows how each task is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from slurmkit.slurm import Slurm
from slurmkit_accounting.ledger import Ledger
from slurmkit_accounting.service.config import ScheduleSection
from slurmkit_accounting.service.crontext import trigger
from slurmkit_accounting.service.schedule import Task
from slurmkit_accounting.zones import Zone

Books = Callable[[], AbstractContextManager[Ledger]]
Check = Callable[[], None]
"""Raises `Stopped` when the service is to stop; called between batches."""


class Work:
    """The tasks.

    Args:
        books: opens the ledger for writing.
        slurm: the border to Slurm.
        check: see `Check`.
    """

    def __init__(self, books: Books, slurm: Slurm, check: Check) -> None:
        self._books = books
        self._slurm = slurm
        self._check = check

    def tasks(self, section: ScheduleSection, zone: Zone) -> list[Task]:
        """Those that have a time, in the order in which they run where several are due.

        Raises:
            BadConfig: when a time is none.
        """
        runs: dict[str, Callable[[list[str]], str]] = {
            "people": self.people,
            "ingest": self.ingest,
        }
        monthly = {"close", "mail"}
        return [
            Task(
                name=name,
                when=trigger(name, text, zone),
                run=run,
                at_first=name not in monthly,
                monthly=name in monthly,
            )
            for name, run in runs.items()
            if (text := getattr(section, name))
        ]

    def ingest(self, _: list[str]) -> str:
        """New and changed jobs from sacct; stops at the edge of a batch."""
        from slurmkit_accounting.ingest import ingest  # noqa: PLC0415 - as every task

        with self._books() as ledger:
            done = ingest(ledger, self._slurm, progress=lambda *_: self._check())
        rows = done.entered
        return f"{rows.read} read, {rows.new} new, {rows.changed} changed, {rows.rejected} rejected"

    def people(self, _: list[str]) -> str:
        """People, groups, overrides and coordinators."""
        from slurmkit_accounting.people_sources import hear  # noqa: PLC0415
        from slurmkit_accounting.people_sync import sync_people  # noqa: PLC0415

        heard = hear(self._slurm)
        with self._books() as ledger:
            synced = sync_people(ledger, heard.told, max_vanish=heard.max_vanish)
        return f"{heard.read}; {len(synced.changes)} changes"
