"""The TUI with the screen of one job, and its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fake_queue import Scene, job
from slurmkit_tui.widgets.log_view import LogView


class Logging(Scene):
    """A cluster whose only job writes a file."""

    def _scontrol(self, argv: Sequence[str], stdin: str | None) -> str:
        if "batch_script" in argv:
            return "#!/bin/bash\n#SBATCH --time=1\npython train.py '[red]'\x1b[2J\n"
        return super()._scontrol(argv, stdin)


def scene(path: Path) -> Scene:
    return Logging([job("11", UserName="alice", STDOUT=str(path))])


def view(app) -> LogView:
    return app.screen.query_one("#log", LogView)
