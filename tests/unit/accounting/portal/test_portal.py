"""The portal: each sees there exactly what the service shows them, and nobody else gets in."""

from __future__ import annotations

import csv
import datetime as dt
import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markupsafe import escape
from portal_lab import (
    COOKIE,
    HOST,
    NOW,
    OPERATOR,
    Browser,
    PortalLab,
    links_of,
    tables_of,
    words_of,
    writing,
)
from report_books import BEGIN, DAY, PEOPLE, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.ledger.schema.people import group_owners, memberships
from slurmkit_accounting.ledger.schema.reclaim import reclaim_keeps
from slurmkit_accounting.people import deputies
from slurmkit_accounting.people.deputies import deputies_of, name_deputy
from slurmkit_accounting.portal import context, listener, login_limits, report_pages
from slurmkit_accounting.portal.context import PageTurns
from slurmkit_accounting.portal.identity import Account
from slurmkit_accounting.remote.protocol import ServiceQuery
from slurmkit_accounting.render.format import format_value
from slurmkit_accounting.service.queries import QueryAnswerer
from sqlalchemy import delete, insert, text, update
from waiting import PATIENCE, wait_until

from slurmkit.formats.display import printable

HOUR = 3600
A100, H100 = {"a100": 2}, {"h100": 4}
HOSTILE = "<script>alert(1)</script>\x1b[2J\n=1+1"
WINDOW = "from=2026-11-01&to=2026-11-21"
SCOPES = {
    "alice": read.Scope(frozenset((1,)), frozenset((1,))),
    "bob": read.Scope(frozenset((2,)), frozenset((2,))),
    "vogel": read.Scope(frozenset((3,)), frozenset((3,))),
    "garcia": read.Scope(frozenset((4,)), frozenset((4,))),
    OPERATOR: read.Scope(),
}
VISIBLE = {
    "alice": {"alice"},
    "bob": {"bob"},
    "vogel": {"alice", "vogel"},
    "garcia": {"bob", "garcia"},
    OPERATOR: set(PEOPLE),
}


@pytest.fixture(scope="module")
def module_ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_for_writing(f"sqlite:///{tmp_path_factory.mktemp('books')}/ledger.db") as ledger:
        day = BEGIN + 3 * DAY
        jobs = [
            run("alice", day, day + 5 * HOUR, gpus=A100, state="FAILED", cpu_used_ms=HOUR * 1000),
            run("alice", day + DAY, day + DAY + 2 * HOUR, gpus=A100, other={"name": HOSTILE}),
            run("alice", NOW - 2 * HOUR, None, gpus=A100, state="RUNNING", last_seen=NOW),
            run("bob", day, day + 9 * HOUR, gpus=H100, state="TIMEOUT"),
            run("vogel", day - 40 * DAY, day - 40 * DAY + HOUR, gpus=A100),
            run("vogel", day, day + HOUR, gpus={}),
            run("garcia", day, day + 3 * HOUR, gpus=H100),
        ]
        write_books(ledger, jobs)
        yield ledger


@pytest.fixture
def lab(module_ledger: Ledger, tmp_path: Path) -> Iterator[PortalLab]:
    with writing(PortalLab(module_ledger, tmp_path)) as made:
        yield made
        made.views.wait_until_written()


def ask(lab: PortalLab, user: str, name: str, **given: Any) -> Any:
    """What the read API gives with the rights that the person should have."""
    function = getattr(read, name)
    return function(lab.ledger, scope=SCOPES[user], timezone="UTC", now=int(lab.now), **given)


def cells(report: Any, column: str) -> list[str]:
    kind = next(one.kind for one in report.columns if one.name == column)
    return [format_value(row[column], kind) for row in report.rows]


def column(page: str, heading: str, table: int = 0) -> list[str]:
    found = tables_of(page)[table]
    at = found[0].index(heading)
    rows = [row for row in found[1:] if row[0] != "total"]
    return [] if rows == [["There is nothing to show."]] else [row[at] for row in rows]


# ---- who sees what


@pytest.mark.parametrize("user", VISIBLE)
def test_each_sees_their_own_and_no_page_names_another(lab: PortalLab, user: str) -> None:
    browser = lab.browser(user)
    others = set(PEOPLE) - VISIBLE[user] - {user}
    paths = [
        "/", "/account", "/allocations",
        f"/report/usage?by=user&{WINDOW}", f"/report/usage?by=pi&{WINDOW}",
        f"/report/efficiency?{WINDOW}", f"/report/wait?by=user&{WINDOW}", "/report/budget",
        "/report/capacity", f"/report/explain?{WINDOW}", "/report/nodes", "/report/reclaimed",
        *(f"/run/{row}" for row in range(1, 9)), *(f"/job/{job}" for job in range(1, 9)),
        *(f"/report/usage?by=user&{WINDOW}&format={form}" for form in ("csv", "json", "html")),
    ]  # fmt: skip
    for path in paths:
        answer = browser.get(path)
        assert answer.status_code in {200, 404}, (path, words_of(answer.text))
        for name in others:
            of_pi = {"alice": "vogel", "bob": "garcia"}.get(user)  # whose runs' PI this is
            if name != of_pi:
                assert not re.search(rf"\b{name}\b", answer.text), (path, name)
    usage = browser.get("/report/usage?by=user&from=2026-09-01&to=2026-11-21").text
    assert set(column(usage, "user")) == VISIBLE[user]


@pytest.mark.parametrize("user", SCOPES)
@pytest.mark.parametrize("by", ["pi", "user,gpu_type", "month", "partition,state", "department"])
def test_the_numbers_of_a_report_are_those_of_the_read_api(
    lab: PortalLab, user: str, by: str
) -> None:
    report = ask(lab, user, "usage", begin="2026-09-01", end="2026-11-21", by=by)
    browser = lab.browser(user)
    link = f"/report/usage?from=2026-09-01&to=2026-11-21&by={by}"
    page = browser.get(link).text
    assert column(page, "GPU\u2011hours") == cells(report, "gpu_hours")
    assert column(page, "jobs") == cells(report, "jobs")
    told = json.loads(browser.get(f"{link}&format=json").text)
    assert told["rows"] == json.loads(json.dumps(list(report.rows)))
    rows = list(csv.DictReader(io.StringIO(browser.get(f"{link}&format=csv").text)))
    assert [float(row["gpu_hours"]) for row in rows] == [row["gpu_hours"] for row in report.rows]


@pytest.mark.parametrize("user", SCOPES)
@pytest.mark.parametrize("name", ["efficiency", "wait", "capacity", "explain", "budget"])
def test_other_reports_are_those_of_the_read_api(lab: PortalLab, user: str, name: str) -> None:
    window = {} if name == "budget" else {"begin": "2026-09-01", "end": "2026-11-21"}
    report = ask(lab, user, name, **window)
    dates = "" if name == "budget" else "&from=2026-09-01&to=2026-11-21"
    told = json.loads(lab.browser(user).get(f"/report/{name}?format=json{dates}").text)
    assert told["rows"] == json.loads(json.dumps(list(report.rows)))


@settings(max_examples=examples(25), deadline=None)
@given(
    user=st.sampled_from(sorted(SCOPES)),
    begin=st.integers(0, 60),
    days=st.integers(1, 60),
    by=st.lists(st.sampled_from(["pi", "user", "state", "gpu_type", "day"]), unique=True),
)
def test_any_window_for_anybody(
    module_ledger: Ledger, tmp_path_factory: Any, user: str, begin: int, days: int, by: list[str]
) -> None:
    lab = PortalLab(module_ledger, tmp_path_factory.mktemp("portal"))
    first, last = (
        (dt.date(2026, 9, 1) + dt.timedelta(days=at)).isoformat() for at in (begin, begin + days)
    )
    report = ask(lab, user, "usage", begin=first, end=last, by=by or ["pi"])
    link = f"/report/usage?from={first}&to={last}&by={','.join(by)}&format=json"
    assert json.loads(lab.browser(user).get(link).text)["rows"] == json.loads(
        json.dumps(list(report.rows))
    )


# People, and who is in whose group: ids of people, and of two groups with their owners.
_MEMBERS = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2, 3, 4])), unique=True, max_size=8
)


@settings(max_examples=examples(20), deadline=None)
@example(members=[(1, 1)], owners=(1, 1), deputy=(1, 2), user="bob")
@given(
    members=_MEMBERS,
    owners=st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4])),
    deputy=st.none() | st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3, 4])),
    user=st.sampled_from(PEOPLE),
)
def test_any_memberships_show_what_the_service_shows(
    tmp_path_factory: Any,
    members: list[tuple[int, int]],
    owners: tuple[int, int],
    deputy: tuple[int, int] | None,
    user: str,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with open_for_writing(f"sqlite:///{folder}/ledger.db") as ledger:
        day = BEGIN + DAY
        write_books(ledger, [run(each, day, day + HOUR, gpus=A100) for each in PEOPLE])
        with ledger.transaction() as connection:
            connection.execute(delete(memberships))
            for group, person in members:
                row = {"group_id": group, "person_id": person, "valid_from": 1, "valid_to": None}
                connection.execute(insert(memberships).values(row))
            for group, owner in enumerate(owners, 1):
                of = group_owners.c.group_id == group
                connection.execute(update(group_owners).where(of).values(person_id=owner))
            if deputy and deputy[0] != deputy[1]:
                name = PEOPLE[deputy[1] - 1]
                name_deputy(connection, deputy[0], name, NOW + DAY, named_by="x", now=NOW - DAY)
        lab = PortalLab(ledger, folder)
        with ledger.transaction() as connection:
            uid = 2001 + PEOPLE.index(user)
            scope = lab.portal.permissions.of(connection, uid, NOW).scope
        dates = {"begin": "2026-11-01", "end": "2026-11-21", "timezone": "UTC", "now": NOW}
        for name in ("usage", "explain", "efficiency"):
            by = {"by": ["user"]} if name != "explain" else {}
            query = ServiceQuery(name, dates | by, "nonce")
            answerer = QueryAnswerer(
                lab.portal.open_ledger, lab.portal.permissions, lambda *_, **__: None
            )
            with mock.patch.object(deputies, "time", SimpleNamespace(time=lambda: NOW)):
                answer = answerer(uid, query)
            link = f"/report/{name}?{WINDOW}&timezone=UTC&format=json" + "&by=user" * bool(by)
            rows = json.loads(lab.browser(user).get(link).text)["rows"]
            assert rows == json.loads(bytes(answer.value))["rows"]
            assert {row["user"] for row in rows} <= _may_see(user, members, owners, deputy), scope


def _may_see(
    user: str,
    members: list[tuple[int, int]],
    owners: tuple[int, int],
    deputy: tuple[int, int] | None,
) -> set[str]:
    """Whose runs somebody may see at most: their own, and of those in groups of their PIs."""
    me = PEOPLE.index(user) + 1
    pis = {me} | ({deputy[0]} if deputy and deputy[1] == me else set())
    mine = {group for group, owner in enumerate(owners, 1) if owner in pis}
    return {user} | {PEOPLE[person - 1] for group, person in members if group in mine}


@pytest.mark.parametrize("user", SCOPES)
def test_home_shows_the_month(lab: PortalLab, user: str) -> None:
    by = {"alice": "partition", "bob": "partition", OPERATOR: "pi"}.get(user, "user")
    report = ask(lab, user, "usage", begin="2026-11-01", by=[by])
    page = lab.browser(user).get("/").text
    assert column(page, "GPU\u2011hours") == cells(report, "gpu_hours")[:12]
    hours = report.meta.total["gpu_hours"]
    assert f"<strong>{hours:,.1f}</strong>" in page or f"<strong>{hours:,.2f}</strong>" in page


def test_home_of_a_pi_asks_about_what_was_lost(lab: PortalLab) -> None:
    page = lab.browser("vogel").get("/").text
    report = ask(lab, "vogel", "usage", begin="2026-11-01", by=["user"])
    (alice,) = (row for row in report.rows if row["user"] == "alice")
    lost, whole = alice["gpu_hours_failed"], alice["gpu_hours"]
    words = f"{lost / whole:.0%} of alice's GPU-hours failed: {lost:.2f} of {whole:.2f}"
    assert words in words_of(page)
    (link,) = [one for one in links_of(page) if "state=FAILED" in one and "user=alice" in one]
    runs = lab.browser("vogel").get(link).text
    assert column(runs, "GPU\u2011hours") == ["10.00"]


def test_home_of_a_researcher_is_about_them(lab: PortalLab) -> None:
    page = lab.browser("alice").get("/").text
    words = words_of(page)
    assert "of your GPU-hours failed: 10.00 of" in words
    assert "GPU-hours by person" not in words
    assert "<strong>2 GPUs</strong>" in page  # of the run that goes on
    assert "GPU-hours by person" in words_of(lab.browser("vogel").get("/").text)


@pytest.mark.parametrize("user", ["vogel", OPERATOR])
def test_every_cell_opens_the_runs_that_add_up_to_it(lab: PortalLab, user: str) -> None:
    browser = lab.browser(user)
    report = ask(lab, user, "usage", begin="2026-11-01", end="2026-11-21", by="user,gpu_type,day")
    page = browser.get(f"/report/usage?by=user,gpu_type,day&{WINDOW}").text
    links = [one for one in links_of(page) if one.startswith("/report/explain?") and "day=" in one]
    # GPU-hours by outcome, and lost ones, have links of their own: see test_portal_numbers.py.
    unique = [one for one in dict.fromkeys(links) if not re.search("[&;](state|runs)=", one)]
    assert len(unique) == len(report.rows) > 3
    for link, row in zip(unique, report.rows, strict=True):
        answer = browser.get(link.replace("&amp;", "&") + "&format=json")
        hours = sum(each["gpu_hours"] for each in json.loads(answer.text)["rows"])
        assert hours == pytest.approx(row["gpu_hours"])


def test_from_a_number_to_the_line_of_sacct(lab: PortalLab) -> None:
    browser = lab.browser("vogel")
    runs = browser.get(f"/report/explain?user=alice&state=FAILED&{WINDOW}").text
    (to_row,) = [one for one in links_of(runs) if one.startswith("/run/")]
    page = browser.get(to_row)
    assert page.status_code == 200
    assert "sacct -D -X -P --noconvert -j 1 " in words_of(page.text)
    assert read.evidence(lab.ledger, 1).line.split("|")[7] in page.text


def test_each_page_names_window_zone_age_prices_and_reader(lab: PortalLab) -> None:
    words = words_of(lab.browser("vogel").get(f"/report/usage?{WINDOW}").text)
    for part in (
        "window: 2026-11-01 00:00:00+00:00 to 2026-11-21", "UTC", "last ingest", "prices: ",
        "Shown to uid 2003: your own runs, and the runs of groups whose PI you are.",
    ):  # fmt: skip
        assert part in words


# ---- deputies, seeing as somebody, and who looked


def test_a_deputy_sees_what_the_pi_sees_until_a_day(lab: PortalLab) -> None:
    bob, vogel = lab.browser("bob"), lab.browser("vogel")
    link = f"/report/usage?by=user&{WINDOW}"
    assert set(column(bob.get(link).text, "user")) == {"bob"}
    sent = vogel.send("/account/deputies", user="Bob", until="2026-11-22")
    assert sent.status_code == 303
    assert set(column(bob.get(link).text, "user")) == {"bob", "alice", "vogel"}
    assert "and those of vogel, whose deputy you are" in words_of(bob.get("/").text)
    assert ["bob", "2026-11-21", "2026-11-22", "vogel"] in [
        row[:4] for row in tables_of(vogel.get("/account").text)[0]
    ]
    lab.now += 2 * DAY - 1
    with lab.ledger.transaction() as connection:
        assert deputies_of(connection, 3, int(lab.now))
        assert not deputies_of(connection, 3, int(lab.now) + 1)
    number = re.search(r"/account/deputies/(\d+)/end", lab.browser("vogel").get("/account").text)
    assert number
    ended = lab.browser("garcia").send(f"/account/deputies/{number[1]}/end")
    assert ended.status_code == 400  # not hers
    assert lab.browser("vogel").send(f"/account/deputies/{number[1]}/end").status_code == 303
    assert "deputy ended user=vogel deputy=bob" in lab.lines
    assert set(column(lab.browser("bob").get(link).text, "user")) == {"bob"}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"user": "vogel", "until": "2026-12-01"}, "you see all of this yourself"),
        ({"user": "nobody-here", "until": "2026-12-01"}, "nobody with this user name"),
        ({"user": "bob", "until": "2026-11-20"}, "from tomorrow to a year"),
        ({"user": "bob", "until": "2036-01-01"}, "from tomorrow to a year"),
        ({"user": "bob", "until": "soon"}, "as YYYY-MM-DD"),
        ({"user": "bob", "until": "9999-12-31"}, "as YYYY-MM-DD"),
        ({"user": "b\0b", "until": "2026-12-01"}, "nobody with this user name"),
        ({"user": "' OR 1=1 --", "until": "2026-12-01"}, "nobody with this user name"),
    ],
)
def test_deputies_that_cannot_be(lab: PortalLab, form: dict[str, str], words: str) -> None:
    answer = lab.browser("vogel").send("/account/deputies", **form)
    assert answer.status_code == 400
    assert words.lower() in words_of(answer.text).lower()
    assert answer.text.count('<p role="alert"') == 1
    assert "<h1>Your account: vogel</h1>" in answer.text
    for value in form.values():
        assert f'value="{escape(printable(value))}"' in answer.text
    assert "at most a year from today" in words_of(answer.text)
    assert 'max="2027-11-21"' in answer.text
    assert not any(line.startswith("deputy named") for line in lab.lines)


def test_a_deputy_with_an_impossible_number(lab: PortalLab) -> None:
    answer = lab.browser("vogel").send(f"/account/deputies/{10**20}/end")
    assert answer.status_code == 400
    assert "no such deputy" in words_of(answer.text)


def test_an_operator_sees_as_another_and_that_is_written_down(lab: PortalLab) -> None:
    operator, link = lab.browser(OPERATOR), f"/report/usage?by=user&{WINDOW}"
    assert operator.send("/see-as", user="alice").status_code == 303
    page = operator.get(link).text
    assert set(column(page, "user")) == {"alice"}
    assert "You see what alice sees" in words_of(page)
    operator.get("/job/1")
    assert operator.send("/account/deputies", user="bob", until="2026-12-01").status_code == 403
    assert operator.send("/see-as/stop").status_code == 303
    assert set(column(operator.get(link).text, "user")) == set(PEOPLE)
    lab.views.wait_until_written()
    seen = words_of(lab.browser("alice").get("/account").text)
    assert f"{OPERATOR} seeing as alice the pages as you see them" in seen
    assert f"{OPERATOR} seeing as alice a job" in seen
    assert f"see as user={OPERATOR} seen_as=alice" in lab.lines


@pytest.mark.parametrize("user", ["alice", "vogel", "nobody"])
def test_others_cannot_see_as_anybody(lab: PortalLab, user: str) -> None:
    browser = lab.browser(user)
    assert browser.send("/see-as", user="bob").status_code == 403
    assert "You see what" not in browser.get("/").text


def test_who_looked_at_ones_runs(lab: PortalLab) -> None:
    vogel, garcia = lab.browser("vogel"), lab.browser("garcia")
    for path in ("/job/1", "/job/1", "/run/1", f"/report/explain?{WINDOW}"):
        assert vogel.get(path).status_code == 200
    assert garcia.get("/job/1").status_code == 404
    lab.views.wait_until_written()
    with lab.ledger.transaction() as connection:
        rows = connection.execute(
            text("SELECT viewer, page, subject, person_id, views FROM portal_views")
        )
        found = {tuple(row[:4]): row[4] for row in rows if row[0] == "vogel"}
    assert found["vogel", "job", "alice", 1] >= 2
    assert {key[1:] for key in found} >= {("evidence", "alice", 1), ("runs", "alice", 1)}
    assert not any(key[2] == "vogel" for key in found)  # one's own views do not count
    page = words_of(lab.browser("alice").get("/account").text)
    assert "vogel a job" in page
    of_bob = words_of(lab.browser("bob").get("/account").text)
    assert "vogel a job" not in of_bob
    assert "vogel lists of runs" not in of_bob


@pytest.mark.parametrize("path", ["usage?job=1", "efficiency?job=1", "usage?job=1&format=csv"])
def test_sums_of_one_job_are_views_of_it(module_ledger: Ledger, tmp_path: Path, path: str) -> None:
    at = int(NOW) + 100 * DAY + len(path) * DAY
    with writing(PortalLab(module_ledger, tmp_path)) as lab:
        lab.now = at
        assert lab.browser("vogel").get(f"/report/{path}&{WINDOW}").status_code == 200
        assert lab.browser("vogel").get(f"/report/usage?{WINDOW}").status_code == 200
        assert lab.browser("bob").get(f"/report/{path}&{WINDOW}").status_code == 200
        lab.views.wait_until_written()
    with module_ledger.transaction() as connection:
        query = text("SELECT viewer, page, subject, views FROM portal_views WHERE last = :at")
        assert [tuple(row) for row in connection.execute(query, {"at": at})] == [
            ("vogel", "job", "alice", 1)
        ]


@pytest.mark.sql
def test_acts_on_idle_gpus_are_views_of_their_owners(ledger: Ledger, tmp_path: Path) -> None:
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    with ledger.transaction() as connection:
        of = {"cluster_id": 1, "account": "vision", "partition": "gpu", "qos": "normal",
              "submit": BEGIN, "alloc_tres": "cpu=1,gres/gpu:a100=2", "reason": "debugging",
              "at": BEGIN + DAY, "until": BEGIN + 2 * DAY}  # fmt: skip
        wanted = [each.name for each in reclaim_keeps.c if not each.nullable and each.name != "id"]
        for number, (user, uid) in enumerate((("alice", 2001), ("bob", 2002)), 1):
            row = of | {"job_id_raw": number, "job_id": str(number), "user": user, "uid": uid}
            values = {each.name: row.get(each.name, 0) for each in reclaim_keeps.c
                      if each.name in row or each.name in wanted}  # fmt: skip
            connection.execute(insert(reclaim_keeps).values(values))
    with writing(PortalLab(ledger, tmp_path)) as lab:
        page = lab.browser("vogel").get(f"/report/reclaimed?{WINDOW}")
        assert "debugging" in page.text
        lab.views.wait_until_written()
    with ledger.transaction() as connection:
        query = text("SELECT viewer, page, subject, person_id FROM portal_views")
        found = connection.execute(query)
        assert [tuple(row) for row in found] == [("vogel", "idle GPUs", "alice", 1)]


def test_only_owners_of_rows_that_are_shown_are_noted(
    lab: PortalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_pages, "MOST_ROWS", 1)
    noted: list[Any] = []
    monkeypatch.setattr(lab.views, "add", noted.append)
    page = lab.browser(OPERATOR).get(f"/report/explain?{WINDOW}").text
    assert len(column(page, "user")) == 1
    assert "more rows" in words_of(page) or "5 more" in words_of(page)
    (view,) = noted
    assert len(view.subjects) == 1
    lab.browser(OPERATOR).get(f"/report/explain?{WINDOW}&format=csv")
    assert len(noted[-1].subjects) > 1


@pytest.mark.sql
def test_views_are_deleted_after_some_days(ledger: Ledger, tmp_path: Path) -> None:
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    with writing(PortalLab(ledger, tmp_path, view_days=30)) as lab:
        for _ in range(3):
            lab.browser("vogel").get("/job/1")
            lab.views.wait_until_written()
            lab.now += 20 * DAY
    with ledger.transaction() as connection:
        days = list(connection.scalars(text("SELECT day FROM portal_views ORDER BY day")))
    assert days == ["2026-12-11", "2026-12-31"]


def test_the_style_sheet_has_the_version_of_its_text(lab: PortalLab) -> None:
    page, style = lab.browser("alice").get("/").text, lab.browser().get("/style.css")
    digest = hashlib.sha256(style.data).hexdigest()[:16]
    assert f'href="/style.css?v={digest}"' in page


def test_the_lines_of_pages_say_from_where(lab: PortalLab) -> None:
    alice = lab.browser("alice")
    alice.get("/account")
    alice.get("/login/oidc/callback/?code=secret")
    alice.post("/see-as", {"user": "bob"})
    who = "sender=127.0.0.1 user=alice uid=2001"
    assert f"page {who} method=GET path=/account status=200" in lab.lines
    assert f"page {who} method=GET path=/login/oidc/callback/ status=404" in lab.lines
    refused = f"refused {who} method=POST path=/see-as status=403 why=This form is too old."
    assert [line for line in lab.lines if line.startswith(refused)]
    assert not [line for line in lab.lines if "secret" in line]


def test_a_page_of_more_runs_than_it_shows_has_the_totals_of_all(
    lab: PortalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ask(lab, OPERATOR, "explain", begin="2026-09-01")
    for most in (1, 3, 100):
        part = ask(lab, OPERATOR, "explain", begin="2026-09-01", most=most)
        assert part.rows == whole.rows[:most]
        assert part.meta.total == whole.meta.total
        assert part.meta.runs == whole.meta.runs == len(whole.rows)
    # An array of any size has a page; other lists must be shorter.
    monkeypatch.setattr("slurmkit_accounting.reports.explain.MOST_RUNS", 0)
    assert lab.browser("alice").get("/job/1").status_code == 200
    assert lab.browser("alice").get(f"/report/explain?{WINDOW}").status_code == 400


# ---- what is asked, and what comes from users


def test_text_of_jobs_stays_text(lab: PortalLab) -> None:
    for browser in (lab.browser("alice"), lab.browser("vogel"), lab.browser(OPERATOR)):
        page = browser.get("/run/2").text
        assert "<script" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\n=1+1" in page


@pytest.mark.parametrize(
    "value", ["<img src=x onerror=alert(1)>", '"><svg/onload=1>', "\u202eevil"]
)
@pytest.mark.parametrize("name", ["user", "pi", "job", "from", "timezone", "by", "format", "nope"])
def test_text_of_links_stays_text(lab: PortalLab, name: str, value: str) -> None:
    answer = lab.browser("alice").get(f"/report/usage?{name}={quote(value)}")
    assert answer.status_code in {200, 400}
    assert value not in answer.text
    assert "<img" not in answer.text
    assert "onerror=alert(1)>" not in answer.text


def test_a_formula_in_a_csv_is_text(module_ledger: Ledger, tmp_path: Path) -> None:
    lab = PortalLab(module_ledger, tmp_path)
    rows = [*csv.reader(io.StringIO(lab.browser("alice").get("/report/explain?format=csv").text))]
    assert all(not cell.startswith(("=", "+", "@")) for row in rows for cell in row)


def test_downloads_are_files(lab: PortalLab) -> None:
    browser = lab.browser("vogel")
    for form, kind in (
        ("csv", "text/csv"), ("xlsx", "spreadsheetml"), ("json", "application/json"),
        ("html", "text/html"),
    ):  # fmt: skip
        answer = browser.get(f"/report/usage?{WINDOW}&format={form}")
        assert kind in answer.headers["Content-Type"]
        name = f'attachment; filename="slurmkit-usage-2026-11-01-2026-11-21.{form}"'
        assert answer.headers["Content-Disposition"] == name
    assert browser.get("/report/usage?format=xlsx").data.startswith(b"PK")


@pytest.mark.parametrize(
    "path",
    [
        "/report/nosuch", "/report/../../etc/passwd", "/report/%2e%2e/%2e%2e/etc/passwd",
        "/static/portal.css", "/static/../app.py", "/run/1.5", "/run/-1",
        "/run/99999999999999999999",
        "/job/..%2f..%2fetc", "/job/1;ls", "/run/1%00", "/report/usage/../../x", "/.git/config",
        "/report/usage?user=%00", "/job/1?cluster=%00", "/report//usage", "//report/usage",
        "/job/" + "1" * 500, "/report/reconcile", "/report/idle", "/templates/frame.html",
    ],
)  # fmt: skip
def test_paths_that_lead_nowhere(lab: PortalLab, path: str) -> None:
    answer = lab.browser("alice").get(path)
    assert answer.status_code in {400, 404}
    assert "Traceback" not in answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "query",
    [
        "scope=everything", "uid=0", "as=bob", "now=1", "panels=1", "by=nope", "from=x",
        "timezone=../../etc/passwd", "timezone=Europe/Berli", "from=2026-11-02&from=2026-11-03",
        "format=exe", "job=1;2", "suspended=perhaps", "to=99999-01-01", "month=2026-13",
        "from=2026-11-20&to=2026-11-01", "from=1000-01-01&by=day",
    ],
)  # fmt: skip
def test_questions_that_make_no_sense(lab: PortalLab, query: str) -> None:
    answer = lab.browser("alice").get(f"/report/usage?{query}")
    assert answer.status_code == 400
    assert not any(line.startswith("failed") for line in lab.lines)


def test_limits_of_a_request(lab: PortalLab) -> None:
    browser = lab.browser("alice")
    assert browser.get(f"/report/usage?user={'a' * 9000}").status_code == 414
    assert browser.get("/" + "a" * 2000).status_code == 414
    assert browser.post("/logout", {"token": "a" * 20_000}).status_code == 413
    many = "&".join(f"user=u{n}" for n in range(1001))
    assert browser.get(f"/report/usage?{many}").status_code in {400, 414}


def test_what_every_answer_carries(lab: PortalLab) -> None:
    for browser in (lab.browser("alice"), lab.browser()):
        for path in ("/", "/login", "/nosuch", "/report/usage?bye=1", "/style.css"):
            headers = browser.get(path).headers
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src 'self';")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Referrer-Policy"] == "same-origin"
            if path != "/style.css":
                assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("user", ["alice", "vogel", OPERATOR])
def test_pages_need_nothing_from_elsewhere_and_no_scripts(lab: PortalLab, user: str) -> None:
    paths = (
        "/", "/account", "/allocations", "/job/1", "/run/1", f"/report/usage?{WINDOW}",
        "/report/explain",
    )  # fmt: skip
    for path in paths:
        page = lab.browser(user).get(path).text
        for part in (
            "<script",
            "javascript:",
            " style=",
            " onclick",
            "http://",
            "https://",
            "@import",
        ):
            assert part not in page, (path, part)
        assert page.count("<h1") == 1
        assert '<html lang="en">' in page
        for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
            assert "<th scope=" in table
        for field in re.findall(r"<input[^>]*>", page):
            named = re.search(r' id="([^"]+)"', field)
            labelled = named and f'for="{named[1]}"' in page
            wrapped = re.search(r"<label[^>]*>[^<]*" + re.escape(field), page)
            assert 'type="hidden"' in field or labelled or wrapped, field


def test_the_service_that_fails_tells_the_reader_nothing(
    lab: PortalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("/var/lib/secret.db is broken")

    monkeypatch.setattr("slurmkit_accounting.reports.usage.CountedUsage", fail)
    answer = lab.browser("alice").get("/report/usage")
    assert answer.status_code == 500
    assert "secret.db" not in answer.text
    assert any("secret.db is broken" in line for line in lab.lines)


@pytest.mark.sql
def test_deputies_end_when_the_pi_leaves(ledger: Ledger, tmp_path: Path) -> None:
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR, gpus=A100)])
    with ledger.transaction() as connection:
        name_deputy(connection, 3, "bob", NOW + DAY, named_by="vogel", now=NOW - DAY)
    lab = PortalLab(ledger, tmp_path)
    with ledger.transaction() as connection:
        of = lab.portal.permissions.of
        assert of(connection, 2002, NOW).scope.pis == {2, 3}
        assert of(connection, 2002, NOW + DAY).scope.pis == {2}
        assert of(connection, 2001, NOW).scope.pis == {1}
        connection.execute(text("UPDATE people SET active = false WHERE id = 3"))
        assert of(connection, 2002, NOW).scope.pis == {2}
        connection.execute(text("UPDATE people SET active = true, closed_at = 5 WHERE id = 3"))
        assert of(connection, 2002, NOW).scope.pis == {2}


@pytest.mark.sql
@pytest.mark.parametrize("change", ["active = false", "closed_at = 5"])
def test_a_session_ends_when_its_person_is_not_there_any_more(
    ledger: Ledger, tmp_path: Path, change: str
) -> None:
    write_books(ledger, [run("vogel", BEGIN, BEGIN + HOUR, gpus=A100)])
    lab = PortalLab(ledger, tmp_path, login=("ldap",))
    vogel, garcia = lab.browser(), lab.browser()
    for browser, name, number in ((vogel, "vogel", 3), (garcia, "garcia", 4)):
        token = lab.sessions.open(Account(2000 + number, name, number), "ldap").token
        browser.client.set_cookie(COOKIE, token, domain=HOST)
        assert browser.get("/").status_code == 200
    kept = vogel.cookie
    with ledger.transaction() as connection:
        connection.execute(text(f"UPDATE people SET {change} WHERE id = 3"))  # noqa: S608
    for path in ("/", "/report/usage", "/account"):
        vogel.client.set_cookie(COOKIE, kept, domain=HOST)
        answer = vogel.get(path)
        assert (answer.status_code, answer.headers["Location"].partition("?")[0]) == (303, "/login")
    assert lab.sessions.find(kept) is None
    assert garcia.get("/").status_code == 200


@pytest.mark.sql
def test_an_expired_account_is_refused_by_the_header_and_by_the_service(
    ledger: Ledger, tmp_path: Path
) -> None:
    write_books(ledger, [])
    lab = PortalLab(ledger, tmp_path)
    operator = lab.browser(OPERATOR)
    operator.send("/see-as", user="bob")
    assert "bob" in words_of(operator.get("/account").text)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE people SET active = false WHERE id = 2"))
    assert lab.browser("bob").get("/").status_code == 403
    assert any("the account of bob has expired" in line for line in lab.lines)
    answerer = QueryAnswerer(lab.portal.open_ledger, lab.portal.permissions, lab.portal.log)
    query = ServiceQuery("usage", {"begin": "2026-11-01", "end": "2026-12-01"})
    fault = answerer(2002, query).fault
    assert fault is not None
    assert "has expired in the directory" in fault.message
    assert answerer(2001, query).fault is None
    # The operator saw as bob, and sees as themselves again.
    assert "(operator): everything" in words_of(operator.get("/account").text)
    assert operator.send("/see-as", user="bob").status_code == 400


def test_hosts_that_are_not_ours(lab: PortalLab) -> None:
    for host in ("evil.example", f"{HOST}.evil.example", "127.0.0.1", f"{HOST}@evil.example"):
        answer = lab.app.test_client().get("/login", base_url="https://x", headers={"Host": host})
        assert answer.status_code == 400


def test_a_browser_without_cookies_still_gets_its_page(lab: PortalLab) -> None:
    fresh = Browser(lab.app.test_client(use_cookies=False), "alice")
    assert fresh.get("/").status_code == 200


def test_users_who_load_many_pages_leave_threads_to_others() -> None:
    turns, done = PageTurns(), threading.Event()
    answers: list[bool] = []

    def load(uid: int) -> None:
        with turns(uid) as free:
            answers.append(free)
            done.wait(PATIENCE)

    threads = [threading.Thread(target=load, args=(n % 2,), daemon=True) for n in range(24)]
    for thread in threads:
        thread.start()
    wait_until(lambda: answers.count(False) >= 17)  # at once: they hold no thread of the service
    assert answers.count(True) == 6  # 3 of each; at most one more waits
    with turns(2) as free:
        assert free
    done.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert not turns._busy
    assert turns._waiting == 0


def test_a_page_without_a_turn_says_when_to_ask_again(
    lab: PortalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slurmkit_accounting.portal.context._MOST_PAGES", 0)
    monkeypatch.setattr("slurmkit_accounting.portal.context._MOST_WAITING", 0)
    answer = lab.browser("alice").get("/")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert "Too many pages at a time" in words_of(answer.text)
    assert lab.browser().get("/style.css").status_code == 200
    assert lab.browser().get("/login").status_code == 200


def test_pages_and_logins_together_leave_a_thread_free() -> None:
    pages = context._MOST_PAGES + context._MOST_WAITING
    logins = 2 * login_limits.MOST_LOGINS  # LDAP and OIDC
    assert pages + logins < listener.THREADS
