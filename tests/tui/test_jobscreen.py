"""One job on a screen of its own, with its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_queue import Scene, job, running, text, until
from slurmkit_tui.jobscreen import JobScreen
from slurmkit_tui.log.view import LogView, shown, size_in_words


class Logging(Scene):
    """A cluster whose only job writes a file."""

    def _scontrol(self, argv: Sequence[str], stdin: str | None) -> str:
        if "batch_script" in argv:
            return "#!/bin/bash\n#SBATCH --time=1\npython train.py '[red]'\x1b[2J\n"
        return super()._scontrol(argv, stdin)


def scene(path: Path) -> Scene:
    return Logging([job("11", UserName="alice", STDOUT=str(path))])


def view(app) -> LogView:
    return app.screen.query_one("#log", LogView)


async def test_the_log_begins_at_its_end_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"line {number}\n" for number in range(500)))
    app = scene(path).app()
    async with running(app) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: "line 499" in text(app))
        assert "line 400" not in text(app)
        with path.open("a") as file:
            file.write("one more\x1b[31m red\n")
        await until(pilot, lambda: "one more red" in text(app))
        await pilot.press("g")
        await until(pilot, lambda: "line 0" in text(app))
        await pilot.press("pagedown", "k")
        await until(pilot, lambda: "line 30" in text(app))
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
        await until(pilot, lambda: "step 1999" in text(app))
        await pilot.press("E")
        await until(pilot, lambda: "Traceback" in text(app))
        assert view(app).lines.found == "\n".join(lines).index("Traceback")
        await pilot.press("n")
        await until(pilot, lambda: "error again" in text(app))
        await pilot.press("N")
        await until(pilot, lambda: "Traceback" in text(app))
        await pilot.press("slash", *"step", "space", *"77$", "enter")
        await until(pilot, lambda: "not found" in text(app))  # it lies before this page
        await pilot.press("g", "slash", *"77$", "enter")
        await until(pilot, lambda: view(app).lines.found == "\n".join(lines).index("step 77"))


async def test_a_missing_log_and_a_bad_search_are_told(tmp_path: Path) -> None:
    app = scene(tmp_path / "none").app()
    async with running(app) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: "cannot read" in text(app))
        await pilot.press("slash", "(", "enter")
        await until(pilot, lambda: "is no regular expression" in text(app))


async def test_tabs(tmp_path: Path) -> None:
    app = scene(tmp_path / "none").app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: "squeue at" in text(app))
        await pilot.press("s")
        await until(pilot, lambda: "python train.py '[red]'\\x1b[2J" in text(app))
        await pilot.press("2")  # no view is switched below
        assert isinstance(app.screen, JobScreen)
        await pilot.press("c")
        await until(pilot, lambda: "scancel 11" in text(app))


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
    assert shown(line) == seen


@pytest.mark.parametrize(("size", "words"), [(0, "0 B"), (1500, "1.5 kB"), (1 << 30, "1.07 GB")])
def test_sizes(size: int, words: str) -> None:
    assert size_in_words(size) == words


async def test_steps_of_a_running_job() -> None:
    text_of = Path(__file__).parents[1] / "recorded" / "24.11"
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
        await until(pilot, lambda: "sacct and sstat at" in text(app))
        busy = next(line for line in text(app).splitlines() if " sh " in line)
        assert busy.split()[2] == "RUNNING"
        assert "3.2 MiB" in busy
        assert "2 GiB" in busy
        assert "evil\\n[b]" in text(app)


async def test_facts_keep_up_while_they_are_looked_at(tmp_path: Path) -> None:
    cluster = scene(tmp_path / "none")
    app = cluster.app(interval=0.2)
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen) and "squeue at" in text(app))
        cluster.jobs[:] = [job("11", UserName="alice", TimeLimit="7-07:07:07")]
        await until(pilot, lambda: "7-07:07:07" in text(app))
        await pilot.press("s")
        await until(pilot, lambda: "python train.py" in text(app))
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
        await until(pilot, lambda: "7-07:07:07" in text(app))


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_the_line_to_search_in_is_left_before_the_job(key: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("one line\n")
    app = scene(tmp_path / "out").app()
    async with running(app) as pilot:
        await pilot.press("l")
        await until(pilot, lambda: "one line" in text(app))
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
