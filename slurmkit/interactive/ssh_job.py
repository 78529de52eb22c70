"""The job behind `ssh slurmkit-NAME`: find it, start it once, and wait for its sshd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slurmkit.config.paths import lock_file, open_lock_file
from slurmkit.errors import SlurmkitError
from slurmkit.interactive.ssh_profile import KeeperAddress, SshProfile
from slurmkit.jobs.waiting import wait_until_ready
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.state.queue_rows import QueueRow

if TYPE_CHECKING:
    from slurmkit.jobs.job import Job, JobCluster
    from slurmkit.slurm.commands import SlurmCommands

ANSWER_SECONDS = 120.0
"""Seconds that a running job may take to write its address."""
_LOCK, _LOCK_SECONDS = "lock", 120.0
_LIVE = ("RUNNING", "PENDING", "CONFIGURING", "SUSPENDED")


def find_job(slurm: SlurmCommands, name: str) -> QueueRow | None:
    """Return the job of this user with a name: one that runs, else the oldest that waits.

    Raises:
        SlurmError: when slurmctld does not answer.
    """
    rows = read_queue(slurm, QueueFilter(me=True, names=(name,))).rows
    own = [row for row in rows if row.name == name and row.state in _LIVE]
    return min(own, key=lambda row: (_LIVE.index(row.state), int(row.raw_id)), default=None)


@contextmanager
def one_at_a_time(profile: SshProfile) -> Iterator[None]:
    """Let one ssh after another look for the job and start it, on all login nodes.

    Raises:
        SlurmkitError: when another one has not finished after two minutes, or for no folder.
    """
    try:
        lock = open_lock_file(profile.folder / _LOCK)
    except OSError as error:
        raise SlurmkitError(
            f"cannot write in {profile.folder}: {error.strerror}; make the profile again: slurmkit"
            f" ssh-config {profile.name}"
        ) from error
    with lock:
        if not lock_file(lock, _LOCK_SECONDS):
            raise SlurmkitError(
                f"another ssh {profile.host} is starting the job; try again in a minute"
            )
        yield


def find_or_start(
    cluster: JobCluster, profile: SshProfile, name: str, start: Callable[[], Job]
) -> Job:
    """Return the job of a profile; start it if there is none.

    Args:
        cluster: the cluster.
        profile: the profile.
        name: the job's name.
        start: submits the job.

    Raises:
        SlurmkitError: when Slurm does not answer, or refuses the job.
    """
    with one_at_a_time(profile):
        row = find_job(cluster.slurm, name)
        return start() if row is None else cluster.job(row.raw_id)


def wait_for_keeper(
    job: Job,
    profile: SshProfile,
    notice: Callable[[str], None],
    *,
    patience: float = ANSWER_SECONDS,
) -> KeeperAddress:
    """Wait until the job of a profile runs and has written its address.

    Args:
        job: the job.
        profile: the profile.
        notice: called with a line that says why the job waits.
        patience: seconds to wait for the address once the job runs.

    Raises:
        SlurmkitError: when the job ends first.
        NotOver: when it writes no address in that time; the job goes on.
    """

    def find() -> KeeperAddress | None:
        address = profile.load_address()
        return address if address is not None and address.job_id == job.id else None

    def no_answer() -> str:
        return (
            f"job {job.id} runs, but has written no address within {patience:g} s; see: slurmkit"
            f" log {job.id}"
        )

    address = wait_until_ready(job, find, notice, no_answer=no_answer, patience=patience)
    if address is None:
        outcome = job.outcome()
        raise SlurmkitError(f"job {job.id} {outcome.words}; see: slurmkit log {job.id}")
    return address
