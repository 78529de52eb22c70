from __future__ import annotations

from pathlib import Path

import pytest
from fake_sacct import DEFAULTS, job
from slurmkit_accounting.sacct.query import (
    SACCT_FIELDS,
    build_sacct_argv,
    parse_batches,
    sacct_layout,
)
from slurmkit_accounting.sacct.rows import Reject, RunRow

from slurmkit.slurm.records import record_mark

MARK = "\x1fabcd1234"


def line(**other: object) -> str:
    row = job(7, 100, 200, 300) | {name: str(value) for name, value in other.items()}
    return "".join(row[field] + MARK for field in SACCT_FIELDS) + "\n"


def read(text: str, mark: str = MARK) -> list[RunRow | Reject]:
    """Each row in a batch of its own, to keep their order."""
    how, found = sacct_layout(), []
    for batch in parse_batches(text.splitlines(keepends=True), mark, how, 1):
        runs, rejects = how.runs(batch)
        found += [*batch.rejects, *rejects, *runs]
    return found


def read_one(**other: object) -> RunRow:
    (run,) = read(line(**other))
    assert isinstance(run, RunRow), run
    return run


def test_a_row_becomes_a_run():
    run = read_one()
    assert (run.db_index, run.job_id_raw, run.submit, run.start, run.end) == (
        1007,
        7,
        100,
        200,
        300,
    )
    assert (run.user, run.uid, run.account, run.state) == ("alice", 10011, "vision", "COMPLETED")
    assert (run.gpus, run.cpus, run.nodes, run.time_limit) == (2, 4, 1, "60")
    assert run.name == DEFAULTS["JobName"]


@pytest.mark.parametrize(
    ("other", "key", "index"),
    [
        ({"Start": "soon"}, (7, 100), 1007),
        ({"Submit": "soon"}, None, 1007),
        ({"JobIDRaw": "soon"}, None, 1007),
        ({"Start": "soon", "DBIndex": ""}, (7, 100), None),
        ({"Submit": "soon", "DBIndex": ""}, None, None),
        ({"DBIndex": "x"}, (7, 100), None),
    ],
)
def test_a_reject_says_whose_it_is_where_that_can_be_read(other, key, index):
    (reject,) = read(line(**other))
    assert isinstance(reject, Reject)
    assert (reject.key, reject.db_index) == (key, index)


def test_half_a_row_says_whose_it_is_and_two_in_one_do_not():
    whole = line()
    for fields, key, index in ((11, (7, 100), 1007), (10, None, None)):
        (reject,) = read("warning\n" + MARK.join(whole.split(MARK)[:fields]))
        assert (reject.key, reject.db_index) == (key, index)
    (both,) = read(whole.removesuffix("\n") + whole)
    assert (both.key, both.db_index) == (None, None)


def test_the_command_asks_for_all_runs_and_no_steps():
    argv = build_sacct_argv(MARK, "-S", "uts5000000")
    assert argv[0] == "sacct"
    assert {"-a", "-X", "-D", "--noheader", "-p", f"--delimiter={MARK}"} <= set(argv)
    assert argv[-2:] == ["-S", "uts5000000"]
    assert argv[-3].endswith(",JobName")


def test_each_call_has_a_mark_of_its_own_and_the_guide_says_who_can_read_it():
    """The mark is in sacct's argv, which others on the host can read."""
    assert len({record_mark() for _ in range(100)}) == 100
    guide = (Path(__file__).parents[4] / "docs/service.md").read_text("utf-8")
    (said,) = (each for each in guide.split("\n\n") if "random delimiter" in each)
    assert "command line of sacct" in said
    assert "hidepid=invisible" in guide


@pytest.mark.parametrize(
    ("tres", "gpus"),
    [
        ("cpu=4,gres/gpu:a100=2,gres/gpu=2", 2),
        ("cpu=4,gres/gpu:a100=2,gres/gpu:h100=3", 5),
        ("cpu=4,gres/gpu=3,gres/gpumem=80G,gres/gpuutil=97", 3),
        ("cpu=4,gres/shard=7", 0),
        ("", 0),
    ],
)
def test_gpus_are_the_total_or_the_sum_of_the_types(tres, gpus):
    assert read_one(AllocTRES=tres).gpus == gpus


def test_a_run_that_never_had_a_node_has_no_cpus():
    assert read_one(AllocTRES="", AllocCPUS=4, AllocNodes=0).cpus == 0


def test_cpus_come_from_tres_or_from_alloccpus():
    assert read_one(AllocTRES="cpu=8,mem=1G", AllocCPUS=4).cpus == 8
    assert read_one(AllocTRES="mem=1G", AllocCPUS=4).cpus == 4


@pytest.mark.parametrize(("text", "nodes"), [("1K", 1024), ("1.50K", 1536), ("2.50K", 2560)])
def test_allocnodes_has_a_unit_without_noconvert(text, nodes):
    """sacct writes multiples of 512 nodes in K, exactly."""
    assert read_one(AllocNodes=text).nodes == nodes


@pytest.mark.parametrize("text", ["0.01K", "1.46K", "1.5", "K", "1K5", "1.50.50K"])
def test_a_rounded_number_of_nodes_is_refused(text):
    (reject,) = read(line(AllocNodes=text))
    assert isinstance(reject, Reject)


@pytest.mark.parametrize("text", ["Unknown", "None", "0", ""])
def test_a_time_that_is_none(text):
    run = read_one(Start=text, End=text)
    assert (run.start, run.end) == (None, None)


def test_who_cancelled_is_not_part_of_the_state():
    assert read_one(State="CANCELLED by 10001").state == "CANCELLED"


def test_dbindex_may_use_all_64_bits():
    assert read_one(DBIndex=9959297078711018496).db_index == 9959297078711018496 - 2**64


@pytest.mark.parametrize(
    "name", ["one\ntwo", "\n", "a\n\n\nb", "tail\n", "pipe|\x1f;\ttab", "\x1b[2J"]
)
def test_a_name_may_hold_anything_but_the_mark(name):
    runs = read(line(JobName=name) + line(DBIndex=2))
    assert [run.name for run in runs] == [name, "train"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("JobIDRaw", "abc", "JobIDRaw 'abc' cannot be read"),
        ("Submit", "Unknown", "Submit 'Unknown' cannot be read"),
        ("Start", "2026-01-01T00:00:00", "Start"),
        ("End", "4294967294", "End '4294967294' cannot be read"),
        ("End", "4294967295", "End '4294967295' cannot be read"),
        ("AllocTRES", "gres/gpu=18446744073709551614", "AllocTRES"),
        ("DBIndex", "18446744073709551616", "DBIndex"),
    ],
)
def test_a_value_that_cannot_be_read_rejects_the_row_verbatim(field, value, words):
    bad = line(**{field: value})
    reject, run = read(bad + line())
    assert isinstance(reject, Reject)
    assert words in reject.reason
    assert reject.line == bad.removesuffix(MARK + "\n").replace(MARK, "\x1f")
    assert isinstance(run, RunRow)


@pytest.mark.parametrize(
    "gres",
    [
        "gres/gpu:a100=NONE",
        "gres/gpu:a100=18446744073709551614",
        "gres/gpu:a100=1.5",
        "gres/gpu:a100=-1",
        "gres/shard=99999999999999999999",
        "gres/shard:a100=²",
        "gres/mps=18446744073709551614",
        "gres/mps=1K",
    ],
)
def test_a_count_by_type_that_cannot_be_read_rejects_the_row(gres):
    reject, run = read(line(AllocTRES=f"cpu=4,gres/gpu=2,{gres}") + line())
    assert isinstance(reject, Reject)
    assert reject.reason == f"AllocTRES 'cpu=4,gres/gpu=2,{gres}' cannot be read"
    assert isinstance(run, RunRow)


def test_text_between_rows_is_rejected_and_the_rows_are_kept():
    first, stray, second = read(line() + "sacct: warning\nof two lines\n" + line(DBIndex=2))
    assert isinstance(first, RunRow)
    assert stray == Reject("sacct: warning\nof two lines", "not part of a row")
    assert isinstance(second, RunRow)


def test_a_row_cut_off_is_rejected():
    run, reject = read(line() + line()[:-20])
    assert isinstance(run, RunRow)
    assert isinstance(reject, Reject)
    assert "breaks off" in reject.reason


def test_a_row_with_too_many_fields_is_rejected():
    (reject,) = read(line(JobName=f"forged{MARK}field"))
    assert isinstance(reject, Reject)
    assert f"{len(SACCT_FIELDS) + 1} fields" in reject.reason


def test_the_same_bad_row_is_the_same_reject_in_every_call():
    (one,) = read(line(Submit="x"))
    (other,) = read(line(Submit="x").replace(MARK, "\x1fother"), "\x1fother")
    assert one == other
