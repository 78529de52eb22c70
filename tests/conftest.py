"""Keep the developer's own configuration, ledger and Slurm settings out of the tests."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from examples import examples
from hypothesis import settings

from slurmkit.config.files import set_default_cluster

if TYPE_CHECKING:
    from pathlib import Path

# Timing never fails a test, and a busy machine is slow.
settings.register_profile("house", deadline=None, max_examples=examples(100))
settings.load_profile("house")


# What a shell starts in the background ignores Ctrl-C, what nohup starts a hangup, and so would all
# that the tests start: what is caught here, they begin with as anyone does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give every test a home of its own and no SLURM* variables, except what steers the suite."""
    for name in os.environ:
        steers = name.startswith(("SLURMKIT_TEST_", "SLURMKIT_REQUIRE_"))
        if name.startswith(("SLURM", "SBATCH", "SQUEUE", "SACCT")) and not steers:
            monkeypatch.delenv(name)
    set_default_cluster(None)  # what `--cluster` of an earlier test in this process chose
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name in one line what was skipped, and why."""
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in skipped
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        named = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skipped: {len(skipped)} of all tests: {named}")
