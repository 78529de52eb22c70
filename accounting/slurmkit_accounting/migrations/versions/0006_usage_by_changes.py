"""Usage holds what changes at the start and the end of a run, not what is held in each hour.

`slurmkit_accounting.migrations.env` makes it from the runs once all migrations are through.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_COLUMNS = (
    "gpu_seconds cpu_seconds node_seconds wall_seconds mem_mib_seconds energy_millijoules started"
    " waited_seconds cpu_used_ms cpu_measured_ms mem_used_mib_seconds mem_measured_mib_seconds"
    " gpu_used_ms gpu_measured_ms gpus cpus nodes runs mem_mib milliwatts"
).split()


def upgrade() -> None:
    """Make the tables of usage anew, and one of months; closed months have millijoules too."""
    for name in ("usage_hours", "usage_days"):
        op.drop_table(name)
    for name in ("usage_hours", "usage_days", "usage_months"):
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
            *(sa.Column(column, sa.BigInteger, nullable=False) for column in _COLUMNS),
            sqlite_with_rowid=False,
        )
    op.execute("ALTER TABLE closed_usage RENAME COLUMN energy_joules TO energy_millijoules")
    # More than a machine can use is a wrong measurement, and would not fit.
    op.execute(
        "UPDATE closed_usage SET energy_millijoules = CASE"
        " WHEN energy_millijoules < 9000000000000000 THEN energy_millijoules * 1000 ELSE 0 END"
    )
