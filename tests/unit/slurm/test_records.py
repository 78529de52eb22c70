"""Records of squeue and sacct; no reader takes an answer that is cut off for a whole one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from slurmkit_accounting.reclaim.jobs import read_job_state, read_running_jobs

from slurmkit.diagnose.snapshot import read_license_holders, read_pending_request
from slurmkit.errors import SlurmError
from slurmkit.jobs import accounting_records as records
from slurmkit.jobs.backends.submit_token import find_in_database, find_in_queue
from slurmkit.jobs.exit_codes import read_squeue_codes
from slurmkit.jobs.log import _paths_in_queue
from slurmkit.jobs.steps import read_selected_steps
from slurmkit.slurm.commands import SlurmCommands
from slurmkit.slurm.records import read_records, split_records
from slurmkit.state.gres import read_holding_jobs
from slurmkit.state.queue import QueueFilter, read_queue
from slurmkit.testing import FakeSlurm

JOB: Any = SimpleNamespace(job_id="7", raw_id="7", part="", user="alice")
READERS: dict[str, Callable[[SlurmCommands], object]] = {
    "the queue": lambda slurm: read_queue(slurm, QueueFilter()),
    "jobs that hold nodes": read_holding_jobs,
    "jobs to reclaim": lambda slurm: read_running_jobs(slurm, 1, 0.0),
    "the state of a job to reclaim": lambda slurm: read_job_state(slurm, JOB),
    "exit codes": lambda slurm: read_squeue_codes(slurm, [JOB]),
    "a request": lambda slurm: read_pending_request(slurm, "7", (24, 11)),
    "licences": read_license_holders,
    "paths of logs": lambda slurm: _paths_in_queue(slurm, JOB),
    "a token in the queue": lambda slurm: find_in_queue(slurm, "x"),
    "a token in the database": lambda slurm: find_in_database(slurm, "x", "alice", 0),
    "runs": lambda slurm: records.read_runs(slurm, ["7"]),
    "runs of a user": lambda slurm: records.read_user_runs(slurm, "alice", 0),
    "submit lines": lambda slurm: records.read_submit_lines(slurm, "--jobs=7"),
    "steps": lambda slurm: records.read_steps(slurm, "7"),
    "an output pattern": lambda slurm: records.read_output_pattern(slurm, JOB, "StdOut"),
    "a working directory": lambda slurm: records.read_work_dir(slurm, "7"),
    "use of steps": lambda slurm: read_selected_steps(slurm, ["--jobs=7"]),
}


def cut_off(argv: Sequence[str], _: str | None) -> str:
    """Half a row, as where the connection to slurmctld or slurmdbd is lost."""
    if "-O" in argv:
        mark = argv[argv.index("-O") + 1].rpartition(":")[2]
    else:
        mark = next(word for word in argv if word.startswith("--delimiter=")).partition("=")[2]
    return f"7{mark}hal" if "WorkDir" not in argv[-1] else "7"


@pytest.mark.parametrize("what", READERS)
def test_an_answer_that_is_cut_off_is_an_error(what: str) -> None:
    slurm = FakeSlurm({"squeue": cut_off, "sacct": cut_off})
    with pytest.raises(SlurmError, match=r"(squeue|sacct)'s answer broke off after 0 rows"):
        READERS[what](slurm)


def test_a_name_may_hold_line_ends_and_blanks() -> None:
    text = "7\x1fa\nb \x1f\n8\x1f\n\x1f\n"
    assert split_records(text, "\x1f", 2, "squeue") == [["7", "a\nb "], ["8", "\n"]]
    assert split_records("", "\x1f", 2, "squeue") == []
    for cut in range(1, len(text) - 1):
        if text[:cut].count("\x1f") % 2 or text[cut - 1] not in "\x1f\n":
            with pytest.raises(SlurmError, match="broke off"):
                split_records(text[:cut], "\x1f", 2, "squeue")


def test_each_command_is_asked_in_its_own_way() -> None:
    slurm = FakeSlurm({"squeue": lambda *_: "", "sacct": lambda *_: ""})
    read_records(slurm, ["squeue", "--me"], ("JobID", "Name"))
    read_records(slurm, ["sacct", "-X"], ("JobID", "JobName"))
    queue, database = slurm.asked
    mark = queue[-1].rpartition(":")[2]
    assert queue == ["squeue", "--me", "--noheader", "-O", f"JobID:{mark},Name:{mark}"]
    assert database[:4] == ["sacct", "-X", "--noheader", "--parsable"]
    assert database[5:] == ["--format=JobID,JobName"]
