"""`slurmkit why`: the answer first, then facts; what others wrote is escaped."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import why_scene as lab
from click.testing import CliRunner
from why_scene import NOW

from slurmkit.cli import why as cli
from slurmkit.cluster.cluster import Cluster
from slurmkit.diagnose import explain as module
from slurmkit.diagnose.model import (
    Alternative,
    Blocker,
    EndExplanation,
    Explanation,
    Factor,
    FailedStep,
    LogLine,
    Priority,
    Rank,
    RankStack,
    RunningExplanation,
    RunningFact,
    RunningFinding,
    StartEstimate,
    WaitExplanation,
    WatchedRank,
)
from slurmkit.diagnose.render import explanation_lines
from slurmkit.errors import NoSuchJob
from slurmkit.state.queue_rows import QueueRow
from slurmkit.testing import FakeSlurm

HOSTILE = "evil\x1b[2J\nforged"


def explanation(**values: object) -> Explanation:
    usual = {
        "job_id": "5",
        "name": HOSTILE,
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "state": "PENDING",
        "answer": f"job 5 waits: {HOSTILE}",
        "source": "squeue",
        "taken": float(NOW),
    }
    return Explanation(**{**usual, **values})  # type: ignore[arg-type]


WAITING = WaitExplanation(
    reason="Resources",
    meaning="it is next",
    who="nobody: it passes by itself",
    advice="wait",
    details=("free now: 3", HOSTILE),
    blockers=(
        Blocker(kind="job", name="1", user="bob", account="a", state="RUNNING", holds="8 GPUs"),
    ),
    more_blockers=2,
    ranks=(Rank("gpu", 2, 7, 3),),
    priority=(Priority("gpu", 1000, (Factor("age", 5, 10), Factor("site", 1)), "age is weak"),),
    start=StartEstimate(NOW + 600, "squeue --start", NOW - 12, "c1"),
    alternatives=(
        Alternative(
            changes=(("time", "28:00"),),
            start=NOW,
            test_only=NOW,
            command="slurmkit update 5 --time=28:00",
            notes=("if it can be done in that time",),
        ),
    ),
)
ENDED = EndExplanation(
    kind="failed",
    meaning="failed",
    advice="see its log",
    details=("the script's last command failed",),
    steps=(FailedStep(step_id="5.0", name="sh", state="FAILED", exit_code="1:0", nodes="c1"),),
    first_error=LogLine(f"boom {HOSTILE}", 7),
    error_means="Python raised this",
    log="/home/alice/slurm-5.out",
    last_lines=("one", HOSTILE),
)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Explanation]:
    """What the next call explains."""
    answers: list[Explanation] = []
    monkeypatch.setattr(cli, "explain", lambda *_, **__: answers.pop())
    return answers


def run(*args: str) -> str:
    done = CliRunner().invoke(cli.why_command, [*args])
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\nforged" not in done.output
    return done.output


RUNNING = RunningExplanation(
    runs="on c2 since 02:10",
    findings=(
        RunningFinding(
            kind="stopped", text=f"rank 3 {HOSTILE}", source="/proc", taken=NOW - 3, advice="kill"
        ),
    ),
    facts=(
        RunningFact(about="GPUs", text="83 %", source="ledger", taken=NOW - 12),
        RunningFact(about="Log", text=f"unknown: {HOSTILE}"),
    ),
    probed=True,
    ranks=(
        WatchedRank(
            rank=3, node="c2", pid=811, step="0", command=HOSTILE, state="T", does="is stopped",
            cpus=0.02, rss=3 << 30, threads=9, processes=2,
        ),
        WatchedRank(rank=4, node="c2", pid=812, step="0", command="sh", state="S", does="runs"),
    ),
    nccl=("Rank 3 is missing",),
    stacks=(
        RankStack(title="rank 3 on c2 (pid 811)", lines=("Thread 1", f"    {HOSTILE}")),
        RankStack(title="rank 4 on c2 (pid 812)", problem="py-spy is not installed"),
    ),
)  # fmt: skip


def test_why_a_running_job_is_stuck_in_plain_lines(told: list[Explanation]) -> None:
    told.append(explanation(state="RUNNING", running=RUNNING))
    said = run("5")
    for words in (
        "Runs   on c2 since 02:10",
        "Found  rank 3 evil\\x1b[2J\\nforged  [/proc, 3 s ago]",
        "  do   kill",
        "GPUs   83 %  [ledger, 12 s ago]",
        "Log    unknown: evil\\x1b[2J\\nforged\n",
        "NCCL   Rank 3 is missing",
        "Ranks  3 c2 pid 811 evil\\x1b[2J\\nforged: is stopped, CPU 2%, 3 GiB, 9 threads",
        "       4 c2 pid 812 sh: runs, 1 thread",
        "Stack  rank 3 on c2 (pid 811)",
        "       py-spy is not installed",
    ):
        assert words in said, words
    told.append(explanation(state="RUNNING", running=RUNNING))
    (row,) = json.loads(run("5", "--json"))["rows"]
    assert row["running"]["findings"][0]["kind"] == "stopped"
    assert row["running"]["ranks"][1]["cpus"] is None


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), {"alternatives": True, "probe": True, "stacks": False}),
        (("--no-probe",), {"alternatives": True, "probe": False, "stacks": False}),
        (("--stacks", "--no-alternatives"), {"alternatives": False, "probe": True, "stacks": True}),
    ],
)
def test_how_far_to_look_is_handed_on(
    words: tuple[str, ...], asked: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, bool]] = []

    def explained(*_: object, **options: bool) -> Explanation:
        seen.append(options)
        return explanation()

    monkeypatch.setattr(cli, "explain", explained)
    run("5", *words)
    assert seen == [asked]
    done = CliRunner().invoke(cli.why_command, ["5", "--stacks", "--no-probe"])
    assert "leave out --no-probe" in str(done.exception)


def test_why_it_waits_in_plain_lines(told: list[Explanation]) -> None:
    told.append(explanation(waiting=WAITING, notes=("limits are hidden",)))
    first, blank, *rest = run("5").splitlines()
    assert first == "job 5 waits: evil\\x1b[2J\\nforged."
    assert blank == ""
    said = "\n".join(rest)
    for words in (
        "Reason       Resources",
        "Blocked by   job 1 of bob (a), running: 8 GPUs",
        "and 2 more",
        "Rank         2 of 7 in partition gpu; 3 more cannot start yet",
        "1000 in partition gpu; age is weak",
        "age 5 of 10, site 1",
        "on c1, from squeue --start, computed 12 s ago",
        "Sooner       --time=28:00: now",
        "slurmkit update 5 --time=28:00",
        "Note         limits are hidden",
    ):
        assert words in said


def test_an_unknown_start_is_unknown(told: list[Explanation]) -> None:
    waiting = WaitExplanation(
        reason="None", meaning="m", who="w", advice="wait", no_alternatives="nothing found"
    )
    told.append(explanation(waiting=waiting))
    said = run("5")
    assert "Start        unknown: Slurm has no estimate" in said
    assert "Sooner       nothing found" in said


def test_why_it_failed_in_plain_lines(told: list[Explanation]) -> None:
    told.append(explanation(ended=ENDED, state="FAILED"))
    said = run("5")
    for words in (
        "Do          see its log",
        "Steps       5.0 sh FAILED 1:0 on c1",
        "Error       line 7: boom evil\\x1b[2J\\nforged",
        "Log         /home/alice/slurm-5.out",
        "Last lines  one",
    ):
        assert words in said


def test_json_is_the_whole_of_it(told: list[Explanation]) -> None:
    told.append(explanation(waiting=WAITING))
    (found,) = json.loads(run("5", "--json"))["rows"]
    assert found["name"] == HOSTILE
    assert found["waiting"]["alternatives"][0]["changes"] == [["time", "28:00"]]
    assert found["ended"] is None


@pytest.mark.parametrize(
    ("explained", "shows"),
    [
        (explanation(waiting=WAITING), "slurmkit update 5 --time=28:00"),
        (explanation(state="RUNNING", running=RUNNING), "rank 3 "),
        (explanation(state="FAILED", ended=ENDED), "failed see its log"),
        (explanation(state="COMPLETING"), "job 5 waits"),
    ],
    ids=["waits", "runs", "ended", "neither"],
)
def test_the_python_of_the_guide_works_for_a_job_in_any_state(
    explained: Explanation,
    shows: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It broke on a job that does not wait."""
    monkeypatch.setattr(module, "explain", lambda *_, **__: explained)
    guide = (Path(__file__).parents[3] / "docs/why.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    exec(compile(code, "why.md", "exec"), {})  # noqa: S102 - the guide's own code
    assert shows in capsys.readouterr().out


def test_help_shows_examples() -> None:
    assert "slurmkit why 12" in run("--help")


# --- which job is meant --------------------------------------------------------------------------


def with_rows(monkeypatch: pytest.MonkeyPatch, *rows: object) -> Cluster:
    queue = type("Queue", (), {"rows": rows})
    monkeypatch.setattr(module, "read_queue", lambda *_, **__: queue)
    return Cluster(FakeSlurm({}))


def test_of_an_array_the_tasks_that_wait_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = lab.running("6", "c1", "a100=2", 30, job_id="5_1", started=NOW)
    waits = lab.row("5", job_id="5_[2-9]")
    cluster = with_rows(monkeypatch, runs, waits)
    assert module._find_row(cluster, "5") is waits
    cluster = with_rows(monkeypatch, runs)
    seen: list[object] = []
    monkeypatch.setattr(module, "_running", lambda _, row, __: seen.append(row.job_id))
    module.explain(cluster, "5")
    assert seen == ["5_1"]


def test_a_job_with_a_special_exit_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no node that it could run on, whatever squeue calls its state."""
    seen: list[object] = []
    monkeypatch.setattr(module, "_waiting", lambda _, row, **__: seen.append(row.state))
    module.explain(with_rows(monkeypatch, lab.row("5", state="SPECIAL_EXIT")), "5")
    assert seen == ["PENDING"]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("COMPLETING", "its nodes are being cleaned up"),
        ("CONFIGURING", "being prepared"),
        ("SUSPENDED", "is suspended"),
    ],
)
def test_jobs_between_waiting_and_end_have_words(
    monkeypatch: pytest.MonkeyPatch, state: str, says: str
) -> None:
    cluster = with_rows(monkeypatch, lab.running("6", "c1", "a100=2", 30, state=state))
    assert says in module.explain(cluster, "6").answer


def test_a_cancelled_job_has_not_ended_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """squeue shows COMPLETING after scancel, too."""
    cluster = with_rows(monkeypatch, lab.running("6", "c1", "a100=2", 30, state="COMPLETING"))
    assert "on its own" not in module.explain(cluster, "6").answer


# --- what the answer says ------------------------------------------------------------------------


def answered(
    monkeypatch: pytest.MonkeyPatch, job: QueueRow, *others: QueueRow, **values: object
) -> Explanation:
    """Explain a pending job of this scene."""
    monkeypatch.setattr(
        module, "read_pending_snapshot", lambda *_, **__: lab.scene(job, *others, **values)
    )
    slurm = FakeSlurm({"sprio": lambda *_: ""})
    return module._waiting(Cluster(slurm), job, alternatives=False)


@pytest.mark.parametrize(
    "reason",
    [
        "AssocMaxGRESPerJob",
        "QOSMaxCpuPerJobLimit",
        "AssocGrpGRES",
        "uid 10017 not in group permitted to use this partition (lab). groups allowed: lab",
        "PartitionTimeLimit",
    ],
)
def test_a_job_that_slurm_does_not_plan_has_no_start(
    monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """slurmctld still has a start time, and nodes."""
    job = lab.row("5", reason=reason, started=NOW + 1440)
    told = answered(monkeypatch, job, asked=lab.asked(planned_nodes="c7"))
    assert told.waiting is not None
    assert told.waiting.start is None
    assert "may start" not in told.answer


@pytest.mark.parametrize(
    ("seconds", "says"), [(20, "before its begin time, in 20 s"), (1200, "(in 20 min)")]
)
def test_a_begin_time_is_named_and_is_not_now(
    monkeypatch: pytest.MonkeyPatch, seconds: int, says: str
) -> None:
    """`it may not start before its begin time; it may start now`."""
    job = lab.row("5", reason="BeginTime", started=NOW + seconds, eligible=NOW + seconds)
    told = answered(monkeypatch, job)
    assert says in told.answer
    assert "may start now" not in told.answer
    said = "\n".join(value for _, value in explanation_lines(told))
    assert "now, from" not in said
    assert "you; wait\n" not in said
    assert "JobId=5 StartTime=now" in said


@pytest.mark.parametrize(
    ("others", "is_next"), [((), True), ((lab.row("2", priority=200),), False)]
)
def test_only_the_first_is_next(
    monkeypatch: pytest.MonkeyPatch, others: tuple[QueueRow, ...], is_next: bool
) -> None:
    """`it is next …; place 10 of 24`."""
    told = answered(monkeypatch, lab.row("5"), *others)
    assert told.answer.startswith(
        f"job 5 waits: {'it is next, but ' if is_next else ''}the resources it asks for are not"
    )


def test_what_passes_by_itself_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nobody: it passes by itself; wait`."""
    lines = dict(explanation_lines(answered(monkeypatch, lab.row("5"))))
    assert lines["Who can act"] == "nobody needs to: it passes by itself"


def test_a_job_that_nobody_knows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise NoSuchJob("no job 7")

    monkeypatch.setattr(module, "read_queue", unknown)
    cluster = Cluster(FakeSlurm({}))
    assert module._find_row(cluster, "7") is None
