"""Days and moments in a time zone: what `--from`, `--to` and `--since` mean."""

from __future__ import annotations

import os
from contextlib import suppress
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
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=self.rules)
        epoch = int(zoned.timestamp())
        try:
            self.show(epoch)
        except (ValueError, OverflowError) as error:
            raise BadInput(f"{text!r} is outside the years 1 to 9999 in {self.name}") from error
        return epoch

    def show(self, epoch: int) -> str:
        """Write epoch seconds as local date and time with the offset."""
        return datetime.fromtimestamp(epoch, self.rules).isoformat(sep=" ")


_UTC = Zone("UTC", UTC)


def zone(name: str | None = None) -> Zone:
    """Find a zone by its IANA name; without one the host's.

    Raises:
        BadInput: for a name that is no zone, with the nearest ones.
    """
    return _host_zone() if name is None else _named(name)


def zone_called(name: str) -> Zone:
    """Find a zone again by the name that a `Zone` has, which may be a file's.

    Raises:
        BadInput: where it is not there any more.
    """
    return _of_file(Path(name)) if name.startswith("/") else _named(name)


def zone_or_utc() -> Zone:
    """The host's zone; UTC where it is none of the database, such as TZ=EST5EDT,M3.2.0,M11.1.0."""
    try:
        return _host_zone()
    except BadInput:
        return _UTC


def _host_zone() -> Zone:
    from_environment = os.environ.get("TZ", "").removeprefix(":")
    if from_environment.startswith("/"):
        return _of_file(Path(from_environment))
    if from_environment:
        return _of_environment(from_environment)
    return _of_file(_LOCALTIME) if _LOCALTIME.exists() else _UTC


def _of_environment(name: str) -> Zone:
    try:
        return _named(name, source="TZ ")
    except BadInput as error:  # POSIX lets TZ hold rules in place of a name
        raise BadInput(f"{error}; or give one with --timezone") from error


def _of_file(path: Path) -> Zone:
    target = str(path.resolve())
    if "/zoneinfo/" in target:
        with suppress(BadInput):
            return _named(target.rpartition("/zoneinfo/")[2])
    try:
        with path.open("rb") as file:  # a copy, which does not say its name
            return Zone(str(path), ZoneInfo.from_file(file))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is no time zone file; name a zone with --timezone") from error


def _named(name: str, *, source: str = "time zone ") -> Zone:
    if name in _UTC_NAMES:
        return _UTC
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
