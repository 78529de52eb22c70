"""Scenes of `slurmkit ssh-config` for the tests of `--json`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurmkit.interactive.ssh_profile import SshProfile, with_keeper
from slurmkit.spec.jobfile import format_job_file
from slurmkit.spec.jobspec import JobSpec

SCENES: dict[str, Callable[[pytest.MonkeyPatch, Path], Sequence[str]]] = {}


def _of_profiles(patch: pytest.MonkeyPatch, folder: Path) -> Sequence[str]:
    """One profile, whose job runs."""
    profile = SshProfile("gpu", "lab", folder)
    spec = with_keeper(JobSpec(command=("x",)), profile, 30)
    profile.job_file.write_text(format_job_file(spec), "utf-8")
    known = SimpleNamespace(cluster_name="lab")
    cluster = SimpleNamespace(capabilities=lambda: known, slurm=None)
    row = SimpleNamespace(raw_id="12", state="RUNNING", node_list="c1")
    patch.setattr("slurmkit.cli.ssh.Cluster", lambda: cluster)
    patch.setattr("slurmkit.cli.ssh.load_profiles", lambda _: [profile])
    patch.setattr("slurmkit.cli.ssh.find_job", lambda *_: row)
    return ()


SCENES["ssh-config"] = _of_profiles
