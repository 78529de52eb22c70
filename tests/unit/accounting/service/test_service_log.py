"""The service's log: one line for each event, whatever is in it, as text or as JSON."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
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
        ("z" * 1000, "z" * 300),
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
        "event.action": "login-refused",
        "event.outcome": "failure",
        "event.category": ["authentication"],
        "client.address": "10.0.0.7",
        "user.name": "eve",
        "error.message": "wrong password",
        "labels": {"via": "ldap"},
    }
    assert page["user.effective.name"] == "bob"
    assert (page["http.response.status_code"], page["event.outcome"]) == (200, "success")
    assert page["url.original"] == "/reports?by=user"
    assert (done["event.duration"], done["log.level"]) == (2_500_000_000, "info")


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


def test_an_error_of_a_library_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LibraryMessages(make_log("text"))
    error = ValueError("two\nlines")
    about = (type(error), error, None)
    handler.emit(
        logging.LogRecord("waitress", logging.ERROR, "x.py", 1, "serving %s", ("/x\ny",), about)
    )
    why = r"serving /x\\ny: ValueError: two\\nlines"
    assert capsys.readouterr().err == f'failed library=waitress why="{why}"\n'
