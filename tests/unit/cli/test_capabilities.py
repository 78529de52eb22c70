"""`slurmkit capabilities`, `reservations` and `fairshare`, on what each release prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import ControllerDown, DatabaseDown, Refused, SlurmError
from slurmkit.testing import FakeSlurm

RECORDED = Path(__file__).parents[2] / "recorded"
# What the recorded clusters are asked, by a word of the question.
FILES = {
    "config": "scontrol-config",
    "node": "scontrol-nodes",
    "partition": "scontrol-partitions",
    "license": "scontrol-licenses",
    "reservation": "scontrol-reservations",
    "assoc_mgr": "assoc_mgr",
    "qos": "sacctmgr-qos",
    "account=root": "sacctmgr-root",
    "assoc": "sacctmgr-assoc",
    "--mpi=list": "../srun-mpi",
    "--help": "../srun-help",
    "sshare": "sshare",
    "sprio": "sprio",
}


class Lab:
    """A cluster that answers as the recorded one of a release did."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.fails: dict[str, SlurmError] = {}
        self.changed: dict[str, str] = {}
        commands = ("scontrol", "sacctmgr", "srun", "sshare", "sprio")
        self.slurm = FakeSlurm(dict.fromkeys(commands, self.answer))

    def answer(self, argv: Sequence[str], _: str | None) -> str:
        word = next(word for word in FILES if word in argv)
        if word in self.fails:
            raise self.fails[word]
        path = RECORDED / self.release / "limits" / f"{FILES[word]}.txt"
        text = self.changed.get(word) or path.read_text("utf-8")
        mark = argv[-1].removeprefix("--format=%i").partition("%")[0]
        return text.replace("\x1frecorded", mark) if word == "sprio" else text


@pytest.fixture(params=("22.05", "24.11", "26.05"))
def lab(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(str(request.param))
    for module in ("capabilities", "reservations", "fairshare"):
        monkeypatch.setattr(f"slurmkit.cli.{module}.Cluster", lambda: Cluster(made.slurm))
    for module in ("state.associations", "cli.capabilities", "cli.fairshare"):
        monkeypatch.setattr(f"slurmkit.{module}.current_user", lambda *_: "alice")
    monkeypatch.setattr(
        "slurmkit.slurm.machine.LocalMachine.groups", lambda *_: ("people", "vision")
    )
    return made


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[str, str]:
    assert run_to_exit_code(cli, list(args)) == 0
    shown = capsys.readouterr()
    return shown.out, shown.err


def cells(text: str, first: str) -> list[str]:
    """The words of the line that begins with one."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


def test_capabilities(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "capabilities")
    assert f", Slurm {lab.release}." in out
    assert "7, 6 of them usable" in out
    assert "accounting: associations,limits,qos" in out
    assert "ansys:2, matlab:10" in out
    assert cells(out, "shard") == ["shard", "h100", "16", "16", "c3", "gpu"]
    assert "gpu (MIG slice)  a100_3g.20gb      2         2  c5        mig" in out
    assert "accounts vision,climate; groups vision; not QOS scavenger" in out
    assert "not accounts genomics; QOS high,normal" in out
    assert cells(out, "limited")[1:5] == ["yes", "0", "1:00:00", "scavenger"]
    assert "MaxTRESPU mem=64G,gres/gpu=2" in out
    assert "from scontrol and srun at 2" in err


def test_capabilities_as_json(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(run(capsys, "capabilities", "--json")[0])
    (found,) = whole["rows"]
    assert found["release"][:2] == [int(part) for part in lab.release.split(".")]
    gpus = {kind["type"]: kind["count"] for kind in found["gres"] if kind["name"] == "gpu"}
    assert gpus == {"a100": 18, "h100": 4, "a100_3g.20gb": 2, "a100_1g.5gb": 4, None: 4}
    assert {qos["name"] for qos in found["qos"]} >= {"normal", "limited"}
    assert whole["age"] in range(60)


def test_without_a_default_time_the_longest_counts(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RECORDED / lab.release / "limits" / "scontrol-partitions.txt"
    text = path.read_text("utf-8").replace("DefaultTime=01:00:00", "DefaultTime=NONE", 1)
    lab.changed["partition"] = text
    assert cells(run(capsys, "capabilities")[0], "gpu*")[4:6] == ["7-00:00:00", "MAXTIME"]


def test_hidden_things_are_unknown_not_none(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.fails["node"] = Refused("slurm_load_node error: Access/permission denied")
    lab.fails["qos"] = DatabaseDown("slurmdbd does not answer")
    out, err = run(capsys, "capabilities")
    assert cells(out, "Nodes") == ["Nodes", "unknown"]
    assert cells(out, "gpu*")[2:4] == ["3", "?"]
    assert cells(out, "limited")[1] == "?"
    assert "nodes are unknown: slurmctld does not show them to you" in err
    assert "slurmdbd does not answer" in err


def test_without_qos_there_is_the_rest(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.fails["assoc_mgr"] = ControllerDown("slurmctld does not answer")
    out, _ = run(capsys, "capabilities", "--json")
    (row,) = json.loads(out)["rows"]
    assert row["qos"] is None
    assert row["hidden"] == ["QOS are unknown: slurmctld does not answer"]


def test_reservations(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "reservations")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert " users alice " in lines["alice_res"]
    assert "c4 4 users" in " ".join(lines["alice_res"].split())  # a whole node, so all of its GPUs
    assert "not users bob; accounts vision; partitions cpu" in lines["notbob"]
    assert lines["notbob"].split()[-1] == "yes"
    assert "c[1-7]    32 " in lines["maint"]
    assert f"{len(lines) - 1} reservations, from scontrol" in err


@pytest.mark.parametrize("columns", [80, 120])
def test_reservations_on_a_terminal_have_their_whole_times(
    lab: Lab,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    out, _ = run(capsys, "reservations", "--days", "1")
    (line,) = [
        line for line in out.splitlines() if line.startswith("alice_res  ") and "UTC" in line
    ]
    times = [word for word in line.split() if word.count(":") == 2]
    assert len(times) == (1 if columns == 80 else 2)


def test_reservations_as_json(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.changed["reservation"] = (
        "ReservationName=a StartTime=1000 EndTime=9999999999 Nodes=c[1-2] TRES=cpu=1 Users=bob"
        " Groups=(null) Accounts=(null) State=ACTIVE\n"
        "ReservationName=b StartTime=4102444800 EndTime=4102448400 Nodes=c1 TRES=cpu=1,gres/gpu=2"
        " Users=(null) Groups=vision Accounts=(null) State=INACTIVE Comment=Users=bob\n"
    )
    found = json.loads(run(capsys, "reservations", "--json")[0])
    first, second = found["rows"]
    assert (first["name"], first["gpus"], first["may_use"], first["starts_in"]) == (
        "a",
        None,  # part of two nodes: Slurm does not tell how many GPUs
        False,
        0,
    )
    assert (second["gpus"], second["may_use"], second["users"]) == (2, True, [])
    taken = datetime.fromisoformat(found["taken"]).timestamp()
    assert second["starts_in"] - (4102444800 - round(taken)) in (-1, 0, 1)


def test_whether_you_may_is_unknown_where_accounts_are(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    private = RECORDED / lab.release / "limits" / "assoc_mgr-private.txt"
    lab.changed["assoc_mgr"] = private.read_text("utf-8")
    lab.changed["reservation"] = (
        "ReservationName=a StartTime=1000 EndTime=9999999999 Nodes=c1 TRES=cpu=1 Users=(null)"
        " Groups=(null) Accounts=science State=ACTIVE\n"
    )
    out, _ = run(capsys, "reservations")
    assert cells(out, "a")[-1] == "?"


def test_names_from_outside_are_escaped(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.changed["reservation"] = (
        "ReservationName=evil\x1b[2J StartTime=1000 EndTime=9999999999 Nodes=c1 TRES=cpu=1"
        " Users=alice Groups=(null) Accounts=(null) State=ACTIVE\n"
    )
    lab.changed["sshare"] = "root||||0|1||1||\n evil\x1b[2J|alice||1|1|1|1|1|1|1\n"
    for command in ("reservations", "fairshare"):
        out, err = run(capsys, command)
        assert "\x1b" not in out + err
        assert "evil\\x1b[2J" in out


def test_fairshare(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "fairshare")
    assert "the fairshare factor of alice in vision is " in out
    assert "vision holds 39.6% of the shares and made " in out
    assert cells(out, "climate")[:3] == ["climate", "20", "19.8%"]
    header = cells(out, "JOBID")
    assert header == "JOBID IN PRIORITY FAIRSHARE AGE QOS JOBSIZE".split()
    assert cells(out, "weight") == ["weight", "100000", "1000", "10000", "100"]
    assert "from sshare and sprio at 2" in err
    assert lab.slurm.asked[-1][0] == "sprio"


def test_fairshare_as_json(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "fairshare", "--all", "--json")[0])
    assert found["weights"]["fairshare"] == "100000"
    assert found["weights"]["tres"] is None
    assert [job["partition"] for job in found["factors"]] == ["mig", "mig", "gpu"]
    assert len(found["standing"]) == 3
    assert "--all" in next(argv for argv in lab.slurm.asked if argv[0] == "sshare")


def test_shares_that_do_not_count(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    config = (RECORDED / lab.release / "limits" / "scontrol-config.txt").read_text("utf-8")
    lab.changed["config"] = config.replace("priority/multifactor", "priority/basic")
    lab.fails["sprio"] = Refused("You are not running a supported priority plugin")
    out, err = run(capsys, "fairshare")
    assert "shares have no effect here: PriorityType is priority/basic" in err
    assert "priority factors are unknown: You are not running" in err
    assert "JOBID" not in out


def test_nobody_s_share(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.changed["sshare"] = "root||||0.000000|0||1.000000||\n"
    assert "sshare shows no share of alice" in run(capsys, "fairshare")[0]
