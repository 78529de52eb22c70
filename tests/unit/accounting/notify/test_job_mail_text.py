"""The text of users in mails about jobs: escaped, and shown to its owner's own address only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from job_mail_lab import NOW, Lab, stored
from mail_lab import html_of, text_of
from slurmkit_accounting.notify import job_mail
from slurmkit_accounting.notify.mail_settings import MailSettings
from stored_runs import store_runs

pytestmark = pytest.mark.sql

TEXT = "your password expires at evil.example"


def test_an_address_of_the_users_own(lab: Lab) -> None:
    lab.event(12, "Began", address="a@lab.example,b@lab.example")
    lab.run()
    assert lab.inbox.recipients == [["a@lab.example", "b@lab.example"]]
    assert lab.subjects == ["Job 12 started"]


@pytest.mark.parametrize(
    "name",
    [
        "x\r\nBcc: evil@lab.example",
        "<script>alert(1)</script>",
        '"><img src=http://evil.example/x>',
        "\u202egnp.exe",
        "ü" * 500,
        "{{ 7*7 }}",
    ],
)
def test_names_are_shown_and_do_nothing(lab: Lab, name: str) -> None:
    lab.end("12", "COMPLETED", JobName=name.replace("\r\n", " "))
    store_runs(lab.ledger, stored(12))
    lab.event(12, JOB_NAME=name)
    lab.run()
    (mail,) = lab.mails
    assert lab.inbox.recipients == [["alice@lab.example"]]
    assert "Bcc" not in mail
    html = html_of(mail)
    assert "<script>" not in html
    assert "<img" not in html
    assert "49" not in mail["Subject"]
    assert "\u202e" not in mail["Subject"] + text_of(mail) + html


def fail_with_text(lab: Lab, tmp_path: Path, job_id: str, raw: int) -> None:
    """A job whose user put text into all that a mail may show."""
    log = tmp_path / f"{TEXT}.log"
    log.write_text(f"ModuleNotFoundError: No module named '{TEXT}'\n")
    facts = {"JobName": TEXT, "StdOut": str(log), "StdErr": str(log), "JobIDRaw": str(raw)}
    lab.end(job_id, "FAILED", "1:0", **facts)
    store_runs(lab.ledger, stored(raw, job_id=job_id, state="FAILED"))


def everything(lab: Lab) -> str:
    return "".join(f"{mail['Subject']}{text_of(mail)}{html_of(mail)}" for mail in lab.mails)


@pytest.mark.parametrize("address", ["eve@outside.example", "bob", "alice,eve@outside.example"])
def test_to_others_a_mail_shows_no_text_of_the_user(lab: Lab, tmp_path: Path, address: str) -> None:
    """Nobody writes to others in the name of the site."""
    given = {"JOB_NAME": TEXT, "JOB_ACCOUNT": TEXT, "JOB_UID": os.getuid(), "address": address}
    fail_with_text(lab, tmp_path, "12", 12)
    lab.event(12, "Failed", JOB_STATE="FAILED", JOB_EXIT_CODE2="1:0", **given)
    lab.event(14, "Began", **given)
    fail_with_text(lab, tmp_path, "20_1", 21)
    lab.event(21, "Failed", JOB_STATE="FAILED", ARRAY_JOB_ID=20, ARRAY_TASK_ID=1, **given)
    assert lab.run(NOW + 60) == "3 mails sent"
    assert sorted(lab.subjects) == ["Array 20: 1 failed", "Job 12 failed", "Job 14 started"]
    assert TEXT not in everything(lab)
    first = next(mail for mail in lab.mails if mail["Subject"] == "Job 12 failed")
    assert "Failed with exit code 1, after 00:10:00 (source: slurmctld)." in text_of(first)
    assert "Not shown: job name and log: this is not its owner's address" in text_of(first)


def test_the_mail_of_a_day_shows_others_no_text_either(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_mail, "settings_of", lambda *_: MailSettings("daily"))
    fail_with_text(lab, tmp_path, "12", 12)
    given = {"JOB_NAME": TEXT, "JOB_UID": os.getuid(), "address": "eve@outside.example"}
    lab.event(12, "Failed", JOB_STATE="FAILED", **given)
    lab.mailer.digest(NOW + 60)
    assert TEXT not in everything(lab)
    assert "12  its name is not shown: failed, 10:00" in text_of(lab.mails[0])


def test_to_its_owners_own_address_a_mail_shows_all(lab: Lab, tmp_path: Path) -> None:
    fail_with_text(lab, tmp_path, "12", 12)
    given = {"JOB_NAME": TEXT, "JOB_UID": os.getuid(), "address": "Alice@lab.example"}
    lab.event(12, "Failed", JOB_STATE="FAILED", **given)
    lab.run()
    assert lab.subjects == [f"Job 12 ({TEXT}) failed"]
    assert f"First error in its log: ModuleNotFoundError: No module named '{TEXT}'" in text_of(
        lab.mails[0]
    )


def test_a_comment_names_nobody_elses_array(lab: Lab) -> None:
    """Anybody may write another's array into the comment of their own."""
    tag = "slurmkit-array:0123456789ab:2:9:12345"
    lab.event(61, "Began", ARRAY_JOB_ID=60, ARRAY_TASK_ID=1, JOB_COMMENT=tag)
    lab.end("70_1", "COMPLETED", JobIDRaw="71")
    store_runs(lab.ledger, stored(71, job_id="70_1"))
    lab.event(71, ARRAY_JOB_ID=70, ARRAY_TASK_ID=1, JOB_COMMENT=tag.replace("ab:", "ac:"))
    lab.run(NOW + 60)
    assert sorted(lab.subjects) == [
        "Array 60 (train) started: its first task runs", "Array 70 (train): 1 completed",
    ]  # fmt: skip
    assert "12345" not in everything(lab)
