"""Live rows of nodes, from what each Slurm release printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurmkit.cli.cluster_state import nodes_command
from slurmkit.errors import BadInput, SlurmError
from slurmkit.state.nodes import (
    GpuCount,
    NodeChoice,
    NodeRow,
    PartCount,
    parse_nodes,
    read_nodes,
    select_nodes,
)
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
MARK = "\x1frecorded"


@pytest.fixture(params=["22.05", "24.11", "26.05"])
def slurm(request: pytest.FixtureRequest) -> FakeSlurm:
    folder = RECORDED / request.param
    nodes, squeue = (
        (folder / f"gpus-{name}.txt").read_bytes().decode() for name in ("nodes", "squeue")
    )

    def answer(argv: Sequence[str], stdin: str | None) -> str:
        return squeue.replace(MARK, argv[-1].rpartition(":")[2])

    return FakeSlurm({"scontrol": lambda argv, stdin: nodes, "squeue": answer})


def test_rows(slurm: FakeSlurm) -> None:
    rows = {row.name: row for row in read_nodes(slurm).rows}
    assert list(rows) == ["c1", "c2", "c3", "c4", "c5", "c6", "c7"]
    c1, c2, c3, c5, c6, c7 = (rows[name] for name in ("c1", "c2", "c3", "c5", "c6", "c7"))
    assert (c1.state, c1.kind, c1.cpus) == ("MIXED", "mixed", 64)
    assert c1.cpus_allocated == 2  # a suspended job has none
    assert (c1.memory, c1.partitions, c1.jobs) == (512000, ("gpu",), ("1", "3", "13"))
    assert c1.gpus == (GpuCount("a100", 8, 5),)
    assert c1.load is not None
    assert (c2.state, c2.kind, c2.why_closed) == ("MIXED+DRAIN", "drained", "drained")
    assert (c2.reason, c2.reason_by) == ("bad DIMM A=3", "root")
    assert c2.reason_since is not None
    assert c2.reason_since > 1_700_000_000
    assert (c3.shards, c3.mps) == (PartCount(16, 7), None)  # on 22.05 from AllocTRES
    assert c5.gpus == (GpuCount("a100_3g.20gb", 2, 1), GpuCount("a100_1g.5gb", 4, 3))
    assert (c6.shards, c6.mps) == (None, PartCount(200, 80))
    assert (c7.gpus, c7.jobs, c7.why_closed) == ((), (), None)


def test_the_table(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.cluster.cluster._LOCAL", slurm)
    done = CliRunner().invoke(nodes_command, ["--partition", "gpu"], catch_exceptions=False)
    lines = done.stdout.splitlines()
    assert lines[0].split() == "NODE STATE PARTITIONS CPUS MEM LOAD GPUS JOBS REASON".split()
    assert "a100:5/8" in lines[1]
    assert "mixed+drain" in lines[2]
    assert "bad DIMM A=3 (root, 20" in lines[2]
    assert "shard:7/16" in lines[3]
    assert "3 nodes: 2 mixed, 1 drained; GPUs: 4 free, largest block" in done.stderr


def test_json(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.cluster.cluster._LOCAL", slurm)
    done = CliRunner().invoke(nodes_command, ["--json", "--node", "c2"], catch_exceptions=False)
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["name"], row["states"], row["reason_by"]) == ("c2", ["MIXED", "DRAIN"], "root")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (NodeChoice(), "c1 c2 c3 c4 c5 c6 c7"),
        (NodeChoice(partitions=("gpu", "cpu")), "c1 c2 c3 c7"),
        (NodeChoice(nodelist="c[2-3],c7"), "c2 c3 c7"),
        (NodeChoice(nodelist="c[2-4]", partitions=("gpu",)), "c2 c3"),
        (NodeChoice(states=("mix",)), "c1 c3 c4 c5 c6"),
        (NodeChoice(states=("idle", "draining")), "c2 c7"),
        (NodeChoice(states=("DRAIN",)), "c2"),
        (NodeChoice(states=("drained",)), ""),  # it has jobs
        (NodeChoice(states=("down",)), ""),
    ],
)
def test_select(slurm: FakeSlurm, choice: NodeChoice, names: str) -> None:
    assert " ".join(row.name for row in select_nodes(read_nodes(slurm).rows, choice)) == names


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (NodeChoice(partitions=("nope",)), "no partition 'nope'; there are: gpu"),
        (NodeChoice(nodelist="c[1-9]"), "no node 'c8'"),
        (NodeChoice(nodelist="c[1"), "is not a list of nodes"),
        (NodeChoice(nodelist="@all"), "no node '@all'"),
        (NodeChoice(states=("sleepy",)), "'sleepy' is not a state of a node; there are: idle"),
    ],
)
def test_what_is_not_there_is_refused(slurm: FakeSlurm, choice: NodeChoice, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        select_nodes(read_nodes(slurm).rows, choice)
    assert says in str(caught.value)


def row(**changes: str) -> NodeRow:
    keys = {
        "NodeName": "n1", "CoresPerSocket": "8", "CPUAlloc": "4", "CPUEfctv": "16", "CPUTot": "16",
        "CPULoad": "0.5", "Gres": "gpu:2", "GresUsed": "gpu:0", "RealMemory": "1000",
        "AllocMem": "10", "Sockets": "2", "State": "MIXED", "ThreadsPerCore": "1", "TmpDisk": "0",
        "Partitions": "p",
    }  # fmt: skip
    (only,) = parse_nodes(" ".join(f"{key}={value}" for key, value in (keys | changes).items()))
    return only


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"CPUAlloc": "16"}, "no CPU left"),
        ({"AllocMem": "1000"}, "no memory left"),
        ({"AllocMem": "900", "MemSpecLimit": "100"}, "no memory left"),
        ({"State": "IDLE+MAINTENANCE"}, "reserved"),
        ({"State": "IDLE+RESERVED"}, "reserved"),
        ({"State": "IDLE+CLOUD+POWERING_DOWN"}, "powering down"),
        ({"State": "IDLE+CLOUD+POWERED_DOWN"}, None),
        ({"State": "IDLE+REBOOT_ISSUED"}, "rebooting"),
        ({"State": "IDLE+NOT_RESPONDING+REBOOT_ISSUED"}, "rebooting"),
        ({"State": "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"}, None),
        ({"State": "MIXED+CLOUD+NOT_RESPONDING"}, "down"),
        ({"State": "DOWN+CLOUD+NOT_RESPONDING+POWERING_UP"}, "down"),
        ({"State": "MIXED+CLOUD+POWER_DOWN"}, "powering down"),
        ({"State": "IDLE!"}, "powering down"),
        ({"State": "IDLE^"}, "rebooting"),
        ({"State": "IDLE$"}, "reserved"),
        ({"State": "IDLE+BLOCKED"}, "blocked by the topology"),
        ({"Partitions": ""}, "in no partition"),
        ({"State": "DOWN*+DRAIN"}, "down"),
        ({"State": "IDLE+DRAIN"}, "drained"),
        ({"State": "IDLE+PLANNED"}, None),
    ],
)
def test_where_no_job_can_start(changes: dict[str, str], why: str | None) -> None:
    assert row(**changes).why_closed == why


def test_a_node_that_boots_for_a_job_is_not_down() -> None:
    booting = row(State="MIXED+CLOUD+NOT_RESPONDING+POWERING_UP")
    assert (booting.kind, booting.usable) == ("mixed", True)


def test_unknown_is_unknown() -> None:
    assert row(CPULoad="N/A").load is None
    assert row(Gres="gpu:2,shard:8", GresUsed="gpu:0,shard:1(IDX:0)").shards == PartCount(8, None)
    assert row(Reason="Not responding").reason_by is None
    assert row(Reason="Not responding").reason == "Not responding"


def test_an_answer_that_is_none_is_an_error() -> None:
    with pytest.raises(SlurmError, match="a node that cannot be read"):
        parse_nodes("NodeName=n1 Arch=x86_64\n")
