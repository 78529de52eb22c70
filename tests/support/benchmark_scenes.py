"""Scenes of `slurmkit benchmark` for the tests of `--json`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from slurmkit_accounting.benchmarks.results import BenchmarkJob, BenchmarkRecord, RunFolder
from slurmkit_accounting.benchmarks.store import StoredCount

NOW = 1_793_491_200  # 2026-11-01 UTC
SCENES: dict[str, Callable[[pytest.MonkeyPatch, Path], Sequence[str]]] = {}
LINE = (
    '{"benchmark": "memory", "value": 3000.5, "unit": "GB/s", "at": 1793491300, "job_id": "12",'
    ' "method": "copy of 1024 MiB", "gpu": "GPU-1", "gpu_serial": "132", "torch": "2.6"}\n'
)


def _run() -> RunFolder:
    """Make the folder of a run with one result, in the folder of state."""
    jobs = {"c1": BenchmarkJob(("c1",), "h100", 8)}
    run = RunFolder.create(BenchmarkRecord("benchmark-1", "lab", NOW, ("gpu",), jobs))
    run.results_of("c1").write_text(LINE, "utf-8")
    return run


def _of_run(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    planned = SimpleNamespace(errors=(), plans={})
    module = "slurmkit_accounting.cli.benchmark"
    patch.setattr(f"{module}._plan", lambda *_: (_run(), planned))
    patch.setattr(f"{module}._show_plan", lambda *_, **__: None)
    patch.setattr(f"{module}.Cluster", object)
    return ("--dry-run",)


def _of_collect(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _run()
    patch.setattr(
        "slurmkit_accounting.cli.benchmark._open_to_store", lambda _: contextlib.nullcontext()
    )
    patch.setattr("slurmkit_accounting.cli.benchmark.store_all", lambda *_: StoredCount(1, 0))
    return ()


def _of_show(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _run()
    return ()


def _of_one(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    _run()
    return ("benchmark-1",)


SCENES |= {
    "benchmark run": _of_run,
    "benchmark collect": _of_collect,
    "benchmark show": _of_show,
    "benchmark show one": _of_one,
}
