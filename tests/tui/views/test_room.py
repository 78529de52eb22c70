"""The room of the screen is used: the map's legend, indented texts, wide columns."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fake_gpus import Recorded
from fake_queue import NOW, Scene, expect_text, job, running, table, text, until
from hypothesis import given
from hypothesis import strategies as st
from sample_app import sample_app
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.views.gpus import gpu_label, label_width, pack_entries
from slurmkit_tui.widgets.dialogs import TextDialog
from slurmkit_tui.widgets.wrapped_text import TextLine, plain_lines, two_columns, wrap_lines
from textual.content import Content

from slurmkit.diagnose.model import Explanation
from slurmkit.state.gpumap_model import Gpu

ANSWER = "job 11 waits because " + "of many other jobs and " * 10 + "that is the end of the answer"


@pytest.mark.parametrize("first", ["queue", "nodes"])
async def test_the_legend_names_all_holders_where_lines_are_free(first: str) -> None:
    """It was laid out before the view had a size."""
    app = Recorded().app(first)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.site is not None)
        await pilot.press("3")
        await until(pilot, lambda: getattr(app.view, "_map", None) is not None)
        drawn = app.view._map
        await expect_text(pilot, *(f"{each.sign} {each.name}: " for each in drawn.legend))
        assert " more" not in text(app)


async def test_the_legend_stands_beside_the_map_on_a_wide_screen() -> None:
    app = Recorded().app("gpus")
    async with app.run_test(size=(200, 60)) as pilot:
        await until(pilot, lambda: bool(app.view.grid.lines))
        legend, grid = app.view.query_one("#legend"), app.view.grid
        await until(pilot, lambda: legend.region.y == grid.region.y)
        assert legend.region.x == grid.region.right
        assert "a alice:" in next(line for line in text(app).splitlines() if "NODE" in line)
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: legend.region.y == grid.region.bottom)


async def test_on_a_wide_screen_each_gpu_has_its_holder_job_or_use() -> None:
    app = sample_app("gpus")

    def of_c2() -> list[str]:
        line = next((line for line in text(app).splitlines() if line[1:3] == "c2"), "")
        return line.split()[2:10]

    async with app.run_test(size=(200, 30)) as pilot:
        await until(pilot, lambda: of_c2() == ["vogel"] * 4 + ["peggy"] * 4)
        await pilot.press("b", "b")
        jobs = ["647"] * 4 + ["662_3", "662_0", "662_1", "662_2"]
        await until(pilot, lambda: of_c2() == jobs)
        await pilot.press("b")
        uses = ["89%", "96%", "95%", "95%", *["!0%"] * 4]
        await until(pilot, lambda: of_c2() == uses)
        row, head = (next(each for each in text(app).splitlines() if mark in each)
                     for mark in (" c2 ", "NODE"))  # fmt: skip
        assert head.index(" 7") == row.rindex(" !0%")
        await pilot.click(app.view.grid, offset=(row.index("95%") + 1, 2))
        assert app.view.current.index == 2
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: app.view.grid.size.width == 100)
        await pilot.pause()
        await until(pilot, lambda: all(len(sign) == 1 for sign in of_c2()))


def test_names_that_would_look_alike_keep_their_letters() -> None:
    assert label_width("user", ["alice", "bob"]) == 5
    assert label_width("user", ["数据", "bob"]) == 4
    assert label_width("job", ["12345678_12 alice", "12345678_99 alice"]) == 11
    assert label_width("user", ["student-of-physics-1", "student-of-physics-2"]) == 0
    assert label_width("account", [""]) == 0
    unnamed = Gpu(node="c1", index=0, type="a100", state="held", job_id="1", user="")
    assert gpu_label(unnamed, "user", {}) == ""


async def test_the_legend_is_laid_out_again_on_another_screen() -> None:
    app = Recorded().app("gpus")
    async with app.run_test(size=(120, 24)) as pilot:
        await until(pilot, lambda: app.view._map is not None)
        for size in ((60, 12), (120, 24), (200, 50)):
            await pilot.resize_terminal(*size)
            await until(pilot, lambda width=size[0]: app.view.size.width == width)
            await pilot.pause()
            legend = app.query_one("#legend").render().plain.splitlines()
            assert max(map(len, map(str.rstrip, legend))) <= size[0] - 2
        assert not any(" more" in line for line in legend)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 80),
       st.integers(1, 6))  # fmt: skip
def test_a_legend_holds_what_fits_and_counts_the_rest(
    sizes: list[int], width: int, most: int
) -> None:
    names = [f"{'x' * (size - 1)}." for size in sizes]
    lines = [line.plain for line in pack_entries([Content(f"{n}   ") for n in names], width, most)]
    shown = sum(line.count(".") for line in lines)
    assert len(lines) <= most
    assert all(len(line.rstrip()) <= width for line in lines[:-1])
    if shown < len(names):
        assert lines[-1].endswith(f"and {len(names) - shown} more")
    else:
        assert "more" not in lines[-1]


def test_the_rest_of_a_long_value_stands_below_its_begin() -> None:
    lines = two_columns([("Reason", "word " * 20), ("", "one more")])
    shown = [line.plain.rstrip() for line in wrap_lines(lines, 40)]
    assert shown[0].startswith("Reason  word")
    assert len(shown) > 2
    assert all(line.startswith(" " * 8) and line[8] != " " for line in shown[1:])
    assert max(map(len, shown)) <= 40


@given(st.text(alphabet="ab 数", max_size=120), st.integers(0, 30), st.integers(4, 60))
def test_a_wrapped_text_keeps_its_words(words: str, indent: int, width: int) -> None:
    shown = wrap_lines([TextLine(Content(words), indent)], width)
    assert "".join("".join(line.plain.split()) for line in shown) == "".join(words.split())


async def test_the_answer_of_why_has_the_whole_width_and_reasons_are_indented() -> None:
    app = Scene([job("11", UserName="alice")]).app()
    live = app.session.feed.fetch
    reasons = ("a reason of many words " * 9 + "END",)
    told = Explanation(
        job_id="11", name="x", user="alice", account="vision", partition="gpu", state="PENDING",
        answer=ANSWER, notes=reasons, source="squeue", taken=NOW,
    )  # fmt: skip

    def fetch(ask: FeedQuestion) -> FeedAnswer:
        return FeedAnswer(told, "squeue", NOW, 0.0) if ask.what == "why" else live(ask)

    async with running(app, size=(80, 24)) as pilot:
        app.session.feed.fetch = fetch  # type: ignore[method-assign]
        await pilot.press("w")
        await expect_text(pilot, "END")
        lines = [line[1:] for line in text(app).splitlines()]
        begin = next(at for at, line in enumerate(lines) if line.startswith("job 11 waits"))
        assert not lines[begin + 1].startswith(" ")
        note = next(at for at, line in enumerate(lines) if line.startswith("Note"))
        assert lines[note].index("a reason") == len("Note  ")
        assert lines[note + 1].startswith("      ")
        assert lines[note + 1][6] != " "


async def test_a_dialog_indents_the_rest_of_a_long_value() -> None:
    app = Scene([job("11", UserName="alice")]).app()
    async with running(app, size=(60, 24)) as pilot:
        rows = [("Reason", "word " * 30 + "END")]
        await app.push_screen(TextDialog("Node c1", two_columns(rows)))
        await expect_text(pilot, "END")
        lines = [line for line in text(app).splitlines() if "word" in line]
        columns = {line.index("word") for line in lines}
        assert len(lines) > 1
        assert len(columns) == 1
        app.push_screen(TextDialog("Nothing", plain_lines("")))


async def test_a_wide_screen_shows_long_texts_in_full() -> None:
    nodes = "c[1-9,11-19,21-29,31-39,41-49]x"
    app = Scene([job("11", UserName="alice", NodeList=nodes)]).app()
    async with running(app, size=(200, 30)) as pilot:
        assert nodes in text(app)
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: nodes not in text(app))
        assert max(map(len, text(app).splitlines())) <= 100


async def test_columns_stay_apart_and_within_the_screen() -> None:
    app = Scene([job("11", UserName="alice", NodeList="n" * 400)]).app()
    async with running(app, size=(200, 30)):
        assert table(app).max_scroll_x == 0
        widths = [cell.width for cell in table(app)._cells]
        assert 1 + sum(widths) + 2 * (len(widths) - 1) <= 200


async def test_the_line_below_is_shortened_by_whole_parts() -> None:
    app = Scene([job("11", UserName="alice")]).app(read_only=True)
    async with running(app, size=(140, 24)) as pilot:
        shown = []
        for width in (140, 70, 56, 40):
            await pilot.resize_terminal(width, 24)
            await until(pilot, lambda width=width: app.size.width == width)
            app._update_status_lines()
            await until(pilot, lambda: "…" not in text(app).splitlines()[-2])
            shown.append(text(app).splitlines()[-2].strip())
        assert "5 Slurm calls" in shown[0] or "Slurm call" in shown[0]
        assert all(longer.startswith(shorter[:20]) for longer, shorter in pairwise(shown))
        assert "READ-ONLY" in shown[-1]
        assert "ago" in shown[-1]


def test_entries_that_no_line_has_room_for_need_not_be_made() -> None:
    """The map of 8,000 jobs stood still for 66 ms while `b` was pressed."""
    entries = [Content(f"x job{n}: 1   ") for n in range(400)]
    for most in (1, 2, 5):
        whole = pack_entries(entries, 80, most)
        fitting = entries[: most * 11]
        assert whole == pack_entries(fitting, 80, most, len(entries) - len(fitting))
