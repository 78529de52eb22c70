"""A plan and a submit read each configuration file once: all that they say rests on the same."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from planner_lab import Lab
from recorded_lab import slurm

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.config.files import load_section, one_configuration
from slurmkit.config.prices import CpuSettings

OPENED: Counter[str] = Counter()


def count_opened(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and arguments[1] == "r":
        OPENED[str(arguments[0])] += 1


sys.addaudithook(count_opened)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("slurmkit.cli.submit.Cluster", lambda: Lab(slurm()))
    (tmp_path / "slurmkit").mkdir()
    return tmp_path / "slurmkit" / "config.toml"


@pytest.mark.parametrize("gpus", ["a100:2", "a100:9"])
@pytest.mark.parametrize("command", ["plan", "submit"])
def test_each_configuration_file_is_opened_once(command: str, gpus: str, config: Path) -> None:
    config.write_text('[submit]\nbackend = "commands"\n', "utf-8")
    for times in (1, 2):  # the second command reads it anew
        done = run_to_exit_code(cli, [command, "--gpus-per-node", gpus, "--time", "1", "--", "x"])
        assert done == (2 if gpus == "a100:9" else 0)
        assert OPENED[str(config)] == times


def test_what_changes_meanwhile_counts_afterwards(config: Path) -> None:
    config.write_text("[cpu]\nprices = []\n", "utf-8")
    with one_configuration():
        assert load_section("cpu", CpuSettings).prices == ()
        config.write_text("[cpu]\nprices = 5\n", "utf-8")
        with one_configuration():
            assert load_section("cpu", CpuSettings).prices == ()
        assert load_section("cpu", CpuSettings).prices == ()
    with pytest.raises(Exception, match="prices"):
        load_section("cpu", CpuSettings)
