"""Write files of state, cache and configuration with the slurmkit that is on the path.

tests/recorded/state-0.1 was written so, with slurmkit 0.1.0 (two commits before 8264a27):

    git archive 8264a27~2 | tar -x -C /tmp/old
    cd /tmp/old && PYTHONPATH=.:tui:tests/support python record_state.py FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

FOLDER = Path(sys.argv[1]).absolute()
os.environ |= {"XDG_STATE_HOME": f"{FOLDER}/state", "XDG_CACHE_HOME": f"{FOLDER}/cache"}

from recorded_lab import capabilities  # noqa: E402 - the folders come first
from slurmkit_tui.jobform.draft import Draft  # noqa: E402
from slurmkit_tui.jobform.draft_store import DraftStore  # noqa: E402
from slurmkit_tui.state_files import save_columns  # noqa: E402

from slurmkit import Gpus, JobSpec, Survive, Sweep  # noqa: E402
from slurmkit.cluster.sweeps import ArrayRecord, SentArray, save_record  # noqa: E402
from slurmkit.cluster.workflow_record import (  # noqa: E402
    SentJob,
    WorkflowRecord,
    WorkflowRecords,
)
from slurmkit.executor.runs import CallRun, save_run  # noqa: E402
from slurmkit.jobs.backends.ssh import PendingSubmit, save_pending_submit  # noqa: E402
from slurmkit.spec.containers import Container  # noqa: E402
from slurmkit.spec.jobspec import Launch  # noqa: E402
from slurmkit.state.cache import save_cached  # noqa: E402

AT = 1_764_000_000
SPEC = JobSpec(
    command=("python", "train.py", "--lr", "{lr}"),
    job_name="train",
    gpus=Gpus(2, "a100"),
    nodes=2,
    time="1:00:00",
    mem="64G",
    partition="gpu",
    environment={"MODE": "fast"},
    comment="mine",
    nice=5,
    options={"core-spec": "1"},
    container=Container(image="ubuntu:24.04"),
    launch=Launch(launcher="torchrun"),
    survive=Survive(on_timeout="requeue"),
    sweep=Sweep(("lr",), (("0.1",), ("0.2",))),
)
CLUSTER = SimpleNamespace(capabilities=lambda: SimpleNamespace(cluster_name="lab"))


def main() -> None:
    """Write one file of each kind."""
    save_record(
        CLUSTER,  # type: ignore[arg-type]
        ArrayRecord(
            token="0123456789ab", submitted=float(AT), total=2, planned=1,
            sent=(SentArray("12", "0-1", 0),), secrets=("API_TOKEN",), spec=SPEC,
        ),
    )  # fmt: skip
    jobs = {
        "prepare": SentJob((), "d1", ("20",)),
        "train": SentJob(("prepare:afterok",), "d2", ("21",), held=True, array="0-3"),
    }
    WorkflowRecords(CLUSTER).write(  # type: ignore[arg-type]
        WorkflowRecord("0a1b2c3d", "nightly", "/w/nightly.toml", "/w", AT, "sending", jobs)
    )
    run = CallRun(
        folder="/home/alice/.slurmkit-calls/x", name="square", submitted=float(AT),
        tasks=((0, 2), (1,)), ids=("30_0", "30_1"), first="30",
    )  # fmt: skip
    save_run(run, "lab")
    save_pending_submit(PendingSubmit("feedc0de", "lab", "/home/alice/.m/feedc0de", "train", AT))
    save_columns("queue", ("id", "user", "gpus"))
    DraftStore("lab").save(Draft({"command": "python train.py", "time": "1:00:00"}, "job 12"))
    save_cached("capabilities", "lab", capabilities())


if __name__ == "__main__":
    main()
