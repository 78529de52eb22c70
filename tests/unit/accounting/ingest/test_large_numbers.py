"""Numbers of sacct that cannot be true, and what a report says of what it does not know."""

from __future__ import annotations

import io
import time
from calendar import timegm

import pytest
from fake_sacct import FakeSacct, job, step
from report_books import BEGIN, run, write_books
from slurmkit_accounting import read
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.report_options import OutputFormat, show_report
from slurmkit_accounting.ingest.enter import IngestCounts
from slurmkit_accounting.ingest.file import SacctFile, ingest_file
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.steps import combine_steps
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs
from slurmkit_accounting.ledger.schema.usage import USAGE_COLUMNS, usage_keys
from slurmkit_accounting.sacct.steps import StepRow
from slurmkit_accounting.usage.bins import UsageRun, find_power
from slurmkit_accounting.usage.bins_numpy import UsageSums
from slurmkit_accounting.usage.tables import MOST_STORED, USAGE_TABLES
from sqlalchemy import select, update

from slurmkit.errors import LedgerError

pytestmark = pytest.mark.sql

HOUR = 3600
MONTH = {"begin": "2026-11-01", "end": "2026-12-01", "timezone": "UTC"}
# The 1st of the last month that is over, in which tasks begin in one hour and end in the next.
_NOW = time.gmtime(time.time() - 32 * 86400)
FIRST = timegm((_NOW.tm_year, _NOW.tm_mon, 1, 0, 50, 0))


def tasks(number: int, **facts: object) -> list[dict]:
    return [job(n, FIRST - 60, FIRST, FIRST + 1200, **facts) for n in range(1, number + 1)]


def assert_whole(ledger: Ledger) -> None:
    """All sums are whole numbers, and those of the runs."""
    with ledger.transaction() as connection:
        assert verify(connection).wrong == []
        for table in USAGE_TABLES:
            for row in connection.execute(select(*(table.c[name] for name in USAGE_COLUMNS))):
                assert {type(value) for value in row} == {int}


def test_energy_of_rapl_counters_that_wrapped_is_unknown(ledger):
    """49 tasks of 72 MW at a month's begin were beyond 64 bits."""
    slurm = FakeSacct(*tasks(49, ConsumedEnergyRaw=72_000_000 * 1200))
    assert ingest(ledger, slurm, since=FIRST - HOUR).entered.new == 49
    assert_whole(ledger)
    (row,) = read.usage(ledger, begin="2020-01-01", end="2090-01-01", by="").rows
    assert (row["jobs"], row["energy_kwh"], row["energy_measured"]) == (49, None, None)


@pytest.mark.parametrize(("watts", "known"), [(19_999, True), (20_000, False)])
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_node_takes_less_than_twenty_kilowatts(watts, known, nodes):
    facts = (1, "a", 1, "v", "p", "q", "COMPLETED", 0, 0, 100, nodes, 4, 0, "cpu=4")
    run_ = UsageRun(*facts, energy_joules=watts * nodes * 100)
    assert (find_power(run_) != (0, 0)) == known


def test_a_row_whose_usage_would_not_fit_is_rejected_alone(ledger):
    """As many nodes as no machine has, each with a power that a node may have."""
    wild = {"AllocNodes": 6000, "ConsumedEnergyRaw": 6000 * 19_000 * 1200}
    good = job(900, FIRST - 60, FIRST, FIRST + 1200, User="bob")
    done = ingest(ledger, FakeSacct(*tasks(49, **wild), good), since=FIRST - HOUR).entered
    assert done.new + done.rejected == 50
    assert 0 < done.rejected < 49
    assert "would not fit into 64 bits" in done.why
    assert_whole(ledger)
    rows = read.usage(ledger, begin="2020-01-01", end="2090-01-01", by="user").rows
    assert "bob" in {row["user"] for row in rows}


WILD = {"AllocNodes": 6000, "ConsumedEnergyRaw": 6000 * 19_000 * 1200}


def fill_energy(ledger: Ledger) -> None:
    """Set the energy of all usage to the largest number that is stored."""
    with ledger.transaction() as connection:
        for table in USAGE_TABLES:
            connection.execute(update(table).values(energy_millijoules=MOST_STORED - 1))


def stored_energy(ledger: Ledger) -> set[int]:
    with ledger.transaction() as connection:
        return {
            value
            for table in USAGE_TABLES
            for value in connection.scalars(select(table.c.energy_millijoules))
        }


def test_a_row_that_does_not_fit_to_what_is_stored_is_rejected_alone(ledger):
    slurm = FakeSacct(*tasks(5, **WILD))
    ingest(ledger, slurm, since=FIRST - HOUR)
    fill_energy(ledger)
    more = [job(n, FIRST - 60, FIRST, FIRST + 1200, **WILD) for n in range(90, 93)]
    slurm.jobs = [*slurm.jobs, *more, job(99, FIRST - 60, FIRST, FIRST + 1200, User="bob")]
    done = ingest(ledger, slurm, since=FIRST - HOUR).entered
    assert (done.new, done.rejected) == (1, 3)
    assert "the row cannot be entered" in done.why
    assert stored_energy(ledger) == {MOST_STORED - 1, 0}
    rows = read.usage(ledger, begin="2020-01-01", end="2090-01-01", by="user")
    assert [row["jobs"] for row in rows.rows if row["user"] == "bob"] == [1]
    again = ingest(ledger, slurm, since=FIRST - HOUR).entered
    assert (again.new, again.rejected) == (0, 3)


def test_a_row_of_a_file_that_does_not_fit_to_what_is_stored_is_rejected_alone(ledger, monkeypatch):
    """The rows of several blocks are in one transaction; then each block has one of its own."""
    fields = "JobIDRaw User Account State Submit Start End AllocNodes AllocCPUS".split()
    fields.append("ConsumedEnergyRaw")

    def lines(user: str, numbers: range, nodes: int, joules: int) -> list[str]:
        row = [user, "vision", "COMPLETED", FIRST - 60, FIRST, FIRST + 1200, nodes, 4, joules]
        return ["|".join(map(str, [n, *row])) + "\n" for n in numbers]

    def enter(rows: list[str]) -> IngestCounts:
        stream = io.BytesIO("".join(rows).encode())
        file = SacctFile("x", stream, "lab", fields, "|", find_zone("UTC"))
        return ingest_file(ledger, file).entered

    enter(lines("alice", range(1, 6), 6000, WILD["ConsumedEnergyRaw"]))
    fill_energy(ledger)
    wild = lines("alice", range(90, 92), 6000, WILD["ConsumedEnergyRaw"])
    monkeypatch.setattr("slurmkit_accounting.sacct.file._BLOCK", 2500)  # six of them
    good = [*lines("dave", range(400, 460), 1, 0), *lines("bob", range(100, 240), 1, 0)]
    done = enter([*good, *wild])
    assert (done.read, done.new, done.rejected) == (202, 200, 2)
    assert stored_energy(ledger) == {MOST_STORED - 1, 0}
    rows = read.usage(ledger, begin="2020-01-01", end="2090-01-01", by="user").rows
    assert {row["user"]: row["jobs"] for row in rows} == {"alice": 5, "dave": 60, "bob": 140}


def test_use_that_does_not_fit_to_what_is_stored_is_not_measured(ledger):
    slurm = FakeSacct(*tasks(4), job(9, FIRST - 60, FIRST, FIRST + 1200, User="bob"))
    ingest(ledger, slurm, since=FIRST - HOUR)
    with ledger.transaction() as connection:
        bob = select(usage_keys.c.id).where(usage_keys.c.user == "bob").scalar_subquery()
        for table in USAGE_TABLES:
            others = update(table).where(table.c.key_id != bob)
            connection.execute(others.values(cpu_used_ms=2**63 - 1))
    slurm.steps = {row["DBIndex"]: [step(row, "0", TotalCPU="00:01:00")] for row in slurm.jobs}
    ingest(ledger, slurm, since=FIRST - HOUR)
    with ledger.transaction() as connection:
        used = connection.execute(select(runs.c.user, runs.c.cpu_used_ms).distinct()).all()
        assert sorted(used, key=str) == [("alice", None), ("bob", 60_000)]


def test_a_window_whose_sums_do_not_fit_is_an_error_and_no_number(ledger):
    write_books(ledger, [run("alice", BEGIN, BEGIN + HOUR), run("bob", BEGIN, BEGIN + HOUR)])
    with ledger.transaction() as connection:
        for table in USAGE_TABLES:
            connection.execute(update(table).values(wall_seconds=2**62 + 1))
    with pytest.raises(LedgerError, match="64 bits; a number of some run is too large"):
        read.usage(ledger, by="", now=BEGIN + 9 * 86400, **MONTH)


@pytest.mark.parametrize("mem", [str(2**35), "99P"])
def test_memory_beyond_what_a_machine_has_is_not_counted(ledger, mem):
    tres = f"cpu=4,node=1,mem={mem}"
    ingest(ledger, FakeSacct(*tasks(60, AllocTRES=tres, ReqTRES=tres)), since=FIRST - HOUR)
    assert_whole(ledger)


def test_cpu_time_beyond_the_cpus_of_the_nodes_is_not_measured(ledger):
    slurm = FakeSacct(*tasks(20))
    slurm.steps = {
        row["DBIndex"]: [step(row, "0", TotalCPU="9999999-00:00:00")] for row in slurm.jobs
    }
    ingest(ledger, slurm, since=FIRST - HOUR)
    assert_whole(ledger)
    (row,) = read.usage(ledger, begin="2020-01-01", end="2090-01-01", by="").rows
    assert row["cpu_efficiency"] is None


def test_cpu_time_of_very_many_steps_is_a_number_that_can_be_stored():
    one = StepRow("0", "COMPLETED", "x", 0, 1, 1, 10**15, None, None, None, None)
    assert combine_steps([one] * 3, 0).cpu_used_ms == 3 * 10**15
    assert combine_steps([one] * 10_000, 0).cpu_used_ms is None


def test_sums_are_checked_by_their_size_only_where_they_add_up():
    """Whole machines, one after another: what they hold is large, but not at once."""
    facts = [1, "a", 1, "v", "p", "q", "COMPLETED", 0, 0, 100, 9000, 10**6, 0, "cpu=4,mem=4P"]
    added = UsageSums()
    for n in range(3000):
        start = n * 7200
        values = [*facts[:7], start, start, start + 7000, *facts[10:], 9000 * 2000 * 7000]
        row = UsageRun(*values)
        added.add([[value] for value in row], 1)
    added.refuse_overflow()


def test_energy_says_how_much_of_it_is_known(ledger, capsys):
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, energy=3_600_000, nodes=3),
        run("alice", BEGIN, BEGIN + HOUR, energy=None),
        run("bob", BEGIN, BEGIN + HOUR, energy=None),
        run("eve", BEGIN, BEGIN + HOUR, energy=360_000_000),
    ]
    write_books(ledger, jobs)
    found = read.usage(ledger, by="user", now=BEGIN + 9 * 86400, **MONTH)
    shown = {row["user"]: (row["energy_kwh"], row["energy_measured"]) for row in found.rows}
    assert shown == {"alice": (1.0, 0.75), "bob": (None, None), "eve": (None, None)}
    assert (found.sums["energy_kwh"], found.sums["energy_measured"]) == (1.0, 0.5)
    show_report(found, OutputFormat("table", None, ("user", "energy_kwh")))
    *_, last = (line for line in capsys.readouterr().out.splitlines() if "total" in line)
    assert last.split() == ["total", "1.00", "50.0%"]


def test_node_hours_are_unknown_in_any_sum_with_a_run_whose_nodes_are(ledger):
    """The other runs of its key have nodes enough for both."""
    jobs = [
        run("alice", BEGIN, BEGIN + HOUR, nodes=0),
        run("alice", BEGIN + HOUR, BEGIN + 90 * HOUR, nodes=8),
        run("bob", BEGIN, BEGIN + HOUR, nodes=2),
    ]
    write_books(ledger, jobs)
    for by, hours in (("user", {None, 2.0}), ("account", {None, 2.0}), ("", {None})):
        found = read.usage(ledger, by=by, now=BEGIN + 9 * 86400, **MONTH)
        assert {row["node_hours"] for row in found.rows} == hours
        assert found.meta.total["node_hours"] is None
    days = read.usage(ledger, by="day,user", now=BEGIN + 9 * 86400, **MONTH).rows
    assert {row["day"] for row in days if row["node_hours"] is None} == {"2026-11-01"}
