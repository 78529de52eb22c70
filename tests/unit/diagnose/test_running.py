"""A running job: what is said of it first, what only follows from that, and what is unknown."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import why_scene as lab
from running_job import JOB, ME, NOW, job_of, run_here

from slurmkit.diagnose import gpus_now, inside_job, log_tail, running
from slurmkit.diagnose.earlier_runs import EarlierRuns, earlier_finding, lengths_of_same_runs
from slurmkit.diagnose.explain import explain
from slurmkit.diagnose.gpus_now import HeldGpu, SampledGpus, gpu_fact, gpu_findings, gpus_of_job
from slurmkit.diagnose.job_memory import (
    NodeMemory,
    watched_memory,
)
from slurmkit.diagnose.log_pace import LogPace, judge_pace, pace_fact, pace_finding
from slurmkit.diagnose.log_tail import read_tail
from slurmkit.diagnose.model import FINDING_KINDS
from slurmkit.diagnose.probe import (
    DriverGpu,
    DriverGpus,
    FullMemory,
    Probe,
    ProbedNode,
    ProcessFacts,
    WatchedNode,
    parse_parts,
    probe_job,
)
from slurmkit.diagnose.ranks import JobRank, nccl_finding, parse_nccl_problems
from slurmkit.diagnose.render import explanation_lines
from slurmkit.errors import Refused, SlurmError, SlurmTimeout
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.steps import StepsSnapshot
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.state.gpu_metrics import GpuSample
from slurmkit.testing import FakeSlurm

GPUS = "cpu=2,mem=1G,node=1,gres/gpu=2"


# --- the log


def stamped(gaps: Sequence[float], form: str) -> str:
    at, lines = NOW - sum(gaps), ["no time in this line"]
    for gap in (0.0, *gaps):
        at += gap
        lines.append(f"{datetime.fromtimestamp(at, UTC).strftime(form)} step done")
    return "\n".join(lines) + "\n"


FORMS = ("%Y-%m-%d %H:%M:%S", "[%Y-%m-%dT%H:%M:%S]", "INFO %H:%M:%S", "[rank0] %H:%M:%S.000")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_the_pace_is_read_from_the_times_in_the_log(form: str, seed: int) -> None:
    chance = random.Random(seed)
    gaps = [float(chance.randint(1, 120)) for _ in range(chance.randint(5, 40))]
    text = stamped(gaps, form)
    pace = judge_pace("/log", text, len(text), NOW, int(NOW) - 9000, NOW + 30)
    assert (pace.longest, pace.by_stamps, pace.silent) == (max(gaps), True, 30)
    assert pace.pause == sorted([*gaps, *gaps])[len(gaps)] or pace.pause is not None
    # Silent for as long as never before, five times over, and five minutes at least.
    bound = max(300, 5 * max(gaps))
    for silent, found in ((bound - 1, False), (bound + 1, True)):
        late = judge_pace("/log", text, len(text), NOW, int(NOW) - 9000, NOW + silent)
        assert (pace_finding(late) is not None) is found


def test_without_times_the_pace_is_an_average_and_says_so() -> None:
    text = "line\n" * 100
    pace = judge_pace("/log", text, len(text), NOW, int(NOW) - 1000, NOW + 601)
    assert (pace.pause, pace.by_stamps) == (10, False)
    found = pace_finding(pace)
    assert found is not None
    assert found.text == (
        "its log is silent for 10 min; before, it had a line every 10 s on average over the run"
    )
    assert "on average over the run" in pace_fact(pace, 1000, NOW).text
    tail = judge_pace("/log", text, 10 * len(text), NOW, int(NOW) - 1000, NOW)
    assert tail.pause == 1  # only its end was read


def test_an_empty_log_or_none_is_said() -> None:
    empty = LogPace(path="/log", size=0, silent=9, taken=NOW)
    assert pace_fact(empty, 120, NOW).text.startswith("empty: the job has written nothing in 2 min")
    assert pace_finding(empty) is None
    unknown = pace_fact("no such file", 120, NOW)
    assert (unknown.text, unknown.source, unknown.taken) == (
        "unknown: no such file", "the log", NOW
    )  # fmt: skip


def test_a_log_on_a_dead_file_system_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process that reads it never answers and ignores SIGTERM."""
    log = tmp_path / "log"
    log.write_text("line\n" * 1000)
    assert read_tail(LOCAL_MACHINE, str(log), 10).text == "line\nline\n"
    assert read_tail(LOCAL_MACHINE, str(log), 10).size == 5000
    with pytest.raises(FileNotFoundError):
        read_tail(LOCAL_MACHINE, str(tmp_path / "none"), 10)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        read_tail(LOCAL_MACHINE, str(tmp_path / "pipe"), 10)
    monkeypatch.setattr(log_tail, "_READ", "import time; time.sleep(600)")
    with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
        read_tail(LOCAL_MACHINE, str(log), 10, 0.3)
    monkeypatch.setattr(log_tail.read_tail, "__defaults__", (0.3,))
    cluster = job_of(monkeypatch, tmp_path)
    found = explain(cluster, JOB)
    assert found.running is not None
    (said,) = [each for each in found.running.facts if each.about == "Log"]
    assert "its file system gives no answer within 0.3 s" in said.text
    assert said.source
    assert said.taken


# --- earlier runs


def run(seconds: int, **values: Any) -> JobInfo:
    usual = {
        "job_id": "1", "raw_id": "1", "name": "train", "user": "alice", "account": "a",
        "partition": "gpu", "state": "COMPLETED", "node_list": "c1", "elapsed": "",
        "tres": "cpu=8,mem=1G,node=2,gres/gpu=8", "submitted": 0, "started": 1000,
        "ended": 1000 + seconds, "source": "sacct",
    }  # fmt: skip
    return JobInfo(**usual | values)


def test_only_completed_runs_of_that_name_user_and_size_count() -> None:
    row = lab.row("9", name="train", tres="cpu=4,mem=9G,node=2,gres/gpu=8", state="RUNNING")
    others = [
        run(5, state="FAILED"),
        run(6, name="other"),
        run(7, user="bob"),
        run(8, tres="cpu=8,mem=1G,node=1,gres/gpu=8"),
        run(9, tres="cpu=8,mem=1G,node=2,gres/gpu=4"),
        run(10, raw_id="9"),
        run(11, ended=None),
    ]
    assert lengths_of_same_runs([*others, run(100), run(200)], row) == (200, 100)


def test_a_run_is_long_beside_the_longest_of_several() -> None:
    earlier = EarlierRuns((9600, 7800, 8400))
    found = earlier_finding(earlier, 5 * 3600)
    assert found is not None
    assert found.text == (
        "it runs 5 h now; the last 3 took 2 h 10 min to 2 h 40 min, half of them up to 2 h 20 min"
    )
    assert earlier_finding(earlier, 9601) is None
    assert earlier_finding(EarlierRuns((60,)), 5 * 3600) is None
    assert earlier_finding(EarlierRuns(problem="slurmdbd"), 5 * 3600) is None


# --- GPUs


def gpu(number: int = 0, **values: Any) -> HeldGpu:
    usual: dict[str, Any] = {
        "node": "c2", "name": f"GPU {number}", "utilization": 80.0, "busiest": 85.0,
        "since": NOW - 900, "memory_used": 1000, "memory_total": 8000, "throttled": (),
        "taken": NOW, "source": "ledger",
    }  # fmt: skip
    return HeldGpu(**usual | values)


def of_gpus(*gpus: HeldGpu) -> list[tuple[str, str]]:
    return [(each.kind, each.text) for each in gpu_findings(gpus, 3600)]


def test_what_is_wrong_with_gpus() -> None:
    idle = {"utilization": 0.0, "busiest": 0.0}
    hot = gpu(3, throttled=("hw_slowdown", "hw_thermal"), degrees=91, clock=900, top_clock=1410)
    assert of_gpus(gpu(), gpu(1)) == []
    assert of_gpus(gpu(throttled=("sw_power_cap",))) == []
    assert of_gpus(hot) == [
        ("throttled", "GPU 3 on c2 is throttled for heat (91 °C, 900 of 1410 MHz)")
    ]
    assert of_gpus(gpu(throttled=("hw_slowdown",)))[0][1].startswith(
        "GPU 0 on c2 is slowed down by its hardware"
    )
    assert of_gpus(gpu(**idle), gpu(1, **idle)) == [("idle", "its 2 GPUs do nothing for 15 min")]
    assert of_gpus(gpu(), gpu(1, **idle)) == [("uneven", "1 of 2 GPUs do nothing: GPU 1 on c2")]
    assert of_gpus(*map(gpu, range(7)), gpu(7, utilization=11, busiest=20)) == [
        ("uneven", "GPU 7 on c2 does less than the others: 11 %, usual is 80 %")
    ]
    assert of_gpus(gpu(memory_used=7900))[0][0] == "gpu-memory"


@pytest.mark.parametrize(
    "values",
    [
        {"utilization": 0.0, "busiest": 40.0},  # it did something in the last quarter of an hour
        {"utilization": 0.0, "busiest": 0.0, "since": NOW - 60},  # measured for a minute
        {"utilization": None, "busiest": None, "since": None},
    ],
)
def test_a_pause_and_an_unknown_gpu_are_not_idle(values: dict[str, Any]) -> None:
    assert of_gpus(gpu(**values)) == []


def driver(**values: Any) -> DriverGpu:
    usual = dict.fromkeys(DriverGpu.__struct_fields__) | {"minor": 5, "utilization": 7}
    return DriverGpu(**usual | values)


def merged(held: dict[str, list[int]], samples: dict[str, Any], *asked: DriverGpu) -> list[Any]:
    nodes = {"c2": ProbedNode(gpus=DriverGpus(asked))}
    found = gpus_of_job(held, SampledGpus(samples, "ledger"), nodes)
    return [(each.name, each.utilization, each.source) for each in found]


def test_gpus_of_the_driver_are_named_only_if_that_is_certain() -> None:
    now = time.time()
    sample = GpuSample(index=3, taken=now - 9, utilization=50)
    name = "NVIDIA's driver"
    assert merged({"c2": [3]}, {"c2": (sample,)}, driver()) == [("GPU 3", 7, name)]
    assert merged({"c2": [3, 4]}, {}, driver(index=4)) == [("GPU 4", 7, name)]
    unnamed = [("GPU 3", 50, "ledger"), ("GPU /dev/nvidia5", None, name)]
    assert merged({"c2": [3, 4]}, {"c2": (sample,)}, driver()) == unnamed
    assert merged({"c2": [3, 4]}, {}, driver()) == [("GPU /dev/nvidia5", 7, name)]
    old = msgspec.structs.replace(sample, taken=now - 400)
    assert merged({"c2": [3]}, {"c2": (old,)}) == []  # not the present any more
    other = msgspec.structs.replace(sample, index=2)  # another job's GPU
    assert merged({"c2": [3]}, {"c2": (other,)}) == []


def test_gpus_that_are_not_known_are_said_to_be() -> None:
    fact = gpu_fact((), 2, "nobody measures them")
    assert fact is not None
    assert fact.text == "unknown: nobody measures them"
    assert gpu_fact((), 0, "") is None
    some = gpu_fact((gpu(),), 2, "")
    assert some is not None
    assert some.text == "80 %; 1 of 2 unknown"


def test_the_first_source_that_has_samples_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        def read(self, nodes: Any, *, seconds: float = 0) -> dict[str, Any]:
            return {}

    class Full:
        def read(self, nodes: Any, *, seconds: float = 0) -> dict[str, Any]:
            return {"c2": (GpuSample(index=0, taken=NOW, utilization=5),)}

    sources: dict[str, Callable[[], Any]] = {"ledger": Empty, "prometheus": Full}
    monkeypatch.setattr(gpus_now, "load_plugin", lambda _kind, name: sources[name])
    monkeypatch.setattr(gpus_now, "has_section", lambda _: True)
    assert gpus_now.read_samples(["c2"]).source == "prometheus"
    sources["prometheus"] = Empty
    none = "it has no samples of c2 that you may see"
    assert gpus_now.read_samples(["c2"]).problem == f"ledger: {none}; prometheus: {none}"
    monkeypatch.setattr(gpus_now, "has_section", lambda _: False)
    assert gpus_now.read_samples(["c2"]).problem == f"ledger: {none}"


# --- NCCL

NCCL = """Job summary
===========

  Nodes  Processes
      4          8

Communicators... (0.00s)
=============

    0         8         4   RUNNING      OK

Errors
======

{errors}
Warnings
========

{warnings}
"""
MISMATCH = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  31 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 21 -- GPU 5 managed by process 483072 on node 172.16.64.210
"""


def test_what_nccl_says_is_wrong_is_shown() -> None:
    assert parse_nccl_problems(NCCL.format(errors="", warnings="")) == ()
    lines = parse_nccl_problems(NCCL.format(errors="", warnings=MISMATCH))
    assert lines[0] == "#0-0 (27a079b828ff1a75) MISMATCH"
    found = nccl_finding(lines, NOW)
    assert found is not None
    assert found.text == (
        "NCCL: Communicator ranks have different collective operation counts;"
        " Rank 21 -- GPU 5 managed by process 483072 on node 172.16.64.210"
    )
    dead = "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    both = nccl_finding(parse_nccl_problems(NCCL.format(errors=dead, warnings=MISMATCH)), NOW)
    assert both is not None
    assert both.text.startswith("NCCL: 1 job process is considered dead")
    assert nccl_finding((), NOW) is None


# --- the probe


ROW = lab.row(
    JOB, user=ME, state="RUNNING", node_list="c[1-2]", nodes=2, cpus=4, name="train",
    tres="cpu=4,mem=4G,node=2", gpus=0, started=int(time.time()) - 3600, time_limit="2:00:00",
)  # fmt: skip


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that says it is rank 3 of the job."""
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "0", "RANK": "3"}
    with subprocess.Popen(["sleep", "60"], env=env) as process:
        yield process.pid
        process.kill()


def test_the_probe_finds_a_rank_on_each_node(sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.diagnose.probe._WATCHED", 0.1)
    slurm = FakeSlurm({"srun": run_here})
    found = probe_job(slurm, ROW)
    assert sorted(found.nodes) == ["c1", "c2"]
    assert found.problems == ()
    for node in found.nodes.values():
        assert node.processes is not None
        (one,) = node.processes.processes
        assert (one.pid, one.rank, one.step, one.name) == (sleeper, "3", "0", "sleep")
    (argv,) = slurm.asked
    assert {"--overlap", "--mem=0", f"--jobid={JOB}", "--nodes=2", "--ntasks=2"} <= set(argv)
    assert "--time=2" in argv  # else a step may stay, if srun is killed
    # srun would take a bare python3 from this machine's PATH, and the nodes may not have that one.
    assert argv[argv.index("python3") - 1] == "/usr/bin/env"


def test_a_node_that_hangs_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real command that prints what two nodes say, and then waits for the third."""
    part = json.dumps({"gpus": [], "problem": "there is no NVIDIA driver"})
    said = "".join(f"{inside_job.MARK} c{n} gpus 1 1 {part}\n" for n in (1, 2))

    class Hangs(LocalSlurmCommands):
        def run(self, argv: Sequence[str], **more: Any) -> str:
            assert argv[0] == "srun"
            hangs = ["sh", "-c", 'printf %s "$0"; exec sleep 600', said]
            return super().run(hangs, **more | {"timeout": 1})

    row = lab.row(JOB, state="RUNNING", node_list="c[1-3]", nodes="3")
    found = probe_job(Hangs(), row)
    assert sorted(found.nodes) == ["c1", "c2"]
    assert found.timed_out
    (problem,) = found.problems
    assert problem.startswith("c3: no answer within 30 s")


def test_what_a_command_printed_before_it_failed_is_kept() -> None:
    with pytest.raises(SlurmError) as caught:
        LocalSlurmCommands().run(["sh", "-c", "echo one; echo two >&2; exit 3"])
    assert caught.value.output == "one\n"
    assert str(caught.value) == "two"


def test_a_part_of_a_het_job_is_asked_with_its_group() -> None:
    slurm = FakeSlurm({"srun": lambda argv, _: ""})
    probe_job(slurm, msgspec.structs.replace(ROW, job_id="40+1"))
    assert {"--jobid=40", "--het-group=1"} <= set(slurm.asked[0])
    asked = json.loads(slurm.asked[0][-1])
    assert asked["jobs"] == [JOB, "40"]


def test_where_the_step_fails_each_node_is_asked_by_itself() -> None:
    def srun(argv: Sequence[str], stdin: str | None) -> str:
        if "--nodelist=c1" in argv:
            return 'slurmkit-why c1 gpus 1 1 {"gpus": [], "problem": "none"}\n'
        if "--nodelist=c2" in argv:
            raise SlurmTimeout("srun gave no answer in 30 s")
        raise Refused("srun: error: Unable to create step for job 41: Requested nodes are busy")

    slurm = FakeSlurm({"srun": srun})
    found = probe_job(slurm, ROW, {"c1": [0, 1], "c2": [2, 3]})
    assert list(found.nodes) == ["c1"]
    assert found.problems == ("c2: no answer within 30 s: a node may be down or overloaded",)
    assert "--gres=gpu:2" in slurm.asked[0]
    assert [argv for argv in slurm.asked if "--gres=none" in argv] == slurm.asked[1:]
    assert len(slurm.asked) == 4


def test_a_step_asks_for_gpus_only_where_all_nodes_have_as_many() -> None:
    slurm = FakeSlurm({"srun": lambda argv, _: ""})
    probe_job(slurm, ROW, {"c1": [0, 1], "c2": [2]})
    assert "--gres=none" in slurm.asked[0]


def test_a_node_without_python_is_said_to_have_none() -> None:
    def srun(argv: Sequence[str], stdin: str | None) -> str:
        raise Refused("slurmstepd: error: execve(): python3: No such file or directory")

    found = probe_job(FakeSlurm({"srun": srun}), msgspec.structs.replace(ROW, node_list="c1"))
    assert found.problems == ("c1: it has no python3, so its processes could not be watched",)


@pytest.mark.parametrize("seed", range(20))
def test_lines_of_several_nodes_may_come_mixed(seed: int) -> None:
    """Whatever the order of whole lines, and whatever else was printed between them."""
    chance = random.Random(seed)
    lines, whole = ["welcome to c1", "slurmkit-why", "slurmkit-why c1 gpus x 1 {}"], {}
    for name in ("c1", "c2", "c3"):
        whole[name] = "".join(chance.choice('ab {}"\\\\é') for _ in range(chance.randint(1, 400)))
        text = json.dumps({"gpus": [], "problem": whole[name]})
        pieces = [text[at : at + 37] for at in range(0, len(text), 37)]
        lines += [
            f"slurmkit-why {name} gpus {number} {len(pieces)} {piece}"
            for number, piece in enumerate(pieces, 1)
        ]
    chance.shuffle(lines)
    assert {n: node.gpus.problem for n, node in parse_parts(lines).items()} == whole
    lost = [line for line in lines if not line.startswith("slurmkit-why c2 gpus 1 ")]
    assert "c2" not in parse_parts(lost)


# --- all together


def test_a_stopped_process_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sleeper: int
) -> None:
    cluster = job_of(monkeypatch, tmp_path)
    os.kill(sleeper, 19)
    found = explain(cluster, JOB, probe=True)
    assert found.answer == f"job {JOB} is stuck: rank 3 on c1 (pid {sleeper}) is stopped (SIGSTOP)"
    assert found.running is not None
    lines = dict(explanation_lines(found))
    assert lines["  do"] == f"let it go on, in a shell on c1: kill -CONT {sleeper}"
    assert "sleep: is stopped (SIGSTOP), CPU 0%" in lines["Ranks"]
    assert "[/proc, " in lines["CPUs"]


def test_without_the_probe_no_step_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = job_of(monkeypatch, tmp_path)
    found = explain(cluster, JOB)
    assert not any(argv[0] == "srun" for argv in cluster.slurm.asked)  # type: ignore[attr-defined]
    assert found.answer == (
        f"job {JOB} runs, log written 0 s ago; nothing more is known of what it does"
    )
    assert found.notes == ("its nodes were not asked what its processes do",)


def test_nobody_looks_into_the_job_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = job_of(monkeypatch, tmp_path, UserName="bob-of-elsewhere")
    found = explain(cluster, JOB, probe=True, stacks=True)
    assert not any(argv[0] == "srun" for argv in cluster.slurm.asked)  # type: ignore[attr-defined]
    assert "only bob-of-elsewhere can look at the processes" in found.notes[0]


def facts(**values: Any) -> Any:
    pace = LogPace(path="/log", size=10, silent=5, taken=NOW)
    usual: dict[str, Any] = {
        "row": ROW, "elapsed": 3600.0, "gpus": (), "gpu_problem": "", "probe": Probe({}),
        "ranks": (), "cpu_share": None, "memory": {}, "pace": pace, "earlier": EarlierRuns(),
        "nccl": (), "taken": NOW, "steps": StepsSnapshot((), "", "sstat", NOW, 0.0),
    }  # fmt: skip
    return running._Facts(**usual | values)


def kinds(**values: Any) -> list[str]:
    return [each.kind for each in running.find_problems(facts(**values))]


def watched_node(**values: Any) -> ProbedNode:
    usual = {"began": 0.0, "seconds": 2.0, "left_out": 0, "memory_limit": 1000, "processes": ()}
    return ProbedNode(WatchedNode(**usual | values))


def test_memory_that_is_known_only_at_most_is_no_finding() -> None:
    row = lab.row(JOB, state="RUNNING", tres="cpu=4,mem=1G,node=1")
    nothing: dict[str, Any] = dict.fromkeys(("cpu", "cpu_total", "read"))
    process = ProcessFacts(
        pid=1, parent=0, rank="", task="", step="", name="x", command="x", state="S", states={},
        waits={}, blocked=(), rss=500, threads=1, tracer=0, **nothing,
    )  # fmt: skip

    def told(node: ProbedNode) -> tuple[list[str], str, str]:
        memory = watched_memory(row, Probe({"c1": node}))
        known = facts(memory=memory, probe=Probe({"c1": node}))
        (fact,) = [each for each in running._watched_facts(known) if each.about == "Memory"]
        return kinds(memory=memory), fact.text, fact.source

    exact = told(watched_node(memory_used=950, memory_by="pss", processes=(process, process)))
    assert exact == (["memory"], "950 B of 1000 B on c1", "/proc")
    shared = told(watched_node(processes=(process, process)))
    assert shared[0] == []
    assert shared[1] == "500 B to 1000 B of 1000 B on c1; its processes may share pages"
    by_cgroup = told(watched_node(memory_used=400, memory_by="cgroup"))
    assert by_cgroup == ([], "400 B of 1000 B on c1", "its cgroup")
    full = told(ProbedNode(full=FullMemory(990, 1000, NOW)))
    assert full == (["memory"], "990 B of 1000 B on c1", "its cgroup")


def test_each_line_has_a_source_and_an_age(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for values in ({}, {"tres-alloc": "cpu=2,mem=1G,node=1,gres/shard=2"}, {"tres-alloc": GPUS}):
        found = explain(job_of(monkeypatch, tmp_path, **values), JOB)
        assert found.running is not None
        assert {"Log", "Earlier runs"} <= {each.about for each in found.running.facts}
        for fact in found.running.facts:
            assert (bool(fact.source), fact.taken is not None) == (True, True), fact


def test_findings_do_not_contradict_each_other() -> None:
    low = (gpu(utilization=4, busiest=9),)
    idle = (gpu(utilization=0.0, busiest=0.0),)
    assert kinds(gpus=low, cpu_share=0.97) == ["data"]
    assert kinds(gpus=idle, cpu_share=0.97) == ["idle"]
    assert kinds(gpus=idle, cpu_share=0.1) == ["idle"]
    assert kinds(gpus=low, cpu_share=0.97, elapsed=30.0) == []
    assert kinds(gpus=low, cpu_share=0.97, nccl=("  Communicator ranks have different x",)) == [
        "nccl"
    ]


def test_the_most_telling_comes_first_and_a_longer_run_beside_it() -> None:
    hot = (gpu(3, throttled=("hw_thermal",)),)
    found = facts(
        gpus=hot,
        earlier=EarlierRuns((600, 660)),
        memory={"c1": NodeMemory(95, 100.0, "/proc")},
    )
    problems = running.find_problems(found)
    assert [each.kind for each in problems] == ["throttled", "memory", "slower"]
    assert [FINDING_KINDS.index(each.kind) for each in problems] == sorted(
        FINDING_KINDS.index(each.kind) for each in problems
    )
    explained = running.RunningExplanation(runs="", findings=problems)
    assert running._answer(found, explained) == (
        f"job {JOB} is slow: GPU 3 on c2 is throttled for heat; it runs 60 min now; the last 2 took"
        " 10 min to 11 min, half of them up to 10 min"
    )


def waiting_rank(number: int, place: str) -> JobRank:
    nothing = dict.fromkeys(("cpu", "cpu_total", "read", "rss"))
    names = dict.fromkeys(("rank", "task", "name", "command"), "x")
    main = ProcessFacts(
        pid=number, parent=1, step="0", state="S", states={"S": 8}, waits={place: 8}, blocked=(),
        threads=1, tracer=0, **{**names, **nothing, "cpu": 0.0},
    )  # fmt: skip
    return JobRank(number=number, step="0", node="c1", main=main, helpers=(), seconds=2.0)


def test_ranks_that_read_are_found_also_where_gpus_are_unknown() -> None:
    ranks = [waiting_rank(0, "folio_wait_bit"), waiting_rank(1, "folio_wait_bit")]
    (found,) = running.find_problems(facts(ranks=(*ranks, waiting_rank(2, "folio_wait_bit"))))
    assert (found.kind, found.text) == ("data", "3 of 3 ranks wait for a file system")
    late = LogPace(path="/log", size=10, silent=900, taken=NOW)
    still = (waiting_rank(0, "futex_wait"), waiting_rank(1, "futex_wait"))
    asked = Probe({"c1": ProbedNode(), "c2": ProbedNode()})
    (found,) = running.find_problems(facts(ranks=still, pace=late, cpu_share=0.0, probe=asked))
    assert (found.kind, found.text) == (
        "asleep-all",
        "all 2 ranks sleep (in futex_wait), and its log is silent for 15 min",
    )
    assert kinds(ranks=still, pace=late, cpu_share=0.0, gpus=(gpu(),), probe=asked) == []
    assert kinds(ranks=still, cpu_share=0.0, probe=asked) == []


def test_a_job_that_writes_its_log_is_not_called_stuck() -> None:
    """A rank that gives work to the others sleeps; its job goes on."""
    busy = [msgspec.structs.replace(waiting_rank(n, "").main, cpu=2.0) for n in (1, 2, 3)]
    workers = [
        JobRank(number=main.pid, step="0", node="c1", main=main, helpers=(), seconds=2.0)
        for main in busy
    ]
    ranks = (waiting_rank(0, "ep_poll"), *workers)
    late = LogPace(path="/log", size=10, silent=900, taken=NOW)
    assert kinds(ranks=ranks, pace=late) == ["asleep"]
    assert kinds(ranks=ranks, pace="unknown") == ["asleep"]
    assert kinds(ranks=ranks) == []
    apart = ("  Communicator ranks have different collective operation counts",)
    assert kinds(nccl=apart, pace=late) == ["nccl"]
    assert kinds(nccl=apart) == []
    assert kinds(nccl=("  1 job process is considered dead",)) == ["nccl"]


def test_sleep_is_no_hang_where_gpus_or_nodes_are_unknown() -> None:
    late = LogPace(path="/log", size=10, silent=900, taken=NOW)
    unusual = msgspec.structs.replace(late, longest=20.0, pause=5.0, by_stamps=True)
    still = {"ranks": (waiting_rank(0, "futex_wait"),), "cpu_share": 0.0}
    all_nodes = Probe({"c1": ProbedNode(), "c2": ProbedNode()})
    with_gpus = msgspec.structs.replace(ROW, gpus=2)
    assert kinds(**still, pace=late, probe=all_nodes) == ["asleep-all"]
    assert kinds(**still, pace=late, probe=Probe({"c1": ProbedNode()})) == []
    assert kinds(**still, pace=late, probe=all_nodes, row=with_gpus) == []
    assert kinds(**still, pace=unusual, probe=all_nodes, row=with_gpus) == ["asleep-all"]
    (found,) = running.find_problems(facts(**still, pace=late, probe=all_nodes))
    assert "a server that waits for requests does the same" not in found.advice


def test_what_gpus_did_before_the_job_does_not_count() -> None:
    samples = tuple(
        GpuSample(index=0, taken=time.time() - age, utilization=0.0) for age in (800, 400, 20, 5)
    )
    sampled = SampledGpus({"c1": samples}, "ledger")
    (old,) = gpus_of_job({"c1": [0]}, sampled, {})
    assert [each.kind for each in gpu_findings([old], 30)] == ["idle"]
    own = gpus_now.samples_since(sampled, int(time.time()) - 30)
    (new,) = gpus_of_job({"c1": [0]}, own, {})
    assert [*gpu_findings([new], 30)] == []
    none = gpus_now.samples_since(sampled, int(time.time()))
    assert none.problem == "ledger: it has no samples since the job started"


def test_processes_that_were_not_watched_are_said() -> None:
    watched = {"began": 0, "seconds": 2, "left_out": 7, "memory_limit": None, "processes": []}
    line = f"slurmkit-why c1 processes 1 1 {json.dumps(watched)}\n"
    found = probe_job(
        FakeSlurm({"srun": lambda argv, _: line}), msgspec.structs.replace(ROW, node_list="c1")
    )
    assert found.problems == ("c1: only 0 processes were watched, and 7 more were not",)


def test_one_look_at_idle_gpus_is_no_verdict() -> None:
    since = (gpu(utilization=0.0, busiest=0.0), "does not use its GPUs: its GPU does nothing for ")
    now = (gpu(utilization=0.0, busiest=0.0, since=None), "may not use its GPUs: its GPU is idle")
    for one, words in (since, now):
        found = facts(gpus=(one,))
        problems = running.find_problems(found)
        answer = running._answer(found, running.RunningExplanation(runs="", findings=problems))
        assert answer.startswith(f"job {JOB} {words}")


def test_nothing_is_known_is_not_nothing_unusual() -> None:
    empty = running.RunningExplanation(runs="")
    assert running._answer(facts(pace="no"), empty) == (
        f"job {JOB} runs; nothing is known of what it does"
    )
    busy = facts(gpus=(gpu(),), cpu_share=0.5)
    assert running._answer(busy, empty) == (
        f"job {JOB} runs, nothing unusual: GPUs 80 %, CPUs 50% of 4, log written 5 s ago"
    )


def test_idle_gpus_beside_busy_cpus_are_no_slow_loader() -> None:
    (found,) = running.find_problems(
        facts(gpus=(gpu(utilization=0.0, busiest=0.0),), cpu_share=0.97)
    )
    assert (found.kind, found.text.endswith("; CPUs 97% of 4")) == ("idle", True)
    assert found.advice.startswith("its program computes on CPUs")
