"""`slurmkit-mail`, Slurm's MailProg: one file for an event, whole or not at all, no more."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
from pathlib import Path

import pytest
from mail_spool import SCRIPT, call_script, install_script, job_environment
from slurmkit_accounting.notify.spool import parse_event, read_spool

ENDED = job_environment(12, "Ended", JOB_EXIT_CODE2="0:0")


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


@pytest.fixture
def script(tmp_path: Path, spool: Path) -> Path:
    return install_script(tmp_path / "slurm", spool=spool, most=3)


def test_an_event_is_one_file_that_the_service_reads(script: Path, spool: Path) -> None:
    done = call_script(script, ENDED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (found,) = read_spool(spool, 10)
    event = found.event
    assert event is not None
    assert (event.cluster, event.job_id, event.kind) == ("lab", "12", "end")
    assert (event.user, event.uid, event.address) == ("alice", 10011, "alice")
    assert event.facts["name"] == "train"
    assert abs(event.at - found.path.stat().st_mtime) < 2


def test_the_group_reads_the_event_whatever_the_umask(script: Path, spool: Path) -> None:
    before = os.umask(0o077)
    try:
        call_script(script, ENDED)
    finally:
        os.umask(before)
    (path,) = spool.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    "name",
    [
        "a\nBcc: evil@lab.example",
        "x\0y".replace("\0", ""),
        "$(touch /tmp/owned)`id`; rm -rf ~",
        "JOB_ID=99",
        "\udcff\udcfe",
        "=" * 5000,
        "Slurm Array Summary Job_id=1_* (1)",
    ],
)
def test_a_job_name_changes_nothing_but_the_name(script: Path, spool: Path, name: str) -> None:
    environment = ENDED | {"SLURM_JOB_NAME": name}
    assert call_script(script, environment).returncode == 0
    (found,) = read_spool(spool, 10)
    assert found.event is not None
    assert (found.event.job_id_raw, found.event.whole_array) == (12, False)
    assert found.event.facts["name"] == os.fsencode(name)[:1000].decode("utf-8", "replace")


def test_a_full_spool_takes_no_more_and_says_so(script: Path, spool: Path) -> None:
    for _ in range(3):
        assert call_script(script, ENDED).returncode == 0
    done = call_script(script, ENDED)
    assert done.returncode == 1
    assert done.stderr == (
        f"slurmkit-mail: cannot write to the spool {spool}: it holds 3 events, the most allowed;"
        " does the service run?; no mail is sent about job 12\n"
    )
    assert len(list(spool.iterdir())) == 3


def test_without_a_spool_it_says_so(tmp_path: Path) -> None:
    script = install_script(tmp_path / "slurm", spool=tmp_path / "none")
    done = call_script(script, ENDED)
    assert done.returncode == 1
    assert "No such file or directory; no mail is sent about job 12\n" in done.stderr


def plain_mail(folder: Path) -> Path:
    """A program in the place of mail(1) that keeps its arguments."""
    program = folder / "mail"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/sent\n')
    program.chmod(0o755)
    return program


def test_a_plain_mail_is_sent_where_the_spool_cannot_take_it(tmp_path: Path) -> None:
    script = install_script(tmp_path / "slurm", spool="/nowhere", fallback=plain_mail(tmp_path))
    environment = ENDED | {"SLURM_JOB_NAME": "a\nb"}
    done = call_script(script, environment, "alice@lab.example")
    assert done.returncode == 0
    assert "sends a plain mail about job 12" in done.stderr
    subject = "Slurm Job_id=12 Name=a?b Ended, Run time 00:10:00"
    assert (tmp_path / "sent").read_text().splitlines() == ["-s", subject, "alice@lab.example"]


@pytest.mark.parametrize(
    "address", ["-Sv15-compat=x", "|touch owned", "/tmp/file", "a b", "~x", ""]
)
def test_no_plain_mail_goes_to_what_a_mail_program_takes_for_more(
    tmp_path: Path, address: str
) -> None:
    script = install_script(tmp_path / "slurm", spool="/nowhere", fallback=plain_mail(tmp_path))
    assert call_script(script, ENDED, address).returncode == 1
    assert not (tmp_path / "sent").exists()


def test_it_needs_little() -> None:
    """Python 3.6's syntax, and modules that Python has loaded anyway, but for syslog."""
    tree = ast.parse(SCRIPT.read_text("utf-8"), feature_version=(3, 6))
    imported = {
        name.name for each in ast.walk(tree) if isinstance(each, ast.Import) for name in each.names
    }
    assert imported == {"os", "sys", "time", "syslog"}
    assert SCRIPT.read_text("utf-8").startswith("#!/usr/bin/python3 -IS\n")
    assert os.access(SCRIPT, os.X_OK)


def test_called_otherwise_it_explains_itself(script: Path) -> None:
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "slurmkit-mail -s SUBJECT ADDRESS" in done.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"JOB_ID=1\0", b"JOB_ID=a\0AT=1\0ADDRESS=x\0", b"JOB_ID=1\0AT=1\0ADDRESS=x"],
)
def test_what_is_no_event_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"no job|too long"):
        parse_event(content)


def test_links_in_the_spool_are_not_followed(spool: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"JOB_ID=1\0AT=1\0ADDRESS=x\0")
    (spool / "1.event").symlink_to(secret)
    os.mkfifo(spool / "2.event")
    assert [found.event for found in read_spool(spool, 10)] == [None, None]
