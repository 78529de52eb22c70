"""Record what sacct and sstat say of steps: of a job that runs, and once it was cancelled.

python tests/recorded/record_steps.py --name lab
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from record import MARK, Recorder

from slurmkit.jobs.steps import sacct_argv, sstat_argv

HERE = Path(__file__).parent
SCRIPT = (
    "srun -n1 true; srun -n1 --job-name='evil\n[b]' sh -c 'exit 3';"
    " srun -n2 sh -c 'while :; do :; done'"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    recorder = Recorder(parser.parse_args().name)
    release = ".".join(recorder.run("scontrol", "--version").stdout.split()[1].split(".")[:2])
    folder = HERE / release
    options = ["--parsable", "--ntasks=2", "--time=5", "--output=/dev/null", "--array=4"]
    job = recorder.run("sbatch", *options, f"--wrap={SCRIPT}").stdout.strip()
    time.sleep(40)
    note(recorder, folder / "uses-running.txt", sacct_argv(MARK, f"--jobs={job}"))
    raw = recorder.run("squeue", "--noheader", "--format=%A", f"--jobs={job}").stdout.strip()
    note(recorder, folder / "uses-sstat.txt", sstat_argv([raw]))
    recorder.run("scancel", job)
    time.sleep(15)
    note(recorder, folder / "uses-ended.txt", sacct_argv(MARK, f"--jobs={job}"))


def note(recorder: Recorder, path: Path, argv: list[str]) -> None:
    path.write_text(recorder.run(*argv).stdout, "utf-8")


if __name__ == "__main__":
    main()
