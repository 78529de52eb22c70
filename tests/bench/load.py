"""Fill a cluster's queue with distinct jobs."""

from __future__ import annotations

import subprocess
import time

from tests.bench.lab import CLUSTER, Lab, say

LOOPS = 4
# Held, so that nothing starts and the scheduler has no say in what is measured. Each job is an
# sbatch of its own: tasks of an array would share most of what squeue prints.
_SCRIPT = r"""
first=$1 last=$2 loops=$3
people=(alice bob carol dave erin frank judy niaj peggy vogel)
printf '#!/bin/sh\ntrue\n' >/tmp/bench-job
submit() {
    local n user tries
    for ((n = first + $1; n < last; n += loops)); do
        user=${people[n % ${#people[@]}]} tries=0
        until sbatch --hold --uid="$user" --chdir="/home/$user" --export=NONE --partition=gpu \
            --gres="gpu:a100:$((n % 8 + 1))" --time="$((n % 600 + 1))" --job-name="train-$n" \
            --comment="run $n" /tmp/bench-job >/dev/null; do
            ((++tries < 5)) || return 1
            sleep 1
        done
        if (($1 == 0 && (n - first) % 2000 < loops)); then echo "$n"; fi
    done
}
for ((i = 0; i < loops; i++)); do submit "$i" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
"""


def fill(lab: Lab, jobs: int) -> None:
    """Submit what is missing until that many jobs wait.

    Some minutes: sbatch manages 100 to 250 a second on two cores, however many loops run.
    """
    there = lab.jobs()
    if there >= jobs:
        return
    say(f"submitting {jobs - there:,} jobs by {LOOPS} sbatch loops")
    began = time.monotonic()
    words = ("exec", "ctld", "--name", lab.name, "--", "bash", "-s", str(there), str(jobs))
    with subprocess.Popen(
        [str(CLUSTER), *words, str(LOOPS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(_SCRIPT)
        process.stdin.close()
        for line in process.stdout:
            _progress(int(line) - there, jobs - there, time.monotonic() - began)
    if process.returncode:
        raise SystemExit(f"the queue could not be filled: exit status {process.returncode}")
    say(f"{jobs - there:,} jobs in {time.monotonic() - began:.0f} s")


def _progress(done: int, wanted: int, seconds: float) -> None:
    if done > 0:
        rest = (wanted - done) * seconds / done
        say(f"  {done:,} of {wanted:,}, {done / seconds:.0f}/s, {rest / 60:.0f} min to go")
