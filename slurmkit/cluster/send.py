"""Send a plan to a cluster: part by part, with its secret variables, and recorded if an array.

Secret variables are passed in a file that only their owner can read, with the job's id as its name.
The job reads it at its start. It removes it when it ends well, or at once with `--no-requeue`.
Other jobs that fail or are killed, and array tasks, leave the file: a requeued run finds it.
It is removed when its owner next submits or cancels a job after that job is over.
"""

from __future__ import annotations

import os
import secrets
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from slurmkit.cluster.sweeps import (
    ArrayRecord,
    SentArray,
    remove_record,
    save_record,
    without_secrets,
)
from slurmkit.config.paths import describe_write_error, state_folder
from slurmkit.errors import SentUnknown, SlurmError, SlurmkitError
from slurmkit.formats.job_ids import whole_id
from slurmkit.jobs.lookup import read_queued_ids
from slurmkit.planning.secrets import SECRETS_FOLDER, secret_variables
from slurmkit.state.arrays import parse_array_tag
from slurmkit.state.queue import QueueFilter

if TYPE_CHECKING:
    from slurmkit.cluster.protocol import Submitter
    from slurmkit.jobs.backends.commands import SubmitOverrides
    from slurmkit.planning.planner import Plan
    from slurmkit.spec.jobspec import JobSpec
    from slurmkit.spec.submission import Submission

_NEW = ".new-"
_LEFTOVER_SECONDS = 3600.0  # after so many seconds a file without a job id is left from a crash
_QUERY_MARK = ".looked"
_QUERY_SECONDS = 600.0  # seconds between two queries of the queue: many users submit in a loop


def send_plan(
    cluster: Submitter, plan: Plan, overrides: SubmitOverrides, again: str | None = None
) -> tuple[list[str], dict[str, int]]:
    """Send all parts of a plan, in order.

    Args:
        cluster: the cluster to send to.
        plan: a plan without errors that stop it.
        overrides: sbatch options added to each part.
        again: id of the array whose points it runs again.

    Returns:
        The job ids, and for an array the index offset of each Slurm array by id.

    Raises:
        Refused: with Slurm's message; parts already sent are cancelled.
        SlurmkitError: when the secrets or the record cannot be written.
    """
    remove_secrets(cluster)
    record = ArrayRecorder(plan, cluster, again)
    with (
        SentParts(cluster, record) as sent,
        write_secrets(plan.spec, cluster) as name_secrets_file,
    ):
        for submission in plan.submissions:
            job_id = sent.submit(submission, overrides)
            name_secrets_file(job_id)
            record.add(submission, job_id)
    return sent.ids, record.offsets


class SentParts:
    """The jobs of a plan that were sent so far; use it in a `with` block.

    If an error or Ctrl-C ends the block, the jobs that were sent are cancelled.

    Args:
        cluster: the cluster that the plan is sent to.
        record: the record of the plan's array, which can be without an array.
    """

    def __init__(self, cluster: Submitter, record: ArrayRecorder) -> None:
        self.ids: list[str] = []
        self._cluster = cluster
        self._record = record

    def submit(self, submission: Submission, overrides: SubmitOverrides) -> str:
        """Submit the next part and return its job id.

        Args:
            submission: the part; it waits for the parts that it follows.
            overrides: sbatch options added to it.

        Raises:
            Refused: with Slurm's message.
        """
        overrides = overrides.after_jobs(
            (self.ids[at] for at in submission.after), submission.order
        )
        overrides = self._record.add_tag(overrides, submission)
        self.ids.append(self._cluster.backend.submit(submission, overrides))
        return self.ids[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SlurmkitError):
            self._roll_back(error)
        elif isinstance(error, KeyboardInterrupt):
            self._cancel_after_interrupt()

    def _roll_back(self, error: SlurmkitError) -> None:
        """Cancel the jobs that were sent, and raise the error with their ids."""
        if not self.ids:
            if not isinstance(error, SentUnknown):
                self._record.forget()
            return
        left = self._cluster.backend.cancel(self.ids)
        sent = ", ".join(self.ids)
        rest = f", except {', '.join(left)}" if left else ""
        raise type(error)(f"{error}; the jobs sent before ({sent}) are cancelled{rest}") from error

    def _cancel_after_interrupt(self) -> None:
        """Cancel the jobs that were sent, also one whose id sbatch had not yet answered."""
        if known := {*self.ids, *self._record.in_queue()}:
            self._cluster.backend.cancel(sorted(known))


class ArrayRecorder:
    """The record of an array while its parts are sent; does nothing for any other plan.

    Args:
        plan: the plan that is sent.
        cluster: the cluster it is sent to.
        again: id of the array whose points it runs again.
    """

    def __init__(self, plan: Plan, cluster: Submitter, again: str | None = None) -> None:
        self._cluster = cluster
        is_array = all(submission.part is not None for submission in plan.submissions)
        self._record = _new_record(plan, again) if is_array else None
        if self._record:
            save_record(cluster, self._record)

    @property
    def offsets(self) -> dict[str, int]:
        """Index offset of each Slurm array by job id; empty for a plan without an array."""
        return {sent.job_id: sent.offset for sent in self._record.sent} if self._record else {}

    def add_tag(self, overrides: SubmitOverrides, submission: Submission) -> SubmitOverrides:
        """Return the sbatch options with the array's tag added to the comment."""
        if self._record is None or submission.part is None:
            return overrides
        return overrides.with_comment(self._record.tag(submission.part.offset).comment_text())

    def add(self, submission: Submission, job_id: str) -> None:
        """Add a part that was sent to the record.

        Raises:
            SlurmkitError: when the record cannot be written.
        """
        if self._record is None or submission.part is None:
            return
        before, part = self._record, submission.part
        new = SentArray(job_id, part.array.partition("%")[0], part.offset)
        self._record = msgspec.structs.replace(before, sent=(*before.sent, new))
        save_record(self._cluster, self._record, before)

    def forget(self) -> None:
        """Remove the record: no part was sent."""
        if self._record:
            remove_record(self._cluster, self._record)

    def in_queue(self) -> list[str]:
        """Read the ids of its parts in the queue, also of a part whose sbatch answer was lost.

        Empty if slurmctld does not answer.
        """
        if self._record is None:
            return []
        token = self._record.token
        try:
            rows = self._cluster.queue(QueueFilter(me=True)).rows
        except SlurmError:
            return []
        own = [row for row in rows if (tag := parse_array_tag(row.comment)) and tag.token == token]
        return list(dict.fromkeys(row.array_id or row.job_id for row in own))


def _new_record(plan: Plan, again: str | None) -> ArrayRecord:
    spec, names = without_secrets(plan.spec)
    return ArrayRecord(
        token=secrets.token_hex(6),
        submitted=time.time(),
        total=sum(len(each.part.tasks) for each in plan.submissions if each.part),
        planned=len(plan.submissions),
        again=again,
        secrets=names,
        spec=msgspec.structs.replace(spec, chdir=dict(plan.submissions[0].options)["chdir"]),
    )


@contextmanager
def write_secrets(spec: JobSpec, cluster: Submitter) -> Iterator[Callable[[str], None]]:
    """Write a job's secrets to a file before it is sent; yield a function that sets its job id.

    Raises:
        SlurmkitError: when the file cannot be written, or cannot be made private.
    """
    variables = secret_variables(spec)
    if not variables:
        yield lambda _job_id: None
        return
    try:
        folder = _own_folder(cluster)
        fresh = _write_file(folder, variables)
    except OSError as error:
        raise _write_error(error) from error
    try:
        yield lambda job_id: _link(fresh, folder / job_id)
    finally:
        fresh.unlink(missing_ok=True)


def _write_file(folder: Path, variables: dict[str, str]) -> Path:
    number, name = tempfile.mkstemp(prefix=_NEW, dir=folder)  # of mode 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.writelines(f"export {n}={shlex.quote(v)}\n" for n, v in variables.items())
    except OSError:
        Path(name).unlink()
        raise
    return Path(name)


def _link(fresh: Path, path: Path) -> None:
    try:
        path.unlink(missing_ok=True)  # of an older job: the cluster's job ids may start over
        path.hardlink_to(fresh)
    except OSError as error:
        raise _write_error(error) from error


def _write_error(error: OSError) -> SlurmkitError:
    return SlurmkitError(
        "cannot write the job's secret variables to"
        f" {error.filename or state_folder(SECRETS_FOLDER)}:"
        f" {describe_write_error(error)}; the job can also read them from your own file"
    )


def _own_folder(cluster: Submitter) -> Path:
    folder = _folder(cluster)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        status = each.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise SlurmkitError(
                f"{each} is not a folder that you own; remove it: slurmkit stores secrets there"
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            each.chmod(0o700)
    return folder


def _folder(cluster: Submitter) -> Path:
    return state_folder(SECRETS_FOLDER) / cluster.capabilities().cluster_name


def remove_secrets(cluster: Submitter, job_ids: Iterable[str] = ()) -> None:
    """Remove the secrets of these jobs and of all jobs that are over; errors are ignored.

    Slurm is asked only about secrets that are older than ten minutes, and once in ten minutes.
    """
    if not state_folder(SECRETS_FOLDER).is_dir():
        return
    try:
        folder = _folder(cluster)
        files = [path for path in folder.iterdir() if path.name.isdecimal()]
        gone = {path.name for path in files} & set(job_ids)
        old = {path.name for path in files if _age(path) > _QUERY_SECONDS} - gone
        if old and _is_query_due(folder / _QUERY_MARK):
            rows = cluster.queue(QueueFilter(me=True)).rows
            missing = old - {whole_id(row.job_id) for row in rows}
            gone |= missing - read_queued_ids(cluster.backend, missing)
        for job_id in gone:
            (folder / job_id).unlink(missing_ok=True)
        for path in folder.glob(f"{_NEW}*"):
            if _age(path) > _LEFTOVER_SECONDS:
                path.unlink(missing_ok=True)
    except (OSError, SlurmError):
        return


def _is_query_due(mark: Path) -> bool:
    """Tell whether it is time to ask Slurm again; if so, set the mark."""
    if mark.exists() and _age(mark) < _QUERY_SECONDS:
        return False
    mark.touch()
    return True


def _age(path: Path) -> float:
    """Return the seconds since a file was written."""
    return time.time() - path.stat().st_mtime
