"""`--watch`: the same picture again and again."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from waiting import PATIENCE

from slurmkit.cli import queue as module
from slurmkit.cli.queue import show_repeatedly
from slurmkit.errors import ControllerDown

Look = Callable[[], tuple[Sequence[str], str]]
SQUEUE = """
import sys
from slurmkit.testing import squeue_text
print(squeue_text(sys.argv, [{"JobArrayID": "7"}]), end="")
"""


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every wait takes no time; the third is ended by Ctrl-C."""
    made: list[float] = []

    def sleep(seconds: float) -> None:
        made.append(seconds)
        if len(made) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(module.time, "sleep", sleep)
    return made


def looks(*answers: str | Exception) -> Look:
    rest: Iterator[str | Exception] = iter(answers)

    def look() -> tuple[Sequence[str], str]:
        answer = next(rest)
        if isinstance(answer, Exception):
            raise answer
        return [f"line {answer}"], f"taken at {answer}"

    return look


def test_in_a_pipe_one_picture_follows_the_other(
    waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    show_repeatedly(looks("1", "2", "3"), 5)
    shown = capsys.readouterr()
    assert shown.out == "line 1\nline 2\nline 3\n"
    assert shown.err.splitlines() == [f"taken at {n}; every 5 s" for n in (1, 2, 3)]


@pytest.mark.parametrize("seconds", [0, 0.1, -1, float("nan")])
def test_there_is_a_floor(seconds: float, waits: list[float]) -> None:
    show_repeatedly(looks("1", "2", "3"), seconds)
    assert waits == [2.0] * 3


def test_a_site_sets_the_floor(
    waits: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[poll]\nfloor_seconds = 30\n", "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    show_repeatedly(looks("1", "2", "3"), 5)
    assert waits == [30] * 3


def test_a_slow_slurmctld_is_asked_less_often(
    waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 8))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    show_repeatedly(looks("1", "2", "3"), 5)
    assert waits == [40] * 3


def test_a_failure_is_told_and_tried_again(
    waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    show_repeatedly(looks("1", ControllerDown("down\x1b"), "3"), 5)
    shown = capsys.readouterr()
    assert shown.out == "line 1\nline 3\n"
    assert shown.err.splitlines() == [
        "taken at 1; every 5 s",
        "taken at 1; now: down\\x1b; every 5 s",
        "taken at 3; every 5 s",
    ]


def test_two_failures_do_not_add_up(waits: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    show_repeatedly(looks("1", ControllerDown("a"), ControllerDown("b")), 5)
    assert capsys.readouterr().err.splitlines()[-1] == "taken at 1; now: b; every 5 s"


def test_the_first_failure_ends_it(waits: list[float]) -> None:
    with pytest.raises(ControllerDown):
        show_repeatedly(looks(ControllerDown("down")), 5)
    assert waits == []


def test_what_does_not_fit_on_the_screen_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, notes = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", notes)
    monkeypatch.setenv("LINES", "4")
    monkeypatch.setenv("COLUMNS", "30")
    module._redraw([str(n) for n in range(10)], "a note that is longer than the screen")
    assert re.findall(r"\d+$", screen.getvalue(), re.MULTILINE) == ["0", "1", "2"]
    assert notes.getvalue() == "7 more below; a note that is l"


def test_on_a_terminal_it_draws_in_place_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """The real thing: what stood on the terminal comes back, and it is no failure."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!{sys.executable}\n{SQUEUE}", "utf-8")
    squeue.chmod(0o755)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "slurmkit", "queue", "--watch"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "xterm"},
        start_new_session=True,
        # A suite that runs in the background of a script ignores Ctrl-C, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    os.close(theirs)
    try:
        shown = read_until(ours, "every 10 s")
        process.send_signal(signal.SIGINT)
        shown += read_until(ours, "\x1b[?1049l")
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert shown.startswith("\x1b[?1049h")
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
    assert "interrupted" not in shown
    assert "\x1b[32mRUNNING" in shown


def read_until(terminal: int, words: str) -> str:
    shown = ""
    deadline = time.monotonic() + PATIENCE
    while words not in shown and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode()
    assert words in shown
    return shown
