"""Submitting from outside, over one SSH connection, beside the same loop on the login node."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.lab import RUNS, Budget, Lab, median_ms, say
from tests.cluster.cluster_lab import Lab as Outside
from tests.cluster.ssh_person import Person

JOBS = 1000
_LOOP = Path(__file__).parent / "inside" / "loop.py"


def budgets(lab: Lab) -> Iterator[Budget]:
    """A thousand submits of the same script both ways, in turn."""
    say(f"submitting {JOBS:,} jobs {RUNS} times, over SSH and on the login node")
    with tempfile.TemporaryDirectory() as folder:
        alice = Person(Outside(lab.name, ""), "alice", Path(folder))
        with alice.let_in():
            times = [(_over_ssh(alice), _there(lab)) for _ in range(RUNS)]
    ours, theirs = (median_ms(seconds) for seconds in zip(*times, strict=True))
    what = f"{JOBS:,} submits over SSH"
    yield Budget(what, ours, "1.3 × the same loop there", theirs, ours <= 1.3 * theirs)


def _over_ssh(alice: Person) -> float:
    argv, text = [sys.executable, "-", str(JOBS), "lab"], _LOOP.read_text("utf-8")
    given = {"env": alice.env, "cwd": alice.folder, "input": text, "text": True}
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, **given)
    return float(json.loads(done.stdout)["seconds"])


def _there(lab: Lab) -> float:
    return float(lab.measure("loop", str(JOBS))["seconds"])
