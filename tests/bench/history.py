"""Fill slurmdbd with a month of ended jobs, distinct, with steps, and rolled up for sreport."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from tests.bench.lab import Lab, Progress, say

JOBS = 1_000_000
_CHUNK = 50_000  # one transaction each: more would let the database's undo log grow
_PEOPLE, _ACCOUNTS = 200, 20
_DAY = 86400
_FIRST_ID = 10_000_000
_SQL = (Path(__file__).parent / "inside" / "history.sql").read_text("utf-8")


class Month(NamedTuple):
    """Epoch seconds, [begin, end)."""

    begin: int
    end: int

    @property
    def edges(self) -> tuple[str, str]:
        """Its dates, as reports take them."""
        first, last = (datetime.fromtimestamp(edge, UTC) for edge in self)
        return f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"


def month() -> Month:
    """The last whole month in UTC, which is the zone of the cluster."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    end = today.replace(day=1)
    begin = (end - timedelta(days=1)).replace(day=1)
    return Month(int(begin.timestamp()), int(end.timestamp()))


def fill(lab: Lab, jobs: int) -> Month:
    """Make what is missing of that many jobs in the last month, straight in the database.

    Some minutes for a million: slurmctld would take days, and they would have to run.
    """
    when = month()
    known = there(lab)
    if known < jobs:
        say(f"making {jobs - known:,} ended jobs of {_PEOPLE} people in slurmdbd's database")
        _meet_people(lab)
        _date_back(lab, when)
        told = Progress("jobs", jobs - known)
        for first in range(known, jobs, _CHUNK):
            last = min(first + _CHUNK, jobs) - 1
            _make(lab, when, (first, last), jobs)
            told.done(last + 1 - known)
        _roll_up(lab, when)
    return when


def _roll_up(lab: Lab, when: Month) -> None:
    """Day by day, with the last of which slurmdbd rolls up the month: for sreport."""
    days = range(when.begin, when.end, _DAY)
    told = Progress("days rolled up", len(days))
    for number, day in enumerate(days, 1):
        lab.run("sacctmgr", "-i", "roll", *Month(day, day + _DAY).edges, user="")
        told.done(number)


def there(lab: Lab) -> int:
    """How many of them there are."""
    return int(
        _sql(lab, f"SELECT count(*) FROM `{lab.name}_job_table` WHERE id_job >= {_FIRST_ID}")  # noqa: S608
    )


def _date_back(lab: Lab, when: Month) -> None:
    """Slurm rolls up, and reports, nothing of times before a cluster and its people were there."""
    at = when.begin - _DAY
    for change in (
        f"cluster_table SET creation_time = {at} WHERE name = '{lab.name}' AND creation_time",
        f"`{lab.name}_assoc_table` SET creation_time = {at} WHERE creation_time",
        f"`{lab.name}_event_table` SET time_start = {at} WHERE node_name = '' AND time_start",
    ):
        _sql(lab, f"UPDATE {change} > {at}")


def _make(lab: Lab, when: Month, some: tuple[int, int], jobs: int) -> None:
    text = _SQL.format(cluster=lab.name, first=some[0], last=some[1])
    _sql(lab, f"SET @begin = {when.begin}, @end = {when.end}, @rows = {jobs};\n{text}")


def _meet_people(lab: Lab) -> None:
    """People of some accounts; nobody need know their uids."""
    if (
        "bench00"
        in lab.run("sacctmgr", "-nP", "list", "account", "format=account", user="").split()
    ):
        return
    accounts = [f"bench{number:02}" for number in range(_ACCOUNTS)]
    known = lab.run("sacctmgr", "-nP", "list", "account", "format=account", user="").split()
    if accounts[0] in known:
        return
    lab.run("sacctmgr", "-i", "add", "account", f"name={','.join(accounts)}", user="")
    for number, account in enumerate(accounts):
        people = [f"bench{person:03}" for person in range(number, _PEOPLE, _ACCOUNTS)]
        words = ("add", "user", f"name={','.join(people)}", f"account={account}")
        lab.run("sacctmgr", "-i", *words, user="")


def _sql(lab: Lab, text: str) -> str:
    return lab.run("mariadb", "slurm", "-N", service="db", user="", stdin=text)
