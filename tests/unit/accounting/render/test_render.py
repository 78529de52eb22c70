"""Reports as table, CSV, JSON, XLSX and HTML: the same numbers, and nothing that is run."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from datetime import UTC, datetime
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from openpyxl import load_workbook
from slurmkit_accounting.render import render_report
from slurmkit_accounting.render.charts import axis_ticks, chart_layouts, limit_series, short_label
from slurmkit_accounting.render.format import footer_lines, format_value
from slurmkit_accounting.render.text import filled_columns, table_columns, text_rows, text_total
from slurmkit_accounting.reports.model import (
    ClosedMonthSummary,
    Column,
    Meta,
    Panel,
    Report,
    Series,
    SreportDifference,
    UnmappedTotal,
)

from slurmkit.errors import BadInput

EVIL = '<script>alert("x")</script>\x1b[2J'
META = Meta(
    report="usage",
    by=("user",),
    window=("2026-11-01 00:00:00+01:00", "2026-12-01 00:00:00+01:00"),
    timezone="Europe/Berlin",
    filters={"pi": (EVIL,)},
    suspended="charge",
    source="ledger /books.db",
    clusters=("lab",),
    gpus_not_tracked=("big",),
    last_ingest=1,
    data_age=90,
    missing_before="2026-11-02 00:00:00+01:00",
    gaps=(("lab", "2026-11-03", "2026-11-04"),),
    total={"gpu_hours": 3.5, "gpu_hours_lost": 1.0, "jobs": 3, "users": 2, "cost": 7.0},
    runs=3,
    running=1,
    running_until="2026-11-20 00:00:00+01:00",
    doubtful=1,
    unmapped=UnmappedTotal(1, 0.25),
    rejects=2,
    currency="EUR",
    prices="GPU hours",
    weights={"shard": None, "mig": 0.125},
    sreport=SreportDifference(0.5, 1.0, 0.25, "slurmkit report reconcile"),
    closed=(ClosedMonthSummary("lab", "2026-11", 5, 10.0, -0.5, ("7", "8")),),
    made=2,
)
COLUMNS = (
    Column("user"),
    Column("jobs", "count"),
    Column("gpu_hours", "hours"),
    Column("gpu_hours_failed", "hours"),
    Column("cpu_efficiency", "share"),
    Column("cost", "money"),
)
ROWS = (
    ("=cmd()", 1, 0.1 + 0.2, 0.0, 1 / 3, None),
    ("+1", 10**15, 123456789.12345679, 0.0, None, 7.0),
    ("-x", 0, 5e-324, 0.0, 0.5, 1e22),
    ("@sum", 2, 1234.5, 0.0, 0.25, 0.07),
    (EVIL, 2, 2.5, 0.0, 0.25, 0.07),
    ("Zoë, \"the\"\nbig", 2, 2.5, 0.0, 0.25, 0.07),
)  # fmt: skip
AT = datetime(2026, 11, 1, 0, 1, 1, tzinfo=UTC)
PANELS = (
    Panel("stacked", "Over time", "GPU-hours", ("2026-11-01", "2026-11-02"),
          (Series(EVIL, (1.0, 2.5)), Series("b", (None, 3.0)))),
    Panel("bars", "By person", "GPU-hours", (EVIL, "bob"), (Series("h", (1.0, 2.0)),), EVIL),
    Panel("lines", "Burn-down", "GPU-hours", ("2026-11", "2026-12"), (Series("x", (5.0, None)),)),
)  # fmt: skip


@pytest.fixture
def report() -> Report:
    names = [column.name for column in COLUMNS]
    rows = tuple(dict(zip(names, row, strict=True)) for row in ROWS)
    return Report(META, COLUMNS, rows, PANELS)


def test_json_has_everything_at_full_precision(report):
    found = json.loads(render_report(report, "json"))
    assert [tuple(row.values()) for row in found["rows"]] == list(ROWS)
    assert found["meta"]["unmapped"] == {"jobs": 1, "gpu_hours": 0.25}


def test_csv_reads_back_equal(report):
    header, *rows = csv.reader(io.StringIO(render_report(report, "csv").decode()))
    assert header == [column.name for column in COLUMNS]
    for row, given in zip(rows, ROWS, strict=True):
        assert [float(cell) if cell else None for cell in row[1:]] == list(given[1:])


def test_xlsx_reads_back_equal(report):
    book = load_workbook(io.BytesIO(render_report(report, "xlsx")))
    header, *rows = book["usage"].values
    given = [dict(zip([one.name for one in COLUMNS], row, strict=True)) for row in ROWS]
    assert sorted(header) == sorted(given[0])
    assert [row[1:] for row in rows] == [tuple(row[name] for name in header[1:]) for row in given]
    about = [row[0] for row in book["about"].values]
    assert any(line.startswith("window: 2026-11-01") for line in about)


def test_no_spreadsheet_takes_a_name_for_a_formula(report):
    sheet = load_workbook(io.BytesIO(render_report(report, "xlsx")))["usage"]
    for row in sheet.iter_rows(min_row=2):
        assert row[0].data_type == "s"
    _, *rows = csv.reader(io.StringIO(render_report(report, "csv").decode()))
    assert [row[0][:2] for row in rows[:4]] == ["'=", "'+", "'-", "'@"]


SUMMED = (
    Column("pi"),
    Column("users", "count"),
    Column("gpu_hours", "hours", adds_up=True),
    Column("cpu_efficiency", "share"),
    Column("cost", "money", adds_up=True),
    Column("energy_kwh", "number", adds_up=True),
)


@pytest.fixture
def summed() -> Report:
    """Two rows, and what they are together; the energy is unknown."""
    rows = (
        {"pi": "vogel", "users": 2, "gpu_hours": 2.0, "cpu_efficiency": 0.5, "cost": 4.0},
        {"pi": "total", "users": 2, "gpu_hours": 1.5, "cpu_efficiency": 0.25, "cost": 3.0},
    )
    rows = tuple(
        {**row, "energy_kwh": energy} for row, energy in zip(rows, (1.0, None), strict=True)
    )
    total = {"users": 3, "gpu_hours": 3.5, "cpu_efficiency": 0.4, "cost": 7.0, "energy_kwh": None}
    return Report(replace(META, by=("pi",), total=total), SUMMED, rows)


def test_a_total_is_of_what_can_be_added(summed):
    """No sum of percentages or of people, and the unknown stays unknown."""
    assert text_total(summed, SUMMED) == ["total", "", "3.50", "", "7.00", "?"]
    assert text_total(summed, SUMMED[2:]) == ["3.50", "total", "7.00", "?"]
    assert text_total(summed, SUMMED[2:3]) == []
    assert text_total(replace(summed, rows=summed.rows[:1]), SUMMED) == []
    assert text_total(replace(summed, total_row=False), SUMMED) == []
    assert text_total(replace(summed, meta=replace(summed.meta, total={})), SUMMED) == []


def test_a_csv_file_ends_with_a_total_only_for_who_asks(summed):
    """`df.gpu_hours.sum()` must not count everything twice."""
    plain = render_report(summed, "csv").decode().splitlines()
    assert len(plain) == 3
    assert render_report(replace(summed, total_row=True), "csv").decode().splitlines() == [
        *plain,
        "total,,3.5,,7.0,",
    ]


def test_a_spreadsheet_ends_with_a_total_set_apart(summed):
    sheet = load_workbook(io.BytesIO(render_report(summed, "xlsx")))["usage"]
    *rows, gap, last = sheet.iter_rows()
    assert [cell.value for cell in gap] == [None] * 6
    values = {head.value: cell.value for head, cell in zip(rows[0], last, strict=True)}
    assert values == {
        "pi": "total", "gpu_hours": 3.5, "cost": 7.0, "users": None, "cpu_efficiency": None,
        "energy_kwh": None,
    }  # fmt: skip
    assert all(cell.font.bold and cell.border.top.style and cell.fill.fill_type for cell in last)
    assert not any(cell.font.bold for row in rows[1:] for cell in row)
    assert sheet.auto_filter.ref == "A1:F3"
    without = render_report(replace(summed, total_row=False), "xlsx")
    assert load_workbook(io.BytesIO(without))["usage"].max_row == 3


def test_a_page_ends_its_tables_with_a_total(summed):
    page = render_report(summed, "html").decode()
    main, detail = re.findall(r"<tfoot>(.*?)</tfoot>", page, re.DOTALL)
    assert re.findall(r"<td[^>]*>([^<]*)</td>", main) == ["total", "3.50", "7.00", "", ""]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", detail) == ["total", "?"]


def test_a_spreadsheet_can_be_read_without_dragging(report):
    sheet = load_workbook(io.BytesIO(render_report(report, "xlsx")))["usage"]
    header = [cell.value for cell in sheet[1]]
    assert header[:4] == ["user", "gpu_hours", "cost", "jobs"]
    widths = {cell.value: sheet.column_dimensions[cell.column_letter].width for cell in sheet[1]}
    assert widths["gpu_hours_failed"] >= len("gpu_hours_failed") + 2
    assert widths["user"] >= len(EVIL)
    assert all(width <= 60 for width in widths.values())
    assert sheet.freeze_panes == "B2"
    assert sheet.auto_filter.ref == "A1:F7"
    assert sheet["C3"].number_format == '#,##0.00 "EUR"'


def test_a_spreadsheet_has_times_that_people_can_read(report):
    columns = (Column("job"), Column("start", "time"), Column("end", "time"))
    row = {"job": "7", "start": int(AT.timestamp()), "end": None}
    sheet = load_workbook(io.BytesIO(render_report(Report(META, columns, (row,)), "xlsx")))["usage"]
    assert [cell.value for cell in sheet[2]] == ["7", AT.replace(tzinfo=None), None]
    assert sheet["B2"].number_format == 'yyyy-mm-dd hh:mm:ss "UTC"'


@pytest.mark.parametrize("form", ["csv", "html", "xlsx"])
def test_control_characters_go_nowhere(report, form):
    raw = render_report(report, form)
    if form == "xlsx":
        raw = str(list(load_workbook(io.BytesIO(raw))["usage"].values)).encode()
    assert b"\x1b" not in raw


def test_a_name_with_any_characters_makes_a_valid_spreadsheet(report):
    name = "a\ufffe\uffff\ud800\x00b\U0001fffe"
    row = dict(report.rows[0]) | {report.columns[0].name: name}
    raw = render_report(replace(report, rows=(row,)), "xlsx")
    with zipfile.ZipFile(io.BytesIO(raw)) as parts:
        for part in parts.namelist():
            ElementTree.fromstring(parts.read(part))  # noqa: S314  our own file
    (found,) = list(load_workbook(io.BytesIO(raw))["usage"].values)[1:]
    assert found[0] == r"a\ufffe\uffff\ud800\x00b" + "\U0001fffe"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str | None]] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= set(attrs)


def test_html_stands_alone_and_runs_nothing(report):
    text = render_report(report, "html").decode()
    page = _Page()
    page.feed(text)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    assert not [name for name, _ in page.attributes if name in {"src", "href"} or name[:2] == "on"]
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text


def test_html_has_every_number_and_what_they_rest_on(report):
    text = render_report(report, "html").decode()
    for row in text_rows(report, filled_columns(report)):
        for cell in row[1:]:
            assert f">{escape(cell)}<" in text
    for line in footer_lines(META):
        assert line.split(":")[0].split("<")[0] in text
    assert text.count('<svg class="chart') == 3 * len(PANELS)
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;\\x1b[2J" in text


def test_a_chart_says_which_gpu_type_it_is_of_also_if_there_is_one(report):
    one = Panel("stacked", "By type", "GPU-hours", ("2026-11-01",), (Series("h100", (1.0,)),))
    page = render_report(replace(report, panels=(one,)), "html").decode()
    assert "</svg>h100</li>" in page
    bars = Panel("bars", "By person", "GPU-hours", ("bob",), (Series("GPU-hours", (1.0,)),))
    assert (
        "legend"
        not in render_report(replace(report, panels=(bars,)), "html").decode().split("</style>")[1]
    )


def test_a_page_says_what_its_hours_are_and_begins_with_gpu_hours(report):
    columns = (Column("pi"), Column("gpu_type"), *COLUMNS[1:], Column("wait_hours", "hours"))
    row = {**report.rows[4], "pi": "vogel", "gpu_type": "h100", "wait_hours": 1.0}
    meta = replace(META, by=("pi", "gpu_type"))
    page = render_report(Report(meta, columns, (row,)), "html").decode()
    heads = re.findall(r"<th [^>]*>([^<]*)</th>", page)
    assert heads[:4] == ["PI", "GPU type", "GPU\u2011hours", "cost, EUR"]
    assert "wait hours, sum" in heads


def test_the_footer_in_brief_has_what_is_not_zero(report):
    sreport = SreportDifference(0.0, 1.0, 0.0, "slurmkit report reconcile")
    quiet = replace(
        META, gpus_not_tracked=(), missing_before=None, gaps=(), running=0, doubtful=0, rejects=0,
        unmapped=UnmappedTotal(0, 0.0), weights={"mig": 0.125}, sreport=sreport,
        closed=(ClosedMonthSummary("lab", "2026-11", 5, 10.0, 0.0),), definitions=("x: y",),
        notes=("shown to vogel",),
    )  # fmt: skip
    names = [line.split(":")[0] for line in footer_lines(quiet, brief=True)]
    assert names == ["window", "source", "prices in EUR", "shown to vogel"]
    assert list(footer_lines(META, brief=True)) == [
        line
        for line in footer_lines(replace(META, weights={"shard": None}))
        if not line.startswith("suspended time")
    ]
    assert len(list(footer_lines(quiet))) == len(names) + 6


def test_who_cannot_ingest_is_not_told_to():
    said = list(footer_lines(replace(META, rejects=None)))
    assert any(line.endswith("are missing; to have them, ask your administrators") for line in said)
    assert not any("slurmkit ledger ingest" in line for line in said)


def test_a_time_that_has_not_come_is_empty():
    assert format_value(None, "time") == ""
    assert format_value(None, "hours") == "?"


def test_the_footer_says_what_the_numbers_rest_on():
    assert list(footer_lines(META)) == [
        (
            "window: 2026-11-01 00:00:00+01:00 to 2026-12-01 00:00:00+01:00 (not included),"
            f" Europe/Berlin; only pi {EVIL}"
        ),
        "suspended time counts, as in sreport (--suspended charge)",
        "source: ledger /books.db, lab; last ingest 1:30 ago",
        (
            "counted: 3 runs, 2 rejected lines, unmapped 1 run with 0.25 GPU-hours, 1 still"
            " running, counted up to 2026-11-20 00:00:00+01:00, the GPU count of 1 run is doubtful"
        ),
        (
            "the ledger begins at 2026-11-02 00:00:00+01:00, so earlier runs are missing; to read"
            " them: slurmkit ledger ingest --since DATE"
        ),
        "gap: no jobs of lab were read from 2026-11-03 to 2026-11-04",
        (
            "GPUs of big are not tracked: its AccountingStorageTRES lacks gres/gpu, so sacct does"
            " not show their use"
        ),
        "prices in EUR: GPU hours",
        "weights in whole GPUs: shard unknown, counted as 0, mig 0.125",
        (
            "sreport may differ: these GPU-hours include 0.50 while suspended, 1.00 of runs still"
            " running, 0.25 of requeued runs; sreport adds idle reservations; for the whole"
            " difference: slurmkit report reconcile"
        ),
        (
            "2026-11 of lab was closed at 1970-01-01 00:00:05 UTC with 10.00 GPU-hours; corrected"
            " since by -0.50, because of jobs 7, 8"
        ),
    ]


def test_a_table_shows_what_one_looks_at_first_where_there_is_something(report):
    assert [column.name for column in table_columns(report, ("all",))] == [
        one.name for one in COLUMNS
    ]
    names = [column.name for column in table_columns(report)]
    assert names == ["user", "gpu_hours", "cost", "jobs", "cpu_efficiency"]
    assert [column.name for column in table_columns(report, ("cost", "jobs"))] == [
        "user",
        "cost",
        "jobs",
    ]
    with pytest.raises(BadInput, match="no column 'colour'; choose from user, jobs"):
        table_columns(report, ("colour",))


def test_a_plugin_renders_what_we_do_not(report):
    with pytest.raises(BadInput, match=r"no plugin 'pdf' of slurmkit\.renderers"):
        render_report(report, "pdf")


@pytest.mark.parametrize("top", [0, 1e-9, 0.3, 1, 7, 99.99, 100, 123456])
def test_axes_end_on_round_numbers_just_above_what_they_show(top):
    marks = axis_ticks(top)
    assert marks[0] == 0
    assert top <= marks[-1] * (1 + 1e-9)
    assert len(marks) <= 7
    assert top == 0 or marks[-2] < top * (1 + 1e-9)


def test_bars_stack_up_to_their_sum_within_the_picture():
    for chart in chart_layouts(PANELS[0]).values():
        second = [shape for shape in chart.shapes if shape.title.startswith("2026-11-02")]
        low, high = sorted(second, key=lambda shape: -shape.y)
        assert low.y == pytest.approx(high.y + high.height)
        assert low.height / high.height == pytest.approx(2.5 / 3.0)
        for shape in chart.shapes:
            assert shape.y >= 0
            assert 0 <= shape.x <= chart.width - shape.width


USED = Panel(
    "bars", "Held and used", "GPU-hours", ("alice", "bob", "carol", "dave"),
    (
        Series("used", (30.0, 0.0, 5.0, 0.0)),
        Series("not used", (10.0, 0.0, 5.0, 8.0), "faint"),
        Series("not measured", (20.0, 7.0, 30.0, 0.0), "hatched"),
    ),
)  # fmt: skip


@pytest.mark.parametrize("size", ["wide", "middle", "narrow"])
def test_the_parts_of_a_bar_add_up_and_what_is_unknown_is_said(size):
    chart = chart_layouts(USED)[size]
    alice = [shape for shape in chart.shapes if shape.title.startswith("alice, ")]
    assert [shape.look for shape in alice] == ["", "faint", "hatched"]
    assert [shape.title for shape in alice][2] == "alice, not measured: 20.00 GPU-hours"
    for before, after in pairwise(alice):
        assert before.x + before.width == pytest.approx(after.x)
    assert alice[0].width / sum(shape.width for shape in alice) == pytest.approx(0.5)
    assert all(shape.x + shape.width <= chart.width + 0.01 for shape in chart.shapes)
    # Nobody knows what bob's GPUs did, and hardly what carol's did: that is not 0 %.
    assert [text.text for text in chart.texts if text.strong] == [
        "60.00, 75% used", "7.00, not measured", "40.00, mostly not measured", "8.00, 0% used",
    ]  # fmt: skip
    assert [shape.look for shape in chart.shapes if shape.title.startswith("bob")] == ["hatched"]


def test_a_page_shows_what_is_unknown_without_colour_and_in_words(report):
    text = render_report(replace(report, panels=(USED,)), "html").decode()
    words = "alice: 30.00 used, 10.00 not used, 20.00 not measured; bob: 7.00 not measured;"
    assert f'aria-label="Held and used. {words}' in text
    assert text.count('<pattern id="hatch"') == 1
    assert set(re.findall(r"url\((.*?)\)", text)) == {"#hatch"}
    assert text.count('class="hatched" fill="url(#hatch)"') == 3 * 3 + 1  # and in the legend
    legend = re.findall(r"<li><svg.*?</svg>(.*?)</li>", text)
    assert legend == ["used", "not used", "not measured"]


def test_more_series_than_colours_come_together():
    series = [Series(str(n), (float(n), None)) for n in range(10)]
    kept = limit_series(series)
    assert [one.name for one in kept[-2:]] == ["6", "3 others"]
    assert kept[-1].values == (7.0 + 8 + 9, 0)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("2026-11-01", "1 Nov"),
        ("2026-11", "Nov 2026"),
        ("2026-W44", "2026-W44"),
        ("0" * 10, "0" * 10),
    ],
)
def test_labels_of_time_are_short(label, words):
    assert short_label(label) == words


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        ("2026-11-01 00:00:00+01:00", "2026-12-01 00:00:00+01:00", "November 2026"),
        ("2026-12-01 00:00:00+01:00", "2027-01-01 00:00:00+01:00", "December 2026"),
        (
            "2026-10-01 00:00:00+02:00",
            "2026-12-01 00:00:00+01:00",
            "2026-10-01 to 2026-11-30, both included",
        ),
        (
            "2026-11-01 00:00:00+01:00",
            "2026-11-21 09:45:50+01:00",
            "2026-11-01 00:00:00 to 2026-11-21 09:45:50",
        ),
    ],
)
def test_a_page_says_its_window_in_few_words(report, begin, end, words):
    meta = replace(META, window=(begin, end))
    page = render_report(Report(meta, report.columns, report.rows), "html").decode()
    assert f'<p class="span">{words}, Europe/Berlin · lab</p>' in page


def test_users_are_not_counted_where_each_row_is_one(report):
    columns = (COLUMNS[0], Column("users", "count"))
    rows = ({"user": "alice", "users": 1},)
    assert [one.name for one in table_columns(Report(META, columns, rows))] == ["user"]
    by_pi = replace(META, by=("pi",))
    assert [one.name for one in table_columns(Report(by_pi, columns, rows))] == ["user", "users"]


def test_nothing_to_show_is_no_error():
    empty = Report(META, COLUMNS, (), (Panel("bars", "x", "h", (), (Series("h", ()),)),))
    for form in ("csv", "json", "xlsx", "html"):
        assert render_report(empty, form)
    assert re.search(r"There is nothing to show\.", render_report(empty, "html").decode())


def test_the_pictures_are_of_this_report():
    pictures = Path(__file__).parents[4] / "docs" / "pictures"
    assert all(
        (pictures / f"report-{size}.png").exists() for size in ("phone", "tablet", "desktop")
    )
