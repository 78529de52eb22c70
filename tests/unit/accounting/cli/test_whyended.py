"""`report explain --job` says why each run of a job that survives ended."""

from __future__ import annotations

import json

import pytest
from report_books import BEGIN, run, write_books
from slurmkit_accounting.cli.report import report_group
from split_array_books import NOVEMBER

from slurmkit.cli.main import run_to_exit_code
from slurmkit.config.paths import state_folder

HOUR = 3600
HISTORY = f"""\
0\t{BEGIN + 2}\tbegin\tc1
0\t{BEGIN + HOUR - 1}\tend\ttimeout requeue - timeout: back to the queue
1\t{BEGIN + 2 * HOUR + 2}\tbegin\tc2
"""


@pytest.fixture
def books(file_ledger):
    other = {"job_id": "12", "job_id_raw": 12}
    write_books(
        file_ledger,
        [
            run("alice", BEGIN, BEGIN + HOUR, state="REQUEUED", other=other),
            run("alice", BEGIN + 2 * HOUR, BEGIN + 3 * HOUR, submit=BEGIN + HOUR, other=other),
            run("alice", BEGIN, BEGIN + HOUR, cluster=2, other=other),  # it has no history
        ],
    )


def explained(capsys, *words):
    assert run_to_exit_code(report_group, ["explain", *NOVEMBER, *words]) == 0
    return capsys.readouterr()


@pytest.mark.usefixtures("books")
def test_the_reason_is_that_of_the_jobs_own_history(capsys):
    folder = state_folder("runs") / "lab" / "12"
    folder.mkdir(parents=True)
    (folder / "history").write_text(HISTORY)

    def why():
        rows = json.loads(explained(capsys, "--job", "12", "--json").out)["rows"]
        return [(row["cluster"], row["state"], row["why"]) for row in rows]

    lost = [("lab", "REQUEUED", "timeout"), ("lab", "COMPLETED", "")]
    assert why() == [("big", "COMPLETED", ""), *lost]
    with (folder / "history").open("a") as file:
        file.write(f"1\t{BEGIN + 3 * HOUR}\tend\tdone - 0 the work is done\n")
    assert why()[1:] == [lost[0], ("lab", "COMPLETED", "done")]
    shown = explained(capsys, "--job", "12", "--columns", "state,why")
    assert shown.out.splitlines()[2].split() == ["REQUEUED", "timeout"]
    assert "why: from the jobs' histories" in shown.err


@pytest.mark.usefixtures("books")
def test_without_a_history_nothing_is_said(capsys):
    said = explained(capsys, "--job", "12")
    assert "WHY" not in said.out
    assert "own histories" not in said.err
    assert "why" not in json.loads(explained(capsys, "--json").out)["rows"][0]  # no single job
