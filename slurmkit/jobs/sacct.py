"""Single jobs from the accounting database, for those that have left the queue."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from slurmkit.durations import as_squeue_does
from slurmkit.errors import Refused
from slurmkit.jobs.ids import batches
from slurmkit.jobs.info import JobInfo
from slurmkit.machine import HERE, Machine, machine_of
from slurmkit.queue.rows import epoch, record_mark
from slurmkit.slurm import Slurm

# sacct field for each JobInfo field, in order. Text a user chooses comes last.
_FIELDS = {
    "job_id": "JobID",
    "raw_id": "JobIDRaw",
    "user": "User",
    "account": "Account",
    "partition": "Partition",
    "state": "State",
    "node_list": "NodeList",
    "tres": "AllocTRES",
    "elapsed": "Elapsed",
    "submitted": "Submit",
    "started": "Start",
    "ended": "End",
    "exit_code": "ExitCode",
    "name": "JobName",
}
_STEP_FIELDS = {
    "step_id": "JobID",
    "state": "State",
    "exit_code": "ExitCode",
    "max_rss": "MaxRSS",
    "time_limit": "Timelimit",
    "tres": "AllocTRES",
}
# The trailing delimiter of --parsable ends each field alike.
_FLAGS = ("--noheader", "--parsable")
_CANCELLED = re.compile(r"CANCELLED by (?P<uid>\d+)")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a job, or the allocation itself, as sacct shows it.

    Attributes:
        step_id: `12.0`, `12.batch`; the allocation's is the job's.
        state: with `CANCELLED by UID` in full.
        exit_code: `code:signal`.
        max_rss: as sacct prints it, e.g. `399036K`; empty when it was not measured.
        time_limit: of the allocation.
        tres: allocated TRES.
    """

    step_id: str
    state: str
    exit_code: str
    max_rss: str
    time_limit: str
    tres: str


def read_runs(slurm: Slurm, job_ids: Iterable[str]) -> list[JobInfo]:
    """Every run of some jobs, in the order they were submitted; of an array, every task's.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    runs: list[JobInfo] = []
    for batch in batches(job_ids):
        mark = record_mark()
        # With -D every run of a requeued job, not only its last.
        text = slurm.run([*_sacct(batch, mark, _FIELDS), "-X", "-D"])
        runs += _runs(text, mark, machine_of(slurm))
    return sorted(runs, key=lambda run: run.submitted or 0)


def read_recent(slurm: Slurm, user: str, since: int) -> list[JobInfo]:
    """The runs of a person that were in the queue at or after a time, in the order of Submit.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    mark = record_mark()
    asked = [*_FLAGS, f"--delimiter={mark}", f"--user={user}", since_argument(since), "-X", "-D"]
    text = slurm.run(["sacct", *asked, f"--format={','.join(_FIELDS.values())}"])
    return sorted(_runs(text, mark, machine_of(slurm)), key=lambda run: run.submitted or 0)


class SubmitLine(NamedTuple):
    """The command line that a job was submitted with; `submitted` is epoch seconds."""

    job_id: str
    user: str
    submitted: int | None
    text: str


def read_submit_lines(slurm: Slurm, *which: str) -> list[SubmitLine]:
    """How jobs were submitted, in whose `--comment` is more than slurmdbd keeps by default.

    Args:
        slurm: the border to Slurm.
        which: options of sacct.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    mark = record_mark()
    asked = [*_FLAGS, f"--delimiter={mark}", *which, "-X"]
    text = slurm.run(["sacct", *asked, "--format=JobID,User,Submit,SubmitLine"])
    return [
        SubmitLine(job_id, user, epoch(at), line)
        for job_id, user, at, line in _records(text, mark, len(SubmitLine._fields))
    ]


def since_argument(since: int) -> str:
    """What limits sacct to jobs that were in the queue at or after a time in epoch seconds."""
    return f"--starttime=uts{since}"  # a login node may be in another zone


def read_steps(slurm: Slurm, job_id: str) -> tuple[Step, ...]:
    """The allocation of a job's last run, then its steps.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    mark = record_mark()
    text = slurm.run(_sacct([job_id], mark, _STEP_FIELDS))
    return tuple(
        Step(**dict(zip(_STEP_FIELDS, values, strict=True)))
        for values in _records(text, mark, len(_STEP_FIELDS))
    )


def kept_path(slurm: Slurm, info: JobInfo, field: str) -> tuple[str, str] | None:
    """An ended job's `StdOut` or `StdErr` as it was given, and its working directory.

    None where the release (before 24.05) does not keep them.
    """
    mark = record_mark()
    fields = {"pattern": field, "workdir": "WorkDir"}
    try:
        text = slurm.run([*_sacct([info.job_id], mark, fields), "-X"])
    except Refused:
        return None
    records = _records(text, mark, len(fields))
    return (records[-1][0], records[-1][1]) if records else None


def work_dir(slurm: Slurm, job_id: str) -> str | None:
    """Where an ended job started."""
    mark = record_mark()
    records = _records(slurm.run([*_sacct([job_id], mark, {"workdir": "WorkDir"}), "-X"]), mark, 1)
    return records[-1][0] if records else None


def _sacct(job_ids: list[str], mark: str, fields: dict[str, str]) -> list[str]:
    flags = [*_FLAGS, f"--delimiter={mark}"]
    return ["sacct", *flags, f"--jobs={','.join(job_ids)}", f"--format={','.join(fields.values())}"]


def _records(text: str, mark: str, count: int) -> list[list[str]]:
    parts = text.split(mark)
    records = [parts[at : at + count] for at in range(0, len(parts) - count, count)]
    return [[record[0].lstrip("\n"), *record[1:]] for record in records]


def _runs(text: str, mark: str, on: Machine) -> list[JobInfo]:
    return [_info(record, on) for record in _records(text, mark, len(_FIELDS))]


def _info(record: list[str], on: Machine) -> JobInfo:
    raw = dict(zip(_FIELDS, record, strict=True))
    values = raw | {
        "state": raw["state"].partition(" ")[0],  # `CANCELLED by 10001`
        "node_list": raw["node_list"].replace("None assigned", ""),
        "cancelled_by": canceller(raw["state"], on),
        "source": "sacct",
    }
    times = {name: epoch(raw[name]) for name in ("submitted", "started", "ended")}
    elapsed = {"elapsed": as_squeue_does(raw["elapsed"])}
    return msgspec.convert(values | times | elapsed, JobInfo)


def canceller(state: str, on: Machine = HERE) -> str | None:
    """Name, or else number, of the user in `CANCELLED by UID`; None for any other state."""
    match = _CANCELLED.fullmatch(state)
    return match and (on.login(int(match["uid"])) or match["uid"])
