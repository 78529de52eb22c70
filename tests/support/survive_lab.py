"""A small Slurm for the shell of jobs that survive: real bash, real signals, a scontrol of files.

`Slurmctld` plays what slurmctld and slurmd do to a batch job: start it with its restart count, warn
it, end it by SIGTERM and KillWait later by SIGKILL, and requeue it when it, or the test, says so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from waiting import PATIENCE, wait_until

from slurmkit.planning.survival import (
    SurvivalTimings,
    as_one_block,
    as_work_function,
    survival_lines,
)
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.survival import Survive

PACE = SurvivalTimings(
    kill_wait=2, pause=0.05, tick=0.1, lease=2, fence=1, patience=4, margin=0, slack=3, short=0
)
_SCONTROL = r"""#!/bin/bash
cd "$FAKE" || exit 9
[ ! -e away ] || { echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1; }
case "$*" in
  '-o show job'*)
    echo "JobId=7 JobName=$(<name) JobState=$(<state) Reason=$(<reason) Restarts=$(<restarts)" \
      "EndTime=$(date -d "$(<end)" "+${SLURM_TIME_FORMAT/#standard/%FT%T}")" \
      "PreemptTime=$(<preempt) NodeList=n1 Comment=$(<name)" ;;
  requeue*)
    [ ! -e refuse ] || { echo 'Requested operation is presently disabled for job 7' >&2; exit 1; }
    [ "$(<state)" = RUNNING ] || { echo 'Job is pending execution for job 7' >&2; exit 1; }
    echo PENDING >state; echo "$(<restarts) $*" >>requests ;;
  update* | release*)
    sleep 0.2 # long enough for the SIGTERM of a requeue
    [ ! -e late ] || { echo 'Job/step already completing or completed' >&2; exit 1; }
    echo "$(<restarts) $*" >>requests ;;
esac
"""
# As squeue: the fields of -O, each followed by what stands behind its colon.
_SQUEUE = r"""#!/bin/bash
cd "$FAKE" || exit 9
[ ! -e away ] || { echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1; }
[ -z "$SQUEUE_STATES$SQUEUE_PARTITION" ] || exit 0
set -- "${@: -1}"
for id in 8 7; do
  for field in ${1//,/ }; do
    case ${field%%:*} in
      JobID) printf %s "$id" ;;
      Name) printf %s "$(<name)" ;;
      State) if [ "$id" = 7 ]; then printf %s "$(<state)"; else printf PENDING; fi ;;
      RestartCnt) printf %s "$(<restarts)" ;;
      EndTime) date -d "$(<end)" "+${SLURM_TIME_FORMAT/#standard/%FT%T}" | tr -d '\n' ;;
      PreemptTime) printf %s "$(sed s,None,N/A, preempt)" ;;
      Reason) printf %s "$(<reason)" ;;
    esac
    printf %s "${field#*:}"
  done
  echo
done
"""
_NOTHING = "#!/bin/sh\n"
_SRUN = '#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
WORK = """
import os, signal, sys, time
from pathlib import Path
folder, target, way = Path(os.environ["FAKE"]), int(sys.argv[1]), sys.argv[2]
run = os.environ["SLURMKIT_RESTART"]
def save(*_):
    fresh = folder / f".count.{run}"
    fresh.write_text(str(count)); fresh.replace(folder / "count")
    with (folder / "trace").open("a") as file: file.write(f"{time.time()} {run} {count}\\n")
def stop(*_):
    save(); os._exit(0 if way == "exits-0" else 75)
count = int((folder / "count").read_text()) if (folder / "count").exists() else 0
if way in ("exits", "exits-0"):
    for each in (signal.SIGUSR1, signal.SIGTERM): signal.signal(each, stop)
if way == "goes-on": signal.signal(signal.SIGUSR1, save)
if way == "deaf":
    for each in (signal.SIGUSR1, signal.SIGTERM): signal.signal(each, signal.SIG_IGN)
save()
while count < target and not (folder / "enough").exists():
    time.sleep(0.05); count += 1
    if way == "deaf": save()
    if way == "file" and Path(os.environ["SLURMKIT_CHECKPOINT_FILE"]).exists(): stop()
    if way == "raises" and count == 3: sys.exit("a bug")
save()
Path(os.environ["SLURMKIT_CHECKPOINT_FILE"]).unlink(missing_ok=True)
"""
WAYS = ("exits", "exits-0", "goes-on", "deaf", "file", "plain")
"""What work does that is asked for a checkpoint; `plain` knows of nothing, and is ended by it."""


class Slurmctld:
    """One job, its runs, and what was asked of Slurm."""

    def __init__(self, folder: Path, policy: Survive, way: str, *, target: int = 12) -> None:
        self.folder = folder
        self.run = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.home = folder / "home"
        self.output = folder / "output"
        self.preempt_mode = "requeue"
        self.pace = PACE
        self.codes: list[int] = []
        self.name = "train"
        self.environment: dict[str, str] = {}
        self._spec = JobSpec(command=("x",), survive=policy)
        self.work = (sys.executable, "-SE", str(folder / "work.py"), str(target), way)
        (folder / "bin").mkdir()
        for name, text in (
            ("scontrol", _SCONTROL), ("squeue", _SQUEUE), ("srun", _SRUN), ("sacct", _NOTHING),
            ("sinfo", _NOTHING),
        ):  # fmt: skip
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "work.py").write_text(WORK)
        (folder / "requests").touch()

    def set(self, **facts: str) -> None:
        for name, value in facts.items():
            (self.folder / name).write_text(f"{value}\n")

    def clear(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def requests(self, run: int | None = None) -> list[str]:
        """What the job asked of Slurm, all or in one of its runs."""
        lines = (self.folder / "requests").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if run in (None, int(line.split()[0]))]

    @property
    def count(self) -> int:
        path = self.folder / "count"
        return int(path.read_text()) if path.exists() else 0

    @property
    def history(self) -> str:
        return (self.home / ".local/state/slurmkit/runs/lab/7/history").read_text()

    @property
    def log(self) -> str:
        return self.output.read_text() if self.output.is_file() else ""

    def start(self, seconds: float = 3600) -> subprocess.Popen[bytes]:
        """Start the next run, with so long until its limit."""
        end = datetime.fromtimestamp(time.time() + seconds, UTC).astimezone()
        self.set(state="RUNNING", reason="None", restarts=str(self.run), preempt="None",
                 name=self.name, end=end.strftime("%Y-%m-%dT%H:%M:%S"))  # fmt: skip
        before = survival_lines(self._spec, self.preempt_mode, self.pace)
        words = " ".join(f"'{word}'" for word in self.work)
        script = "\n".join([*before, *as_one_block(as_work_function((f"srun -n1 -- {words}",)))])
        (self.folder / "script").write_text(f"{script}\n")
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "FAKE": str(self.folder),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1",
            "SLURM_CLUSTER_NAME": "lab",
            "SLURM_TIME_FORMAT": "%F",  # a user's taste, which says nothing of the hour
            "SLURM_MEM_PER_NODE": "1000",
            **self.environment,
            **({"SLURM_RESTART_COUNT": str(self.run)} if self.run else {}),
        }
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                ["bash", str(self.folder / "script")], env=environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        return self.process

    def await_work(self) -> None:
        """Until the work of this run has begun, and hears signals."""
        trace = self.folder / "trace"
        wait_until(
            lambda: trace.exists() and f" {self.run} " in trace.read_text(), lambda: self.log
        )

    def finish(self, seconds: float = PATIENCE) -> str:
        """Let a run come to its end: `done`, `failed`, `requeued` or `held`."""
        process = self.process
        assert process is not None
        end = time.time() + seconds
        while process.poll() is None and not self._is_gone() and time.time() < end:
            time.sleep(0.02)
        if process.poll() is None and self._is_gone():
            self.terminate()
        assert process.poll() is not None, f"it never ends:\n{self.log}"
        self.codes.append(process.returncode)
        self.kill()
        if not self._is_gone():
            return "failed" if process.returncode else "done"
        self.run += 1
        last = [each for each in self.requests(self.run - 1) if each.startswith(("requeue", "rel"))]
        return "held" if last and last[-1].startswith("requeuehold") else "requeued"

    def _is_gone(self) -> bool:
        return (self.folder / "state").read_text().strip() == "PENDING"

    def requeue(self) -> None:
        """Slurm itself puts the job back."""
        self.set(state="PENDING")

    def terminate(self) -> None:
        """SIGTERM to all, then SIGKILL."""
        assert self.process is not None
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PACE.kill_wait)
        self.kill()
        self.process.wait()

    def kill(self) -> None:
        """SIGKILL to all of the job, as when its node is lost."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def warn(self, number: signal.Signals = signal.SIGUSR1) -> None:
        """To the batch shell alone, once it is ready to hear it, as bash is after some ms."""
        assert self.process is not None
        while self.process.poll() is None and not catches(self.process.pid, number):
            time.sleep(0.005)
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def signal_steps(self, number: signal.Signals = signal.SIGTERM) -> None:
        """To the steps alone: what a preemption with a grace does first, or `scancel --signal`."""
        for pid in self.pids():
            with suppress(OSError):
                if b"work.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, number)

    def saves(self) -> int:
        """How often work has saved, in all runs; it does so once when it begins."""
        return len((self.folder / "trace").read_text().splitlines())

    def is_paused(self) -> bool:
        """Whether the work is stopped, as by SIGSTOP."""
        states = []
        for pid in self.pids():
            with suppress(OSError):
                if b"work.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    states.append(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0])
        return bool(states) and set(states) == {"T"}

    def pids(self) -> list[int]:
        """Processes of the run's session."""
        assert self.process is not None
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(path.read_text().rpartition(") ")[2].split()[3]) == self.process.pid:
                    found.append(int(path.parent.name))
        return found


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
