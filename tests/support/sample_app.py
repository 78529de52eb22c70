"""The TUI with the recording that comes with slurmkit, at its end."""

from __future__ import annotations

from contextlib import ExitStack

from slurmkit_tui.app.app import AppOptions, SlurmkitApp
from slurmkit_tui.cli import SAMPLE, _feed


def sample_app(view: str) -> SlurmkitApp:
    app = SlurmkitApp(_feed(None, SAMPLE, ExitStack()), AppOptions(view=view))
    assert app._replay
    app._replay.seek(app._replay.end)
    return app
