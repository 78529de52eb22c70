"""Sending a workflow, taking it back, and going on after a failure."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from flow_lab import FlowLab, flow, job

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.cli.workflow import show_command
from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.workflow import ResumePlan, SentWorkflow
from slurmkit.cluster.workflow_plan import plan_workflow
from slurmkit.cluster.workflow_record import WorkflowRecords
from slurmkit.cluster.workflow_send import _last_first
from slurmkit.errors import (
    BadInput,
    ControllerDown,
    Interrupted,
    JobOver,
    Refused,
    SlurmkitError,
)
from slurmkit.spec.workflow import Workflow

DOWN = ControllerDown("slurmctld does not answer")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.delenv("SLURMKIT_CONFIG", raising=False)
    monkeypatch.setattr("slurmkit.cluster.workflow_send._IN_FLIGHT", 0)


@pytest.fixture
def lab() -> FlowLab:
    return FlowLab()


def send(lab: FlowLab, made: Workflow) -> SentWorkflow:
    return lab.submit_workflow(plan_workflow(made, lab))


def resume(lab: FlowLab, sent: SentWorkflow, made: Workflow, *again: str) -> ResumePlan:
    rest = sent.rest(made, again)
    sent.resume(plan_workflow(made, lab, names=rest.names("due")), rest)
    return rest


DIAMOND = {"a": (), "b": ("a",), "c": ("a:any",), "d": ("b", "c:start+5")}


def test_all_is_sent_held_and_the_first_is_released_last(lab: FlowLab) -> None:
    sent = send(lab, flow(**DIAMOND))
    assert [options["dependency"] for options in list(lab.sent.values())[1:]] == [
        "afterok:101",
        "afterany:101",
        "afterok:102,after:103+5",
    ]
    tags = [options["comment"] for options in lab.sent.values()]
    assert tags == [f"slurmkit-flow:{sent.token}:{name}" for name in "abcd"]
    assert all("hold" in options for options in lab.sent.values())
    assert lab.released == ["104", "103", "102", "101"]
    assert lab.workflow("flow").record == sent.record
    assert {name: each.id for name, each in sent.jobs.items()}["d"] == "104"


def test_what_its_user_holds_stays_held(lab: FlowLab) -> None:
    send(lab, Workflow("f", {"a": job(), "b": job(hold=True, comment="mine")}))
    assert lab.held() == ["102"]
    assert lab.sent["102"]["comment"].startswith("mine slurmkit-flow:")


def test_a_plan_with_errors_is_not_sent(lab: FlowLab) -> None:
    made = plan_workflow(Workflow("f", {"a": job(), "b": job(partition="no")}), lab)
    with pytest.raises(BadInput, match="b: no partition 'no'"):
        lab.submit_workflow(made)
    assert not lab.sent
    assert not WorkflowRecords(lab).records()


def test_a_refusal_half_way_leaves_nothing(lab: FlowLab) -> None:
    lab.refuses[3] = Refused("no")
    with pytest.raises(Refused, match="no; nothing was started: the 2 jobs sent before are canc"):
        send(lab, flow(**DIAMOND))
    assert lab.cancelled == [["101", "102"]]
    assert not lab.released
    assert not WorkflowRecords(lab).records()


def test_ctrl_c_finds_also_the_job_whose_id_was_not_heard(lab: FlowLab) -> None:
    lab.breaks[3] = KeyboardInterrupt()
    with pytest.raises(Interrupted, match="interrupted; nothing was started") as told:
        send(lab, flow(**DIAMOND))
    assert told.value.exit_code == 130
    assert lab.cancelled == [["101", "102", "103"]]
    assert not lab.released


def test_what_cannot_be_taken_back_stays_held_and_can_be_resumed(lab: FlowLab) -> None:
    lab.breaks[3], lab.cancel_fails = DOWN, DOWN
    with pytest.raises(
        ControllerDown, match="do not start until you go on: slurmkit workflow resume"
    ):
        send(lab, flow(**DIAMOND))
    assert lab.held() == ["101", "102", "103"]
    lab.cancel_fails = None
    (record,) = WorkflowRecords(lab).records()
    assert record.phase == "sending"
    rest = resume(lab, SentWorkflow(lab, record), flow(**DIAMOND))
    assert rest.verdicts == {"a": "live", "b": "live", "c": "due", "d": "due"}
    assert lab.cancelled == [["103"]]  # nobody had heard its id
    assert lab.sent["105"]["dependency"] == "afterok:102,after:104+5"
    assert lab.released == ["105", "104", "102", "101"]


def test_killed_at_any_moment_nothing_is_released_and_cancel_finds_all(tmp_path: Path) -> None:
    """As by kill -9: what would be cleared up is not."""

    class Killed(BaseException):
        pass

    for number in (1, 2, 3, 4):
        lab = FlowLab()
        lab.breaks[number] = Killed()
        with pytest.raises(Killed):
            send(lab, flow(**DIAMOND))
        assert len(lab.held()) == number
        assert not lab.released
        (record,) = [each for each in WorkflowRecords(lab).records() if each.phase == "sending"]
        assert not SentWorkflow(lab, record).cancel()
        assert sorted(i for ids in lab.cancelled for i in ids) == sorted(lab.sent)
        assert not lab.held()
    del tmp_path


def test_a_release_that_fails_is_ended_by_resume(lab: FlowLab) -> None:
    lab.release_fails = DOWN
    with pytest.raises(SlurmkitError, match="all jobs are sent, but not all released"):
        send(lab, flow(**DIAMOND))
    lab.release_fails = None
    rest = resume(lab, lab.workflow("flow"), flow(**DIAMOND))
    assert not rest.names("due")
    assert lab.released == ["104", "103", "102", "101"]
    assert lab.workflow("flow").record.phase == "sent"


def test_what_waits_for_others_is_cancelled_first(lab: FlowLab) -> None:
    sent = send(lab, flow(**DIAMOND))
    lab.end("101")
    assert not sent.cancel()
    assert lab.cancelled == [["104"], ["102", "103"], ["101"]]
    assert lab.workflow("flow").record.phase == "cancelled"


FAILING = {
    "prepare": (),
    "good": ("prepare",),
    "bad": ("prepare",),
    "join": ("good", "bad"),
    "mend": ("bad:notok",),
    "spare": ("good:notok",),
    "beyond": ("spare",),
    "last": ("join:any",),
}


def failed(lab: FlowLab) -> SentWorkflow:
    """`bad` fails, and what depends on it is given up by Slurm."""
    sent = send(lab, flow(**FAILING))
    ends = {"bad": "FAILED", "join": "CANCELLED by 0", "spare": "CANCELLED by 0"}
    ends |= {"beyond": "CANCELLED by 0"}
    for name, each in sent.jobs.items():
        lab.end(each.id, ends.get(name, "COMPLETED"))
    return sent


def test_resume_sends_what_failed_or_was_given_up_and_nothing_else(lab: FlowLab) -> None:
    sent = failed(lab)
    before = len(lab.sent)
    rest = resume(lab, sent, flow(**FAILING))
    assert rest.names("due") == ["bad", "join"]
    assert rest.names("skipped") == ["spare", "beyond"]
    assert rest.names("done") == ["prepare", "good", "mend", "last"]
    new = list(lab.sent.items())[before:]
    assert [options["comment"].rpartition(":")[2] for _, options in new] == ["bad", "join"]
    assert "dependency" not in new[0][1]  # what it waited for has completed
    assert new[1][1]["dependency"] == f"afterok:{new[0][0]}"
    assert lab.released[-2:] == [new[1][0], new[0][0]]
    assert lab.workflow("flow").record.jobs["bad"].ids == (new[0][0],)


def test_what_waits_for_a_job_sent_again_is_sent_again(lab: FlowLab) -> None:
    sent = send(lab, flow(**DIAMOND))
    lab.end("101", "FAILED")
    lab.end("102", "CANCELLED by 0")
    rest = resume(lab, sent, flow(**DIAMOND))
    assert rest.replaced == ("c", "d")  # they still wait for the jobs that failed
    assert lab.cancelled == [["104"], ["103"]]
    assert rest.names("due") == ["a", "b", "c", "d"]


def test_a_running_job_is_left_alone_and_waited_for(lab: FlowLab) -> None:
    sent = send(lab, flow(a=(), b=("a",), c=("a", "b")))
    lab.end("101")
    lab.jobs.runs_now("102", Comment=lab.sent["102"]["comment"])
    lab.end("103", "CANCELLED by 1000")
    rest = resume(lab, sent, flow(a=(), b=("a",), c=("a", "b")))
    assert rest.verdicts == {"a": "done", "b": "live", "c": "due"}
    assert lab.sent["104"]["dependency"] == "afterok:102"


def tasks_end(lab: FlowLab, job_id: str, **states: str) -> None:
    lab.jobs.leaves(job_id)
    lab.jobs.runs += [{"JobID": f"{job_id}_{i[1:]}", "State": s} for i, s in states.items()]


def test_of_an_array_only_what_did_not_complete_is_sent_again(lab: FlowLab) -> None:
    jobs = {"a": job(array="0-4", array_throttle=2), "b": job(), "c": job(array="0-4")}
    made = Workflow("flow", jobs, after={"b": ["a"]})
    sent = send(lab, made)
    well = dict.fromkeys(("t0", "t2", "t4"), "COMPLETED")
    for job_id in ("101", "102"):
        tasks_end(lab, job_id, **well, t1="FAILED", t3="CANCELLED by 0")
    lab.end("103", "CANCELLED by 0")
    assert sent.rest(made, ("c",)).missing == {"a": "1,3%2"}
    rest = sent.rest(made)
    assert rest.missing == {"a": "1,3%2", "c": "1,3"}
    due = plan_workflow(made, lab, names=rest.names("due"), arrays=rest.missing)
    assert "#SBATCH --array=1,3%2\n" in due.plans["a"].submissions[0].script
    sent.resume(due, rest)
    assert lab.workflow("flow").record.jobs["a"].array == "1,3%2"
    tasks_end(lab, "104", t1="COMPLETED", t3="FAILED")
    tasks_end(lab, "105", t1="COMPLETED", t3="COMPLETED")
    lab.end("106", "CANCELLED by 0")
    rest = lab.workflow("flow").rest(made)
    assert (rest.names("due"), rest.missing) == (["a", "b"], {"a": "3%2"})
    assert not rest.differs


def test_an_array_that_is_waited_for_task_by_task_is_sent_whole(lab: FlowLab) -> None:
    jobs = {"a": job(array="0-2"), "b": job(array="0-2")}
    made = Workflow("flow", jobs, after={"b": ["a:corr"]})
    sent = send(lab, made)
    for job_id in ("101", "102"):
        tasks_end(lab, job_id, t0="COMPLETED", t1="FAILED", t2="COMPLETED")
    assert sent.rest(made).missing == {"b": "1"}


def test_what_goes_wrong_under_the_lock_is_told_as_it_is(lab: FlowLab) -> None:
    with pytest.raises(BlockingIOError, match="of the body"), WorkflowRecords(lab).locked("0" * 8):
        raise BlockingIOError("of the body")


def test_a_finished_job_runs_again_when_it_is_named(lab: FlowLab) -> None:
    sent = failed(lab)
    rest = sent.rest(flow(**FAILING), ("good",))
    assert rest.names("due") == ["good", "bad", "join", "spare", "beyond"]
    with pytest.raises(BadInput, match="no job 'god' in flow; did you mean 'good'"):
        sent.rest(flow(**FAILING), ("god",))


def test_a_job_that_nobody_knows_is_not_guessed_about(lab: FlowLab) -> None:
    sent = send(lab, flow(a=(), b=("a",)))
    lab.end("102", "CANCELLED by 0")
    lab.jobs.leaves("101")
    with pytest.raises(BadInput, match="it is unknown how a ended"):
        resume(lab, sent, flow(a=(), b=("a",)))
    assert resume(lab, sent, flow(a=(), b=("a",)), "a").names("due") == ["a", "b"]


def test_a_change_is_noticed_and_what_is_taken_out_is_kept_in_sight(lab: FlowLab) -> None:
    sent = send(lab, flow(a=(), b=("a",), c=("b",)))
    lab.end("101", "FAILED")
    now = Workflow("flow", {"a": job(time="20"), "b": job(), "n": job()}, after={"b": ("a",)})
    rest = sent.rest(now)
    assert (rest.changed, rest.added, rest.left_out) == (("a",), ("n",), ("c",))
    assert not sent.rest(flow(a=(), b=("a",), c=("b",))).differs
    sent.resume(plan_workflow(now, lab, names=rest.names("due")), rest)
    assert lab.workflow("flow").record.jobs["c"].ids == ("103",)
    assert lab.cancelled == [["102"]]  # it waited for `a`, which is sent again


def test_two_at_once_do_not_send_twice(lab: FlowLab) -> None:
    sent = send(lab, flow(a=()))
    with (
        WorkflowRecords(lab).locked(sent.token),
        pytest.raises(SlurmkitError, match="another slurmkit is working"),
    ):
        sent.cancel()


def test_no_workflow_of_that_name(lab: FlowLab) -> None:
    with pytest.raises(BadInput, match="none was sent from here"):
        lab.workflow("flow")
    send(lab, flow(a=()))
    with pytest.raises(BadInput, match="did you mean 'flow'"):
        lab.workflow("flaw")


TOML = """
[defaults]
time = "10"
command = ["x"]
[jobs.a]
[jobs.b]
after = ["a"]
[jobs.c]
after = ["b:notok"]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: FlowLab) -> str:
    for module in ("workflow", "workflow_tables"):
        monkeypatch.setattr(f"slurmkit.cli.{module}.Cluster", lambda: lab, raising=False)
    path = tmp_path / "p.toml"
    path.write_text(TOML, "utf-8")
    return str(path)


def run(*args: str) -> int:
    return run_to_exit_code(cli, ["workflow", *args])


def test_on_the_command_line(
    file: str, lab: FlowLab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("plan", file) == 0
    shown = capsys.readouterr()
    assert "└─ b" in shown.out
    assert "Total    3 jobs, at most 0 GPU-hours, 0.5 CPU-hours" in shown.err
    assert run("plan", file, "--script", "b") == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH --job-name=b\n")
    assert run("plan", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"][2]["after"] == ["b:notok"]
    assert run("submit", file, "--parsable") == 0
    token = capsys.readouterr().out.strip()
    for job_id, state in (("101", "FAILED"), ("102", "CANCELLED by 0"), ("103", "COMPLETED")):
        lab.end(job_id, state)
    assert run("show", token) == 0
    shown = capsys.readouterr()
    assert "given up: a FAILED" in shown.out
    assert run("show", token, "--json") == 0
    states = [each["state"] for each in json.loads(capsys.readouterr().out)["rows"]]
    assert states == ["FAILED", "CANCELLED", "COMPLETED"]
    assert run("list") == 0
    assert "1 FAILED, 1 CANCELLED, 1 COMPLETED" in capsys.readouterr().out
    assert run("resume", "p", "--dry-run") == 0
    assert "to be submitted (2): a, b" in capsys.readouterr().err
    assert len(lab.sent) == 3
    monkeypatch.chdir("/")  # jobs start where they did
    assert run("resume", "p") == 0
    assert "2 jobs submitted" in capsys.readouterr().out
    assert run("cancel", "p") == 0
    assert "cancelled workflow p" in capsys.readouterr().out


def test_a_changed_file_is_said_and_asked_for(
    file: str, lab: FlowLab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("submit", file) == 0
    for job_id in list(lab.sent):
        lab.end(job_id, "FAILED")
    Path(file).write_text(TOML.replace('"10"', '"20"') + "[jobs.d]\n", "utf-8")
    assert run("resume", "p") == 2
    said = capsys.readouterr().err
    assert "has changed since it was submitted (changed: a, b, c; new: d); add --changed" in said
    assert len(lab.sent) == 3
    assert run("resume", "p", "--changed") == 0
    assert len(lab.sent) > 3


def test_wait_ends_with_how_it_ended(
    file: str, lab: FlowLab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("submit", file) == 0
    for job_id, state in (("101", "COMPLETED"), ("102", "COMPLETED"), ("103", "CANCELLED by 0")):
        lab.end(job_id, state)
    assert run("wait", "p") == 0
    assert "3 of 3 jobs are done" in capsys.readouterr().err
    lab.jobs.runs[:] = []
    for job_id, state in (("101", "FAILED"), ("102", "CANCELLED by 0"), ("103", "COMPLETED")):
        lab.end(job_id, state)
    assert run("wait", "p") == 1
    said = capsys.readouterr().err
    assert "a: FAILED" in said
    assert "b: given up: a FAILED" in said


def test_names_are_completed(file: str, lab: FlowLab) -> None:
    assert run("submit", file) == 0
    (found,) = [p for p in show_command.params if p.name == "workflow"]
    context = click.Context(show_command)
    words = [item.value for item in found.shell_complete(context, "")]
    assert "p" in words
    assert WorkflowRecords(lab).records()[0].token in words
    assert isinstance(lab, Cluster)


def test_a_workflow_without_its_record_is_found_by_the_tags(
    lab: FlowLab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = send(lab, flow(**DIAMOND))
    lab.jobs.queue["104"]["Dependency"] = "afterok:102(unfulfilled),after:103+5(unfulfilled)"  # type: ignore[index]
    lab.end("101")
    lab.jobs.leaves("101")
    lab.jobs.runs[0] = {
        **lab.jobs.runs[0],
        "SubmitLine": f"sbatch --comment=slurmkit-flow:{sent.token}:a",
    }
    WorkflowRecords(lab).remove(sent.token)
    found = lab.workflow(sent.token)
    assert {name: job.ids for name, job in found.record.jobs.items()} == {
        "a": ("101",),
        "b": ("102",),
        "c": ("103",),
        "d": ("104",),
    }
    assert found.record.jobs["d"].after == ("b", "c:start")
    assert found.look()["a"].state == "COMPLETED"
    monkeypatch.setattr("slurmkit.cli.workflow.Cluster", lambda: lab)
    assert run("list") == 0
    assert sent.token in capsys.readouterr().out
    assert run("resume", sent.token) == 2
    assert "its record is lost" in capsys.readouterr().err
    assert not found.cancel()
    assert lab.cancelled == [["104"], ["101", "102", "103"]]


def test_a_workflow_that_has_ended_is_not_cancelled(
    lab: FlowLab, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = lab.submit_workflow(plan_workflow(flow(**DIAMOND), lab))
    for job_id in lab.sent:
        lab.end(job_id)
    with pytest.raises(JobOver, match="workflow flow has already ended"):
        sent.cancel()
    assert lab.workflow("flow").record.phase == "sent"


def test_a_workflow_of_which_some_jobs_have_ended_is_cancelled(lab: FlowLab) -> None:
    sent = lab.submit_workflow(plan_workflow(flow(**DIAMOND), lab))
    lab.end("101")
    assert not sent.cancel()
    assert lab.workflow("flow").record.phase == "cancelled"
    with pytest.raises(JobOver, match="workflow flow has already ended"):
        sent.cancel()


def test_parts_of_an_array_are_cancelled_last_first() -> None:
    assert list(_last_first([("1", "2", "3"), ("4",)])) == [["3", "4"], ["2"], ["1"]]
    assert not list(_last_first([]))
