"""The guide "From sbatch to slurmkit": each job runs both ways and gets the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
GUIDE = (Path(__file__).parents[2] / "docs" / "from-sbatch.md").read_text("utf-8")
JOBS = re.split(r"^## (?=\d+\. )", GUIDE, flags=re.MULTILINE)[1:]
FIELDS = "AllocTRES,TimelimitRaw,Partition,NNodes,State,ExitCode"
SCRIPT = "#!/bin/bash\n#SBATCH -p cpu -n 2\n#SBATCH --mem=1G\nsrun hostname\n"


def block(kind: str, text: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def folder(lab: Lab) -> Iterator[str]:
    """Alice's, on the shared filesystem, with the guide's files."""
    path = lab.run("mktemp", "-d", "/home/alice/guide.XXXXXX").stdout.strip()
    files = {"train.sbatch": block("bash", JOBS[9]), "train.toml": block("toml", JOBS[9])}
    files |= {"train.py": block("python", JOBS[9]), "job.sh": SCRIPT}
    for name, text in files.items():
        lab.run("tee", f"{path}/{name}", input=text)
    yield path
    lab.run("rm", "-r", path)


def submitted(lab: Lab, folder: str, commands: str) -> list[str]:
    """Run commands that submit, and return the ids of their jobs."""
    said = lab.run("bash", "-ec", f"cd {folder}\n{commands}").stdout
    ids = re.findall(r"(?:Submitted batch job|submitted job) (\d+)", said)
    assert ids, said
    return ids


@pytest.fixture(scope="module")
def ids(lab: Lab, folder: str) -> dict[tuple[str, str], list[str]]:
    """Every job of the guide, submitted both ways, and ended."""
    ways = [(way, job) for job in JOBS for way in ("sbatch", "slurmkit")]
    found = {(way, job): submitted(lab, folder, block(way, job)) for way, job in ways}
    lab.run("slurmkit", "wait", *(job_id for each in found.values() for job_id in each))
    return found


def got(lab: Lab, ids: list[str]) -> set[str]:
    """What jobs were given, from slurmdbd, which lags behind."""
    asked = ("sacct", "-XnPj", ",".join(ids), "-o", FIELDS)

    def rows() -> list[str]:
        return lab.run(*asked).stdout.split()

    return set(wait_for(rows, lambda found: found and all("COMPLETED" in row for row in found)))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.partition("\n")[0])
def test_both_ways_get_the_same(lab: Lab, ids: dict[tuple[str, str], list[str]], job: str) -> None:
    assert got(lab, ids["slurmkit", job]) == got(lab, ids["sbatch", job])


def test_the_same_in_python(lab: Lab, folder: str) -> None:
    python = "/opt/slurmkit/venv/bin/python"
    done = lab.run("bash", "-c", f"cd {folder} && {python} train.py")
    assert done.stdout == "COMPLETED\n"


def test_there_are_ten() -> None:
    assert len(JOBS) == 10
