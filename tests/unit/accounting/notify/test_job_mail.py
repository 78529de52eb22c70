"""The mails about jobs: from slurmctld's call to a mail server, each once, one for an array."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_mail_lab import MEASURED, NOW, UTC, Lab, stored
from mail_lab import html_of, text_of
from slurmkit_accounting.config import JobMailSection, ScheduleSection
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.notify import job_mail, owners_files
from slurmkit_accounting.notify.job_mail import JobMailer
from slurmkit_accounting.notify.mail import Mail
from slurmkit_accounting.notify.mail_settings import MailSettings, change_mail_settings
from slurmkit_accounting.notify.owners_files import FileReader
from slurmkit_accounting.service.tasks import ServiceTasks
from stored_runs import ran, store_runs
from waiting import PATIENCE

from slurmkit.errors import BadConfig, NotSent


def test_a_job_that_failed_is_explained(lab: Lab) -> None:
    lab.end("12", "FAILED", "3:0")
    store_runs(lab.ledger, stored(12, state="FAILED"))
    lab.event(12, "Failed", JOB_STATE="FAILED", JOB_EXIT_CODE2="3:0")
    assert lab.run() == "1 mails sent"
    (mail,) = lab.mails
    assert mail["Subject"] == "Job 12 (train) failed"
    assert mail["To"] == "alice@lab.example"
    text = text_of(mail)
    assert "Failed with exit code 3, after 10:00 on c1." in text
    assert "What to do: see its documentation, and the error in its log." in text
    assert "CPU     [#####...............]  25%  1.0 of 4 busy on average" in text
    assert "Memory  [#####...............]  25%  2 GiB of 8 GiB" in text
    assert "GPU     [########............]  40%  40% of 2 GPUs" in text
    assert "Cost: 0.33 GPU-hours, 0.30 EUR (prices since 2026-01-01)" in text
    assert "More: slurmkit why 12" in text
    assert "Would have been enough" not in text  # of a run that failed nobody knows
    assert mail.get_content_type() == "multipart/alternative"
    assert "<script" not in html_of(mail)
    assert "http" not in html_of(mail)
    assert list(lab.spool.iterdir()) == []
    assert lab.waiting == 0


@pytest.mark.parametrize(
    ("seconds", "more"), [(None, ""), (0, ""), (48, ""), (600, "; idle for 50% of the time")]
)
def test_the_mail_says_how_long_the_gpus_were_idle(
    lab: Lab, seconds: int | None, more: str
) -> None:
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, stored(12, gpu_idle_seconds=seconds))  # two GPUs for ten minutes
    lab.event(12)
    lab.run()
    assert f"  40% of 2 GPUs{more}\n" in text_of(lab.mails[0])


def test_the_mail_about_a_failed_job_says_where_its_log_is(lab: Lab) -> None:
    lab.end("12", "FAILED", "3:0")
    store_runs(lab.ledger, stored(12, state="FAILED"))
    lab.event(12, "Failed", JOB_STATE="FAILED", JOB_EXIT_CODE2="3:0")
    lab.run()
    assert "Log: /none/log" in text_of(lab.mails[0])
    assert "/none/log" in html_of(lab.mails[0])


def test_a_job_that_completed_is_told_what_would_have_been_enough(lab: Lab) -> None:
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, stored(12))
    lab.event(12)
    lab.run()
    assert lab.subjects == ["Job 12 (train) completed"]
    text = text_of(lab.mails[0])
    asked = "Asked for: --cpus-per-task=4 --gpus-per-node=2 --mem=8G --time=1:00:00"
    assert asked in text
    assert (
        "Would have been enough: --cpus-per-task=2 --mem=3G --gpus-per-node=1 --time=12:00" in text
    )


def test_where_slurm_knows_nothing_the_event_itself_counts(lab: Lab) -> None:
    lab.event(12, "Failed", JOB_STATE="NODE_FAIL", JOB_EXIT_CODE2="0:0")
    lab.run(NOW + 3600)
    assert "Ended because a node failed, after 00:10:00 (source: slurmctld)." in text_of(
        lab.mails[0]
    )


def test_slurmdbd_is_waited_for_but_not_for_ever(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit_accounting.notify.ended_job.time.time", lambda: NOW + 60)
    store_runs(lab.ledger, stored(12, state="FAILED"))
    lab.event(12, "Failed", JOB_STATE="FAILED", JOB_EXIT_CODE2="3:0")
    lab.away = True
    with pytest.raises(NotSent, match="slurmdbd does not answer"):
        lab.run()
    monkeypatch.setattr("slurmkit_accounting.notify.ended_job.time.time", lambda: NOW + 3600)
    lab.run(NOW + 3600)
    assert "Failed with exit code 3, after 00:10:00 (source: slurmctld)." in text_of(lab.mails[0])


def test_a_job_of_another_cluster_is_not_taken_for_one_of_this(lab: Lab) -> None:
    lab.end("12", "FAILED", "3:0")
    store_runs(lab.ledger, stored(12, state="FAILED"))
    lab.event(12, CLUSTER_NAME="big", JOB_EXIT_CODE2="0:0")
    lab.run(NOW + 3600)
    assert lab.subjects == ["Job 12 (train) completed"]
    assert "Completed, after 00:10:00 (source: slurmctld)." in text_of(lab.mails[0])


@pytest.mark.sql
def test_an_earlier_run_of_the_job_is_not_taken_for_this_one(lab: Lab) -> None:
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, ran(NOW - 90_000, 600, db_index=12, **MEASURED))
    lab.event(12)
    assert lab.run() == ""


def test_the_same_event_sends_one_mail(lab: Lab) -> None:
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, stored(12))
    content = lab.event(12).read_bytes()
    (lab.spool / "2-2.event").write_bytes(content)
    lab.run()
    (lab.spool / "3-3.event").write_bytes(content)
    lab.mailer = lab.new_mailer()
    lab.run(NOW + 60)
    assert lab.subjects == ["Job 12 (train) completed"]
    assert list(lab.spool.iterdir()) == []


def test_a_damaged_file_is_removed_and_named(lab: Lab) -> None:
    (lab.spool / "1-1.event").write_bytes(b"half of an ev")
    assert lab.run() == "1 damaged files removed from the spool"
    assert list(lab.spool.iterdir()) == []


def test_an_event_that_cannot_be_read_stays_and_the_others_are_sent(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder without the setgid bit, where events have slurmctld's own group."""
    refused = lab.event(12, "Began")
    lab.event(13, "Began", at=NOW + 1)
    real = os.open

    def refuse(path: Any, *more: Any, **named: Any) -> int:
        if path == refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr("slurmkit_accounting.notify.spool.os.open", refuse)
        with pytest.raises(NotSent, match=r"cannot read .*: Permission denied.*; 1 mails sent"):
            lab.run()
    assert list(lab.spool.iterdir()) == [refused]
    lab.run(NOW + 30)
    assert lab.subjects == ["Job 13 (train) started", "Job 12 (train) started"]


def test_a_spool_that_cannot_be_read_is_an_error(lab: Lab) -> None:
    lab.spool.rmdir()
    with pytest.raises(BadConfig, match=r"\[job_mail\] spool: cannot read"):
        lab.run()


def test_nothing_is_lost_while_the_mail_server_is_away(lab: Lab) -> None:
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, stored(12))
    lab.event(12)
    lab.inbox.data = "451 later"
    with pytest.raises(
        NotSent, match=r"1 mails are to be tried again, the first: mail: .*451 later"
    ):
        lab.run()
    lab.inbox.data = "250 OK"
    with pytest.raises(NotSent, match="451 later"):  # not yet
        lab.run(NOW + 59)
    assert lab.mails == []
    assert lab.run(NOW + 61) == "1 mails sent"
    assert lab.subjects == ["Job 12 (train) completed"]


def test_a_mail_that_nobody_takes_is_given_up_after_a_day(lab: Lab) -> None:
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, stored(12))
    lab.event(12)
    lab.inbox.data = "451 later"
    with pytest.raises(NotSent):
        lab.run()
    said = lab.run(int(time.time()) + 86400 + 60)
    assert "given up: job 12 of alice: mail: " in said
    assert lab.waiting == 0


def test_who_has_no_address_gets_none_and_the_log_says_so(lab: Lab) -> None:
    lab.event(12, "Began", address="nobody")
    lab.event(13, "Began", address="a b@lab.example")
    said = lab.run()
    assert "given up: job 12 of alice: the directory has no mail address of 'nobody'" in said
    assert "'a b@lab.example' is not a mail address" in said
    assert (lab.mails, lab.waiting) == ([], 0)


def fail_tasks(lab: Lab, count: int, *failed: int) -> None:
    for task in range(1, count + 1):
        state, code = ("FAILED", "1:0") if task in failed else ("COMPLETED", "0:0")
        lab.end(f"12_{task}", state, code, JobIDRaw=str(100 + task), NodeList=f"c{task % 7 + 1}")
        kind = "Failed" if task in failed else "Ended"
        array = {"ARRAY_JOB_ID": 12, "ARRAY_TASK_ID": task, "JOB_STATE": state}
        lab.event(100 + task, kind, **array)
    states = {task: "FAILED" if task in failed else "COMPLETED" for task in range(1, count + 1)}
    store_runs(
        lab.ledger,
        *(stored(100 + task, job_id=f"12_{task}", state=states[task]) for task in states),
    )


def test_an_array_is_one_mail_once_it_is_over(lab: Lab) -> None:
    fail_tasks(lab, 20, 3, 7)
    lab.queued = ["12_21"]
    assert lab.run() == ""
    lab.queued = []
    # slurmctld may not have told of all tasks yet.
    assert lab.run(NOW + 59) == ""
    assert lab.run(NOW + 60) == "1 mails sent"
    assert lab.subjects == ["Array 12 (train): 18 completed, 2 failed"]
    text = text_of(lab.mails[0])
    assert "       18 COMPLETED\n        2 FAILED" in text
    assert "12_3: failed with exit code 1, after 10:00 on c4" in text
    assert "most of any task: 2 GiB of 8 GiB" in text
    assert "Cost: 6.67 GPU-hours, 6.00 EUR" in text
    assert lab.waiting == 0


def test_of_an_array_only_measured_tasks_say_how_long_gpus_were_idle(lab: Lab) -> None:
    for task in (1, 2):
        lab.end(f"12_{task}", "COMPLETED", JobIDRaw=str(100 + task))
        lab.event(100 + task, ARRAY_JOB_ID=12, ARRAY_TASK_ID=task)
    measured = stored(101, job_id="12_1", gpu_idle_seconds=1200)  # two GPUs for ten minutes
    store_runs(lab.ledger, measured, stored(102, job_id="12_2"))
    assert lab.run(NOW + 60) == "1 mails sent"
    assert "of 2 GPUs; idle for 100% of the time" in text_of(lab.mails[0])


def test_ends_that_slurmctld_tells_late_are_in_the_same_mail(lab: Lab) -> None:
    """All tasks were cancelled at once, and slurmctld starts MailProg for one after another."""
    for task in range(1, 7):
        lab.end(f"12_{task}", "CANCELLED", JobIDRaw=str(100 + task))
    store_runs(
        lab.ledger,
        *(stored(100 + task, job_id=f"12_{task}", state="CANCELLED") for task in range(1, 7)),
    )
    for task in range(1, 7):
        at = NOW + 40 * task
        named = {"ARRAY_JOB_ID": 12, "ARRAY_TASK_ID": task, "JOB_STATE": "CANCELLED"}
        lab.event(100 + task, at=at, JOB_END_TIME=NOW, **named)
        lab.run(at + 20)
    lab.run(NOW + 300)
    assert lab.subjects == ["Array 12 (train): 6 were cancelled"]
    assert "#b3261e" not in html_of(lab.mails[0])  # red


@pytest.mark.parametrize("mails", ["each", "daily"])
def test_a_cancelled_job_is_not_red(lab: Lab, monkeypatch: pytest.MonkeyPatch, mails: str) -> None:
    """Most are cancelled by their own user."""
    wants(lab, monkeypatch, mails=mails)
    lab.end("12", "CANCELLED by 10001")
    store_runs(lab.ledger, stored(12, state="CANCELLED"))
    lab.event(12, "Failed", JOB_STATE="CANCELLED")
    lab.run(NOW + 60)
    lab.mailer.digest(NOW + 120)
    (subject,) = lab.subjects
    assert subject == ("1 job, 0 failed" if mails == "daily" else "Job 12 (train) was cancelled")
    assert "#b3261e" not in html_of(lab.mails[0])


@pytest.mark.parametrize("order", [(100, 101, 12), (12, 100, 101)])
def test_the_tasks_that_waited_when_an_array_was_cancelled_are_in_its_mail(
    lab: Lab, order: tuple[int, ...]
) -> None:
    """slurmctld ends them as one job that has the array's id, without a word of the array."""
    for raw, name in {100: "12_1", 101: "12_2", 12: "12_[3-9]"}.items():
        lab.end(name, "CANCELLED", JobIDRaw=str(raw), Start="None")
        store_runs(lab.ledger, stored(raw, job_id=name, state="CANCELLED"))
    for raw in order:
        of_array = {} if raw == 12 else {"ARRAY_JOB_ID": 12, "ARRAY_TASK_ID": raw - 99}
        lab.event(raw, JOB_STATE="CANCELLED", **of_array)
    lab.run(NOW + 60)
    (subject,) = lab.subjects
    assert subject.startswith("Array 12 (train): ")
    assert lab.waiting == 0


def test_an_array_that_does_not_end_is_told_of_after_a_day(lab: Lab) -> None:
    fail_tasks(lab, 3)
    lab.queued = ["12_4"]
    assert lab.run(NOW + 24 * 3600 - 1) == ""
    lab.run(NOW + 24 * 3600)
    assert lab.subjects == ["Array 12 (train): 3 completed, the others have not ended yet"]


@pytest.mark.sql
def test_slurms_own_summary_of_an_array_is_one_mail(lab: Lab) -> None:
    for task in (1, 2):
        lab.end(f"12_{task}", "COMPLETED", JobIDRaw=str({1: 13, 2: 12}[task]))
    store_runs(lab.ledger, stored(13, job_id="12_1"), stored(12, job_id="12_2"))
    lab.event(12, "Ended", ARRAY_JOB_ID=12, ARRAY_TASK_ID=2, whole_array=True, JOB_EXIT_CODE_MAX=0)
    lab.queued = ["99"]
    lab.run()
    assert lab.subjects == ["Array 12 (train): 2 completed"]


def test_an_array_that_slurmkit_split_is_one_mail(lab: Lab) -> None:
    """slurmkit sends an array beyond MaxArraySize as several arrays of Slurm."""
    tags = {12: "slurmkit-array:0123456789ab:0:4", 34: "slurmkit-array:0123456789ab:2:4:12"}
    for array, raw, task in ((12, 13, 1), (12, 12, 2), (34, 35, 1), (34, 34, 2)):
        lab.end(f"{array}_{task}", "COMPLETED", JobIDRaw=str(raw))
        lab.event(raw, ARRAY_JOB_ID=array, JOB_COMMENT=tags[array], whole_array=raw == array)
    raws = {13: "12_1", 12: "12_2", 35: "34_1", 34: "34_2"}
    store_runs(lab.ledger, *(stored(raw, job_id=name) for raw, name in raws.items()))
    lab.queued = ["34_3"]
    lab.comment = tags[34]
    assert lab.run() == ""
    lab.queued = []
    lab.run(NOW + 60)
    assert lab.subjects == ["Array 12 (train): 4 completed"]


def test_the_starts_of_an_arrays_tasks_are_one_mail(lab: Lab) -> None:
    for task in range(1, 4):
        lab.event(100 + task, "Began", ARRAY_JOB_ID=12, ARRAY_TASK_ID=task)
    lab.run()
    lab.event(104, "Began", ARRAY_JOB_ID=12, ARRAY_TASK_ID=4)
    lab.run(NOW + 600)
    assert lab.subjects == ["Array 12 (train) started: its first task runs"]
    assert lab.waiting == 0


def test_the_start_of_an_array_is_told_once_however_long_it_runs(lab: Lab) -> None:
    for task, at in ((1, NOW), (2, NOW + 29 * 86400), (3, NOW + 31 * 86400)):
        lab.event(100 + task, "Began", at=at, ARRAY_JOB_ID=12, ARRAY_TASK_ID=task)
        lab.run(at)
    assert lab.subjects == ["Array 12 (train) started: its first task runs"]


def test_ten_thousand_tasks_are_one_mail(lab: Lab) -> None:
    fail_tasks(lab, 10_000, *range(50, 10_000, 1000))
    lab.run(NOW + 60)
    assert lab.subjects == ["Array 12 (train): 9,990 completed, 10 failed"]
    assert "and 5 more" in text_of(lab.mails[0])
    assert (lab.waiting, list(lab.spool.iterdir())) == (0, [])


def test_a_line_of_several_tasks_counts_them_all(lab: Lab) -> None:
    """Tasks that never started have one record, and one line."""
    lab.end("12_[1-5]", "DEADLINE", JobIDRaw="12", NodeList="None assigned")
    lab.event(12, "Failed", ARRAY_JOB_ID=12, JOB_STATE="DEADLINE", whole_array=True)
    store_runs(lab.ledger, stored(12, job_id="12_[1-5]", state="DEADLINE"))
    lab.run()
    assert len(lab.subjects) == 1
    assert lab.subjects[0].startswith("Array 12 (train): 5 ")
    text = text_of(lab.mails[0])
    assert "  12_[1-5]: " in text
    assert "more\n" not in text


def test_very_many_jobs_of_a_user_are_one_mail(lab: Lab) -> None:
    """And what is tried again is the same mail about the same jobs, also after a restart."""
    for number in range(1, 31):
        lab.end(str(number), "COMPLETED")
        if number <= 25:
            lab.event(number)
    store_runs(lab.ledger, *(stored(number) for number in range(1, 31)))
    lab.inbox.data = "451 later"
    with pytest.raises(NotSent):
        lab.run()
    for number in range(26, 31):
        lab.event(number)
    lab.inbox.data = "250 OK"
    lab.mailer = lab.new_mailer()
    lab.run(NOW + 61)
    single = [f"Job {number} (train) completed" for number in range(26, 31)]
    assert lab.subjects == ["25 jobs, 0 failed", *single]
    assert text_of(lab.mails[0]).count(" train: completed, 10:00, 0.33 GPU-hours") == 25
    assert lab.waiting == 0


def wants(lab: Lab, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    named = type("Named", (), {"pw_name": "alice"})
    monkeypatch.setattr("pwd.getpwuid", lambda _: named)
    change_mail_settings(lab.ledger, uid=10011, **settings)


@pytest.mark.sql
def test_who_wants_no_mails_gets_none(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    wants(lab, monkeypatch, mails="never")
    lab.event(12, "Failed")
    lab.event(13, "Failed", JOB_USER="bob", JOB_UID=10011, address="bob@lab.example")
    lab.run(NOW + 3600)
    # The uid alone does not make bob alice.
    assert lab.inbox.recipients == [["bob@lab.example"]]
    assert lab.waiting == 0


def test_who_wants_failures_only_gets_those(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    wants(lab, monkeypatch, about="failures")
    lab.event(12, "Began")
    lab.event(12, "Ended")
    lab.event(13, "Ended", JOB_STATE="TIMEOUT")  # --mail-type=END alone says Ended
    lab.run(NOW + 3600)
    assert lab.subjects == ["Job 13 (train) ran into its time limit"]


@pytest.mark.sql
def test_the_mail_of_a_day(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    wants(lab, monkeypatch, mails="daily")
    lab.end("12", "FAILED", "3:0")
    lab.end("13", "COMPLETED")
    store_runs(lab.ledger, stored(12, state="FAILED"), stored(13))
    lab.event(12, "Failed", JOB_STATE="FAILED")
    lab.event(13, JOB_NAME="<b>eval</b>")
    lab.event(14, "Began")
    assert lab.run() == ""
    assert lab.mailer.digest(NOW + 60) == "1 mails sent"
    assert lab.mailer.digest(NOW + 120) == ""
    assert lab.subjects == ["2 jobs, 1 failed"]
    text = text_of(lab.mails[0])
    assert "12  train: failed with exit code 3, after 10:00 on c1, 10:00, 0.33 GPU-hours" in text
    assert "13  <b>eval</b>: completed, 10:00, 0.33 GPU-hours, 0.30 EUR" in text
    assert "&lt;b&gt;eval&lt;/b&gt;" in html_of(lab.mails[0])


def test_a_round_reads_no_events_that_wait_for_the_mail_of_the_day(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be very many, and a round comes each half minute."""
    wants(lab, monkeypatch, mails="daily")
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, stored(12))
    lab.event(12)
    lab.event(13, "Began", **of_user("bob"))
    read: list[list[str]] = []
    usual = job_mail.load_waiting_events

    def load(*given: Any, **asked: Any) -> Any:
        found = usual(*given, **asked)
        read.append(sorted(each.event.user for each in found))
        return found

    monkeypatch.setattr(job_mail, "load_waiting_events", load)
    assert lab.run(NOW + 30) == "1 mails sent"
    assert lab.run(NOW + 60) == ""
    assert read == [["bob"], []]
    read.clear()
    assert lab.mailer.digest(NOW + 90) == "1 mails sent"
    assert read == [["alice"]]
    assert lab.waiting == 0


def test_the_first_error_of_a_log_that_belongs_to_the_owner(lab: Lab, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ModuleNotFoundError: No module named 'torch'\n")
    lab.end("12", "FAILED", "1:0", StdOut=str(log), StdErr=str(log))
    store_runs(lab.ledger, stored(12, state="FAILED"))
    lab.event(12, "Failed", JOB_STATE="FAILED", JOB_UID=os.getuid())
    lab.run()
    line = "First error in its log: ModuleNotFoundError: No module named 'torch'"
    assert line in text_of(lab.mails[0])


def test_a_file_of_somebody_else_in_the_place_of_the_log_is_not_read(
    lab: Lab, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("error: the password is 1234\n")
    log = tmp_path / "log"
    log.symlink_to(secret)
    lab.end("12", "FAILED", "1:0", StdOut=str(log), StdErr=str(log))
    store_runs(lab.ledger, stored(12, state="FAILED"))
    lab.event(12, "Failed", JOB_STATE="FAILED", JOB_UID=os.getuid() + 1)
    lab.run()
    assert "password" not in text_of(lab.mails[0])
    assert "First error" not in text_of(lab.mails[0])


def hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each read of a log hang, as on a file system whose server is away."""
    monkeypatch.setattr(owners_files, "_READ", "import time; time.sleep(600)")


def test_a_log_on_a_file_system_that_hangs_delays_no_mail(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        started.append(real(*given, **named))
        return started[-1]

    monkeypatch.setattr(owners_files.subprocess, "Popen", start)
    monkeypatch.setattr(job_mail, "FileReader", lambda: FileReader(seconds=0.2))
    lab.mailer = lab.new_mailer()
    hang(monkeypatch)
    log = tmp_path / "log"
    for number in (12, 13):
        lab.end(str(number), "FAILED", "1:0", StdOut=str(log), StdErr=str(log))
        store_runs(lab.ledger, stored(number, state="FAILED"))
        lab.event(number, "Failed", JOB_STATE="FAILED", JOB_UID=os.getuid())
    lab.run()
    assert lab.subjects == ["Job 12 (train) failed", "Job 13 (train) failed"]
    for mail in lab.mails:
        said = f"Its log could not be read: {log}: its file system does not answer"
        assert said in text_of(mail)
        assert said in html_of(mail)
    assert len(started) == 1  # for minutes nothing else there is tried
    assert started[0].wait(PATIENCE) == -signal.SIGKILL


def test_a_site_may_send_them_to_a_webhook_too(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    fake = type("Fake", (), {"send": lambda _, notice: sent.append(notice)})
    monkeypatch.setattr(job_mail, "notifier", lambda _: fake())
    lab.mailer = lab.new_mailer(by=("webhook",))
    lab.event(12, "Began", address="nobody")
    lab.run()
    (notice,) = sent
    assert (notice.kind, notice.to) == ("job", ())
    assert (notice.facts["event"], notice.facts["job_id"]) == ("begin", "12")
    assert json.dumps(notice.facts)


def test_the_service_has_the_tasks_where_there_is_a_spool(
    lab: Lab, configure: Callable[[str], None]
) -> None:
    service = ServiceTasks(open_for_writing, lab.slurm, lambda: None, UTC)
    tasks = {task.name: task for task in service.tasks(ScheduleSection())}
    assert tasks["job_mail"].apart
    assert tasks["digest"].own_thread  # neither waits for the other
    lab.event(12, "Began")
    assert tasks["job_mail"].run([]) == "1 mails sent"
    assert tasks["digest"].run([]) == ""
    configure("")
    assert not {"job_mail", "digest"} & {task.name for task in service.tasks(ScheduleSection())}


def test_a_user_whose_mails_are_refused_does_not_hold_up_others(lab: Lab) -> None:
    lab.inbox.of["alice@lab.exmaple"] = "550 no such user"
    for number in range(1, 9):
        lab.event(number, "Began", address="alice@lab.exmaple")
    lab.event(9, "Began", at=NOW + 1, **of_user("bob"))
    with pytest.raises(NotSent, match=r"8 mails are to be tried again, the first: .*550"):
        lab.run()
    assert lab.inbox.recipients == [["bob@lab.example"]]
    assert lab.tried == 3


def test_a_user_with_very_many_mails_does_not_delay_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_mail, "_MOST_MAILS", 3)
    for number in range(1, 9):
        lab.event(number, "Began")
    for number, user in enumerate(("bob", "carol"), start=9):
        lab.event(number, "Began", at=NOW + number, **of_user(user))
    lab.run()
    assert sorted(lab.inbox.recipients) == [
        ["alice@lab.example"], ["bob@lab.example"], ["carol@lab.example"],
    ]  # fmt: skip


def test_mails_of_a_user_to_very_many_addresses_do_not_delay_others(lab: Lab) -> None:
    """New mails of others wait for the end of a round."""
    for number in range(1, 31):
        lab.event(number, "Began", address=f"a{number}@lab.example")
    lab.event(31, "Began", at=NOW + 31, **of_user("bob"))
    assert lab.run() == "21 mails sent"
    assert ["bob@lab.example"] in lab.inbox.recipients
    assert lab.run() == "10 mails sent"
    assert lab.waiting == 0


def test_the_mails_of_the_day_go_out_in_turn(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_mail, "settings_of", lambda *_: MailSettings("daily"))
    for number in range(1, 31):
        lab.event(number, address=f"a{number}@lab.example")
    lab.event(31, at=NOW + 31, **of_user("bob"))
    assert lab.mailer.digest(NOW + 3600) == "31 mails sent"
    assert lab.inbox.recipients[1] == ["bob@lab.example"]


def of_user(user: str) -> dict[str, Any]:
    return {"JOB_USER": user, "JOB_UID": 10012, "address": f"{user}@lab.example"}


def test_very_many_starts_of_a_users_jobs_are_one_mail_but_those_of_arrays(lab: Lab) -> None:
    for number in range(1, 26):
        lab.event(number, "Began")
    lab.event(101, "Began", ARRAY_JOB_ID=100, ARRAY_TASK_ID=1)
    lab.run()
    lab.event(102, "Began", ARRAY_JOB_ID=100, ARRAY_TASK_ID=2)
    lab.run(NOW + 30)
    assert sorted(lab.subjects) == [
        "25 jobs, 0 failed", "Array 100 (train) started: its first task runs",
    ]  # fmt: skip
    several = next(mail for mail in lab.mails if "jobs" in mail["Subject"])
    assert text_of(several).count(" train: started") == 25
    assert lab.waiting == 0


def test_mails_go_out_while_the_mails_of_the_day_are_sent(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long digest delays nobody, and what it sends is sent once."""
    wants(lab, monkeypatch, mails="daily")
    other = lab.new_mailer()
    store_runs(lab.ledger, stored(12))
    lab.end("12", "COMPLETED")
    lab.event(12)
    lab.event(13, "Began", **of_user("bob"))
    said: list[str] = []

    def send_and_look(self: Mail, notice: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Mail, "send", real)
            if notice.subject == "1 job, 0 failed":
                # Even if the user chooses other mails right now.
                change_mail_settings(lab.ledger, uid=10011, mails="each")
                said.append(other.run(NOW + 60))
            self.send(notice)

    real = Mail.send
    monkeypatch.setattr(Mail, "send", send_and_look)
    assert lab.mailer.digest(NOW + 60) == "1 mails sent"
    assert said == ["1 mails sent"]
    assert sorted(lab.subjects) == ["1 job, 0 failed", "Job 13 (train) started"]
    monkeypatch.setattr(Mail, "send", real)
    assert (other.run(NOW + 90), lab.mailer.digest(NOW + 90), lab.waiting) == ("", "", 0)


def test_an_event_is_in_one_mail_whoever_is_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings change after the mails at once were chosen, and the digest is first."""
    store_runs(lab.ledger, stored(12))
    lab.end("12", "COMPLETED")
    lab.event(12)
    daily = lab.new_mailer()

    def digest_first() -> None:
        wants(lab, monkeypatch, mails="daily")
        daily.digest(NOW + 60)

    section = JobMailSection(spool=str(lab.spool))
    mailer = JobMailer(open_for_writing, lab.slurm, digest_first, UTC, section)
    assert mailer.run(NOW + 60) == ""
    assert lab.subjects == ["1 job, 0 failed"]
    assert lab.waiting == 0


@pytest.mark.sql
def test_a_mail_server_that_is_away_is_not_tried_for_everybody(lab: Lab) -> None:
    lab.inbox.data = "451 later"
    for number in range(9):
        user = f"user{number}"
        lab.event(number, "Began", JOB_USER=user, JOB_UID=1, address=f"{user}@lab.example")
    with pytest.raises(NotSent, match="3 mails are to be tried again"):
        lab.run()
    assert lab.tried == 3


def test_one_notifier_that_fails_does_not_hold_up_another(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    fake = type("Fake", (), {"send": lambda _, notice: sent.append(notice)})
    real = job_mail.notifier
    monkeypatch.setattr(
        job_mail, "notifier", lambda name: fake() if name == "webhook" else real(name)
    )
    lab.mailer = lab.new_mailer(by=("mail", "webhook"))
    lab.event(12, "Began")
    lab.inbox.data = "451 later"
    with pytest.raises(NotSent, match="451 later"):
        lab.run()
    assert len(sent) == 1
    lab.inbox.data = "250 OK"
    lab.run(NOW + 61)
    assert (len(sent), lab.subjects) == (1, ["Job 12 (train) started"])


def test_the_run_before_a_requeue_is_not_taken_for_the_one_that_ended(lab: Lab) -> None:
    lab.end("12", "COMPLETED")
    store_runs(lab.ledger, ran(NOW - 1800, 600, db_index=12, state="PREEMPTED", **MEASURED))
    lab.event(12, JOB_END_TIME=NOW)
    lab.event(12, JOB_NAME="other")  # 22.05 does not say when
    assert lab.run() == ""
    store_runs(lab.ledger, ran(NOW - 600, 600, db_index=13, job_id_raw=12, **MEASURED))
    assert lab.run() == "2 mails sent"


def test_everybody_gets_the_mail_of_the_day(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_mail, "settings_of", lambda *_: MailSettings("daily"))
    monkeypatch.setattr(job_mail, "_MOST_MAILS", 2)  # in a round of the mails at once
    users = [f"user{number}" for number in range(5)]
    for number, user in enumerate(users, start=1):
        lab.event(number, JOB_USER=user, JOB_UID=number, address=f"{user}@lab.example")
    lab.mailer.digest(NOW + 3600)
    assert len(lab.mails) == len(users)


def test_what_is_long_over_is_forgotten(lab: Lab) -> None:
    content = lab.event(12, "Began").read_bytes()
    lab.run()
    lab.run(NOW + 6 * 86400)
    assert lab.remembered == (1, 1)
    lab.run(NOW + 8 * 86400)
    assert lab.remembered == (0, 1)
    (lab.spool / "2-2.event").write_bytes(content)
    lab.run(NOW + 8 * 86400 + 60)
    assert lab.subjects == ["Job 12 (train) started"]  # the mail itself is known for longer
    lab.run(NOW + 100 * 86400)
    assert lab.remembered == (0, 0)


def test_an_array_is_over_although_squeue_does_not_know_another_user(lab: Lab) -> None:
    fail_tasks(lab, 3)
    tag = "slurmkit-array:0123456789ab:0:4"
    other = {"JOB_USER": "gone", "JOB_UID": 10099, "address": "gone@lab.example"}
    lab.event(77, ARRAY_JOB_ID=77, JOB_COMMENT=tag, **other)
    lab.unknown = "gone"
    assert lab.run(NOW + 60) == "1 mails sent"
    assert lab.subjects == ["Array 12 (train): 3 completed"]


KILLED = """
import os, signal, sys
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import JobMailSection
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.notify import job_events, job_mail
from slurmkit.testing import FakeSlurm
spool, now, where = sys.argv[1], int(sys.argv[2]), sys.argv[3]
module, name = {"unlink": (job_events, "_remove"), "finish": (job_mail, "finish_events")}[where]
real, calls = getattr(module, name), []
def kill(*given):
    calls.append(1)
    if where == "unlink" or len(given[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given)
setattr(module, name, kill)
section = JobMailSection(spool=spool)
zone = find_zone("UTC")
slurm = FakeSlurm({"scontrol": lambda *_: "ClusterName             = lab\\n"})
job_mail.JobMailer(open_for_writing, slurm, lambda: None, zone, section).run(now)
"""


@pytest.mark.parametrize("where", ["unlink", "finish"])
def test_killed_between_two_steps_it_sends_one_mail(lab: Lab, where: str, tmp_path: Path) -> None:
    """Between the ledger's row and the file, and between the mail and the ledger's row."""
    lab.event(12, "Began")
    environ = os.environ | {"SLURMKIT_CONFIG": str(tmp_path / "config" / "slurmkit.toml")}
    argv = [sys.executable, "-c", KILLED, str(lab.spool), str(NOW), where]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(lab.mails) == (where == "finish")
    lab.run(NOW + 60)
    assert lab.subjects == ["Job 12 (train) started"]
    assert (lab.waiting, list(lab.spool.iterdir())) == (0, [])
