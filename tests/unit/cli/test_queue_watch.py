"""`--watch`: the same output again and again."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from jobs_lab import FakeJobs
from waiting import PATIENCE

from slurmkit.cli import watch as module
from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.cli.watch import show_repeatedly
from slurmkit.errors import ControllerDown
from slurmkit.state.gpumap_model import Gpu, GpuMap
from slurmkit.state.nodes import parse_nodes

Look = Callable[[], tuple[Sequence[str], str]]
NODE = (
    "NodeName=c1 CoresPerSocket=8 CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.5 Gres=gpu:a100:2"
    " GresUsed=gpu:a100:0 RealMemory=1000 AllocMem=0 Sockets=2 State=IDLE ThreadsPerCore=1"
    " TmpDisk=0 Partitions=gpu CfgTRES=cpu=16,mem=1000M,gres/gpu=2 AllocTRES=\n"
)
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
    assert notes.getvalue() == "q leaves; 7 more below; a note"


@pytest.fixture
def on_terminal(tmp_path: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """`slurmkit queue --watch` on a terminal of its own, and the terminal's other end."""
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
    before = termios.tcgetattr(theirs)
    try:
        yield ours, process
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_on_a_terminal_it_draws_in_place_and_ctrl_c_ends_it(
    on_terminal: tuple[int, subprocess.Popen[bytes]],
) -> None:
    """The real thing: what stood on the terminal comes back, and it is no failure."""
    terminal, process = on_terminal
    shown = read_until(terminal, "every 10 s")
    process.send_signal(signal.SIGINT)
    shown += read_until(terminal, "\x1b[?1049l")
    assert process.wait(PATIENCE) == 0
    assert shown.startswith("\x1b[?1049h")
    assert shown.endswith("\x1b[?25h\x1b[?1049l")
    assert "interrupted" not in shown
    assert "\x1b[32mRUNNING" in shown
    assert "q leaves; " in shown


def test_on_a_terminal_q_leaves_and_other_keys_do_not(
    on_terminal: tuple[int, subprocess.Popen[bytes]],
) -> None:
    terminal, process = on_terminal
    read_until(terminal, "every 10 s")
    os.write(terminal, b"x\x1b[Aq")
    assert process.wait(PATIENCE) == 0
    assert read_until(terminal, "\x1b[?1049l").count("x") == 0


@pytest.mark.parametrize("words", [["gpus"], ["gpus", "--free"], ["job", "7"]])
def test_gpus_and_jobs_can_be_watched(
    words: list[str],
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lab = FakeJobs()
    lab.runs_now("7")
    monkeypatch.setattr("slurmkit.cli.jobs.Cluster", lab.cluster)
    monkeypatch.setattr("slurmkit.cli.cluster_state.Cluster", lab.cluster)
    rows = parse_nodes(NODE)
    gpus = (Gpu(node="c1", index=0, type="a100", state="free"),)
    full = GpuMap(gpus, rows, ("odd\x1b",), 0.0, 0.1)
    monkeypatch.setattr("slurmkit.cli.cluster_state.read_gpus", lambda _: full)
    assert run_to_exit_code(cli, words) == 0
    once = capsys.readouterr()
    assert once.out
    assert run_to_exit_code(cli, [*words, "--watch"]) == 0
    watched = capsys.readouterr()
    assert waits == [10.0] * 3
    assert watched.out == once.out * 3
    assert watched.err.count("; every 10 s\n") == 3
    assert ("warning: odd\\x1b" in once.err) == (words[0] == "gpus")


def read_until(terminal: int, words: str) -> str:
    shown = ""
    deadline = time.monotonic() + PATIENCE
    while words not in shown and time.monotonic() < deadline:
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode()
    assert words in shown
    return shown
