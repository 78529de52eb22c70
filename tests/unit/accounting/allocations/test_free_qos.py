"""QOS that no allocation pays for, and jobs beyond a balance that move there."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from allocation_lab import A100, HOUR, NOW, grant, posting, stopped_clock
from allocation_slurm import BY_ACCOUNT, BY_QOS, StandInSlurm, plan_apply, stand_in_slurm
from report_books import BEGIN, DAY, run, write_books
from slurmkit_accounting.allocations.apply import apply_limits, make_plan
from slurmkit_accounting.allocations.balance import Balance, balances
from slurmkit_accounting.allocations.changes import expire_allocation, refund_job
from slurmkit_accounting.allocations.limit_causes import site_remarks
from slurmkit_accounting.allocations.moves import find_moves, move_jobs
from slurmkit_accounting.config import AllocationSection
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.ledger.schema.runs import runs
from sqlalchemy import select
from usage_oracle import Job

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.errors import BadInput, NoSuchJob, Refused, SlurmError

FIXTURES = (stand_in_slurm, stopped_clock)
LOWER = AllocationSection(enforce="qos", at_end="lower", free_qos=("scavenger",))
CONFIG = '[allocation]\nenforce = "qos"\nat_end = "lower"\nfree_qos = ["Scavenger"]\n'
FREE = {"other": {"qos": "scavenger", "req_tres": "gres/gpu=2", "time_limit": "60"}}
JOBS = [
    run("alice", BEGIN + DAY, BEGIN + DAY + 10 * HOUR, gpus=A100),
    run("bob", BEGIN + DAY, BEGIN + DAY + 3 * HOUR, gpus=A100, other={"account": "vision"}),
    run("vogel", BEGIN + DAY, BEGIN + DAY + 7 * HOUR, gpus=A100, other={"qos": "scavenger"}),
    run("alice", NOW - HOUR, None, gpus=A100, state="RUNNING", **FREE),
]
WAITS = run("alice", NOW, None, gpus=A100, state="PENDING", **FREE)
JOBS.append(Job(**{**vars(WAITS), "start": None}))
"""26 GPU-hours in QOS normal; in scavenger 14 that ended, 2 that run, and a job that waits."""


@pytest.fixture(autouse=True)
def section(configure: Callable[[str], object]) -> None:
    configure(CONFIG)


@pytest.fixture
def books(ledger: Ledger) -> Ledger:
    write_books(ledger, JOBS, read_to=NOW)
    return ledger


def vision(books: Ledger) -> Balance:
    (row,) = balances(books, everything=True).rows
    return row


# --- what is charged ------------------------------------------------------------------------------


def test_runs_in_a_free_qos_are_charged_to_no_allocation(books: Ledger, configure) -> None:
    grant(books)
    free = vision(books)
    hours = 3_600_000
    assert (free.used_ms, free.running_ms, free.reserved_ms) == (26 * hours, 0, 0)
    assert (free.may_use_ms, free.without_limit, free.outside_ms) == (0, 0, 0)
    assert [(one.user, one.used_ms) for one in free.users] == [
        ("alice", 20 * hours),
        ("bob", 6 * hours),
    ]
    configure("[allocation]\n")
    paid = vision(books)
    assert (paid.used_ms, paid.running_ms, paid.reserved_ms) == (42 * hours, 2 * hours, 2 * hours)


@pytest.mark.sql
def test_in_billing(ledger: Ledger, configure) -> None:
    tres = {"alloc_tres": "billing=16,cpu=4", "req_tres": "billing=16,cpu=4"}
    jobs = [
        run("alice", BEGIN, BEGIN + 2 * HOUR, other=tres),
        run("alice", BEGIN, BEGIN + 3 * HOUR, other=tres | {"qos": "scavenger"}),
        run("alice", BEGIN, BEGIN + HOUR, other={"qos": "scavenger"}),  # without billing
    ]
    write_books(ledger, jobs, read_to=NOW)
    grant(ledger, 100, unit="billing")
    free = vision(ledger)
    assert (free.used_ms, free.notes) == (32 * 3_600_000, ())
    configure("[allocation]\n")
    assert vision(ledger).used_ms == 80 * 3_600_000


@pytest.mark.sql
def test_nothing_of_a_free_job_is_given_back(books: Ledger) -> None:
    grant(books)
    with books.transaction() as connection:
        query = select(runs.c.job_id).where(runs.c.qos == "scavenger", runs.c.end.is_not(None))
        (job,) = connection.scalars(query)
    with pytest.raises(BadInput, match="it used nothing that counts"):
        refund_job(books, job, posting=posting())


# --- what Slurm counts ----------------------------------------------------------------------------


@pytest.fixture
def with_scavenger(slurm: StandInSlurm) -> StandInSlurm:
    """A Slurm with QOS scavenger."""
    slurm.qos |= {"scavenger": [None, 0, 0], "alloc_vision": [None, 0, 0]}
    for name in ("scavenger", "alloc_vision"):
        slurm.flags[name], slurm.factors[name] = "", "1.000000"
    return slurm


@pytest.fixture
def lower(books: Ledger, with_scavenger: StandInSlurm) -> StandInSlurm:
    """The same; account vision has 1 hour left."""
    grant(books, 27)
    return with_scavenger


def test_causes_and_remarks(books: Ledger, lower: StandInSlurm) -> None:
    _, (one,) = plan_apply(books, lower, LOWER)
    assert "the ledger all jobs but those of QOS scavenger" in "\n".join(one.causes)
    plan = make_plan(books, lower, LOWER)
    assert plan.lower_qos == "scavenger"
    assert not [one for one in plan.remarks if "lower" in one or "free_qos" in one]
    _, (one,) = plan_apply(books, lower, BY_ACCOUNT)
    assert "free QOS: Slurm also counts jobs of QOS scavenger" in "\n".join(one.causes)
    assert make_plan(books, lower, BY_QOS).lower_qos == ""


@pytest.mark.parametrize(
    ("enforce", "free_qos", "words"),
    [
        ("association", ("scavenger",), '"lower" works only with enforce = "qos"; jobs wait'),
        ("qos", (), '"lower" works only with a QOS in free_qos'),
        ("qos", ("standby",), "Slurm has no QOS standby, which free_qos names"),
    ],
)
def test_where_no_job_can_move(books, lower, enforce: str, free_qos, words: str) -> None:
    section = AllocationSection(enforce=enforce, at_end="lower")
    site, _ = plan_apply(books, lower, section)
    remarks = list(site_remarks(site, section, free_qos=free_qos))
    assert any(words in one for one in remarks)


def test_a_free_qos_enforces_no_balance(books: Ledger, lower: StandInSlurm, configure) -> None:
    configure('[allocation]\nfree_qos = ["alloc_vision"]\n')
    _, (one,) = plan_apply(books, lower, BY_QOS)
    assert one.problem == (
        "[allocation] free_qos names QOS alloc_vision: no allocation pays for its jobs"
    )


# --- jobs that move -------------------------------------------------------------------------------


def waiting(job_id: str, minutes: str = "61:00", gpus: int = 1, **other: str) -> dict[str, str]:
    """A job that waits for the balance of vision, of which 60 minutes are left."""
    return {
        "JobArrayID": job_id,
        "UserName": "alice",
        "QOS": "alloc_vision",
        "State": "PENDING",
        "Reason": "QOSGrpGRESMinutes",
        "tres-alloc": f"cpu=4,node=1,gres/gpu={gpus}" if gpus else "cpu=4,node=1",
        "TimeLimit": minutes,
    } | other


@pytest.mark.parametrize(
    ("job", "minutes"),
    [
        (waiting("7"), 61),
        (waiting("7", "31:00", 2), 62),
        (waiting("7_[3-9]", "61:00"), 61),  # of each task
        (waiting("7", QOS="Alloc_Vision"), 61),  # as its user typed it
        (waiting("7", "60:01"), 61),
        (waiting("7", "UNLIMITED"), None),
        (waiting("7", "1-00:00:00", 8), 11520),
    ],
)
def test_a_job_that_may_use_more_than_is_left_moves(books, lower, job, minutes) -> None:
    lower.jobs = [job]
    plan = make_plan(books, lower, LOWER)
    (move,) = find_moves(lower, plan.site, plan.wanted, plan.lower_qos)
    assert (move.minutes, move.left, move.before) == (minutes, 60, "alloc_vision")
    (done,) = move_jobs(lower, [move])
    assert (done.outcome, done.why) == ("moved", "")
    assert lower.changes[-1] == (
        "scontrol", "update", f"JobId={job['JobArrayID']}", "QOS=scavenger",
    )  # fmt: skip
    assert find_moves(lower, plan.site, plan.wanted, plan.lower_qos) == ()


@pytest.mark.parametrize(
    "job",
    [
        waiting("7", "60:00"),  # running jobs may use the rest; it may still start
        waiting("7", "30:00", 2),
        waiting("7", gpus=0),
        waiting("7", "UNLIMITED", gpus=0),
        waiting("7", Reason="Priority"),
        waiting("7", Reason="QOSGrpBillingMinutes"),  # the balance is in GPU-hours
        waiting("7", Reason="AssocGrpGRESMinutes"),
        waiting("7", QOS="normal"),
    ],
)
def test_other_jobs_stay(books: Ledger, lower: StandInSlurm, job: dict[str, str]) -> None:
    lower.jobs = [job]
    plan = make_plan(books, lower, LOWER)
    assert find_moves(lower, plan.site, plan.wanted, plan.lower_qos) == ()


def test_a_throttle_is_no_part_of_an_id(books: Ledger, lower: StandInSlurm) -> None:
    """scontrol takes no id with one."""
    lower.jobs = [waiting("7_[3-9,12%2]")]
    plan = make_plan(books, lower, LOWER)
    (move,) = find_moves(lower, plan.site, plan.wanted, plan.lower_qos)
    assert (move.job_id, move.command[2]) == ("7_[3-9,12]", "JobId=7_[3-9,12]")


def test_the_parts_of_a_het_job_move_together(books: Ledger, lower: StandInSlurm) -> None:
    lower.jobs = [waiting("7+0", "20:00", 2), waiting("7+1", "21:00"), waiting("8+0", "60:00")]
    plan = make_plan(books, lower, LOWER)
    (move,) = find_moves(lower, plan.site, plan.wanted, plan.lower_qos)
    assert (move.job_id, move.minutes) == ("7", 61)
    assert [one.outcome for one in move_jobs(lower, [move])] == ["moved"]
    assert [job["QOS"] for job in lower.jobs] == ["scavenger", "scavenger", "alloc_vision"]


def test_an_account_that_is_freed_moves_none(books: Ledger, lower: StandInSlurm) -> None:
    """Its limit goes, and Slurm says the reason of its jobs anew only later."""
    plan = make_plan(books, lower, LOWER)
    list(apply_limits(books, lower, plan.site, plan.wanted))
    (number,) = [one.id for one in vision(books).allocations]
    expire_allocation(books, number, posting("wrong account"))
    lower.jobs = [waiting("7")]
    plan = make_plan(books, lower, LOWER, ("alloc_vision",))
    assert find_moves(lower, plan.site, plan.wanted, plan.lower_qos) == ()
    plan = make_plan(books, lower, LOWER)
    assert len(find_moves(lower, plan.site, plan.wanted, plan.lower_qos)) == 1


def test_without_the_free_qos_none_moves(books: Ledger, lower: StandInSlurm) -> None:
    lower.jobs = [waiting("7")]
    del lower.qos["scavenger"]
    plan = make_plan(books, lower, LOWER)
    assert find_moves(lower, plan.site, plan.wanted, plan.lower_qos) == ()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Refused("Job is no longer pending execution for job 7"), "gone"),
        (NoSuchJob("Invalid job id specified for job 7"), "gone"),
        (Refused("Job has already finished for job 7"), "gone"),
        (Refused("7_3: Job is no longer pending execution; 7_4: No error"), "moved"),
        (Refused("7_3: Job is no longer pending execution; 7_4: Invalid qos"), "failed"),
        (Refused("Cannot modify scrontab jobs through scontrol for job 7"), "stays"),
        (SlurmError("Invalid qos specification"), "failed"),
    ],
)
def test_a_job_that_does_not_move_stops_no_other(books, lower, error, outcome: str) -> None:
    lower.jobs = [waiting("7"), waiting("8")]
    lower.refused = {"7": error}
    plan = make_plan(books, lower, LOWER)
    moves = find_moves(lower, plan.site, plan.wanted, plan.lower_qos)
    done = list(move_jobs(lower, moves))
    assert [one.outcome for one in done] == [outcome, "moved"]
    assert bool(done[0].why) == (outcome != "gone")


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command(file_ledger: Ledger, with_scavenger: StandInSlurm, monkeypatch, capsys):
    """Runs `slurmkit allocation apply`; exit code, output and errors."""
    write_books(file_ledger, JOBS, read_to=NOW)
    grant(file_ledger, 27)
    with_scavenger.jobs = [waiting("7"), waiting("8", "30:00")]
    monkeypatch.setattr("slurmkit.slurm.commands.LocalSlurmCommands", lambda: with_scavenger)

    def call(*words: str) -> tuple[int, str, str]:
        code = run_to_exit_code(cli, ["allocation", "apply", *words])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


UPDATE = "scontrol update JobId=7 QOS=scavenger"


def test_apply_sets_the_limit_and_then_moves(command, with_scavenger: StandInSlurm) -> None:
    code, out, _ = command("--dry-run")
    assert code == 0
    beyond = "it may use up to 61 minutes (gpu), account vision has 60 left"
    assert out.endswith(f"# job 7 of alice: {beyond}\n{UPDATE}\n")
    assert with_scavenger.changes == []
    code, out, _ = command()
    assert code == 0
    assert out.endswith(f"{UPDATE}\n# moved\n")
    assert with_scavenger.changes[-1] == tuple(UPDATE.split())
    assert with_scavenger.changes[0][0] == "sacctmgr"
    with_scavenger.jobs = [waiting("9")]
    code, out, _ = command("--json")
    (move,) = json.loads(out)["moves"]
    assert (code, move["job"], move["outcome"], move["minutes"]) == (0, "9", "moved", 61)


def test_what_is_not_moved_is_an_error(command, with_scavenger: StandInSlurm) -> None:
    with_scavenger.refused = {"7": SlurmError("Invalid qos specification")}
    code, out, err = command()
    assert code == 1
    assert out.endswith("# failed: Invalid qos specification\n")
    assert "1 of 1 jobs were not moved" in err


def test_a_queue_that_cannot_be_read_hides_no_limit(command, with_scavenger, monkeypatch) -> None:
    def fail(*_argv: object, **_more: object) -> list[str]:
        raise SlurmError("slurmctld does not answer")

    monkeypatch.setattr(with_scavenger, "stream", fail)
    code, out, err = command()
    assert code == 1
    assert "# set" in out
    assert "no job was moved to a free QOS: slurmctld does not answer" in err
