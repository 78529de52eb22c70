"""Whose a GPU is on which an exporter sees no job: only where slurmctld leaves no doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_sacct import job, lately
from gpu_lab import JobsAndRuns, Nodes, gpu_page, page_of
from slurmkit_accounting.gpu_use.collect import GpuUseCollector
from slurmkit_accounting.gpu_use.exporters import ExporterAddress, Exporters
from slurmkit_accounting.gpu_use.holders import GpuHolders
from slurmkit_accounting.gpu_use.samples import GpuName, parse_page
from slurmkit_accounting.gpu_use.store import link_ended_runs, load_uses
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.steps import update_measured_use
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.schema.runs import runs
from sqlalchemy import select

from slurmkit.errors import NoSuchJob, SlurmError
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.state.gpumap import JOBS_COMMAND
from slurmkit.state.gres import read_holding_jobs

START = lately() - 700
NODE = (
    "NodeName={} CoresPerSocket=8 CPUAlloc=4 CPUEfctv=16 CPUTot=16 CPULoad=0.5"
    " Gres=gpu:a100:4,shard:16,mps:400 GresUsed={} RealMemory=1000 AllocMem=10 Sockets=2"
    " State=MIXED ThreadsPerCore=1 TmpDisk=0 Partitions=gpu"
    " CfgTRES=cpu=16,mem=1000M,gres/gpu=4,gres/mps=400,gres/shard=16 AllocTRES=cpu=4\n"
)
# What follows a job's name where scontrol prints a job, so that more of it looks like other jobs.
NEXT = "   Command=(null)\n\nJobId={} JobName=x\n"
HELD = "     Nodes=c1 CPU_IDs=0 Mem=1 GRES={}\n"


class Site(JobsAndRuns):
    """A cluster with four GPUs a node, whose slurmctld says who holds which.

    Attributes:
        used: GresUsed of each node.
        records: what `scontrol show job` prints of each job.
        names: name of each job, if it is not `x`.
        pages: the page of each node.
    """

    def __init__(self, *jobs: dict[str, Any]) -> None:
        super().__init__(*jobs)
        self.used = {"c1": "gpu:a100:4(IDX:0-3)", "c2": "gpu:a100:4(IDX:0-3)"}
        self.records: dict[int, str] = {}
        self.pages: dict[str, str] = {}
        self.holders = GpuHolders(self)
        self._answers["scontrol"] = self._say

    def hold(
        self, job: int, gres: str, node: str = "c1", start: int = START, name: str = "x", **other
    ) -> None:
        """Let a job run that holds `gres` on one node, e.g. `gpu:a100:2(IDX:0-1)`."""
        kind, *_, count = gres.partition("(")[0].split(":")
        self.run_job(job, node, start, f"cpu=1,gres/{kind}={count}", **other)
        self.records[job] = (
            f"JobId={job} JobName={name}\n   UserId=u(1)\n"
            f"     Nodes={node} CPU_IDs=0 Mem=1 GRES={gres}\n   Command=(null)\n\n"
        )

    def end(self, job: int) -> None:
        self.running = [each for each in self.running if each[0] != job]
        del self.records[job]

    def look(self, *, after: Any = lambda: None) -> set[tuple[str, int | None, int]]:
        """Run a round; return node, index and job of each reading.

        Args:
            after: is called when the pages were read.
        """
        jobs = read_holding_jobs(self)
        pages = {
            node: parse_page(page_of(node, page), START + 30.0) for node, page in self.pages.items()
        }
        after()
        found = self.holders.add_readings(pages, jobs)
        return {
            (node, reading.gpu.index, reading.job)
            for node, page in found.items()
            for reading in page.readings
        }

    def looks(self) -> set[tuple[str, int | None, int]]:
        """Run two rounds; return what the second finds."""
        self.look()
        return self.look()

    def _say(self, argv: Sequence[str], stdin: str | None) -> str:
        if argv[-1] == "config":
            return self._scontrol(argv, stdin)
        if argv[-1] == "node":
            return "".join(NODE.format(*node) for node in self.used.items())
        if stdin is None:
            return "".join(self.records.values())
        words = [command.split() for command in stdin.splitlines()]
        return "".join(
            self.records[int(name)] if what == "job" else f"{name}\n" for _, what, name in words
        )


def gpu(index: int | None, *jobs: int, **values: Any) -> str:
    return gpu_page(*jobs, gpu=GpuName(f"GPU-{index}", "", index), **values)


def idle(*indices: int) -> str:
    return "".join(gpu(index, busy=0) for index in indices)


@pytest.fixture
def site() -> Site:
    return Site()


def test_slurmctld_says_whose_an_idle_gpu_is(site):
    site.hold(7, "gpu:a100:2(IDX:1-2)")
    site.pages = {"c1": idle(0, 1, 2, 3), "c2": idle(0)}
    assert site.look() == {("c1", 1, 7), ("c1", 2, 7)}


def test_scontrol_is_asked_only_when_other_jobs_are_on_the_node(site):
    site.hold(7, "gpu:a100:2(IDX:1-2)")
    site.pages = {"c1": idle(0, 1, 2, 3)}

    def asked(how_often: int) -> int:
        before = [tuple(argv) for argv in site.asked]
        for _ in range(how_often):
            site.look()
        return sum(argv[0] == "scontrol" for argv in site.asked[len(before) :])

    assert asked(5) == 2  # about the nodes, and about the job
    site.hold(8, "gpu:a100:1(IDX:0)")
    assert asked(5) == 2
    assert site.look() == {("c1", 0, 8), ("c1", 1, 7), ("c1", 2, 7)}
    assert list(JOBS_COMMAND) not in site.asked


def test_nothing_is_asked_where_pages_name_all_jobs(site):
    site.hold(7, "gpu:a100:2(IDX:1-2)")
    site.hold(8, "shard:2(IDX:0)")
    site.pages = {"c1": gpu(0, 8) + gpu(1, 7) + gpu(2, 7) + idle(3), "c2": idle(0)}
    site.looks()
    assert {argv[0] for argv in site.asked} == {"squeue"}
    assert len(site.asked) == 2


def test_a_forged_page_of_another_node_hides_no_idle_gpu(site):
    site.hold(7, "gpu:a100:1(IDX:1)")
    site.hold(8, "gpu:a100:1(IDX:0)", "c2")
    site.pages = {"c1": idle(0, 1), "c2": gpu(0, 7) + gpu(1, 7)}
    assert ("c1", 1, 7) in site.looks()


@pytest.mark.parametrize("gres", ["shard:2(IDX:0)", "mps:50(IDX:0)"])
def test_a_gpu_of_which_jobs_hold_parts_is_unknown(site, gres):
    site.used["c1"] = f"gpu:a100:1(IDX:1),{gres}"
    site.hold(7, "gpu:a100:1(IDX:1)")
    site.hold(8, gres)
    site.pages = {"c1": idle(0, 1)}
    assert site.looks() == {("c1", 1, 7)}


def test_a_gpu_that_a_job_and_a_part_of_a_job_claim_is_unknown(site):
    site.used["c1"] = "gpu:a100:2(IDX:0-1),shard:2(IDX:0)"
    site.hold(7, "gpu:a100:2(IDX:0-1)")
    site.hold(8, "shard:2(IDX:0)")
    site.pages = {"c1": idle(0, 1)}
    assert site.looks() == {("c1", 1, 7)}


def test_a_gpu_that_two_jobs_claim_is_unknown(site):
    site.hold(7, "gpu:a100:2(IDX:0-1)")
    site.hold(8, "gpu:a100:2(IDX:1-2)")
    site.pages = {"c1": idle(0, 1, 2)}
    assert site.looks() == {("c1", 0, 7), ("c1", 2, 8)}


def test_a_gpu_on_which_the_page_names_another_job_is_unknown(site):
    """Also one that Slurm does not have: its record was left, and may be of any GPU."""
    site.hold(7, "gpu:a100:2(IDX:1-2)")
    site.pages = {"c1": gpu(1, 99) + idle(2)}
    assert site.looks() == {("c1", 1, 99), ("c1", 2, 7)}


def test_an_exporter_with_other_indices_than_slurm_tells_nothing(site):
    site.hold(7, "gpu:a100:2(IDX:0-1)")
    site.hold(8, "gpu:a100:2(IDX:2-3)")
    site.pages = {"c1": gpu(3, 7) + idle(0, 1, 2)}
    assert site.looks() == {("c1", 3, 7)}
    site.used["c1"] = "gpu:a100:2(IDX:0-1)"
    site.end(8)
    assert site.looks() == {("c1", 3, 7)}  # a GPU that nobody holds


def test_a_gpu_at_work_that_nobody_holds_shows_other_indices(site):
    site.hold(7, "gpu:a100:1(IDX:0)")
    site.pages = {"c1": idle(0, 1, 2) + gpu(3, busy=0.9)}
    assert site.look() == set()


def test_a_page_of_another_node_tells_nothing(site):
    """Two names may lead to one exporter: an old address, a proxy."""
    site.hold(7, "gpu:a100:1(IDX:0)", "c2")
    site.pages = {"c2": idle(0, 1).replace('node="c1"', 'node="c9"')}
    assert site.look() == set()
    site.pages = {"c2": idle(0).replace('node="c1"', 'node="c9"') + idle(1)}
    assert site.look() == set()
    site.pages = {"c2": idle(0, 1)}
    assert site.look() == {("c2", 0, 7)}


def test_a_page_that_is_missing_now_and_then_costs_its_own_rounds_alone(site):
    site.hold(7, "gpu:a100:1(IDX:0)")
    page = idle(0, 1)
    found = []
    for pages in ({"c1": page}, {}) * 3:
        site.pages = pages
        found.append(site.look())
    assert found == [{("c1", 0, 7)}, set()] * 3
    assert sum(argv[0] == "scontrol" for argv in site.asked) == 2


def test_scontrol_is_asked_about_few_jobs_in_a_round(site):
    """All jobs of a cluster are never asked for; other nodes have their turn in later rounds."""
    nodes = [f"n{number:02}" for number in range(50)]
    for number, node in enumerate(nodes, 1):
        site.used[node] = "gpu:a100:1(IDX:0)"
        site.hold(number, "gpu:a100:1(IDX:0)", node)
        site.pages[node] = idle(0, 1)
    assert [len(site.look()) for _ in range(4)] == [20, 40, 50, 50]
    assert list(JOBS_COMMAND) not in site.asked


def test_a_job_that_ends_while_scontrol_is_asked_costs_a_round(site):
    site.hold(7, "gpu:a100:1(IDX:0)")
    site.pages = {"c1": idle(0, 1)}
    answer = site._answers["scontrol"]

    def gone(argv: Sequence[str], stdin: str | None) -> str:
        if stdin is not None:
            raise NoSuchJob("7")
        return answer(argv, stdin)

    site._answers["scontrol"] = gone
    assert site.look() == set()
    site._answers["scontrol"] = answer
    assert site.look() == {("c1", 0, 7)}


def test_gpus_that_slurm_only_counts_are_unknown(site):
    site.used["c1"] = "gpu:a100:2"
    site.hold(7, "gpu:a100:2")
    site.pages = {"c1": idle(0, 1)}
    assert site.looks() == set()


def test_a_mig_instance_has_its_own_index(site):
    """The GPU around it has none."""
    site.hold(7, "gpu:1g.10gb:1(IDX:1)")
    one = gpu_page(gpu=GpuName("GPU-0", "", 1, "MIG-1"), busy="NaN")
    site.pages = {"c1": gpu_page(gpu=GpuName("GPU-0", "", None), busy=0) + one}
    assert site.looks() == {("c1", 1, 7)}


def test_a_job_that_starts_after_the_page_was_read_has_nothing_of_it(site):
    site.hold(7, "gpu:a100:1(IDX:0)")
    site.pages = {"c1": idle(0, 1)}
    site.looks()
    found = site.look(after=lambda: site.hold(8, "gpu:a100:1(IDX:1)"))
    assert found == {("c1", 0, 7)}
    assert site.look() == {("c1", 0, 7), ("c1", 1, 8)}


def test_nobody_is_shown_the_gpu_of_who_came_next(site):
    """Job 7 ends and job 8 is given its GPU, before the page is read or after."""
    site.hold(7, "gpu:a100:1(IDX:0)")
    site.pages = {"c1": idle(0)}
    assert site.looks() == {("c1", 0, 7)}

    def change() -> None:
        site.end(7)
        site.hold(8, "gpu:a100:1(IDX:0)")

    assert site.look(after=change) == set()
    assert site.look() == {("c1", 0, 8)}


def test_a_job_that_was_requeued_holds_other_gpus(site):
    site.hold(7, "gpu:a100:1(IDX:0)")
    site.pages = {"c1": idle(0, 1)}
    assert site.looks() == {("c1", 0, 7)}

    def requeue() -> None:
        site.end(7)
        site.hold(7, "gpu:a100:1(IDX:1)", start=START + 100)

    assert site.look(after=requeue) == set()
    assert site.look() == {("c1", 1, 7)}


def test_a_job_that_was_requeued_to_the_same_gpu_is_another_run(site):
    site.hold(7, "gpu:a100:1(IDX:0)")
    site.pages = {"c1": idle(0)}
    assert site.looks() == {("c1", 0, 7)}

    def requeue() -> None:
        site.end(7)
        site.hold(7, "gpu:a100:1(IDX:0)", start=START + 100)

    assert site.look(after=requeue) == set()


def test_a_job_that_gave_gpus_back_does_not_hold_them(site):
    site.hold(7, "gpu:a100:2(IDX:0-1)")
    site.pages = {"c1": idle(0, 1)}
    assert site.looks() == {("c1", 0, 7), ("c1", 1, 7)}

    def resize() -> None:
        site.end(7)
        site.hold(7, "gpu:a100:1(IDX:1)")

    assert site.look(after=resize) == set()
    assert site.look() == {("c1", 1, 7)}


@pytest.mark.parametrize(
    "forged",
    [
        HELD.format("gpu:a100:1(IDX:0)"),
        NEXT.format(8) + HELD.format("gpu:a100:1(IDX:0)") + NEXT.format(8),
        NEXT.format(8) + HELD.format("gpu:a100:1(IDX:3)") + NEXT.format(10),
        NEXT.format(7) + HELD.format("gpu:a100:2(IDX:2-3)") + NEXT.format(10),
    ],
    ids=["a line", "before", "instead", "another"],
)
def test_a_forged_name_gives_nobody_a_gpu_of_others(site, forged):
    """Job 7 holds GPUs 0 and 1, job 8 forges, and job 9 holds GPU 3."""
    site.hold(7, "gpu:a100:2(IDX:0-1)")
    site.hold(8, "gpu:a100:1(IDX:2)", name=f"x\n{forged}")
    site.hold(9, "gpu:a100:1(IDX:3)")
    site.pages = {"c1": idle(0, 1, 2, 3)}
    found = site.looks()
    assert found <= {("c1", 0, 7), ("c1", 1, 7), ("c1", 2, 8), ("c1", 3, 9)}
    assert found


class Lab:
    """Job 7 holds two GPUs on c1 and on c2 from START on, and runs steps on c1 only."""

    def __init__(self, ledger: Any) -> None:
        self.ledger = ledger
        self.facts = {
            "NodeList": "c[1-2]", "AllocNodes": 2, "AllocTRES": "cpu=4,gres/gpu=4,node=2",
        }  # fmt: skip
        self.slurm = Site(job(7, START - 5, START, None, State="RUNNING", **self.facts))
        self.slurm.hold(7, "gpu:a100:2(IDX:0-1)", "c[1-2]")
        self.slurm.running = [(7, "c[1-2]", START, "gres/gpu=4", "RUNNING")]
        ingest(ledger, self.slurm)
        self.nodes = Nodes()
        source = Exporters(ExporterAddress("", "", 1), self.nodes)
        slurm: SlurmCommands = self.slurm
        self.collector = GpuUseCollector(
            open_for_writing, slurm, source, interval=30, keep_days=400
        )

    def rounds(self, begin: int, end: int) -> set[str]:
        said = set()
        for at in range(begin, end, 30):
            self.nodes.at = float(at)
            busy = gpu(0, 7) + gpu(1, 7)
            self.nodes.pages = {"c1": busy, "c2": idle(0, 1).replace("GPU-", "GPU-2")}
            said.add(self.collector.run("lab", at))
        return said

    def samples(self) -> dict[tuple[str, int | None], int]:
        with self.ledger.transaction() as connection:
            return {(use.node, use.gpu.index): use.samples for use in load_uses(connection)}


def test_gpus_on_a_node_without_a_step_are_idle_in_the_ledger(ledger):
    lab = Lab(ledger)
    assert lab.rounds(START + 30, START + 601) == {""}
    assert lab.samples() == {("c1", 0): 20, ("c1", 1): 20, ("c2", 0): 20, ("c2", 1): 20}
    lab.slurm.running = []
    lab.slurm.jobs = [job(7, START - 5, START, START + 600, **lab.facts)]
    ingest(ledger, lab.slurm)
    with ledger.transaction() as connection:
        update_measured_use(connection, link_ended_runs(connection))
        run = connection.execute(select(runs)).one()
    assert run.gpu_used_permille == pytest.approx(400, abs=15)
    assert run.gpu_idle_seconds == pytest.approx(2 * 600, abs=40)


def test_without_an_answer_of_scontrol_the_named_jobs_are_measured(ledger):
    lab = Lab(ledger)
    answer = lab.slurm._answers["scontrol"]

    def fail(argv: Sequence[str], stdin: str | None) -> str:
        raise SlurmError("slurmctld is busy")

    lab.slurm._answers["scontrol"] = fail
    (said,) = lab.rounds(START + 30, START + 91)
    assert said.endswith("see no job is unknown: slurmctld is busy")
    assert lab.samples() == {("c1", 0): 3, ("c1", 1): 3}
    lab.slurm._answers["scontrol"] = answer
    assert lab.rounds(START + 120, START + 181) == {""}
    assert lab.samples() == {("c1", 0): 6, ("c1", 1): 6, ("c2", 0): 3, ("c2", 1): 3}
