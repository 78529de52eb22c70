"""Openings of one ledger: what they share, and what they do not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from slurmkit_accounting.ledger import database
from slurmkit_accounting.ledger.database import Ledger, open_for_reading
from slurmkit_accounting.ledger.schema.runs import clusters, runs
from sqlalchemy import func, insert, select

from slurmkit.errors import LedgerError, NoLedger

pytestmark = pytest.mark.sql

COUNT = select(func.count()).select_from(runs)


@pytest.mark.usefixtures("ledger")
def test_openings_share_compiled_queries_and_no_connection() -> None:
    with open_for_reading() as one, one.transaction() as connection:
        with open_for_reading() as other, other.transaction() as another:
            assert one.engine is not other.engine
            assert one.engine._compiled_cache is other.engine._compiled_cache
            assert one.engine.pool is not other.engine.pool
            assert another.scalar(COUNT) == 0
        assert connection.scalar(COUNT) == 0  # the end of the other is not the end of this one


def test_threads_may_open_a_ledger_for_the_first_time(ledger: Ledger) -> None:
    """A copy must not be used before the first connection has told how the server talks."""

    def count(_: int) -> int:
        with open_for_reading() as opened, opened.transaction() as connection:
            return int(connection.scalar(COUNT) or 0)

    for _ in range(5):
        database._engines.clear()
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(count, range(8))) == [0] * 8
    assert ledger.source


def test_only_a_ledger_that_is_not_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoLedger), open_for_reading(f"sqlite:///{tmp_path}/none.db"):
        pass
    (tmp_path / "other.db").write_bytes(b"no database" * 100)
    with pytest.raises(LedgerError) as found, open_for_reading(f"sqlite:///{tmp_path}/other.db"):
        pass
    assert not isinstance(found.value, NoLedger)


def test_few_ledgers_are_remembered(tmp_path: Path) -> None:
    for number in range(2 * database._MOST_ENGINES):
        with database.open_for_writing(f"sqlite:///{tmp_path}/{number}.db"):
            assert len(database._engines) <= database._MOST_ENGINES


def test_one_run_cannot_be_stored_twice(ledger: Ledger) -> None:
    """Even with another DBIndex, as after a restore of slurmdbd."""
    run: dict[str, object] = {
        column.name: "" if column.type.python_type is str else 0
        for column in runs.columns
        if not column.nullable and not column.primary_key
    }
    with ledger.transaction() as connection:
        connection.execute(insert(clusters), {"name": "lab"})
        run |= {"cluster_id": 1, "job_id_raw": 12, "submit": 1_700_000_000, "first_ingest_id": None}
        connection.execute(insert(runs), run | {"db_index": 7})
    with pytest.raises(LedgerError, match=r"(?i)unique"), ledger.transaction() as connection:
        connection.execute(insert(runs), run | {"db_index": 8})
