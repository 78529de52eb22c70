"""The steps on a job's screen: their exit codes are whole where Slurm tells them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from slurmkit_tui.feed.kinds import QUESTION_KINDS, ClusterReader

from slurmkit.cluster.cluster import Cluster
from slurmkit.testing import FakeSlurm, sacct_text


def test_the_steps_of_one_job_have_whole_codes() -> None:
    """The tab showed `1 or 129`."""
    code = {"status": ["ERROR"], "return_code": {"number": 129}}
    known = {"job_id": 7, "exit_code": code, "steps": [{"step": {"id": "7.0"}, "exit_code": code}]}

    def sacct(argv: Sequence[str], _: str | None) -> str:
        if "--json" in argv:
            return json.dumps({"jobs": [known]})
        return sacct_text(
            argv, [{"JobID": each, "State": "FAILED", "ExitCode": "1:0"} for each in ("7", "7.0")]
        )

    slurm = FakeSlurm({"sacct": sacct}, release="24.11.5")
    asker = ClusterReader(Cluster(slurm), "alice")
    read = QUESTION_KINDS["steps"].read
    assert [row.exit_code for row in read(asker, "7").rows] == ["1 or 129", "129:0"]
    assert ["sacct", "--json", "--jobs=7"] in slurm.asked
    slurm.asked.clear()
    read(asker, "7", "8")
    assert len(slurm.asked) == 1
