"""Measurements for tests of benchmark results and their report."""

from __future__ import annotations

from typing import Any
from unittest import mock

from report_books import BEGIN, DAY, write_books
from slurmkit_accounting.benchmarks.results import UNITS, Measurement
from slurmkit_accounting.benchmarks.store import store_benchmarks
from slurmkit_accounting.ledger.database import Ledger

NOVEMBER = {"begin": "2026-11-01", "end": "2026-12-01", "timezone": "UTC", "now": BEGIN + 20 * DAY}


def measured(
    nodes: str, value: float | None, *, gpu: str = "", day: float = 0, **more: Any
) -> Measurement:
    """A measurement of `matmul_bf16` on an h100, so many days after BEGIN."""
    benchmark = more.pop("benchmark", "matmul_bf16")
    usual = {"gpu_type": "h100", "method": "8192 x 8192", "job_id": f"{day:g}"}
    facts = {"nodes": nodes, "gpu": gpu, "value": value, "at": int(BEGIN + day * DAY)}
    return Measurement(benchmark=benchmark, unit=UNITS[benchmark], **facts, **usual | more)


def store(ledger: Ledger, cluster: str, run: str, *measurements: Measurement) -> None:
    """Store measurements as if it were forty days after BEGIN."""
    clock = "slurmkit_accounting.benchmarks.store.time.time"
    with mock.patch(clock, return_value=BEGIN + 40 * DAY):
        store_benchmarks(ledger, cluster, run, measurements)


def write_measurements(ledger: Ledger, *measurements: Measurement) -> None:
    """Write measurements of cluster `lab` into an empty ledger, which also has cluster `big`."""
    write_books(ledger, [])
    store(ledger, "lab", "benchmark-1", *measurements)
