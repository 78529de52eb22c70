"""Table of benchmark results: what nodes and GPUs measured in the jobs of `slurmkit benchmark`."""

from __future__ import annotations

from sqlalchemy import Column, Float, Index, Table, Text, UniqueConstraint

from slurmkit_accounting.ledger.schema.types import (
    foreign_key_column,
    id_column,
    metadata,
    seconds_column,
)


def _text_column(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


# A row for each measurement; an empty text is unknown, or not applicable.
benchmark_results = Table(
    "benchmark_results",
    metadata,
    id_column(),
    foreign_key_column("clusters"),
    # Name of the `slurmkit benchmark run`.
    _text_column("run"),
    # The node; of a measurement between nodes all of them, separated by commas.
    _text_column("nodes"),
    # Type as Slurm names it. UUID (else the index), serial number and name as the driver has them.
    _text_column("gpu_type"),
    _text_column("gpu"),
    _text_column("gpu_serial"),
    _text_column("gpu_name"),
    # What was measured, its unit, and what must be alike for values to be compared.
    _text_column("benchmark"),
    _text_column("unit"),
    _text_column("method"),
    # Why there is no value.
    _text_column("trouble"),
    _text_column("job_id"),
    # Versions: of the driver, of PyTorch, and others as JSON.
    _text_column("driver"),
    _text_column("torch"),
    _text_column("versions"),
    # Who stored it.
    _text_column("user"),
    # NULL: it could not be measured.
    Column("value", Float(53)),
    # When it was measured, and when it was stored.
    seconds_column("at"),
    seconds_column("stored"),
    UniqueConstraint(
        *("cluster_id", "run", "job_id", "nodes", "gpu", "benchmark"),
        name="benchmark_results_once",
    ),
)
Index("benchmark_results_by_time", benchmark_results.c.at)
