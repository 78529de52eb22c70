"""One person's jobs: what is asked for, and what it is put together from."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from queue_lines import job_records

from slurmkit.cluster.my_jobs import read_my_ended, read_my_jobs, read_my_queue, with_ended
from slurmkit.errors import DatabaseDown
from slurmkit.testing import FakeSlurm, squeue_text

HELD = "     Nodes=c1 CPU_IDs=0 Mem=1024 GRES=gpu:a100:2(IDX:{})\n"
ENDED = "9 9 alice vision gpu COMPLETED c1 gres/gpu=2 00:01:00 10 20 80 0:0 old"
DEFAULTS = {
    "UserName": "alice",
    "NumCPUs": "8",
    "tres-alloc": "cpu=8,node=1,gres/gpu=2,gres/gpu:a100=2",
    "PriorityLong": "1",
    "StartTime": "1699993000",
    "TimeUsed": "1:00",
    "TimeLimit": "10:00",
    "NodeList": "c1",
}


class Cluster:
    """Some running jobs of alice's, and one that ended."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.down = False
        answers = {"squeue": self._squeue, "scontrol": self._scontrol, "sacct": self._sacct}
        self.slurm = FakeSlurm(answers)

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        ids = (str(number) for number in range(100, 100 + self.jobs))
        return squeue_text(argv, [{**DEFAULTS, "JobArrayID": each, "JobID": each} for each in ids])

    def _scontrol(self, argv: Sequence[str], stdin: str | None) -> str:
        asked = [line.removeprefix("show job ") for line in (stdin or "").splitlines()]
        jobs = "".join(f"JobId={n} JobName=x\n{HELD.format(n)}\n" for n in asked)
        return job_records(jobs, stdin)

    def _sacct(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.down:
            raise DatabaseDown("slurmdbd does not answer")
        mark = next(a for a in argv if a.startswith("--delimiter=")).partition("=")[2]
        again = ENDED.replace("9 9", "100 100").replace("COMPLETED", "REQUEUED")
        rows = [ENDED, again]
        return "".join(mark.join([*row.split(), ""]) + "\n" for row in rows)


@pytest.mark.parametrize("jobs", [0, 1, 9])
def test_the_indices_of_all_jobs_are_one_question(jobs: int) -> None:
    cluster = Cluster(jobs)
    mine = read_my_jobs(cluster.slurm, "alice")
    assert mine.indices == {str(n): {"c1": [n]} for n in range(100, 100 + jobs)}
    assert sum(argv[0] == "scontrol" for argv in cluster.slurm.asked) == (jobs > 0)
    assert all("--user=alice" in argv for argv in cluster.slurm.asked if argv[0] != "scontrol")


def test_what_ended_and_is_not_in_the_queue_any_more() -> None:
    mine = read_my_jobs(Cluster(2).slurm, "alice")
    assert [run.job_id for run in mine.ended] == ["9"]
    assert mine.without_history == ""


def test_without_slurmdbd_the_queue_is_there() -> None:
    cluster = Cluster(2)
    cluster.down = True
    mine = read_my_jobs(cluster.slurm, "alice")
    assert len(mine.rows) == 2
    assert mine.ended == ()
    assert mine.without_history == "slurmdbd does not answer"


def test_the_queue_alone_is_one_squeue_and_what_ended_one_sacct() -> None:
    cluster = Cluster(2)
    queue = read_my_queue(cluster.slurm, "alice")
    assert {argv[0] for argv in cluster.slurm.asked} == {"squeue"}
    assert ([row.raw_id for row in queue.rows], queue.indices) == (["100", "101"], {})
    cluster.slurm.asked.clear()
    ended = read_my_ended(cluster.slurm, "alice")
    assert {argv[0] for argv in cluster.slurm.asked} == {"sacct"}
    assert [run.job_id for run in with_ended(queue, ended).ended] == ["9"]
    cluster.down = True
    missing = with_ended(queue, read_my_ended(cluster.slurm, "alice"))
    assert (missing.rows, missing.without_history) == (queue.rows, "slurmdbd does not answer")
