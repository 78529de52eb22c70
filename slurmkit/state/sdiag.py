"""The output of sdiag(1): statistics of slurmctld's two schedulers and of its threads."""

from __future__ import annotations

import re

import msgspec

from slurmkit.errors import SlurmError

_SECTION = re.compile(r"^(Main schedule statistics|Main scheduler exit|Backfilling stats|"
                      r"Backfill exit|Latency for|Remote Procedure)", re.MULTILINE)  # fmt: skip
_NUMBER = re.compile(r"^\s*(?P<name>\S[^:\n]*?):[ \t]+(?P<value>\d+)[ \t]*$", re.MULTILINE)
_WHEN = re.compile(
    r"^\s*(?P<name>\S[^:\n]*?)(?: at|:)?\s+\w{3} [^\n]*\((?P<at>\d+)\)", re.MULTILINE
)


class SchedulerCycles(msgspec.Struct, frozen=True):
    """The cycles of one scheduler; None where sdiag prints no number.

    Attributes:
        last: seconds of the last cycle.
        mean: mean seconds of a cycle.
        longest: seconds of the longest cycle.
        count: cycles so far.
        depth: jobs tried: by backfill in its last cycle, by the main scheduler in the mean.
        queue: pending jobs at the last cycle.
        when: epoch seconds of the last cycle; backfill only.
    """

    last: float | None = None
    mean: float | None = None
    longest: float | None = None
    count: int | None = None
    depth: int | None = None
    queue: int | None = None
    when: int | None = None


class SdiagStatistics(msgspec.Struct, frozen=True):
    """The statistics of slurmctld at one moment.

    Attributes:
        at: epoch seconds of the statistics.
        since: epoch seconds of their last reset, the begin of the means.
        threads: threads that serve requests now.
        agents: messages to nodes that wait to be sent.
    """

    at: int | None
    since: int | None
    threads: int | None
    agents: int | None
    main: SchedulerCycles
    backfill: SchedulerCycles


def parse_sdiag(text: str) -> SdiagStatistics:
    """Parse the output of sdiag (src/sdiag/sdiag.c, 22.05 to 26.05).

    Raises:
        SlurmError: when the text has no statistics.
    """
    head, *rest = _SECTION.split(text)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    if "Main schedule statistics" not in sections:
        raise SlurmError("sdiag does not print the scheduler's statistics")
    times, first = _times(head), _numbers(head)
    main = _numbers(sections["Main schedule statistics"])
    backfill_text = sections.get("Backfilling stats", "")
    backfill = _numbers(backfill_text)
    when = _times(backfill_text).get("Last cycle when") or None
    return SdiagStatistics(
        times.get("sdiag output"),
        times.get("Data since"),
        first.get("Server thread count"),
        first.get("Agent queue size"),
        _cycles(main, main.get("Mean depth cycle"), None),
        _cycles(backfill, backfill.get("Last depth cycle (try sched)"), when),
    )


def _cycles(numbers: dict[str, int], depth: int | None, when: int | None) -> SchedulerCycles:
    return SchedulerCycles(
        _seconds(numbers.get("Last cycle")),
        _seconds(numbers.get("Mean cycle")),
        _seconds(numbers.get("Max cycle")),
        numbers.get("Total cycles"),
        depth,
        numbers.get("Last queue length"),
        when,
    )


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _numbers(text: str) -> dict[str, int]:
    return {each["name"]: int(each["value"]) for each in _NUMBER.finditer(text)}


def _times(text: str) -> dict[str, int]:
    return {each["name"]: int(each["at"]) for each in _WHEN.finditer(text)}
