"""Every test of the app starts from the same surroundings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fake_queue import NOW

from slurmkit.state import gpumap as gpus
from slurmkit.state import nodes, queue


@pytest.fixture(autouse=True)
def still_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """squeue is always asked at the same moment and takes no time; no variable sets a colour."""
    clock = SimpleNamespace(time=lambda: NOW, perf_counter=lambda: 0.0)
    for module in (queue, gpus, nodes):
        monkeypatch.setattr(module, "time", clock)
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_COLOR_SYSTEM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
