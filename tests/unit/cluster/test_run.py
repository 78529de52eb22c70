"""`Cluster.run`: a job planned and sent in one."""

from __future__ import annotations

import pytest
from recorded_lab import capabilities, slurm, standing

from slurmkit.cluster.cluster import Cluster, PlanRefused
from slurmkit.errors import BadInput
from slurmkit.spec.jobspec import JobSpec
from slurmkit.testing import FakeSlurm

TOO_LONG = JobSpec(command=("true",), partition="short", time="1-00:00:00")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm as recorded; alice asks."""
    monkeypatch.setattr(Cluster, "capabilities", lambda *_, **__: capabilities())
    monkeypatch.setattr(Cluster, "standing", lambda *_: standing())
    return slurm()


def sent(known: FakeSlurm) -> list[list[str]]:
    return [argv for argv in known.asked if argv[0] == "sbatch" and "--test-only" not in argv]


def test_a_job_is_planned_and_sent(known: FakeSlurm) -> None:
    spec = JobSpec(command=("hostname",), partition="cpu", time="5")
    job = Cluster(known).run(spec)
    assert job.id == "7"
    assert len(sent(known)) == 1


def test_a_plan_with_errors_is_not_sent_and_names_them(known: FakeSlurm) -> None:
    with pytest.raises(PlanRefused, match="no partition 'short'") as caught:
        Cluster(known).run(TOO_LONG)
    assert isinstance(caught.value, BadInput)
    assert [finding.code for finding in caught.value.findings] == ["partition-unknown"]
    assert sent(known) == []


def test_clusters_that_are_reached_in_the_same_way_are_equal(known: FakeSlurm) -> None:
    assert {Cluster(known), Cluster(known), Cluster("")} == {Cluster(known), Cluster("")}
    assert Cluster(known) != Cluster(slurm())
