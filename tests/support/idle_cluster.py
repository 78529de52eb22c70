"""A cluster whose jobs hold GPUs and react as Slurm's and a surviving job's script do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from idle_lab import INTERVAL, START, History
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.reclaim.policy import ReclaimJob

from slurmkit.errors import NoSuchJob
from slurmkit.planning.survival import SurvivalTimings, as_work_function, survival_lines
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.survival import Survive
from slurmkit.testing import FakeSlurm, squeue_text

GRACE = 60


def survival_script(**policy: object) -> str:
    spec = JobSpec(command=("python", "train.py"), survive=Survive(grace=GRACE, **policy))
    lines = survival_lines(spec, "off", SurvivalTimings())
    return "\n".join(("#!/bin/bash", *lines, *as_work_function(("python train.py",))))


PLAIN_SCRIPT = "#!/bin/bash\npython train.py\n"
SURVIVES = survival_script(on_timeout="requeue")


class FakeJob:
    """A job; `back_after`: seconds from the signal until its script has requeued it."""

    def __init__(self, facts: ReclaimJob, script: str, back_after: float = 20) -> None:
        self.facts = facts
        self.script = script
        self.back_after = back_after
        self.state, self.reason, self.restarts = "RUNNING", "None", 0
        self.asked_at: float | None = None

    def row(self, now: float) -> dict[str, str]:
        facts = self.facts
        used = int(now - facts.start - facts.suspended)
        return {
            "JobID": str(facts.job_id_raw),
            "JobArrayID": facts.job_id,
            "UserName": facts.user,
            "UserID": str(facts.uid),
            "Account": facts.account,
            "Partition": facts.partition,
            "QOS": facts.qos,
            "State": self.state,
            "StartTime": str(facts.start),
            "EndTime": str(facts.limit_end),
            "SubmitTime": str(facts.submit),
            "TimeUsed": f"{used // 3600}:{used // 60 % 60:02}:{used % 60:02}",
            "tres-alloc": facts.alloc_tres,
            "BatchFlag": "1" if facts.batch else "0",
            "RestartCnt": str(self.restarts),
            "HetJobID": "77" if facts.het else "N/A",
            "Reservation": facts.reservation or "(null)",
            "Reason": self.reason,
            "Name": facts.name,
        }


class IdleCluster(FakeSlurm):
    """Answers squeue, scontrol and scancel for its jobs.

    Attributes:
        now: the clock.
        done: what was done to jobs: the words of each command that changes one.
        fail: called before each such command; may raise.
    """

    def __init__(self) -> None:
        super().__init__(
            {"squeue": self._squeue, "scontrol": self._scontrol, "scancel": self._scancel}
        )
        self.jobs: dict[str, FakeJob] = {}
        self.now = float(START)
        self.done: list[str] = []
        self.fail: Callable[[], None] = lambda: None
        self._histories: list[tuple[History, list[GpuUse]]] = []

    def add(self, history: History, script: str = PLAIN_SCRIPT, **other: float) -> FakeJob:
        job = FakeJob(history.job, script, **other)
        self.jobs[history.job.job_id] = job
        self._histories.append((history, history.uses(START)))
        return job

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for job in self.jobs.values():
            if job.asked_at is not None and self.now >= job.asked_at + job.back_after:
                job.asked_at = None
                job.state, job.reason = "PENDING", "BeginTime"
                job.restarts += 1

    def sample(self, ledger: Ledger, until: float, interval: int = INTERVAL) -> None:
        """Let the time pass to `until`, and store the samples that come in it."""
        since, self.now = self.now, until
        self.sleep(0)
        with ledger.transaction() as connection:
            for history, uses in self._histories:
                history.grow(uses, since, until)
                store_uses(connection, [use for use in uses if use.samples])

    def _squeue(self, argv: Sequence[str], _: str | None) -> str:
        words = dict(word.partition("=")[::2] for word in argv if word.startswith("--"))
        asked = words.get("--jobs")
        if asked is not None and asked not in self.jobs:
            raise NoSuchJob("Invalid job id specified")
        jobs = [self.jobs[asked]] if asked else list(self.jobs.values())
        running = words["--states"] == "RUNNING"
        rows = [job.row(self.now) for job in jobs if not running or job.state == "RUNNING"]
        return squeue_text(argv, rows)

    def _scontrol(self, argv: Sequence[str], _: str | None) -> str:
        if argv[1] == "write":
            return self.jobs[argv[3]].script
        self._note(argv)
        job = self.jobs[argv[2]]
        if argv[1] == "requeuehold":
            job.restarts, job.state = job.restarts + 1, "PENDING"
        job.reason = "JobHeldUser"
        return ""

    def _scancel(self, argv: Sequence[str], _: str | None) -> str:
        self._note(argv)
        job = self.jobs[argv[-1]]
        if any(re.match("--signal", word) for word in argv):
            job.asked_at = job.asked_at or self.now
        else:
            job.state = "CANCELLED"
        return ""

    def _note(self, argv: Sequence[str]) -> None:
        self.fail()
        self.done.append(" ".join(argv))
