"""The mails about idle GPUs, as text and as HTML with a strip of samples for each GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from slurmkit.state.gpu_use import CurvePoint
from slurmkit_accounting.gpu_use.summaries import GpuUse
from slurmkit_accounting.notify.job_letter import mail_template

_CELLS = 36  # of a strip
_MOST_STRIPS = 8
_WINDOWS = 3  # lengths of the judged window that a strip shows
# Colours that can be distinguished on a light and on a dark ground; the first also without samples.
_NONE = "#e4e7eb"
_LEGEND = (
    ("no samples", _NONE),
    ("idle", "#ef9a3c"),
    ("up to 25 %", "#9cc9f5"),
    ("up to 75 %", "#4a9be8"),
    ("more", "#1257a8"),
)


class GpuStrip(msgspec.Struct, frozen=True):
    """What the samples of one GPU say, as cells of equal length.

    Attributes:
        name: node and GPU.
        words: its mean utilization in the judged window.
        shares: mean utilization of each cell, percent; None without samples.
    """

    name: str
    words: str
    shares: tuple[float | None, ...]


class ReclaimLetter(msgspec.Struct, frozen=True, kw_only=True):
    """What a mail about idle GPUs says.

    Attributes:
        title: what is the matter.
        colour: of its heading.
        seen: the samples in words.
        words: what follows, or what was done.
        commands: what can be done, and how.
        notes: further remarks.
        strips: the samples of the first GPUs.
        more_gpus: how many more GPUs have samples.
        begin: when the strips begin, in words.
        end: when they end.
    """

    title: str
    colour: str
    seen: tuple[str, ...]
    words: str
    commands: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    strips: tuple[GpuStrip, ...] = ()
    more_gpus: int = 0
    begin: str = ""
    end: str = ""


def begin_of_strips(start: int, window_begin: int, at: int) -> int:
    """Return when the strips begin: some windows before the judgement, within the run."""
    return max(start, at - _WINDOWS * (at - window_begin))


def make_strips(
    uses: Collection[GpuUse], begin: int, window_begin: int, at: int
) -> tuple[tuple[GpuStrip, ...], int]:
    """Return the strips of a run's GPUs, and how many more GPUs there are.

    Args:
        uses: their summaries, with curves.
        begin: epoch seconds at which the strips begin.
        window_begin: when the judged window begins.
        at: when it ends.
    """
    with_curves = [use for use in uses if use.curve is not None]
    numbered = sorted(with_curves, key=lambda use: (use.node, use.gpu.index or 0, use.gpu.key))
    strips = [_strip(use, begin, window_begin, at) for use in numbered[:_MOST_STRIPS]]
    return tuple(strips), max(len(numbered) - _MOST_STRIPS, 0)


def _strip(use: GpuUse, begin: int, window_begin: int, at: int) -> GpuStrip:
    points = [] if use.curve is None else list(use.curve.points())
    step = 1 if use.curve is None else use.curve.step
    length = max((at - begin) / _CELLS, 1.0)
    shares = []
    for cell in range(_CELLS):
        first = begin + cell * length
        inside = (p for p in points if p.at < first + length and p.at + step > first)
        shares.append(_mean(inside))
    judged = _mean(point for point in points if window_begin <= point.at < at)
    index = use.gpu.key if use.gpu.index is None else str(use.gpu.index)
    return GpuStrip(
        f"{use.node} GPU {index}",
        "no samples" if judged is None else f"{judged:.1f} %",
        tuple(shares),
    )


def _mean(points: Iterable[CurvePoint]) -> float | None:
    known = [(each.utilization, each.samples) for each in points if each.utilization is not None]
    samples = sum(each for _, each in known)
    return sum(share * each for share, each in known) / samples if samples else None


def letter_as_text(letter: ReclaimLetter) -> str:
    """Return the mail as plain text."""
    commands = "".join(f"{what}\n  {command}\n" for what, command in letter.commands)
    notes = "".join(f"\n{note}\n" for note in letter.notes)
    seen = "\n".join(letter.seen)
    return f"{seen}\n\n{letter.words}\n\n{commands}{notes}"


def letter_as_html(letter: ReclaimLetter, below: float) -> str:
    """Return the mail as a self-contained HTML page.

    Args:
        letter: what it says.
        below: a GPU is idle below this utilization, percent.
    """

    def colour_of(share: float | None) -> str:
        if share is None:
            return _NONE
        bounds = (below, 25.0, 75.0)
        return _LEGEND[1 + sum(share >= bound for bound in bounds)][1]

    return mail_template("reclaim.html").render(
        letter=letter, colour_of=colour_of, legend=_LEGEND, none_colour=_NONE
    )
