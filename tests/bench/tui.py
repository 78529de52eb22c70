"""The TUI: its first frame, and whether it ever stands still."""

from __future__ import annotations

import io
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.bench.lab import CLUSTER, PYTHON, RUNS, Budget, Lab, median_ms, say

JOBS, NODES = 50_000, 10_000
STALL_MS, KEY_MS, MEGABYTES = 50, 50, 300
PAINT_TIMES = 1.6  # of an empty Textual app, which takes 170 to 330 ms on the same machine
IDLE_PERCENT = 3
_LOOKS = 3
PEER = "lazyslurm"
_PEER_AT = "/tmp/bench-peer"
_MORE = """
cd /etc/slurm
cat >>gres.conf <<'END'
NodeName={names} Name=gpu Type=h100 File=/dev/fakegpu[0-7]
END
cat >>nodes.conf <<'END'
SuspendProgram=/bin/true
ResumeProgram=/bin/true
NodeName={names} Gres=gpu:h100:8 State=CLOUD
PartitionName=sim Nodes={names}
END
scontrol reconfigure
for _ in $(seq 30); do scontrol show node >/dev/null && break; done  # it is busy at first
"""


def budgets(lab: Lab, nodes: int = NODES) -> Iterator[Budget]:
    """Measure the TUI on the queue as it is, then on many more nodes."""
    yield from _paint(lab)
    say("looking at the queue")
    yield from _stalls(lab, "queue", "jobs")
    yield from keys(lab)
    with more_nodes(lab, nodes):
        say(f"looking at {nodes:,} more nodes and their GPUs")
        yield from _stalls(lab, "nodes", "nodes")


def _paint(lab: Lab) -> Iterator[Budget]:
    say("opening the TUI")
    found = {
        name: seconds * 1000 for name, seconds in lab.measure("tui", "paint", str(RUNS)).items()
    }
    paint, empty = found["tui"], found["empty"]
    limit, holds = f"{PAINT_TIMES} × an empty Textual app", paint <= PAINT_TIMES * empty
    yield Budget("slurmkit tui, first frame", paint, limit, empty, holds)
    yield Budget("the same, beside import textual", paint, "to compare", found["import"], True)


def _stalls(lab: Lab, what: str, noun: str) -> Iterator[Budget]:
    # The longest of one run is as often another process's turn on this machine as our own work.
    runs = [lab.measure("tui", what) for _ in range(_LOOKS)]
    found = max(runs, key=lambda run: float(run["megabytes"]))
    for doing in found["worst"]:
        worst, own = (median_ms([run[name][doing] for run in runs]) for name in ("worst", "own"))
        named = f"TUI of {found['rows']:,} {noun}, longest stall: {doing}"
        yield Budget(named, worst, f"{STALL_MS} ms", own, worst < STALL_MS)
    size = found["megabytes"]
    yield Budget("the same, memory", size, f"{MEGABYTES} MB", None, size < MEGABYTES, "MB")


def keys(lab: Lab) -> Iterator[Budget]:
    """From a key to the first thing painted, in the Queue, in Home and in a peer; idle Home.

    They do not show the same: the peer only one's own jobs, and it does not refresh by itself.
    """
    say(f"pressing keys in slurmkit tui and in {PEER}")
    code = f"import sys; sys.path.insert(0, {_PEER_AT!r}); from lazyslurm.main import main; main()"
    ours = ["slurmkit", "tui", "--interval", "2", "--view"]
    programs = {"Queue": [*ours, "queue"], "Home": [*ours, "home"]}
    peer = {PEER: [PYTHON, "-c", code]} if _install_peer(lab) else {}
    found = lab.measure("tui", "keys", json.dumps(programs | peer))
    theirs = _late_ms(found[PEER]) if found.get(PEER) else None
    total, own = lab.jobs(), lab.jobs("alice")
    beside = f"; for comparison {PEER} of PyPI with only one's own {own:,}, not refreshing"
    for view in programs:
        what = f"wait for a key, 95th percentile: {view} with {total:,} jobs, refreshing every 2 s"
        wait = _late_ms(found[view])
        yield Budget(what + (beside if peer else ""), wait, f"{KEY_MS} ms", theirs, wait < KEY_MS)
    share = 100 * lab.measure("tui", "idle", json.dumps({"Home": ["slurmkit", "tui"]}))["Home"]
    what = f"Home with {total:,} jobs, left alone, of one core"
    yield Budget(what, share, f"{IDLE_PERCENT} %", None, share < IDLE_PERCENT, "%")


def _late_ms(seconds: Sequence[float]) -> float:
    """The 95th percentile, in milliseconds."""
    return statistics.quantiles(seconds, n=20)[-1] * 1000


def _install_peer(lab: Lab) -> bool:
    """Put it onto the login node, which reaches no package index."""
    version = lab.run(PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder,
                "--python-version", version, "--only-binary=:all:", PEER]  # fmt: skip
        if subprocess.run(argv, check=False, stdout=sys.stderr).returncode:
            return False
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as packed:
            packed.add(folder, arcname=".")
    unpack = f"rm -rf {_PEER_AT} && mkdir {_PEER_AT} && tar -x -C {_PEER_AT}"
    words = ("exec", "login", "--name", lab.name, "--user", "alice", "--", "sh", "-c", unpack)
    subprocess.run([str(CLUSTER), *words], input=data.getvalue(), check=True)
    return True


@contextmanager
def more_nodes(lab: Lab, count: int) -> Iterator[None]:
    """Nodes on paper, with 8 GPUs each: slurmctld knows them, and waits for no daemon (CLOUD)."""
    say(f"making {count:,} nodes")
    script = _MORE.format(names=f"sim[{1:05}-{count:05}]")
    lab.run("bash", "-eu", stdin=script, user="", service="ctld")
    try:
        yield
    finally:
        lab.cluster("reload")  # writes the configuration anew
