"""Which process failed first, by logs as srun and torchrun write them."""

from __future__ import annotations

import pytest

from slurmkit.jobs.rank_failures import RankFailure, first_failure

SRUN = """\
c1 rank 0
[rank0]: Traceback (most recent call last):
[rank2]: ValueError: bad batch
[rank0]: RuntimeError: Connection closed by peer
srun: error: c2: task 2: Exited with exit code 7
srun: Terminating StepId=15.0
slurmstepd-c1: error: *** STEP 15.0 ON c1 CANCELLED AT 2026-11-21T16:54:49 ***
srun: error: c2: task 3: Terminated
srun: error: c1: tasks 0-1: Terminated
"""
TORCH = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_16:57:48
  host      : c1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 4683)
  error_file: <N/A>
============================================================
srun: error: c2: task 1: Exited with exit code 1
Root Cause (first observed failure):
[1]:
  time      : 2026-11-21_16:57:47
  host      : c2
  rank      : 2 (local_rank: 0)
  exitcode  : -9 (pid: 4292)
"""
REQUEUED = """\
run 0
srun: error: c2: task 1: Exited with exit code 5
slurmstepd-c1: error: *** JOB 33 ON c1 CANCELLED AT 2026-11-21T17:28:42 DUE TO JOB REQUEUE ***
slurmstepd-c1: error: *** STEP 33.0 ON c1 CANCELLED AT 2026-11-21T17:28:42 DUE TO JOB REQUEUE ***
srun: forcing job termination
srun: error: c1: task 0: Terminated
run 1
srun: error: c2: task 3: Exited with exit code 7
srun: Terminating StepId=33.0
srun: error: c1: tasks 0-1: Terminated
"""


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (SRUN, RankFailure(2, "c2", "exit code 7", ("ValueError: bad batch",))),
        (TORCH, RankFailure(2, "c2", "signal 9")),
        ("".join(f"1: {line}\n" for line in TORCH.splitlines()[9:]),
         RankFailure(2, "c2", "signal 9")),
        ("3: one\n3: two\n1: x\nsrun: error: n-1: task 3: Segmentation fault (core dumped)\n",
         RankFailure(3, "n-1", "Segmentation fault (core dumped)", ("one", "two"))),
        (" 2: one\n10: x\n12: y\nsrun: error: c1: task 2: Exited with exit code 7\n",
         RankFailure(2, "c1", "exit code 7", ("one",))),
        ("".join(f" 1: {line}\n" for line in TORCH.splitlines()[9:])
         + " 2: of agent 2\n 1: [rank2]: why\n",
         RankFailure(2, "c2", "signal 9", ("why",))),
        (SRUN.replace("task 2:", "tasks 2-3:").replace("tasks 0-1:", "task 0:"), None),
        ("srun: error: c: task 0: Terminated\nsrun: error: c: task 3: Exited with exit code 143\n",
         None),
        (REQUEUED, RankFailure(3, "c2", "exit code 7")),
        (REQUEUED.replace("slurmstepd-c1:", "[2026-11-22T10:26:08.729]"),
         RankFailure(3, "c2", "exit code 7")),
        (REQUEUED.replace("run 1", "slurmkit: run 1 of job 33 begins on c[1-2]").replace("***", ""),
         RankFailure(3, "c2", "exit code 7")),
        ("srun: error: c7: task 0: Killed\n", None),
        ("", None),
        ("srun: error: c1: tasks 0-3: Exited with exit code 2\n", None),
        ("Root Cause (first observed failure):\n[0]:\n  time", None),
    ],
)  # fmt: skip
def test_the_first_to_fail_is_found(log: str, found: RankFailure | None) -> None:
    assert first_failure(log) == found


def test_it_is_said_in_a_few_words() -> None:
    assert RankFailure(2, "c2", "exit code 7").exit_code == 7
    assert RankFailure(2, "c2", "signal 9").exit_code is None
    assert RankFailure(2, "c2", "exit code 7").message == "rank 2 on c2 failed first (exit code 7)"
