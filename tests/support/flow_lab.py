"""A Slurm that takes, holds, releases and cancels jobs, beside the recorded cluster."""

from __future__ import annotations

from collections.abc import Sequence

from jobs_lab import FakeJobs
from recorded_lab import slurm, standing

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import SlurmError
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.workflow import Workflow
from slurmkit.state.model import Capabilities, Standing
from slurmkit.testing import FakeSlurm, sacct_text


class FlowLab(Cluster):
    """The recorded cluster, whose jobs a test ends.

    Attributes:
        jobs: what squeue and sacct show.
        sent: options of sbatch by job id, in the order they were sent.
        released: ids in the order they were released.
        breaks: raised in place of the answer to the submit of that number; the job is there.
        refuses: likewise, and the job is not there.
    """

    def __init__(self) -> None:
        self.jobs = FakeJobs()
        self.sent: dict[str, dict[str, str]] = {}
        self.released: list[str] = []
        self.cancelled: list[list[str]] = []
        self.breaks: dict[int, BaseException] = {}
        self.refuses: dict[int, SlurmError] = {}
        self.release_fails: SlurmError | None = None
        self.cancel_fails: SlurmError | None = None
        known = slurm()
        self._known = known._answers
        answers = {"sbatch": self._sbatch, "scontrol": self._scontrol, "scancel": self._scancel}
        answers |= {"squeue": self._squeue, "sacct": self._sacct}
        super().__init__(FakeSlurm({**self._known, **answers}))
        self._capabilities = super().capabilities()

    def standing(self, user: str | None = None) -> Standing:
        del user
        return standing()

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        del refresh
        return self._capabilities

    def held(self) -> list[str]:
        return [i for i, job in self.jobs.queue.items() if job.get("Reason") == "JobHeldUser"]

    def end(self, job_id: str, state: str = "COMPLETED", **fields: str) -> None:
        comment = self.sent[job_id].get("comment", "")
        self.jobs.ends(job_id, state, **fields)
        self.jobs.queue[job_id] = {**self.jobs.queue[job_id], "Comment": comment}

    def _sbatch(self, argv: Sequence[str], stdin: str | None) -> str:
        if "--test-only" in argv:
            return self._known["sbatch"](argv, stdin)
        number = len(self.sent) + 1
        if number in self.refuses:
            raise self.refuses.pop(number)
        words = (word.removeprefix("--").partition("=") for word in argv[1:])
        options = {name: value for name, _, value in words}
        job_id = str(100 + number)
        self.sent[job_id] = options
        hold = {"Reason": "JobHeldUser", "PriorityLong": "0"} if "hold" in options else {}
        self.jobs.waits(job_id, Comment=options.get("comment", ""), **hold)
        if number in self.breaks:
            raise self.breaks.pop(number)
        return f"{job_id}\n"

    def _squeue(self, argv: Sequence[str], stdin: str | None) -> str:
        if "-O" in argv:
            return self.jobs.slurm._answers["squeue"](argv, stdin)
        return "".join(f"{i} {job['State']}\n" for i, job in self.jobs.queue.items())

    def _sacct(self, argv: Sequence[str], stdin: str | None) -> str:
        if any(word.startswith("--jobs=") for word in argv):
            return self.jobs.slurm._answers["sacct"](argv, stdin)
        return sacct_text(argv, self.jobs.runs)

    def _scontrol(self, argv: Sequence[str], stdin: str | None) -> str:
        if argv[1] != "release":
            return self._known["scontrol"](argv, stdin)
        if self.release_fails:
            raise self.release_fails
        self.released.append(argv[2])
        self.jobs.queue[argv[2]] = {**self.jobs.queue[argv[2]], "Reason": "None"}
        return ""

    def _scancel(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.cancel_fails:
            raise self.cancel_fails
        ids = [word for word in argv[1:] if not word.startswith("-")]
        self.cancelled.append(ids)
        said = ""
        for job_id in ids:
            if self.jobs.queue.get(job_id, {}).get("State") in ("PENDING", "RUNNING"):
                self.end(job_id, "CANCELLED by 0", Start="None")
            else:
                said += f"scancel: error: Kill job error on job id {job_id}: Job/step already"
                said += " completing or completed\n"
        return said


def job(**fields: object) -> JobSpec:
    return JobSpec(**{"command": ("x",), "chdir": "/", "time": "10", **fields})  # type: ignore[arg-type]


def flow(**after: tuple[str, ...]) -> Workflow:
    """Jobs by name, and what each waits for."""
    return Workflow(
        "flow", dict.fromkeys(after, job()), after={n: a for n, a in after.items() if a}
    )
