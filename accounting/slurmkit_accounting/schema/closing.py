"""Closed months: what the books said, kept as it was."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Table, Text, UniqueConstraint

from slurmkit_accounting.schema.base import metadata, number, own_id, seconds, to
from slurmkit_accounting.schema.usage import SUMS

closings = Table(
    "closings",
    metadata,
    own_id(),
    to("clusters"),
    Column("month", Text, nullable=False),  # YYYY-MM
    Column("timezone", Text, nullable=False),
    seconds("at"),
    # The last ingest whose rows it has: what later ones change is a correction.
    to("ingests"),
    Column("checksum", Text, nullable=False),
    UniqueConstraint("cluster_id", "month", name="closings_once"),
)

closed_usage = Table(
    "closed_usage",
    metadata,
    Column("closing_id", BigInteger, ForeignKey("closings.id"), primary_key=True),
    Column("key_id", BigInteger, ForeignKey("usage_keys.id"), primary_key=True),
    *(number(column) for column in SUMS),
)
