"""Whether the TUI stands still in the views that show what GPUs do, without a cluster.

8,000 GPUs are held by 8,000 jobs of one person, and 12,000 more wait. What Slurm would answer is
made beforehand, since the part `tui` measures how it is read. What GPUs do is read from a ledger
with the samples of an hour, in the process of the screen: the worst case, that of an own ledger.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from slurmkit_accounting.gpu_use.recent import RecentSample, store_samples
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.bulk_write import insert_rows
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.composed import read_gpus_now, read_gpus_of_job
from slurmkit_tui.feed.history import HeldGpus
from slurmkit_tui.feed.kinds import QUESTION_KINDS
from slurmkit_tui.feed.rights import Rights
from slurmkit_tui.feed.threads import tune_garbage_collector
from sqlalchemy import text

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.my_jobs import MyJobs
from slurmkit.state.capabilities import SlurmConfig
from slurmkit.state.gpumap_model import Gpu, GpuMap
from slurmkit.state.nodes import NodesSnapshot
from tests.bench.inside.tui import Hands, stalls
from tests.bench.lab import Budget, median_ms, say

SUPPORT = Path(__file__).parents[1] / "support"
NODES, GPUS_OF_NODE, WAITING = 1000, 8, 12_000
STALL_MS, MEGABYTES = 50, 500
_ROUNDS, _EVERY = 120, 30  # of samples, and seconds between them
_LARGE_NODES = 8  # of job 1, which holds all of their GPUs: as many as a page has curves of
_LOOKS = 3
_TYPES = 8  # of GPUs in the picture of utilization
_COLUMNS = (
    "cluster_id", "db_index", "job_id_raw", "job_id", "user", "uid", "account", "partition", "qos",
    "state", "submit", "eligible", "start", "end", "nodes", "cpus", "gpus", "alloc_tres",
    "req_tres", "time_limit", "exit_code", "node_list", "name",
)  # fmt: skip


def budgets() -> Iterator[Budget]:
    """Measure in processes of their own, so that their memory is that of one screen."""
    with tempfile.TemporaryDirectory() as folder:
        say(f"making a ledger with an hour of samples of {NODES * GPUS_OF_NODE:,} GPUs")
        url = f"sqlite:///{folder}/ledger.db"
        _fill(url)
        env = {**os.environ, "SLURMKIT_DB": url, "XDG_STATE_HOME": folder, "HOME": folder}
        argv = [sys.executable, "-m", "tests.bench.views"]
        found = []
        for look in range(1, _LOOKS + 1):
            say(f"looking at the views, {look} of {_LOOKS}")
            done = subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE, text=True)
            found.append(json.loads(done.stdout))
    what = f"TUI of {NODES * GPUS_OF_NODE:,} GPUs and {NODES * GPUS_OF_NODE + WAITING:,} jobs"
    for doing in found[0]["worst"]:
        worst, own = (median_ms([run[name][doing] for run in found]) for name in ("worst", "own"))
        named = f"{what}, longest stall: {doing}"
        yield Budget(named, worst, f"{STALL_MS} ms", own, worst < STALL_MS)
    size = max(run["megabytes"] for run in found)
    yield Budget("the same, memory", size, f"{MEGABYTES} MB", None, size < MEGABYTES, "MB")


def _holders() -> dict[int, list[tuple[str, int]]]:
    """Return node and index of the GPUs of each job."""
    held: dict[int, list[tuple[str, int]]] = {}
    for number in range(NODES * GPUS_OF_NODE):
        node, index = divmod(number, GPUS_OF_NODE)
        job = 1 if node < _LARGE_NODES else number + 1
        held.setdefault(job, []).append((f"n{node:04}", index))
    return held


def _fill(url: str) -> None:
    """Store running jobs, their GPUs and the samples of an hour."""
    now = int(time.time())
    start = now - 9000
    rows = [
        (
            1, job, job, str(job), "alice", 1000, "vision", "gpu", "normal", "RUNNING", start,
            start, start, None, 1, 4, len(gpus), f"cpu=4,gres/gpu={len(gpus)}", "", "60", "0:0",
            gpus[0][0], "train",
        )
        for job, gpus in _holders().items()
    ]  # fmt: skip
    uses = {
        (node, index): GpuUse(
            cluster_id=1, job=job, start=start, node=node, source="exporter", interval=_EVERY,
            gpu=GpuName(f"GPU-{node}-{index}", "", index), first=float(start),
        )
        for job, gpus in _holders().items() for node, index in gpus
    }  # fmt: skip
    chance = random.Random(1)
    for (node, _), use in uses.items():
        if int(node[1:]) < _LARGE_NODES:
            for at in range(start + _EVERY, start + 300 * _EVERY, _EVERY):
                use.add(_reading(float(at), chance))
    with open_for_writing(url) as ledger:
        with ledger.transaction() as connection:
            connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))
            insert_rows(connection, runs, _COLUMNS, rows)
            store_uses(connection, list(uses.values()))
        by_node: dict[str, list[int]] = {}
        for (node, _), use in uses.items():
            by_node.setdefault(node, []).append(use.id or 0)
        for back in range(_ROUNDS * _EVERY, 0, -_EVERY):
            at = float(now - back) + 1.5
            samples = {
                node: [RecentSample(number, False, _reading(at, chance)) for number in numbers]
                for node, numbers in by_node.items()
            }
            with ledger.transaction() as connection:
                store_samples(connection, 1, now - back, samples)


def _reading(at: float, chance: random.Random) -> GpuReading:
    return GpuReading(
        at=at,
        utilization=chance.uniform(0, 100),
        memory_mib=40_000,
        memory_total_mib=81920,
        watts=300.0,
    )


class PreparedFeed:
    """A feed whose answers about Slurm are there, and which reads the ledger."""

    name, me, writable, calls = "lab", "alice", True, 5

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def fetch(self, ask: FeedQuestion) -> FeedAnswer:
        """Answer as of now: a new answer each time."""
        if ask.what == "gpus-now":
            value: Any = read_gpus_now()
        elif ask.what == "gpus-of-job":
            value = read_gpus_of_job(*ask.about)
        else:
            value = self._values[ask.what]
            if hasattr(value, "taken"):
                value = msgspec.structs.replace(value, taken=time.time())
        return FeedAnswer(value, QUESTION_KINDS[ask.what].source, time.time(), 0.0)


def _values() -> dict[str, Any]:
    """Return what Slurm would answer, and how full the ledger says that the cluster was."""
    sys.path.insert(0, str(SUPPORT))
    from fake_queue import Scene, job, waiting  # noqa: PLC0415 - only here, once the path is there
    from usage_values import VALUES  # noqa: PLC0415

    now = time.time()
    held = _holders()
    facts = {"UserName": "alice", "Account": "vision", "SubmitTime": str(int(now) - 9100),
             "StartTime": str(int(now) - 9000)}  # fmt: skip
    jobs = [
        job(str(number), NodeList=gpus[0][0], **facts,
            tres_alloc=f"cpu=4,mem=8G,node=1,gres/gpu={len(gpus)}")
        for number, gpus in held.items()
    ]  # fmt: skip
    first = NODES * GPUS_OF_NODE + 1
    jobs += [waiting(str(number), **facts) for number in range(first, first + WAITING)]
    queue = Cluster(Scene(jobs).slurm).queue()
    indices: dict[str, dict[str, list[int]]] = {}
    for number, gpus in held.items():
        for node, index in gpus:
            indices.setdefault(str(number), {}).setdefault(node, []).append(index)
    template = next(row for row in VALUES["nodes"].rows if row.gpus)
    nodes = tuple(
        msgspec.structs.replace(template, name=f"n{number:04}") for number in range(NODES)
    )
    gpus_of_map = tuple(
        Gpu(node=node, index=index, type="h100", state="held", job_id=str(number), user="alice",
            account="vision", since=int(now) - 9000)
        for number, gpus in held.items() for node, index in gpus
    )  # fmt: skip
    return {
        **VALUES,
        "site": SlurmConfig("lab", tracks_gpus=True),
        "rights": Rights("alice", "none"),
        "queue": queue,
        "mine": MyJobs(queue.rows, indices, (), "", now, 0.0),
        "nodes": NodesSnapshot(nodes, now, 0.0),
        "gpus": GpuMap(gpus_of_map, nodes, (), now, 0.0),
        "utilization": msgspec.structs.replace(VALUES["utilization"], curve=_week(now)),
    }


def _week(now: float) -> tuple[HeldGpus, ...]:
    """Return a week by the hour, of several types of GPUs."""
    begin = int(now) // 3600 * 3600 - 167 * 3600
    chance = random.Random(2)
    hours = []
    for hour in range(168):
        held = {f"type{number}": 1000 * chance.random() for number in range(_TYPES)}
        used = {name: count * chance.random() for name, count in held.items()}
        hours.append(HeldGpus(begin + hour * 3600, 3600, held, used, held))
    return tuple(hours)


async def _in_views(hands: Hands) -> int:
    """Use Home, Mine, the page of a job's GPUs, Utilization, and the map by use."""
    app, pilot = hands.app, hands.pilot
    await hands.look()
    await _gpus_known(hands)
    await hands.refresh("refresh Home", 2)
    await hands.look("2")
    await hands.refresh("refresh Mine", 2)
    await hands.scroll()
    rows = len(app.view.table.arranged.sheet.rows)
    hands.meter.doing = "open the GPUs of a job"
    await pilot.press("home", "U")
    await asyncio.sleep(3)
    hands.meter.doing = "use the GPUs of a job"
    await pilot.press(*["j"] * 10, *["pagedown"] * 3)
    await pilot.press("escape")
    await hands.look("5")
    await hands.refresh("refresh Utilization", 2)
    hands.meter.doing = "another length of time, and the cursor"
    await pilot.press("h", *["left"] * 10, "h", "h")
    await asyncio.sleep(1)
    await hands.look("3")
    hands.meter.doing = "the map by use"
    for _ in range(4):
        await pilot.press("b")
        await asyncio.sleep(0.3)
        if app.view._by == "use":
            break
    await hands.refresh("refresh the map by use", 2)
    await hands.scroll()
    return rows


async def _gpus_known(hands: Hands) -> None:
    last = hands.app.session.last_answer(FeedQuestion("gpus-now"))
    await hands.until(lambda: last.answer is not None)


def main() -> None:
    """Print the longest stalls as JSON."""
    from slurmkit_tui.app.app import SlurmkitApp  # noqa: PLC0415 - the parent needs none
    from slurmkit_tui.options import AppOptions  # noqa: PLC0415

    app = SlurmkitApp(PreparedFeed(_values()), AppOptions(interval=3600, view="home"))
    tune_garbage_collector()
    print(json.dumps(asyncio.run(stalls(app, _in_views))))


if __name__ == "__main__":
    main()
