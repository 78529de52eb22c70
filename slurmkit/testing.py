"""A stand-in for Slurm at its border, for tests of code that uses slurmkit."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

# What squeue prints of a plain job that runs, by the names of its -O fields.
_RUNNING = {
    "UserName": "alice",
    "Account": "vision",
    "Partition": "gpu",
    "QOS": "normal",
    "State": "RUNNING",
    "NumNodes": "1",
    "NumCPUs": "1",
    "tres-alloc": "cpu=1,mem=1G,node=1,billing=1",
    "PriorityLong": "1000",
    "SubmitTime": "1700000000",
    "EligibleTime": "1700000000",
    "StartTime": "1700000010",
    "TimeUsed": "0:05",
    "TimeLimit": "10:00",
    "NodeList": "c1",
    "ReqNodes": "",
    "Reason": "None",
    "Dependency": "(null)",
    "Feature": "(null)",
    "Reservation": "(null)",
    "WorkDir": "/home/alice",
    "STDOUT": "/home/alice/slurm-%j.out",
    "Comment": "(null)",
    "Name": "train",
}

# What sacct prints of a plain job that has completed, by the names of its fields.
_COMPLETED = {
    "User": "alice",
    "Account": "vision",
    "Partition": "gpu",
    "State": "COMPLETED",
    "NodeList": "c1",
    "AllocTRES": "billing=1,cpu=1,mem=1G,node=1",
    "Elapsed": "00:00:05",
    "Submit": "1700000000",
    "Start": "1700000010",
    "End": "1700000015",
    "ExitCode": "0:0",
    "Timelimit": "00:10:00",
    "WorkDir": "/home/alice",
    "StdOut": "/home/alice/slurm-%j.out",
    "JobName": "train",
}


class FakeSlurm:
    """Answers commands from functions instead of running them.

    Args:
        answers: command name to a function of (argv, stdin) that returns standard output, or
            raises the `SlurmError` the real command would have been translated to.

    Attributes:
        asked: every argv that was run, in order.
    """

    def __init__(self, answers: dict[str, Callable[[Sequence[str], str | None], str]]) -> None:
        self._answers = answers
        self.asked: list[list[str]] = []

    @property
    def calls(self) -> int:
        """Commands run so far."""
        return len(self.asked)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        """See `slurmkit.slurm.Slurm.run`."""
        del timeout, errors
        self.asked.append(list(argv))
        return self._answers[argv[0]](argv, stdin)

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        """See `slurmkit.slurm.Slurm.stream`."""
        del timeout
        yield from io.StringIO(self.run(argv), newline="\n")


def squeue_text(argv: Sequence[str], jobs: Iterable[Mapping[str, str]]) -> str:
    """Print jobs as squeue would, in the fields and with the mark that `argv` asks for.

    Args:
        argv: the call that `FakeSlurm` hands on.
        jobs: fields by their names for `squeue -O`; at least `JobArrayID`. What is not given is
            that of a small job that runs.
    """
    asked = [field.split(":") for field in argv[argv.index("-O") + 1].split(",")]
    lines = ("".join(_field(job, name) + mark for name, mark in asked) for job in jobs)
    return "".join(f"{line}\n" for line in lines)


def sacct_text(argv: Sequence[str], runs: Iterable[Mapping[str, str]]) -> str:
    """Print runs or steps as sacct would, in the fields and with the mark that `argv` asks for.

    Args:
        argv: the call that `FakeSlurm` hands on.
        runs: fields by their names for `sacct --format`; at least `JobID`. What is not given is
            that of a small job that completed.
    """
    given = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    names, mark = given["--format"].split(","), given["--delimiter"]
    lines = ("".join(_kept(run, name) + mark for name in names) for run in runs)
    return "".join(f"{line}\n" for line in lines)


def _field(job: Mapping[str, str], name: str) -> str:
    if name == "JobID":
        return job.get(name, job["JobArrayID"].partition("_")[0])
    return job[name] if name in job else _RUNNING.get(name, "")


def _kept(run: Mapping[str, str], name: str) -> str:
    if name == "JobIDRaw":
        return run.get(name, run["JobID"].partition("_")[0])
    return run[name] if name in run else _COMPLETED.get(name, "")
