"""The parsers on what each Slurm release really printed (tests/recorded/record.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurmkit.jobs.accounting_records import read_runs
from slurmkit.jobs.info import parse_gpu_indices
from slurmkit.slurm.commands import slurm_error
from slurmkit.state.arrays import count_tasks
from slurmkit.state.queue_rows import parse_queue
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = sorted(path.name for path in RECORDED.iterdir() if (path / "squeue.txt").exists())
MARK = "\x1frecorded"
EVIL = "evil\n\x1b[2J|\x1f9 root"


def test_every_supported_release_is_recorded() -> None:
    assert RELEASES == ["22.05", "24.11", "26.05"]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> Path:
    return RECORDED / str(request.param)


def read(path: Path) -> str:
    return path.read_bytes().decode()


def test_squeue(release: Path) -> None:
    rows = parse_queue([read(release / "squeue.txt")], MARK)
    assert len(rows) == 11
    assert {row.user for row in rows} == {"alice"}
    assert {(row.partition, row.gpus) for row in rows} == {
        ("gpu", 4),
        ("gpu", 1),
        ("gpu", 0),  # shards
        ("gpu", 16),  # asked for by the pending job
        ("untyped", 2),
        ("mig", 1),
        ("mps", 0),
        ("cpu", 0),
    }
    running = [row for row in rows if row.state == "RUNNING"]
    assert len(running) >= 5
    assert all(row.started and row.node_list and row.eligible for row in running)
    assert [row.name for row in rows if row.name != "wrap"] == [EVIL]
    (pending,) = [row for row in rows if row.state == "PENDING" and "[" in row.job_id]
    assert pending.reason == "JobArrayTaskLimit"
    assert (count_tasks(pending), pending.started) == (8, None)
    (later,) = [row for row in rows if row.dependency]
    assert (later.dependency, later.requested_nodes) == ("singleton(unfulfilled)", "c7")
    assert later.eligible is not None
    assert later.submitted is not None
    assert later.eligible == later.submitted + 3600
    assert {(row.features, row.reservation, row.comment) for row in rows} == {("", "", "")}


@pytest.mark.parametrize(
    ("kind", "nodes", "held"),
    [
        ("typed", "c[1-2]", {"c1": [0, 1], "c2": [0, 1]}),
        ("h100", "c3", {"c3": [0]}),
        ("untyped", "c4", {"c4": [0, 1]}),
        ("mig", "c5", {"c5": [0]}),
        ("shard", "c3", {}),
        ("mps", "c6", {}),
        ("cpu", "c7", {}),
    ],
)
def test_gpu_indices(release: Path, kind: str, nodes: str, held: dict[str, list[int]]) -> None:
    assert parse_gpu_indices(read(release / f"scontrol-job-{kind}.txt"), nodes) == held


def test_sacct(release: Path) -> None:
    """Each recorded run is read, the hostile name and the never started job included."""
    text = read(release / "sacct.txt")

    def answer(argv: object, stdin: object) -> str:
        assert isinstance(argv, list)
        mark = next(a for a in argv if a.startswith("--delimiter=")).partition("=")[2]
        wanted = next(a for a in argv if a.startswith("--jobs=")).partition("=")[2]
        records = text.replace(f"{MARK}\n", f"{MARK}\n\n").split("\n\n")
        chosen = [record for record in records if record.lstrip("\n").startswith(f"{wanted}{MARK}")]
        return "\n".join(chosen).replace(MARK, mark) + "\n"

    slurm = FakeSlurm({"sacct": answer})
    typed, evil, never = (read_runs(slurm, [job_id])[-1] for job_id in ("1", "7", "8"))
    assert (typed.state, typed.node_list, typed.is_over) == ("CANCELLED", "c[1-2]", True)
    assert typed.cancelled_by == "10011"
    assert "gres/gpu=4" in typed.tres
    assert typed.started is not None
    assert typed.ended is not None
    assert evil.name == EVIL
    assert not any(run.elapsed.startswith("00:") for run in (typed, evil, never))
    assert (never.started, never.node_list, never.tres) == (None, "", "")


def test_refusals(release: Path) -> None:
    for name, said in json.loads(read(release / "errors.json")).items():
        if said["code"]:  # scancel of an unknown job is no error on newer releases
            error = slurm_error(name.partition(":")[0], said["said"], said["code"])
            assert type(error).__name__ == said["error"], name
