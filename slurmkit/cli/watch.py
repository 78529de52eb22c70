"""`--watch`: the same picture again and again, in place on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import click

from slurmkit.errors import SlurmError
from slurmkit.text import printable

_LONGEST = 86400.0
_SHARE = 0.2  # of the time may be spent looking

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"

Picture = Callable[[], tuple[Sequence[str], str]]
"""Look, and return the lines to show and a line about them: their source and age."""
_Draw = Callable[[Sequence[str], str], None]


def watch(look: Picture, seconds: float, *, in_place: bool = True) -> None:
    """Look at something until Ctrl-C, which is the way to end it.

    A look that fails later than the first is told, and tried again. In a pipe one picture follows
    the other, with its line on standard error.

    Args:
        look: makes a picture.
        seconds: between the end of a look and the next one; not less than the site allows.
        in_place: whether a terminal shows only the newest picture.

    Raises:
        BadConfig: when section [poll] cannot be read.
        SlurmError: when the first look fails.
    """
    from slurmkit.config import load_section  # noqa: PLC0415 - only who watches needs it
    from slurmkit.jobs.poller import PollSection  # noqa: PLC0415

    floor = load_section("poll", PollSection).floor_seconds
    try:
        began = time.monotonic()
        shown = look()
        with _screen() if in_place and sys.stdout.isatty() else nullcontext(_append) as draw:
            while True:
                took = time.monotonic() - began
                wait = min(max(floor, seconds, took / _SHARE), _LONGEST)
                draw(shown[0], f"{shown[1]}; every {wait:.3g} s")
                time.sleep(wait)
                began = time.monotonic()
                shown = _again(look, shown)
    except KeyboardInterrupt:
        return


def _again(look: Picture, shown: tuple[Sequence[str], str]) -> tuple[Sequence[str], str]:
    try:
        return look()
    except SlurmError as error:
        before = shown[1].partition("; now: ")[0]
        return shown[0], f"{before}; now: {printable(str(error))}"


@contextmanager
def _screen() -> Iterator[_Draw]:
    """A screen of its own, so that what stood on the terminal comes back."""
    click.echo(_ENTER, nl=False)
    try:
        yield _redraw
    finally:
        click.echo(_LEAVE, nl=False)


def _append(lines: Sequence[str], note: str) -> None:
    if "; now: " not in note:
        click.echo("\n".join(lines))
    click.echo(note, err=True)


def _redraw(lines: Sequence[str], note: str) -> None:
    import shutil  # noqa: PLC0415 - a queue looked at once needs none

    size = shutil.get_terminal_size()
    room = max(1, size.lines - 1)
    hidden = f"{len(lines) - room} more below; " if len(lines) > room else ""
    text = "".join(f"{_CLEAR_LINE}{line}\n" for line in lines[:room])
    click.echo(f"{_HOME}{text}{_CLEAR_REST}", nl=False)
    click.echo(f"{hidden}{note}"[: size.columns], nl=False, err=True)
