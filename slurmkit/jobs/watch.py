"""Some jobs that are being looked at, as whoever waits for them sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from slurmkit.errors import NotOver
from slurmkit.jobs.progress import Known

if TYPE_CHECKING:
    from slurmkit.jobs.poller import Poller

_FIRST_LOOK_SECONDS = 10.0


class Watch:
    """Some jobs that are being looked at; close it, or use it in a `with` statement."""

    def __init__(self, poller: Poller, job_ids: tuple[str, ...]) -> None:
        self._poller = poller
        self.job_ids = job_ids

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._poller.forget(self.job_ids)

    @property
    def known(self) -> dict[str, Known]:
        """What is known of each job now."""
        return self._poller.known(self.job_ids)

    @property
    def trouble(self) -> str | None:
        """Why Slurm does not answer at the moment, in words; it goes on being asked."""
        return self._poller.trouble

    def changes(
        self, timeout: float | None = None, every: float | None = None
    ) -> Iterator[dict[str, Known]]:
        """Yield what is known of each job at each change, until there is nothing left to learn.

        A job that cannot be watched has its error there.

        Args:
            timeout: seconds after which it is given up.
            every: yield as often even when nothing has changed.

        Raises:
            NotOver: when the time is over first.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            known, trouble = self.known, self.trouble
            yield known
            going_on = [job_id for job_id, one in known.items() if not one.settled]
            if not going_on:
                return
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                unseen = any(known[job_id].info is None for job_id in going_on)
                if not unseen or trouble or left <= -_FIRST_LOOK_SECONDS:
                    what = "nothing heard of it" if unseen else "not over"
                    raise NotOver(f"{what} after {timeout:g} s: {_some(going_on)}")
                left += _FIRST_LOOK_SECONDS  # no job is said not to be over unseen
            waits = [wait for wait in (left, every) if wait is not None]
            self._poller.wait_for(partial(self._moved, known, trouble), min(waits, default=None))

    def _moved(self, known: dict[str, Known], trouble: str | None) -> bool:
        return self.known != known or self.trouble != trouble


def _some(job_ids: Sequence[str]) -> str:
    rest = f" and {len(job_ids) - 3} more" if len(job_ids) > 3 else ""
    return f"job{'s' if len(job_ids) > 1 else ''} {', '.join(job_ids[:3])}{rest}"
