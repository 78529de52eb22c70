"""Notices of one's own jobs: each event once, only those wanted."""

from __future__ import annotations

import msgspec
import pytest
from slurmkit_accounting.config import NotifySection
from slurmkit_accounting.notify.notices import JobNotices

from slurmkit.errors import NoSuchJob
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.poller import WatchedJob
from slurmkit.testing import FakeSlurm

INFO = JobInfo(
    job_id="12", raw_id="12", name="tr\nain", user="alice", account="vision", partition="gpu",
    state="PENDING", node_list="", tres="", elapsed="", submitted=7, started=None, source="squeue",
)  # fmt: skip
ALL = NotifySection(jobs=("start", "fail", "end"), to="alice@lab.example")


def known(state: str, *, over: bool = False) -> dict[str, WatchedJob]:
    return {"12": WatchedJob(msgspec.structs.replace(INFO, state=state), over)}


def told(section: NotifySection, *looks: dict[str, WatchedJob]) -> list[str]:
    news = JobNotices(section, "lab", FakeSlurm({}))
    return [notice.subject for look in looks for notice in news.of(look)]


STORY = (
    {"12": WatchedJob()}, known("PENDING"), known("RUNNING"), known("RUNNING"),
    known("COMPLETED"), known("COMPLETED", over=True), known("COMPLETED", over=True),
)  # fmt: skip


def test_each_event_once() -> None:
    assert told(ALL, *STORY) == [r"job 12 (tr\nain) started", r"job 12 (tr\nain) completed"]


def test_a_job_keeps_the_name_it_was_first_seen_with() -> None:
    unheard = msgspec.structs.replace(INFO, name="allocation", state="COMPLETED")
    looks = (known("RUNNING"), {"12": WatchedJob(unheard, over=True)})
    assert told(ALL, *looks)[1] == r"job 12 (tr\nain) completed"


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"])
def test_a_bad_end_is_told_to_who_wants_ends_or_failures(state: str) -> None:
    bad = known(state, over=True)
    words = [rf"job 12 (tr\nain) ended as {state}"]
    assert told(NotifySection(jobs=("fail",)), bad) == words
    assert told(NotifySection(jobs=("end",)), bad) == words
    assert told(NotifySection(jobs=("start",)), bad) == []
    assert told(NotifySection(jobs=("fail",)), *STORY) == []


def test_a_job_that_cannot_be_watched_is_no_news() -> None:
    assert told(ALL, {"12": WatchedJob(error=NoSuchJob("no"))}) == []


def test_what_a_notice_says() -> None:
    (notice,) = JobNotices(ALL, "lab", FakeSlurm({})).of(known("RUNNING"))
    assert notice.to == ("alice@lab.example",)
    assert notice.identity == "lab/12/7/start"
    assert notice.facts["event"] == "start"
    assert "\nain" not in notice.text.splitlines()[0]
    (again,) = JobNotices(ALL, "lab", FakeSlurm({})).of(known("RUNNING"))
    assert again.identity == notice.identity


def test_a_notice_has_the_whole_exit_code_where_slurm_tells_it() -> None:
    """sacct takes 128 off; slurmctld remembers the job."""
    slurm = FakeSlurm({"squeue": lambda argv, _: argv[-1].split(":")[-1].join(("12", "200:0", ""))})
    failed = msgspec.structs.replace(INFO, state="FAILED", exit_code="72 or 200", source="sacct")
    (notice,) = JobNotices(ALL, "lab", slurm).of({"12": WatchedJob(failed, over=True)})
    assert notice.facts["exit_code"] == "200:0"
    assert not slurm.asked[1:]
