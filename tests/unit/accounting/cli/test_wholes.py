"""Reports of arrays in several of Slurm's: by the ids that their user knows."""

from __future__ import annotations

import json

import msgspec
import pytest
from report_books import BEGIN, run, write_books
from slurmkit_accounting.cli.array_ids import to_slurm_ids
from slurmkit_accounting.cli.report import report_group
from split_array_books import NOVEMBER

from slurmkit.cli.main import run_to_exit_code
from slurmkit.cluster.sweeps import ArrayRecord, SentArray
from slurmkit.spec.jobspec import JobSpec


@pytest.fixture(autouse=True)
def remembered(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sent = (SentArray("12", "0-9", 0), SentArray("13", "0-4", 10))
    spec = JobSpec(command=("true",))
    whole = ArrayRecord(token="f" * 12, submitted=1.0, total=15, planned=2, sent=sent, spec=spec)
    folder = tmp_path / "slurmkit" / "arrays" / "lab"
    folder.mkdir(parents=True)
    (folder / whole.name).write_bytes(msgspec.json.encode(whole))


@pytest.fixture
def books(file_ledger):
    ids = ("12_3", "13_2", "13_4", "14", "130")
    span = BEGIN, BEGIN + 3600
    jobs = [run("alice", *span, gpus={"a100": 1}, other={"job_id": job_id}) for job_id in ids]
    jobs.append(run("alice", *span, gpus={"a100": 1}, cluster=2, other={"job_id": "13_2"}))
    write_books(file_ledger, jobs)


def explained(capsys, *words):
    assert run_to_exit_code(report_group, ["explain", *NOVEMBER, "--json", *words]) == 0
    return sorted(row["job"] for row in json.loads(capsys.readouterr().out)["rows"])


@pytest.mark.usefixtures("books")
def test_runs_have_the_ids_of_the_whole(capsys):
    assert explained(capsys) == ["12_12", "12_14", "12_3", "130", "13_2", "14"]
    assert explained(capsys, "--job", "12", "--cluster", "lab") == ["12_12", "12_14", "12_3"]
    assert explained(capsys, "--job", "12_12", "--cluster", "lab") == ["12_12"]
    assert explained(capsys, "--job", "14") == ["14"]


@pytest.mark.usefixtures("books")
def test_a_task_is_a_job_however_many_arrays_there_are(capsys):
    words = ["usage", *NOVEMBER, "--job", "12", "--cluster", "lab", "--json"]
    assert run_to_exit_code(report_group, words) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["jobs"], row["gpu_hours"]) == (3, 3.0)


def test_only_what_is_remembered_is_meant_otherwise():
    assert to_slurm_ids("12") == "12,13"
    assert to_slurm_ids("12_14") == "13_4"
    assert to_slurm_ids("12", ("big",)) == "12"
    assert to_slurm_ids("13_2") == "13_2"
    assert to_slurm_ids("12+1") == "12+1"
    assert to_slurm_ids(None) is None
