"""Python functions as jobs: slurmkit's `Executor` beside submitit of PyPI, on the same calls."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator

from tests.bench.lab import Budget, Lab, median_ms, say

CALLS, ROUNDS = 200, 3
TOGETHER, FEWER = 32, 8  # tasks: our default, and what two cores are less busy with
_PEER = "/home/alice/bench-submitit"


def budgets(lab: Lab) -> Iterator[Budget]:
    """Time from the call of map to the first result, and to the last, each in turn.

    Both have as many tasks at once.
    """
    if not _install_peer(lab):
        say("submitit could not be installed: not measured")
        return
    say(f"{CALLS} trivial calls {ROUNDS} times, by slurmkit and by submitit")
    at_once = (str(TOGETHER), str(FEWER))
    found = lab.measure("executor", str(ROUNDS), str(CALLS), _PEER, *at_once)
    lab.run("rm", "-r", _PEER)
    for most in at_once:
        for which in ("first", "last"):
            ours, theirs = (
                median_ms(found[f"{n} {most}"][which]) for n in ("slurmkit", "submitit")
            )
            what = f"{CALLS} trivial calls, {most} tasks at once, to the {which} result"
            yield Budget(what, ours, "0.5 × submitit of PyPI", theirs, ours <= 0.5 * theirs)


def _install_peer(lab: Lab) -> bool:
    """Put submitit, which is Python alone, into a folder on the cluster's shared home."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, "submitit"]
        if subprocess.run(pip, check=False).returncode:
            return False
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(folder, arcname=".")
    unpack = f"mkdir -p {_PEER} && base64 -d | tar -xz --no-same-owner -C {_PEER}"
    lab.run("sh", "-c", unpack, stdin=base64.b64encode(packed.getvalue()).decode())
    return True
