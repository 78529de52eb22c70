"""Values of usage for the TUI's pictures."""

from __future__ import annotations

from itertools import takewhile

import msgspec
from fairshare_lines import FACTORS, SHARES
from fake_gpus import Recorded
from fake_queue import NOW, Scene, job, waiting
from slurmkit_tui.feed.composed import (
    ClusterHealth,
    CurrentUse,
    FairshareAnswer,
    LedgerUsage,
    Utilization,
)
from slurmkit_tui.feed.history import HeldGpus
from slurmkit_tui.jobform.gpu_use import GpusNow

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.doctor.case import Diagnosis
from slurmkit.jobs.steps import Efficiency, UserEfficiency
from slurmkit.state.gpu_use import GpuUseNow
from slurmkit.state.nodes import read_nodes

CpuOnly = "cpu=16,mem=32G,node=1"
JOBS = [
    job("4711", UserName="alice", NodeList="c[1-2]", NumNodes="2", Name="llama-pretrain"),
    job("4712", UserName="carol", Partition="mig", NodeList="c5", Name="notebook"),
    job("4713_1", UserName="dave", Account="genomics", State="COMPLETING", Name="align"),
    job("4713_2", UserName="dave", Account="genomics", tres_alloc=CpuOnly, Name="align"),
    waiting("4713_[3-40%2]", UserName="dave", Account="genomics", tres_alloc=CpuOnly),
    job("4714", UserName="zoe", State="SUSPENDED", Name="Zoës größter Lauf"),
    waiting("4715", UserName="ivan", Reason="QOSMaxGRESPerUser", Name="数据预处理"),
    waiting("4716", UserName="alice", tres_alloc="", Reason="Resources", Name="evil\n\x1b[2J"),
    job("4717", State="OUT_OF_MEMORY", Name="[red]not markup[/]"),
]
_HELD = [1.5, 2, 2, 4, 6, 8, 8, 7.25, 6, 6, 6, 5, 3, 2, 0, 0, 1, 2, 4, 5, 6, 8, 5]
HOURS = [int(NOW) // 3600 * 3600 - (24 - at) * 3600 for at in range(1, 24)]


def gpu_now(job_id: str, node: str, index: int, *recent: int | None, age: float = 12) -> GpuUseNow:
    """A GPU of a running job with these percents, one for each minute."""
    last = NOW - age
    idle = [*takewhile(lambda percent: percent is not None and percent < 1, reversed(recent))]
    known = [percent for percent in recent if percent is not None]
    return GpuUseNow(
        cluster="lab", job_id=job_id, job_id_raw=1, user="alice", node=node, index=index,
        gpu=f"GPU-{node}{index}", shared=False, last=last, age=age, utilization=recent[-1],
        memory_mib=20480, memory_total_mib=81920, watts=310, since=last - 60 * len(recent),
        busiest=max(known, default=None), idle_since=last - 60 * len(idle) if idle else None,
        recent=recent, recent_step=60,
    )  # fmt: skip


VALUES = {
    "fairshare": FairshareAnswer(SHARES, (FACTORS,), "", "7-00:00:00", NOW),
    "usage": LedgerUsage(
        (
            {"month": "2026-10", "pi": "vogel", "user": "alice", "jobs": 31, "gpu_hours": 1234.5,
             "gpu_hours_completed": 1100.0, "gpu_hours_lost": 134.5, "cpu_hours": 9800.0},
            {"month": "2026-11", "pi": "vogel", "user": "alice", "jobs": 7, "gpu_hours": 320.25,
             "gpu_hours_completed": 300.0, "gpu_hours_lost": 20.25, "cpu_hours": 2500.0},
            {"month": "2026-11", "pi": "vogel", "user": "bob", "jobs": 2, "gpu_hours": 12.0,
             "gpu_hours_completed": 12.0, "gpu_hours_lost": 0.0, "cpu_hours": 96.0},
        ),
        ({"pi": "vogel", "from": "2026-01-01", "to": "2027-01-01", "runs_out": "2026-12-24",
          "gpu_hours_budget": 2000.0, "gpu_hours_used": 1566.75, "gpu_hours_left": 433.25},),
        ("ledger of the site; ingested 60 s before",),
        NOW,
    ),
    "utilization": Utilization(
        CurrentUse({"a100": 8, "h100": 2}, {"a100": 5, "h100": 2}, 12, 640, 512),
        ({"gpu-type": "a100", "jobs": 9, "gpu_hours": 117.25, "gpu_hours_lost": 3.0},
         {"gpu-type": "h100", "jobs": 2, "gpu_hours": 41.5, "gpu_hours_lost": None}),
        "gpu-type", 1.0, "", NOW,
        tuple(
            HeldGpus(
                HOURS[at], 3600, {"a100": a100, "h100": 2.0 if at % 7 else 0.5},
                {"a100": a100 * 0.5} if a100 and at > 4 else None, {"a100": a100},
            )
            for at, a100 in enumerate(_HELD)
        ),
        "ledger of the site; ingested 60 s before",
    ),
    "nodes": msgspec.structs.replace(read_nodes(Recorded().slurm), taken=NOW),
    "queue": msgspec.structs.replace(Cluster(Scene(JOBS).slurm).queue(), taken=NOW),
    "health": ClusterHealth(
        (
            Diagnosis("slurmctld", "ok", "slurmctld answers, 24.11.5 on ctld"),
            Diagnosis("gpu-tres", "error", "AccountingStorageTRES lacks gres/gpu"),
            Diagnosis("scheduler", "note", "main scheduler: last cycle 0.7 s, mean 310.0 ms,"
                      " longest 2.5 s of 4,711, 150 jobs tried on average, 50,123 in its"
                      " queue"),
            Diagnosis("reservations", "note", "reservation maintenance: c[1-7] from 2023-11-15"
                      " 08:00 UTC until 2023-11-15 18:00 UTC for root (MAINT)"),
            Diagnosis("nodes-out", "warning", "c3 drained: bad DIMM (root, 2023-11-05 22:13 UTC)"),
            Diagnosis("enforce", "warning", "AccountingStorageEnforce lacks safe"),
        ),
        NOW,
    ),
    "uses": UserEfficiency(
        {"4711": Efficiency(900.0, 1000.0, 60.0 * 2**30, 64.0 * 2**30),
         "4720": Efficiency(20.0, 1000.0, None, 64.0 * 2**30)},
        "", "sacct and sstat", NOW - 5, 0.4,
    ),
    "gpus-now": GpusNow(
        (
            gpu_now("4711", "c1", 0, *[95] * 30, *[80] * 30),
            gpu_now("4711", "c1", 1, *[None] * 10, *[70, 90] * 25),
            gpu_now("4711", "c2", 4, *[100] * 40, *[0] * 20),
            gpu_now("4720_1", "c2", 7, 35, age=500.0),
        ),
        NOW,
    ),
    "mine": MyJobs(
        Cluster(
            Scene([JOBS[0], JOBS[7], job("4720_1", UserName="alice", Name="sweep", NodeList="c2"),
                   waiting("4720_[2-40%2]", UserName="alice", Name="sweep")]).slurm
        ).queue().rows,
        {"4711": {"c1": [0, 1], "c2": [4, 5]}, "4720": {"c2": [7]}},
        (),
        "",
        NOW,
        0.0,
    ),
}  # fmt: skip
