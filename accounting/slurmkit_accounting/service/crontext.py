"""Times of the configuration: five cron fields, in a zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger

from slurmkit.errors import BadConfig
from slurmkit_accounting.zones import Zone

_SECOND = timedelta(seconds=1)


def trigger(key: str, text: str, zone: Zone) -> CronTrigger:
    """Read minute, hour, day, month and weekday, as cron has them.

    Where both a day and a weekday are given, both must be so.

    Args:
        key: of the configuration, for the error.
        text: five fields.
        zone: whose clock is meant.

    Raises:
        BadConfig: when it is none.
    """
    fields = text.split()
    if len(fields) == 5:
        fields[4] = ",".join(map(_from_monday, fields[4].split(",")))
    try:
        return CronTrigger.from_crontab(" ".join(fields), zone.rules)
    except ValueError as error:
        raise BadConfig(
            f"[ledger.schedule] {key}: {text!r} is not a time ({error}); write minute, hour, day,"
            " month and weekday, such as '*/10 * * * *' or '0 6 3 * *'"
        ) from error


def passed(when: CronTrigger, after: int, until: int) -> Iterator[datetime]:
    """The times of a trigger later than `after` and not later than `until`, epoch seconds."""
    at = datetime.fromtimestamp(after, UTC) + _SECOND
    last = datetime.fromtimestamp(until, UTC)
    while (found := when.get_next_fire_time(None, at)) is not None and found <= last:
        yield found
        at = found.astimezone(UTC) + _SECOND


def months_before(when: CronTrigger, after: int, until: int) -> list[str]:
    """The month before each of those times, `YYYY-MM`, each once."""
    times = passed(when, after, until)
    return sorted({f"{moment.replace(day=1) - timedelta(days=1):%Y-%m}" for moment in times})


def _from_monday(part: str) -> str:
    """APScheduler counts the days of a week from Monday, cron from Sunday; both know names."""
    days, slash, step = part.partition("/")
    return re.sub(r"[0-7]", lambda found: str((int(found[0]) + 6) % 7), days) + slash + step
