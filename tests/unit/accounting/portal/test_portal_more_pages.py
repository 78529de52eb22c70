"""Further pages of the portal: statements, idle GPUs, benchmarks, and what every page says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from gpu_lab import steady, store_running, use_of
from portal_lab import NOW, OPERATOR, PortalLab, links_of, tables_of, words_of, writing
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.gpu_use.samples import GpuName
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.notify.monthly_mail import PastMonth, month_notice, pis_of_month
from slurmkit_accounting.people.deputies import name_deputy
from slurmkit_accounting.usage.closed_months import close_month

HOUR = 3600
A100 = {"a100": 2}


@pytest.fixture
def lab(ledger: Ledger, tmp_path: Path) -> Iterator[PortalLab]:
    before = BEGIN - 20 * DAY
    jobs = [
        run("alice", before, before + 5 * HOUR, gpus=A100),
        run("garcia", before, before + 2 * HOUR, gpus=A100),
        run("vogel", BEGIN + DAY, BEGIN + DAY + HOUR, gpus=A100),
        run("alice", NOW - 7200, None, gpus=A100, state="RUNNING", last_seen=BEGIN * 2),
    ]
    write_books(ledger, jobs)
    with ledger.transaction() as connection:
        name_deputy(connection, 3, "bob", NOW + DAY, named_by="vogel", now=NOW - DAY)
    close_month(ledger, "2026-10", find_zone("UTC"), NOW)
    with writing(PortalLab(ledger, tmp_path)) as made:
        yield made
        made.views.wait_until_written()


def test_statements_are_those_that_are_mailed(lab: PortalLab) -> None:
    month = PastMonth("2026-10", find_zone("UTC"), NOW)
    mailed = {
        pi.name: month_notice(lab.ledger, month, pi) for pi in pis_of_month(lab.ledger, month)
    }
    shown = {
        "alice": set(), "bob": {"vogel"}, "vogel": {"vogel"}, "garcia": {"garcia"},
        OPERATOR: {"vogel", "garcia"},
    }  # fmt: skip
    for user, names in shown.items():
        browser = lab.browser(user)
        page = browser.get("/statements").text
        assert tables_of(page)[0][1][0] == "2026-10"
        (to_month,) = [one for one in links_of(page) if one == "/statements/2026-10"]
        of_month = browser.get(to_month).text
        rows = tables_of(of_month)[0][1:] if names else []
        assert {row[0] for row in rows} == names
        for number, name in ((3, "vogel"), (4, "garcia")):
            for form in ("html", "txt"):
                answer = browser.get(f"/statements/2026-10/{number}.{form}")
                assert answer.status_code == (200 if name in names else 404)
                if name in names:
                    notice = mailed[name]
                    assert answer.text == (notice.html if form == "html" else notice.text)
    (link,) = [one for one in links_of(of_month) if "pi=vogel" in one]
    assert tables_of(lab.browser("vogel").get(link).text)[0][1][:2][0] == "alice"


@pytest.mark.parametrize(
    "path", ["2026-11", "2026-09", "nonsense", "2026-10/99.html", "2026-10/3.pdf", "2026-10/3"]
)
def test_statements_that_do_not_exist(lab: PortalLab, path: str) -> None:
    assert lab.browser("vogel").get(f"/statements/{path}").status_code == 404


@pytest.mark.sql
def test_gpus_that_do_nothing(lab: PortalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "time", SimpleNamespace(time=lambda: NOW + 5.0))
    start = NOW - 7200
    busy = use_of(start=start, job=4)
    idle = use_of(start=start, job=4, gpu=GpuName("GPU-2", "", 1))
    store_running(
        lab.ledger,
        (busy, steady(NOW - 3600, 3600)),
        (idle, steady(NOW - 3600, 3600, busy=0, watts=60)),
    )
    page = lab.browser("vogel").get("/idle").text
    said = "2 GPUs that are measured: 1 idle, 1 at work, 0 held for less than 30 minutes, 0 not"
    assert said in words_of(page)
    assert [row[4] for row in tables_of(page)[0][1:]] == ["yes", "no"]
    assert "/job/4?cluster=lab" in links_of(page)
    assert "No GPU of a running job" in words_of(lab.browser("garcia").get("/idle").text)
    lab.views.wait_until_written()
    assert "vogel lists of runs" in words_of(lab.browser("alice").get("/account").text)


def test_a_gpu_that_was_just_taken_is_not_idle(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "time", SimpleNamespace(time=lambda: NOW + 5.0))
    begins = (NOW - 600, NOW - 7200)
    state = {"state": "RUNNING", "last_seen": BEGIN * 2}
    write_books(ledger, [run("alice", at, None, gpus=A100, **state) for at in begins])
    quiet = {"busy": 0, "watts": 60}
    store_running(
        ledger,
        (use_of(start=begins[0], job=1), steady(NOW - 600, 600, **quiet)),
        # Of this one, the last ten minutes alone are known.
        (
            use_of(start=begins[1], job=2, gpu=GpuName("GPU-2", "", 1)),
            steady(NOW - 600, 600, **quiet),
        ),
    )
    with writing(PortalLab(ledger, tmp_path)) as lab:
        page = lab.browser("vogel").get("/idle").text
    assert {row[0]: row[4] for row in tables_of(page)[0][1:]} == {"1": "no", "2": "?"}
    said = "0 idle, 0 at work, 1 held for less than 30 minutes, 1 not measured long enough"
    assert said in words_of(page)


def test_benchmarks_have_a_page(lab: PortalLab) -> None:
    browser = lab.browser("alice")
    for by in ("gpu", "node", "gpu_type", "month"):
        assert browser.get(f"/report/benchmark?by={by}").status_code == 200
    page = browser.get("/report/usage").text
    assert "/report/benchmark" in {urlsplit(one).path for one in links_of(page)}
    assert "/idle" in links_of(page)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/account",
        "/allocations",
        "/run/1",
        "/job/1",
        "/idle",
        "/statements",
        "/statements/2026-10",
    ],
)
def test_every_page_says_zone_age_and_reader(lab: PortalLab, path: str) -> None:
    words = words_of(lab.browser("vogel").get(path).text)
    assert "Shown to uid 2003: your own runs" in words
    assert "UTC" in words
    assert "last ingest " in words
    assert "window: " in words or "month: " in words or path == "/statements"


@pytest.mark.sql
def test_a_job_has_its_window_and_prices(lab: PortalLab) -> None:
    words = words_of(lab.browser("vogel").get("/job/1").text)
    assert "window: 1970-01-02" in words
    assert "prices: " in words


def test_home_of_a_pi_says_that_nothing_is_worth_asking(ledger: Ledger, tmp_path: Path) -> None:
    write_books(ledger, [run("alice", BEGIN + DAY, BEGIN + DAY + HOUR, gpus=A100)])
    with writing(PortalLab(ledger, tmp_path)) as lab:
        words = {user: words_of(lab.browser(user).get("/").text) for user in ("vogel", "alice")}
    said = "Worth asking about Nothing. Here stands who lost at least 1 GPU-hour and 10 % of their"
    assert said in words["vogel"]
    assert "Nothing. Here stands" not in words["alice"]


def test_the_last_day_that_the_form_offers_is_possible(ledger: Ledger, tmp_path: Path) -> None:
    write_books(ledger, [])
    with writing(PortalLab(ledger, tmp_path)) as lab:
        browser = lab.browser("vogel")
        sent = browser.send("/account/deputies", user="garcia", until="2027-11-21")
        assert sent.status_code == 303
        assert "garcia 2026-11-21 2027-11-21 vogel" in words_of(browser.get("/account").text)
        after = browser.send("/account/deputies", user="garcia", until="2027-11-22")
        assert after.status_code == 400
