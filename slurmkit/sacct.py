"""Single jobs from the accounting database, for those that have left the queue."""

from __future__ import annotations

import msgspec

from slurmkit.errors import Refused
from slurmkit.jobids import one_part
from slurmkit.jobinfo import JobInfo, fill_in
from slurmkit.queue import epoch, record_mark
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


def newest_run(slurm: Slurm, job_id: str) -> JobInfo | None:
    """The last run of a job, or None when slurmdbd does not know it.

    Raises:
        DatabaseDown: when slurmdbd does not answer.
        BadInput: when the id is that of an array with several tasks.
    """
    mark = record_mark()
    text = slurm.run(_sacct(job_id, mark, *_FIELDS.values()))
    runs = sorted(_runs(text, mark), key=lambda run: run.submitted or 0)
    return one_part(job_id, runs)


def output_path(slurm: Slurm, info: JobInfo) -> str | None:
    """Path of an ended job's log, or None where the release (before 24.05) does not keep it."""
    mark = record_mark()
    try:
        text = slurm.run(_sacct(info.job_id, mark, "StdOut"))
    except Refused:
        return None
    pattern = text.split(mark)[-2].lstrip("\n") if mark in text else ""
    return fill_in(pattern, info) if pattern else None


def _sacct(job_id: str, mark: str, *fields: str) -> list[str]:
    # With -D every run of a requeued job; the trailing delimiter of -p ends each field alike.
    flags = ["-X", "-D", "--noheader", "--parsable", f"--delimiter={mark}"]
    return ["sacct", *flags, f"--jobs={job_id}", f"--format={','.join(fields)}"]


def _runs(text: str, mark: str) -> list[JobInfo]:
    parts = text.split(mark)
    count = len(_FIELDS)
    return [_info(parts[at : at + count]) for at in range(0, len(parts) - count, count)]


def _info(parts: list[str]) -> JobInfo:
    raw = dict(zip(_FIELDS, parts, strict=True))
    values = raw | {
        "job_id": raw["job_id"].lstrip("\n"),
        "state": raw["state"].partition(" ")[0],  # `CANCELLED by 10001`
        "node_list": raw["node_list"].replace("None assigned", ""),
        "source": "sacct",
    }
    times = {name: epoch(raw[name]) for name in ("submitted", "started", "ended")}
    return msgspec.convert(values | times, JobInfo)
