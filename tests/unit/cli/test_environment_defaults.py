"""A user's `SBATCH_*` variables as the weakest options of `slurmkit plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from planner_lab import Lab
from recorded_lab import slurm

from slurmkit.cli.job_options import sbatch_variables
from slurmkit.cli.main import cli, run_to_exit_code


@pytest.fixture(autouse=True)
def _border(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("slurmkit.cli.submit.Cluster", lambda: Lab(slurm()))


def planned(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[dict[str, str], list[str]]:
    """Options sent, and what is said of the environment."""
    assert run_to_exit_code(cli, ["plan", "--json", *args]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)["rows"][0]
    said = [note["message"] for note in made["notes"] if note["code"] == "environment"]
    return made["submissions"][0]["options"], said


@pytest.mark.parametrize(
    ("variable", "value", "option", "sent"),
    [
        ("SBATCH_ACCOUNT", "vision", "account", "vision"),
        ("SBATCH_PARTITION", "cpu", "partition", "cpu"),
        ("SBATCH_TIMELIMIT", "7", "time", "7"),
        ("SBATCH_GPUS_PER_NODE", "a100:2", "gpus-per-node", "a100:2"),
        ("SBATCH_MEM_PER_NODE", "1G", "mem", "1G"),
        ("SBATCH_REQUEUE", "yes", "requeue", ""),
        ("SBATCH_EXCLUSIVE", "exclusive", "exclusive", ""),
        ("SBATCH_WCKEY", "a", "wckey", "a"),
        ("SBATCH_OVERCOMMIT", "1", "overcommit", ""),
        ("SBATCH_THREADS_PER_CORE", "1", "threads-per-core", "1"),
        ("SBATCH_EXPORT", "NONE", "export", "NONE"),
    ],
)
def test_a_default_counts_and_is_named(
    variable: str,
    value: str,
    option: str,
    sent: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    options, said = planned(capsys, "--", "true")
    assert options[option] == sent
    assert said == [f"taken from the environment: {variable}={value}"]


def test_whatever_is_given_goes_before_a_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_TIMELIMIT", "7")
    monkeypatch.setenv("SBATCH_MEM_PER_NODE", "1G")
    given = ("--time", "1", "--mem-per-cpu", "10M")
    options, said = planned(capsys, *given, "--", "true")
    assert (options["time"], options["mem-per-cpu"], said) == ("1", "10M", [])
    assert "mem" not in options
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --time=2\ntrue\n", "utf-8")
    options, said = planned(capsys, "--script", str(script))
    assert (options["time"], options["mem"]) == ("2", "1G")
    assert "SBATCH_TIMELIMIT=7 in the environment is ignored: the script's own" in said[1]


def test_cpus_for_each_task_go_before_a_default_for_each_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `_validate_cpus_per_tres` in src/common/slurm_opt.c."""
    monkeypatch.setenv("SBATCH_CPUS_PER_GPU", "8")
    options, said = planned(capsys, "--gpus-per-node", "a100:1", "-c", "2", "--", "true")
    assert (options["cpus-per-task"], "cpus-per-gpu" in options, said) == ("2", False, [])
    options, said = planned(capsys, "--gpus-per-node", "a100:1", "--", "true")
    assert options["cpus-per-gpu"] == "8"
    assert said == ["taken from the environment: SBATCH_CPUS_PER_GPU=8"]


def test_a_binding_is_for_gpus_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_GPUS", "a100:2")
    options, said = planned(capsys, "--gpu-bind", "closest", "--time", "1", "--", "true")
    assert options["gpus-per-node"] == "a100:2"
    assert said == ["taken from the environment: SBATCH_GPUS=a100:2"]


def test_what_is_not_taken_over_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_CLUSTERS", "other")
    _, said = planned(capsys, "--time", "1", "--", "true")
    assert said == ["SBATCH_CLUSTERS in the environment is ignored; give the option itself"]


def test_a_jobs_own_variables_never_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "cpu")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    options, said = planned(capsys, "--time", "1", "--", "true")
    assert "partition" not in options
    assert said == []


def test_a_wrong_default_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SBATCH_GPUS", "-3")
    assert run_to_exit_code(cli, ["plan", "--", "true"]) == 2
    assert "SBATCH_GPUS=-3 in the environment: cannot read GPUs '-3'" in capsys.readouterr().err


def test_a_default_of_requeue_may_be_expedite() -> None:
    """Apart from the others: the recorded release refuses it."""
    (found,) = sbatch_variables({"SBATCH_REQUEUE": "expedite"})
    assert found.fields == {"requeue": "expedite"}
