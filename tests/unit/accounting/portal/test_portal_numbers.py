"""Numbers of the portal: each opens exactly the runs that it is made of, now and later."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from portal_lab import NOW, OPERATOR, Browser, PortalLab, links_of, tables_of, words_of, writing
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.ledger.database import Ledger, open_for_writing
from slurmkit_accounting.people.deputies import name_deputy
from slurmkit_accounting.render.format import format_brief

HOUR = 3600
A100, H100 = {"a100": 2}, {"h100": 4}
ACCOUNT = {"account": "vision"}
AGAIN = {**ACCOUNT, "job_id_raw": 500, "job_id": "500"}
WINDOW = "from=2026-11-01&to=2026-11-21"


@pytest.fixture(scope="module")
def module_ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    with open_for_writing(f"sqlite:///{tmp_path_factory.mktemp('books')}/ledger.db") as ledger:
        day, measured = BEGIN + 3 * DAY, {"cpu_used_ms": HOUR * 1000}
        jobs = [
            run("alice", day, day + 5 * HOUR, gpus=A100, state="FAILED", **measured),
            run("alice", day + DAY, day + DAY + 3 * HOUR, gpus=A100, other={"qos": "", **ACCOUNT}),
            run("alice", NOW - 2 * HOUR, None, gpus=A100, state="RUNNING", last_seen=BEGIN * 2),
            run("alice", BEGIN - HOUR, BEGIN + HOUR, gpus=A100, **measured),
            run("alice", day, day + HOUR, gpus=A100, state="NODE_FAIL", other=AGAIN),
            run("alice", day + DAY, day + DAY + HOUR, gpus=A100, submit=day + HOUR, other=AGAIN),
            run("bob", day, day + 9 * HOUR, gpus=H100, state="TIMEOUT"),
            run("vogel", day, day + 2 * HOUR, gpus=A100, suspended=((day, HOUR, HOUR),)),
            run("vogel", day, day + 3 * HOUR, gpus=A100, other={"account": "genomics"}),
            run("garcia", day, day + 3 * HOUR, gpus=H100),
            waiting("alice"),
        ]
        write_books(ledger, jobs)
        yield ledger


def waiting(user: str) -> Any:
    more = {"req_tres": "cpu=4,gres/gpu=3,gres/gpu:a100=3"}
    job = run(user, NOW, None, submit=NOW - HOUR, state="PENDING", last_seen=BEGIN * 2, other=more)
    return replace(job, start=None)


@pytest.fixture
def lab(module_ledger: Ledger, tmp_path: Path) -> Iterator[PortalLab]:
    with writing(PortalLab(module_ledger, tmp_path)) as made:
        yield made
        made.views.wait_until_written()


def rows(browser: Browser, link: str) -> list[dict[str, Any]]:
    """The rows of a link's report."""
    answer = browser.get(f"{link}{'&' if '?' in link else '?'}format=json")
    assert answer.status_code == 200, words_of(answer.text)
    return json.loads(answer.text)["rows"]


def cell_links(page: str) -> list[tuple[str, str]]:
    """The texts of linked numbers, and their links."""
    main = page.partition("</header>")[2].partition('<nav aria-label="Downloads"')[0]
    found = re.findall(r'<a href="(/report/explain[^"]*)">(?:<strong>)?([^<]+)<', main)
    return [(words, unescape(link)) for link, words in found]


def form_of(page: str) -> list[tuple[str, str]]:
    """What a browser sends for the form of a page if nothing is changed in it."""
    form = re.search(r'<form method="get".*?</form>', page, re.DOTALL)
    assert form
    sent = []
    for field in re.findall(r"<input[^>]*>", form[0]):
        facts = dict(re.findall(r'([a-z]+)="([^"]*)"', field))
        kind = facts.get("type", "text")
        value = unescape(facts.get("value", ""))
        if kind == "date":  # a browser shows and sends nothing else
            value = value if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else ""
        if kind not in {"checkbox", "radio"} or " checked" in field:
            sent.append((facts["name"], value))
    for name, options in re.findall(r'<select name="([^"]+)">(.*?)</select>', form[0], re.DOTALL):
        chosen = re.search(r"<option selected>([^<]*)<", options)
        sent.append((name, unescape(chosen[1]) if chosen else ""))
    return sent


# ---- Home: whose numbers


def test_a_pi_s_group_has_only_what_is_charged_to_the_pi(lab: PortalLab) -> None:
    vogel = lab.browser("vogel")
    page = vogel.get("/").text
    charged = rows(vogel, f"/report/usage?by=pi&pi=vogel&{WINDOW}")
    everything = rows(vogel, f"/report/usage?by=pi&{WINDOW}")
    assert sum(row["gpu_hours"] for row in everything) == charged[0]["gpu_hours"] + 6
    assert f"<strong>{format_brief(charged[0]['gpu_hours'])}</strong>" in page
    own = vogel.get("/?of=own").text
    assert "Your GPU-hours" in words_of(own)
    assert "<strong>10.00</strong>" in own  # 4 for the own group, 6 for another PI
    assert "alice" not in own


@pytest.mark.sql
def test_a_deputy_sees_each_group_by_itself(ledger: Ledger, tmp_path: Path) -> None:
    day = BEGIN + 3 * DAY
    jobs = [
        run(user, day, day + hours * HOUR, gpus=A100)
        for user, hours in (("alice", 1), ("vogel", 2), ("bob", 3), ("garcia", 4))
    ]
    write_books(ledger, jobs)
    with ledger.transaction() as connection:
        for pi, number in (("vogel", 3), ("garcia", 4)):
            name_deputy(connection, number, "bob", NOW + DAY, named_by=pi, now=NOW - DAY)
    lab = PortalLab(ledger, tmp_path)
    bob = lab.browser("bob")
    page = bob.get("/").text
    assert "Your GPU-hours" in words_of(page)
    assert "<strong>6.00</strong>" in page
    homes = [one for one in links_of(page) if one.startswith("/?of=pi")]
    assert [parse_qs(urlsplit(one).query)["of"] for one in homes] == [["pi:vogel"], ["pi:garcia"]]
    assert "<strong>6.00</strong>" in bob.get(homes[0]).text  # alice and vogel
    assert "<strong>14.00</strong>" in bob.get(homes[1]).text  # bob and garcia
    assert lab.browser("alice").get(homes[0]).status_code == 400


def test_home_shows_what_waits(lab: PortalLab) -> None:
    page = lab.browser("vogel").get("/").text
    assert "waiting 1 run for 3 GPUs" in " ".join(words_of(page.replace("<", " <")).split())
    (link,) = {link for words, link in cell_links(page) if words == "1 run"}
    (row,) = rows(lab.browser("vogel"), link)
    assert (row["user"], row["state"], row["gpus"]) == ("alice", "PENDING", 3)
    assert "Nothing was waiting" in words_of(lab.browser("bob").get("/").text)


def test_home_of_an_operator_has_numbers_of_the_site(lab: PortalLab) -> None:
    page = lab.browser(OPERATOR).get("/").text
    headings = [table[0] for table in tables_of(page)]
    assert any({"month", "GPU type", "GPU\u2011hours"} <= {*one} for one in headings)  # capacity
    assert any("wait hours, 90th percentile" in one for one in headings)
    words = words_of(page)
    assert all(one in words for one in ("Nodes out of use", "Idle GPUs given back"))


def test_home_in_the_first_second_of_a_month(lab: PortalLab) -> None:
    lab.now = BEGIN
    for user in ("alice", "vogel", OPERATOR):
        assert lab.browser(user).get("/").status_code == 200
    for name in ("usage", "efficiency", "explain", "capacity", "wait"):
        assert lab.browser("alice").get(f"/report/{name}").status_code == 200, name


@pytest.mark.parametrize("query", ["from=2026-11-20&to=2026-11-01", "timezone=/etc/nowhere"])
def test_errors_name_the_fields_of_the_page(lab: PortalLab, query: str) -> None:
    answer = lab.browser("alice").get(f"/report/usage?{query}")
    assert answer.status_code == 400
    assert "--" not in words_of(answer.text)


# ---- links


@pytest.mark.parametrize("user", ["vogel", OPERATOR])
@pytest.mark.parametrize("by", ["user", "qos", "account,state", "partition", "pi,day"])
@pytest.mark.parametrize("name", ["usage", "wait", "efficiency"])
def test_every_number_opens_what_it_is_made_of(
    lab: PortalLab, user: str, by: str, name: str
) -> None:
    if "day" in by and name != "usage":
        return
    browser = lab.browser(user)
    page = browser.get(f"/report/{name}?by={by}&{WINDOW}").text
    found = cell_links(page)
    assert found
    for words, link in found:
        if re.fullmatch(r"[\d,]+", words):  # a number of runs
            assert len(rows(browser, link)) == int(words), link
        elif re.fullmatch(r"[\d,.]+", words):
            listed = rows(browser, link)
            sums = [sum(row[one] for row in listed) for one in ("gpu_hours", "cpu_hours")]
            shown = [f"{one:,.{len(words.partition('.')[2])}f}" for one in sums]
            assert words in shown, (words, link, sums)


def test_lost_and_failed_open_their_runs(lab: PortalLab) -> None:
    browser = lab.browser("vogel")
    page = browser.get(f"/report/usage?by=user&{WINDOW}").text
    lost = [link for _, link in cell_links(page) if "runs=lost" in link]
    assert {row["state"] for row in rows(browser, lost[0])} == {"FAILED"}  # not what was redone
    assert any("state=NODE_FAIL" in link for _, link in cell_links(page))


def test_the_empty_name_can_be_opened(lab: PortalLab) -> None:
    browser = lab.browser("vogel")
    page = browser.get(f"/report/usage?by=qos&{WINDOW}").text
    (link,) = {link for words, link in cell_links(page) if words == "(none)"}
    assert [row["gpu_hours"] for row in rows(browser, link)] == [6.0]
    assert 'value="&#34;&#34;"' in browser.get(link).text


def test_without_suspended_time_there_are_no_links(lab: PortalLab) -> None:
    page = lab.browser("vogel").get(f"/report/usage?by=user&suspended=skip&{WINDOW}").text
    assert not cell_links(page)
    assert "these numbers open no runs" in words_of(page)


@pytest.mark.parametrize(
    "query",
    [
        "user=alice&user=vogel&by=user", "from=2026-11-02T06:30:00&to=2026-11-09T12:00:00",
        "day=2026-11-04&by=day", "week=2026-W45&by=week", "suspended=skip", "job=1",
        "month=2026-11&month=2026-10&by=month", "by=gpu_type,user", 'qos=""&by=qos',
        "from=2026-11-02T06:30:00%2B01:00&timezone=Europe/Berlin",
    ],
)  # fmt: skip
def test_show_asks_the_same_again(lab: PortalLab, query: str) -> None:
    browser = lab.browser("vogel")
    page = browser.get(f"/report/usage?{query}").text
    again = f"/report/usage?{urlencode(form_of(page))}"
    assert rows(browser, again) == rows(browser, f"/report/usage?{query}")
    asked = {name for name, value in parse_qsl(urlsplit(again).query) if value}
    assert {name for name, _ in parse_qsl(query)} <= asked


def test_show_of_runs_asks_for_the_same_runs(lab: PortalLab) -> None:
    browser = lab.browser("vogel")
    for kind in ("held", "lost", "started", "measured", "waiting"):
        link = f"/report/explain?runs={kind}&{WINDOW}"
        again = f"/report/explain?{urlencode(form_of(browser.get(link).text))}"
        assert rows(browser, again) == rows(browser, link)
    assert browser.get("/report/explain?runs=all").status_code == 400


@pytest.mark.parametrize("path", ["/", "/report/usage?by=user", "/report/wait", "/report/capacity"])
def test_links_mean_the_same_a_month_later(lab: PortalLab, path: str) -> None:
    browser = lab.browser("vogel")
    page = browser.get(path).text
    links = {
        unescape(link)
        for link in re.findall(r'href="(/report/[a-z]+\?[^"]*)"', page)
        if "format=" not in link
    } - {unescape(one) for one in links_of(page) if one == "/report/usage?by=user"}
    assert links
    windows = {link: _window(browser, link) for link in links}
    lab.now += 40 * DAY
    for link, window in windows.items():
        assert _window(browser, link) == window, link


def _window(browser: Browser, link: str) -> list[str]:
    answer = browser.get(f"{link}&format=json")
    assert answer.status_code == 200, link
    return json.loads(answer.text)["meta"]["window"]
