"""The service's log: one line for each event, whatever is in it, as text or as JSON."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import subprocess
import sys
import threading
from datetime import datetime
from typing import Any

import pytest
from slurmkit_accounting.service.log import (
    LibraryMessages,
    make_log,
    numbered_request,
    request_id,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("usage", "usage"),
        ("", '""'),
        ('x" uid=0 y="', r'"x\" uid=0 y=\""'),
        ("x=y", '"x=y"'),
        ("a\nanswered uid=0", r'"a\\nanswered uid=0"'),
        ('\\" uid=0', r'"\\\" uid=0"'),
        ("z" * 1000, '"' + "z" * 300 + '…"'),
        (r"a\nb", r'"a\\nb"'),
        ("a\u3000uid=0", '"a\u3000uid=0"'),
    ],
)
def test_no_fact_forges_another(text: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    make_log("text")("answered", ask=text, fault=None)
    assert capsys.readouterr().err == f"answered ask={shown}\n"


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json_has_the_names_of_the_elastic_common_schema(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = make_log("json")
    log("login refused", sender="10.0.0.7", user="eve", via="ldap", why="wrong password")
    log("page", user="olga", seen_as="bob", path="/reports?by=user", status=200)
    log("done", task="ingest", seconds="2.5", said="12 runs")
    refused, page, done = lines_of(capsys)
    when = datetime.fromisoformat(refused.pop("@timestamp"))
    assert when.utcoffset() is not None
    assert refused == {
        "log.level": "warning",
        "message": 'login refused sender=10.0.0.7 user=eve via=ldap why="wrong password"',
        "ecs.version": "8.11.0",
        "service.name": "slurmkit-ledger",
        "event.kind": "event",
        "event.action": "login-refused",
        "event.category": ["authentication"],
        "event.type": ["start"],
        "event.outcome": "failure",
        "client.address": "10.0.0.7",
        "client.ip": "10.0.0.7",
        "user.name": "eve",
        "error.message": "wrong password",
        "labels": {"via": "ldap"},
    }
    assert page["user.effective.name"] == "bob"
    assert (page["http.response.status_code"], page["event.outcome"]) == (200, "success")
    assert page["url.original"] == "/reports?by=user"
    assert (done["event.duration"], done["log.level"]) == (2_500_000_000, "info")
    assert "event.outcome" not in done


def test_a_page_that_was_not_found_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    make_log("json")("page", user="olga", sender="uid:7", status=404)
    (page,) = lines_of(capsys)
    assert page["event.outcome"] == "failure"
    assert "client.ip" not in page


def test_the_end_of_what_was_asked_for_does_not_hide(capsys: pytest.CaptureFixture[str]) -> None:
    make_log("text")("page", path="/report/usage?x=" + "A" * 1000 + "&user=victim")
    assert "&user=victim" in capsys.readouterr().err


def test_lines_of_threads_do_not_mix(capfd: pytest.CaptureFixture[str]) -> None:
    log = make_log("json")
    name = "\u4e2d" * 300

    def write() -> None:
        for number in range(200):
            log("answered", user=name, ask=name, shown_to=name, number=number)

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1600
    assert {json.loads(line)["user.name"] for line in lines} == {name}


def test_a_flood_of_refusals_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    log = make_log("text")
    for _ in range(500):
        log("refused", sender="198.51.100.4", why="the query has expired")
    log("login refused", sender="10.0.0.9", user="ann")
    log("failed", sender="198.51.100.4", why="no munged")
    clock[0] += 61
    log("refused", sender="198.51.100.4", why="the query has expired")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 23
    assert lines[20].startswith("login refused sender=10.0.0.9")
    assert lines[-1].endswith("unwritten=480")


def test_a_flood_of_one_host_hides_no_refusal_of_a_user(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = make_log("text")
    for _ in range(500):
        log("refused", sender="10.0.0.20", why="is not a MUNGE credential")
    log("refused", sender="10.0.0.20", uid=7, why="only operators may change allocations")
    log("login refused", sender="10.0.0.20", user="ann", why="the directory refuses the password")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 22
    assert "uid=7" in lines[-2]
    assert "user=ann" in lines[-1]


@pytest.mark.parametrize("char", ["\U0001f600", '"', "\\", "\x01", "\u4e2d"])
def test_no_line_is_so_long_that_the_journal_splits_it(
    char: str, capfd: pytest.CaptureFixture[str]
) -> None:
    long = char * 5000
    names = ("ask", "shown_to", "fault", "why", "at", "sender", "user", "seen_as", "library")
    with numbered_request():
        make_log("json")("answered", uid=2**31, arguments=long, **dict.fromkeys(names, long))
    line = capfd.readouterr().err
    assert len(line.encode()) < 48 * 1024
    assert json.loads(line)["event.action"] == "answered"


def test_hostile_names_make_one_record_each(capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(5)
    alphabet = '\n\r\x00\x1b\x85\u2028\u2029\u202e\ud800"\\=<>{} ae\x7f\xff\U0001f600'
    names = ["".join(draw.choices(alphabet, k=draw.randrange(1, 20))) for _ in range(5000)]
    for log in (make_log("json"), make_log("text")):
        for name in names:
            log("answered", user=name, ask=name)
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 10_001
    assert lines == [*"\n".join(lines).splitlines(), ""]
    for line in lines[:5000]:
        record = json.loads(line)
        assert record["event.action"] == "answered"
        assert record["user.name"].isprintable()
    assert all(line.startswith("answered user=") for line in lines[5000:-1])


def test_lines_of_a_request_have_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    log = make_log("json")
    with numbered_request() as one:
        log("answered", uid=7)
        log("failed", why="x")
    with numbered_request() as other:
        log("answered", uid=8)
    log("done", task="ingest")
    ids = [line.get("http.request.id") for line in lines_of(capsys)]
    assert ids == [one, one, other, None]
    assert one != other
    assert request_id() == ""


def test_the_journal_gets_priorities_and_nobody_else() -> None:
    program = (
        "from slurmkit_accounting.service.log import make_log\n"
        "log = make_log('text')\n"
        "for what in ('failed', 'login refused', 'changed', 'answered'): log(what, uid=7)\n"
    )

    def run(stream: str) -> str:
        read, write = os.pipe()
        status = os.fstat(write)
        here = f"{status.st_dev}:{status.st_ino}"
        environment = os.environ | {"JOURNAL_STREAM": here if stream == "here" else stream}
        subprocess.run([sys.executable, "-c", program], stderr=write, env=environment, check=True)
        os.close(write)
        with os.fdopen(read) as said:
            return said.read()

    marked = "<3>failed uid=7\n<4>login refused uid=7\n<5>changed uid=7\n<6>answered uid=7\n"
    assert run("here") == marked
    assert (
        run("8:1")
        == run("")
        == "failed uid=7\nlogin refused uid=7\nchanged uid=7\nanswered uid=7\n"
    )


def test_an_error_of_a_library_is_one_line_that_says_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = LibraryMessages(make_log("text"))
    try:
        "x".encode("nothing\nsuch")
    except LookupError as error:
        about = (type(error), error, error.__traceback__)
    record = logging.LogRecord("waitress", logging.ERROR, "x.py", 1, "on %s", ("/x\ny",), about)
    handler.emit(record)
    line = capsys.readouterr().err
    assert line.startswith(r'failed library=waitress why="on /x\\ny: LookupError: unknown enc')
    assert re.search(r" at=test_service_log\.py:\d+\n$", line)
