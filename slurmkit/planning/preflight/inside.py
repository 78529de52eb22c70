"""The preflight inside a job: measure its nodes with all_reduce_perf, and find the bad one.

This file goes into batch scripts as it is, and is run there by whatever python3 the first node
has, from 3.6 on: it stands alone, and needs the standard library only.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = "SLURMKIT_PREFLIGHT_RESULTS"
"""Variable with a file that gets each result as a line of JSON; stored results are then ignored."""
MOST_REQUEUES = 3
"""A job that finds a bad node each time is stopped in the end: perhaps too much is expected."""
# In each task. The file that -J names must not exist, and holds the whole environment; task 0 has
# it, maybe on a node that shares no folder with this one. What NCCL prints is not the result.
_TASK = (
    'umask 077; d=$(mktemp -d) || exit; trap "rm -rf $d" EXIT; "$@" -J "$d/r.json" >&2; c=$?;'
    ' [ "$SLURM_PROCID" != 0 ] || cat "$d/r.json"; exit $c'
)
# Outside of the container, on each node. The name is pyxis' (container_scope global, or job).
_REMOVE = 'enroot remove -f "pyxis_$1" || enroot remove -f "pyxis_${SLURM_JOB_ID}_$1"'
# Variables of the job's own tasks, which srun would refuse or warn about, and variables that
# would change the test.
_LEFT_OUT = (
    "SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_NTASKS_PER_GPU NCCL_TESTS_MIN_BW"
    " NCCL_TESTS_DEVICE NCCL_TESTS_SPLIT NCCL_TESTS_SPLIT_MASK"
).split()
_TAIL = 2000  # bytes of a run's error output
_PATIENCE = 60  # seconds in which srun ends its step


class Result(NamedTuple):
    """The result of one run of all_reduce_perf.

    Attributes:
        bandwidth: its average bus bandwidth in GB/s (10^9); None without a result.
        wrong: values that came out wrong.
        devices: what it ran on, as the program names it.
        trouble: the last error output where there is no result, or the run failed after it.
        ranks: how many processes measured together; 0 where that is not known.
    """

    bandwidth: "float | None" = None
    wrong: int = 0
    devices: str = ""
    trouble: str = ""
    ranks: int = 0

    def good(self, least: float) -> bool:
        """Whether all sums are right, and as fast as wanted."""
        fine = self.bandwidth is not None and self.wrong == 0 and not self.trouble
        return fine and (self.bandwidth or 0.0) >= least

    @property
    def summary(self) -> str:
        """The result in a few words, without what is expected."""
        if self.bandwidth is None:
            return "no result"
        wrong = f", {self.wrong} wrong values" if self.wrong else ""
        return f"{self.bandwidth:.1f} GB/s{wrong or (', and it failed' if self.trouble else '')}"


class Enough(Exception):
    """It costs too much to go on looking."""


class FaultyNodes(NamedTuple):
    """The nodes at fault.

    Attributes:
        bad: nodes that are at fault.
        suspects: nodes of which one is at fault.
    """

    bad: "tuple[str, ...]"
    suspects: "tuple[str, ...]" = ()


def read(text: str, trouble: str = "") -> Result:
    """Read the JSON of nccl-tests (`-J`); what was not measured stands there as "nan", or not."""
    try:
        found = json.loads(text)
        bandwidth = float(found["average_bus_bandwidth"]["bandwidth"])
        wrong = int(found["out_of_bounds"]["count"])
        names = Counter(str(each["device_info"]).strip() for each in found["config"]["devices"])
    except (ValueError, KeyError, TypeError):
        return Result(trouble=trouble or "it wrote no JSON, which nccl-tests 2.17.3 can")
    if bandwidth != bandwidth:  # noqa: PLR0124 - not a number
        return Result(trouble=trouble or "it measured nothing")
    devices = ", ".join(f"{count} x {name}" for name, count in names.items())
    return Result(bandwidth, wrong, devices, trouble, sum(names.values()))


def locate(
    nodes: "Sequence[str]", passes: "Callable[[tuple[str, ...]], bool]", *, alone: bool
) -> FaultyNodes:
    """Find the bad ones of nodes that failed together, by halves.

    A node by itself shows nothing of its network, so the last ones are tried with one that is
    known to be good; only where there is none, by themselves.

    Args:
        nodes: at least one.
        passes: whether a group of nodes is good.
        alone: whether a single node can be measured; one GPU has none to send to.
    """
    good, single, failing = [], [], [tuple(nodes)]  # type: list[str], list[str], list[tuple[str, ...]]
    while failing:
        group = failing.pop()
        middle = len(group) // 2 if len(group) > 2 else 1
        for half in filter(None, (group[:middle], group[middle:])):
            if len(half) == 1:
                single.extend(half)
            elif passes(half):
                good.extend(half)
            else:
                failing.append(half)
    good = good or _pair(single, passes)
    rest = [node for node in single if node not in good]
    if good:
        return FaultyNodes(tuple(node for node in rest if not passes((good[0], node))))
    if len(rest) == 1:
        return FaultyNodes(tuple(rest))
    bad = tuple(node for node in rest if alone and not passes((node,)))
    return FaultyNodes(bad, tuple(node for node in rest if node not in bad))


def most_runs(nodes: int) -> int:
    """Runs after the first that find one bad node out of so many, or two."""
    return 4 * (nodes - 1).bit_length() + 4


def _pair(nodes: "list[str]", passes: "Callable[[tuple[str, ...]], bool]") -> "list[str]":
    """Two neighbours in a ring of nodes that are good together; of two nodes that is known."""
    ring = zip(nodes, nodes[1:] + nodes[:1]) if len(nodes) > 2 else ()  # noqa: B905 - 3.10 has it
    return next((list(pair) for pair in ring if passes(pair)), [])


class Preflight:
    """One preflight of one job.

    Args:
        ask: as `slurmkit.planning.preflight.lines` writes it.
        measure: runs all_reduce_perf over nodes.
    """

    def __init__(
        self, ask: "dict[str, Any]", measure: "Callable[[dict[str, Any], tuple[str, ...]], Result]"
    ) -> None:
        self.ask = ask
        self.measure = measure
        self.results = {}  # type: dict[tuple[str, ...], Result]
        self.most = 0

    def least(self, nodes: "Sequence[str]") -> float:
        """Return the least bandwidth expected, in GB/s; 0 where the site says nothing."""
        return float(self.ask["between" if len(nodes) > 1 else "within"])

    def passes(self, nodes: "tuple[str, ...]") -> bool:
        """Measure a group of nodes, once.

        Raises:
            Enough: where so many runs have not found what is wrong.
        """
        key = tuple(sorted(nodes))
        if key not in self.results:
            if len(self.results) > self.most:
                raise Enough
            self.results[key] = self.measure(self.ask, key)
            add_line(key, self.results[key])
            result, least = self.results[key], self.least(key)
            expected = f" (at least {least:.1f} expected)" if least else ""
            on = f" on {result.devices}" if result.devices else ""
            say(f": {folded(key)}: {result.summary}{expected}{on}")
        return self.results[key].good(self.least(key))

    def run(self, nodes: "tuple[str, ...]") -> "FaultyNodes | None":
        """Measure all; None where all is good."""
        self.most = most_runs(len(nodes))
        if self.passes(nodes):
            return None
        try:
            return locate(nodes, self.passes, alone=self.ask["gpus"] > 1)
        except Enough:
            fine = {n for g, r in self.results.items() if r.good(self.least(g)) for n in g}
            return FaultyNodes((), tuple(node for node in nodes if node not in fine))

    def whole(self, nodes: "tuple[str, ...]") -> Result:
        """Return the result of all nodes together."""
        return self.results[tuple(sorted(nodes))]

    def leaves(self, nodes: "tuple[str, ...]", found: FaultyNodes) -> "tuple[str, ...]":
        """The nodes without which the job goes back to the queue; none where it stops.

        It goes back where others are good, so that it is not the program or what is expected of it.
        Of two nodes that are bad only together neither can be blamed: it leaves both, but once.
        """
        restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        if self.ask["policy"] != "requeue" or restarts >= MOST_REQUEUES:
            return ()
        measured = self.whole(nodes).bandwidth is not None
        if not found.bad and len(nodes) == len(found.suspects) == 2 and not restarts:
            return found.suspects if measured else ()
        others = len(found.bad) < len(nodes) or (len(nodes) == 1 and measured)
        return found.bad if others else ()

    def verdict(self, nodes: "tuple[str, ...]", found: FaultyNodes) -> str:
        """Name the bad node and the reason, in one line."""
        whole = self.whole(nodes)
        if all(result.bandwidth is None for result in self.results.values()):
            last = whole.trouble.splitlines() or [""]
            return f"{folded(nodes)} could not be measured: {last[-1]}"
        if len(found.bad) == len(nodes) > 1:
            return f"{whole.summary} over {folded(nodes)}, none is better: is too much expected?"
        if found.bad:
            return "; ".join(f"{node} is bad: {self._why(node)}" for node in found.bad)
        measured = (
            f"{whole.summary} over {folded(nodes)}, at least {self.least(nodes):.1f} expected"
        )
        if found.suspects:
            return f"{measured}: one of {folded(found.suspects)} is bad, or the way between"
        return f"{measured}, but parts of them are good: the network between, or a passing trouble"

    def _why(self, node: str) -> str:
        """Describe the smallest failed group that has the node; of several, the last."""
        groups = [g for g in self.results if node in g and not self.results[g].good(self.least(g))]
        group = min(reversed(groups), key=len)
        others = folded([each for each in group if each != node])
        return (
            f"{self.results[group].summary} {f'with {others}' if others else 'by itself'},"
            f" at least {self.least(group):.1f} expected"
        )


def run_program(ask: "dict[str, Any]", nodes: "tuple[str, ...]") -> Result:
    """Run all_reduce_perf over nodes of this job, one process for each GPU."""
    tasks = len(nodes) * ask["gpus"]
    words = ["--", "sh", "-c", _TASK, "sh", *ask["program"]]
    argv = [*srun(nodes, ask["gpus"]), *run_options(ask), *words]
    with tempfile.TemporaryFile() as errors:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        started = subprocess.Popen(
            argv, env=step_environment(ask), stdin=nothing, stdout=pipe, stderr=errors
        )
        text, trouble = _waited(started, ask["seconds"]), ""
        if text is None:
            trouble = f"it was not over after {ask['seconds']} s"
        elif started.returncode:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL))
            last = errors.read().decode("utf-8", "replace").strip()
            trouble = last or f"srun ended with {started.returncode}"
    result = read((text or b"").decode("utf-8", "replace"), trouble)
    if result.ranks in (0, tasks):
        return result
    alone = f"only {result.ranks} of {tasks} processes measured together"
    return Result(trouble=f"{alone}: its MPI does not work with srun --mpi={ask['mpi']}")


def srun(nodes: "Sequence[str]", each: int) -> "list[str]":
    """The words of a step with so many tasks on each of these nodes."""
    at = f"--nodelist={','.join(nodes)}"
    tasks = f"--ntasks={len(nodes) * each}"
    return ["srun", f"--nodes={len(nodes)}", at, tasks, f"--ntasks-per-node={each}"]


def step_environment(ask: "dict[str, Any]") -> "dict[str, str]":
    """The variables of a step."""
    left_out = {*_LEFT_OUT, *ask["without"]}
    return {name: value for name, value in os.environ.items() if name not in left_out}


def container() -> str:
    """The name of the container in which this run of the job measures."""
    restarts = os.environ.get("SLURM_RESTART_COUNT") or "0"
    return f"slurmkit_preflight_{os.environ['SLURM_JOB_ID']}_{restarts}"


def run_options(ask: "dict[str, Any]") -> "list[str]":
    """The options of a run: instead of its image, the container that was unpacked of it."""
    if not ask["unpack"]:
        return list(ask["srun"])
    others = [each for each in ask["srun"] if not each.startswith("--container-image=")]
    return [f"--container-name={container()}", *others]


def unpack(ask: "dict[str, Any]", nodes: "Sequence[str]") -> str:
    """Unpack the image on each node, once for all runs; return why that failed, or nothing.

    It takes minutes for large images.
    """
    say(f": {folded(nodes)}: unpacking the image")
    options = [each for each in ask["srun"] if each.startswith("--container-")]
    name_option = f"--container-name={container()}"
    argv = [*srun(nodes, 1), "--mpi=none", name_option, *options, "--", "sh", "-c", ":"]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    started = subprocess.Popen(argv, env=step_environment(ask), stdin=nothing, stdout=pipe)
    if _waited(started, ask["unpack_seconds"]) is None:
        return (
            f"was not unpacked on each node within {ask['unpack_seconds']} s; for a larger image"
            " or a slower disk raise unpack_seconds in [preflight] of the configuration"
        )
    return "could not be unpacked" if started.returncode else ""


def remove(ask: "dict[str, Any]", nodes: "Sequence[str]") -> None:
    """Remove that container."""
    words = ["--mpi=none", "--", "sh", "-c", _REMOVE, "sh", container()]
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    started = subprocess.Popen(
        [*srun(nodes, 1), *words],
        env=step_environment(ask),
        stdin=nothing,
        stdout=pipe,
        stderr=nothing,
    )
    if _waited(started, ask["seconds"]) is None:
        say(f": {folded(nodes)}: the container {container()} may still be there")


def _waited(started: "subprocess.Popen[bytes]", seconds: int) -> "bytes | None":
    """Return its output; None where it took too long. srun ends its step at SIGTERM."""
    try:
        return started.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        return None
    finally:
        if started.poll() is None:
            started.terminate()
            try:
                started.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                started.kill()


def say(text: str) -> None:
    """Say it in the job's log."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    sys.stderr.write(f"slurmkit: preflight{shown}\n")
    sys.stderr.flush()


def scontrol(*words: str) -> "str | None":
    """Return the answer of scontrol; None where it fails."""
    return _answer("scontrol", *words)


def _answer(*argv: str) -> "str | None":
    # A user's SQUEUE_* would choose jobs.
    env = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        return subprocess.check_output(argv, stdin=subprocess.DEVNULL, env=env).decode()
    except (OSError, subprocess.CalledProcessError):
        return None


def folded(nodes: "Sequence[str]") -> str:
    """`c[1-3]` of its names."""
    names = ",".join(nodes)
    return (scontrol("show", "hostlist", names) or names).strip() if len(nodes) > 1 else names


def result_path(ask: "dict[str, Any]", nodes: "Sequence[str]") -> Path:
    """Return the path of the file with the result of this test over these nodes."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111, PTH117 - a Path raises without a home
    nccl = sorted(item for item in os.environ.items() if item[0].startswith("NCCL_"))
    test = [sorted(nodes), ask["gpus"], ask["srun"], ask["program"], nccl]
    name = hashlib.sha256(json.dumps(test).encode()).hexdigest()[:20]
    cluster = os.environ.get("SLURM_CLUSTER_NAME") or "cluster"
    return home / "slurmkit" / "preflight" / cluster / f"{name}.json"


def load_result(path: Path, hours: float) -> "tuple[Result, float] | None":
    """Return the stored result and its age in seconds; None where it is too old."""
    try:
        found = json.loads(path.read_text("utf-8"))
        age = time.time() - float(found["taken"])
        result = Result(float(found["bandwidth"]), int(found["wrong"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (result, age) if 0 <= age < hours * 3600 else None


def keep(path: Path, result: Result, nodes: "Sequence[str]") -> None:
    """Keep a result; without room for it the next job measures again."""
    facts = {"nodes": list(nodes), "bandwidth": result.bandwidth, "wrong": result.wrong}
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(json.dumps({**facts, "taken": time.time()}), "utf-8")
        fresh.replace(path)
    except OSError as error:
        say(f": not stored: {error}")


def add_line(nodes: "Sequence[str]", result: Result) -> None:
    """Append a result to the file that `RESULTS` names, where it names one."""
    path = os.environ.get(RESULTS)
    if not path:
        return
    facts = {"nodes": list(nodes), "job_id": os.environ.get("SLURM_JOB_ID", "")}
    line = json.dumps({**facts, **result._asdict(), "at": int(time.time())})
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        say(f": not written: {error}")


def go_back(bad: "Sequence[str]") -> bool:
    """Requeue this job without some nodes; Slurm lets these be changed only once it is pending.

    The signal that then ends this script is ignored until that is done, for which there are
    `KillWait` seconds. The job cannot start again before this script is over.
    """
    env = os.environ
    job = env["SLURM_JOB_ID"]
    if env.get("SLURM_ARRAY_JOB_ID"):
        job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
    listed = listed_nodes(job)
    if listed is None:
        say(": Slurm does not say which nodes the job asks for")
        return False
    required, excluded = listed
    if set(bad) & set(required):
        say(": the job asks for that node by name (--nodelist)")
        return False
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if scontrol("requeue", job) is None:
        return False
    without = ",".join([*excluded, *bad])
    if scontrol("update", f"JobId={job}", f"ExcNodeList={without}") is None:
        say(f": it may meet the node again: scontrol update JobId={job} ExcNodeList={without}")
    return True


def listed_nodes(job: str) -> "tuple[list[str], list[str]] | None":
    """Nodes that this job asks for by name, and those it excludes; None where Slurm does not say.

    squeue is asked for these alone: scontrol prints them next to text of the user's.
    """
    shown = _answer("squeue", "--noheader", "--states=all", "--jobs=" + job, "--format=%A|%n|%x|")
    for line in (shown or "").splitlines():
        fields = line.split("|")
        if fields[0] == os.environ["SLURM_JOB_ID"]:  # a het job has a line for each component
            return _names(fields[1]), _names(fields[2])
    return None


def _names(listed: str) -> "list[str]":
    if listed in ("", "(null)"):
        return []
    return (scontrol("show", "hostnames", listed) or "").split()


def _ended(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main(ask: "dict[str, Any]") -> int:
    """Measure the nodes of this job; 0 where its work may begin."""
    signal.signal(signal.SIGTERM, _ended)
    listed = scontrol("show", "hostnames", os.environ["SLURM_JOB_NODELIST"])
    if listed is None:
        say(" failed: scontrol does not name the job's nodes")
        return 1
    nodes = tuple(listed.split())
    path, flight = result_path(ask, nodes), Preflight(ask, run_program)
    known = None if os.environ.get(RESULTS) else load_result(path, ask["hours"])
    if known and known[0].good(flight.least(nodes)):
        say(f": {folded(nodes)}: {known[0].summary}, measured {known[1] / 3600:.1f} h ago")
        return 0
    try:
        wrong = unpack(ask, nodes) if ask["unpack"] else ""
        if wrong:
            say(f" failed: the image {wrong}; the job's work was not begun")
            return 1
        found = flight.run(nodes)
    finally:
        if ask["unpack"]:
            remove(ask, nodes)
    if found is None:
        keep(path, flight.whole(nodes), nodes)
        return 0
    say(f" failed: {flight.verdict(nodes, found)}")
    for line in flight.whole(nodes).trouble.splitlines():
        say(f": {line}")
    left = flight.leaves(nodes, found)
    if left and go_back(left):
        say(f": the job goes back to the queue without {', '.join(left)}")
    else:
        say(": stopped, the job's work was not begun")
    return 1


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
