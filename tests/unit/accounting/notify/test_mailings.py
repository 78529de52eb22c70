"""When a mail about a job that has ended is due."""

from __future__ import annotations

import pytest
from job_mail_lab import NOW, Lab, stored
from mail_lab import text_of
from slurmkit_accounting.ledger.schema.runs import spans
from sqlalchemy import insert
from stored_runs import store_runs


def read(lab: Lab, begin: int, finish: int) -> None:
    """Enter that an ingest has read a span of time."""
    with lab.ledger.transaction() as connection:
        connection.execute(insert(spans), {"cluster_id": 1, "begin": begin, "finish": finish})


def test_a_mail_waits_for_the_ledger_but_not_for_ever(lab: Lab) -> None:
    lab.end("12", "COMPLETED")
    lab.event(12)
    assert lab.run(NOW) == ""
    assert lab.run(NOW + 29 * 60) == ""
    assert (lab.subjects, lab.waiting) == ([], 1)
    lab.run(NOW + 30 * 60)
    assert lab.subjects == ["Job 12 (train) completed"]
    assert "Used of" not in text_of(lab.mails[0])


@pytest.mark.parametrize("nodes", ["(null)", "c1"])
def test_of_a_job_that_never_started_a_mail_waits_until_sacct_was_read(
    lab: Lab, nodes: str
) -> None:
    """In a window of time, sacct lists no job that was held until it was cancelled."""
    store_runs(lab.ledger, stored(99))
    lab.end("12", "CANCELLED by 10001", Start="None")
    lab.event(12, "Failed", JOB_STATE="CANCELLED", JOB_NODELIST=nodes)
    assert lab.run(NOW + 60) == ""
    read(lab, NOW - 60, NOW)  # not the time of the event
    assert lab.run(NOW + 90) == ""
    read(lab, NOW, NOW + 60)
    lab.run(NOW + 120)
    assert lab.subjects == (["Job 12 (train) was cancelled"] if nodes == "(null)" else [])
    lab.run(NOW + 30 * 60)
    (mail,) = lab.mails
    assert ("Nodes" in text_of(mail)) == (nodes == "c1")
