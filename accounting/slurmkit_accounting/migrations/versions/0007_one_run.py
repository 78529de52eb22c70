"""JobIDRaw and Submit are the key of a run, as in slurmdbd; usage says what it does not know.

`slurmkit_accounting.migrations.env` makes the tables of usage, with the checks of their sums, and
the usage in them from the runs, once all migrations are through.
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_HELD = (
    "gpu_seconds cpu_seconds node_seconds wall_seconds mem_mib_seconds nodeless_seconds"
    " metered_node_seconds energy_millijoules"
).split()
_COUNTED = (
    "started waited_seconds cpu_used_ms cpu_measured_ms mem_used_mib_seconds"
    " mem_measured_mib_seconds gpu_used_ms gpu_measured_ms"
).split()
_RATES = "gpus cpus nodes runs mem_mib nodeless metered_nodes milliwatts".split()
_MEASURED = "cpu_used_ms mem_peak_mib gpu_used_permille gpu_mem_peak_mib".split()
# The columns that sacct gives; their values in a dropped twin are kept as a revision.
_OF_SACCT = (
    "db_index job_id user uid account partition qos state start end nodes cpus gpus alloc_tres"
    " energy_joules eligible suspended cancelled_by req_tres time_limit exit_code node_list"
    " reservation name"
).split()
_HAS_DB_INDEX = sa.text("db_index IS NOT NULL")


def upgrade() -> None:
    """Make one run of those that an earlier release stored twice; make the tables of usage anew."""
    _settle_twins(op.get_bind())
    _clip_suspensions(op.get_bind())
    for name in ("runs_by_db_index", "runs_by_submit", "runs_by_job"):
        op.drop_index(name, "runs")
    op.create_index("runs_once", "runs", ["cluster_id", "job_id_raw", "submit"], unique=True)
    op.create_index(
        "runs_by_db_index",
        "runs",
        ["cluster_id", "db_index"],
        sqlite_where=_HAS_DB_INDEX,
        postgresql_where=_HAS_DB_INDEX,
    )
    _make_usage_anew()
    # Of closed months, as reports have shown them so far.
    for name, amount, known in (
        ("nodeless_seconds", "wall_seconds - node_seconds", "node_seconds < wall_seconds"),
        ("metered_node_seconds", "node_seconds", "energy_millijoules > 0"),
    ):
        column = sa.Column(name, sa.BigInteger, nullable=False, server_default="0")
        op.add_column("closed_usage", column)
        op.execute(f"UPDATE closed_usage SET {name} = {amount} WHERE {known}")  # noqa: S608


def _settle_twins(connection: sa.Connection) -> None:
    """Keep one row of each run: the one that sacct still shows, else the newest."""
    pair = "cluster_id, job_id_raw, submit"
    query = f"SELECT {pair} FROM runs GROUP BY {pair} HAVING count(*) > 1"  # noqa: S608
    same = "cluster_id = :cluster_id AND job_id_raw = :job_id_raw AND submit = :submit"
    for key in connection.execute(sa.text(query)).mappings().all():
        found = connection.execute(sa.text(f"SELECT * FROM runs WHERE {same}"), dict(key))  # noqa: S608
        kept, *others = sorted(found.mappings().all(), key=_rank)
        for other in others:
            _drop_twin(connection, dict(kept), dict(other))


def _rank(run: Any) -> tuple[bool, bool, int]:
    return run["retracted"] is not None, run["gone_since"] is not None, -run["id"]


def _drop_twin(connection: sa.Connection, kept: dict[str, Any], other: dict[str, Any]) -> None:
    """Delete a row; what it has more of goes to the row that is kept."""

    def run(sql: str, **values: Any) -> Any:
        return connection.execute(sa.text(sql), {"kept": kept["id"], "id": other["id"], **values})

    if not run("SELECT count(*) FROM steps WHERE run_id = :kept").scalar():
        run("UPDATE steps SET run_id = :kept WHERE run_id = :id")
        values = ", ".join(f"{name} = :{name}" for name in _MEASURED)
        measured = {name: other[name] for name in _MEASURED}
        run(f"UPDATE runs SET {values} WHERE id = :kept", **measured)  # noqa: S608
    if not run("SELECT count(*) FROM suspensions WHERE run_id = :kept").scalar():
        run("UPDATE suspensions SET run_id = :kept WHERE run_id = :id")
    for table in ("steps", "suspensions"):
        run(f"DELETE FROM {table} WHERE run_id = :id")  # noqa: S608
    run("UPDATE revisions SET run_id = :kept WHERE run_id = :id")
    was = {name: other[name] for name in _OF_SACCT if other[name] != kept[name]}
    ingest = other["first_ingest_id"] or run("SELECT max(id) FROM ingests").scalar()
    if was and ingest:
        sql = "INSERT INTO revisions (run_id, ingest_id, old) VALUES (:kept, :ingest, :old)"
        run(sql, ingest=ingest, old=json.dumps(was))
    run("DELETE FROM runs WHERE id = :id")


def _clip_suspensions(connection: sa.Connection) -> None:
    """Take off intervals what lies before the start or after the end of their runs."""
    query = (
        'SELECT run_id, begin, length, start, "end" FROM suspensions JOIN runs ON runs.id = run_id'
        ' WHERE begin < "end" AND begin + length > start'
        ' AND (begin < start OR begin + length > "end")'
    )
    sql = (
        "UPDATE suspensions SET begin = :first, length = :length"
        " WHERE run_id = :run_id AND begin = :begin"
    )
    for run_id, begin, length, start, end in connection.execute(sa.text(query)).all():
        first, last = max(begin, start), min(begin + length, end)
        where = {"run_id": run_id, "begin": begin}
        connection.execute(sa.text(sql), {**where, "first": first, "length": last - first})


def _make_usage_anew() -> None:
    columns = (*_HELD, *_COUNTED, *_RATES)
    for name in ("usage_hours", "usage_days", "usage_months"):
        op.drop_table(name)
        op.create_table(
            name,
            sa.Column("bin", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column(
                "key_id",
                sa.BigInteger,
                sa.ForeignKey("usage_keys.id"),
                primary_key=True,
                nullable=False,
            ),
            *(sa.Column(column, sa.BigInteger, nullable=False) for column in columns),
            sqlite_with_rowid=False,
        )
