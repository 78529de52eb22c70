"""Ask a cluster which GPU is held by whom."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from slurmkit.gpumap.build import build
from slurmkit.gpumap.claims import Record, checked, read_records
from slurmkit.gpumap.model import Gpu, GpuMap
from slurmkit.nodes.holders import Holder, read_holders
from slurmkit.nodes.read import NODES_ASKED, NodeRow, parse_rows, with_jobs
from slurmkit.slurm import Slurm

JOBS_ASKED = ("scontrol", "--all", "--details", "show", "job")


def read_gpus(slurm: Slurm) -> GpuMap:
    """Ask slurmctld for nodes, jobs and their details, in three RPCs.

    Raises:
        SlurmError: when it does not answer or its answer cannot be read.
    """
    taken, started = time.time(), time.perf_counter()
    with ThreadPoolExecutor(2) as pool:  # all at one time, so that they agree
        nodes = pool.submit(slurm.run, NODES_ASKED)
        holders = pool.submit(read_holders, slurm)
        records = read_records(slurm.stream(JOBS_ASKED))
    gpus, rows, warnings = put_together(nodes.result(), holders.result(), records)
    return GpuMap(gpus, rows, warnings, taken, time.perf_counter() - started)


def put_together(
    nodes: str, holders: Sequence[Holder], records: Mapping[str, Sequence[Record]]
) -> tuple[tuple[Gpu, ...], tuple[NodeRow, ...], tuple[str, ...]]:
    """Entries, nodes and warnings from what the three commands said."""
    rows = with_jobs(parse_rows(nodes), holders)
    claims, left_out = checked(records, holders, rows)
    gpus, clashes = build(rows, claims)
    return tuple(gpus), rows, (*left_out, *clashes)
