"""`slurmkit job ID --gpus`: what each GPU of a job did, from the ledger."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

import click

from slurmkit.cli.json_output import JsonOutput
from slurmkit.cli.tables import Fit, print_table
from slurmkit.formats.display import SPARKS, format_time, printable, spark_signs
from slurmkit.formats.durations import format_duration
from slurmkit.formats.memory import format_memory_use
from slurmkit_accounting import read
from slurmkit_accounting.cli.array_ids import to_slurm_ids

SCHEMA = "slurmkit.job.gpus/1"
_WIDTH = 24  # columns of a curve
_HEADER = ("NODE", "GPU", "USE", "P95", "IDLE", "MEMORY", "ENERGY", "MEASURED", "CURVE", "NOTE")
_KWH = 3_600_000
_FIT = Fit(("NODE", "NOTE"), (), least=("ENERGY", "P95", "IDLE", "CURVE"))


def print_job_gpus(job_ids: Sequence[str], as_json: JsonOutput | None) -> None:
    """Print what the GPUs of jobs did.

    Args:
        job_ids: as users give them.
        as_json: print JSON instead of tables.

    Raises:
        BadInput: when the ledger has no run of a job that the reader may see.
        LedgerError: when there is no ledger, or it cannot be read.
    """
    ids = ",".join(str(to_slurm_ids(job_id)) for job_id in job_ids)
    with read.ledger() as ledger:
        found = read.gpu_use_of(ledger, ids)
    if as_json:
        as_json.of(SCHEMA).print(found)
        return
    if not found:
        click.echo(f"job {printable(', '.join(job_ids))} held no GPUs")
    for number, run in enumerate(found):
        if number:
            click.echo("")
        _print_run(run)


def _print_run(run: read.GpuUseOfRun) -> None:
    who = f"Job {printable(run.job_id)} of {printable(run.user)}"
    until = "still running" if run.end is None else format_time(run.end)
    gpus = f"{run.held} GPU{'s' * (run.held != 1)}"
    click.echo(f"{who}, {format_time(run.start)} to {until}, {gpus}")
    if run.gpus:
        rows = [_row(gpu) for gpu in run.gpus]
        print_table(
            _HEADER, rows, right=("GPU", "USE", "P95", "IDLE", "ENERGY", "MEASURED"), paint=_paint,
            fit=_FIT,
        )  # fmt: skip
    for note in _notes(run):
        click.echo(note)


def _notes(run: read.GpuUseOfRun) -> Iterator[str]:
    missing = run.held - len(run.gpus)
    if missing > 0:
        yield f"{missing} of {run.held} GPUs: what they did is unknown"
    if missing < 0 < run.held:
        yield f"samples of {len(run.gpus)} GPUs, but the job held {run.held}: some are not its own"
    if any(not gpu.is_covered for gpu in run.gpus):
        yield "!: measured for less than half of the run"
    if any(gpu.energy_by == "power" for gpu in run.gpus):
        yield "~: power times time; the GPU has no counter of its energy"
    last = max((gpu.last for gpu in run.gpus if gpu.last is not None), default=None)
    if run.end is None and last is not None:
        yield f"last sample {format_duration(int(max(time.time() - last, 0)))} ago"


def _row(gpu: read.GpuUseOfGpu) -> tuple[str, ...]:
    return (
        gpu.node,
        gpu.gpu if gpu.index is None else str(gpu.index),
        _percent(gpu.utilization),
        _percent(gpu.percentile_95),
        _share(gpu.idle_share),
        format_memory_use(gpu.memory_mib, gpu.memory_total_mib),
        _energy(gpu),
        f"{_share(gpu.covered)}{'' if gpu.is_covered else ' !'}",
        sparkline([point.utilization for point in gpu.points]),
        "idle" if gpu.idle else "shared" if gpu.shared else "",
    )


def _percent(percent: float | None) -> str:
    return "?" if percent is None else f"{percent:.0f} %"


def _share(share: float | None) -> str:
    return _percent(None if share is None else 100 * share)


def _energy(gpu: read.GpuUseOfGpu) -> str:
    if gpu.joules is None:
        return "?"
    mark = "~" if gpu.energy_by == "power" else ""
    return f"{mark}{gpu.joules / _KWH:.2f} kWh"


def sparkline(percents: Sequence[float | None], width: int = _WIDTH) -> str:
    """Return a curve of utilization as text of at most `width` characters; `·` is unknown.

    Args:
        percents: one for each point, oldest first.
        width: at most so many characters; several points are one, their mean.
    """
    size = max(-(-len(percents) // width), 1)
    groups = [percents[first : first + size] for first in range(0, len(percents), size)]
    try:
        SPARKS.encode(sys.stdout.encoding or "utf-8")
        plain = False
    except (UnicodeEncodeError, LookupError):
        plain = True
    return spark_signs(list(map(_mean, groups)), plain=plain)


def _mean(percents: Sequence[float | None]) -> float | None:
    known = [each for each in percents if each is not None]
    return sum(known) / len(known) if known else None


def _paint(name: str, text: str) -> str | None:
    return "yellow" if name == "NOTE" and text.strip() == "idle" else None
