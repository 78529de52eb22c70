"""What steps use, from recorded words of sacct and sstat."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmkit.errors import DatabaseDown, SlurmTimeout
from slurmkit.jobs.steps import (
    MAX_SSTAT_JOBS,
    StepMetrics,
    merge_live_use,
    parse_sacct,
    parse_sstat,
    read_step_uses,
    sacct_argv,
)
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded" / "24.11"
MARK = "\x1frecorded"
# As 22.05 and 26.05 print the same fields: the order of TRES and their units differ.
OF_OTHERS = {
    "22.05": "9.0|4|cpu=00:01:04,fs/disk=1,mem=100M,vmem=2G|cpu=1-00:04:16,fs/disk=1,mem=0.25G,"
    "vmem=2G|cpu=00:01:04,mem=100M|\n",
    "26.05": "9.0|4|cpu=00:01:04,energy=0,gres/gpumem=268435456,gres/gpuutil=91,mem=104857600|"
    "cpu=1-00:04:16,energy=0,gres/gpuutil=120,mem=268435456|"
    "cpu=00:01:04,energy=0,gres/gpumem=1,gres/gpuutil=60,mem=1|\n",
}


def recorded(name: str) -> str:
    return (RECORDED / name).read_text("utf-8")


def test_a_running_job_is_measured_by_sstat() -> None:
    live = parse_sstat(recorded("uses-sstat.txt"))
    rows = merge_live_use(parse_sacct(recorded("uses-running.txt"), MARK), live)
    job, batch, first, failed, busy = rows
    assert (job.is_allocation, job.runs, job.cpus, job.mem_asked) == (True, True, 2, 2**31)
    assert batch.step_id == f"{job.step_id}.batch"
    assert (first.state, first.exit_code, first.elapsed) == ("COMPLETED", "0:0", 0)
    assert first.cpu_efficiency is None  # of no time at all
    assert (failed.name, failed.exit_code) == ("evil\n[b]", "3:0")
    assert (busy.use.tasks, busy.nodes, busy.exit_code) == (2, 1, "")
    assert busy.use.cpu_seconds == 17
    assert busy.use.mem_peak == 3350528
    assert busy.use.gpu_percent is None
    assert busy.cpu_efficiency == pytest.approx(17 / (2 * (busy.elapsed or 0)))


def test_without_sstat_a_running_step_is_unknown_and_not_0() -> None:
    rows = parse_sacct(recorded("uses-running.txt"), MARK)
    assert [row.cpu_efficiency for row in rows if row.runs] == [None] * 3
    assert [row.use.mem_peak for row in rows if row.runs] == [None] * 3


def test_an_ended_job_is_measured_by_sacct() -> None:
    job, batch, _, _, busy = parse_sacct(recorded("uses-ended.txt"), MARK)
    assert (job.state, busy.state, busy.exit_code) == ("CANCELLED", "CANCELLED", "0:15")
    assert (batch.use.mem_peak or 0) > 10**7
    assert busy.use.cpu_seconds is not None
    assert busy.use.cpu_seconds > 5
    assert 0 < (busy.cpu_efficiency or 0) <= 1.1


@pytest.mark.parametrize(("release", "gpu", "read"), [("22.05", None, 1.0), ("26.05", 60, None)])
def test_other_releases(release: str, gpu: int | None, read: float | None) -> None:
    memory = (2.0**28, 100.0 * 2**20)
    use = StepMetrics(4, 86656.0, 2.0**28, gpu, read, *memory)
    assert parse_sstat(OF_OTHERS[release]) == {"9.0": use}


def test_absurd_and_broken_values_are_unknown() -> None:
    text = "9.0|x|mem=99999999999P|cpu=213503982334-14:25:51,mem=|gres/gpuutil=-1|\nsstat: oops\n"
    assert parse_sstat(text) == {"9.0": StepMetrics()}


def asked(sacct, sstat) -> FakeSlurm:
    return FakeSlurm({"sacct": sacct, "sstat": sstat})


def sacct_of(*jobs: str):
    def sacct(argv, stdin):
        mark = next(a for a in argv if a.startswith("--delimiter=")).removeprefix("--delimiter=")
        lines = (
            [job, job, "RUNNING", "100", "Unknown", "50", "", "1", "2", "00:00:00", "mem=1G",
             "", "", "", "0:0", "n"]
            for job in jobs
        )  # fmt: skip
        return "".join("".join(value + mark for value in line) + "\n" for line in lines)

    return sacct


def test_sstat_is_called_once_and_for_so_many_jobs_only() -> None:
    jobs = [str(number) for number in range(1, MAX_SSTAT_JOBS + 11)]
    slurm = asked(sacct_of(*jobs), lambda *_: "")
    found = read_step_uses(slurm, jobs)
    assert len(slurm.asked) == 2
    told = next(word for word in slurm.asked[1] if word.startswith("--jobs="))
    assert len(told.split(",")) == MAX_SSTAT_JOBS
    assert "only 200 of 210 running jobs" in found.missing
    assert found.source == "sacct and sstat"


def test_a_silent_sstat_and_an_absent_slurmdbd_leave_unknowns() -> None:
    def late(argv, stdin):
        raise SlurmTimeout("sstat gave no answer in 30 s")

    def down(argv, stdin):
        raise DatabaseDown("slurmdbd does not answer")

    found = read_step_uses(asked(sacct_of("7"), late), ["7"])
    assert [row.use for row in found.rows] == [StepMetrics()]
    assert found.missing == "sstat gave no answer in 30 s"
    found = read_step_uses(asked(down, lambda *_: "7.0|1|||cpu=1|\n"), ["7"])
    assert [(row.step_id, row.use.tasks, row.elapsed) for row in found.rows] == [("7.0", 1, None)]
    assert found.missing == "slurmdbd does not answer"


def test_sacct_is_asked_with_explicit_fields() -> None:
    argv = sacct_argv("x", "--jobs=7")
    assert "--noconvert" in argv
    assert argv[-1].startswith("--format=JobID,JobIDRaw,")
