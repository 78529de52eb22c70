"""Runs whose number of GPUs cannot be right."""

from __future__ import annotations

import json
import time

import pytest
from fake_sacct import FakeSacct, job
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.cli.report import report_group
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs
from sqlalchemy import select

from slurmkit.cli.main import run_to_exit_code

NOW = int(time.time())
DAY = 86400
NODES = (
    "NodeName=c{} State=IDLE CPUTot=64 Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=9"
    " TmpDisk=0 Gres=gpu:{}\n"
)


def doubts(ledger: Ledger) -> list[str | None]:
    with ledger.transaction() as connection:
        found = connection.execute(select(runs.c.doubt).order_by(runs.c.job_id_raw))
        return list(found.scalars())


@pytest.mark.sql
def test_gpus_that_are_not_what_was_asked_for_are_doubtful(ledger):
    odd = job(1, NOW - 90, NOW - 90, NOW, AllocTRES="cpu=4,gres/gpu=4,node=1",
              ReqTRES="cpu=4,gres/gpu=2,node=1")  # fmt: skip
    whole = job(2, NOW - 90, NOW - 90, NOW, AllocTRES="cpu=64,gres/gpu=8,node=1",
                ReqTRES="cpu=4,gres/gpu=2,node=1")  # fmt: skip
    ingest(ledger, FakeSacct(odd, whole))
    assert doubts(ledger) == [
        "AllocTRES has 4 GPUs, ReqTRES 2",
        None,
    ]


def test_the_status_says_how_doubtful_runs_are_listed(file_ledger, capsys):
    """No command named them."""
    odd = job(1, NOW - 90, NOW - 90, NOW, AllocTRES="cpu=4,gres/gpu=4,node=1",
              ReqTRES="cpu=4,gres/gpu=2,node=1")  # fmt: skip
    ingest(file_ledger, FakeSacct(odd, job(2, NOW - 90, NOW - 90, NOW)))
    assert run_to_exit_code(ledger_group, ["status"]) == 0
    (words,) = (each for each in capsys.readouterr().out.splitlines() if "doubtful" in each)
    command = words.partition("; to list them: slurmkit report ")[2].split()
    assert command[:3] == ["explain", "--runs", "doubtful"]
    assert run_to_exit_code(report_group, [*command, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["job"], row["doubt"]) for row in rows] == [
        ("1", "AllocTRES has 4 GPUs, ReqTRES 2")
    ]


@pytest.mark.sql
def test_more_gpus_than_the_nodes_of_a_run_have_are_doubtful(ledger):
    def held(number: int, nodes: str, gpus: str, end: int | None = NOW - 9) -> dict:
        tres = f"cpu=4,node=1,{gpus}"
        return job(number, NOW - 90, NOW - 90, end, AllocTRES=tres, ReqTRES=tres, NodeList=nodes)

    slurm = FakeSacct(
        held(1, "c1", "gres/gpu=5"),
        held(2, "c[1-2]", "gres/gpu:A100=5,gres/gpu=5"),
        held(3, "c[1-2]", "gres/gpu:h100=3,gres/gpu=3", None),
        held(4, "c9", "gres/gpu=50"),  # no node any more
        held(5, "c1", "gres/gpu:a100=4,gres/gpu=4"),
        held(6, "c1", "gres/gpu=9", NOW - 5 * DAY) | {"Eligible": str(NOW - 6 * DAY)},
    )
    slurm.nodes = NODES.format(1, "a100:4(S:0-1)") + NODES.format(2, "h100:2")
    ingest(ledger, slurm)
    assert doubts(ledger) == [
        "AllocTRES has 5 GPUs, its nodes 4",
        "AllocTRES has 5 A100, its nodes 4",
        "AllocTRES has 3 h100, its nodes 2",
        None,
        None,
        None,
    ]
    slurm.nodes = ""
    slurm.jobs[0]["ExitCode"] = "1:0"
    ingest(ledger, slurm)
    assert doubts(ledger)[0] == "AllocTRES has 5 GPUs, its nodes 4"
