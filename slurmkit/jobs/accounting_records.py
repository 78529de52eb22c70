"""Read runs, steps, submit lines and output paths of jobs from the accounting database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from slurmkit.errors import Refused
from slurmkit.formats.durations import reformat_elapsed
from slurmkit.formats.job_ids import batch_job_ids
from slurmkit.jobs.exit_codes import sacct_exit_code
from slurmkit.jobs.info import JobInfo
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.machine import LOCAL_MACHINE, Machine, machine_of
from slurmkit.slurm.records import read_records
from slurmkit.state.queue_rows import parse_epoch

# The sacct field for each JobInfo field. Text that a user chooses comes last.
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
# --parsable (not --parsable2) also puts a delimiter after the last field.
_CANCELLED = re.compile(r"CANCELLED by (?P<uid>\d+)")


class SacctStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a job, or the allocation itself, as sacct prints it.

    Attributes:
        step_id: `12.0`, `12.batch`; for the allocation the job id.
        state: in full, e.g. `CANCELLED by 10001`.
        exit_code: `code:signal`; `72 or 200` where sacct may have taken 128 off.
        max_rss: e.g. `399036K`; empty when it was not measured.
        time_limit: time limit of the allocation.
        tres: allocated TRES.
    """

    step_id: str
    state: str
    exit_code: str
    max_rss: str
    time_limit: str
    tres: str


def read_runs(slurm: SlurmCommands, job_ids: Iterable[str]) -> list[JobInfo]:
    """Read every run of jobs (for an array, of every task), in the order of submit.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    runs: list[JobInfo] = []
    for batch in batch_job_ids(job_ids):
        # -D: every run of a requeued job, not only the last one.
        runs += _read_runs(slurm, f"--jobs={','.join(batch)}", "-X", "-D")
    return sorted(runs, key=lambda run: run.submitted or 0)


def read_user_runs(
    slurm: SlurmCommands, user: str, since: int, *, name: str | None = None
) -> list[JobInfo]:
    """Read a user's runs that were in the queue at or after `since`, in the order of submit.

    Args:
        slurm: runs sacct.
        user: login name.
        since: epoch seconds.
        name: only jobs of this name; all when left out. sacct cannot be asked for a name with a
            comma, so it is then asked for all names.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    named = [f"--name={name}"] if name and "," not in name else []
    runs = _read_runs(slurm, f"--user={user}", starttime_option(since), "-X", "-D", *named)
    return sorted(runs, key=lambda run: run.submitted or 0)


class SubmitLine(NamedTuple):
    """The command line of a job's submission; `submitted` is in epoch seconds."""

    job_id: str
    user: str
    submitted: int | None
    text: str


def read_submit_lines(slurm: SlurmCommands, *which: str) -> list[SubmitLine]:
    """Read the submit lines of jobs.

    A submit line shows the whole `--comment`, which slurmdbd does not keep by default.

    Args:
        slurm: runs the sacct.
        which: options of sacct that choose the jobs.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    fields = ("JobID", "User", "Submit", "SubmitLine")
    return [
        SubmitLine(job_id, user, parse_epoch(at), line)
        for job_id, user, at, line in read_records(slurm, ["sacct", *which, "-X"], fields)
    ]


def starttime_option(since: int) -> str:
    """Return sacct's option for jobs in the queue at or after `since` (epoch seconds)."""
    return f"--starttime=uts{since}"  # uts: the login node may be in another time zone


def read_steps(slurm: SlurmCommands, job_id: str) -> tuple[SacctStep, ...]:
    """Read the allocation of a job's last run, then its steps.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
    """
    records = read_records(slurm, ["sacct", f"--jobs={job_id}"], tuple(_STEP_FIELDS.values()))
    steps = [SacctStep(**dict(zip(_STEP_FIELDS, values, strict=True))) for values in records]
    return tuple(
        msgspec.structs.replace(step, exit_code=sacct_exit_code(slurm, step.exit_code, step.state))
        for step in steps
    )


def read_output_pattern(slurm: SlurmCommands, info: JobInfo, field: str) -> tuple[str, str] | None:
    """Read an ended job's `StdOut` or `StdErr` pattern, and its working directory.

    None before Slurm 24.05, which does not keep them.
    """
    try:
        records = read_records(slurm, ["sacct", f"--jobs={info.job_id}", "-X"], (field, "WorkDir"))
    except Refused:
        return None
    return (records[-1][0], records[-1][1]) if records else None


def read_work_dir(slurm: SlurmCommands, job_id: str) -> str | None:
    """Read the working directory of an ended job."""
    records = read_records(slurm, ["sacct", f"--jobs={job_id}", "-X"], ("WorkDir",))
    return records[-1][0] if records else None


def _read_runs(slurm: SlurmCommands, *which: str) -> list[JobInfo]:
    records = read_records(slurm, ["sacct", *which], tuple(_FIELDS.values()))
    return [_parse_run(record, slurm) for record in records]


def _parse_run(record: list[str], slurm: SlurmCommands) -> JobInfo:
    raw = dict(zip(_FIELDS, record, strict=True))
    values = raw | {
        "state": raw["state"].partition(" ")[0],  # `CANCELLED by 10001`
        "node_list": raw["node_list"].replace("None assigned", ""),
        "exit_code": sacct_exit_code(slurm, raw["exit_code"], raw["state"]),
        "cancelled_by": parse_canceller(raw["state"], machine_of(slurm)),
        "source": "sacct",
    }
    times = {name: parse_epoch(raw[name]) for name in ("submitted", "started", "ended")}
    elapsed = {"elapsed": reformat_elapsed(raw["elapsed"])}
    return msgspec.convert(values | times | elapsed, JobInfo)


def parse_canceller(state: str, on: Machine = LOCAL_MACHINE) -> str | None:
    """Return the user name (or else the uid) in `CANCELLED by UID`; None for other states."""
    match = _CANCELLED.fullmatch(state)
    return match and (on.login(int(match["uid"])) or match["uid"])
