"""The page that Prometheus and the ledger read."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from node_lab import NodeLab
from nvml_stub import GPU_0, GPU_1, NODES, ROOT, TWO_GPUS, Stub
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text
from slurmkit_plugins.gpu_exporter import metrics as exporter
from slurmkit_plugins.gpu_exporter.holders import (
    JobFinder,
    SlurmGpus,
    load_gpu_map,
    parse_gres_conf,
)
from slurmkit_plugins.gpu_exporter.metrics import GpuCollector
from slurmkit_plugins.gpu_exporter.nvml import NvmlReader

RECORDED = ROOT / "tests" / "recorded" / "gpu_exporter"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Make = Callable[..., GpuCollector]


def series(page: bytes, parse: Callable[[str], object] = parse_text) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(page.decode())  # type: ignore[attr-defined]
        for sample in family.samples
    }


def value(found: Series, metric: str, /, **labels: str) -> float | None:
    values = [
        number
        for (each, pairs), number in found.items()
        if each == f"slurmkit_gpu_{metric}" and set(labels.items()) <= set(pairs)
    ]
    assert len(values) < 2
    return values[0] if values else None


@pytest.fixture
def make(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make the metrics of a node, which read the GPUs at each page."""
    monkeypatch.setattr(exporter, "_LEAST_SECONDS", 0)
    made: list[NvmlReader] = []

    def metrics(node: str = "n1", gpus: SlurmGpus | None = None) -> GpuCollector:
        reader = stub.reader()
        reader.open()
        made.append(reader)
        jobs = JobFinder(gpus or SlurmGpus(), tmp_path / "records")
        return GpuCollector(node, reader, jobs, tmp_path / "checks")

    yield metrics
    for reader in made:
        reader.close()


def page(metrics: GpuCollector) -> Series:
    return series(metrics.page("")[1])


def record(folder: Path, index: int, job: str) -> None:
    (folder / "records" / str(index)).mkdir(parents=True, exist_ok=True)
    (folder / "records" / str(index) / job).write_text(f"job={job}\nstart=5\n", "utf-8")


def test_values_have_the_labels_of_their_gpu(stub: Stub, make: Make, tmp_path: Path) -> None:
    gpus = parse_gres_conf("Name=gpu File=/dev/nvidia[0-1]", "n1")
    record(tmp_path, 1, "41")
    stub.play(1, "busy", "80", "memory", "2G")
    metrics = make(gpus=gpus)
    stub.play(1, "xid", "79")
    found = page(metrics)
    at = {"node": "n1", "gpu": "1", "uuid": GPU_1, "pci": "00000000:07:00.0", "mig": ""}
    assert value(found, "utilization_ratio", **at) == 0.8
    assert value(found, "memory_used_bytes", **at) == 2 << 30
    assert value(found, "xid_errors_total", **at, xid="79") == 1
    assert value(found, "job", **at, job="41") == 1
    assert value(found, "info", **at, name="NVIDIA A100", driver="570.00") == 1
    assert value(found, "utilization_ratio", uuid=GPU_0, gpu="0") == 0
    assert value(found, "job", uuid=GPU_0) is None


def test_what_is_unknown_has_no_series(stub: Stub, make: Make) -> None:
    stub.play(0, "busy", "250")
    metrics = make()
    found = page(metrics)
    assert value(found, "utilization_ratio", uuid=GPU_0) is None
    assert value(found, "utilization_ratio", uuid=GPU_1) == 0
    assert value(found, "sm_active_ratio", uuid=GPU_1) is None
    assert value(found, "exporter_errors_total", kind="absurd_utilization") == 1
    # Slurm's index is unknown here: without gres.conf no ordinal is taken for it.
    assert value(found, "utilization_ratio", uuid=GPU_1, gpu="") == 0


def test_a_lost_gpu_keeps_its_job_and_nothing_else(stub: Stub, make: Make, tmp_path: Path) -> None:
    record(tmp_path, 0, "41")
    metrics = make(gpus=parse_gres_conf("Name=gpu File=/dev/nvidia[0-1]", "n1"))
    page(metrics)
    stub.play(0, "error", "15")
    found = page(metrics)
    names = {name for name, pairs in found if ("uuid", GPU_0) in pairs}
    assert names == {"slurmkit_gpu_info", "slurmkit_gpu_lost", "slurmkit_gpu_job"}
    assert value(found, "lost", uuid=GPU_0) == 1
    assert value(found, "lost", uuid=GPU_1) == 0
    (stub.folder / "error").write_text("18", "ascii")
    assert value(page(metrics), "exporter_driver_up") == 0


def test_mig_instances_hold_jobs_and_their_gpu_has_the_energy(
    stub: Stub, make: Make, tmp_path: Path
) -> None:
    stub.set_up_node(NODES / "c5")
    record(tmp_path, 3, "52")
    stub.play(3, "busy", "80", "power", "30")
    metrics = make("c5", load_gpu_map(NODES / "c5.map"))
    page(metrics)
    found = page(metrics)
    at = {"gpu": "3", "mig": "MIG-c5000003-0000-5000-8000-000001000008"}
    assert value(found, "job", job="52", **at) == 1
    assert value(found, "utilization_ratio", **at) == 0.8
    assert value(found, "energy_joules_total", **at) is None
    whole = {"uuid": "GPU-c5000001-0000-4000-8000-000000000001", "mig": "", "gpu": ""}
    assert value(found, "power_watts", **whole) == 80
    assert (value(found, "energy_joules_total", **whole) or 0) > 0
    assert value(found, "utilization_ratio", **whole) is None


def test_jobs_on_a_shared_gpu_have_values_of_their_own(
    stub: Stub, make: Make, tmp_path: Path
) -> None:
    gpus = parse_gres_conf("Name=gpu File=/dev/nvidia[0-1]\nName=shard Count=8", "n1")
    record(tmp_path, 0, "41")
    record(tmp_path, 0, "42")
    with subprocess.Popen(["sleep", "60"], env={"SLURM_JOB_ID": "41"}) as process:
        stub.play(0, "process", f"{process.pid},1048576,25")
        found = page(make(gpus=gpus))
        process.kill()
    assert value(found, "job_utilization_ratio", job="41", gpu="0") == 0.25
    assert value(found, "job_memory_used_bytes", job="41", gpu="0") == 1 << 20
    assert value(found, "job_utilization_ratio", job="42", gpu="0") == 0
    assert value(found, "job", job="42", gpu="0") == 1


def test_openmetrics_where_it_is_asked_for(make: Make) -> None:
    metrics = make()
    kind, openmetrics = metrics.page(OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.endswith(b"# EOF\n")
    assert series(openmetrics, parse_openmetrics).keys() == page(metrics).keys()
    for accept in ("", "text/plain;version=0.0.4", "x;version=?", "text/plain;version=x"):
        assert metrics.page(accept)[0].startswith("text/plain")


def test_reading_twice_at_once_costs_one_reading(
    stub: Stub, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = make()
    monkeypatch.setattr(exporter, "_LEAST_SECONDS", 3600)
    first = page(metrics)
    stub.play(0, "busy", "80")
    assert value(page(metrics), "utilization_ratio", uuid=GPU_0) == value(
        first, "utilization_ratio", uuid=GPU_0
    )


@pytest.mark.parametrize("node", ["c2", "c5", "c6"])
def test_the_recorded_pages_have_the_series_that_the_exporter_makes(
    stub: Stub, make: Make, tmp_path: Path, node: str
) -> None:
    """The ledger's tests read those pages."""
    recorded = series((RECORDED / f"node-{node}.prom").read_bytes())
    stub.set_up_node(NODES / node)
    for name, pairs in recorded:
        labels = dict(pairs)
        if name == "slurmkit_gpu_job":
            record(tmp_path, int(labels["gpu"]), labels["job"])
        if name == "slurmkit_gpu_ecc_errors_total":
            stub.play(int(labels["gpu"]), "ecc", "3,0")
    gres_conf = (ROOT / "docker/conf/slurm/gres.conf").read_text("utf-8")
    is_mapped = (NODES / f"{node}.map").exists()
    gpus = load_gpu_map(NODES / f"{node}.map") if is_mapped else parse_gres_conf(gres_conf, node)
    metrics = make(node, gpus)
    for name, pairs in recorded:
        if name == "slurmkit_gpu_xid_errors_total":
            stub.play(int(dict(pairs)["gpu"]), "xid", dict(pairs)["xid"])
    page(metrics)
    made = page(metrics).keys()
    by_job = {each for each in recorded if each[0].startswith("slurmkit_gpu_job_")}
    assert {each for each in made if not each[0].startswith("slurmkit_gpu_job_")} == (
        recorded.keys() - by_job
    )


def test_the_exporter_says_when_it_started(make: Make) -> None:
    before = time.time()
    found = page(make())
    started = value(found, "exporter_start_time_seconds")
    assert started
    assert before <= started <= time.time()
    assert (value(found, "exporter_scrape_seconds") or -1) >= 0
    assert len(TWO_GPUS) == sum(name == "slurmkit_gpu_lost" for name, _ in found)


def test_results_of_the_health_check_are_on_the_page(make: Make, tmp_path: Path) -> None:
    """As node_check.py writes them; without them, or with half of them, the page has the rest."""
    collector, node = make(), NodeLab(tmp_path / "node")
    node.gpus({"hot": "Active"}, {})
    shown = series(collector.page("")[1])
    assert not any(name.startswith("slurmkit_node_check") for name, _ in shown)
    env = node.environment | {"SLURMKIT_NODE_CHECKS": str(tmp_path / "checks")}
    assert node.run(env=env).returncode == 0
    shown = series(collector.page("")[1])
    found = {
        (labels["check"], labels["state"], labels["serial"])
        for name, pairs in shown
        if name == "slurmkit_node_check" and (labels := dict(pairs))
    }
    assert ("throttle", "note", "1320922000000") in found
    assert ("ecc", "ok", "") in found
    assert not {check for check, _, _ in found} & {"infiniband", "leftovers"}
    assert shown["slurmkit_node_check_time_seconds", (("node", "n1"),)] > time.time() - 1000
    one = {"check": "xid", "state": "note", "uuid": None, "serial": None}
    twice = {"checks": [one | {"text": "63"}, one | {"text": "94"}], "time": 1}
    (tmp_path / "checks" / "health.json").write_text(json.dumps(twice), "utf-8")
    assert collector.page("")[1].count(b"slurmkit_node_check{") == 1
    (tmp_path / "checks" / "health.json").write_text('{"checks": [{"state": "ok"}]}', "utf-8")
    shown = series(collector.page("")[1])
    assert not any(name.startswith("slurmkit_node_check") for name, _ in shown)
    assert shown


def test_the_dashboard_shows_metrics_of_the_exporter_that_there_are() -> None:
    """Each metric of an expression, with the labels that it is grouped by."""
    families = [
        family for family in vars(exporter._Families()).values() if hasattr(family, "_labelnames")
    ]
    labels = {family.name: {*family._labelnames} for family in families}
    labels["slurmkit_gpu_exporter_driver_up"] = {"instance"}
    labels["slurmkit_node_check"] = {"node", "check", "state", "uuid", "serial"}
    path = ROOT / "accounting" / "slurmkit_accounting" / "assets" / "dashboard.json"
    panels = json.loads(path.read_text("utf-8"))["panels"]
    seen = set()
    for expression in (target["expr"] for panel in panels for target in panel.get("targets", ())):
        names = set(re.findall(r"\bslurmkit_(?:gpu|node)_\w+", expression))
        for name in (each.removesuffix("_total") for each in names):
            assert name in labels, expression
            grouped = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", expression))))
            filtered = set(re.findall(r"(\w+)(?:=|!=|=~|!~)\"", expression))
            assert grouped | filtered <= labels[name], expression
            seen.add(name)
    assert len(seen) >= 12
