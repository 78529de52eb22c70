"""squeue and sacct over what the stand-in for sbatch kept; see `ssh_lab`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from slurmkit.testing import sacct_text, squeue_text


def main() -> None:
    jobs, name, *argv = sys.argv[1:]
    found = [_job(each) for each in sorted(Path(jobs).iterdir())]
    if (Path(jobs).parent / f"no-{name}").exists():
        sys.exit(f"{name}: error: Unable to contact slurm controller (connect failure)")
    if name == "squeue":
        sys.stdout.write(squeue_text([name, *argv], found))
    elif name == "sacct":
        argv = ["--parsable" if word == "-P" else word for word in argv]
        sys.stdout.write(sacct_text([name, *argv], found))


def _job(folder: Path) -> dict[str, str]:
    words = (folder / "argv").read_text("utf-8").splitlines()
    given = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    line = "sbatch " + " ".join(words)
    job_id = folder.name
    more = folder / "fields.json"
    return {"JobArrayID": job_id, "JobID": job_id, "Comment": given.get("comment", ""),
            "SubmitLine": line, "Name": given.get("job-name", ""),
            **(json.loads(more.read_bytes()) if more.exists() else {})}  # fmt: skip


main()
