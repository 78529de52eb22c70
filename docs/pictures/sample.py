"""Record what every view and every job of one's own on this cluster shows, some times in a row.

Run on a login node: python - FILE < docs/pictures/sample.py
"""

import sys
import time
from pathlib import Path
from typing import Any

from slurmkit_tui.actions.commands import query_id
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.feed.composed import SPANS
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.feed.recording import RecordingFeed
from slurmkit_tui.views.utilization import DIMENSIONS

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import SlurmkitError

ROUNDS, SECONDS = 6, 20
OFTEN = [FeedQuestion(what) for what in ("queue", "mine", "gpus", "nodes", "gpus-now")]
SELDOM = [
    FeedQuestion("site"),
    FeedQuestion("rights"),
    FeedQuestion("fairshare"),
    FeedQuestion("usage"),
    FeedQuestion("health"),
    *(FeedQuestion("utilization", (by, span)) for by in DIMENSIONS for span in SPANS),
]
WHOLE = 1 << 20  # bytes of a log
MOST = 8  # jobs that ended


class Recorder:
    """Asks, and passes over what has no answer."""

    def __init__(self, path: Path) -> None:
        self.feed = RecordingFeed(LiveFeed(Cluster()), path)

    def ask(self, ask: FeedQuestion) -> Any:
        """The answer's value; None where there is none."""
        try:
            return self.feed.fetch(ask).value
        except SlurmkitError as error:
            sys.stderr.write(f"{ask.what} {' '.join(ask.about)}: {error}\n")
            return None

    def jobs(self) -> list[str]:
        """All that wait or run, mine first, and some of mine that ended."""
        mine, queue = self.ask(FeedQuestion("mine")), self.ask(FeedQuestion("queue"))
        rows = [*mine.rows, *(row for row in queue.rows if row.user != self.feed.me)]
        ended = [info.job_id for info in mine.ended[:MOST]]
        return list(dict.fromkeys([*(query_id(row.job_id) for row in rows), *ended]))

    def job(self, job_id: str, *, whole: bool) -> None:
        """What the screen of a job asks for; `whole` is with what does not change."""
        for what in ("job", "why", "gpus-of-job", *(["script"] if whole else [])):
            self.ask(FeedQuestion(what, (job_id,)))
        for which in ("stdout", "stderr"):
            path = self.ask(FeedQuestion("logpath", (job_id, which)))
            if path and path != "/dev/null":
                self.ask(FeedQuestion("piece", (str(path), "0", str(WHOLE))))


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
