"""How slurmctld is getting on: what sdiag(1) prints of its two schedulers and its threads."""

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


class Cycles(msgspec.Struct, frozen=True):
    """One scheduler's cycles; times in seconds, None where sdiag does not say.

    Attributes:
        last: what the last cycle took.
        mean: what one took in the mean.
        longest: the longest.
        count: cycles so far.
        depth: jobs looked at: by backfill in its last cycle, by the main one in the mean.
        queue: jobs that waited at the last cycle.
        when: epoch seconds of the last cycle; of backfill only.
    """

    last: float | None = None
    mean: float | None = None
    longest: float | None = None
    count: int | None = None
    depth: int | None = None
    queue: int | None = None
    when: int | None = None


class Controller(msgspec.Struct, frozen=True):
    """Slurmctld at one moment.

    Attributes:
        at: epoch seconds of the figures.
        since: of their last reset, from which the means count.
        threads: that serve requests now.
        agents: messages to nodes that wait to be sent.
    """

    at: int | None
    since: int | None
    threads: int | None
    agents: int | None
    main: Cycles
    backfill: Cycles


def parse_sdiag(text: str) -> Controller:
    """Read what sdiag prints (src/sdiag/sdiag.c, 22.05 to 26.05).

    Raises:
        SlurmError: when it is something else.
    """
    head, *rest = _SECTION.split(text)
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    if "Main schedule statistics" not in sections:
        raise SlurmError("sdiag does not print the scheduler's statistics")
    times, first = _times(head), _numbers(head)
    main = _numbers(sections["Main schedule statistics"])
    filled = sections.get("Backfilling stats", "")
    return Controller(
        times.get("sdiag output"),
        times.get("Data since"),
        first.get("Server thread count"),
        first.get("Agent queue size"),
        _cycles(main, main.get("Mean depth cycle"), None),
        _backfill(_numbers(filled), _times(filled).get("Last cycle when")),
    )


def _backfill(found: dict[str, int], when: int | None) -> Cycles:
    return _cycles(found, found.get("Last depth cycle (try sched)"), when or None)


def _cycles(found: dict[str, int], depth: int | None, when: int | None) -> Cycles:
    return Cycles(
        _seconds(found.get("Last cycle")),
        _seconds(found.get("Mean cycle")),
        _seconds(found.get("Max cycle")),
        found.get("Total cycles"),
        depth,
        found.get("Last queue length"),
        when,
    )


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6


def _numbers(text: str) -> dict[str, int]:
    return {each["name"]: int(each["value"]) for each in _NUMBER.finditer(text)}


def _times(text: str) -> dict[str, int]:
    return {each["name"]: int(each["at"]) for each in _WHEN.finditer(text)}
