"""What jobs use of what they hold, from their steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmkit.errors import DatabaseDown
from slurmkit.jobs.steps import (
    Efficiency,
    StepMetrics,
    StepUse,
    array_shares,
    compute_efficiencies,
    merge_live_use,
    parse_sacct,
    parse_sstat,
    read_user_efficiency,
)
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded" / "24.11"
JOB = StepUse(step_id="9", raw_id="9", state="RUNNING", cpus=4, elapsed=100, mem_asked=1000.0)


def step(name: str, use: StepMetrics, state: str = "RUNNING", elapsed: int = 100) -> StepUse:
    return StepUse(step_id=f"9.{name}", raw_id=f"9.{name}", state=state, elapsed=elapsed, use=use)


def test_recorded_jobs() -> None:
    live = parse_sstat((RECORDED / "uses-sstat.txt").read_text())
    rows = parse_sacct((RECORDED / "uses-running.txt").read_text(), "\x1frecorded")
    found = compute_efficiencies(merge_live_use(rows, live))
    assert set(found) == {rows[0].raw_id}  # the task's own number, not the array's
    one = found[rows[0].raw_id]
    assert one.cpu_used == pytest.approx(17.004)
    assert one.cpu_had == 2.0 * (rows[0].elapsed or 0)
    assert (one.mem_used, one.mem_had) == (11673600, 2**31)


def test_steps_are_added_up_and_memory_is_that_of_the_largest() -> None:
    steps = [
        step("batch", StepMetrics(1, 10.0, 100.0)),
        step("extern", StepMetrics()),
        step("0", StepMetrics(4, 190.0, 700.0), "COMPLETED"),
        step("1", StepMetrics(), "COMPLETED", elapsed=0),
        step("2", StepMetrics(4, 40.0, 300.0)),
    ]
    assert compute_efficiencies([JOB, *steps]) == {"9": Efficiency(240.0, 400.0, 700.0, 1000.0)}


@pytest.mark.parametrize(
    "steps", [[], [step("0", StepMetrics()), step("1", StepMetrics(1, 5.0, 6.0))]]
)
def test_what_is_not_known_of_one_step_is_not_known_of_the_job(steps: list[StepUse]) -> None:
    assert compute_efficiencies([JOB, *steps]) == {"9": Efficiency(None, 400.0, None, 1000.0)}


def test_tasks_together() -> None:
    one, other = Efficiency(10.0, 20.0, 5.0, 10.0), Efficiency(0.0, 20.0, 9.0, 10.0)
    assert array_shares([one, other]) == (0.25, 0.9)
    assert array_shares([one, None]) == (None, None)
    assert array_shares([]) == (None, None)


def test_without_slurmdbd_it_is_an_error() -> None:
    def down(argv, stdin):
        raise DatabaseDown("slurmdbd does not answer")

    slurm = FakeSlurm({"sacct": down})
    with pytest.raises(DatabaseDown):
        read_user_efficiency(slurm, "alice")
    assert "--user=alice" in slurm.asked[0]
