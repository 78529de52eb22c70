"""A run beside the earlier runs of its name: which measured facts differ, and what is unknown."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from gpu_lab import steady, use_of
from jobs_lab import FakeJobs
from slurmkit_accounting import read
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.remote.served import find_remote_function
from slurmkit_accounting.reports.question import Scope
from slurmkit_plugins.ledger import LedgerGpus
from stored_runs import TRES, ran, store_runs

from slurmkit.cluster.cluster import Cluster
from slurmkit.diagnose.compared_runs import compare_runs
from slurmkit.diagnose.explain import explain
from slurmkit.diagnose.model import RunComparison
from slurmkit.diagnose.render import explanation_lines
from slurmkit.errors import BadInput

DAY = 86400
NOW = int(time.time()) - 5 * DAY
USED: dict[str, object] = {
    "uid": 10001, "gpu_used_permille": 900, "gpu_energy_joules": 600 * 2 * 300,
    "cpu_used_ms": 1_200_000, "mem_peak_mib": 4000,
}  # fmt: skip


def earlier(number: int, **other: object) -> dict[str, object]:
    """A run of ten minutes that many days ago, its GPUs at 90 % and 300 W."""
    return ran(NOW - number * DAY, 600, **USED | other)


def compared(job: str, elapsed: float | None = None, **read_bytes: float) -> RunComparison:
    found = LedgerGpus().read_beside_earlier(job)
    by_job = {int(name.removeprefix("job")): size for name, size in read_bytes.items()}
    return compare_runs(found, elapsed, by_job, "ledger")


def facts(found: RunComparison) -> dict[str, tuple[str, str, bool | None]]:
    return {each.about: (each.now, each.earlier, each.differs) for each in found.facts}


def test_a_slower_run_names_what_differs_and_by_how_much(file_ledger: Any) -> None:
    slow = {"gpu_used_permille": 450, "gpu_energy_joules": 900 * 2 * 180, "node_list": "c2"}
    store_runs(
        file_ledger,
        earlier(3),
        earlier(2, end=NOW - 2 * DAY + 660),
        earlier(1, node_list="c3"),
        ran(NOW, 900, **USED | slow | {"cpu_used_ms": 1_800_000}),
    )
    found = compared("4")
    assert found.earlier == ("3", "2", "1")
    assert found.is_slower
    assert found.longer == pytest.approx(0.5)
    assert found.text == (
        "it took 15 min, 50 % longer than the median of its 3 earlier runs (10 min; 10 min to 11"
        " min); what differs: GPU use 45% (before: 90%), power of a GPU 180 W (before: 273 W to"
        " 300 W), node c2 (before: c1, c3)"
    )
    # Data read and throttling are nowhere in the ledger; the rest is as it was.
    assert {name for name, fact in facts(found).items() if fact[2] is None} == {
        "throttling", "data read",
    }  # fmt: skip
    assert facts(found)["busy CPUs"] == ("2.0", "1.8 to 2.0", False)
    assert facts(found)["GPUs held"] == ("2 a100", "2 a100", False)


def test_only_completed_runs_of_this_person_and_name_in_the_last_30_days_count(
    file_ledger: Any,
) -> None:
    later = ran(NOW + 3600, 60, **USED)
    store_runs(
        file_ledger,
        earlier(1, state="FAILED"),
        earlier(2, name="other"),
        earlier(3, user="bob"),
        earlier(31),
        earlier(4, retracted=1),
        later,
        earlier(1, job_id="8_1", job_id_raw=71),
        ran(NOW, 900, **USED, job_id="8_2", job_id_raw=72),
    )
    found = compared("8_2")
    assert found.earlier == ()
    assert found.longer is None
    assert found.text.startswith("unknown: no run of this job name completed in the 30 days")
    with pytest.raises(BadInput, match="no such run of job 99 that you may see"):
        compared("99")
    with pytest.raises(BadInput, match="no such run of job 8_2"):
        LedgerGpus().read_beside_earlier("8_2", started=NOW + 1)


def test_only_the_newest_ten_are_compared(file_ledger: Any) -> None:
    store_runs(file_ledger, *(earlier(day) for day in range(12, 0, -1)), ran(NOW, 900, **USED))
    assert compared("13").earlier == tuple(str(number) for number in range(12, 2, -1))


def test_other_resources_and_data_read_are_facts(file_ledger: Any) -> None:
    wide = TRES.replace("cpu=4", "cpu=16").replace("mem=8G", "mem=64G")
    store_runs(
        file_ledger,
        earlier(2),
        earlier(1),
        ran(NOW, 700, **USED, partition="long", cpus=16, alloc_tres=wide),
    )
    shown = facts(compared("3", job1=2.0**30, job3=2.0**32))
    assert shown["data read"] == ("4 GiB", "1 GiB, known of 1 of 2", True)
    assert shown["CPUs held"] == ("16", "4", True)
    assert shown["memory held"] == ("64 GiB", "8 GiB", True)
    assert shown["partition"] == ("long", "gpu", True)
    assert shown["node"] == ("c1", "c1", False)


def test_what_was_not_measured_is_unknown_and_never_0(file_ledger: Any) -> None:
    bare = dict.fromkeys(USED)
    store_runs(file_ledger, earlier(1), ran(NOW, 650, **bare))
    found = compared("2")
    assert not found.is_slower
    assert "8 % longer than its earlier run (10 min); nothing else that is known differs" in (
        found.text
    )
    unknown = {each.about: each.unknown for each in found.facts if each.differs is None}
    assert unknown["GPU use"] == "of this run: not measured"
    assert {"power of a GPU", "busy CPUs", "most memory", "data read"} <= set(unknown)


@pytest.mark.parametrize(
    ("use", "differs"),
    [(900, False), (855, False), (820, False), (800, True), (999, True), (960, False)],
)
def test_a_number_differs_from_10_percent_on_and_shares_by_5_points(
    file_ledger: Any, use: int, differs: bool
) -> None:
    store_runs(file_ledger, earlier(1), ran(NOW, 600, **USED | {"gpu_used_permille": use}))
    assert facts(compared("2"))["GPU use"][2] is differs


def test_a_running_job_is_compared_by_the_samples_so_far(file_ledger: Any) -> None:
    start = int(time.time()) - 900
    nothing = dict.fromkeys(USED) | {"uid": 10001}
    tres = TRES.replace("a100=2", "a100=1").replace("gpu=2", "gpu=1")
    store_runs(
        file_ledger,
        ran(start - DAY, 600, **USED | {"gpus": 1, "gpu_energy_joules": 600 * 300}),
        ran(start, 0, **nothing | {"end": None, "state": "RUNNING", "gpus": 1, "alloc_tres": tres}),
    )
    with file_ledger.transaction() as connection:
        use = use_of(*steady(start, 600, busy=40, watts=150), start=start, job=2)
        store_uses(connection, [use], run_id=None)
    found = compared("2", elapsed=900.0)
    assert found.is_slower
    assert found.text.startswith("it has run for 15 min, 50 % longer than its earlier run (10 min)")
    assert facts(found)["GPU use"] == ("40%", "90%", True)
    unknown = {each.about: each.unknown for each in found.facts if each.differs is None}
    assert unknown["busy CPUs"] == "of this run: Slurm tells it when the job has ended"
    assert compared("2", elapsed=60.0).longer is None  # it may still take as long


def test_only_those_who_may_see_the_runs_see_them_and_the_service_says_the_same(
    file_ledger: Any,
) -> None:
    store_runs(file_ledger, earlier(2, uid=10002), earlier(1), ran(NOW, 900, **USED))
    mine = Scope(frozenset(), frozenset(), frozenset((10001,)))
    remote = find_remote_function("run_beside_earlier")
    sent = msgspec.json.encode(remote.answer(file_ledger, {"job": "3", "started": NOW}, mine))
    found = msgspec.json.decode(sent, type=remote.returns)
    assert [each.job_id for each in found.earlier] == ["2"]
    assert found == read.run_beside_earlier(file_ledger, "3", started=NOW, scope=mine)
    with pytest.raises(BadInput, match="no such run of job"):
        read.run_beside_earlier(file_ledger, "1", scope=mine)


def ended(end: int) -> Cluster:
    """Job 2, which slurmdbd has with what its step read."""
    jobs = FakeJobs()
    times = {"Start": str(NOW), "End": str(end)}
    jobs.runs = [{"JobID": "2", "State": "COMPLETED", **times}]
    jobs.steps = [
        {"JobID": "1", "JobIDRaw": "1", "State": "COMPLETED", "Start": str(NOW - DAY)},
        {"JobID": "1.0", "JobIDRaw": "1.0", "TRESUsageInTot": f"cpu=1,fs/disk={2**30}"},
        {"JobID": "2", "JobIDRaw": "2", "State": "COMPLETED", **times},
        {"JobID": "2.0", "JobIDRaw": "2.0", "TRESUsageInTot": f"cpu=1,fs/disk={2**32}"},
    ]
    return jobs.cluster()


def test_why_says_it_of_a_job_that_completed(file_ledger: Any) -> None:
    store_runs(file_ledger, earlier(1), ran(NOW, 900, **USED | {"gpu_used_permille": 450}))
    found = explain(ended(NOW + 900), "2")
    assert found.compared is not None
    assert "; it took 15 min, 50 % longer than its earlier run (10 min)" in found.answer
    assert facts(found.compared)["data read"] == ("4 GiB", "1 GiB", True)
    lines = dict(explanation_lines(found))
    assert "GPU use 45% (before: 90%)" in lines["Compared"]
    assert "node c1" in lines["As before"]
    assert "throttling: nobody keeps" in lines["Unknown"]


def test_a_ledger_that_has_not_read_the_end_says_so(file_ledger: Any) -> None:
    store_runs(file_ledger, earlier(1), ran(NOW, 900, **USED))
    found = explain(ended(NOW + 950), "2")
    assert found.compared is None
    assert found.notes[-1] == (
        "not compared with earlier runs: the ledger has no such run of job 2 that you may see; it"
        " reads new runs, and how they ended, at each ingest"
    )
