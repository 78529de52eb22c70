"""What Slurm itself says GPUs do, from lines as scontrol, sacct and sstat print them."""

from __future__ import annotations

import time

import pytest
from slurmkit_plugins import slurm_usage
from slurmkit_plugins.slurm_usage import SlurmUsage

from slurmkit.errors import Refused, SlurmkitError
from slurmkit.state.gpumap_model import Gpu, GpuMap
from slurmkit.testing import FakeSlurm

START = 1_793_491_200
CONFIG = "AccountingStorageTRES   = cpu,mem,gres/gpu,gres/gpumem,gres/gpuutil\n"


def gpu(index: int, job: str, **more: object) -> Gpu:
    known = {"node": "c1", "type": "a100", "state": "held", "user": "alice", "since": START}
    return Gpu(**{**known, "index": index, "job_id": job, **more})


@pytest.fixture
def held(monkeypatch):
    """Make the cluster hold these GPUs."""

    def hold(*gpus: Gpu) -> None:
        whole = GpuMap(gpus, (), (), START, 0.1)
        monkeypatch.setattr(slurm_usage, "read_gpus", lambda slurm: whole)

    return hold


def use(util: int | None, mem: str = "") -> str:
    parts = [f"gres/gpumem={mem}"] if mem else []
    parts += [] if util is None else [f"gres/gpuutil={util}"]
    return ",".join(["cpu=00:00:01", *parts, "mem=11M"])


def asked(sacct: str, sstat, *, config: str = CONFIG, seconds: float = 1800):
    answers = {
        "scontrol": lambda argv, stdin: config,
        "sacct": lambda argv, stdin: sacct,
        "sstat": sstat if callable(sstat) else lambda argv, stdin: sstat,
    }
    found = SlurmUsage(FakeSlurm(answers)).read(["c1"], seconds=seconds)
    return {
        node: [(one.index, round(one.taken), one.utilization, one.memory_used) for one in samples]
        for node, samples in found.items()
    }


RUNS = "7|7|Unknown|\n7.batch|7.batch|Unknown|\n"


def test_gpus_of_steps_that_used_none_have_done_nothing_since_their_job_began(held):
    held(gpu(0, "7"), gpu(1, "7"))
    found = asked(RUNS, f"7.batch|{use(0)}|{use(0)}\n")["c1"]
    assert [(index, busy) for index, _, busy, _ in found] == [(0, 0), (0, 0), (1, 0), (1, 0)]
    assert found[0][1] == pytest.approx(max(START, time.time() - 1800), abs=5)
    newest = asked(RUNS, f"7.batch|{use(0)}|{use(0)}\n", seconds=0)["c1"]
    assert [(index, busy) for index, _, busy, _ in newest] == [(0, 0), (1, 0)]


def test_since_the_last_step_that_used_one_or_did_not_say(held):
    held(gpu(0, "7"))
    now = int(time.time())
    for said in (use(90), use(None)):
        ended = f"7.0|7.0|{now - 600}|{said}\n7.1|7.1|{now - 60}|{use(0)}\n"
        first, _ = asked(RUNS + ended, f"7.batch|{use(0)}|{use(0)}\n")["c1"]
        assert first[1] == pytest.approx(now - 600, abs=5)


def test_of_a_job_with_one_gpu_slurm_knows_what_it_does(held):
    held(gpu(2, "7"))
    busy = f"7.batch|{use(0)}|{use(0)}\n7.0|{use(96, '40G')}|{use(90, '2048M')}\n"
    (only,) = asked(RUNS, busy)["c1"]
    assert (only[0], only[2], only[3]) == (2, 90, None)
    (only,) = asked(RUNS, f"7.0|{use(150)}|{use(150, '2048M')}\n")["c1"]
    assert only[2:] == (100, 2048)


@pytest.mark.parametrize(
    ("gpus", "sstat"),
    [
        ([gpu(0, "7"), gpu(1, "7")], f"7.batch|{use(50)}|{use(40)}\n"),  # which of the two?
        ([gpu(0, "7")], f"7.batch|{use(0)}|{use(0)}\n7.0|{use(None)}|{use(None)}\n"),
        ([gpu(0, "7", mig="1g.5gb")], f"7.batch|{use(0)}|{use(0)}\n"),
        ([gpu(0, "7", state="shared", job_id=None)], f"7.batch|{use(0)}|{use(0)}\n"),
        ([gpu(0, "7")], ""),
        ([gpu(0, "7", node="c9")], f"7.batch|{use(0)}|{use(0)}\n"),
    ],
)
def test_all_else_is_unknown(held, gpus, sstat):
    held(*gpus)
    assert asked(RUNS, sstat) == {}


def test_a_gpu_that_was_busy_before_is_not_called_busy_or_idle_since(held):
    held(gpu(0, "7"), gpu(1, "7"))
    found = asked(RUNS, f"7.batch|{use(96)}|{use(0)}\n")["c1"]
    assert [(index, busy) for index, _, busy, _ in found] == [(0, 0), (1, 0)]


def test_array_tasks_are_asked_for_by_their_numbers(held):
    held(gpu(0, "7_3"))
    tasks = "7_3|12|Unknown|\n7_3.batch|12.batch|Unknown|\n"

    def sstat(argv, stdin):
        assert argv[argv.index("-j") + 1] == "12"
        return f"12.batch|{use(5)}|{use(5)}\n"

    assert [one[2] for one in asked(tasks, sstat)["c1"]] == [5]


def test_who_may_not_ask_about_others_asks_about_their_own(held, monkeypatch):
    held(gpu(0, "7"), gpu(1, "8", user="bob"))
    tasks = RUNS + RUNS.replace("7", "8")

    def sstat(argv, stdin):
        if argv[argv.index("-j") + 1] != "8":
            raise Refused("Invalid user id")
        return f"8.batch|{use(5)}|{use(5)}\n"

    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    assert [(one[0], one[2]) for one in asked(tasks, sstat)["c1"]] == [(1, 5)]
    monkeypatch.setattr("getpass.getuser", lambda: "carol")
    with pytest.raises(SlurmkitError, match="a job uses only to root, SlurmUser and the owner of"):
        asked(tasks, sstat)


def test_a_cluster_that_does_not_track_it_says_so(held):
    held(gpu(0, "7"))
    with pytest.raises(SlurmkitError, match="AccountingStorageTRES lacks gres/gpuutil"):
        asked(RUNS, "", config="AccountingStorageTRES = cpu,gres/gpu\n")


def test_a_cluster_without_samples_says_what_takes_them(held):
    held(gpu(0, "7"))
    with pytest.raises(SlurmkitError, match="no running step has a sample of gres/gpuutil"):
        asked(RUNS, f"7.batch|{use(None)}|{use(None)}\n")
