"""A fake Slurm for tests of code that uses slurmkit."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

# squeue's output for a plain running job, by the names of its -O fields.
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

# sacct's output for a plain completed job, by the names of its fields.
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
    """A `SlurmCommands` that calls functions instead of running commands.

    Args:
        answers: command name to a function of (argv, stdin) that returns standard output, or
            raises the `SlurmError` for the real command's failure.
        release: what `sacct --version` prints; up to 25.05 sacct takes 128 off exit codes.

    Attributes:
        asked: every argv that was run, in order, without `sacct --version`.
    """

    def __init__(
        self,
        answers: dict[str, Callable[[Sequence[str], str | None], str]],
        *,
        release: str = "26.05.0",
    ) -> None:
        self._answers = answers
        self._release = release
        self.asked: list[list[str]] = []

    @property
    def calls(self) -> int:
        """Number of commands run so far."""
        return len(self.asked)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout: float = 60,
        errors: bool = False,
    ) -> str:
        """Answer one command with its function in `answers`."""
        del timeout, errors
        if list(argv) == ["sacct", "--version"]:
            return f"slurm {self._release}\n"
        self.asked.append(list(argv))
        return self._answers[argv[0]](argv, stdin)

    def stream(
        self, argv: Sequence[str], *, timeout: float | None = None
    ) -> Generator[str, None, None]:
        """Answer one command and yield the output line by line."""
        del timeout
        yield from io.StringIO(self.run(argv), newline="\n")


def squeue_text(argv: Sequence[str], jobs: Iterable[Mapping[str, str]]) -> str:
    """Write jobs as squeue prints them, with the fields and separator that `argv` asks for.

    Args:
        argv: the command that `FakeSlurm` got.
        jobs: fields by their names for `squeue -O`, at least `JobArrayID`; missing ones are
            those of a small running job.
    """
    fields = [field.split(":") for field in argv[argv.index("-O") + 1].split(",")]
    lines = ("".join(_squeue_field(job, name) + mark for name, mark in fields) for job in jobs)
    return "".join(f"{line}\n" for line in lines)


def sacct_text(argv: Sequence[str], runs: Iterable[Mapping[str, str]]) -> str:
    """Write runs or steps as sacct prints them, with the fields and separator `argv` asks for.

    Args:
        argv: the command that `FakeSlurm` got.
        runs: fields by their names for `sacct --format`, at least `JobID`; missing ones are
            those of a small completed job.
    """
    options = dict(word.split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    names, mark = options["--format"].split(","), options["--delimiter"]
    lines = ("".join(_sacct_field(run, name) + mark for name in names) for run in runs)
    return "".join(f"{line}\n" for line in lines)


def _squeue_field(job: Mapping[str, str], name: str) -> str:
    if name == "JobID":
        return job.get(name, job["JobArrayID"].partition("_")[0])
    return job[name] if name in job else _RUNNING.get(name, "")


def _sacct_field(run: Mapping[str, str], name: str) -> str:
    if name == "JobIDRaw":
        return run.get(name, run["JobID"].partition("_")[0])
    return run[name] if name in run else _COMPLETED.get(name, "")
