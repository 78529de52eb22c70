"""The alert rules: when each fires, which metrics they read, and which commands they name."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from slurmkit.cli.main import cli

HERE = Path(__file__).parent
ALERTS = HERE.parents[3] / "accounting" / "slurmkit_accounting" / "assets" / "alerts.yml"
CASES = HERE / "alerts-test.yml"
TEXT = ALERTS.read_text("utf-8")
NAMES = re.findall(r"- alert: (\w+)", TEXT)


@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed; it is in Debian's package prometheus",
)
def test_each_alert_fires_when_it_should() -> None:
    for command in (["check", "rules", str(ALERTS)], ["test", "rules", str(CASES)]):
        done = subprocess.run(["promtool", *command], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 13
    fired = re.findall(r"alertname: (\w+)\n\s+exp_alerts:", CASES.read_text("utf-8"))
    assert set(fired) == set(NAMES)


def test_each_alert_reads_a_metric_that_there_is() -> None:
    folder = ALERTS.parents[1] / "service"
    source = (folder / "metrics.py").read_text("utf-8")
    source += (folder / "left_metrics.py").read_text("utf-8")
    made = {f"slurmkit_ledger_{name}" for name in re.findall(r'\{_PREFIX\}(\w+)"', source)}
    read = {name.removesuffix("_total") for name in re.findall(r"\bslurmkit_ledger_\w+", TEXT)}
    assert read <= made


@pytest.mark.parametrize("line", sorted(set(re.findall(r"action: (slurmkit .+)", TEXT))))
def test_each_command_that_an_alert_names_is_one(line: str) -> None:
    words = line.split()[1:]
    command, context = cli, cli.make_context("slurmkit", list(words))
    while words:
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        context = found.make_context(
            name or "", list(words), parent=context, resilient_parsing=True
        )
        if not hasattr(found, "resolve_command"):
            assert words == []
            return
        command = found
    pytest.fail(f"{line} is only a group")
