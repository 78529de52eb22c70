"""The mails about jobs, as text and as HTML that mail programs show.

All text from users is escaped. The HTML holds nothing remote, no script and no picture: bars are
table cells with a background, since mail programs remove SVG and most of CSS.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from slurmkit.formats.display import format_quantity, printable
from slurmkit_accounting.notify.run_summary import RunSummary, UseLine

if TYPE_CHECKING:
    from jinja2 import Template

_BAR = 20  # characters of a bar in text
_LOW, _FULL = 0.25, 0.95  # shares of what was asked for: less is wasted, more may be too little
_MOST_NAME = 60
_OUTCOME_COLOURS = {
    "COMPLETED": "#2e7d32",
    "FAILED": "#b3261e",
    "TIMEOUT": "#b26a00",
    "OUT_OF_MEMORY": "#8e24aa",
    "CANCELLED": "#616161",
}
_OTHER_COLOUR = "#37474f"


class FailedPart(msgspec.Struct, frozen=True):
    """A task of an array that did not end well: its id, and how it ended."""

    job_id: str
    words: str


class JobLetter(msgspec.Struct, frozen=True, kw_only=True):
    """What a mail about one job or array says.

    Attributes:
        title: what happened, e.g. `Job 12 (train) failed`.
        is_bad: whether it did not end well.
        words: how it ended, in one sentence, as `slurmkit why` says it.
        advice: what to do.
        details: further facts, a line each.
        first_error: the most telling line of its log; empty if the service could not read it.
        log_trouble: why its log could not be read, where that is nothing usual.
        facts: name and value of what else is known, as texts.
        tally: number of tasks by state, of an array.
        failures: the first tasks that failed.
        more_failures: how many more failed.
        command: what shows more.
    """

    title: str
    is_bad: bool = False
    words: str = ""
    advice: str = ""
    details: tuple[str, ...] = ()
    first_error: str = ""
    log_trouble: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    tally: Mapping[str, int] = {}
    failures: tuple[FailedPart, ...] = ()
    more_failures: int = 0
    summary: RunSummary = RunSummary()
    command: str = ""


class DigestLine(msgspec.Struct, frozen=True):
    """One job in the mail of a day; all fields as texts."""

    job_id: str
    name: str
    outcome: str
    elapsed: str
    gpu_hours: str
    cost: str
    is_bad: bool


def short_name(name: str) -> str:
    """Return a job's name, escaped and cut to what a subject line holds."""
    shown = printable(name)
    return shown if len(shown) <= _MOST_NAME else f"{shown[: _MOST_NAME - 1]}…"


def cost_words(summary: RunSummary) -> str:
    """Return GPU-hours and cost in words; empty if neither is known."""
    words = []
    if summary.gpu_hours:
        words.append(format_quantity(summary.gpu_hours, "GPU-hour"))
    if summary.cost:
        words.append(f"{summary.cost} (prices since {summary.prices_since})")
    return ", ".join(words)


def letter_as_text(letter: JobLetter) -> str:
    """Return the mail as plain text."""
    intro = [f"{printable(letter.words)}."] * bool(letter.words)
    intro += [f"What to do: {printable(letter.advice)}."] * bool(letter.advice)
    intro += [f"First error in its log: {printable(letter.first_error)}"] * bool(letter.first_error)
    intro += [f"Its log could not be read: {printable(letter.log_trouble)}"] * bool(
        letter.log_trouble
    )
    intro += [f"  {printable(each)}" for each in letter.details]
    failed = [f"  {each.job_id}: {printable(each.words)}" for each in letter.failures]
    failed += [f"  and {letter.more_failures:,} more"] * bool(letter.more_failures)
    parts = (
        ("", intro),
        ("Tasks:", [f"  {number:>7,} {state}" for state, number in letter.tally.items()]),
        ("Failed first:", failed),
        ("Used of what was asked for:", [*map(_text_bar, letter.summary.uses)]),
        ("", [f"{name}: {printable(value)}" for name, value in _more_facts(letter)]),
        ("", [f"More: {letter.command}", "These mails: slurmkit notify settings"]),
    )
    blocks = [
        "\n".join([*([heading] if heading else []), *lines]) for heading, lines in parts if lines
    ]
    return "\n\n".join([f"{letter.title}.", *blocks]) + "\n"


def letter_as_html(letter: JobLetter) -> str:
    """Return the mail as a self-contained HTML page."""
    total = sum(letter.tally.values())
    return mail_template("job.html").render(
        letter=letter,
        bars=[(use, _percent(use.share), _colour(use)) for use in letter.summary.uses],
        tally=[
            (state, number, max(round(100 * number / total), 1), outcome_colour(state))
            for state, number in letter.tally.items()
        ],
        facts=_more_facts(letter),
    )


def digest_as_text(lines: list[DigestLine], title: str) -> str:
    """Return the mail of a day as plain text."""
    width = max((len(each.job_id) for each in lines), default=0)
    shown = [
        f"  {each.job_id:<{width}}  {short_name(each.name)}: {printable(each.outcome)}"
        + "".join(f", {value}" for value in (each.elapsed, each.gpu_hours, each.cost) if value)
        for each in lines
    ]
    return "\n".join(
        [f"{title}.", "", *shown, "", "Why a job failed: slurmkit why JOB_ID",
         "These mails: slurmkit notify settings", ""]
    )  # fmt: skip


def digest_as_html(lines: list[DigestLine], title: str) -> str:
    """Return the mail of a day as a self-contained HTML page."""
    return mail_template("digest.html").render(lines=lines, title=title, short_name=short_name)


def outcome_colour(state: str) -> str:
    """Return the colour of a state in charts."""
    return _OUTCOME_COLOURS.get(state, _OTHER_COLOUR)


def _more_facts(letter: JobLetter) -> list[tuple[str, str]]:
    summary = letter.summary
    more = (
        ("Asked for", summary.asked),
        ("Would have been enough", summary.fitted),
        ("Cost", cost_words(summary)),
    )
    return [*letter.facts, *((name, value) for name, value in more if value)]


def _text_bar(use: UseLine) -> str:
    full = min(round(use.share * _BAR), _BAR)
    return f"  {use.name:<7} [{'#' * full}{'.' * (_BAR - full)}] {use.share:>4.0%}  {use.used}"


def _percent(share: float) -> int:
    return min(max(round(share * 100), 1 if share > 0 else 0), 100)


def _colour(use: UseLine) -> str:
    """Return the colour of a bar: red where next to nothing was left, orange for little use."""
    if use.name in {"Memory", "Time"} and use.share >= _FULL:
        return "#b3261e"
    return "#b26a00" if use.share < _LOW and use.name != "Time" else "#1565c0"


@cache
def mail_template(name: str) -> Template:
    """Load a template of a mail; all that it shows is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  on use

    environment = Environment(
        loader=PackageLoader("slurmkit_accounting.notify", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    return environment.get_template(name)
