"""One job on a screen of its own, with its log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_queue import expect_text, job, running, text, until
from job_scene import Logging, scene, view
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.widgets.log_view import safe_line

from slurmkit.formats.memory import format_bytes


async def test_the_log_begins_at_its_end_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number}\n" for number in range(500)))
    app = scene(path).app()
    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "line 499")
        assert "line 400" not in text(app)
        with path.open("a") as file:
            file.write("one more\x1b[31m red\n")
        await expect_text(pilot, "one more red")
        await pilot.press("g")
        await expect_text(pilot, "line 0")
        await pilot.press("pagedown", "k")
        await expect_text(pilot, "line 30")
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_search_and_the_first_error(tmp_path: Path) -> None:
    path = tmp_path / "out"
    lines = [f"step {number}" for number in range(2000)]
    lines[1000] = "Traceback (most recent call last):"
    lines[1500] = "ValueError: error again"
    path.write_text("\n".join(lines))
    app = scene(path).app()
    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "step 1999")
        await pilot.press("E")
        await expect_text(pilot, "Traceback")
        assert view(app).lines.found == "\n".join(lines).index("Traceback")
        await pilot.press("n")
        await expect_text(pilot, "error again")
        await pilot.press("N")
        await expect_text(pilot, "Traceback")
        await pilot.press("slash", *"step", "space", *"77$", "enter")
        await expect_text(pilot, "not found")  # it lies before this page
        await pilot.press("g", "slash", *"77$", "enter")
        await until(pilot, lambda: view(app).lines.found == "\n".join(lines).index("step 77"))


async def test_an_empty_log_is_said_to_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.touch()
    async with running(scene(path).app()) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "the file is empty")
        path.write_text("first line\n")
        await expect_text(pilot, "first line", "100% of")
        assert "is empty" not in text(pilot.app)


async def test_a_missing_log_and_a_bad_search_are_told(tmp_path: Path) -> None:
    app = scene(tmp_path / "none").app()
    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "cannot read")
        await pilot.press("slash", "(", "enter")
        await expect_text(pilot, "is no regular expression")
        await asyncio.sleep(1.5)  # the file is read again meanwhile
        await expect_text(pilot, "is no regular expression")
        await pilot.press("escape")
        await expect_text(pilot, "cannot read")


async def test_tabs(tmp_path: Path) -> None:
    app = scene(tmp_path / "none").app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await expect_text(pilot, "squeue at")
        await pilot.press("s")
        await expect_text(pilot, "python train.py '[red]'\\x1b[2J")
        await pilot.press("c")
        await expect_text(pilot, "scancel 11")


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"10%\r 50%\r100%\r", "100%"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"a\tb", "a        b"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\x1b]0;title\x07", "\\x1b]0;title\\x07"),
    ],
)
def test_lines_are_safe_to_show(line: bytes, seen: str) -> None:
    assert safe_line(line) == seen


@pytest.mark.parametrize(("size", "words"), [(0, "0 B"), (1536, "1.5 KiB"), (1 << 30, "1 GiB")])
def test_sizes(size: int, words: str) -> None:
    assert format_bytes(size) == words


async def test_steps_of_a_running_job() -> None:
    text_of = Path(__file__).parents[2] / "recorded" / "24.11"
    said = (text_of / "uses-running.txt").read_text()

    def sacct(argv: Sequence[str], stdin: str | None) -> str:
        mark = next(a for a in argv if a.startswith("--delimiter=")).removeprefix("--delimiter=")
        return said.replace("\x1frecorded", mark) if "-X" not in argv else ""

    cluster = Logging([job("11", UserName="alice")])
    answers = {"sacct": sacct, "sstat": lambda *_: (text_of / "uses-sstat.txt").read_text()}
    cluster.slurm._answers.update(answers)
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("enter", "T")
        await expect_text(pilot, "sacct and sstat at")
        busy = next(line for line in text(app).splitlines() if " sh " in line)
        assert busy.split()[2] == "RUNNING"
        assert "3.195 MiB" in busy
        assert "2 GiB" in busy
        assert "evil\\n[b]" in text(app)


async def test_facts_keep_up_while_they_are_looked_at(tmp_path: Path) -> None:
    cluster = scene(tmp_path / "none")
    app = cluster.app(interval=0.2)
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and "squeue at" in text(app))
        cluster.jobs[:] = [job("11", UserName="alice", TimeLimit="7-07:07:07")]
        await expect_text(pilot, "7-07:07:07")
        await pilot.press("s")
        await expect_text(pilot, "python train.py")
        await until(pilot, lambda: not app.workers)  # one may have been on its way
        asked = len(cluster.slurm.asked)
        await pilot.pause(0.5)
        assert not [argv for argv in cluster.slurm.asked[asked:] if "11" in " ".join(argv)]


async def test_a_job_is_asked_anew_after_a_change(tmp_path: Path) -> None:
    cluster = scene(tmp_path / "none")
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and "squeue at" in text(app))
        cluster.jobs[:] = [job("11", UserName="alice", TimeLimit="7-07:07:07")]
        app.run_commands([("scancel", "12")])
        await expect_text(pilot, "7-07:07:07")


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_the_line_to_search_in_is_left_before_the_job(key: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("one line\n")
    app = scene(tmp_path / "out").app()
    async with running(app) as pilot:
        await pilot.press("l")
        await expect_text(pilot, "one line")
        await pilot.press("slash", *"two", key)
        await until(pilot, lambda: app.focused is view(app).lines)
        await pilot.press(key)
        await until(pilot, lambda: len(app.screen_stack) == 1)


async def test_over_a_job_a_dialog_changes_nothing_at_the_foot(tmp_path: Path) -> None:
    app = scene(tmp_path / "out").app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("a")
        await until(pilot, lambda: len(app.screen_stack) == 3)
        assert not app.check_action("filter", ())
        assert app.check_action("propose", ("cancel",))
