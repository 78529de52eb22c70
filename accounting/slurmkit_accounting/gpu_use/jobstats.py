"""jobstats' summaries of jobs (`JS1:…` in AdminComment) as records of GPU use.

The text is `JS1:` and the base64 of a gzipped JSON object: `nodes`, by name, with
`gpu_utilization` (percent, the mean over the run), `gpu_used_memory` (the most) and
`gpu_total_memory` (bytes), each by the GPU's minor number; `total_time` (seconds of the run).
`JS1:Short` and `JS1:None` have no numbers. See docs/setup/summaries.md of jobstats.

AdminComment is text that an operator can write, so nothing of it is believed without a check.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, delete, select

from slurmkit.state.gpu_metrics import IDLE_BELOW, plausible_percent
from slurmkit_accounting.gpu_use.samples import GpuName, plausible_mib
from slurmkit_accounting.gpu_use.store import load_uses, store_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.bulk_write import in_values
from slurmkit_accounting.ledger.schema.gpu_use import gpu_use
from slurmkit_accounting.ledger.schema.runs import runs

PREFIX = "JS1:"
JOBSTATS = "jobstats"
_MOST_TEXT = 2**20  # characters; jobstats writes some 5,000 for its largest jobs
_MOST_JSON = 4 * 2**20
_MOST_GPUS = 1024  # of a node
_NODE = re.compile(r"[A-Za-z0-9._-]{1,255}")
_GPU = re.compile(r"[A-Za-z0-9._:-]{1,80}")
_GZIP = 31  # window bits of zlib, with a gzip header


class GpuSummary(NamedTuple):
    """What jobstats says about one GPU of a run; None is unknown.

    Attributes:
        gpu: minor number, or a UUID.
        utilization: mean, percent.
    """

    node: str
    gpu: str
    utilization: float | None
    memory_mib: int | None
    memory_total_mib: int | None


def parse_blob(text: str) -> list[GpuSummary]:
    """Parse an AdminComment; empty without GPUs, and for what jobstats cannot have written.

    Args:
        text: with or without line breaks around it.
    """
    text = text.strip()
    if not text.startswith(PREFIX) or len(text) > _MOST_TEXT:
        return []
    try:
        packed = binascii.a2b_base64(text[len(PREFIX) :], strict_mode=True)
        unpacker = zlib.decompressobj(_GZIP)
        plain = unpacker.decompress(packed, _MOST_JSON)
        if not unpacker.eof:
            return []
        nodes = json.loads(plain)["nodes"]
        return [each for node in nodes.items() for each in _parse_node(*node)]
    except (ValueError, zlib.error, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _parse_node(node: str, values: Mapping[str, Any]) -> Iterator[GpuSummary]:
    percents = values.get("gpu_utilization") or {}
    used = values.get("gpu_used_memory") or {}
    total = values.get("gpu_total_memory") or {}
    names = list(dict.fromkeys((*percents, *used, *total)))
    if not _NODE.fullmatch(node) or len(names) > _MOST_GPUS:
        return
    for gpu in names:
        if not _GPU.fullmatch(gpu):
            continue
        summary = GpuSummary(
            node,
            gpu,
            plausible_percent(_number(percents.get(gpu))),
            plausible_mib(_number(used.get(gpu))),
            plausible_mib(_number(total.get(gpu))),
        )
        if summary.utilization is not None or summary.memory_mib is not None:
            yield summary


def _number(value: object) -> float | None:
    """Return a number of JSON; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def enter_blobs(connection: Connection, blobs: Mapping[int, str]) -> list[int]:
    """Store what AdminComments say about the GPUs of ended runs.

    Args:
        connection: to the ledger.
        blobs: the AdminComment of each run, by its row id.

    Returns:
        Row ids of the runs that changed; entering the same again changes none.
    """
    found = {run_id: parse_blob(text) for run_id, text in blobs.items()}
    found = {run_id: summaries for run_id, summaries in found.items() if summaries}
    if not found:
        return []
    query = select(runs.c.id, runs.c.cluster_id, runs.c.job_id_raw, runs.c.start, runs.c.end)
    ended = (runs.c.start.is_not(None), runs.c.end.is_not(None))
    rows = connection.execute(query.where(in_values(connection, runs.c.id, found), *ended)).all()
    known: dict[int | None, list[GpuUse]] = {}
    for use in load_uses(connection, run_ids=list(found), curves=False):
        if use.source == JOBSTATS:
            known.setdefault(use.run_id, []).append(use)
    changed = []
    for run_id, cluster, job, start, end in rows:
        uses = [_use_of(cluster, job, start, end, each) for each in found[run_id]]
        before = known.get(run_id, [])
        if _facts(before) != _facts(uses):
            old = [use.id for use in before if use.id is not None]
            connection.execute(delete(gpu_use).where(in_values(connection, gpu_use.c.id, old)))
            store_uses(connection, uses, run_id=run_id)
            changed.append(run_id)
    return changed


def _facts(uses: Sequence[GpuUse]) -> set[tuple[object, ...]]:
    return {
        (use.node, use.gpu.key, use.mean, use.memory_mib, use.memory_total_mib, use.covered)
        for use in uses
    }


def _use_of(cluster: int, job: int, start: int, end: int, summary: GpuSummary) -> GpuUse:
    """Return the record of one GPU.

    jobstats' mean is of the whole run; how many samples are behind it is not known. Its minor
    numbers are not always Slurm's indices, so they only name the GPU.
    """
    name = summary.gpu if not summary.gpu.isdecimal() else f"minor {summary.gpu}"
    seconds = float(max(end - start, 0))
    mean = summary.utilization
    return GpuUse(
        cluster_id=cluster,
        job=job,
        start=start,
        node=summary.node,
        gpu=GpuName(uuid=name),
        source=JOBSTATS,
        interval=0,
        covered=seconds,
        measured_samples=0 if mean is None else 1,
        idle_samples=0 if mean is None else int(mean < IDLE_BELOW),
        measured_seconds=0.0 if mean is None else seconds,
        utilization_sum=mean or 0.0,
        memory_mib=summary.memory_mib,
        memory_total_mib=summary.memory_total_mib,
    )
