"""What GPUs really did: summaries and curves by run, node and GPU; their energy in usage."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_NOT_LINKED = sa.text("run_id IS NULL")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add four tables, and columns of runs and usage for what GPUs measured."""
    _create_gpu_use()
    op.create_table(
        "gpu_curves",
        _key("use_id", "gpu_use.id"),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("begin", "step", "last")),
        sa.Column("points", sa.LargeBinary, nullable=False),
    )
    op.create_index("gpu_curves_by_last", "gpu_curves", ["last"])
    op.create_table(
        "gpu_capacity",
        _key("cluster_id", "clusters.id"),
        sa.Column("gpu_type", sa.Text, primary_key=True, nullable=False),
        sa.Column("valid_from", sa.BigInteger, primary_key=True, nullable=False),
        sa.Column("gpus", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "gpu_questions",
        _key("run_id", "runs.id"),
        sa.Column("asked", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("again", sa.BigInteger),
        sa.Column("error", sa.Text),
    )
    for name in ("gpu_energy_joules", "gpu_idle_seconds"):
        op.add_column("runs", sa.Column(name, sa.BigInteger))
    for name in ("usage_hours", "usage_days", "usage_months", "closed_usage"):
        column = sa.Column("gpu_joules", sa.BigInteger, nullable=False, server_default="0")
        op.add_column(name, column)


def _create_gpu_use() -> None:
    def numbers(*names: str) -> list[sa.Column[int]]:
        return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]

    def known(*names: str) -> list[sa.Column[float]]:
        return [sa.Column(name, sa.Float(53), nullable=False) for name in names]

    def unknown(*names: str) -> list[sa.Column[float]]:
        return [sa.Column(name, sa.Float(53)) for name in names]

    op.create_table(
        "gpu_use",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("cluster_id", sa.BigInteger, sa.ForeignKey("clusters.id"), nullable=False),
        *numbers("job_id_raw", "start"),
        sa.Column("run_id", sa.BigInteger, sa.ForeignKey("runs.id")),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("node", "gpu", "uuid", "pci")),
        sa.Column("index", sa.BigInteger),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("mig", "source")),
        sa.Column("shared", sa.Boolean, nullable=False),
        *numbers("interval", "samples"),
        *known("covered"),
        *numbers("busy_samples"),
        *known("busy_covered", "busy"),
        *numbers("idle_samples"),
        sa.Column("percentile_95", sa.BigInteger),
        sa.Column("bins", sa.LargeBinary),
        sa.Column("memory_mib", sa.BigInteger),
        sa.Column("memory_total_mib", sa.BigInteger),
        *unknown("counted_joules"),
        *known("counted_seconds", "edge_joules", "edge_seconds"),
        *unknown("power_joules"),
        *known("power_seconds"),
        *unknown("first", "last", "counter_at", "counter", "last_watts"),
        sa.UniqueConstraint(
            "cluster_id", "job_id_raw", "start", "node", "gpu", "source", name="gpu_use_once"
        ),
    )
    op.create_index("gpu_use_by_run", "gpu_use", ["run_id"])
    op.create_index(
        "gpu_use_not_linked",
        "gpu_use",
        ["cluster_id", "job_id_raw"],
        sqlite_where=_NOT_LINKED,
        postgresql_where=_NOT_LINKED,
    )


def _key(name: str, target: str) -> sa.Column[int]:
    return sa.Column(
        name,
        sa.BigInteger,
        sa.ForeignKey(target),
        primary_key=True,
        nullable=False,
        autoincrement=False,
    )
