"""Outages of nodes: from sacctmgr into the ledger, and from there into `report nodes`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_sacct import FakeSacct, lately
from report_books import BEGIN, DAY, write_books
from slurmkit_accounting import read
from slurmkit_accounting.cli.report import report_group
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.node_events import NodeEvent, parse_node_events, record_node_events
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import node_events
from slurmkit_accounting.reports.nodes import Fault, parse_faults
from slurmkit_accounting.reports.question import Scope
from sqlalchemy import select

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadInput, SlurmError

HOUR = 3600
NOW = lately()
TRES = "cpu=64,mem=512000M,billing=64,gres/gpu=8,gres/gpu:a100=8"
NOVEMBER = {"begin": "2026-11-01", "end": "2026-12-01", "timezone": "UTC", "now": BEGIN + 20 * DAY}
FIRST, SECOND = "1320922000001", "1320922000002"
ECC = f"slurmkit: ecc {FIRST}: /dev/nvidia0: 2 uncorrectable errors"


def line(
    start: int, end: int | None, reason: str, *, node: str = "c1", state: str = "DRAIN"
) -> str:
    until = "Unknown" if end is None else str(end)
    return f"{node}|{start}|{until}|{state}|{TRES}|root(0)|{reason}\n"


def stored(ledger: Ledger) -> list[Sequence[Any]]:
    columns = (node_events.c.node, node_events.c.start, node_events.c.end, node_events.c.reason)
    with ledger.transaction() as connection:
        return [
            tuple(row) for row in connection.execute(select(*columns).order_by("start", "node"))
        ]


def write_events(ledger: Ledger, *events: tuple[str, int, int | None, str]) -> None:
    """Write events of cluster `lab`: node, hours after BEGIN of begin and end, and reason."""
    write_books(ledger, [])
    record_events(ledger, *events)


def record_events(ledger: Ledger, *events: tuple[str, int, int | None, str]) -> None:
    """Record them as an ingest does."""
    rows = [
        NodeEvent(
            node, BEGIN + begin * HOUR, end and BEGIN + end * HOUR, "DRAIN", reason, "root", 8
        )
        for node, begin, end, reason in events
    ]
    with ledger.transaction() as connection:
        record_node_events(connection, 1, rows, BEGIN)


# --- reading ------------------------------------------------------------------------------------


def test_lines_of_sacctmgr() -> None:
    text = line(20, 30, "a|b", node="c2", state="DOWN*") + line(10, None, ECC)
    assert parse_node_events(text) == [
        NodeEvent("c1", 10, None, "DRAIN", ECC, "root", 8),
        NodeEvent("c2", 20, 30, "DOWN*", "a|b", "root", 8),
    ]


@pytest.mark.parametrize(
    "text",
    [
        line(1, 2, "Powered down after SuspendTimeout", state="POWERED_DN"),
        line(1, 2, "Powered down after SuspendTimeout", state="IDLE~"),
        line(1, 2, "every spring", state="MIX$"),
        line(1, 2 << 70, "x"),
        f"c1|{1 << 70}|2|DOWN|cpu=8|root(0)|x\n",
        "c1|²|2|DOWN|cpu=8|root(0)|x\n",
        line(1, 2, "reboot", state="BOOT^"),
        line(1, 2, "every spring", state="MAINT"),
        "|1|2|DOWN|cpu=8||slurmctld was started anew\n",
        "the rest of a reason\n",
        "c1|Unknown|2|DOWN|cpu=8|root(0)|x\n",
    ],
)
def test_what_is_no_outage_of_a_node(text: str) -> None:
    assert parse_node_events(text) == []


def test_gpus_of_a_node_may_be_unknown_or_none() -> None:
    lines = ["||x", "cpu=8,mem=5G|root(0)|x", "gres/gpu=18446744073709551614|root(0)|x"]
    text = "".join(f"c{at}|1|2|DOWN|{rest}\n" for at, rest in enumerate(lines))
    assert [event.gpus for event in parse_node_events(text)] == [None, 0, None]


def test_a_line_that_comes_twice_counts_once() -> None:
    text = line(1, None, "x") + line(1, 2, "y")
    assert [(event.end, event.reason) for event in parse_node_events(text)] == [(2, "y")]


@pytest.mark.sql
def test_what_slurmdbd_kept_before_the_first_such_ingest_is_taken_over(ledger: Ledger) -> None:
    """A ledger of an earlier release has runs, and no outage."""
    slurm = FakeSacct()
    begin = NOW - 200 * DAY
    slurm.events = SlurmError("Access/permission denied")
    ingest(ledger, slurm, since=begin)
    slurm.events = ""
    ingest(ledger, slurm)
    assert asked_from(slurm) == begin
    slurm.events = line(NOW - 900, None, ECC)
    ingest(ledger, slurm)
    ingest(ledger, slurm)
    assert asked_from(slurm) > begin


def asked_from(slurm: FakeSacct) -> int:
    """Return the time from which the last ingest has asked for events."""
    asked = [word for argv in slurm.asked for word in argv if word.startswith("Start=uts")]
    return int(asked[-1].removeprefix("Start=uts"))


def test_an_ingest_keeps_outages_and_sees_their_end(ledger: Ledger) -> None:
    slurm = FakeSacct()
    slurm.events = line(NOW - 900, None, "Prolog error")
    ingest(ledger, slurm)
    slurm.events = line(NOW - 900, NOW - 890, "Prolog error") + line(NOW - 890, None, ECC)
    ingest(ledger, slurm)
    ended = [("c1", NOW - 900, NOW - 890, "Prolog error")]
    assert stored(ledger) == [*ended, ("c1", NOW - 890, None, ECC)]
    slurm.events = line(NOW - 890, NOW - 10, ECC)
    ingest(ledger, slurm)
    assert stored(ledger) == [*ended, ("c1", NOW - 890, NOW - 10, ECC)]


@pytest.mark.sql
def test_what_slurmdbd_has_purged_stays_and_has_ended(ledger: Ledger) -> None:
    slurm = FakeSacct()
    slurm.events = line(NOW - 900, NOW - 800, "old") + line(NOW - 700, None, "forgotten")
    ingest(ledger, slurm)
    slurm.events = ""
    ingest(ledger, slurm)
    old, forgotten = stored(ledger)
    assert old == ("c1", NOW - 900, NOW - 800, "old")
    assert forgotten[2] is not None


@pytest.mark.sql
def test_an_ingest_goes_on_where_events_are_private(ledger: Ledger) -> None:
    slurm = FakeSacct()
    slurm.events = line(NOW - 900, None, "still out")
    ingest(ledger, slurm)
    slurm.events = SlurmError("Access/permission denied")
    ingest(ledger, slurm)
    assert stored(ledger) == [("c1", NOW - 900, None, "still out")]


def known_nodes(*names: str) -> str:
    return "".join(f"NodeName={name} Arch=x86_64 State=IDLE\n" for name in names)


@pytest.mark.sql
def test_the_outage_of_a_node_that_is_no_longer_in_slurm_conf_ends(ledger: Ledger) -> None:
    """slurmdbd shows it open for ever."""
    slurm = FakeSacct()
    slurm.events = line(NOW - 900, None, ECC) + line(NOW - 900, None, ECC, node="c2")
    slurm.nodes = known_nodes("c1", "c2")
    ingest(ledger, slurm)
    assert [row[2] for row in stored(ledger)] == [None, None]
    for said in (
        "",
        "NodeName=c2 State=IDLE\nslurm_load_node error: Zero Bytes were transmitted\n",
    ):
        slurm.nodes = said
        ingest(ledger, slurm)
        assert [row[2] for row in stored(ledger)] == [None, None], said
    slurm.nodes = known_nodes("c2")
    ingest(ledger, slurm)
    (_, _, ended, _), (_, _, lasting, _) = stored(ledger)
    assert ended is not None
    assert lasting is None
    ingest(ledger, slurm)  # slurmdbd still shows it open
    slurm.nodes = ""
    ingest(ledger, slurm)
    assert [row[2] for row in stored(ledger)] == [ended, None]
    # slurmctld ends it when the node is there again, perhaps months later.
    slurm.nodes = known_nodes("c1", "c2")
    slurm.events = line(NOW - 900, ended + 5_000_000, ECC) + line(NOW - 900, None, ECC, node="c2")
    ingest(ledger, slurm)
    assert [row[2] for row in stored(ledger)] == [ended, None]


def test_a_node_that_is_there_again_and_out_of_use_has_its_outage_again(ledger: Ledger) -> None:
    slurm = FakeSacct()
    slurm.events = line(NOW - 900, None, ECC)
    for names in (["c1"], ["c2"], ["c1"]):
        slurm.nodes = known_nodes(*names)
        ingest(ledger, slurm)
    assert [row[2] for row in stored(ledger)] == [None]


def test_outages_of_a_time_in_which_none_could_be_read_are_read_later(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSacct()
    slurm.events = line(NOW - 900, None, ECC)
    assert ingest(ledger, slurm).no_outages == ""
    clock = [NOW]
    monkeypatch.setattr("slurmkit_accounting.ingest.ingest.time.time", lambda: clock[0])
    slurm.events = SlurmError("Access/permission denied")
    for day in range(1, 5):
        clock[0] = NOW + day * DAY
        assert ingest(ledger, slurm).no_outages == "Access/permission denied"
        assert asked_from(slurm) <= NOW
    since = "outages of lab since .* could not be read: Access/permission denied"
    found = read.nodes(ledger, begin="2026-11-01", end="2035-01-01", timezone="UTC", now=clock[0])
    assert [bool(re.match(since, note)) for note in found.meta.notes] == [True]
    slurm.events = line(NOW + DAY, NOW + DAY + 60, "Prolog error")
    assert ingest(ledger, slurm).no_outages == ""
    assert stored(ledger)[-1] == ("c1", NOW + DAY, NOW + DAY + 60, "Prolog error")
    found = read.nodes(ledger, begin="2026-11-01", end="2035-01-01", timezone="UTC", now=clock[0])
    assert found.meta.notes == ()
    assert asked_from(slurm) <= NOW


# --- reasons --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "faults"),
    [
        (ECC, [("ecc", FIRST)]),
        (
            f"{ECC}; tmp: /tmp has less than 1 GiB free; xid 0000:07:00.0: 79 x: y",
            [("ecc", FIRST), ("tmp", ""), ("xid", "0000:07:00.0")],
        ),
        ("slurmkit: GPU 0 has no device file /dev/nvidia0", [("other", "")]),
        ("Prolog error", [("prolog", "")]),
        ("Not responding", [("not_responding", "")]),
        ("gres/gpu count reported lower than configured (7 < 8)", [("gpus", "")]),
        ("new power supply; ticket 7", [("other", "")]),
        ("", [("other", "")]),
    ],
)
def test_what_a_reason_names(reason: str, faults: list[tuple[str, str]]) -> None:
    assert parse_faults(reason) == tuple(Fault(*fault) for fault in faults)


# --- the report -----------------------------------------------------------------------------------


@pytest.mark.sql
def test_hours_within_the_window_times_gpus(ledger: Ledger) -> None:
    write_events(
        ledger,
        ("c1", -10, 5, "Not responding"),  # began before the window
        ("c2", 20 * 24 - 2, None, ECC),  # lasts up to now
        ("c3", 30 * 24 + 5, 30 * 24 + 6, "after the window"),
    )
    found = read.nodes(ledger, **NOVEMBER)
    assert [
        (row["node"], row["checks"], row["hours_out"], row["gpu_hours_lost"], row["well_since"])
        for row in found.rows
    ] == [
        ("lab/c1", "not_responding", 5, 40, BEGIN + 5 * HOUR),
        ("lab/c2", "ecc", 2, 16, None),
    ]
    assert found.meta.total == {"outages": 2, "repeated": 0, "hours_out": 7, "gpu_hours_lost": 56}


def test_no_hour_of_a_node_is_lost_twice(ledger: Ledger) -> None:
    """Events that overlap, and one that slurmdbd left open although the node was there again."""
    write_events(
        ledger,
        ("c1", 10, 20, "Not responding"),
        ("c1", 12, 15, "Not responding"),
        ("c1", 18, 22, "Not responding"),
        ("c2", -90, None, "left open"),
        ("c2", -80, -70, "Not responding"),
        ("c3", 1, None, "left open"),
        ("c3", 4, 6, ECC),
        ("c3", 20 * 24 - 1, None, ECC),
    )
    assert [
        (row["node"], row["outages"], row["hours_out"], row["gpu_hours_lost"], row["well_since"])
        for row in read.nodes(ledger, **NOVEMBER).rows
    ] == [
        ("lab/c1", 1, 12, 96, BEGIN + 22 * HOUR),
        ("lab/c3", 2, 6, 48, None),
    ]


def test_a_new_reason_is_no_new_outage_and_the_next_time_is_a_repetition(ledger: Ledger) -> None:
    write_events(
        ledger,
        ("c1", 10, 11, "Prolog error"),
        ("c1", 11, 20, ECC),
        ("c1", 40, 41, ECC),
        ("c1", 50, 51, "an administrator's"),
    )
    (row,) = read.nodes(ledger, **NOVEMBER).rows
    assert (row["outages"], row["repeated"], row["hours_out"]) == (3, 1, 12)
    assert row["last_failed"] == BEGIN + 50 * HOUR


def test_a_gpu_takes_its_history_to_another_node(ledger: Ledger) -> None:
    other = f"slurmkit: remap {SECOND}: x; ecc {FIRST}: y"
    write_events(
        ledger,
        ("c1", 10, 12, ECC),
        ("c2", 20, 21, other),
        ("c3", 30, 40, "Not responding"),
        ("c3", 50, 51, "slurmkit: xid 0000:07:00.0: 79 fallen off"),
    )
    by_gpu = read.nodes(ledger, by="gpu", **NOVEMBER)
    assert [
        (row["gpu"], row["nodes"], row["checks"], row["repeated"], row["gpu_hours_lost"])
        for row in by_gpu.rows
    ] == [
        (FIRST, "lab/c1 lab/c2", "ecc", 1, 24),
        (SECOND, "lab/c2", "remap", 0, 8),
        ("lab/c3 0000:07:00.0", "lab/c3", "xid", 0, 8),
    ]
    assert by_gpu.meta.total == {}
    by_check = read.nodes(ledger, by="check", **NOVEMBER)
    assert {row["check"]: row["outages"] for row in by_check.rows} == {
        "not_responding": 1, "ecc": 2, "remap": 1, "xid": 1,
    }  # fmt: skip
    with pytest.raises(BadInput, match="by must be node, gpu, check or outage; not 'rack'"):
        read.nodes(ledger, by="rack", **NOVEMBER)


def test_the_history_of_a_node_has_each_outage_with_its_reasons(ledger: Ledger) -> None:
    events = (
        ("c1", 10, 11, "Prolog error"),
        ("c1", 11, 20, ECC),
        ("c2", 15, 16, ECC),
        ("c1", 40, None, ECC),
    )
    write_events(ledger, *events)
    record_events(ledger, *events)  # read twice, kept once
    found = read.nodes(ledger, by="outage", node="c1", **NOVEMBER)
    assert [
        (row["node"], row["checks"], row["gpu"], row["failed"], row["well_since"], row["repeated"])
        for row in found.rows
    ] == [
        ("lab/c1", "ecc", FIRST, BEGIN + 40 * HOUR, None, "ecc"),
        ("lab/c1", "ecc prolog", FIRST, BEGIN + 10 * HOUR, BEGIN + 20 * HOUR, ""),
    ]
    assert found.rows[1]["reasons"] == f"Prolog error (root); then {ECC} (root)"
    assert found.rows[1]["gpu_hours_lost"] == 80
    assert found.meta.filters["node"] == ("c1",)
    # A reason may name people, so only operators read it.
    scope = Scope(frozenset(), frozenset(), frozenset((99,)))
    theirs = read.nodes(ledger, by="outage", node="c1", scope=scope, **NOVEMBER)
    assert [row["reasons"] for row in theirs.rows] == [None, None]
    assert [row["checks"] for row in theirs.rows] == ["ecc", "ecc prolog"]


def test_a_ledger_without_outages_says_why_it_may_be(ledger: Ledger) -> None:
    write_events(ledger)
    assert "PrivateData=events" in read.nodes(ledger, **NOVEMBER).meta.notes[0]
    assert "PrivateData=events" in read.nodes(ledger, by="gpu", **NOVEMBER).meta.notes[0]


def test_outages_without_a_gpu_have_no_row_by_gpu(ledger: Ledger) -> None:
    write_events(ledger, ("c1", 1, 2, "Not responding"))
    found = read.nodes(ledger, by="gpu", **NOVEMBER)
    assert found.rows == ()
    assert "node_check.py" in found.meta.notes[0]


def test_only_one_cluster(ledger: Ledger) -> None:
    write_events(ledger, ("c1", 1, 2, ECC))
    assert read.nodes(ledger, filters={"cluster": ["big"]}, **NOVEMBER).rows == ()
    assert len(read.nodes(ledger, filters={"cluster": ["lab"]}, **NOVEMBER).rows) == 1


@pytest.mark.parametrize("by", ["node", "gpu", "check"])
def test_the_command_in_all_formats(
    file_ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    write_events(file_ledger, ("c1", 1, 4, ECC), ("c1", 9, 10, ECC))
    words = ["nodes", "--month", "2026-11", "--timezone", "UTC", "--by", by]
    assert run_to_exit_code(report_group, words) == 0
    assert "GPU_HOURS_LOST" in capsys.readouterr().out
    assert run_to_exit_code(report_group, [*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["outages"], row["repeated"], row["gpu_hours_lost"]) == (2, 1, 32)
    for name in ("csv", "xlsx", "html"):
        path = tmp_path / f"{by}.{name}"
        assert run_to_exit_code(report_group, [*words, "--output", str(path)]) == 0
        assert path.stat().st_size
