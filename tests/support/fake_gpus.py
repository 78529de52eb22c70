"""A cluster whose nodes and GPUs are those that a real one printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fake_queue import CONFIG, NOW
from queue_lines import job_records
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.options import AppOptions

from slurmkit.cluster.cluster import Cluster
from slurmkit.testing import FakeSlurm, squeue_text

RECORDED = Path(__file__).parents[1] / "recorded" / "24.11"
MARK = "\x1frecorded"


def recorded(name: str) -> str:
    return (RECORDED / f"gpus-{name}.txt").read_bytes().decode()


class Recorded:
    """What was printed, and what was asked.

    Attributes:
        level: AdminLevel of the person at the screen.
    """

    def __init__(self, level: str = "None") -> None:
        self.level = level
        self.slurm = FakeSlurm(
            {
                "scontrol": self._scontrol,
                "squeue": self._squeue,
                "sacct": lambda *_: "",
                "sacctmgr": lambda *_: self.level + "|",
            }
        )

    def app(self, view: str, **options: object) -> SlurmkitApp:
        """The app of alice with one of the views."""
        given = {"clock": lambda: NOW + 3, "view": view, **options}
        return SlurmkitApp(LiveFeed(Cluster(self.slurm), "alice"), AppOptions(**given))

    def _scontrol(self, argv: Sequence[str], stdin: str | None) -> str:
        if "config" in argv:
            return CONFIG
        if "update" in argv:
            return ""
        return recorded("nodes") if argv[-1] == "node" else job_records(recorded("jobs"), stdin)

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        if "--all" not in argv:  # the queue, not the jobs that hold nodes
            return squeue_text(argv, [])
        return recorded("squeue").replace(MARK, argv[-1].rpartition(":")[2])
