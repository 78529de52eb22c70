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
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.gpu_use.store import load_uses
from slurmkit_accounting.ledger import schema
from slurmkit_accounting.ledger.database import open_for_writing, upgrade_ledger
from slurmkit_accounting.ledger.location import ledger_url
from slurmkit_accounting.ledger.schema.types import REVISION, VERSION_TABLE
from slurmkit_accounting.usage.query import SUM_INDEX, UsageQuery, query_usage
from sqlalchemy import Connection, create_engine, text

from slurmkit.errors import LedgerError

pytestmark = pytest.mark.sql

DAY = 86400
OLD_SUMS = (
    "gpu_seconds cpu_seconds node_seconds wall_seconds mem_mib_seconds energy_joules runs started"
    " waited_seconds cpu_used_ms cpu_measured_ms mem_used_mib_seconds mem_measured_mib_seconds"
    " gpu_used_ms gpu_measured_ms"
).split()
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


def upgrade(connection: Connection, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", "slurmkit_accounting:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def make_0001(connection: Connection) -> None:
    upgrade(connection, "0001")
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
    upgrade_ledger(old)
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
        midnight = NOON + DAY // 2
        edges = (midnight - DAY, midnight, midnight + DAY)
        names = ("gpu_seconds", "cpu_seconds", "mem_mib_seconds", "runs", "started")
        days = {
            (part, key.state, key.era): tuple(sums[SUM_INDEX[name]] for name in names)
            for (part, key), sums in query_usage(connection, UsageQuery(edges, 0)).items()
        }
        assert days == {
            (0, "COMPLETED", NOON + 1000): (2 * 39600, 4 * 39600, 8192 * 39600, 0, 1),
            (0, "NODE_FAIL", 0): (3600, 7200, 8192 * 1800, 0, 1),
            (1, "COMPLETED", NOON + 1000): (DAY, 2 * DAY, 8192 * DAY // 2, 1, 0),
        }
        assert rows("SELECT count(*), sum(gpu_seconds) FROM usage_months") == [
            (2, 2 * 39600 + 3600 + DAY)
        ]
        assert verify(connection).wrong == []


def test_usage_by_the_hour_is_made_anew_from_the_runs(old):
    engine = create_engine(ledger_url(old))
    with engine.begin() as connection:
        upgrade(connection, "0005")
        key = {"user": "alice", "uid": 10, "account": "vision", "partition": "gpu", "qos": "normal"}
        key |= {"state": "COMPLETED", "redone": False, "gpu_type": "a100", "era": 0}
        insert(connection, "usage_keys", key | {"cluster_id": 1})
        sums = dict.fromkeys(OLD_SUMS, 7)
        insert(connection, "usage_days", {"bin": NOON - DAY // 2, "key_id": 1, **sums})
        insert(connection, "usage_hours", {"bin": NOON, "key_id": 1, **sums})
        closing = {"cluster_id": 1, "month": "2023-11", "timezone": "UTC", "at": NOON}
        insert(connection, "closings", closing | {"ingest_id": 1, "checksum": "x"})
        insert(connection, "closed_usage", {"closing_id": 1, "key_id": 1, **sums})
    engine.dispose()
    upgrade_ledger(old)
    with open_for_writing(old) as ledger, ledger.transaction() as connection:
        assert verify(connection).wrong == []
        found = connection.execute(text("SELECT * FROM closed_usage")).mappings().one()
        energy = {"energy_millijoules": 7000, "closing_id": 1, "key_id": 1, "gpu_joules": 0}
        energy |= {"metered_node_seconds": 7, "nodeless_seconds": 0}
        assert dict(found) == {name: 7 for name in OLD_SUMS if name != "energy_joules"} | energy


def test_the_migrations_make_what_the_schema_says(ledger):
    for module in pkgutil.iter_modules(schema.__path__, "slurmkit_accounting.ledger.schema."):
        import_module(module.name)
    with ledger.transaction() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, schema.metadata) == []


TWIN = RUN | {"fingerprint": 1, "first_ingest_id": 1}


def make_twins(old: str, *twins: dict) -> None:
    """Store one run several times, as slurmkit 0.1 did when it got another DBIndex."""
    engine = create_engine(ledger_url(old))
    with engine.begin() as connection:
        upgrade(connection, "0006")
        connection.execute(text("DELETE FROM revisions"))
        connection.execute(text("DELETE FROM runs"))
        insert(connection, "runs", *twins)
        step = {"step": "0", "state": "COMPLETED", "name": "x"}
        insert(connection, "steps", *({"run_id": run["id"], **step} for run in twins[:1]))
        spans = {"begin": NOON, "length": 900, "seconds": 60}
        insert(connection, "suspensions", *({"run_id": run["id"], **spans} for run in twins[:1]))
        insert(connection, "revisions", {"run_id": twins[0]["id"], "ingest_id": 1, "old": "{}"})
    engine.dispose()


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        (({"gone_since": NOON + 9000}, {}), 22),
        (({}, {"gone_since": NOON + 9000}), 21),
        (({"retracted": NOON + 9000}, {"gone_since": NOON + 9000}), 22),
        (({}, {}), 22),
    ],
)
def test_a_run_that_was_stored_twice_becomes_one(old, facts, kept):
    """Of two rows the one that sacct still shows counts, else the newest."""
    one = {"id": 21, "db_index": 55, "suspended": 60, "cpu_used_ms": 700, **facts[0]}
    two = {"id": 22, "db_index": 7, "suspended": 60, "cpu_used_ms": None, **facts[1]}
    blank = {"gone_since": None, "retracted": None}
    make_twins(old, *(TWIN | blank | twin for twin in (one, two)))
    upgrade_ledger(old)
    with open_for_writing(old) as ledger, ledger.transaction() as connection:
        (run,) = connection.execute(text("SELECT * FROM runs")).mappings()
        assert (run["id"], run["cpu_used_ms"]) == (kept, 700)
        others = connection.execute(text("SELECT run_id, old FROM revisions ORDER BY id")).all()
        db_index = {21: 7, 22: 55}[kept]
        assert [tuple(row) for row in others] == [
            (kept, "{}"),
            (kept, f'{{"db_index": {db_index}}}'),
        ]
        for table in ("steps", "suspensions"):
            assert connection.execute(text(f"SELECT run_id FROM {table}")).all() == [(kept,)]  # noqa: S608
        (used,) = connection.execute(text("SELECT gpu_seconds, started FROM usage_months"))
        assert tuple(used) == (3600, 1)
        assert verify(connection).wrong == []


def test_one_run_cannot_be_stored_twice(ledger):
    with ledger.transaction() as connection:
        insert(connection, "clusters", {"name": "lab"})
    with pytest.raises(LedgerError, match=r"(?i)unique"), ledger.transaction() as connection:
        insert(connection, "runs", RUN, RUN | {"db_index": 8})


def test_no_suspended_time_lies_where_the_run_was_not(old):
    make_twins(old, TWIN | {"id": 21, "db_index": 7, "suspended": 60})
    engine = create_engine(ledger_url(old))
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE suspensions SET begin = {NOON - 600}, length = 9000"))  # noqa: S608
    engine.dispose()
    upgrade_ledger(old)
    with open_for_writing(old) as ledger, ledger.transaction() as connection:
        (row,) = connection.execute(text("SELECT * FROM suspensions"))
        assert tuple(row) == (21, NOON, 1800, 60)
        assert verify(connection).wrong == []


def test_summaries_of_gpus_keep_their_numbers_under_new_names(old):
    numbers = {"samples": 20, "busy_samples": 19, "idle_samples": 1, "percentile_95": 80}
    floats = {"covered": 600.0, "busy_covered": 570.0, "busy": 15.5, "counted_joules": 9.0}
    floats |= {"counted_seconds": 30.0, "edge_joules": 2.5, "edge_seconds": 60.0}
    named = dict.fromkeys(("uuid", "pci", "mig"), "") | {"node": "c1", "gpu": "GPU-1"}
    engine = create_engine(ledger_url(old))
    with engine.begin() as connection:
        upgrade(connection, "0008")
        use = {"cluster_id": 1, "job_id_raw": 12, "start": NOON, "source": "exporter"}
        use |= {"shared": False, "interval": 30, "power_seconds": 0.0}
        insert(connection, "gpu_use", use | named | numbers | floats)
    engine.dispose()
    upgrade_ledger(old)
    with open_for_writing(old) as ledger, ledger.transaction() as connection:
        (row,) = load_uses(connection)
    assert (row.samples, row.measured_samples, row.measured_seconds) == (20, 19, 570)
    assert (row.utilisation_sum, row.joules, row.energy_seconds) == (15.5, 11.5, 90)
