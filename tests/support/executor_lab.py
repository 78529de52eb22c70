"""A Slurm whose jobs really run: as processes of this machine, each task's script by bash."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
import pytest
from jobs_lab import QUICK, FakeJobs
from recorded_lab import capabilities, standing

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import SlurmError
from slurmkit.formats.job_ids import parse_task_indices, whole_id
from slurmkit.state.arrays import format_indices
from slurmkit.state.model import Capabilities, Standing
from slurmkit.state.queue_rows import FINAL_STATES

_STATES = {0: "COMPLETED"}


# So that a pickled one is another object for the same cluster, as one that is reached by name.
_BY_ID: WeakValueDictionary[int, RunningSlurm] = WeakValueDictionary()


def _running_slurm(number: int) -> RunningSlurm:
    another = RunningSlurm.__new__(RunningSlurm)
    another.__dict__ = _BY_ID[number].__dict__
    return another


class RunningSlurm(Cluster):
    """The recorded cluster.

    Attributes:
        submits: scripts that sbatch took.
        held: tasks that are not started, by id.
        processes: of tasks that were started, by id.
        largest: MaxArraySize.
    """

    def __init__(self, largest: int = 1001) -> None:
        self.jobs = FakeJobs()
        self.jobs.look = self._look  # type: ignore[method-assign]
        self.submits: list[str] = []
        self.cancelled: list[list[str]] = []
        self.cancel_fails: SlurmError | None = None
        self.starts = True
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._largest = largest
        self.jobs.slurm._answers |= {"sbatch": self._sbatch, "scancel": self._scancel}
        super().__init__(self.jobs.slurm, pace=QUICK)
        _BY_ID[id(self.jobs)] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _running_slurm, (id(self.jobs),)

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        del refresh
        known = capabilities()
        config = {**known.config, "MaxArraySize": str(self._largest)}
        return msgspec.structs.replace(known, config=config)

    def standing(self, user: str | None = None) -> Standing:
        del user
        return standing()

    def end(self) -> None:
        """End all jobs: who still waited for one would ask 50 times a second."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        for job_id, fields in list(self.jobs.queue.items()):
            if fields["State"] not in FINAL_STATES:
                self.jobs.leaves(job_id)
                whole, spans = whole_id(job_id), parse_task_indices(job_id)
                for task in [f"{whole}_{i}" for span in spans for i in span] or [job_id]:
                    self.jobs.ends(task, "CANCELLED", JobID=whole)

    def _sbatch(self, argv: Sequence[str], stdin: str | None) -> str:
        script = stdin or ""
        self.submits.append(script)
        job_id = str(100 + len(self.submits))
        found = re.search(r"^#SBATCH --array=\"?([\d,\-]+)", script, re.MULTILINE)
        indices = _indices(found[1]) if found else [None]
        for index in indices:
            if self.starts:
                self._start(job_id, index, script)
        if not self.starts:
            waits = (
                f"{job_id}_[{format_indices(i for i in indices if i is not None)}]"
                if found
                else job_id
            )
            self.jobs.waits(waits, JobID=job_id)
        return f"{job_id}\n"

    def _start(self, job_id: str, index: int | None, script: str) -> None:
        task = job_id if index is None else f"{job_id}_{index}"
        found = re.search(r"^#SBATCH --output=(.*)$", script, re.MULTILINE)
        output = (found[1] if found else "").strip('"')
        output = output.replace("%A", job_id).replace("%a", str(index)).replace("%j", job_id)
        own = {"SLURM_JOB_ID": job_id, "SLURM_ARRAY_TASK_ID": str(index)}
        with tempfile.TemporaryFile() as file, Path(output).open("ab") as log:
            file.write(script.encode())
            file.seek(0)
            self.processes[task] = subprocess.Popen(
                ["bash", "-s"], stdin=file, stdout=log, stderr=log, env={**os.environ, **own},
                start_new_session=True,
            )  # fmt: skip
        self.jobs.runs_now(task, JobID=job_id)

    def _look(self) -> None:
        for task, process in self.processes.items():
            code = process.poll()
            if code is not None and self.jobs.queue.get(task, {}).get("State") == "RUNNING":
                exit_code = f"0:{-code}" if code < 0 else f"{code}:0"
                self.jobs.ends(task, _STATES.get(code, "FAILED"), ExitCode=exit_code)

    def _scancel(self, argv: Sequence[str], stdin: str | None) -> str:
        if self.cancel_fails is not None:
            raise self.cancel_fails
        ids = [word for word in argv[1:] if word[0].isdigit()]
        self.cancelled.append(ids)
        for job_id in ids:
            if job_id in self.processes:
                os.killpg(self.processes[job_id].pid, 15)
        return ""


def _indices(text: str) -> list[int | None]:
    spans = (part.partition("-") for part in text.split(","))
    return [i for first, _, last in spans for i in range(int(first), int(last or first) + 1)]


@pytest.fixture(name="slurm")
def running_slurm() -> Iterator[RunningSlurm]:
    """A cluster whose processes end with the test."""
    made = RunningSlurm()
    yield made
    made.end()
