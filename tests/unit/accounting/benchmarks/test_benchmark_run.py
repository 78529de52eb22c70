"""`slurmkit benchmark`: the jobs, the folder of results, and who may store them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmark_books import measured
from flow_lab import FlowLab
from recorded_lab import RELEASES, slurm, standing
from report_books import write_books
from slurmkit_accounting.benchmarks import jobs
from slurmkit_accounting.benchmarks.jobs import (
    BenchmarkRequest,
    benchmark_workflow,
    choose_nodes,
    new_record,
)
from slurmkit_accounting.benchmarks.results import (
    BenchmarkJob,
    BenchmarkRecord,
    Measurement,
    RunFolder,
    find_run,
    run_folders,
)
from slurmkit_accounting.benchmarks.store import store_benchmarks
from slurmkit_accounting.cli.benchmark import benchmark_group
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import Ledger, open_for_reading, open_for_writing
from slurmkit_accounting.ledger.schema.benchmarks import benchmark_results
from slurmkit_accounting.remote.protocol import ServiceQuery
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.queries import QueryAnswerer
from sqlalchemy import select

from slurmkit.cli.main import run_to_exit_code
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.workflow import SentWorkflow, WorkflowJobStatus
from slurmkit.cluster.workflow_plan import WorkflowPlan, plan_workflow
from slurmkit.errors import BadInput, NotAllowed, SlurmError
from slurmkit.state.nodes import NodeChoice, NodeRow, read_nodes
from slurmkit.testing import FakeSlurm

PREFLIGHT = '[preflight]\nprogram = "/opt/all_reduce_perf"\n[launch]\nmpi = "pmix"\n'
ALICE = 2001


def nodes(release: str = "24.11") -> tuple[NodeRow, ...]:
    """The Docker cluster, as its Slurm printed it: c1 to c7; c4 is drained in no release."""
    return read_nodes(slurm(release, squeue=lambda *_: "")).rows


def with_states(rows: tuple[NodeRow, ...], **states: tuple[str, ...]) -> tuple[NodeRow, ...]:
    replace = msgspec.structs.replace
    return tuple(replace(row, states=states.get(row.name, ("IDLE",))) for row in rows)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of state of the user."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "state" / "slurmkit"


def planned(
    request: BenchmarkRequest, tmp_path: Path, release: str = "24.11"
) -> tuple[RunFolder, WorkflowPlan]:
    cluster = Cluster(slurm(release, squeue=lambda *_: ""))
    cluster.standing = lambda user=None: standing()  # type: ignore[method-assign]
    rows = choose_nodes(with_states(nodes(release)), request).rows
    folder = RunFolder.create(new_record("lab", request, rows), tmp_path / "runs")
    flow = benchmark_workflow(folder, request, rows, cluster.capabilities())
    return folder, plan_workflow(flow, cluster)


# --- the nodes ------------------------------------------------------------------------------------


def test_nodes_that_are_down_or_drained_get_no_job_unless_asked() -> None:
    rows = with_states(nodes(), c2=("IDLE", "DRAIN"), c3=("DOWN",), c6=("IDLE", "MAINTENANCE"))
    chosen = choose_nodes(rows, BenchmarkRequest())
    assert [row.name for row in chosen.rows] == ["c1", "c4", "c5", "c6"]
    assert [row.name for row in chosen.closed] == ["c2", "c3"]
    chosen = choose_nodes(rows, BenchmarkRequest(drained=True))
    assert "c3" in [row.name for row in chosen.rows]
    only = BenchmarkRequest(choice=NodeChoice(nodelist="c[2-3]"))
    with pytest.raises(BadInput, match=r"no node is left to measure: c\[2-3\] are down or drained"):
        choose_nodes(rows, only)


def test_idle_nodes_come_first() -> None:
    rows = tuple(
        msgspec.structs.replace(row, cpus_allocated=8 if row.name in ("c1", "c4") else 0)
        for row in with_states(nodes())
    )
    names = [row.name for row in choose_nodes(rows, BenchmarkRequest()).rows]
    assert names == ["c2", "c3", "c5", "c6", "c1", "c4"]


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (BenchmarkRequest(gpu_type="A100"), ["c1", "c2", "c6"]),
        (BenchmarkRequest(gpu_type="h100"), ["c3"]),
        (BenchmarkRequest(choice=NodeChoice(partitions=("cpu",)), tests=("cpu",)), ["c7"]),
        (BenchmarkRequest(choice=NodeChoice(nodelist="c7")), ["c7"]),
        (BenchmarkRequest(tests=("cpu",)), [f"c{n}" for n in range(1, 8)]),
    ],
)
def test_which_nodes(request_: BenchmarkRequest, names: list[str]) -> None:
    rows = choose_nodes(with_states(nodes()), request_).rows
    assert sorted(row.name for row in rows) == names


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (BenchmarkRequest(gpu_type="b200"), "there are no GPUs of type 'b200'; types: a100"),
        (BenchmarkRequest(choice=NodeChoice(nodelist="c9")), "there is no node 'c9'"),
        (BenchmarkRequest(choice=NodeChoice(partitions=("cpu",))), "measured with --test cpu"),
    ],
)
def test_what_is_not_there(request_: BenchmarkRequest, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        choose_nodes(with_states(nodes()), request_)


# --- the jobs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_a_job_for_each_node_that_every_release_takes(release: str, tmp_path: Path) -> None:
    request = BenchmarkRequest(limit=2, options={"time": "15", "nice": 10_000, "qos": "scavenger"})
    folder, plan = planned(request, tmp_path, release)
    assert [(name, error.message) for name, error in plan.errors] == []
    assert sorted(plan.plans) == ["c1", "c2", "c3", "c4", "c5", "c6"]
    options = {name: dict(each.submissions[0].options) for name, each in plan.plans.items()}
    assert options["c1"].items() >= {
        "nodelist": "c1", "nodes": "1", "gpus-per-node": "a100:8", "time": "15", "nice": "10000",
        "qos": "scavenger", "job-name": "benchmark-c1", "partition": "gpu", "cpus-per-task": "64",
        "output": str(folder.log_of("c1")),
    }.items()  # fmt: skip
    assert all("exclusive" in each and "no-requeue" in each for each in options.values())
    assert "gpus-per-node" not in options["c5"]  # MIG slices of two types: the whole node has them
    names = list(plan.plans)
    edges = {name: [str(edge) for edge in plan.workflow.edges(name)] for name in names}
    assert edges == {
        name: [f"{names[at - 2]}:any"] if at >= 2 else [] for at, name in enumerate(names)
    }
    script = plan.plans["c1"].submissions[0].script
    assert f"python3 {folder.program}" in script
    assert folder.program.read_bytes() == Path(jobs.inside.__file__).read_bytes()


def test_nccl_is_measured_between_pairs_of_like_nodes(
    tmp_path: Path, configure: Callable[[str], None]
) -> None:
    configure(PREFLIGHT)
    folder, plan = planned(BenchmarkRequest(options={"time": "15"}), tmp_path)
    assert [(name, error.message) for name, error in plan.errors] == []
    assert folder.record.tests == ("gpu", "disk", "nccl")
    [name] = [name for name in plan.plans if name.startswith("nccl")]
    assert folder.record.jobs[name] == BenchmarkJob(("c1", "c2"), "a100", 8, is_nccl=True)
    script = plan.plans[name].submissions[0].script
    assert f"SLURMKIT_PREFLIGHT_RESULTS={folder.results_of(name)}" in script
    assert "all_reduce_perf" in script


@pytest.mark.parametrize(
    ("count", "size", "groups"),
    [(4, 2, ["12", "34"]), (5, 2, ["12", "34", "45"]), (5, 3, ["123", "345"]), (1, 2, [])],
)
def test_each_node_is_in_a_group(count: int, size: int, groups: list[str]) -> None:
    first = with_states(nodes())[0]
    rows = [msgspec.structs.replace(first, name=str(n + 1)) for n in range(count)]
    assert ["".join(row.name for row in group) for group in jobs._groups(rows, size)] == groups


def test_nccl_alone_needs_two_like_nodes() -> None:
    rows = [row for row in nodes() if row.name in ("c1", "c3")]
    with pytest.raises(BadInput, match="between 2 nodes with GPUs of one type"):
        new_record("lab", BenchmarkRequest(tests=("nccl",)), rows)
    record = new_record("lab", BenchmarkRequest(tests=("nccl",), group=1), rows)
    assert [job.nodes for job in record.jobs.values()] == [("c1",), ("c3",)]


# --- the folder -----------------------------------------------------------------------------------


@pytest.fixture
def folder() -> RunFolder:
    made = {
        "c1": BenchmarkJob(("c1",), "h100", 8),
        "c5": BenchmarkJob(("c5",), "", 6, is_mixed=True),
        "nccl-1": BenchmarkJob(("c1", "c2"), "h100", 8, is_nccl=True),
    }
    return RunFolder.create(BenchmarkRecord("benchmark-1", "lab", 1_795_000_000, ("gpu",), made))


LINE = {
    "benchmark": "memory", "value": 3000.5, "unit": "GB/s", "at": 1_795_000_100, "job_id": "12",
    "method": "copy of 1024 MiB", "gpu": "GPU-1", "gpu_serial": "132", "gpu_name": "NVIDIA H100",
    "torch": "2.6", "driver": "570", "versions": {"cuda": "12.9"},
}  # fmt: skip
NCCL = {
    "nodes": ["c2", "c1"], "job_id": "13", "bandwidth": 95.5, "wrong": 0, "devices": "x",
    "trouble": "", "ranks": 16, "at": 1_795_000_200,
}  # fmt: skip


def write(folder: RunFolder, job: str, *lines: object, rest: str = "") -> None:
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    folder.results_of(job).write_text(text + rest, "utf-8")


def test_what_jobs_wrote(folder: RunFolder) -> None:
    failed = {**LINE, "value": None, "trouble": "x\ny" + "z" * 600, "nodes": "c9", "gpu_type": "b"}
    write(folder, "c1", LINE, failed, rest='{"benchmark": "m')
    write(folder, "c5", {**LINE, "gpu_name": "NVIDIA A100"}, {**LINE, "gpu": ""})
    write(
        folder, "nccl-1", NCCL, {**NCCL, "wrong": 3}, {**NCCL, "nodes": ["c2"], "bandwidth": None}
    )
    found, wrong = folder.measurements()
    assert wrong == []
    assert found[0] == Measurement(
        nodes="c1", gpu_type="h100", benchmark="memory", value=3000.5, unit="GB/s",
        at=1_795_000_100, job_id="12", gpu="GPU-1", gpu_serial="132", gpu_name="NVIDIA H100",
        method="copy of 1024 MiB", driver="570", torch="2.6", versions={"cuda": "12.9"},
    )  # fmt: skip
    assert (found[1].value, found[1].trouble) == (None, "x?y" + "z" * 497)
    assert (found[1].nodes, found[1].gpu_type) == ("c1", "h100")
    assert [each.gpu_type for each in found[2:4]] == ["NVIDIA A100", ""]
    nccl = [(each.nodes, each.value, each.method, each.trouble) for each in found[4:]]
    assert nccl == [
        ("c1,c2", 95.5, "1 GiB over 2 nodes with 8 GPUs each", ""),
        ("c1,c2", None, "1 GiB over 2 nodes with 8 GPUs each", "3 values came out wrong"),
        ("c2", None, "1 GiB over 1 node with 8 GPUs each", "it measured nothing"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        b"\xff".decode("latin-1"),
        "[]",
        '{"benchmark": "memory"}',
        {**LINE, "benchmark": "beauty"},
        {**LINE, "unit": "TFLOP/s"},
        {**LINE, "value": -1},
        {**LINE, "value": 1e300},
        {**LINE, "at": -1},
        {**LINE, "at": 1 << 70},
        {**LINE, "gpu": "x" * 5000},
        json.dumps(LINE).replace("3000.5", "NaN"),
        {**NCCL, "nodes": ["c9"]},
        {**NCCL, "nodes": []},
    ],
)
def test_a_line_that_cannot_be_right_is_said_and_left_out(folder: RunFolder, line: object) -> None:
    write(folder, "c1", line, LINE)
    found, wrong = folder.measurements()
    assert len(found) == 1
    assert len(wrong) == 1
    assert "c1.jsonl, line 1: " in wrong[0]


def test_a_large_group_of_nodes_passes_the_service(tmp_path: Path) -> None:
    names = tuple(f"gpu-node-{number:05}" for number in range(1024))
    job = BenchmarkJob(names, "h100", 8, is_nccl=True)
    record = BenchmarkRecord("benchmark-9", "lab", 1, ("nccl",), {"nccl-1": job})
    run = RunFolder.create(record, tmp_path / "run")
    line = {"nodes": names, "bandwidth": 380.0, "wrong": 0, "ranks": 8192, "at": 5}
    run.results_of("nccl-1").write_text(json.dumps(line, separators=(",", ":")) + "\n")
    (found,), wrong = run.measurements()
    assert wrong == []
    assert found.nodes == "gpu-node-[00000-01023]"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Measurement) == found


def test_a_folder_of_another_prints_no_escapes(tmp_path: Path) -> None:
    evil = BenchmarkJob(("c1\x1b[2J",), "h100", 8)
    record = BenchmarkRecord("benchmark-9", "lab", 1, ("gpu",), {"c1": evil})
    run = RunFolder.create(record, tmp_path / "run")
    with pytest.raises(BadInput, match="is not the name of a run, a job or a node"):
        RunFolder.open(run.path)
    run.write(msgspec.structs.replace(record, jobs={"c1": BenchmarkJob(("c1",), "h\x1b[2J", 8)}))
    write(run, "c1", LINE)
    (found,) = RunFolder.open(run.path).measurements()[0]
    assert found.gpu_type == "h?[2J"


def test_folders_of_others_lead_nowhere_else(folder: RunFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{json.dumps(LINE)}\n", "utf-8")
    folder.results_of("c1").symlink_to(secret)
    os.mkfifo(folder.results_of("c5"))
    found, wrong = folder.measurements()
    assert found == []
    assert len(wrong) == 2
    record = msgspec.structs.replace(folder.record, jobs={"../secret": folder.record.jobs["c1"]})
    folder.write(record)
    with pytest.raises(BadInput, match="is not the name of a run, a job or a node"):
        RunFolder.open(folder.path)


def test_runs_are_found_by_name_and_by_path(folder: RunFolder) -> None:
    later = BenchmarkRecord("benchmark-2", "lab", 1_796_000_000, ("gpu",), folder.record.jobs)
    RunFolder.create(later)
    assert [run.record.name for run in run_folders()] == ["benchmark-2", "benchmark-1"]
    assert find_run("benchmark-1").path == find_run(str(folder.path)).path == folder.path
    with pytest.raises(BadInput, match="there is no benchmark run 'benchmark-3'"):
        find_run("benchmark-3")
    with pytest.raises(BadInput, match="is not the folder of a benchmark run"):
        find_run(str(folder.path.parent))


# --- storing --------------------------------------------------------------------------------------


def stored(ledger: Ledger) -> list[tuple[Any, ...]]:
    columns = ("run", "nodes", "gpu", "benchmark", "value", "user", "versions")
    with ledger.transaction() as connection:
        query = select(*(benchmark_results.c[name] for name in columns)).order_by("id")
        return [tuple(row) for row in connection.execute(query)]


def past(*given: Measurement) -> tuple[Measurement, ...]:
    """Measurements of a time that has come."""
    return tuple(msgspec.structs.replace(each, at=1_700_000_000) for each in given)


def test_each_value_is_stored_once(ledger: Ledger) -> None:
    write_books(ledger, [])
    first = past(measured("c1", 700, gpu="A"), measured("c1", 701, gpu="B"))
    count = store_benchmarks(ledger, "lab", "benchmark-1", first)
    assert (count.stored, count.known) == (2, 0)
    more = (*first, *past(measured("c1", None, gpu="C", trouble="x")))
    count = store_benchmarks(ledger, "lab", "benchmark-1", more)
    assert (count.stored, count.known) == (1, 2)
    assert [(row[2], row[4]) for row in stored(ledger)] == [("A", 700), ("B", 701), ("C", None)]
    count = store_benchmarks(ledger, "lab", "benchmark-2", first)
    assert (count.stored, count.known) == (2, 0)


@pytest.mark.sql
def test_what_is_not_stored(ledger: Ledger) -> None:
    write_books(ledger, [])
    with pytest.raises(BadInput, match="the ledger has no cluster 'moon'"):
        store_benchmarks(ledger, "moon", "benchmark-1", past(measured("c1", 7)))
    tomorrow = msgspec.structs.replace(measured("c1", 7), at=4_000_000_000)
    with pytest.raises(BadInput, match="of tomorrow"):
        store_benchmarks(ledger, "lab", "benchmark-1", (tomorrow,))
    odd = msgspec.structs.replace(past(measured("c1", 7))[0], unit="furlongs")
    with pytest.raises(BadInput, match="no benchmark 'matmul_bf16' in 'furlongs'"):
        store_benchmarks(ledger, "lab", "benchmark-1", (odd,))
    assert stored(ledger) == []


@pytest.mark.parametrize("name", ["alice", "daemon"])
def test_the_service_stores_for_operators_only(ledger: Ledger, name: str) -> None:
    """`daemon` is an operator of this Slurm; alice is nobody to it."""
    write_books(ledger, [])
    slurm_ = FakeSlurm({"sacctmgr": lambda *_: "daemon|Operator\n"})
    sights = Permissions(ServiceSection(), slurm_, lambda *_, **__: None)
    answers = QueryAnswerer(open_for_reading, sights, lambda *_, **__: None, open_for_writing)
    results = msgspec.to_builtins(past(measured("c1", 700, gpu="A", versions={"cuda": "12"})))
    asked = {"cluster": "lab", "run": "benchmark-1", "results": results}
    uid = ALICE if name == "alice" else 1
    answer = answers(uid, ServiceQuery("store_benchmarks", asked))
    if name == "alice":
        assert answer.fault is not None
        assert "only Slurm's operators store benchmark results" in answer.fault.message
        forged = answers(ALICE, ServiceQuery("store_benchmarks", asked | {"scope": {}}))
        assert forged.fault is not None
        assert stored(ledger) == []
        return
    assert answer.fault is None
    assert json.loads(bytes(answer.value)) == {"stored": 1, "known": 0}
    who = ("benchmark-1", "c1", "A", "matmul_bf16", 700, "daemon", '{"cuda":"12"}')
    assert stored(ledger) == [who]
    bad = [results[0] | {"value": "fast"}]
    fault = answers(uid, ServiceQuery("store_benchmarks", asked | {"results": bad})).fault
    assert fault is not None
    assert fault.kind == "BadInput"


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, file_ledger: Ledger) -> FlowLab:
    """A Slurm whose jobs a test ends, and a ledger that knows the cluster."""
    write_books(file_ledger, [])
    made = FlowLab()
    object.__setattr__(
        made, "_capabilities", msgspec.structs.replace(made._capabilities, cluster_name="lab")
    )
    monkeypatch.setattr("slurmkit_accounting.cli.benchmark.Cluster", lambda *_: made)
    monkeypatch.setattr(
        "slurmkit_accounting.cli.benchmark.read_nodes",
        lambda _: msgspec.structs.replace(
            read_nodes(slurm(squeue=lambda *_: "")), rows=with_states(nodes())
        ),
    )
    return made


def run(*words: str) -> int:
    return run_to_exit_code(benchmark_group, list(words))


def test_a_dry_run_sends_nothing_and_leaves_nothing(
    lab: FlowLab, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "--dry-run") == 0
    shown = capsys.readouterr()
    assert "c1    c1     gpu        a100:8  15" in shown.out
    # 8 + 8 + 4 + 4 + 6 + 2 GPUs for a quarter of an hour
    assert "6 jobs, at most 8 GPU-hours" in shown.err
    assert lab.sent == {}
    assert not list((state / "benchmarks").glob("*/*"))


def test_it_asks_before_it_sends(lab: FlowLab, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run") == 2
    assert "no terminal to ask for confirmation on; to submit without asking: --yes" in (
        capsys.readouterr().err
    )
    assert run("run", "--json") == 2
    assert lab.sent == {}
    assert list(run_folders()) == []


def test_results_of_jobs_are_collected_later(
    lab: FlowLab, file_ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "--yes", "--no-wait", "--nodes", "c[1-2]", "--limit", "1", "--json") == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    name = answer["run"]
    assert f"slurmkit benchmark collect {name}" in shown.err
    assert [row["ids"] for row in answer["rows"]] == [["101"], ["102"]]
    assert "afterany:101" in str(lab.sent["102"])
    [folder] = run_folders()
    assert run("collect") == 0
    assert "there are no new results" in capsys.readouterr().err
    write(folder, "c1", LINE)
    assert run("collect", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [{"run": name, "stored": 1, "known": 0}]
    assert run("collect") == 0
    assert "there are no new results" in capsys.readouterr().err
    write(folder, "c2", LINE)
    assert run("collect") == 0
    assert capsys.readouterr().out == f"{name}: 1 values stored, 1 known before\n"
    assert [(row[0], row[1], row[4]) for row in stored(file_ledger)] == [
        (name, "c1", 3000.5),
        (name, "c2", 3000.5),
    ]
    assert run("show") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-4:] == ["2", "2", "2", "2"]
    assert run("show", name) == 0
    assert "memory     c1     132  3,000  GB/s" in capsys.readouterr().out


def test_results_of_another_are_stored_with_a_warning(
    lab: FlowLab, folder: RunFolder, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    write(folder, "c1", LINE)
    assert run("collect", str(folder.path)) == 0
    assert "warning" not in capsys.readouterr().err
    own = os.getuid()
    monkeypatch.setattr("slurmkit_accounting.cli.benchmark.os.getuid", lambda: own + 1)
    run("collect", str(folder.path))
    assert f"is of uid {own}, who can have written any result there" in capsys.readouterr().err


def test_it_waits_and_says_what_could_not_be_measured(
    lab: FlowLab, file_ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def ends(*_: object) -> None:
        [folder] = run_folders()
        write(folder, "c1", LINE, {**LINE, "benchmark": "disk_read", "unit": "MB/s", "gpu": ""})
        lab.end("101")
        lab.end("102", "TIMEOUT")

    monkeypatch.setattr("slurmkit_accounting.cli.benchmark.show_progress", ends)
    assert run("run", "--yes", "--nodes", "c[1-2]") == 1
    shown = capsys.readouterr()
    assert "c2: no result, the job is TIMEOUT; its log: " in shown.err
    assert "stored 2 values; see: slurmkit report benchmark" in shown.err
    assert len(stored(file_ledger)) == 2


def test_states_are_read_before_the_files(
    lab: FlowLab, file_ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """A job writes its last line and ends between the two looks."""
    read_workflow = SentWorkflow.look

    def looks(sent: SentWorkflow) -> dict[str, WorkflowJobStatus]:
        states = read_workflow(sent)
        [folder] = run_folders()
        write(folder, "c1", LINE)
        lab.end("101")
        return states

    monkeypatch.setattr("slurmkit_accounting.cli.benchmark.show_progress", lambda *_: None)
    monkeypatch.setattr(SentWorkflow, "look", looks)
    assert run("run", "--yes", "--nodes", "c1") == 1
    said = " ".join(capsys.readouterr().err.split())
    [folder] = run_folders()
    assert "c1: the job is PENDING; its log: " in said
    words = "1 of 1 jobs are not known to be over; later: slurmkit benchmark"
    assert f"{words} collect {folder.record.name}" in said
    assert "stored 1 values" in said
    assert len(stored(file_ledger)) == 1


def test_a_wait_that_breaks_off_says_how_to_go_on(
    lab: FlowLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object) -> None:
        raise SlurmError("slurmctld does not answer")

    monkeypatch.setattr("slurmkit_accounting.cli.benchmark.show_progress", breaks)
    assert run("run", "--yes", "--nodes", "c1") != 0
    [folder] = run_folders()
    said = " ".join(capsys.readouterr().err.split())
    assert f"slurmkit benchmark collect {folder.record.name}" in said
    assert "slurmctld does not answer" in said
    assert lab.cancelled == []


def test_after_ctrl_c_the_jobs_go_on(
    lab: FlowLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slurmkit_accounting.cli.benchmark.show_progress", interrupted)
    assert run("run", "--yes", "--nodes", "c1") == 130
    [folder] = run_folders()
    assert f"slurmkit benchmark collect {folder.record.name}" in " ".join(
        capsys.readouterr().err.split()
    )
    assert lab.cancelled == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--disk-size", "63M"], "--disk-size 63M is not between 64M and 16G"),
        (["--disk-size", "17G"], "--disk-size 17G is not between 64M and 16G"),
        (["--disk", "tmp"], "must be the whole path of a folder"),
        (["--disk-size", "much"], "--disk-size 'much' is not a size"),
        (["--disk-size", "0"], "--disk-size '0' is not a size"),
        (["--nodes", "c9"], "there is no node 'c9'"),
        (["--limit", "0"], "0 is not in the range"),
    ],
)
def test_mistakes(
    lab: FlowLab, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run("run", "--yes", *words) == 2
    assert said in capsys.readouterr().err
    assert lab.sent == {}


def test_results_of_another_node_are_not_read(folder: RunFolder) -> None:
    """Somebody moved the job of c1 to c9 while it waited."""
    write(folder, "c1", {**LINE, "node": "c9"}, {**LINE, "node": "c1"})
    found, wrong = folder.measurements()
    assert [each.nodes for each in found] == ["c1"]
    assert "it was measured on c9, not on c1" in wrong[0]


def test_who_may_not_store_learns_it_before_the_jobs_run(
    lab: FlowLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_ledger: object, _cluster: str, _run: str, results: object) -> None:
        assert results == ()
        raise NotAllowed("only operators")

    module = "slurmkit_accounting.cli.benchmark"
    monkeypatch.setattr(f"{module}.configured_remote", object)
    monkeypatch.setattr(f"{module}.store_benchmarks", refuses)
    monkeypatch.setattr(f"{module}.show_progress", lambda *_: lab.end("101"))
    assert run("run", "--yes", "--nodes", "c1") == 1  # the job has written nothing
    said = " ".join(capsys.readouterr().err.split())
    [folder] = run_folders()
    before, _, after = said.partition("waiting for them")
    assert f"the results stay in {folder.path}: only Slurm's operators" in before
    assert f"the results are in {folder.path}" in after
    assert "benchmark collect" not in after
    assert "not stored" not in after
