from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from databases import KINDS
from slurmkit_accounting.ledger import schema
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.location import ledger_url
from slurmkit_accounting.ledger.schema.types import REVISION, VERSION_TABLE
from sqlalchemy import Connection, create_engine, text

DAY = 86400
NOON = 1_700_049_600 // DAY * DAY + DAY // 2
RUN = {
    "cluster_id": 1, "db_index": 7, "job_id_raw": 12, "job_id": "12", "user": "alice", "uid": 10,
    "account": "vision", "partition": "gpu", "qos": "normal", "state": "COMPLETED",
    "submit": NOON - 60, "eligible": NOON - 60, "start": NOON, "end": NOON + 1800, "nodes": 1,
    "cpus": 4, "gpus": 2, "alloc_tres": "cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G", "req_tres": "",
    "time_limit": "60", "exit_code": "0:0", "node_list": "c1", "name": "train",
}  # fmt: skip
AGAIN = {"db_index": 8, "submit": NOON + 1810, "start": NOON + 3600, "end": NOON + DAY}
RUNS = [
    RUN | {"state": "NODE_FAIL"},
    RUN | AGAIN,
    RUN | {"db_index": None, "job_id_raw": 13, "start": None, "end": None, "state": "PENDING"},
]


def insert(connection: Connection, table: str, *rows: dict) -> None:
    for row in rows:
        names = ", ".join(f'"{name}"' for name in row)
        values = ", ".join(f":{name}" for name in row)
        connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)  # noqa: S608


def make_0001(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "slurmkit_accounting:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, "0001")
    insert(
        connection,
        "clusters",
        {"name": "lab", "tracks_gpus": True, "covered_from": 5, "covered_to": 900},
        {"name": "new", "tracks_gpus": None, "covered_from": None, "covered_to": None},
    )
    window = {"cluster_id": 1, "started": 900, "window_from": 5, "window_to": 900}
    insert(connection, "ingests", window | {"ended": 901}, window | {"ended": None})
    insert(connection, "runs", *RUNS)
    insert(connection, "revisions", {"run_id": 1, "ingest_id": 1, "old": "{}"})
    who = {"directory_id": "x", "display_name": "A", "mail": "", "active": True, "first_seen": 1}
    insert(connection, "people", who)
    insert(
        connection,
        "usernames",
        {"person_id": 1, "username": "al", "valid_from": 0, "valid_to": NOON + 1000},
        {"person_id": 1, "username": "alice", "valid_from": NOON + 1000, "valid_to": None},
    )


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[str]:
    """URL of a ledger as the first schema made it, with rows."""
    where = f"sqlite:///{tmp_path}/old.db"
    if request.param == "postgresql":
        where = request.getfixturevalue("postgres")
    engine = create_engine(ledger_url(where))
    with engine.begin() as connection:
        make_0001(connection)
    engine.dispose()
    return where


def test_a_first_ledger_comes_forward_with_its_rows(old):
    with open_for_writing(old) as ledger, ledger.transaction() as connection:

        def rows(sql: str) -> list[tuple]:
            return [tuple(row) for row in connection.execute(text(sql))]

        assert connection.scalar(text("SELECT version_num FROM ledger_version")) == REVISION
        assert rows("SELECT cluster_id, begin, finish FROM spans") == [(1, 5, 900)]
        assert rows("SELECT source, done_to FROM ingests ORDER BY id") == [
            ("sacct", 900),
            ("sacct", None),
        ]
        assert rows("SELECT at FROM eras") == [(NOON + 1000,)]
        stored = connection.execute(text("SELECT * FROM runs ORDER BY id")).mappings().all()
        for before, after in zip(RUNS, stored, strict=True):
            assert {name: after[name] for name in before} == before
        assert [bool(row["redone"]) for row in stored] == [True, False, False]
        days = rows(
            "SELECT bin, state, era, gpu_seconds, cpu_seconds, mem_mib_seconds, runs, started"
            " FROM usage_days JOIN usage_keys ON key_id = usage_keys.id ORDER BY bin, state"
        )
        midnight = NOON + DAY // 2
        assert days == [
            (NOON - DAY // 2, "COMPLETED", NOON + 1000, 2 * 39600, 4 * 39600, 8192 * 39600, 1, 1),
            (NOON - DAY // 2, "NODE_FAIL", 0, 3600, 7200, 8192 * 1800, 1, 1),
            (midnight, "COMPLETED", NOON + 1000, DAY, 2 * DAY, 8192 * DAY // 2, 1, 0),
        ]
        assert rows("SELECT count(*), sum(gpu_seconds) FROM usage_hours") == [
            (24, 2 * 39600 + 3600 + DAY)
        ]


def test_the_migrations_make_what_the_schema_says(ledger):
    for module in pkgutil.iter_modules(schema.__path__, "slurmkit_accounting.ledger.schema."):
        import_module(module.name)
    with ledger.transaction() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, schema.metadata) == []
