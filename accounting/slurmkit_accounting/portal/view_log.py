"""Who looked at whose runs: written in a thread of its own, read by the owners of the runs.

A page does not wait for the ledger's writers: a thread writes what was seen, within seconds.
"""

from __future__ import annotations

import datetime as dt
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from sqlalchemy import Connection, and_, delete, func, insert, select, update

from slurmkit.errors import ServiceError
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.people import portal_views
from slurmkit_accounting.ledger.schema.reclaim import reclaim_acts, reclaim_keeps
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.people.pi import People
from slurmkit_accounting.portal.identity import Account
from slurmkit_accounting.service.log import Log
from slurmkit_accounting.usage.tables import load_eras

_MOST_WAITING = 5000  # views that are not written yet
_TRIES, _PAUSE_SECONDS = 5, 2.0
_MOST_SHOWN = 500
KEEP_DAYS = 400


class Subject(msgspec.Struct, frozen=True):
    """Whose runs were seen: a person, or a uid that the directory did not know."""

    user: str
    person_id: int | None
    uid: int | None


class PortalView(msgspec.Struct, frozen=True):
    """Somebody saw runs of these people; `seen_as` is empty for a view of one's own."""

    viewer: Account
    seen_as: str
    page: str
    subjects: tuple[Subject, ...]
    at: int


class PastView(msgspec.Struct, frozen=True):
    """Views of one person's runs on one day, for that person to read."""

    day: str
    viewer: str
    seen_as: str
    page: str
    last: int
    views: int


class ViewLog:
    """Takes views, and writes them to the ledger in a thread of its own.

    Args:
        open_to_change: opens the ledger for writing.
        log: gets a line for views that could not be written.
        keep_days: days after which views are deleted.
    """

    def __init__(
        self,
        open_to_change: Callable[[], AbstractContextManager[Ledger]],
        log: Log,
        keep_days: int = KEEP_DAYS,
    ) -> None:
        self._open, self._log, self._keep_days = open_to_change, log, keep_days
        self._deleted_on: dt.date | None = None
        self._waiting: queue.Queue[PortalView | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._run, daemon=True, name="portal views")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and end."""
        self._waiting.put(None)
        self._thread.join(30)

    def add(self, view: PortalView) -> None:
        """Take a view.

        Raises:
            ServiceError: when too many wait: nothing is shown that is not written down.
        """
        if not view.subjects:
            return
        try:
            self._waiting.put_nowait(view)
        except queue.Full as error:
            raise ServiceError(
                "the service cannot write down who looks at which runs; try again in a minute"
            ) from error

    def wait_until_written(self) -> None:
        """Return once everything that was added is written, or given up."""
        self._waiting.join()

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while len(batch) < _MOST_WAITING and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            views = [view for view in batch if view is not None]
            self._write(views)
            for _ in batch:
                self._waiting.task_done()
            if len(views) < len(batch):
                return

    def _write(self, views: Sequence[PortalView]) -> None:
        for tries_left in reversed(range(_TRIES if views else 0)):
            try:
                with self._open() as ledger, ledger.transaction() as connection:
                    for view in views:
                        write_view(connection, view)
                    self._delete_old(connection, max(view.at for view in views))
            except Exception as error:  # noqa: BLE001 - without its thread, no page is shown
                if tries_left:
                    time.sleep(_PAUSE_SECONDS)
                else:
                    self._give_up(views, error)
            else:
                return

    def _delete_old(self, connection: Connection, now: int) -> None:
        """Delete what is older than `view_days`, once a day."""
        today = dt.datetime.fromtimestamp(now, dt.UTC).date()
        if self._deleted_on != today:
            first = today - dt.timedelta(days=self._keep_days)
            connection.execute(delete(portal_views).where(portal_views.c.day < first.isoformat()))
            self._deleted_on = today

    def _give_up(self, views: Sequence[PortalView], error: Exception) -> None:
        for view in views:
            self._log(
                "view not written", user=view.viewer.user, seen_as=view.seen_as or None,
                page=view.page, of=" ".join(one.user for one in view.subjects), why=error,
            )  # fmt: skip


def write_view(connection: Connection, view: PortalView) -> None:
    """Add a view to the rows of its day, one for each person whose runs were seen."""
    table = portal_views
    day = dt.datetime.fromtimestamp(view.at, dt.UTC).date().isoformat()
    same = (
        table.c.day == day,
        table.c.viewer_uid == view.viewer.uid,
        table.c.seen_as == view.seen_as,
        table.c.page == view.page,
    )
    for subject in view.subjects:
        changed = connection.execute(
            update(table)
            .where(*same, table.c.subject == subject.user)
            .values(last=view.at, views=table.c.views + 1)
        )
        if changed.rowcount:
            continue
        connection.execute(
            insert(table).values(
                day=day, viewer_uid=view.viewer.uid, viewer=view.viewer.user,
                seen_as=view.seen_as, page=view.page, subject=subject.user,
                person_id=subject.person_id, uid=subject.uid,
                first=view.at, last=view.at, views=1,
            )
        )  # fmt: skip


def views_of(connection: Connection, account: Account) -> tuple[PastView, ...]:
    """Return who looked at the runs of an account, the latest first."""
    table = portal_views
    if account.person_id is None:
        mine = and_(table.c.person_id.is_(None), table.c.uid == account.uid)
    else:
        mine = table.c.person_id == account.person_id
    names = ("day", "viewer", "seen_as", "page", "last", "views")
    query = select(*(table.c[name] for name in names)).where(mine)
    newest = query.order_by(table.c.last.desc(), table.c.id.desc()).limit(_MOST_SHOWN)
    return tuple(PastView(*row) for row in connection.execute(newest))


def owners_of_rows(
    connection: Connection, rows: Iterable[int], viewer: Account | None
) -> tuple[Subject, ...]:
    """Return whose runs some rows of the ledger are, without the viewer's own.

    Args:
        connection: of the ledger.
        rows: ids in table `runs`.
        viewer: left out; None to leave out nobody.
    """
    names = (runs.c.user, runs.c.uid)
    query = select(*names, func.max(runs.c.submit)).group_by(*names)
    found = connection.execute(query.where(in_values(connection, runs.c.id, rows))).all()
    return _subjects(connection, found, viewer)


def owners_of_acts(
    connection: Connection, jobs: Collection[str], users: Collection[str], viewer: Account | None
) -> tuple[Subject, ...]:
    """Return whose jobs were acted on because of idle GPUs, without the viewer's own.

    Args:
        connection: of the ledger.
        jobs: their ids, as the report `reclaimed` has them; other clusters have the same ids.
        users: the user names there.
        viewer: left out; None to leave out nobody.
    """
    found: list[Any] = []
    for table in (reclaim_acts, reclaim_keeps):
        names = (table.c.user, table.c.uid)
        query = select(*names, func.max(table.c.submit)).group_by(*names)
        of_jobs = in_values(connection, table.c.job_id, jobs)
        found += connection.execute(query.where(of_jobs, table.c.user.in_(users)))
    return _subjects(connection, found, viewer)


def _subjects(
    connection: Connection, found: Sequence[Any], viewer: Account | None
) -> tuple[Subject, ...]:
    people, eras = People.load(connection), load_eras(connection)
    subjects: dict[str, Subject] = {}
    for user, uid, submit in found:
        person = people.person(user, uid, eras.of(submit))
        own = viewer is not None and (
            person == viewer.person_id if person is not None else uid == viewer.uid
        )
        if not own:
            subjects[user] = Subject(user, person, None if person is not None else uid)
    return tuple(subjects[name] for name in sorted(subjects))


def subject_of(account: Account) -> Subject:
    """Return the subject of a view that is about an account itself."""
    known = account.person_id is not None
    return Subject(account.user, account.person_id, None if known else account.uid)
