"""Record what every view and every job of one's own on this cluster shows, some times in a row.

Run on a login node: python - FILE < docs/pictures/sample.py
"""

import sys
import time
from pathlib import Path
from typing import Any

from slurmkit_tui.commands import job_argument
from slurmkit_tui.feed import Ask
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.feed.recording import RecordingFeed

from slurmkit import Cluster
from slurmkit.errors import SlurmkitError

ROUNDS, SECONDS = 6, 20
OFTEN = [Ask("queue"), Ask("mine"), Ask("gpus"), Ask("nodes")]
SELDOM = [
    Ask("site"), Ask("rights"), Ask("fairshare"), Ask("usage"), Ask("health"),
    *(Ask("utilization", (by,)) for by in ("day", "gpu-type", "partition", "account")),
]  # fmt: skip
WHOLE = 1 << 20  # bytes of a log
MOST = 8  # jobs that ended


class Recorder:
    """Asks, and passes over what has no answer."""

    def __init__(self, path: Path) -> None:
        self.feed = RecordingFeed(LiveFeed(Cluster()), path)

    def ask(self, ask: Ask) -> Any:
        """The answer's value; None where there is none."""
        try:
            return self.feed.fetch(ask).value
        except SlurmkitError as error:
            sys.stderr.write(f"{ask.what} {' '.join(ask.about)}: {error}\n")
            return None

    def jobs(self) -> list[str]:
        """All that wait or run, mine first, and some of mine that ended."""
        mine, queue = self.ask(Ask("mine")), self.ask(Ask("queue"))
        rows = [*mine.rows, *(row for row in queue.rows if row.user != self.feed.me)]
        ended = [info.job_id for info in mine.ended[:MOST]]
        return list(dict.fromkeys([*(job_argument(row.job_id) for row in rows), *ended]))

    def job(self, job_id: str, *, whole: bool) -> None:
        """What the screen of a job asks for; `whole` is with what does not change."""
        for what in ("job", "why", *(["script"] if whole else [])):
            self.ask(Ask(what, (job_id,)))
        for which in ("stdout", "stderr"):
            path = self.ask(Ask("logpath", (job_id, which)))
            if path and path != "/dev/null":
                self.ask(Ask("piece", (str(path), "0", str(WHOLE))))


def main() -> None:
    """Record."""
    recorder = Recorder(Path(sys.argv[1]))
    for number in range(ROUNDS):
        began = time.time()
        for ask in [*OFTEN, *(SELDOM if number in (0, ROUNDS - 1) else [])]:
            recorder.ask(ask)
        for job_id in recorder.jobs() if number in (0, ROUNDS - 1) else []:
            recorder.job(job_id, whole=number == 0)
        if number < ROUNDS - 1:
            time.sleep(max(0.0, SECONDS - (time.time() - began)))
    recorder.feed.close()


main()
