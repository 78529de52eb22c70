"""Job files that slurmkit writes: they are read as the same job."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobfile import format_job_file, load_job_file
from slurmkit.spec.jobspec import JobSpec


@pytest.mark.parametrize(
    "gpus",
    [
        None,
        Gpus(),
        Gpus(2),
        Gpus(per="task"),
        Gpus(per="job"),
        Gpus(type="a100"),
        Gpus(shard=1),
        Gpus(mps=50),
        Gpus(mig="3g.20gb"),
        Gpus(fraction=0.5),
        Gpus(bind="closest"),
    ],
)
def test_gpus_come_back(gpus: Gpus | None, tmp_path: Path) -> None:
    """One GPU per node was lost."""
    spec = JobSpec(command=("x",), time="1:00:00", gpus=gpus)
    file = tmp_path / "job.toml"
    file.write_text(format_job_file(spec), "utf-8")
    assert JobSpec(**load_job_file(file)) == spec
