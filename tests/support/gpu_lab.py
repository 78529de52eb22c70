"""Nodes with exporters of GPU use, on real sockets, and jobs that hold their GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fake_sacct import FakeSacct
from slurmkit_accounting.gpu_use.recent import RecentSample, store_samples
from slurmkit_accounting.gpu_use.samples import GpuName, GpuReading, NodeAnswer, parse_page
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse

GIB = 2**30
GPU = GpuName("GPU-1", "00000000:01:00.0", 0)


class JobsAndRuns(FakeSacct):
    """A cluster with jobs in squeue (`running`) and in its accounting database (`jobs`).

    Attributes:
        running: raw job id, node list, start and TRES of each running job, and its state.
    """

    def __init__(self, *jobs: dict) -> None:
        super().__init__(*jobs)
        self.running: list[tuple[int, str, int, str, str]] = []
        self._answers["squeue"] = self._squeue

    def run_job(self, job: int, nodes: str, start: int, tres: str = "gres/gpu=1", state="RUNNING"):
        self.running.append((job, nodes, start, tres, state))

    def _squeue(self, argv: Sequence[str], _: str | None) -> str:
        mark = argv[-1].split(",")[0].partition(":")[2]
        rows = [
            (job, job, "alice", "vision", state, nodes, start, tres)
            for job, nodes, start, tres, state in self.running
        ]
        return "".join("".join(f"{part}{mark}" for part in row) + "\n" for row in rows)


def line(metric: str, value: object, gpu: GpuName = GPU, node: str = "c1", **other: object) -> str:
    labels = {
        "node": node, "gpu": "" if gpu.index is None else gpu.index, "uuid": gpu.uuid,
        "pci": gpu.pci, "mig": gpu.mig, **other,
    }  # fmt: skip
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"slurmkit_gpu_{metric}{{{text}}} {value}\n"


def gpu_page(
    *jobs: int,
    gpu: GpuName = GPU,
    busy: object = 0.8,
    watts: object = 300.0,
    joules: object = 1000.0,
    memory: object = 10 * GIB,
) -> str:
    """What an exporter says about one GPU that some jobs hold."""
    return "".join(
        [
            "# TYPE slurmkit_gpu_utilization_ratio gauge\n",
            line("utilization_ratio", busy, gpu),
            line("memory_used_bytes", memory, gpu),
            line("memory_total_bytes", 80 * GIB, gpu),
            line("power_watts", watts, gpu),
            line("energy_joules_total", joules, gpu),
            line("temperature_celsius", 55, gpu),
            *(line("job", 1, gpu, job=job) for job in jobs),
        ]
    )


def page_of(node: str, page: str) -> str:
    """A page of c1 as another node has it."""
    return page.replace('node="c1"', f'node="{node}"')


class Nodes:
    """Exporters without sockets: what each node's page is at a time."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.at = 0.0

    def __call__(self, _: object, nodes: Iterable[str]) -> dict[str, NodeAnswer]:
        return {
            node: parse_page(page_of(node, self.pages[node]), self.at)
            if node in self.pages
            else NodeAnswer(error="no route to host")
            for node in nodes
        }


@contextmanager
def exporter(page: Callable[[BaseHTTPRequestHandler], Any]) -> Iterator[int]:
    """An HTTP server on 127.0.0.1 whose every request `page` answers: text, or None by itself."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = page(self)
            if answer is None:
                return
            body = answer if isinstance(answer, bytes) else answer.encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def use_of(*readings: GpuReading, start: int = 0, interval: int = 30, **other: Any) -> GpuUse:
    """The summary of a GPU that these readings make."""
    facts = {"cluster_id": 1, "job": 1, "node": "c1", "gpu": GPU, "source": "exporter"} | other
    use = GpuUse(start=start, interval=interval, **facts)
    for reading in readings:
        use.add(reading)
    return use


def store_running(ledger: Any, *gpus: tuple[GpuUse, Sequence[GpuReading]], shared=False) -> None:
    """Store GPUs of running jobs as the service does: what each is, and its samples by time."""
    with ledger.transaction() as connection:
        for use, readings in gpus:
            use.first = readings[0].at
        store_uses(connection, [use for use, _ in gpus])
        rounds: dict[int, dict[str, list[RecentSample]]] = {}
        for use, readings in gpus:
            for each in readings:
                nodes = rounds.setdefault(int(each.at), {})
                nodes.setdefault(use.node, []).append(RecentSample(use.id or 0, shared, each))
        for taken, nodes in rounds.items():
            store_samples(connection, gpus[0][0].cluster_id, taken, nodes)


def steady(
    start: int,
    seconds: int,
    *,
    busy: float | None = 80,
    watts: float | None = 300,
    every: int = 30,
) -> list[GpuReading]:
    """A reading every 30 s of a GPU that does the same all the time."""
    return [
        GpuReading(
            at=start + passed,
            utilization=busy,
            memory_mib=10240,
            memory_total_mib=81920,
            watts=watts,
            joules=None if watts is None else 5000 + watts * passed,
        )
        for passed in range(every, seconds + 1, every)
    ]
