"""What workers tell the app; the app's handlers own everything that changes."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from slurmkit.errors import SlurmkitError
from slurmkit.jobs.info import JobInfo
from slurmkit_tui.snapshot import Snapshot


class QueueRead(Message):
    """squeue answered."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot


class QueueUnread(Message):
    """squeue did not answer, after `took` seconds."""

    def __init__(self, error: SlurmkitError, took: float) -> None:
        super().__init__()
        self.error = error
        self.took = took


class JobRead(Message):
    """Facts of the job that was asked for, or why there are none."""

    def __init__(self, key: str, found: JobInfo | SlurmkitError) -> None:
        super().__init__()
        self.key = key
        self.found = found


class CommandRun(Message):
    """A confirmed command has ended; `error` is why it failed, None when it did not."""

    def __init__(self, argv: Sequence[str], error: SlurmkitError | None) -> None:
        super().__init__()
        self.argv = argv
        self.error = error
