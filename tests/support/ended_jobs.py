"""A cluster whose slurmctld has forgotten the recorded jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import NoSuchJob
from slurmkit.jobs.job import Job
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[1] / "recorded"
MARK = "\x1frecorded"


class Ended:
    """A cluster whose slurmctld has forgotten the recorded jobs."""

    def __init__(self, release: str, home: Path, name: str = "ends") -> None:
        self.folder = RECORDED / release
        self.name = name
        self.release = release
        facts = json.loads((self.folder / f"{name}.json").read_text())
        self.ids: dict[str, str] = facts["ids"]
        self.log = home / "log"
        self.log.write_text(facts.get("logs", {}).get("memory", ""))

    def job(self, kind: str) -> Job:
        kind, _, task = kind.partition("_")
        job_id = f"{self.ids[kind]}_{task}" if task else self.ids[kind]
        answers = {"squeue": _unknown, "sacct": self._sacct}
        return Cluster(FakeSlurm(answers, release=self.release)).job(job_id)

    def _sacct(self, argv: Sequence[str], stdin: str | None) -> str:
        given = dict(word.split("=", 1) for word in argv if "=" in word)
        if "--json" in argv:
            return self._json(given["--jobs"])
        if "StdOut" in given["--format"] or "StdErr" in given["--format"]:
            return f"{self.log}{given['--delimiter']}/h{given['--delimiter']}\n"
        name = f"{self.name}.txt" if "-X" in argv else f"{self.name}-steps.txt"
        records = (self.folder / name).read_text().split(f"{MARK}\n")
        chosen = [record for record in records if _of(record, given["--jobs"].split(","))]
        text = "".join(f"{record}{MARK}\n" for record in chosen)
        return text.replace(MARK, given["--delimiter"])

    def _json(self, job_id: str) -> str:
        """Write the exit code as `sacct --json` does: whole, but up to 23.02 always 0.

        The recorded text lacks the 128 of srun's exit code after a step was killed.
        """
        records = (self.folder / f"{self.name}.txt").read_text().split(f"{MARK}\n")
        record = [record for record in records if _of(record, [job_id])][-1].split(MARK)
        if self.release == "22.05":
            code: object = {"status": "SUCCESS", "return_code": 0}
        else:
            number = int(record[-2].partition(":")[0])
            number += 128 * (job_id in {self.ids.get("step-signal"), self.ids.get("memory")})
            returned = {"set": True, "infinite": False, "number": number}
            code = {"status": ["ERROR"], "return_code": returned}
        return json.dumps({"jobs": [{"job_id": int(record[1]), "exit_code": code}]})


def _unknown(argv: Sequence[str], stdin: str | None) -> str:
    raise NoSuchJob("slurm_load_jobs error: Invalid job id specified")


def _of(record: str, ids: list[str]) -> bool:
    job_id = record.partition(MARK)[0].partition(".")[0]
    return bool({job_id, job_id.partition("_")[0]} & set(ids))
