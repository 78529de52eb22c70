"""Lines as squeue prints them, in any number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmkit.state.queue_rows import squeue_format
from slurmkit.testing import squeue_text

MARK = "\x1fabcd1234"
ARGV = ["squeue", "-O", squeue_format(MARK)]


def lines(*jobs: dict[str, str]) -> list[str]:
    """What squeue prints of these jobs."""
    return squeue_text(ARGV, jobs).splitlines(keepends=True)


def job_records(jobs: str, commands: str | None) -> str:
    """What scontrol prints for commands on its standard input; without any, all these jobs."""
    if commands is None:
        return jobs
    records = re.split(r"^(?=JobId=)", jobs, flags=re.MULTILINE)
    said = []
    for command in commands.splitlines():
        name = command.split()[-1]
        if command.startswith("show hostnames "):
            said.append(f"{name}\n")
        else:
            said += [record for record in records if record.startswith(f"JobId={name} ")]
    return "".join(said)


def job(job_id: str = "12", **fields: str) -> dict[str, str]:
    """One job; `tres_alloc` is `tres-alloc`."""
    return {"JobArrayID": job_id, **{name.replace("_", "-"): text for name, text in fields.items()}}


def many(count: int) -> Iterator[str]:
    """Distinct jobs of some people, as different as those of a real queue."""
    for number in range(count):
        gpus = number % 8 + 1
        yield from squeue_text(
            ARGV,
            [
                {
                    "JobArrayID": str(1_000_000 + number),
                    "UserName": f"user{number % 300}",
                    "tres-alloc": f"cpu={gpus},mem={gpus}G,node=1,gres/gpu={gpus}",
                    "PriorityLong": str(number * 7919 % 100_000),
                    "SubmitTime": str(1_700_000_000 + number),
                    "EligibleTime": str(1_700_000_001 + number),
                    "TimeLimit": f"{number % 600}:00",
                    "WorkDir": f"/home/user{number % 300}/runs",
                    "STDOUT": f"/home/user{number % 300}/runs/slurm-%j.out",
                    "Comment": f"run {number}",
                    "Name": f"train-{number}",
                }
            ],
        ).splitlines(keepends=True)
