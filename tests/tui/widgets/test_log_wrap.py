"""Long lines of a log, wrapped."""

from __future__ import annotations

from pathlib import Path

from fake_queue import expect_text, running, text, until
from job_scene import scene, view
from slurmkit_tui.widgets.log_pages import LogPage, PageLine, first_lines, last_lines

LONG = "CANCELLED AT 2026-11-23 " + "x" * 200 + " DUE TO TIME LIMIT"


async def test_long_lines_are_wrapped_and_cut_again(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(f"first\n{LONG}\nlast\n")
    app = scene(path).app()
    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "CANCELLED AT")
        assert "DUE TO TIME LIMIT" not in text(app)
        await pilot.press("W")
        await expect_text(pilot, "·  wrapped", "first", "last")
        assert "DUE TO TIME LIMIT" in text(app).replace("\n", "")
        await pilot.press("W")
        await until(pilot, lambda: "·  wrapped" not in text(app))
        assert "DUE TO" not in text(app)


async def test_pages_of_wrapped_lines_leave_no_line_out(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"<{number}> {LONG}\n" for number in range(100)))
    app = scene(path).app()
    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "<99>")
        await pilot.press("W")
        await until(pilot, lambda: "<99>" in text(app) and "<80>" not in text(app))
        await pilot.press("g")
        await expect_text(pilot, "<0>")
        seen = [line.begin for line in view(app).lines.page.lines]
        for _ in range(3):
            before = view(app).lines.page
            await pilot.press("pagedown")
            await until(pilot, lambda page=before: view(app).lines.page != page)
            assert view(app).lines.page.begin == before.end
        await pilot.press("pageup", "pageup", "pageup")
        await until(pilot, lambda: [each.begin for each in view(app).lines.page.lines] == seen)
        await pilot.press("E", "slash", *"<50>", "enter")
        await expect_text(pilot, "<50>")


def test_a_page_is_cut_to_the_lines_that_fit() -> None:
    page = LogPage((PageLine(0, b"a"), PageLine(2, b"bb"), PageLine(5, b"ccc")), 9, 9)
    assert first_lines(page, 3, len) == LogPage(page.lines[:2], 5, 9)
    assert last_lines(page, 5, len) == LogPage(page.lines[1:], 9, 9)
    assert first_lines(page, 1, lambda _text: 7) == LogPage(page.lines[:1], 2, 9)
    assert last_lines(page, 1, lambda _text: 7) == LogPage(page.lines[2:], 9, 9)
