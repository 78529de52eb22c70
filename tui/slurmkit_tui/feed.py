"""The one place where the app meets Slurm. Everything here blocks; it is called in threads."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from slurmkit.cluster import Cluster
from slurmkit.errors import SlurmError
from slurmkit.jobs.info import JobInfo
from slurmkit.site import Site, read_site
from slurmkit_tui.snapshot import Snapshot, prepare

ResultT = TypeVar("ResultT")


class Feed:
    """Asks Slurm for what the screen shows, and runs what the person confirmed.

    Attributes:
        me: login name of the person at the screen.
    """

    def __init__(self, cluster: Cluster, me: str | None = None) -> None:
        self._cluster = cluster
        self._site: Site | None = None
        self.me = me or login_name()

    @property
    def calls(self) -> int:
        """Slurm commands run so far."""
        return self._cluster.slurm.calls

    def snapshot(self) -> Snapshot:
        """Read the queue; the first time also what cluster this is.

        Raises:
            SlurmError: when squeue does not answer.
        """
        queue = self._cluster.queue()
        if self._site is None:
            self._site = self._ask_site()
        return prepare(queue, self._site, self.me)

    def job(self, job_id: str) -> JobInfo:
        """Read one job's facts.

        Raises:
            SlurmkitError: when it is unknown, or Slurm does not answer.
        """
        return self._cluster.job(job_id).info()

    def run(self, argv: Sequence[str]) -> str:
        """Run a command just as it was shown.

        Raises:
            SlurmError: in Slurm's words.
        """
        return self._cluster.slurm.run(argv)

    def _ask_site(self) -> Site:
        try:
            return read_site(self._cluster.slurm)
        except SlurmError:  # the queue is there; only its cluster's name stays unknown
            return Site()


def login_name() -> str:
    """Name of the user this process runs as, or the number of one that has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


async def in_thread(function: Callable[[], ResultT]) -> ResultT:
    """Run a blocking function in a daemon thread.

    The event loop's own threads are joined when it ends, so that `q` would hang for as long as
    slurmctld keeps squeue waiting.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ResultT] = loop.create_future()

    def settle(act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the app has ended meanwhile
            loop.call_soon_threadsafe(lambda: None if future.done() else act())

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - handed on to whoever awaits
            failure = error
            settle(lambda: future.set_exception(failure))
        else:
            settle(lambda: future.set_result(result))

    threading.Thread(target=work, name="slurmkit-tui", daemon=True).start()
    return await future
