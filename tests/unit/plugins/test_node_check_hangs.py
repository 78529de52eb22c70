"""A driver that hangs: node_check waits for no process that no signal ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from node_lab import SCRIPTS, NodeLab

XID = "[   99.500000] NVRM: Xid (PCI:0000:0f:00): 79, \n"


# A process that got away, and keeps what it inherited: as one in state D, no signal ends it.
HANG = "[ $1 != nvlink ] || exit 1; setsid sh -c 'echo $$ >{0}; exec sleep 600' & wait"


@pytest.fixture
def hanging(node: NodeLab) -> Iterator[Path]:
    pid = node.folder / "pid"
    node.script("nvidia-smi", HANG.format(pid))
    yield pid
    if pid.exists():
        subprocess.run(["kill", "-9", pid.read_text("utf-8").strip()], check=False)


def test_a_check_that_hangs_delays_no_job(node: NodeLab, hanging: Path) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_PROLOG_SECONDS=6")
    node.kernel(XID)
    env = node.environment | {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_ID": "41"}
    # As slurmd's run_command, this waits for the end of the output, not of the process alone.
    done = node.run(env=env)
    os.kill(int(hanging.read_text("utf-8")), 0)  # it still hangs, and nobody has waited for it
    assert done.returncode == 2, "the other checks must still count"
    assert done.stdout == "CRITICAL: xid 0000:0f:00.0: 79\n"
    last = json.loads((node.checks / "prolog.json").read_text("utf-8"))
    states = {each["state"] for each in last["checks"] if "nvidia-smi within" in each["text"]}
    assert states == {"unknown"}


UNKILLABLE = """
import os, sys
sys.path.insert(0, sys.argv.pop(1))
import node_check
os.killpg = lambda *_: None
sys.exit(node_check.main(sys.argv[1:]))
"""


def test_without_a_health_check_a_hung_driver_gets_one_process_in_all(node: NodeLab) -> None:
    """No signal ends it, as in state D: the next prologs and epilogs start no other."""
    node.configure("CHECK_SKIP=leftovers\nCHECK_PROLOG_SECONDS=3\nCHECK_EPILOG_SECONDS=3")
    calls = node.folder / "calls"
    node.script("nvidia-smi", f"[ $1 != nvlink ] || exit 1; echo $$ >>{calls}; exec sleep 600")
    program = [sys.executable, "-c", UNKILLABLE, str(SCRIPTS)]
    try:
        for context in ("prolog", "epilog", "prolog", "epilog"):
            done = subprocess.run(
                [*program, "--context", context], env=node.environment, check=False,
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            last = json.loads((node.checks / f"{context}.json").read_text("utf-8"))
            assert "no answer from nvidia-smi within 3 s" in {
                each["text"] for each in last["checks"]
            }
        assert len(calls.read_text("utf-8").split()) == 1
        assert not (node.checks / "state.json").exists()
    finally:
        kept = json.loads((node.checks / "hanging.json").read_text("utf-8"))["hanging"]
        for pid, _ in (pair for pairs in kept.values() for pair in pairs):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_driver_that_hangs_drains_the_node_by_the_health_check(
    node: NodeLab, hanging: Path
) -> None:
    node.configure("CHECK_SKIP=leftovers\nCHECK_HEALTH_SECONDS=6")
    assert node.run(env=node.environment).returncode == 2
    (told,) = node.told()
    assert told.endswith("Reason=slurmkit: gpus: no answer from nvidia-smi within 6 s")
