"""The view of utilization: its curve, the words under its cursor, its bars, and its ledger."""

from __future__ import annotations

import gzip
import struct
import time
from contextlib import nullcontext
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from fake_queue import NOW, expect_text, text, until
from gpu_curves import HOUR, LAST, curve
from gpu_lab import steady, use_of
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.gpu_use.store import store_uses
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.ledger.database import open_for_writing
from slurmkit_accounting.ledger.schema.runs import clusters
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.feed import FeedQuestion, composed
from slurmkit_tui.feed.composed import CurrentUse, Utilization, read_utilization
from slurmkit_tui.feed.history import (
    GpuCurve,
    HeldGpus,
    HourlyGpus,
    ObservedHour,
    make_curve,
    memory_path,
    span_of_days,
)
from slurmkit_tui.feed.recording import RecordedAnswer, RecordingHeader, ReplayFeed
from slurmkit_tui.options import AppOptions
from slurmkit_tui.views.utilization import utilization_rows
from slurmkit_tui.widgets.plots import (
    GpuPlot,
    stretch_in_words,
    use_in_words,
)
from sqlalchemy import update
from stub_feed import StubFeed
from usage_oracle import Job
from usage_values import VALUES
from why_scene import SHAPES

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import set_default_cluster
from slurmkit.errors import BadInput, LedgerError, SlurmkitError
from slurmkit.state.gpu_use import SPANS, Span
from slurmkit.state.nodes import GpuCount, NodeRow
from slurmkit.testing import FakeSlurm

USE = CurrentUse({"a100": 8, "": 2}, {"a100": 5, "": 0}, 3, 64, 10)


def utilization(by: str = "gpu-type", *rows: dict, missing: str = "", **other: Any) -> Utilization:
    return Utilization(USE, rows, by, 1.0, missing, NOW, **other)


async def test_the_curve_its_legend_and_the_number_under_the_cursor() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(
            pilot, "─ all  • wanted  █ a100  ▓ h100  ░ held, no use measured", "last 24 hours"
        )
        shown = text(app)
        assert "22:00: 7 of 10 GPUs held, 12 wanted; held: 5 a100, 2 h100" in shown
        assert "42% used of the 68% measured  ·  last 24 hours  ·  by GPU type" in shown
        assert "5 of 8 a100, 2 of 2 h100), 12 more wanted" in shown
        assert "ingested 60 s before; USED: part of the measured time; SHARE" in shown
        assert shown.count("ledger") == 1
        await pilot.press("left", "left")
        await expect_text(
            pilot,
            "20:00: 8.5 GPUs held, 4 used (94% of them measured), unknown wanted; held: 8 a100",
        )
        await pilot.press("home")
        await expect_text(
            pilot, "Mon 13 Nov 23:00: 2 GPUs held, unknown wanted; held: 1.5 a100, 0.5 h100"
        )
        await pilot.press("end", "right")
        await expect_text(pilot, "22:00: 7 of 10")


@pytest.mark.parametrize("size", [(100, 30), (83, 24), (171, 40)])
async def test_the_mouse_marks_what_is_drawn_under_it(size: tuple[int, int]) -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=size) as pilot:
        await expect_text(pilot, "22:00: 7 of 10")
        plot = app.view.query_one(GpuPlot)
        for stretch in (0, 1, 11, 22, 23):
            plot.mark(stretch)
            await pilot.pause()
            line = text(app).splitlines()[plot.region.y + 1]
            column = line.rindex("│")
            plot.mark(5)
            await pilot.hover(offset=(column, plot.region.y + 1))
            await until(pilot, lambda at=stretch: plot.cursor == at)


async def test_keys_change_the_time_and_the_bars() -> None:
    feed = StubFeed(**VALUES)
    app = feed.app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await expect_text(pilot, "158.75 GPU-hours  ·  42% used", "last 24 hours  ·  by GPU type")
        line = next(line for line in text(app).splitlines() if "61.1%" in line)
        assert line.count("█") == 14
        feed.values["utilization"] = utilization("partition", {"partition": "gpu", "gpu_hours": 2})
        await pilot.press("b")
        await expect_text(pilot, "2 GPU-hours  ·  last 24 hours  ·  by partition", "100.0%")
        week = msgspec.structs.replace(
            utilization("account", {"account": "ml", "gpu_hours": 3}), days=7.0
        )
        feed.values["utilization"] = week
        await pilot.press("h", "b")
        await expect_text(pilot, "3 GPU-hours  ·  last 7 days  ·  by account")
        assert app.view.ask == FeedQuestion("utilization", ("account", "7d"))
        await pilot.press("h", "h", "b")
        await until(pilot, lambda: app.view.ask == app.view.ASK)


async def test_another_length_of_time_that_looks_the_same_has_a_cursor_too() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "22:00: 7 of 10")
        await pilot.press("h")
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await expect_text(pilot, "22:00: 7 of 10")


async def test_without_a_ledger_the_present_is_there() -> None:
    app = StubFeed(utilization=utilization(missing="there is no ledger")).app("utilization")
    async with app.run_test(size=(140, 30)) as pilot:
        await expect_text(pilot, "no history: there is no ledger", "   unknown   ")
        assert "use" not in text(app).lower()
        assert "5 of 10 GPUs held (5 of 8 a100, 0 of 2 untyped)" in text(app)
        assert "22:00: 5 of 10 GPUs held, 3 wanted; held: 5 a100" in text(app)


async def test_wanted_gpus_beyond_the_picture_are_told_in_its_legend() -> None:
    now = msgspec.structs.replace(USE, gpus_wanted=500)
    report = msgspec.structs.replace(utilization(), now=now)
    app = StubFeed(utilization=report).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "• wanted, up to 500", "20┤", " 0└")


async def test_measured_use_is_drawn_where_there_is_a_record() -> None:
    curve = (HeldGpus(LAST - HOUR, HOUR, {"a100": 6.0}, {"a100": 1.5}, {"a100": 3.0}),)
    row = {"gpu-type": "a100", "gpu_hours": 6.0, "jobs": 1}
    app = StubFeed(utilization=utilization("gpu-type", row, curve=curve)).app("utilization")
    async with app.run_test(size=(120, 30)) as pilot:
        await expect_text(pilot, "░ held, no use measured", "50% used of the 27% measured", "USED")
        assert " 50% " in next(line for line in text(app).splitlines() if "▸a100" in line)
        await pilot.press("left")
        await expect_text(
            pilot,
            "21:00: 6 GPUs held, 1.5 used (50% of them measured), unknown wanted; held: 6 a100",
        )


async def test_used_gpus_are_the_full_lower_part_of_their_type() -> None:
    held = {"a": 4.0, "b": 4.0}
    found = make_curve(
        [
            HeldGpus(LAST - 3 * HOUR, HOUR, held, {"a": 2.0, "b": 4.0}, held),
            HeldGpus(LAST - 2 * HOUR, HOUR, held, {"a": 0.0, "b": 3.0}, {"b": 3.0}),
            HeldGpus(LAST - HOUR, HOUR, held),  # not measured
        ], (), SPANS["24h"], now=NOW, types={"a": 4, "b": 4},
    )  # fmt: skip
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(60, 30)) as pilot:
        await expect_text(pilot, "22:00: 7 of 10")
        plot = app.view.query_one(GpuPlot)
        plot.mark(3)
        plot.show(found)
        lines = plot.render().plain.split("\n")[:-2]
        columns = ["".join(line[at] for line in reversed(lines)) for at in (8, 22, 36)]
        signs = ["".join(sign for sign, _ in groupby(column.strip())) for column in columns]
        assert signs == ["█░▓", "░▓░", "░"]


async def test_a_long_legend_is_not_cut() -> None:
    types = {f"type-{at}-with-a-name": 4 for at in range(4)}
    now = msgspec.structs.replace(USE, gpus=types, gpus_held=types, gpus_wanted=500)
    app = StubFeed(utilization=msgspec.structs.replace(utilization(), now=now)).app("utilization")
    async with app.run_test(size=(80, 24)) as pilot:
        await expect_text(pilot, "• wanted, up to 500", *types)


async def test_an_answer_is_prepared_for_what_was_asked_whatever_the_keys_do_meanwhile() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "22:00: 7 of 10")
        answer = app.session.last_answer(app.view.ASK).answer
        app.view._span, app.view._by = "7d", "account"  # as the keys do
        prepared = app.view.make(answer, app.session)
        assert len(prepared.curve.begins) == 24
        assert prepared.words[1:] == ("last 24 hours", "by GPU type")


async def test_the_history_is_of_every_view_and_saved_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    options = AppOptions(view="nodes", clock=lambda: NOW + 3, keep_history=True)
    known = tuple(row for row in VALUES["queue"].rows if row.tres)
    queue = msgspec.structs.replace(VALUES["queue"], rows=known)
    app = SlurmkitApp(StubFeed(**{**VALUES, "queue": queue}), options)
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "drained")
        await pilot.press("r")
        await pilot.press("2")
        await expect_text(pilot, "carol", "dave")
        (hour,) = app.session.history.hours(0, NOW)
        assert (hour.nodes, hour.queues, sum(hour.there.values())) == (1, 1, 32.0)
    app.session.history.save_when_due(NOW + 400)
    assert b'"there":{"a100":18' in memory_path().read_bytes()


async def test_two_answers_are_not_counted_twice_in_the_history() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "22:00: 7 of 10")
        await pilot.press("1", "5")
        await expect_text(pilot, "22:00: 7 of 10")
        (hour,) = app.session.history.hours(0, NOW)
        assert (hour.nodes, hour.queues) == (1, 1)


@pytest.mark.parametrize("size", [(80, 24), (20, 10), (60, 12), (300, 80)])
async def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await pilot.pause()
        assert text(app)


def test_an_older_recording_shows_its_bars(tmp_path: Path) -> None:
    """Before the curve, the question named no length of time."""
    value = {"now": USE, "rows": ({"gpu-type": "a100", "gpu_hours": 2.0},), "by": "gpu-type",
             "days": 30.0, "without_history": "", "taken": NOW}  # fmt: skip
    path = recorded(tmp_path, FeedQuestion("utilization", ("gpu-type",)), value)
    found = ReplayFeed(path).fetch(FeedQuestion("utilization", ("gpu-type", "7d"))).value
    assert [row.name for row in utilization_rows(found)] == ["a100"]
    assert found.curve == ()


def recorded(folder: Path, ask: FeedQuestion, value: object) -> Path:
    """Write a recording with one answer."""
    path = folder / "old.rec"
    answer = msgspec.Raw(msgspec.msgpack.encode(value))
    header = RecordingHeader("slurmkit-tui-recording 1", "lab", "alice")
    with gzip.open(path, "wb") as file:
        for record in (header, RecordedAnswer(ask, NOW, answer, "ledger", NOW)):
            data = msgspec.msgpack.encode(record)
            file.write(struct.pack(">I", len(data)) + data)
    return path


def test_an_answer_of_another_version_says_so(tmp_path: Path) -> None:
    value = {"rows": [{"cluster": "lab", "percent": 3}], "taken": NOW}
    path = recorded(tmp_path, FeedQuestion("gpus-now"), value)
    with pytest.raises(SlurmkitError, match="another version of slurmkit made this recording"):
        ReplayFeed(path).fetch(FeedQuestion("gpus-now"))


# The ledger


class ReadBooks:
    """Reads utilization from a ledger of its own, at a time.

    Attributes:
        scope: what the reader may see.
        cluster: the cluster on the screen.
        only_user: the user whose runs the ledger has; everybody's if empty.
        uses: what GPUs did, with the number of the run.
        nodes: the nodes of the cluster.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.scope = read.Scope()
        self.cluster = "lab"
        self.only_user = ""
        self.uses: list[tuple[int, GpuUse]] = []
        self.nodes: tuple[NodeRow, ...] = ()

    def __call__(self, *runs: Job, now: int, read_to: int, about: tuple[str, str]) -> Utilization:
        with open_for_writing() as ledger:
            write_books(ledger, list(runs), read_to=read_to)
            with ledger.transaction() as connection:
                connection.execute(update(clusters).values(only_user=self.only_user or None))
                for run_id, use in self.uses:
                    store_uses(connection, (use,), run_id=run_id)
            there = SimpleNamespace(
                ledger=lambda: nullcontext(ledger),
                usage=partial(read.usage, now=now, scope=self.scope),
                gpu_use_over_time=partial(read.gpu_use_over_time, scope=self.scope),
            )
            self._monkeypatch.setattr(composed, "_import_ledger", lambda: there)
            self._monkeypatch.setattr(composed, "_current_use", lambda _: (self.nodes, USE))
            self._monkeypatch.setattr(composed, "_cluster_name", lambda _: self.cluster)
            self._monkeypatch.setattr(read, "time", SimpleNamespace(time=lambda: float(now)))
            self._monkeypatch.setattr(composed, "time", SimpleNamespace(time=lambda: float(now)))
            return read_utilization(Cluster(FakeSlurm({})), *about)


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadBooks:
    monkeypatch.setattr("slurmkit.config.files.config_paths", lambda: [tmp_path / "none.toml"])
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("SLURMKIT_DB", raising=False)
    return ReadBooks(monkeypatch)


def test_the_ledger_gives_mean_numbers_of_gpus_by_type_and_hour(books: ReadBooks) -> None:
    now = BEGIN + 2 * DAY + 1800
    runs = [
        run("alice", now - 1800 - 90 * 60, now - 1800, gpus={"a100": 4}),
        run("bob", now - 1800, None, gpus={"h100": 2}),
    ]
    found = books(*runs, now=now, read_to=now - 60, about=("gpu-type", "24h"))
    assert len(found.curve) == 24
    held = {use.begin - now + 1800: use.held for use in found.curve}
    assert held[-2 * HOUR] == {"a100": 2.0}
    assert held[-HOUR] == {"a100": 4.0}
    assert held[0] == {"h100": 2.0}  # half an hour of it has passed
    assert held[-5 * HOUR] == {}  # none was held: the ledger has read that hour
    assert {row["gpu-type"]: row["gpu_hours"] for row in found.rows} == {"a100": 6.0, "h100": 1.0}
    assert "ingested 60 s before" in found.source


NAMES = """
[gpu.a100]
aliases = ["A100-SXM4"]
[gpu."a100_3g.20gb"]
part_of = "a100"
weight = 0.5
[partition.old]
gpu_type = "v100"
"""


def gpu_node(name: str, gpu_type: str | None, partition: str) -> NodeRow:
    shape = msgspec.structs.asdict(SHAPES[0]) | {"name": name, "partitions": (partition,)}
    gpus = (GpuCount(gpu_type, 4, 0),)
    return NodeRow(**shape, cpus_allocated=0, memory_allocated=0, gpus=gpus)


def test_gpu_types_of_the_ledger_have_the_names_of_the_nodes(
    books: ReadBooks, tmp_path: Path
) -> None:
    """The ledger knows configured names, and MIG slices by their weight."""
    (tmp_path / "none.toml").write_text(NAMES, "utf-8")
    now = BEGIN + 2 * DAY + 1800
    begin = now - 1800 - 2 * HOUR
    kinds = {"A100-SXM4": "gpu", "a100_3g.20gb": "gpu", "": "old"}
    books.nodes = tuple(
        gpu_node(f"c{at}", kind or None, partition)
        for at, (kind, partition) in enumerate(kinds.items())
    )
    found = books(
        *(run("alice", begin, begin + HOUR, gpus={kind: 2}, other={"partition": partition})
          for kind, partition in kinds.items()),
        now=now, read_to=now - 60, about=("gpu-type", "24h"),
    )  # fmt: skip
    use = next(each for each in found.curve if each.begin == begin)
    assert use.held == {"A100-SXM4": 2.0, "a100_3g.20gb": 2.0, "": 2.0}
    assert {row["gpu-type"] for row in found.rows} == {"A100-SXM4", "a100_3g.20gb", ""}


def test_hours_that_no_ingest_has_read_are_unknown(books: ReadBooks) -> None:
    now = BEGIN + 2 * DAY + 1800
    found = books(run("alice", now - 9 * HOUR, None, gpus={"a100": 4}), now=now,
                  read_to=now - 3 * HOUR, about=("partition", "24h"))  # fmt: skip
    assert max(use.begin for use in found.curve) == now - 1800 - 4 * HOUR
    curve = make_curve(found.curve, (), SPANS["24h"], now=now)
    assert curve.held["a100"][-4:] == (None, None, None, None)
    assert curve.held["a100"][-5] == 4.0


def test_thirty_days_are_drawn_by_day(books: ReadBooks) -> None:
    now = BEGIN + 35 * DAY + 6 * HOUR
    found = books(run("alice", now - 2 * DAY - 6 * HOUR, now - DAY - 6 * HOUR, gpus={"a100": 4}),
                  now=now, read_to=now, about=("account", "30d"))  # fmt: skip
    assert len(found.curve) == 30
    assert [use.held for use in found.curve[-3:]] == [{"a100": 4.0}, {}, {}]
    assert found.curve[0].begin == BEGIN + 6 * DAY


def test_used_gpus_are_those_that_were_measured(books: ReadBooks) -> None:
    now = BEGIN + 2 * DAY + 1800
    begin = now - 1800 - 2 * HOUR
    books.uses = [(1, use_of(*steady(begin, HOUR, busy=50), start=begin))]
    found = books(run("alice", begin, begin + HOUR, gpus={"a100": 2}), now=now, read_to=now - 60,
                  about=("gpu-type", "24h"))  # fmt: skip
    use = next(each for each in found.curve if each.begin == begin)
    assert use.held == {"a100": 2.0}
    assert use.measured == {"a100": pytest.approx(1.0, abs=0.02)}
    assert use.used == {"a100": pytest.approx(0.5, abs=0.02)}
    curve = make_curve(found.curve, (), SPANS["24h"], now=now)
    assert use_in_words(curve) == "50% used of the 50% measured"


@pytest.mark.parametrize("who", ["a user", "the only user of the ledger"])
def test_gpus_of_some_runs_are_not_shown_as_the_gpus_held(books: ReadBooks, who: str) -> None:
    now = BEGIN + 2 * DAY + 1800
    runs = [run(user, now - 9 * HOUR, None, gpus={"a100": 4}) for user in ("alice", "bob")]
    if who == "a user":
        books.scope = read.Scope(people=frozenset((1,)))
    else:
        books.only_user = "alice"
    found = books(*runs, now=now, read_to=now - 60, about=("gpu-type", "24h"))
    assert (found.curve, found.everybody) == ((), False)
    assert found.rows


def test_a_site_may_show_everybody_the_curve(books: ReadBooks) -> None:
    """Its rows stay those of the reader."""
    now = BEGIN + 2 * DAY + 1800
    runs = [run(user, now - 9 * HOUR, None, gpus={"a100": 4}) for user in ("alice", "bob")]
    books.scope = read.Scope(people=frozenset((1,)), with_totals=True)
    found = books(*runs, now=now, read_to=now - 60, about=("gpu-type", "24h"))
    assert found.curve[-2].held == {"a100": 8.0}
    assert [row["gpu_hours"] for row in found.rows] == [36.0]
    assert not found.everybody


def test_only_the_cluster_on_the_screen_counts(books: ReadBooks) -> None:
    now = BEGIN + 2 * DAY + 1800
    runs = [
        run("alice", now - HOUR, None, gpus={"a100": 4}),
        run("alice", now - HOUR, None, gpus={"a100": 3}, cluster=2),
    ]
    found = books(*runs, now=now, read_to=now - 60, about=("gpu-type", "24h"))
    assert [row["gpu_hours"] for row in found.rows] == [4.0]
    assert found.curve[-1].held == {"a100": 4.0}


def test_a_cluster_that_the_ledger_does_not_have_is_named(books: ReadBooks) -> None:
    books.cluster = "moon"
    found = books(now=BEGIN + DAY, read_to=BEGIN + DAY, about=("gpu-type", "24h"))
    assert "moon" in found.without_history
    assert found.curve == ()


def test_an_older_service_knows_nothing_of_use(
    books: ReadBooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BadInput("the ledger's service has no function 'gpu_use_over_time'")

    monkeypatch.setattr(read, "gpu_use_over_time", refuse)
    now = BEGIN + 2 * DAY + 1800
    found = books(run("alice", now - HOUR, None, gpus={"a100": 4}), now=now, read_to=now - 60,
                  about=("gpu-type", "24h"))  # fmt: skip
    assert (found.curve, len(found.rows), found.without_history) == ((), 1, "")


# Numbers by hour, and how they are drawn


def test_the_ledger_goes_before_the_screens_own_answers() -> None:
    history = HourlyGpus()
    for at, held in ((LAST - HOUR, 1), (LAST, 2), (LAST + 60, 4)):
        history.add_nodes(at, {"a100": 8}, {"a100": held})
        history.add_wanted(at, held)
        history.add_wanted(at, None)  # unknown: counts nothing
    ledger = [HeldGpus(LAST - HOUR, HOUR, {"a100": 7.5})]
    curve = make_curve(ledger, history.hours(0, NOW), Span(HOUR, 3, "3 hours"), now=NOW)
    assert curve.begins == (LAST - 2 * HOUR, LAST - HOUR, LAST)
    assert curve.held == {"a100": (None, 7.5, 3.0)}
    assert curve.there == (None, 8.0, 8.0)
    assert curve.wanted == (None, 1.0, 3.0)
    assert curve.used == (None, None, None)


def test_a_curve_begins_with_what_is_known() -> None:
    use = HeldGpus(LAST - 7 * HOUR, HOUR, {"a100": 7.5})
    hour = ObservedHour(LAST - 6 * HOUR, nodes=1, held={"a100": 2.0})
    for ledger, seen, first in (((use,), (hour,), 7), ((), (hour,), 6), ((), (), 23)):
        found = make_curve(ledger, seen, SPANS["24h"], now=NOW)
        assert found.begins == tuple(range(LAST - first * HOUR, LAST + 1, HOUR))
        assert found.is_known is bool(ledger or seen)
    now = ObservedHour(LAST, queues=1, wanted=3.0)
    assert len(make_curve((), (now,), SPANS["7d"], now=NOW).begins) == 4


async def test_the_cursor_stays_at_the_present_while_the_curve_grows() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test(size=(100, 30)) as pilot:
        await expect_text(pilot, "22:00: 7 of 10")
        plot = app.view.query_one(GpuPlot)
        for hours in (5, 6):
            plot.show(curve(held={"a100": (1.0,) * hours}))
            assert plot.cursor == hours - 1
        plot.mark(2)
        plot.show(curve(held={"a100": (1.0,) * 7}))
        assert plot.cursor == 2


def test_a_type_that_comes_later_was_zero_before() -> None:
    history = HourlyGpus()
    history.add_nodes(LAST, {"a100": 4}, {"a100": 4})
    history.add_nodes(LAST + 1, {"a100": 4, "h100": 4}, {"a100": 4, "h100": 4})
    curve = make_curve((), history.hours(0, NOW), Span(HOUR, 1, "1 hour"), now=NOW)
    assert curve.held == {"a100": (4.0,), "h100": (2.0,)}
    assert curve.held_at(0) == 6.0


def test_the_history_is_kept_for_each_cluster_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for cluster, wanted in (("lab", 3), ("big", 9)):
        history = HourlyGpus(keep=True)
        history.open(cluster)
        history.add_wanted(LAST, wanted)
        history.look(NOW)
        history.save_when_due(NOW)
    assert memory_path().stat().st_mode & 0o777 == 0o600
    again = HourlyGpus(keep=True)
    again.add_wanted(LAST - HOUR, 1)  # before the name of the cluster was known
    again.open("lab")
    assert [hour.wanted for hour in again.hours(0, NOW)] == [1.0, 3.0]
    assert again.since == NOW
    other = HourlyGpus()
    other.open("lab")
    assert other.hours(0, NOW) == ()
    other.add_wanted(LAST, 5)
    other.save()
    assert b"5" not in memory_path().read_bytes().replace(str(int(NOW)).encode(), b"")


def test_a_broken_file_or_a_full_disk_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    memory_path().parent.mkdir(parents=True)
    memory_path().write_text("[oops")
    history = HourlyGpus(keep=True)
    history.open("lab")
    history.add_wanted(LAST, 3)
    history.save()
    assert b"lab" in memory_path().read_bytes()
    memory_path().unlink()
    memory_path().mkdir()
    history.save()
    assert memory_path().is_dir()


def test_a_file_that_cannot_be_read_is_not_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = HourlyGpus(keep=True)
    history.open("lab")
    history.add_wanted(LAST, 3)
    history.save()
    kept = memory_path().read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(OSError(116, "stale")))
        other = HourlyGpus(keep=True)
        other.open("big")
        other.add_wanted(LAST, 5)
        other.save()
    assert memory_path().read_bytes() == kept
    memory_path().write_bytes(b'{"lab": {"hours": "\xff"}}')
    history.save()
    assert b"lab" in memory_path().read_bytes()


def test_of_two_apps_the_later_look_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    early, late = HourlyGpus(keep=True), HourlyGpus(keep=True)
    early.open("lab")
    late.open("lab")
    early.look(NOW - 100)
    late.look(NOW)
    late.save()
    early.save()
    again = HourlyGpus(keep=True)
    again.open("lab")
    assert again.since == NOW


def test_thirty_days_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    history = HourlyGpus(keep=True)
    history.open("lab")
    for hour in range(31 * 24):
        history.add_wanted(LAST - hour * HOUR, hour)
    history.save()
    again = HourlyGpus(keep=True)
    again.open("lab")
    assert len(again.hours(0, NOW)) == 30 * 24
    assert memory_path().stat().st_size < 100_000


def test_types_are_in_the_order_of_all_gpus_whatever_is_held() -> None:
    ledger = [HeldGpus(LAST, HOUR, {"h100": 4.0, "old": 1.0})]
    hour = Span(HOUR, 1, "1 hour")
    found = make_curve(ledger, (), hour, now=NOW, types={"h100": 4, "a100": 18})
    assert list(found.held) == ["a100", "h100", "old"]
    assert found.held["a100"] == (0.0,)


def test_days_are_those_of_the_person_at_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    try:
        now = 1_793_700_000.0  # 2026-11-03 02:40 there; the clocks went back on 1 November
        begins = SPANS["30d"].begins(now)
        assert len(begins) == 30
        assert begins[-1] < now < begins[-1] + DAY
        lengths = {end - begin for begin, end in pairwise(begins)}
        assert lengths == {DAY, DAY + HOUR}
        days = [stretch_in_words(GpuCurve(begins, DAY, {"a": (1.0,) * 30}, *[(None,) * 30] * 4), at)
                for at in (0, 29)]  # fmt: skip
        assert [words.partition(":")[0] for words in days] == ["Mon 05 Oct", "Tue 03 Nov"]
        utc_day = now // DAY * DAY  # of another screen's recording
        found = make_curve([HeldGpus(utc_day, DAY, {"a": 2.0})], (), SPANS["30d"], now=now)
        assert found.held["a"][-2:] in ((None, 2.0), (2.0, None))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_hours_are_those_of_a_zone_that_begins_them_at_half_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        history = HourlyGpus()
        for at, held in ((LAST + 1700, 1), (LAST + 1900, 5)):  # 1800 s later the next hour begins
            history.add_nodes(at, {"a": 8}, {"a": held})
        now = LAST + 2000.0
        curve = make_curve((), history.hours(0, now), SPANS["24h"], now=now)
        assert curve.held["a"][-2:] == (1.0, 5.0)
        assert curve.begins[-1] == LAST + 1800
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_older_answer_does_not_replace_the_last_number_of_wanted_gpus() -> None:
    history = HourlyGpus()
    history.add_wanted(NOW, 7)
    history.add_wanted(NOW - 60, 3)
    assert (history.wanted, history.wanted_taken) == (7, NOW)


@pytest.mark.parametrize("name", SPANS)
def test_the_length_of_an_answer_is_found_again(name: str) -> None:
    span = SPANS[name]
    for now in (NOW, NOW + 1800, LAST + HOUR - 1):
        assert span_of_days((now - span.begins(now)[0]) / DAY) is span
    assert span_of_days(30.0) is SPANS["30d"]  # of an older recording


def test_the_share_that_was_measured_is_told() -> None:
    half = curve(held={"a": (4.0, 4.0)}, used=(1.0, None), measured=(0.5, 0.0))
    assert use_in_words(half) == "50% used of the 25% measured"
    assert use_in_words(half, short=True) == "50% used"
    whole = curve(held={"a": (4.0, None)}, used=(3.0, None), measured=(1.0, None))
    assert use_in_words(whole) == "75% of held GPU time used"
    assert "4 GPUs held, 3 used, unknown wanted" in stretch_in_words(whole, 0)
    assert use_in_words(curve(held={"a": (4.0, 4.0)})) == ""


def test_what_was_measured_at_zero_is_zero_and_the_rest_unknown() -> None:
    ledger = [
        HeldGpus(LAST - HOUR, HOUR, {"a": 4.0}, {"a": 0.0}, {"a": 2.0}),
        HeldGpus(LAST, HOUR, {"a": 4.0}, None, {"a": 0.0}),
    ]
    found = make_curve(ledger, (), Span(HOUR, 3, "3 hours"), now=NOW)
    assert found.used == (None, 0.0, None)
    assert found.measured == (None, 0.5, 0.0)


def test_every_length_of_time_has_whole_stretches() -> None:
    for span in SPANS.values():
        begins = span.begins(NOW)
        assert len(begins) == span.stretches
        assert begins[-1] <= NOW < begins[-1] + span.step


def test_over_ssh_the_ledger_of_this_machine_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`U` showed the laptop's own job of that number."""
    monkeypatch.setattr(composed, "_current_use", lambda _: ((), USE))
    monkeypatch.setattr(composed, "_cluster_name", lambda _: "lab")
    set_default_cluster("lab")
    for ask in (
        composed.read_usage,
        composed.read_gpus_now,
        partial(composed.read_gpus_of_job, "86"),
    ):
        with pytest.raises(LedgerError, match="cannot be read over SSH"):
            ask()
    shown = read_utilization(Cluster(FakeSlurm({})), "gpu-type")
    assert "use slurmkit tui on the login node of lab" in shown.without_history
