"""The PostgreSQL database of this test process, where there is one: see tests/on-postgres."""

from __future__ import annotations

import os

import pytest
from quick_ledgers import empty_postgres
from slurmkit_accounting.ledger.location import ledger_url
from sqlalchemy import create_engine

POSTGRES = os.environ.get("SLURMKIT_TEST_POSTGRES")
# Which of several processes this is; each has a database of its own.
WORKER = os.environ.get("PYTEST_XDIST_WORKER")
KINDS = ("sqlite", "postgresql")


def emptied() -> str:
    """Its URL, with nothing in it any more; the test is skipped where there is none."""
    if not POSTGRES:
        pytest.skip("SLURMKIT_TEST_POSTGRES names no PostgreSQL database; see tests/on-postgres")
    url = ledger_url(POSTGRES)
    url = url.set(database=f"{url.database}_{WORKER}") if WORKER else url
    engine = create_engine(url)
    with engine.begin() as connection:
        empty_postgres(connection)
    engine.dispose()
    return url.render_as_string(hide_password=False)
