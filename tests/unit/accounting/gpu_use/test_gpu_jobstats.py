"""jobstats' summaries in AdminComment become records of GPU use; hostile ones become nothing."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
from fake_sacct import FakeSacct, job, lately, step
from gpu_lab import steady, store_running, use_of
from hypothesis import given
from hypothesis import strategies as st
from slurmkit_accounting import read
from slurmkit_accounting.gpu_use.jobstats import GpuSummary, parse_blob
from slurmkit_accounting.gpu_use.samples import GpuName
from slurmkit_accounting.gpu_use.store import link_ended_runs, load_uses
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.steps import update_measured_use
from slurmkit_accounting.ledger.schema.runs import runs
from sqlalchemy import func, select

GIB = 2**30
NOW = lately()
# The one that jobstats' documentation shows, with a second GPU.
SUMMARY: dict[str, Any] = {
    "gpus": 2,
    "nodes": {
        "c1": {
            "cpus": 12,
            "gpu_total_memory": {"0": 80 * GIB, "1": 80 * GIB},
            "gpu_used_memory": {"0": 2 * GIB, "1": 77 * GIB},
            "gpu_utilization": {"0": 0, "1": 98.6},
            "total_memory": 137438953472,
            "total_time": 57620.8,
            "used_memory": 84683702272,
        }
    },
    "total_time": 600,
}


def blob(value: object) -> str:
    return packed(json.dumps(value).encode())


def packed(plain: bytes) -> str:
    return "JS1:" + base64.b64encode(gzip.compress(plain, mtime=0)).decode()


def of_gpu(**values: object) -> str:
    return blob({"nodes": {"c1": {name: {"0": value} for name, value in values.items()}}})


def test_a_summary_is_read():
    assert parse_blob(blob(SUMMARY)) == [
        GpuSummary("c1", "0", 0.0, 2048, 81920),
        GpuSummary("c1", "1", 98.6, 78848, 81920),
    ]
    assert len(parse_blob(f" {blob(SUMMARY)}\n")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "", "JS1:", "JS1:Short", "JS1:None", "JS2:abcd", "hello", "JS1:!!!!",
        "JS1:" + base64.b64encode(b"no gzip").decode(),
        blob(SUMMARY)[:-8],
        blob([]), blob(None), blob({}), blob({"nodes": []}), blob({"nodes": {"c1": 7}}),
        blob({"nodes": {"c1": {}}}), blob({"nodes": {"c1": {"gpu_utilization": [1]}}}),
        blob({"nodes": {"c 1\n": SUMMARY["nodes"]["c1"]}}),
        blob({"nodes": {"c1": {"gpu_utilization": {"a b": 5}}}}),
        blob({"nodes": {"c1": {"gpu_utilization": {str(n): 5 for n in range(2000)}}}}),
        of_gpu(gpu_utilization=None), of_gpu(gpu_utilization="5"), of_gpu(gpu_utilization=True),
        of_gpu(gpu_utilization=250), of_gpu(gpu_utilization=-1), of_gpu(gpu_utilization=[5]),
        of_gpu(gpu_utilization=float("nan")), of_gpu(gpu_utilization=10**400),
        of_gpu(gpu_used_memory=-1), of_gpu(gpu_used_memory=2**62),
        packed(b"[" * 100_000), packed(b'{"nodes": ' + b"9" * 10_000 + b"}"),
    ],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_what_jobstats_does_not_write_is_nothing(text):
    assert parse_blob(text) == []


def test_a_bomb_is_not_unpacked():
    bomb = packed(b'{"nodes": {"c1": {"gpu_utilization": {"0": 5}}}, "x": "' + b" " * 2**26 + b'"}')
    assert len(bomb) < 2**18
    assert parse_blob(bomb) == []
    assert parse_blob("JS1:" + "A" * 2**21) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("c1", "0", "gpu_utilization", "nodes")), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(("nodes", "x")), json_values))
def test_no_json_breaks_it(value):
    for each in parse_blob(blob(value)):
        assert each.utilization is None or 0 <= each.utilization <= 100


def runs_of(ledger: Any) -> Any:
    with ledger.transaction() as connection:
        return connection.execute(select(runs)).all()


def test_a_site_with_jobstats_gets_its_history(ledger):
    run = job(1, NOW - 700, NOW - 700, NOW - 100, AdminComment=blob(SUMMARY))
    short = job(2, NOW - 700, NOW - 700, NOW - 690, AdminComment="JS1:Short")
    slurm = FakeSacct(run, short)
    slurm.steps["1001"] = [step(run, "0", AdminComment="JS1:not of a step")]
    for _ in range(2):
        ingest(ledger, slurm)
        with ledger.transaction() as connection:
            uses = load_uses(connection)
        assert [(use.node, use.gpu.key, use.mean, use.memory_mib) for use in uses] == [
            ("c1", "minor 0", 0, 2048), ("c1", "minor 1", 98.6, 78848),
        ]  # fmt: skip
    assert {use.source for use in uses} == {"jobstats"}
    for use in uses:
        assert (use.percentile_95, use.idle_share, use.joules, use.gpu.index) == (None,) * 4
        assert use.covered_share(NOW - 100) == 1
    first, second = sorted(runs_of(ledger), key=lambda row: row.job_id_raw)
    assert (first.gpu_used_permille, first.gpu_mem_peak_mib) == (493, 78848)
    assert second.gpu_used_permille is None


@pytest.mark.sql
def test_a_summary_that_is_written_again_replaces_the_first(ledger):
    slurm = FakeSacct(job(1, NOW - 700, NOW - 700, NOW - 100, AdminComment=blob(SUMMARY)))
    ingest(ledger, slurm)
    slurm.jobs = [job(1, NOW - 700, NOW - 700, NOW - 100, AdminComment=of_gpu(gpu_utilization=50))]
    ingest(ledger, slurm)
    with ledger.transaction() as connection:
        (use,) = load_uses(connection)
        assert connection.scalar(select(func.count()).select_from(runs)) == 1
    assert use.mean == 50


@pytest.mark.sql
def test_a_summary_of_a_run_whose_start_is_corrected_is_there_once(ledger):
    comment = blob(SUMMARY)
    slurm = FakeSacct(job(1, NOW - 900, NOW - 700, NOW - 100, AdminComment=comment))
    ingest(ledger, slurm)
    slurm.jobs = [job(1, NOW - 900, NOW - 701, NOW - 100, AdminComment=comment)]
    ingest(ledger, slurm)
    with ledger.transaction() as connection:
        assert [use.start for use in load_uses(connection)] == [NOW - 701] * 2
        assert connection.scalar(select(func.count()).select_from(runs)) == 1


def test_a_run_without_an_end_waits_for_it(ledger):
    comment = blob(SUMMARY)
    slurm = FakeSacct(job(1, NOW - 700, NOW - 700, None, State="RUNNING", AdminComment=comment))
    ingest(ledger, slurm)
    with ledger.transaction() as connection:
        assert load_uses(connection) == []
    slurm.jobs = [job(1, NOW - 700, NOW - 700, NOW - 100, AdminComment=comment)]
    ingest(ledger, slurm)
    with ledger.transaction() as connection:
        assert len(load_uses(connection)) == 2


@pytest.mark.parametrize(("seconds", "source", "permille"), [(480, "exporter", 800),
                                                              (240, "jobstats", 493)])  # fmt: skip
def test_samples_of_more_than_half_of_a_run_go_before_a_summary(
    file_ledger, seconds, source, permille
):
    """The summary says nothing of what it covers; it went before samples of 98 % of the run."""
    start, end = NOW - 700, NOW - 100
    slurm = FakeSacct(job(1, start, start, end, AdminComment=blob(SUMMARY)))
    gpus = [use_of(start=start, gpu=GpuName(f"GPU-{n}", "", n)) for n in range(2)]
    ingest(file_ledger, FakeSacct(job(1, start, start, None, State="RUNNING")))
    store_running(file_ledger, *((use, steady(start, seconds)) for use in gpus))
    ingest(file_ledger, slurm)
    with file_ledger.transaction() as connection:
        update_measured_use(connection, link_ended_runs(connection))
    (run,) = runs_of(file_ledger)
    assert run.gpu_used_permille == permille
    (shown,) = read.gpu_use_of(file_ledger, "1")
    assert {gpu.source for gpu in shown.gpus} == {source}
    # jobstats knows no energy, so that of the samples counts also where it knows the use.
    assert (run.gpu_energy_joules is not None) == (source == "exporter")
