"""State, cache and configuration that slurmkit 0.1.0 wrote are read by this version.

`tests/recorded/record_state.py` says how the files were made. A record that cannot be read looks
like none at all: nothing else would show that a field was renamed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slurmkit_tui.jobform.draft import Draft
from slurmkit_tui.jobform.draft_store import DraftStore
from slurmkit_tui.state_files import load_choices

from slurmkit.cluster.sweeps import load_record
from slurmkit.cluster.workflow_record import WorkflowRecords
from slurmkit.config.check import inspect_configuration
from slurmkit.executor.runs import load_run
from slurmkit.jobs.backends.ssh import load_pending_submit, load_pending_submits
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.sweep import Sweep
from slurmkit.state.cache import load_cached
from slurmkit.state.model import Capabilities

RECORDED = Path(__file__).parents[2] / "recorded/state-0.1"
CLUSTER: Any = SimpleNamespace(capabilities=lambda: SimpleNamespace(cluster_name="lab"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of slurmkit 0.1.0, as a copy that belongs to this user."""
    for name, variable in (("state", "XDG_STATE_HOME"), ("cache", "XDG_CACHE_HOME")):
        shutil.copytree(RECORDED / name, tmp_path / name)
        monkeypatch.setenv(variable, str(tmp_path / name))


def test_the_record_of_an_array() -> None:
    record = load_record(CLUSTER, "12")
    assert record is not None
    assert (record.first, record.total, record.secrets) == ("12", 2, ("API_TOKEN",))
    spec = record.spec
    assert (spec.gpus, spec.nodes, spec.job_name) == (Gpus(2, "a100"), 2, "train")
    assert (spec.launch.launcher, spec.survive.on_timeout) == ("torchrun", "requeue")
    assert spec.sweep == Sweep(("lr",), (("0.1",), ("0.2",)))
    assert spec.container is not None
    assert spec.container.image == "ubuntu:24.04"


def test_the_record_of_a_workflow() -> None:
    (record,) = WorkflowRecords(CLUSTER).records()
    assert (record.token, record.name, record.phase) == ("0a1b2c3d", "nightly", "sending")
    assert record.ids == ("20", "21")
    assert (record.jobs["train"].held, record.jobs["train"].array) == (True, "0-3")


def test_the_record_of_calls() -> None:
    run = load_run("30", "lab")
    assert (run.name, run.ids, run.tasks) == ("square", ("30_0", "30_1"), ((0, 2), (1,)))


def test_a_submit_without_an_answer() -> None:
    (found,) = load_pending_submits()
    assert found == load_pending_submit("feedc0de")
    assert (found.cluster, found.name, found.since) == ("lab", "train", 1_764_000_000)


def test_what_the_tui_kept() -> None:
    choices, warning = load_choices()
    assert (choices.columns, warning) == ({"queue": ("id", "user", "gpus")}, "")
    texts = {"command": "python train.py", "time": "1:00:00"}
    assert DraftStore("lab").load() == Draft(texts, "job 12")


def test_a_cache_is_read_or_ignored_and_never_an_error() -> None:
    """A cache of an older schema is read anew from Slurm."""
    found = load_cached("capabilities", "lab", Capabilities)
    assert found is None or found.cluster_name == "lab"


def test_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMKIT_CONFIG", str(RECORDED / "config.toml"))
    report = inspect_configuration()
    assert report.problems == ()
