"""Shares, their use, and what priority is made of, from what each release prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurmkit.errors import Refused, SlurmError
from slurmkit.state.fairshare import (
    FairshareRow,
    FairshareTree,
    describe_fairshare,
    parse_factors,
    parse_shares,
    read_factors,
    read_shares,
)
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
MARK = "\x1frecorded"


@pytest.fixture(params=("22.05", "24.11", "26.05"))
def folder(request: pytest.FixtureRequest) -> Path:
    return RECORDED / str(request.param) / "limits"


def test_the_tree(folder: Path) -> None:
    rows = parse_shares((folder / "sshare-all.txt").read_text("utf-8"))
    root, climate = rows[0], next(row for row in rows if row.account == "climate")
    assert (root.depth, root.account, root.raw_shares, root.factor) == (0, "root", None, None)
    assert (climate.depth, climate.raw_shares, climate.shares) == (1, 20, 0.198020)
    assert climate.level is not None
    assert math.isinf(climate.level)
    chen = next(row for row in rows if row.user == "chen")
    assert (chen.depth, chen.account, chen.raw_usage, chen.factor) == (2, "climate", 0, 1.0)
    child = next(row for row in rows if (row.account, row.user) == ("child", "alice"))
    assert child.depth == 3


def test_a_user_sees_every_account_and_own_lines(folder: Path) -> None:
    rows = parse_shares((folder / "sshare.txt").read_text("utf-8"))
    assert {row.user for row in rows} == {"", "alice"}
    assert sorted((row.account, row.partition) for row in rows if row.user) == [
        ("child", ""),
        ("vision", ""),
        ("vision", "cpu"),
    ]


def test_branches(folder: Path) -> None:
    rows = parse_shares((folder / "sshare-all.txt").read_text("utf-8"))
    found = FairshareTree(1.0, rows).branches("alice")
    assert [[row.account for row in branch] for branch in found] == [
        ["root", "vision", "vision"],
        ["root", "vision", "vision"],
        ["root", "vision", "child", "child"],
    ]
    assert FairshareTree(1.0, rows).branches("nobody") == ()


def test_factors(folder: Path) -> None:
    found = parse_factors((folder / "sprio.txt").read_text("utf-8"), MARK)
    assert [job.partition for job in found] == ["mig", "mig", "gpu"]
    high, last = found[0], found[-1]
    assert (high.qos, last.qos, high.nice, high.tres) == (10000, 1000, 0, "")
    parts = high.age + high.fairshare + high.job_size + high.partition_factor + high.qos
    assert abs(high.priority - parts) <= 1  # each is rounded by itself


LINES = """\
root||||0.000000|1000||1.000000||
 vision|||40|0.400000|900|0.900000|0.900000||0.444444
  vision|alice||parent||300|0.300000|0.333333|0.250000|0.500000
"""


def test_where_i_stand() -> None:
    rows = parse_shares(LINES)
    assert rows[2].raw_shares is None
    (branch,) = FairshareTree(1.0, rows).branches("alice")
    assert describe_fairshare(branch) == (
        "the fairshare factor of alice in vision is 0.25 (1 is best):"
        " vision holds 40% of the shares and made 90% of the usage;"
        " within it alice holds ? of the shares and made 33.3% of the usage"
    )


def test_what_is_not_known_yet() -> None:
    new = FairshareRow(depth=2, account="child", user="zoe", partition="cpu", shares=0.5)
    assert describe_fairshare((new,)) == (
        "the fairshare factor of zoe in child (partition cpu) is not known yet:"
        " zoe holds 50% of the shares and made ? of the usage"
    )


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_what_slurmctld_has_not_worked_out_yet_is_unknown(release: str) -> None:
    text = (RECORDED / release / "limits/sshare-all.txt").read_text("utf-8")
    new = [row for row in parse_shares(text) if row.account == "child"]
    assert [(row.effective_usage, row.factor, row.level) for row in new] == [(None, None, None)] * 2


def test_an_account_without_shares_has_the_worst_level() -> None:
    (row,) = parse_shares("none|zoe||0|0.000000|0|0.000000|0.000000|0.100000|0.000000\n")
    assert (row.effective_usage, row.factor, row.level) == (0, 0.1, 0)


def test_everybody_is_asked_for_only_when_wanted() -> None:
    slurm = FakeSlurm({"sshare": lambda *_: LINES})
    assert len(read_shares(slurm).rows) == len(read_shares(slurm, everybody=True).rows) == 3
    assert ["--all" in argv for argv in slurm.asked] == [False, True]


def test_factors_are_read_highest_first() -> None:
    def sprio(argv: Sequence[str], _: str | None) -> str:
        mark = argv[-1].removeprefix("--format=%i").partition("%")[0]
        rows = (["7", "gpu", "20", *["0"] * 8, "(null)"], ["8", "gpu", "30.5", *["1"] * 8, "cpu=3"])
        return "".join("".join(value + mark for value in row) + "\n" for row in rows)

    first, second = read_factors(FakeSlurm({"sprio": sprio}), "alice")
    assert (first.job_id, first.priority, first.tres) == ("8", 30, "cpu=3")
    assert (second.job_id, second.tres) == ("7", "")


@pytest.mark.parametrize("line", ["vision|alice", LINES.replace("900", "many", 1)])
def test_a_line_that_cannot_be_read(line: str) -> None:
    with pytest.raises(SlurmError, match="sshare printed a line that cannot be read"):
        read_shares(FakeSlurm({"sshare": lambda *_: line}))


def test_a_job_that_cannot_be_read() -> None:
    with pytest.raises(SlurmError, match="sprio printed a line that cannot be read"):
        read_factors(FakeSlurm({"sprio": lambda *_: "7|gpu\n"}), "alice")


def test_a_cluster_without_priorities() -> None:
    def sprio(argv: Sequence[str], _: str | None) -> str:
        raise Refused("You are not running a supported priority plugin (priority/basic).")

    with pytest.raises(Refused):
        read_factors(FakeSlurm({"sprio": sprio}), "alice")
