"""Record what Slurm's commands print on one release, for the parsers' tests.

Needs a cluster of its own, since it stops slurmctld and slurmdbd on the way:

    docker/cluster up --slurm 22.05 --name record2205
    python tests/recorded/record.py --name record2205
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from slurmkit.jobs.accounting_records import _FIELDS as SACCT_FIELDS
from slurmkit.state.queue_rows import squeue_format

HERE = Path(__file__).parent
CLUSTER = HERE.parents[1] / "docker" / "cluster"
MARK = "\x1frecorded"
HOSTILE = "evil\n\x1b[2J|\x1f9 root"
JOBS = {
    "typed": ["--gres=gpu:a100:2", "--nodes=2"],
    "h100": ["--partition=gpu", "--gres=gpu:h100:1"],
    "untyped": ["--partition=untyped", "--gres=gpu:2"],
    "shard": ["--gres=shard:3"],
    "mig": ["--partition=mig", "--gres=gpu:a100_3g.20gb:1"],
    "mps": ["--partition=mps", "--gres=mps:50"],
    "cpu": ["--partition=cpu", f"--job-name={HOSTILE}"],
    "pending": ["--gres=gpu:a100:8", "--nodes=2", "--exclusive"],
    "array": ["--partition=cpu", "--array=1-9%1"],
    "later": ["--partition=cpu", "--begin=now+1hour", "--dependency=singleton", "--nodelist=c7"],
}


class Recorder:
    """Runs commands on the cluster's login node as alice."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = ["env", "SLURM_TIME_FORMAT=%s", "LC_ALL=C.UTF-8"]
        command = [CLUSTER, "exec", "login", "--name", self.name, "--user", "alice", "--"]
        return subprocess.run([*command, *env, *argv], capture_output=True, text=True, check=False)

    def docker(self, verb: str, service: str) -> None:
        subprocess.run(["docker", verb, f"slurmkit-{self.name}-{service}"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    recorder = Recorder(parser.parse_args().name)
    release = ".".join(recorder.run("scontrol", "--version").stdout.split()[1].split(".")[:2])
    folder = HERE / release
    folder.mkdir(exist_ok=True)

    wrap = ["--output=/dev/null", "--time=5", "--wrap=sleep 60"]
    ids = {}
    for kind, options in JOBS.items():
        ids[kind] = recorder.run("sbatch", "--parsable", *options, *wrap).stdout.strip()
        time.sleep(1)  # each starts before one that would go first
    time.sleep(5)
    squeue = recorder.run("squeue", "--noheader", "--states=all", "-O", squeue_format(MARK))
    (folder / "squeue.txt").write_text(squeue.stdout, "utf-8")
    for kind, job_id in ids.items():
        shown = recorder.run("scontrol", "show", "job", "--details", job_id)
        (folder / f"scontrol-job-{kind}.txt").write_text(shown.stdout, "utf-8")
    recorder.run("scancel", *ids.values())
    time.sleep(15)
    fields = ",".join(SACCT_FIELDS.values())
    sacct = ["sacct", "-X", "-D", "--noheader", "--parsable", f"--delimiter={MARK}"]
    (folder / "sacct.txt").write_text(recorder.run(*sacct, f"--format={fields}").stdout, "utf-8")
    (folder / "errors.json").write_text(json.dumps(errors(recorder), indent=1) + "\n", "utf-8")
    print(f"recorded {release} in {folder}", file=sys.stderr)


def errors(recorder: Recorder) -> dict[str, dict[str, object]]:
    """How each command fails: expected error class, exit code and words."""
    said = {}

    def note(name: str, kind: str, *argv: str) -> None:
        done = recorder.run(*argv)
        said[name] = {"error": kind, "code": done.returncode, "said": done.stderr}

    note("squeue: no such job", "NoSuchJob", "squeue", "--jobs=999999")
    note("scontrol: no such job", "NoSuchJob", "scontrol", "show", "job", "999999")
    note("scancel: no such job", "NoSuchJob", "scancel", "999999")
    note("sbatch: no such account", "Refused", "sbatch", "--account=nope", "--wrap=true")
    note("sbatch: no such partition", "Refused", "sbatch", "--partition=nope", "--wrap=true")
    note("sacct: no such field", "Refused", "sacct", "--format=Nope")
    recorder.docker("stop", "ctld")
    note("squeue: no slurmctld", "ControllerDown", "squeue")
    note("sbatch: no slurmctld", "ControllerDown", "sbatch", "--wrap=true")
    note("scancel: no slurmctld", "ControllerDown", "scancel", "1")
    recorder.docker("start", "ctld")
    recorder.docker("stop", "dbd")
    note("sacct: no slurmdbd", "DatabaseDown", "sacct", "-X")
    recorder.docker("start", "dbd")
    return said


if __name__ == "__main__":
    main()
