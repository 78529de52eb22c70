"""Record how sacct shows jobs that ran out of memory, on one release.

Slurm says OUT_OF_MEMORY only where memory cgroups are, which the cluster of containers has not. So
jobs run there as any, and slurmdbd's database is then told of them what slurmctld keeps of such
ends elsewhere (see out-of-memory.json, of clusters that have cgroups); sacct's words are its own.

    docker/cluster up --slurm 24.11 --name record2411
    python tests/recorded/record_memory.py --name record2411
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time

from record_ends import HERE, MARK, RUN_FIELDS, STEP_FIELDS, Recorder

OUT_OF_MEMORY, FAILED, COMPLETED = (11, 125), (5, 256), (3, 0)  # job_states, and as wait(2) has it
BATCH, FIRST = -5, 0  # numbers of steps
# Each task of an array: its own end, that of its batch script, and of its step.
TASKS = {
    1: (OUT_OF_MEMORY, OUT_OF_MEMORY, COMPLETED),  # the script itself
    2: (OUT_OF_MEMORY, FAILED, OUT_OF_MEMORY),
    3: (FAILED, FAILED, OUT_OF_MEMORY),  # a step alone; the script ends with srun's exit code
    4: (COMPLETED, COMPLETED, OUT_OF_MEMORY),  # the script did not mind
    5: (FAILED, FAILED, COMPLETED),  # its own mistake
    6: (COMPLETED, COMPLETED, COMPLETED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    recorder = Recorder(parser.parse_args().name)
    release = ".".join(recorder.run("scontrol", "--version").stdout.split()[1].split(".")[:2])
    array = recorder.submit(f"--array=1-{len(TASKS)}", "--job-name=memory", command="srun true")
    single = recorder.submit("--job-name=memory-batch", command="srun true")
    while recorder.run("squeue", "--noheader", f"--jobs={array},{single}").stdout.strip():
        time.sleep(2)
    time.sleep(5)  # until slurmdbd has heard
    for task, ends in TASKS.items():
        tell(recorder, f"id_array_job = {array} and id_array_task = {task}", ends)
    tell(recorder, f"id_job = {single}", TASKS[1])
    save(recorder, release, {"array": array, "batch": single})


def tell(recorder: Recorder, which: str, ends: tuple[tuple[int, int], ...]) -> None:
    """Set how a job, its batch script and its step ended."""
    of_job = f"job_db_inx in (select job_db_inx from CLUSTER_job_table where {which})"  # noqa: S608
    batch, step = (f"id_step = {number} and {of_job}" for number in (BATCH, FIRST))
    rows = (("job", which), ("step", batch), ("step", step))
    for (table, where), (state, code) in zip(rows, ends, strict=True):
        change = f"CLUSTER_{table}_table set state = {state}, exit_code = {code} where {where}"
        query(recorder, f"update {change}")


def query(recorder: Recorder, words: str) -> None:
    database = ["docker", "exec", f"slurmkit-{recorder.name}-db", "mariadb", "slurm"]
    subprocess.run([*database, "-e", words.replace("CLUSTER", recorder.name)], check=True)


def save(recorder: Recorder, release: str, ids: dict[str, str]) -> None:
    sacct = [
        "sacct",
        "--noheader",
        "--parsable",
        f"--delimiter={MARK}",
        f"--jobs={','.join(ids.values())}",
    ]
    runs = recorder.run(*sacct, "-X", "-D", f"--format={','.join(RUN_FIELDS.values())}")
    steps = recorder.run(*sacct, f"--format={','.join(STEP_FIELDS.values())}")
    folder = HERE / release
    (folder / "memory.txt").write_text(runs.stdout, "utf-8")
    (folder / "memory-steps.txt").write_text(steps.stdout, "utf-8")
    (folder / "memory.json").write_text(json.dumps({"ids": ids}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
