"""`--watch`: the same output again and again, in place on a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import click

from slurmkit.cli.tables import terminal_size
from slurmkit.config.files import load_section
from slurmkit.errors import SlurmError
from slurmkit.formats.display import printable

_LONGEST_WAIT = 86400.0  # seconds between two reads
_READING_SHARE = 0.2  # part of the time that reads may take
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
ReadLines = Callable[[], tuple[Sequence[str], str]]
"""Reads something; returns the lines to show, and a line about their source and age."""
_DrawLines = Callable[[Sequence[str], str], None]


def watch_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--watch` to a command, which gets it as `seconds`."""
    return click.option(
        "--watch",
        "seconds",
        is_flag=False,
        flag_value=10.0,
        type=float,
        metavar="[SECONDS]",
        help="Refresh every 10 s, or every SECONDS, until q or Ctrl-C; the site may set a longer"
        " interval.",
    )(command)


def show_repeatedly(look: ReadLines, seconds: float, *, in_place: bool = True) -> None:
    """Read and show something again and again until Ctrl-C, or q on a terminal.

    If a later read fails, the error is shown and the read is tried again. In a pipe each output
    follows the one before, with its note on standard error.

    Args:
        look: reads the lines and the note to show.
        seconds: from the end of one read to the next; not less than the site allows.
        in_place: whether a terminal shows only the newest output.

    Raises:
        BadConfig: when section [poll] cannot be read.
        SlurmError: when the first read fails.
    """
    from slurmkit.jobs.poller import PollSection

    floor = load_section("poll", PollSection).floor_seconds
    in_place = in_place and sys.stdout.isatty()
    try:
        began = time.monotonic()
        lines, note = look()
        with (
            _alternate_screen() if in_place else nullcontext(_append) as draw,
            _keys_at_once() if in_place and sys.stdin.isatty() else nullcontext(_sleep) as wait,
        ):
            while True:
                took = time.monotonic() - began
                pause = min(max(floor, seconds, took / _READING_SHARE), _LONGEST_WAIT)
                draw(lines, f"{note}; every {pause:.3g} s")
                if wait(pause):
                    return
                began = time.monotonic()
                try:
                    lines, note = look()
                except SlurmError as error:
                    note = f"{note.partition('; now: ')[0]}; now: {printable(str(error))}"
    except KeyboardInterrupt:
        return


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keys_at_once() -> Iterator[Callable[[float], bool]]:
    """Have the terminal pass on each key at once; yield a wait that q ends, and then says so."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield _wait_for_q
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait_for_q(seconds: float) -> bool:
    """Wait, and return whether q was typed meanwhile; other keys are ignored."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0]:
            typed = os.read(sys.stdin.fileno(), 1)
            if typed in (b"q", b"Q", b""):  # empty: the terminal is gone
                return True
    return False


@contextmanager
def _alternate_screen() -> Iterator[_DrawLines]:
    """Switch to the terminal's alternate screen, and back at the end."""
    click.echo(_ENTER, nl=False)
    try:
        yield _redraw
    finally:
        click.echo(_LEAVE, nl=False)


def _append(lines: Sequence[str], note: str) -> None:
    """Print the output below the last one; after an error only its note."""
    if "; now: " not in note:
        click.echo("\n".join(lines))
    click.echo(note, err=True)


def _redraw(lines: Sequence[str], note: str) -> None:
    """Print the output over the last one, cut to the terminal's height."""
    size = terminal_size()
    room = max(1, size.lines - 1)
    hidden = f"{len(lines) - room} more below; " if len(lines) > room else ""
    text = "".join(f"{_CLEAR_LINE}{line}\n" for line in lines[:room])
    click.echo(f"{_HOME}{text}{_CLEAR_REST}", nl=False)
    click.echo(f"q leaves; {hidden}{note}"[: size.columns], nl=False, err=True)
