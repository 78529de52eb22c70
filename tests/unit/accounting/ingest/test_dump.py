from __future__ import annotations

import csv
import io
import json

import pytest
from fake_sacct import FakeSacct, job
from slurmkit_accounting import read
from slurmkit_accounting.audit.status import load_ledger_status
from slurmkit_accounting.audit.verify import verify
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.cli.ledger import ledger_group
from slurmkit_accounting.cli.report_options import OutputFormat, show_report
from slurmkit_accounting.ingest.file import IngestedFile, SacctFile, ingest_file
from slurmkit_accounting.ingest.ingest import ingest
from slurmkit_accounting.ingest.rejects import load_rejects
from slurmkit_accounting.ingest.retry import retry_rejects
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.location import default_ledger_path
from slurmkit_accounting.ledger.schema.runs import ingests, rejects, revisions, runs, spans
from slurmkit_accounting.render import render_report
from slurmkit_accounting.sacct.file import (
    forgeable_fields,
    missing_information,
    parse_field_names,
)
from slurmkit_accounting.usage.closed_months import close_month
from slurmkit_accounting.usage.query import SUM_INDEX, UsageQuery, query_usage
from sqlalchemy import select
from stored_runs import gpu_seconds

from slurmkit.cli.main import run_to_exit_code
from slurmkit.errors import BadInput

T = 1_700_000_000
NOVEMBER, DECEMBER = 1_698_796_800, 1_701_388_800
FIELDS = "JobIDRaw,User,Account,Submit,Start,End,State,AllocCPUS,AllocTRES,JobName"
TRES = "cpu=4,gres/gpu:a100=2,gres/gpu=2,mem=8G,node=1"


def line(job: int = 1, **other: object) -> str:
    values = {
        "JobIDRaw": job, "User": "alice", "Account": "vision", "Submit": T, "Start": T + 10,
        "End": T + 110, "State": "COMPLETED", "AllocCPUS": 4, "AllocTRES": TRES, "JobName": "train",
    }  # fmt: skip
    return "|".join(str(value) for value in (values | other).values()) + "\n"


def load(
    ledger: Ledger, text: str | bytes, fields: str = FIELDS, where: str = "UTC", **other: object
) -> IngestedFile:
    data = text.encode() if isinstance(text, str) else text
    file = SacctFile(
        "dump.txt",
        io.BytesIO(data),
        "old",
        parse_field_names(fields),
        "|",
        find_zone(where),
        **other,
    )  # type: ignore[arg-type]
    return ingest_file(ledger, file)


def everything(ledger: Ledger, table=runs) -> list:
    with ledger.transaction() as connection:
        return list(connection.execute(select(table).order_by(*table.primary_key)).mappings())


def counts(done: IngestedFile) -> tuple[int, int, int, int]:
    return (done.entered.read, done.entered.new, done.entered.changed, done.entered.rejected)


@pytest.mark.sql
def test_a_file_becomes_runs_and_usage_and_again_changes_nothing(ledger):
    text = line(1) + line(2, State="CANCELLED by 77", AllocTRES=TRES.replace("2", "4"))
    done = load(ledger, text)
    assert counts(done) == (2, 2, 0, 0)
    assert done.window == (T, T + 110)
    one, two = everything(ledger)
    assert (one["gpus"], one["cpus"], one["name"], one["uid"]) == (2, 4, "train", None)
    assert (two["state"], two["cancelled_by"], two["gpus"]) == ("CANCELLED", 77, 4)
    assert gpu_seconds(ledger) == 600
    before = everything(ledger), gpu_seconds(ledger)
    assert counts(load(ledger, text)) == (2, 0, 0, 0)
    assert (everything(ledger), gpu_seconds(ledger)) == before
    assert everything(ledger, revisions) == []
    assert everything(ledger, spans) == []
    assert [row["source"] for row in everything(ledger, ingests)] == ["dump.txt"] * 2


@pytest.mark.sql
def test_the_last_field_takes_the_rest_of_the_line_and_of_its_lines(ledger):
    names = ["a|b||c", "two\nlines", "\x1b[2J", "caf\ufffd", "odd\n\x0bend|x"]
    text = "".join(line(n, JobName=name) for n, name in enumerate(names, 1)).encode()
    load(ledger, text.replace("\ufffd".encode(), b"\xe9"))
    assert [row["name"] for row in everything(ledger)] == names
    assert everything(ledger, rejects) == []


@pytest.mark.sql
def test_rows_may_lie_across_blocks(ledger, monkeypatch):
    monkeypatch.setattr("slurmkit_accounting.sacct.file._BLOCK", 37)
    names = ["plain", "two\nlines\nand three", "end"]
    load(ledger, "".join(line(n, JobName=name) for n, name in enumerate(names, 1)).rstrip("\n"))
    assert [row["name"] for row in everything(ledger)] == names


def test_what_cannot_be_read_is_kept_and_counts_until_it_can(ledger):
    text = line(1) + "2|broken\n" + line(3, Start="soon") + line("12_[1-3]")
    done = load(ledger, text)
    assert counts(done) == (4, 1, 0, 3)
    reasons = {row["reason"]: row["identity"] for row in everything(ledger, rejects)}
    assert reasons == {
        "2 fields instead of the 10 of --fields": None,
        "Start 'soon' cannot be read": f"3@{T}",
        "JobIDRaw '12_[1-3]' cannot be read": None,
    }
    load(ledger, line(3))
    assert [row["read_since"] for row in everything(ledger, rejects)].count(None) == 2


def test_steps_are_left_out(ledger):
    done = load(ledger, line(1) + line("1.batch") + line("1.0"))
    assert (counts(done), done.steps) == ((1, 1, 0, 0), 2)


def test_fields_that_a_file_lacks_stay_as_they_are(ledger):
    load(ledger, line(1))
    done = load(ledger, f"1|{T}|{T + 10}|{T + 210}|ml\n", "JobIDRaw,Submit,Start,End,Account")
    assert counts(done) == (1, 0, 1, 0)
    (row,) = everything(ledger)
    assert (row["user"], row["gpus"], row["account"]) == ("alice", 2, "ml")
    assert gpu_seconds(ledger) == 400


def test_an_old_file_does_not_open_what_has_ended(ledger):
    load(ledger, line(1))
    assert counts(load(ledger, line(1, End="Unknown", State="RUNNING"))) == (1, 0, 0, 0)
    assert everything(ledger)[0]["end"] == T + 110


def test_the_last_of_two_lines_of_a_run_counts(ledger):
    load(ledger, line(1, End=T + 50) + line(1))
    assert everything(ledger)[0]["end"] == T + 110
    assert gpu_seconds(ledger) == 200


LOCAL = "JobIDRaw,DBIndex,Submit,Start,End,ElapsedRaw,AllocTRES"


@pytest.mark.parametrize(
    ("start", "end", "elapsed", "seconds"),
    [
        # Berlin's clock went from 03:00 back to 02:00 on 25 October 2026, at 01:00 UTC.
        ("2026-10-25T02:50:00", "2026-10-25T02:10:00", 1200, 1200),
        ("2026-10-25T02:50:00", "2026-10-25T02:10:00", "", 1200),
        ("2026-10-25T02:10:00", "2026-10-25T02:50:00", 2400, 2400),
        ("2026-10-25T02:10:00", "2026-10-25T02:50:00", 6000, 6000),
        ("2026-10-25T01:00:00", "2026-10-25T04:00:00", 14400, 14400),
        ("2026-10-25T02:30:00", "2026-10-25T04:00:00", 5400, 5400),
        ("2026-10-25T02:30:00", "2026-10-25T04:00:00", "02:30:00", 9000),
        # And from 02:00 on to 03:00 on 29 March.
        ("2026-03-29T01:00:00", "2026-03-29T04:00:00", 7200, 7200),
    ],
)
def test_local_times_through_both_clock_changes(ledger, start, end, elapsed, seconds):
    row = f"1|7|2026-03-01T00:00:00|{start}|{end}|{elapsed}|{TRES}\n"
    load(ledger, row, LOCAL, "Europe/Berlin")
    assert gpu_seconds(ledger) == 2 * seconds
    assert counts(load(ledger, row, LOCAL, "Europe/Berlin")) == (1, 0, 0, 0)


def test_a_time_that_no_clock_showed_is_a_reject(ledger):
    row = f"1|7|2026-03-01T00:00:00|2026-03-29T02:30:00|2026-03-29T04:00:00||{TRES}\n"
    done = load(ledger, row, LOCAL, "Europe/Berlin")
    assert done.entered.why == (
        "the clock skipped 2026-03-29T02:30 in Europe/Berlin; check --timezone"
    )


@pytest.mark.parametrize(
    "end", ["2106-02-07T06:28:14", "9999-12-31T23:59:59", "0001-01-02T00:00:00", "4294967294"]
)
def test_a_time_that_cannot_be_meant_is_a_reject(ledger, end):
    """Slurm's NO_VAL as the end of a run would fill tables up to 2106."""
    assert counts(load(ledger, line(1) + line(2, End=end))) == (2, 1, 0, 1)
    (reject,) = everything(ledger, rejects)
    assert reject["reason"] == f"End {end!r} cannot be read"


def test_a_header_must_name_the_fields(ledger):
    header = FIELDS.replace(",", "|").lower() + "\n"
    assert counts(load(ledger, header + line(1), header=True)) == (1, 1, 0, 0)
    with pytest.raises(BadInput, match=r"the header is 'a\|b'"):
        load(ledger, "a|b\n" + line(1), header=True)


def test_what_is_missing_is_said():
    assert missing_information(parse_field_names(FIELDS)) == [
        "without Partition: hours cannot be split by partition",
        "without QOS: hours cannot be split by QOS",
        "without Suspended: suspended time is unknown",
        "without ReqTRES: doubtful GPU counts cannot be found",
        "without ConsumedEnergyRaw: energy is unknown",
    ]
    assert parse_field_names("jobidraw,SUBMIT,state%20,Weird") == (
        "JobIDRaw",
        "Submit",
        "State",
        "Weird",
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [("User,Submit", "JobIDRaw"), ("JobID,User", "Submit"), ("JobID,Submit,jobid", "twice")],
)
def test_fields_that_cannot_be_meant(given, words):
    with pytest.raises(BadInput, match=words):
        parse_field_names(given)


def test_the_command_reads_a_file(tmp_path, capsys):
    path = tmp_path / "dump.txt"
    path.write_text(line(1) + "2|junk\n")
    words = ["ingest", "--file", str(path), "--cluster", "old", "--fields", FIELDS]
    assert run_to_exit_code(ledger_group, [*words, "--timezone", "UTC", "--delimiter", "|"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("cluster old: 2 rows read, 1 new, 0 changed, 1 rejected; times from")
    assert "without QOS: hours cannot be split by QOS" in said.err


def test_rows_that_users_could_have_written_are_warned_of_and_counted(tmp_path, capsys):
    forged = line(2, User="alice", JobName="her own")
    honest = line(3, JobName="a|b") + line(4, JobName="two\nlines") + line(5) + line("5.0")
    path = tmp_path / "dump.txt"
    path.write_text(line(1, User="mallory", JobName=f"x\n{forged}".rstrip("\n")) + honest)
    words = ["ingest", "--file", str(path), "--cluster", "old", "--fields", FIELDS]
    assert run_to_exit_code(ledger_group, [*words, "--timezone", "UTC", "--delimiter", "|"]) == 0
    said = capsys.readouterr().err
    assert "any of these 5 rows may be forged: users choose JobName, and a line break" in said
    assert "sacct --parsable2 --delimiter=RANDOM" in said
    assert "line break or the delimiter in their last field: 2;" in said


@pytest.mark.parametrize("header", [True, False])
def test_rows_that_users_could_have_written_enter_only_where_they_are_trusted(
    tmp_path, capsys, header
):
    """Nothing in the file tells a forged row apart."""
    path = tmp_path / "dump.txt"
    forged = line(2, User="alice").rstrip("\n")
    text = line(1, User="mallory", JobName=f"x\n{forged}")
    path.write_text(FIELDS.replace(",", "|") + "\n" + text if header else text)
    words = ["ingest", "--file", str(path), "--cluster", "old", "--timezone", "UTC"]
    words += ["--header"] if header else ["--fields", FIELDS]
    assert run_to_exit_code(ledger_group, words) == 2
    said = capsys.readouterr().err
    assert "users choose JobName, and a line break and '|' in it look like a row of another" in said
    assert "give --delimiter '|'" in said
    assert not default_ledger_path().exists()


def test_a_file_without_text_of_users_needs_no_delimiter(tmp_path, capsys):
    path = tmp_path / "dump.txt"
    path.write_text(f"1|{T}|{T + 10}|{T + 210}\n")
    words = ["ingest", "--file", str(path), "--cluster", "old", "--timezone", "UTC"]
    assert run_to_exit_code(ledger_group, [*words, "--fields", "JobIDRaw,Submit,Start,End"]) == 0
    assert "1 row read, 1 new" in capsys.readouterr().out


def test_a_random_delimiter_tells_forged_rows_apart(tmp_path, capsys):
    forged = line(2, User="alice", JobName="her own")
    text = line(1, User="mallory", JobName="NAME").replace("|", "4d0c61b5")
    path = tmp_path / "dump.txt"
    path.write_text(text.replace("NAME", f"x\n{forged}".rstrip("\n")))
    words = ["ingest", "--file", str(path), "--cluster", "old", "--fields", FIELDS]
    assert run_to_exit_code(ledger_group, [*words, "--delimiter", "4d0c61b5"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("cluster old: 1 row read, 1 new")
    assert "forged" not in said.err


@pytest.mark.parametrize(
    ("fields", "delimiter", "found"),
    [
        ("JobIDRaw,Submit,State", "|", []),
        ("JobIDRaw,Submit,jobname,WCKey,State", "\x1f", ["JobName", "WCKey"]),
        ("JobIDRaw,Submit,JobName", "4d0c61b5", []),
    ],
)
def test_fields_that_users_write_can_forge_rows(fields, delimiter, found):
    assert forgeable_fields(parse_field_names(fields), delimiter) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--file", "x"], "--file needs --cluster and --fields (or --header, if the first"),
        (["--file", "x", "--cluster", "a"], "--file needs --fields"),
        (["--file", "/none", "--cluster", "a", "--fields", FIELDS], "cannot read /none"),
        (["--fields", FIELDS], "--fields needs --file DUMP"),
        (["--file", "x", "--since", "2026-01-01"], "--since is for sacct"),
    ],
)
def test_options_that_cannot_be_meant(capsys, words, message):
    assert run_to_exit_code(ledger_group, ["ingest", *words]) == 2
    assert message in capsys.readouterr().err


def live(number: int = 1, **other: object) -> dict:
    return job(number, T, T + 10, T + 110, AllocTRES=TRES, **other)


@pytest.mark.parametrize("file_first", [True, False])
def test_a_run_of_a_file_without_dbindex_is_the_one_that_sacct_shows(
    ledger, monkeypatch, file_first
):
    monkeypatch.setattr("slurmkit_accounting.ingest.ingest.time.time", lambda: T + 9000)
    running = job(3, T, T + 10, None, AllocTRES=TRES, State="RUNNING")
    slurm = FakeSacct(live(), live(2), running)
    slurm.cluster = "old"
    if file_first:
        load(ledger, line(1) + line(3, End="Unknown", State="RUNNING"))
    assert ingest(ledger, slurm).gone == 0
    done = load(ledger, line(1) + line(2, AllocTRES="cpu=1,gres/gpu=9"))
    assert counts(done) == (2, 0, 0, 0)
    assert sorted(row["db_index"] for row in everything(ledger)) == [1001, 1002, 1003]
    assert gpu_seconds(ledger) == 400
    with ledger.transaction() as connection:
        assert verify(connection).wrong == []


def open_gpu_seconds(ledger: Ledger, now: int) -> int:
    with ledger.transaction() as connection:
        found = query_usage(connection, UsageQuery((T, now), now))
    return sum(sums[SUM_INDEX["gpu_seconds"]] for sums in found.values())


@pytest.mark.sql
def test_a_run_without_an_end_counts_to_the_last_time_in_its_file(ledger, monkeypatch):
    running = line(1, End="Unknown", State="RUNNING")
    load(ledger, running + line(2, Start=T + 500, End=T + 900, AllocTRES="cpu=1"))
    assert open_gpu_seconds(ledger, T + 10**8) == 2 * 890
    load(ledger, line(3, Start=T + 50, End=T + 60, AllocTRES="cpu=1") + running)
    assert open_gpu_seconds(ledger, T + 10**8) == 2 * 890  # an older file
    load(ledger, running + line(4, Start=T + 50, End=T + 1010, AllocTRES="cpu=1"))
    assert open_gpu_seconds(ledger, T + 10**8) == 2 * 1000
    slurm = FakeSacct()
    slurm.cluster = "old"
    monkeypatch.setattr("slurmkit_accounting.ingest.ingest.time.time", lambda: T + 9000)
    ingest(ledger, slurm)
    load(ledger, running)  # sacct knows it no more, whatever an old file says
    assert open_gpu_seconds(ledger, T + 10**8) == 2 * 1000
    assert everything(ledger)[0]["gone_since"] == T + 9000


@pytest.mark.sql
def test_rejects_of_a_file_are_read_again_as_the_file_was(ledger, monkeypatch):
    fields = "JobIDRaw,Submit,Start,End,State,AllocTRES,JobName"
    row = "{}|2023-11-14T22:00:00|2023-11-14T22:00:10|{}|{}|" + TRES + "|a\x1fb|c\n"
    text = row.format(1, "2023-11-14T22:01:00", "COMPLETED") + row.format(2, "Unknown", "RUNNING")
    text += row.format(3, "soon", "COMPLETED")
    with monkeypatch.context() as patch:
        patch.setattr("slurmkit_accounting.sacct.values._MOST", 1)
        assert counts(load(ledger, text, fields, "Europe/Berlin")) == (3, 0, 0, 3)
    again = retry_rejects(ledger)
    assert (again.read, again.new, again.rejected) == (3, 2, 1)
    one, two = everything(ledger)
    began = 1_699_995_600  # 22:00 in Berlin
    assert (one["start"], one["end"], one["name"]) == (began + 10, began + 60, "a\x1fb|c")
    assert two["last_seen"] == began + 60
    with ledger.transaction() as connection:
        assert [one.reason for one in load_rejects(connection)] == ["End 'soon' cannot be read"]
    load(ledger, row.format(2, "2023-11-14T22:02:00", "COMPLETED"), fields, "Europe/Berlin")
    assert retry_rejects(ledger).new == 0
    assert everything(ledger)[1]["end"] == began + 120


def node_hours(ledger: Ledger, form: str) -> str:
    """The node-hours of a report by user, as a format shows them."""
    report = read.usage(ledger, "2023-11-01", "2023-12-01", by="user", timezone="UTC")
    text = render_report(report, form).decode()
    if form == "json":
        return json.dumps(json.loads(text)["rows"][0]["node_hours"])
    return next(csv.DictReader(text.splitlines()))["node_hours"]


@pytest.mark.sql
def test_node_hours_are_unknown_where_a_file_tells_of_no_nodes(ledger, capsys):
    fields = "JobIDRaw,User,Account,Submit,Start,End,State,AllocCPUS"
    load(ledger, f"1|alice|vision|{T}|{T}|{T + 3600}|COMPLETED|4\n", fields)
    assert (node_hours(ledger, "csv"), node_hours(ledger, "json")) == ("", "null")
    report = read.usage(ledger, "2023-11-01", "2023-12-01", by="user", timezone="UTC")
    show_report(report, OutputFormat("table", None, ("user", "node_hours", "cpu_hours")))
    assert capsys.readouterr().out.splitlines()[1].split() == ["alice", "?", "4.00"]
    load(ledger, f"2|bob|vision|{T}|{T}|{T + 3600}|COMPLETED|4|2\n", f"{fields},AllocNodes")
    found = read.usage(ledger, "2023-11-01", "2023-12-01", by="user", timezone="UTC")
    assert {row["user"]: row["node_hours"] for row in found.rows} == {"alice": None, "bob": 2.0}
    assert found.meta.total["node_hours"] is None


@pytest.mark.sql
def test_runs_of_a_file_are_counted_up_to_its_end(ledger):
    """The report said that they were counted up to now."""
    load(ledger, line(1, State="RUNNING", End="Unknown") + line(2, End=T + 7200))
    report = read.usage(ledger, "2023-11-01", "2023-12-01", by="user", timezone="UTC")
    assert report.meta.running == 1
    assert report.meta.running_until == find_zone("UTC").show(T + 7200)


def test_nodes_are_those_of_alloc_tres_where_there_is_no_other_field(ledger):
    load(ledger, line(1, Start=T, End=T + 3600, AllocTRES=TRES.replace("node=1", "node=2")))
    assert [row["nodes"] for row in everything(ledger)] == [2]
    assert node_hours(ledger, "json") == "2.0"
    assert not any("node-hours" in line for line in missing_information(FIELDS.split(",")))


def test_a_header_can_name_the_fields(ledger, tmp_path, capsys):
    dump = tmp_path / "dump.txt"
    dump.write_text(FIELDS.replace(",", "|").lower() + "\n" + line(1) + line(2), "utf-8")
    argv = ["ingest", "--file", str(dump), "--cluster", "old", "--header", "--timezone", "UTC"]
    assert run_to_exit_code(ledger_group, [*argv, "--delimiter", "|"]) == 0
    assert "2 rows read, 2 new, 0 changed, 0 rejected" in capsys.readouterr().out
    assert run_to_exit_code(ledger_group, [*argv, "--delimiter", ";"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "the header lacks JobIDRaw and Submit" in said
    assert "it is 'jobidraw|user|" in said


def test_a_file_is_no_proof_that_all_is_there_and_its_gpus_are_of_their_being_tracked(ledger):
    load(ledger, line(1, AllocTRES="cpu=1"))
    (one,) = load_ledger_status(ledger).clusters
    assert (one.covers, one.gaps, one.lag, one.tracks_gpus) == ([], [], None, None)
    load(ledger, line(2, End=T + 300))
    (one,) = load_ledger_status(ledger).clusters
    assert one.tracks_gpus is True
    assert [(file.source, file.begin, file.end, file.rows) for file in one.files] == [
        ("dump.txt", T, T + 300, 1)
    ]


@pytest.mark.sql
def test_the_gpu_hours_of_a_file_that_tells_of_none_are_not_known(ledger):
    load(ledger, line(1, AllocTRES="cpu=1"))
    found = read.usage(ledger, "2023-11-01", "2023-12-01", by="user", timezone="UTC")
    assert [row["gpu_hours"] for row in found.rows] == [None]


def test_a_month_of_files_can_be_closed_beside_a_cluster_that_is_read_and_one_that_is_no_more(
    ledger, monkeypatch
):
    month, december = T // 86400 * 86400 - 86400 * 13, 1_701_388_800 + 5
    load(ledger, line(1, Submit=month - 5) + line(2, Submit=T, End=december))
    for cluster, at in (("lab", december), ("gone", month - 9 * 86400)):
        slurm = FakeSacct()
        slurm.cluster = cluster
        monkeypatch.setattr("slurmkit_accounting.ingest.ingest.time.time", lambda at=at: at)
        ingest(ledger, slurm, since=at - 31 * 86400 if cluster == "lab" else at - 5)
    closed = close_month(ledger, "2023-11", find_zone("UTC"), december)
    assert sorted(one.cluster for one in closed) == ["lab", "old"]
    with pytest.raises(BadInput, match="not all of 2023-09 has been read from"):
        close_month(ledger, "2023-09", find_zone("UTC"), december)  # before the books begin


@pytest.mark.parametrize(
    ("month", "first", "last"),
    [
        ("2023-10", T, T + 86400),  # nothing of it
        ("2023-11", T, DECEMBER + 86400),  # not its begin
        ("2023-11", NOVEMBER, DECEMBER - 1),  # not its end
    ],
)
def test_a_month_that_no_file_has_whole_is_not_closed(ledger, month, first, last):
    load(ledger, line(1, Submit=first, End=last))
    with pytest.raises(BadInput, match=f"not all of {month} .* ingest --since {month}-01, or with"):
        close_month(ledger, month, find_zone("UTC"), DECEMBER + 86400 * 9)


def test_a_month_that_two_files_have_together_is_closed(ledger):
    load(ledger, line(1, Submit=NOVEMBER - 9, End=T + 86400))
    load(ledger, line(2, Submit=T - 9, End=DECEMBER + 86400))
    (closed,) = close_month(ledger, "2023-11", find_zone("UTC"), DECEMBER + 86400 * 9)
    assert closed.new


def test_a_month_whose_begin_sacct_was_not_asked_for_is_not_closed(ledger, monkeypatch):
    """The first ingest reads 30 days, not the whole month before."""
    slurm = FakeSacct()
    ended = DECEMBER + 86400 * 9
    monkeypatch.setattr("slurmkit_accounting.ingest.ingest.time.time", lambda: ended)
    ingest(ledger, slurm, since=NOVEMBER + 86400)
    with pytest.raises(BadInput, match="not all of 2023-11 has been read"):
        close_month(ledger, "2023-11", find_zone("UTC"), ended)
    ingest(ledger, slurm, since=NOVEMBER)
    (closed,) = close_month(ledger, "2023-11", find_zone("UTC"), ended)
    assert closed.new


@pytest.mark.sql
def test_a_row_of_a_file_that_cannot_be_counted_is_rejected_alone(ledger, monkeypatch):
    odd = TRES.replace("a100=2", "a100=NONE")
    text = "".join(line(n, AllocTRES=odd if n == 2 else TRES) for n in (1, 2, 3))
    monkeypatch.setattr("slurmkit_accounting.sacct.file._BLOCK", 100)  # several batches
    monkeypatch.setattr("slurmkit_accounting.sacct.values.parse_tres", lambda _: {})
    assert counts(load(ledger, text)) == (3, 2, 0, 1)
    assert gpu_seconds(ledger) == 2 * 2 * 100
    (reject,) = everything(ledger, rejects)
    assert reject["reason"].startswith("the row cannot be entered: invalid literal")
