"""A small Slurm of jobs whose states a test sets, for tests of what watches them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import NoSuchJob, Refused, SlurmError
from slurmkit.formats.job_ids import parse_task_indices
from slurmkit.jobs.poller import PollPace
from slurmkit.state.queue_rows import FINAL_STATES
from slurmkit.testing import FakeSlurm, sacct_text, squeue_text

QUICK = PollPace(first=0.005, longest=0.02, growth=1.5, floor=0.005)
Fields = Mapping[str, str]


class FakeJobs:
    """What squeue and sacct show; a job is in either, both or none.

    Attributes:
        queue: fields of `squeue -O` by job id.
        runs: fields of `sacct --format`, oldest first.
        hidden: ids of jobs in hidden partitions: only `--all` and `--jobs` show them.
        steps: likewise, for calls that ask for steps.
        squeue_fails: raised by squeue while set; likewise `sacct_fails`.
        json: what `sacct --json` prints; without it that fails.
        slurm: the border to hand on.
    """

    def __init__(self, release: str = "26.05.0") -> None:
        self.queue: dict[str, Fields] = {}
        self.runs: list[Fields] = []
        self.steps: list[Fields] = []
        self.hidden: set[str] = set()
        self.squeue_fails: SlurmError | None = None
        self.sacct_fails: SlurmError | None = None
        self.looks = 0
        self.json = ""
        self.slurm = FakeSlurm(
            {"squeue": self._squeue, "sacct": self._sacct, "scontrol": lambda argv, stdin: ""},
            release=release,
        )

    def cluster(self) -> Cluster:
        return Cluster(self.slurm, pace=QUICK)

    def waits(self, job_id: str, **fields: str) -> None:
        self.queue[job_id] = {"State": "PENDING", "NodeList": "", "StartTime": "N/A", **fields}

    def runs_now(self, job_id: str, **fields: str) -> None:
        self.queue[job_id] = {"State": "RUNNING", **fields}

    def ends(self, job_id: str, state: str = "COMPLETED", **fields: str) -> None:
        """Ended, remembered by slurmctld and known to slurmdbd."""
        queued = {k: v for k, v in fields.items() if k in {"STDOUT", "JobID"}}
        self.queue[job_id] = {"State": state.partition(" ")[0], **queued}
        self.runs.append({"JobID": job_id, "State": state, **fields})

    def leaves(self, job_id: str) -> None:
        """Slurmctld forgets it."""
        del self.queue[job_id]

    def asked(self, command: str) -> list[list[str]]:
        return [argv for argv in self.slurm.asked if argv[0] == command]

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        if "RestartCnt" not in argv[-1]:
            self.look()
        if self.squeue_fails is not None:
            raise self.squeue_fails
        ids = _ids(argv)
        live = "--states=all" not in argv
        found = [
            {"JobArrayID": job_id, **fields}
            for job_id, fields in list(self.queue.items())
            if (not ids or _is_of(job_id, fields, ids) or _waits_in(job_id, ids))
            and not (live and fields["State"] in FINAL_STATES)
            and (ids or "--all" in argv or job_id not in self.hidden)
        ]
        if not found and len(ids) == 1:
            raise NoSuchJob("slurm_load_jobs error: Invalid job id specified")
        return squeue_text(argv, found)

    def look(self) -> None:
        """Called at each squeue that reads states; a test may let something happen there."""
        self.looks += 1

    def _sacct(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.sacct_fails is not None:
            raise self.sacct_fails
        if "--json" in argv:
            if not self.json:
                raise Refused("sacct: error: JSON is not supported by this sacct")
            return self.json
        ids = _ids(argv)
        shown = self.runs if "-X" in argv else self.steps
        return sacct_text(argv, [run for run in list(shown) if _is_of(run["JobID"], run, ids)])


def _ids(argv: Sequence[str]) -> list[str]:
    given = [word.partition("=")[2] for word in argv if word.startswith("--jobs=")]
    return given[0].split(",") if given else []


def _is_of(job_id: str, fields: Fields, ids: list[str]) -> bool:
    whole = re.split(r"[_+.]", job_id, maxsplit=1)[0]
    alone = job_id.partition(".")[0]
    return bool({job_id, whole, alone, fields.get("JobID", job_id)} & set(ids))


def _waits_in(job_id: str, ids: list[str]) -> bool:
    """Squeue finds a task among others that wait; sacct does not."""
    spans = parse_task_indices(job_id) if "[" in job_id else ()
    whole = job_id.partition("_")[0]
    return any(f"{whole}_{index}" in ids for span in spans for index in span)
