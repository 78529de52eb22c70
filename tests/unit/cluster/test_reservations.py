"""Reservations drawn on the days to come, and made and removed by operators."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import pytest
from recorded_lab import slurm, standing

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.reservations import ReservationRequest, find_conflicts
from slurmkit.errors import BadInput, DatabaseDown, Refused
from slurmkit.formats.display import DAY_SECONDS, TimeAxis
from slurmkit.spec.jobspec import JobSpec
from slurmkit.spec.option_values import format_dependency, join_dependencies
from slurmkit.state.model import Reservation, Standing
from slurmkit.testing import FakeSlurm, squeue_text

NOW = 1_700_000_000


class Lab(Cluster):
    def __init__(self, level: str = "Operator") -> None:
        self.jobs: list[dict[str, str]] = []
        self.reservations: tuple[Reservation, ...] = ()
        self.changed: list[list[str]] = []
        self.level: Callable[[], str] = lambda: level
        known = slurm()

        def scontrol(argv: Sequence[str], stdin: str | None) -> str:
            if argv[1] in ("create", "delete"):
                self.changed.append(list(argv))
                return ""
            if "reservation" in argv:  # squeue's filter is looked up
                return f"ReservationName=course StartTime={NOW} EndTime={NOW} State=ACTIVE\n"
            return known._answers["scontrol"](argv, stdin)

        answers = {
            **known._answers,
            "squeue": lambda argv, _: squeue_text(argv, self.jobs),
            "sacctmgr": lambda argv, _: self.level(),
            "scontrol": scontrol,
        }
        super().__init__(FakeSlurm(answers))

    def standing(self, user: str | None = None) -> Standing:
        return msgspec.structs.replace(standing(), reservations=self.reservations)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab()
    monkeypatch.setattr("slurmkit.cli.reservations.Cluster", lambda: made)
    monkeypatch.setattr("slurmkit.cli.reservations.Cluster", lambda: made)
    monkeypatch.setattr("slurmkit.cluster.reservations.current_user", lambda _: "olga")
    return made


def booking(**given: object) -> ReservationRequest:
    usual: dict[str, object] = {"name": "course", "start": "now+2hours", "duration": "1:00:00"}
    usual |= {"nodes": "c[1-2]", "users": "alice"}
    return ReservationRequest(**(usual | given))  # type: ignore[arg-type]


def run(*args: str) -> int:
    return run_to_exit_code(cli, ["reservations", *args])


def test_the_command_of_a_booking() -> None:
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW + 7200))
    assert booking(flags="MAINT", groups="vision").argv(NOW) == [
        *("scontrol", "create", "reservation", "ReservationName=course", f"StartTime={start}"),
        *("Duration=60", "Nodes=c[1-2]", "Users=alice", "Groups=vision", "Flags=MAINT"),
    ]
    assert "StartTime=now" in booking(start="now").argv(NOW)
    assert "NodeCnt=3" in booking(nodes=None, count=3).argv(NOW)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "a b"}, "not a name of a reservation"),
        ({"start": "soon"}, "start 'soon' is not"),
        ({"duration": "0"}, "time limit 0"),
        ({"nodes": None}, "or their number"),
        ({"count": 2}, "or their number"),
        ({"users": None}, "name who may use the reservation"),
        ({"users": "a b"}, "is not a list of names; separate them by commas"),
        ({"flags": "A B=1"}, "flags 'A B=1' is not valid; give words"),
        ({"partition": "x Nodes=c9"}, "is not valid; give words"),
    ],
)
def test_what_is_no_booking(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        booking(**given)


def test_nodes_are_looked_up(lab: Lab) -> None:
    known = lab.capabilities()
    assert booking(nodes="ALL").node_names(known) == tuple(node.name for node in known.nodes)
    with pytest.raises(BadInput, match="no node 'c99'"):
        booking(nodes="c[1,99]").node_names(known)
    with pytest.raises(BadInput, match="is not a list of nodes"):
        booking(nodes="c[1").node_names(known)


def test_what_a_booking_meets(lab: Lab) -> None:
    lab.jobs = [
        {"JobArrayID": "1", "NodeList": "c[1-3]", "StartTime": str(NOW), "TimeLimit": "3:00:00"},
        {"JobArrayID": "2", "NodeList": "c1", "StartTime": str(NOW), "TimeLimit": "1:00:00"},
        {"JobArrayID": "3", "NodeList": "c5", "StartTime": str(NOW), "TimeLimit": "3:00:00"},
        {"JobArrayID": "4", "NodeList": "c2", "StartTime": str(NOW), "TimeLimit": "UNLIMITED"},
    ]
    lab.reservations = (
        Reservation(name="there", start=NOW + 9000, end=NOW + 20000, nodes=("c2", "c3")),
        Reservation(name="over", start=NOW, end=NOW + 7200, nodes=("c1",)),
        Reservation(name="beside", start=NOW, end=NOW + 20000, nodes=("c3",)),
    )
    met = find_conflicts(lab, booking(), NOW)
    assert [row.job_id for row in met.jobs] == ["1", "4"]
    assert [each.name for each in met.reservations] == ["there"]
    assert len(list(met.refusals(None))) == 2
    assert len(list(met.refusals("OVERLAP"))) == 1
    assert not list(met.refusals("ignore_jobs,maint"))
    assert find_conflicts(lab, booking(nodes=None, count=1), NOW).jobs == ()


GIVEN = ("course", "--start", "now", "--duration", "60", "--nodes", "c1", "--users", "alice")


def test_it_is_shown_and_asked_and_only_then_done(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("create", *GIVEN, "--dry-run") == 0
    shown = capsys.readouterr().out
    command = "scontrol create reservation ReservationName=course StartTime=now Duration=60"
    assert command in shown
    assert run("create", *GIVEN) == 2
    assert "to create it without asking: add --yes" in capsys.readouterr().err
    assert not lab.changed
    assert run("create", *GIVEN, "--yes") == 0
    assert lab.changed[0][:4] == command.split()[:4]
    lab.reservations = (Reservation(name="course", start=0, end=1, nodes=("c1",)),)
    assert run("create", *GIVEN, "--yes") == 2
    assert run("delete", "cours", "--yes") == 2
    assert "did you mean 'course'" in capsys.readouterr().err
    lab.jobs = [{"JobArrayID": "1", "NodeList": "c1", "Reservation": "course"}]
    assert run("delete", "course", "--yes") == 2
    assert "while jobs run or wait in it" in capsys.readouterr().err
    lab.jobs = []
    assert run("delete", "course", "--yes") == 0
    assert lab.changed[1:] == [["scontrol", "delete", "ReservationName=course"]]


def test_a_booking_that_slurmctld_would_refuse_is_refused(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.jobs = [{"JobArrayID": "1", "NodeList": "c1", "TimeLimit": "UNLIMITED"}]
    assert run("create", *GIVEN, "--yes") == 2
    assert "--flags IGNORE_JOBS" in capsys.readouterr().err
    assert not lab.changed
    assert run("create", *GIVEN, "--flags", "IGNORE_JOBS", "--yes") == 0


def test_only_operators_may(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("None", ""):
        lab.level = lambda level=level: level  # type: ignore[misc]
        assert run("create", *GIVEN, "--yes") == 1
        said = capsys.readouterr()
        assert "only operators of Slurm create reservations; olga is not one" in said.err
        assert "scontrol create reservation" in said.out  # to be handed to one
    assert not lab.changed

    def silent() -> str:
        raise DatabaseDown("slurmdbd does not answer")

    lab.level = silent
    assert run("create", *GIVEN, "--yes") == 0  # slurmctld judges


def test_a_refusal_of_slurmctld_is_told(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(argv: Sequence[str], stdin: str | None) -> str:
        if argv[1] == "create":
            raise Refused("Error creating the reservation: Invalid user id")
        return slurm()._answers["scontrol"](argv, stdin)

    lab.slurm._answers["scontrol"] = refuse  # type: ignore[attr-defined]
    assert run("create", *GIVEN, "--yes") == 1
    assert "Invalid user id" in capsys.readouterr().err


def test_bars() -> None:
    axis = TimeAxis(0, 10, 10)
    assert axis.bar(2, 4, "#") == "  ##"
    assert axis.bar(-5, 1, "#") == "#"
    assert axis.bar(3.2, 3.3, "#") == "   #"
    assert axis.bar(8, 99, "#") == "        #>"
    assert axis.bar(11, 12, "#") == ""
    assert axis.bar(-3, -1, "#") == ""


def test_days_stand_where_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    line = TimeAxis(1_699_920_000 - 43200, 4 * DAY_SECONDS, 56).days()  # noon, 13 November 2023
    assert line == "now    Tue 14        Wed 15        Thu 16        Fri 17"
    monkeypatch.undo()
    time.tzset()


def test_the_list_draws_them(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.reservations = (
        Reservation(name="mine", start=NOW, end=NOW + 3600, nodes=("c1",), users=("alice",)),
        Reservation(name="his", start=NOW, end=NOW + 9 * 86400, nodes=("c1",), users=("bob",)),
        Reservation(name="late", start=NOW + 86400 * 30, end=NOW + 86400 * 31, nodes=("c1",)),
    )
    assert run() == 0
    assert "█" not in capsys.readouterr().out
    assert run("--days", "7") == 0
    drawn = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[4:] if line}
    assert drawn["mine"].split() == ["mine", "you", "█"]
    assert drawn["his"].endswith("░>")
    assert drawn["late"].endswith("(later)")
    assert max(map(len, drawn.values())) <= 80


def test_dependencies_by_handle_and_id() -> None:
    cluster = Lab()
    spec = JobSpec(command=("x",), dependency="singleton")
    several = cluster._job("8,9", cluster.job("8"), cluster.job("9"))
    made = spec.after(cluster.job("7"), several).after("12_3", 13, kind="after", minutes=5)
    assert made.dependency == "singleton,afterok:7:8:9,after:12_3+5:13+5"
    assert spec.dependency == "singleton"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: format_dependency(["1"], "afterwards"), "unknown kind of dependency"),
        (lambda: format_dependency(["1"], "afterok", 5), "takes no minutes"),
        (lambda: format_dependency(["1"], "after", -5), "at least 0"),
        (lambda: format_dependency([], "afterok"), "the dependency names no job"),
        (lambda: format_dependency(["1", "2"], "aftercorr"), "aftercorr takes one array"),
        (lambda: format_dependency(["x"], "afterok"), "is not a job id"),
        (lambda: join_dependencies("afterok:1?afterok:2", "afterany:3"), "Slurm cannot add"),
    ],
)
def test_what_is_no_dependency(make: Callable[[], str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        make()
