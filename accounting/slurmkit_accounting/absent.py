"""Runs that sacct should show and does not: asked for by id, then kept as gone."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import BigInteger, ColumnElement, Connection, select, text, type_coerce, update

from slurmkit_accounting.bulk import among
from slurmkit_accounting.rows import Key, identify
from slurmkit_accounting.schema import OPEN, runs
from slurmkit_accounting.windows import Window

_SHOWN = runs.c.gone_since.is_(None)
_KEY = (type_coerce(runs.c.db_index, BigInteger), runs.c.job_id_raw, runs.c.submit)


class Expected:
    """What an ingest should see: runs without an end, and those that ended in its windows.

    A run that has ended may have been put right to have ended before the window; then it is not
    in there, but sacct shows it by its id. So does a pending array's row that its tasks replaced
    not: that is how it retires.
    """

    def __init__(self, connection: Connection, cluster: int) -> None:
        self._cluster = cluster
        self._left: dict[Key, tuple[int, int]] = {}  # number of the run, its JobIDRaw
        self._add(connection, text(OPEN))

    def add_ended(self, connection: Connection, window: Window) -> None:
        """Those that the ledger has as ended in a window that is about to be read."""
        ended = runs.c.end.between(window.begin, window.end - 1)
        # sacct's windows leave out what never became eligible.
        self._add(connection, ended & runs.c.eligible.is_not(None))

    def came(self, keys: Iterable[Key | None]) -> None:
        """These were read."""
        for key in keys:
            if key is not None:
                self._left.pop(key, None)

    @property
    def by_submit(self) -> bool:
        """Whether any run is still expected that came without a DBIndex, and may come with one."""
        return any(not isinstance(key, int) for key in self._left)

    def jobs(self) -> list[int]:
        """JobIDRaw of those that have not come."""
        return sorted({job for _, job in self._left.values()})

    def mark_gone(self, connection: Connection, since: int) -> int:
        """Those that have not come to this moment are gone; return how many."""
        numbers = sorted(number for number, _ in self._left.values())
        if numbers:
            where = (among(connection, runs.c.id, numbers), _SHOWN)
            connection.execute(update(runs).where(*where).values(gone_since=since))
        return len(numbers)

    def _add(self, connection: Connection, which: ColumnElement[bool] | object) -> None:
        query = select(runs.c.id, *_KEY).where(runs.c.cluster_id == self._cluster, _SHOWN, which)  # type: ignore[arg-type]
        for number, index, job, submit in connection.execute(query):
            self._left[identify(index, job, submit)] = (number, job)
