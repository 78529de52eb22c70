"""Parse local times without an offset, as sacct prints them, in a time zone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import product

from slurmkit_accounting.calendar import Zone
from slurmkit_accounting.sacct.columns import UnreadableValue
from slurmkit_accounting.sacct.values import LATEST_TIME, is_no_time, parse_time

_MINUTE = len("2026-10-25T02:30")
_LENGTH = len("2026-10-25T02:30:00")
_MINUTE_SECONDS = 60


class LocalTimes:
    """Parser of epoch seconds and of `YYYY-MM-DDTHH:MM:SS` in a zone.

    Attributes:
        twice: parsed texts that the clock showed twice (at the end of summer time), each with the
            second time it may mean. They are parsed as the first.
    """

    def __init__(self, zone: Zone) -> None:
        self.twice: dict[str, int] = {}
        self._zone = zone
        self._minutes: dict[str, tuple[int, int]] = {}

    def __call__(self, text: str) -> int | None:
        """Parse a time as epoch seconds.

        Raises:
            ValueError: for an invalid time, and for one that the clock skipped.
        """
        if text.isdecimal() or is_no_time(text):
            return parse_time(text)
        minute, seconds = text[:_MINUTE], text[_MINUTE + 1 :]
        if len(text) != _LENGTH or not seconds.isdecimal():
            raise ValueError(text)
        if minute not in self._minutes:
            self._minutes[minute] = self._read(minute)
        first, second = self._minutes[minute]
        if not 0 <= first <= LATEST_TIME - _MINUTE_SECONDS:
            raise ValueError(text)
        if first != second:
            self.twice[text] = second + int(seconds)
        return first + int(seconds)

    def _read(self, minute: str) -> tuple[int, int]:
        """Return the first and the second time a minute may mean, in epoch seconds."""
        local = datetime.fromisoformat(minute)
        times = [local.replace(tzinfo=self._zone.rules, fold=fold) for fold in (0, 1)]
        first, second = (int(time.timestamp()) for time in times)
        shown = datetime.fromtimestamp(first, self._zone.rules).replace(tzinfo=None)
        if shown != local:
            raise UnreadableValue(
                f"the clock skipped {minute} in {self._zone.name}; check --timezone"
            )
        return first, second

    @staticmethod
    def settle(
        times: Sequence[tuple[int | None, int | None]], elapsed: int | None, suspended: int
    ) -> list[int | None]:
        """Choose the meaning of times that the clock showed twice.

        Args:
            times: Submit, Start and End, each as the first and the second time it may mean.
            elapsed: End less Start less the time suspended, in seconds; None if not known.
            suspended: seconds.

        Returns:
            The first three with that elapsed time and in order; else with that elapsed time; else
            in order; else the first of each.
        """

        def rank(choice: Iterable[int | None]) -> tuple[bool, bool]:
            submit, start, end = choice
            known = [time for time in (submit, start, end) if time is not None]
            length = None if start is None or end is None else end - start - suspended
            return elapsed is not None and length != elapsed, known != sorted(known)

        pairs = (dict.fromkeys(pair) for pair in times)
        choices: list[tuple[int | None, ...]] = list(product(*pairs))
        return list(min(choices, key=rank))
