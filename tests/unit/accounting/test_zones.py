from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slurmkit_accounting import calendar
from slurmkit_accounting.calendar import find_zone, host_zone_or_utc

from slurmkit.errors import BadInput


def test_a_date_is_its_local_midnight():
    assert find_zone("UTC").epoch("2026-11-20") == datetime(2026, 11, 20, tzinfo=UTC).timestamp()
    assert find_zone("Europe/Berlin").epoch("2026-11-20") == find_zone("UTC").epoch(
        "2026-11-19T23:00:00"
    )
    assert find_zone("Asia/Kathmandu").epoch("2026-11-20") == find_zone("UTC").epoch(
        "2026-11-19T18:15:00"
    )


def test_summer_time_makes_days_of_23_and_25_hours():
    berlin = find_zone("Europe/Berlin")
    assert berlin.epoch("2026-03-30") - berlin.epoch("2026-03-29") == 23 * 3600
    assert berlin.epoch("2026-10-26") - berlin.epoch("2026-10-25") == 25 * 3600


def test_a_repeated_hour_means_the_first():
    assert find_zone("Europe/Berlin").epoch("2026-10-25T02:30:00") == find_zone("UTC").epoch(
        "2026-10-25T00:30:00"
    )


def test_an_offset_wins_over_the_zone():
    moment = "2026-11-20T10:15:00+05:45"
    assert find_zone("America/New_York").epoch(moment) == find_zone("UTC").epoch(
        "2026-11-20T04:30:00"
    )


@pytest.mark.parametrize("text", ["yesterday", "", "2026-13-01", "2026-02-30", "20.11.2026"])
def test_what_is_no_date(text):
    with pytest.raises(BadInput, match="is not a date: write YYYY-MM-DD"):
        find_zone("UTC").epoch(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Asia/Tokyo", "0001-01-01"),
        ("UTC", "0001-01-01T00:00:00+14:00"),
        ("UTC", "9999-12-31T23:59:59-10:00"),
        ("America/New_York", "9999-12-31T23:59:59-10:00"),
    ],
)
def test_what_no_calendar_of_the_zone_holds(name, text):
    with pytest.raises(BadInput, match=f"is outside the years 1 to 9999 in {name}"):
        find_zone(name).epoch(text)


def test_the_edges_of_the_calendar_are_dates():
    assert (
        find_zone("UTC").show(find_zone("UTC").epoch("0001-01-01")) == "0001-01-01 00:00:00+00:00"
    )
    assert (
        find_zone("UTC").show(find_zone("UTC").epoch("9999-12-31")) == "9999-12-31 00:00:00+00:00"
    )


def test_what_is_no_zone_names_the_nearest():
    with pytest.raises(BadInput, match="did you mean Europe/Berlin"):
        find_zone("Europe/Berln")
    for name in ("../../etc/passwd", "/etc/passwd", "\0", ""):
        with pytest.raises(BadInput, match="is not in the time zone database"):
            find_zone(name)


@pytest.mark.parametrize("value", ["Europe/Berlin", ":Europe/Berlin"])
def test_the_host_zone_comes_from_tz(monkeypatch, value):
    monkeypatch.setenv("TZ", value)
    assert find_zone().name == "Europe/Berlin"


def test_a_tz_that_is_no_name_is_refused(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST")
    with pytest.raises(BadInput, match=r"TZ 'CET-1CEST' is not in the time .* with --timezone"):
        find_zone()
    assert host_zone_or_utc() == find_zone("UTC")


def test_a_tz_that_is_a_file_without_a_zone_is_refused(monkeypatch, tmp_path):
    (tmp_path / "notes").write_text("milk", "utf-8")
    for name in ("notes", "missing"):
        monkeypatch.setenv("TZ", f":{tmp_path / name}")
        with pytest.raises(BadInput, match=f"{name} is not a time zone file; .* with --timezone"):
            find_zone()


@pytest.mark.parametrize("mark", ["", ":"])
def test_tz_may_name_a_file(monkeypatch, tmp_path, mark):
    source = Path("/usr/share/zoneinfo/Europe/Berlin")
    monkeypatch.setenv("TZ", f"{mark}{source}")
    assert find_zone().name == "Europe/Berlin"  # the name tells, even where the file is not there
    assert host_zone_or_utc().name == "Europe/Berlin"
    if not source.exists():
        pytest.skip("this host has no time zone files")
    link, copy = tmp_path / "link", tmp_path / "copy"
    link.symlink_to(source)
    shutil.copy(source, copy)
    for path, name in ((link, "Europe/Berlin"), (copy, str(copy))):
        monkeypatch.setenv("TZ", f"{mark}{path}")
        assert find_zone().name == name
        assert find_zone().epoch("2026-11-20") == find_zone("Europe/Berlin").epoch("2026-11-20")


def test_the_host_zone_comes_from_localtime(monkeypatch, tmp_path):
    monkeypatch.delenv("TZ")
    source = Path("/usr/share/zoneinfo/Europe/Berlin")
    if not source.exists():
        pytest.skip("this host has no time zone files")
    localtime = tmp_path / "localtime"
    monkeypatch.setattr(calendar, "_LOCALTIME", localtime)
    assert find_zone().name == "UTC"
    shutil.copy(source, localtime)
    assert find_zone().epoch("2026-11-20") == find_zone("Europe/Berlin").epoch("2026-11-20")
    localtime.unlink()
    localtime.symlink_to(source)
    assert find_zone().name == "Europe/Berlin"


def test_times_are_shown_with_their_offset():
    assert find_zone("Europe/Berlin").show(0) == "1970-01-01 01:00:00+01:00"


def test_no_zone_database_is_said(monkeypatch):
    monkeypatch.setattr(calendar, "available_timezones", set)
    with pytest.raises(BadInput, match="install tzdata"):
        find_zone("Mars/Olympus")
    assert find_zone("UTC").epoch("1970-01-02") == 86400
