"""The PostgreSQL database of the tests, where there is one."""

from __future__ import annotations

import os

from slurmkit_accounting.location import ledger_url
from sqlalchemy import create_engine, text

POSTGRES = os.environ.get("SLURMKIT_TEST_POSTGRES")


def emptied() -> str:
    """Its URL, with nothing in it any more."""
    assert POSTGRES
    engine = create_engine(ledger_url(POSTGRES))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return POSTGRES
