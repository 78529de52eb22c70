"""What GPU use costs: a node's exporter, the service that reads 1,000, the ledger, its reports."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmkit_accounting import read
from slurmkit_accounting.gpu_use.collect import GpuUseCollector
from slurmkit_accounting.gpu_use.exporters import ExporterAddress, Exporters
from slurmkit_accounting.gpu_use.recent import load_samples
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading
from slurmkit_accounting.gpu_use.store import store_uses, update_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.database import open_for_writing
from sqlalchemy import text

from slurmkit.testing import FakeSlurm
from tests.bench import reports
from tests.bench.lab import Budget, median_ms, say

NODES, GPUS, ROUNDS = 1000, 8, 5
RECORDED = Path(__file__).parents[1] / "recorded" / "gpu_exporter" / "node-c2.prom"
SCRAPES = 20
_DOCKER = Path(__file__).parents[2] / "docker"
_STORED = 2000
_RUNS = 1_000_000


def budgets(runs: int = _RUNS) -> Iterator[Budget]:
    """Measure on one core, with the exporters on another; then the ledger's growth and a report."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ledger.db"
        yield from _exporter(Path(folder))
        say(f"reading {NODES:,} exporters with {GPUS} GPUs each")
        yield from _rounds(url)
        yield from _growth(f"sqlite:///{folder}/growth.db")
        yield from _report(f"sqlite:///{folder}/report.db", runs)


def _exporter(folder: Path) -> Iterator[Budget]:
    """One exporter on a stub of the driver; it reads the GPUs at most once a second."""
    say(f"scraping an exporter with {GPUS} GPUs")
    stub = _DOCKER / "image" / "nvml-stub"
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "NVML_STUB_STATE": str(folder / "nvml")}
    subprocess.run([stub / "build", folder / "libnvidia-ml.so.1"], check=True, env=env)
    subprocess.run([stub / "set-up", _DOCKER / "conf" / "nvml" / "c2"], check=True, env=env)
    argv = [sys.executable, "-m", "slurmkit", "gpu-exporter", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        url = next(
            found[0] for line in process.stderr if (found := re.search(r"http://\S+metrics", line))
        )
        _scrape(url)
        before = _cpu_seconds(process.pid)
        for _ in range(SCRAPES):
            time.sleep(1.05)
            _scrape(url)
        per_scrape = (_cpu_seconds(process.pid) - before) * 1000 / SCRAPES
        status = Path(f"/proc/{process.pid}/status").read_text("ascii")
        process.kill()
    megabytes = int(status.partition("VmHWM:")[2].split()[0]) / 1000
    what = f"exporter of {GPUS} GPUs"
    limit = "150 ms, 1 % of a core each 15 s"
    yield Budget(f"{what}, CPU time of a scrape", per_scrape, limit, None, per_scrape < 150)
    yield Budget(f"{what}, memory", megabytes, "60 MB", None, megabytes < 60, unit="MB")


def _scrape(url: str) -> None:
    with urllib.request.urlopen(url, timeout=30) as page:  # noqa: S310
        assert b"slurmkit_gpu_utilization_ratio{" in page.read()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rounds(url: str) -> Iterator[Budget]:
    names = [f"127.0.{number // 250 + 1}.{number % 250 + 1}" for number in range(NODES)]
    start = int(time.time()) - 8900  # so that curves have nearly all of their points
    with open_for_writing(url) as ledger, ledger.transaction() as connection:
        connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))
    port = multiprocessing.Value("i", 0)
    ready = multiprocessing.Event()
    server = multiprocessing.Process(target=_serve, args=(port, ready), daemon=True)
    server.start()
    ready.wait(60)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        collector = GpuUseCollector(
            lambda: open_for_writing(url),
            FakeSlurm({"squeue": lambda argv, _: _squeue(argv, names, start)}),
            Exporters(ExporterAddress(f"http://{{node}}:{port.value}/metrics", "", 5.0)),
            interval=30,
            keep_days=400,
        )
        taken, worked = [], []
        for number in range(ROUNDS):
            begun, cpu = time.perf_counter(), time.process_time()
            silent = collector.run("lab", time.time() + number)  # no two in one second
            taken.append(time.perf_counter() - begun)
            worked.append(time.process_time() - cpu)
            assert not silent, silent
    finally:
        os.sched_setaffinity(0, before)
        server.kill()
    with open_for_writing(url) as ledger:
        with ledger.transaction() as connection:
            samples = Counter(each.use_id for each in load_samples(connection, 0))
        begun = time.perf_counter()
        with ledger.transaction() as connection:
            update_uses(connection, samples)
        updated = 1000 * (time.perf_counter() - begun)
    assert (len(samples), set(samples.values())) == (NODES * GPUS, {ROUNDS})
    what = f"a round over {NODES:,} exporters, {NODES * GPUS:,} GPUs"
    whole, core = median_ms(taken), median_ms(worked)
    yield Budget(what, whole, "30,000 ms", None, whole < 30_000)
    yield Budget(f"{what}, time of one core", core, "30,000 ms", None, core < 30_000)
    what = f"{NODES * GPUS:,} summaries and curves, each ten minutes"
    yield Budget(what, updated, "30,000 ms", None, updated < 30_000)


def _squeue(argv: list[str], names: list[str], start: int) -> str:
    mark = argv[-1].split(",")[0].partition(":")[2]
    rows = (
        (number, number, "alice", "vision", "RUNNING", name, start, "gres/gpu=8")
        for number, name in enumerate(names, start=41)
    )
    return "".join("".join(f"{part}{mark}" for part in row) + "\n" for row in rows)


def _serve(port: object, ready: object) -> None:
    """Answer each node's address with a page of eight GPUs, all held by its job."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    asyncio.run(_serving(port, ready))


async def _serving(port: object, ready: object) -> None:
    template = "".join(
        line
        for line in RECORDED.read_text().splitlines(keepends=True)
        if not line.startswith("slurmkit_gpu_job")
    )
    holds = [line for line in template.splitlines() if line.startswith("slurmkit_gpu_lost{")]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        a, b = writer.get_extra_info("sockname")[0].split(".")[2:]
        job = (int(a) - 1) * 250 + int(b) - 1 + 41
        jobs = "\n".join(
            line.replace("gpu_lost{", "gpu_job{").replace('",mig', f'",job="{job}",mig')[:-3]
            + "1.0"
            for line in holds
        )
        page = template.replace("c2000", f"c2{job:03}") + jobs.replace("c2000", f"c2{job:03}")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + page.encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "0.0.0.0", 0, backlog=1024)  # noqa: S104
    port.value = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    ready.set()  # type: ignore[attr-defined]
    await server.serve_forever()


def _growth(url: str) -> Iterator[Budget]:
    """The ledger's growth with runs of two hours whose use wanders."""
    say(f"storing {_STORED:,} measured GPU-runs")
    chance = random.Random(1)
    with open_for_writing(url) as ledger:
        path = Path(str(ledger.engine.url.database))
        with ledger.transaction() as connection:
            connection.execute(text("INSERT INTO clusters (name) VALUES ('lab')"))
        before = path.stat().st_size
        uses = [_wandering(number, chance) for number in range(_STORED)]
        with ledger.transaction() as connection:
            store_uses(connection, uses, final=True)
    grown = (path.stat().st_size - before) / _STORED
    what = "ledger's growth per million GPU-runs of two hours"
    yield Budget(what, grown, "2,500 MB", None, grown < 2500, unit="MB")


def _wandering(number: int, chance: random.Random) -> GpuUse:
    name = GpuName(f"GPU-{chance.randbytes(16).hex()}", "00000000:07:00.0", number % 8)
    use = GpuUse(
        cluster_id=1, job=number, start=0, node="node0001", gpu=name, source="exporter", interval=30
    )
    busy = 50.0
    for at in range(30, 7200, 30):
        busy = min(max(busy + chance.uniform(-10, 10), 0), 100)
        watts = 80 + 4 * busy
        memory = 40_000 + chance.randrange(2000)
        use.add(
            GpuReading(
                at=at, utilization=busy, memory_mib=memory, memory_total_mib=81920, watts=watts,
                joules=watts * at,
            )
        )  # fmt: skip
    return use


def _report(url: str, runs: int) -> Iterator[Budget]:
    """Reports of a month in which each run was measured."""
    say(f"making a ledger of {runs:,} measured runs in one month")
    with open_for_writing(url) as ledger, ledger.transaction() as connection:
        reports.fill(connection, runs)
        connection.execute(
            text(
                "UPDATE runs SET gpu_used_permille = id % 1000, gpu_idle_seconds = 0,"
                " gpu_mem_peak_mib = id % 80000"
            )
        )
        connection.execute(text(_USES))
    say("reporting")
    month, zone = ("2026-11-01", "2026-12-01"), {"timezone": "Europe/Berlin"}
    what = f"month of {runs:,} measured runs"
    with read.ledger(url) as books:
        assert isinstance(books, read.Ledger)
        ledger = books
        efficiency = functools.partial(read.efficiency, ledger, *month, **zone)
        for name, call in (
            ("report usage by PI", lambda: read.usage(ledger, *month, by="pi", **zone)),
            ("report capacity", lambda: read.capacity(ledger, *month, **zone)),
            ("report efficiency by GPU type", lambda: efficiency(by="gpu_type")),
            ("report efficiency by user", lambda: efficiency(by="user")),
            ("job --gpus", lambda: read.gpu_use_of(ledger, "4711")),
        ):
            taken = _median(call)
            yield Budget(f"{what}, {name}, CPU time", taken, "2,000 ms", None, taken < 2000)


_USES = (
    "INSERT INTO gpu_use (cluster_id, job_id_raw, start, run_id, node, gpu, uuid, pci, mig, source,"
    " shared, interval, samples, covered, measured_samples, measured_seconds,"
    " utilization_sum, idle_samples,"
    " percentile_95, memory_mib, memory_total_mib, counted_joules, counted_seconds, ends_joules,"
    " ends_seconds, power_seconds)"
    " SELECT 1, job_id_raw, start, id, 'c1', 'GPU-' || id, 'GPU-' || id, '', '', 'exporter', false,"
    " 30, 80, 2400, 80, 2400, (id % 100) * 80.0, CASE WHEN id % 100 = 0 THEN 80 ELSE 0 END,"
    " id % 100, id % 80000, 81920, 720000, 2400, 0, 0, 0 FROM runs"
)


def _median(call: Callable[[], object]) -> float:
    """Return the CPU time, which other work of the machine hardly changes."""
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        call()
        seconds.append(time.process_time() - begun)
    return median_ms(seconds)


if __name__ == "__main__":
    for each in budgets(int(sys.argv[1]) if len(sys.argv) > 1 else _RUNS):
        print(each.row())
