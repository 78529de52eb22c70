"""Record how each kind of end looks in sacct, and how control commands refuse, on one release.

Needs a cluster of its own, since it kills a node on the way:

    docker/cluster up --slurm 22.05 --name record2205
    python tests/recorded/record_ends.py --name record2205
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from slurmkit.jobs.accounting_records import _FIELDS as RUN_FIELDS
from slurmkit.jobs.accounting_records import _STEP_FIELDS as STEP_FIELDS

HERE = Path(__file__).parent
CLUSTER = HERE.parents[1] / "docker" / "cluster"
MARK = "\x1frecorded"
EAT = "python3 -c 'x = bytearray(400000000); import time; time.sleep(30)'"
# Partition cpu, two minutes, and these; the command comes last.
ENDS = {
    "completed": ["true"],
    "failed": ["exit 3"],
    "signal": ["kill -SEGV $$"],
    "step-signal": ["srun bash -c 'kill -SEGV $$'"],
    "timeout": ["--time=1", "sleep 300"],
    "cancelled": ["sleep 300"],
    "memory": ["--mem=100M", f"srun {EAT}"],
    "memory-batch": ["--mem=100M", EAT],
    "no-output": ["--output=/nonexistent/log", "true"],
    "requeued": ["sleep 20; exit $SLURM_RESTART_COUNT"],
    "array": ["--array=1-6%2", "exit $((SLURM_ARRAY_TASK_ID % 3))"],
    "array-cancelled": ["--array=1-9%2", "--begin=now+9999", "true"],
    "dependent": ["--kill-on-invalid-dep=yes", "true"],
    "preempted": ["--partition=mps", "--qos=scavenger", "--gres=gpu:2", "sleep 20"],
    "preempted-last": [
        *("--partition=untyped", "--qos=scavenger", "--gres=gpu:4", "--no-requeue", "sleep 60"),
    ],
    "node": ["--partition=mig", "sleep 15"],
    "node-last": ["--partition=mig", "--no-requeue", "sleep 45"],
    "deadline": ["--partition=mig", "--exclusive", "--time=1", "--deadline=now+62", "true"],
}


class Recorder:
    """Runs commands on the cluster's login node."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *argv: str, user: str = "alice") -> subprocess.CompletedProcess[str]:
        env = ["env", "SLURM_TIME_FORMAT=%s", "LC_ALL=C.UTF-8", "SLURM_BITSTR_LEN=0"]
        command = [CLUSTER, "exec", "login", "--name", self.name, "--user", user, "--"]
        return subprocess.run([*command, *env, *argv], capture_output=True, text=True, check=False)

    def docker(self, verb: str, service: str) -> None:
        subprocess.run(["docker", verb, f"slurmkit-{self.name}-{service}"], check=True)

    def submit(self, *options: str, command: str) -> str:
        common = ["--partition=cpu", "--time=2", "--output=end-%j"]
        argv = ["sbatch", "--parsable", *common, *options, f"--wrap={command}"]
        done = self.run(*argv)
        return done.stdout.strip() or sys.exit(f"{options}: {done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    recorder = Recorder(parser.parse_args().name)
    release = ".".join(recorder.run("scontrol", "--version").stdout.split()[1].split(".")[:2])
    folder = HERE / release

    ids: dict[str, str] = {}
    for kind, (*options, command) in ENDS.items():
        after = [f"--dependency=afterok:{ids['failed']}"] if kind == "dependent" else []
        ids[kind] = recorder.submit(*options, *after, f"--job-name={kind}", command=command)
    time.sleep(8)
    recorder.docker("kill", "c5")
    recorder.run("scancel", ids["cancelled"], user="olga")
    recorder.run("scancel", ids["array-cancelled"])
    recorder.run("scontrol", "requeue", ids["requeued"])
    for where in ("mps", "untyped"):
        gpus = "--gres=gpu:2" if where == "mps" else "--gres=gpu:4"
        recorder.submit(f"--partition={where}", gpus, "--job-name=preemptor", command="sleep 3")
    controls = control(recorder)
    (folder / "control.json").write_text(json.dumps(controls, indent=1) + "\n", "utf-8")
    time.sleep(45)
    recorder.docker("start", "c5")
    time.sleep(90)
    while live := recorder.run("squeue", "--noheader", "--format=%i %j %T").stdout.strip():
        print(live, file=sys.stderr)
        time.sleep(5)
    save(recorder, folder, ids)
    print(f"recorded {release} in {folder}", file=sys.stderr)


def save(recorder: Recorder, folder: Path, ids: dict[str, str]) -> None:
    sacct = ["sacct", "--noheader", "--parsable", f"--delimiter={MARK}"]
    jobs = f"--jobs={','.join(ids.values())}"
    runs = recorder.run(*sacct, "-X", "-D", jobs, f"--format={','.join(RUN_FIELDS.values())}")
    (folder / "ends.txt").write_text(runs.stdout, "utf-8")
    steps = recorder.run(*sacct, jobs, f"--format={','.join(STEP_FIELDS.values())}")
    (folder / "ends-steps.txt").write_text(steps.stdout, "utf-8")
    logs = {kind: recorder.run("cat", f"end-{ids[kind]}").stdout for kind in ("memory", "timeout")}
    facts = {"ids": ids, "logs": logs}
    (folder / "ends.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")


def control(recorder: Recorder) -> dict[str, dict[str, object]]:
    """How control commands refuse: expected error class, exit code and words."""
    said: dict[str, dict[str, object]] = {}
    nope = "999999"
    ended = recorder.submit(command="true")
    waits = recorder.submit("--begin=now+9999", command="true")
    others = recorder.run(
        "sbatch", "--parsable", "--partition=cpu", "--begin=now+9999", "--wrap=true", user="bob"
    ).stdout.strip()
    runs = recorder.submit("--no-requeue", command="sleep 60")
    time.sleep(10)

    def note(kind: str, job_id: str, *argv: str) -> None:
        done = recorder.run(*argv)
        words = {"error": kind, "id": job_id, "code": done.returncode}
        said[" ".join(argv)] = {**words, "stdout": done.stdout, "stderr": done.stderr}

    for kind, job_id in (("NoSuchJob", nope), ("JobOver", ended), ("Refused", others)):
        note(kind, job_id, "scontrol", "hold", job_id)
        note(kind, job_id, "scontrol", "release", job_id)
        note(kind, job_id, "scontrol", "update", f"JobId={job_id}", "TimeLimit=1")
        note(kind, job_id, "scancel", "--verbose", job_id)
    note("NoSuchJob", nope, "scontrol", "requeue", nope)
    note("Refused", runs, "scontrol", "requeue", runs)
    note("Refused", waits, "scontrol", "requeue", waits)
    note("Refused", runs, "scontrol", "update", f"JobId={runs}", "TimeLimit=9")
    note("Refused", runs, "scontrol", "update", f"JobId={runs}", "Partition=gpu")
    note("Refused", waits, "scontrol", "update", f"JobId={waits}", "Partition=nope")
    note("Refused", waits, "scontrol", "update", f"JobId={waits}", "Priority=5")
    note("Refused", waits, "scontrol", "update", f"JobId={waits}", "Nice=-5")
    note("Several", waits, "scancel", "--verbose", nope, ended, others, waits)
    recorder.run("scancel", others, user="bob")
    recorder.run("scancel", runs)
    return said


if __name__ == "__main__":
    main()
