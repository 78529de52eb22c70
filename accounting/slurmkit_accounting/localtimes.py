"""Local times without an offset, as sacct prints them, in a time zone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import product

from slurmkit_accounting.columns import Said
from slurmkit_accounting.readers import epoch, says_no_time
from slurmkit_accounting.zones import Zone

_MINUTE = len("2026-10-25T02:30")
_LENGTH = len("2026-10-25T02:30:00")


class LocalTimes:
    """Reads epoch seconds, or `YYYY-MM-DDTHH:MM:SS` in a zone, as epoch seconds.

    Attributes:
        twice: of the times that were read, those that the clock showed twice, with the second
            time they may mean; they are read as the first.
    """

    def __init__(self, zone: Zone) -> None:
        self.twice: dict[str, int] = {}
        self._zone = zone
        self._minutes: dict[str, tuple[int, int]] = {}

    def __call__(self, text: str) -> int | None:
        """Raise ValueError for what is no time, and for one that the clock left out."""
        if text.isdecimal() or says_no_time(text):
            return epoch(text)
        minute, seconds = text[:_MINUTE], text[_MINUTE + 1 :]
        if len(text) != _LENGTH or not seconds.isdecimal():
            raise ValueError(text)
        if minute not in self._minutes:
            self._minutes[minute] = self._read(minute)
        first, second = self._minutes[minute]
        if first != second:
            self.twice[text] = second + int(seconds)
        return first + int(seconds)

    def _read(self, minute: str) -> tuple[int, int]:
        given = datetime.fromisoformat(minute)
        times = [given.replace(tzinfo=self._zone.rules, fold=fold) for fold in (0, 1)]
        first, second = (int(time.timestamp()) for time in times)
        shown = datetime.fromtimestamp(first, self._zone.rules).replace(tzinfo=None)
        if shown != given:
            raise Said(f"the clock never showed {minute} in {self._zone.name}; is that the zone?")
        return first, second

    @staticmethod
    def settle(
        told: Sequence[tuple[int | None, int | None]], elapsed: int | None, suspended: int
    ) -> list[int | None]:
        """Choose what times that the clock showed twice mean.

        Args:
            told: Submit, Start and End, each as the first and the second time it may mean.
            elapsed: End less Start less what it was suspended, in seconds; None where not known.
            suspended: seconds.

        Returns:
            The first that are in order and of that length; else in order; else the first of each.
        """

        def rank(times: Iterable[int | None]) -> tuple[bool, bool]:
            submit, start, end = times
            known = [time for time in (submit, start, end) if time is not None]
            length = None if start is None or end is None else end - start - suspended
            return elapsed is not None and length != elapsed, known != sorted(known)

        pairs = (dict.fromkeys(pair) for pair in told)
        choices: list[tuple[int | None, ...]] = list(product(*pairs))
        return list(min(choices, key=rank))
