"""Days and moments in a time zone: what `--from`, `--to` and `--since` mean."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

from slurmkit.errors import BadInput

_UTC_NAMES = frozenset(("UTC", "Etc/UTC", "UTC0", "Z"))
_LOCALTIME = Path("/etc/localtime")


class Zone(msgspec.Struct, frozen=True):
    """A time zone and the name it is called by."""

    name: str
    rules: tzinfo

    def epoch(self, text: str) -> int:
        """Epoch seconds of a date (its midnight) or date-time; an offset in it wins over the zone.

        A local time that summer time skips or repeats means its first occurrence.

        Raises:
            BadInput: for any other text.
        """
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise BadInput(
                f"{text!r} is not a date: write YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS"
            ) from error
        return int((moment if moment.tzinfo else moment.replace(tzinfo=self.rules)).timestamp())

    def show(self, epoch: int) -> str:
        """Write epoch seconds as local date and time with the offset."""
        return datetime.fromtimestamp(epoch, self.rules).isoformat(sep=" ")


def zone(name: str | None = None) -> Zone:
    """Find a zone by its IANA name; without one the host's.

    Raises:
        BadInput: for a name that is no zone, with the nearest ones.
    """
    return _named(name) if name else _host_zone()


def _host_zone() -> Zone:
    from_environment = os.environ.get("TZ", "").removeprefix(":")
    if from_environment:
        return _named(from_environment, source="TZ ")
    target = str(_LOCALTIME.resolve())
    if "/zoneinfo/" in target:
        return _named(target.rpartition("/zoneinfo/")[2])
    if not _LOCALTIME.exists():
        return Zone("UTC", UTC)
    with _LOCALTIME.open("rb") as file:  # a copy, which does not say its name
        return Zone(str(_LOCALTIME), ZoneInfo.from_file(file))


def _named(name: str, *, source: str = "time zone ") -> Zone:
    if name in _UTC_NAMES:
        return Zone("UTC", UTC)
    try:
        return Zone(name, ZoneInfo(name))
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        known = available_timezones()
        if not known:
            raise BadInput(
                f"{source}{name!r}: this machine has no time zone database; install tzdata, or"
                " use --timezone UTC"
            ) from error
        near = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "name one as in Europe/Berlin"
        raise BadInput(f"{source}{name!r} is not in the time zone database; {hint}") from error
