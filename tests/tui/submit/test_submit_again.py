"""The form that submits a job: made from an old one."""

from __future__ import annotations

import pytest
from fake_queue import expect_text, job, text, until
from form_scene import FormScene, looked_at, the_form, typed
from recorded_lab import capabilities, standing
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.jobform.draft import Draft, form_texts_of_fields, parse_form
from slurmkit_tui.jobform.past_jobs import _options_of_line
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.submit.form import SubmitForm
from textual.command import CommandPalette

from slurmkit.errors import (
    ControllerDown,
)
from slurmkit.planning.planner import plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec

# Old jobs

OURS = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --gpus-per-node=a100:2
#SBATCH --chdir=/home/alice

srun --cpus-per-task=1 -- python train.py '[bold]$x'
"""


def run(**fields: str) -> dict[str, str]:
    return {
        "JobID": "9", "Partition": "gpu", "Account": "vision", "QOS": "normal",
        "Timelimit": "00:10:00", "Reservation": "", "Constraints": "", "WorkDir": "/home/alice",
        "NNodes": "1", "ReqTRES": "billing=9,cpu=2,gres/gpu:a100=2,gres/gpu=2,mem=4G,node=1",
        "AllocTRES": "billing=9,cpu=2,gres/gpu:a100=2,gres/gpu=2,mem=4G,node=1",
        "JobName": "train", "SubmitLine": "sbatch --parsable", "Submit": "1699990000", **fields,
    }  # fmt: skip


def test_an_old_job_is_its_script_and_its_options() -> None:
    scene = FormScene()
    scene.runs, scene.batch = [run()], OURS
    past = scene.fetch(FeedQuestion("past", ("9",))).value
    assert past.notes == ()
    spec = parse_form(past.texts).spec
    assert spec.command == ("python", "train.py", "[bold]$x")
    assert (spec.gpus, spec.time, spec.qos) == (Gpus(2, "a100"), "00:10:00", "normal")
    assert past.proposals == ()


def test_secrets_of_an_old_job_are_to_be_given_again() -> None:
    scene, secret = FormScene(), {"HF_TOKEN": "it's", "API_KEY": "x y"}
    scene.runs = [run()]
    command = JobSpec(command=("python", "a b"), environment=secret, time="1")
    script = JobSpec(script="#!/bin/sh\nhostname\n", environment=secret, time="1")
    for spec, what in ((command, "python 'a b'"), (script, "#!/bin/sh\n\n\nhostname\n")):
        (sent,) = plan_offline(spec, SiteState(capabilities(), standing())).submissions
        scene.batch = sent.script
        past = scene.fetch(FeedQuestion("past", ("9",))).value
        assert past.texts["what"].split() == what.split()
        assert past.notes == (
            "secrets are not copied; set them again with --env: HF_TOKEN, API_KEY",
        )


def test_a_script_that_is_not_known_is_said_and_left_empty() -> None:
    scene = FormScene()
    scene.runs = [run(SubmitLine="sbatch job.sh --lr 3")]
    scene.stored = "Batch Script for 9\n-----\nNONE\n"
    past = scene.fetch(FeedQuestion("past", ("9",))).value
    assert "what" not in past.texts
    assert "script is no longer known" in past.notes[0]
    assert past.texts["gpus"] == "a100:2"
    assert past.texts["mem"] == "4G"
    assert past.texts["cpus-per-task"] == "2"
    scene.stored = "Batch Script for 9\n-----\n#!/bin/sh\nhostname\n"
    assert scene.fetch(FeedQuestion("past", ("9",))).value.texts["what"] == "#!/bin/sh\nhostname\n"


async def test_what_is_unknown_of_an_old_job_stays_on_the_form() -> None:
    scene = FormScene()
    scene.jobs, scene.runs = [job("9", UserName="alice")], [run(SubmitLine="sbatch job.sh --lr 3")]
    app = scene.app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await expect_text(pilot, "alice")
        await pilot.press("A")
        await expect_text(pilot, "note: its script is no longer known")
        assert not app._notifications
        await typed(pilot, what="hostname")
        assert "note: its script is no longer known" in text(app)


def test_more_of_what_ran_out_is_offered_first() -> None:
    scene = FormScene()
    scene.batch = OURS
    scene.runs = [run(State="OUT_OF_MEMORY", ExitCode="0:125")]
    (memory,) = scene.fetch(FeedQuestion("past", ("9",))).value.proposals
    assert memory.texts["mem"] == "8G"
    assert "--mem=8G" in memory.why
    scene.runs = [run(State="TIMEOUT", ExitCode="0:0")]
    (longer,) = scene.fetch(FeedQuestion("past", ("9",))).value.proposals
    assert longer.texts["time"] == "20:00"
    assert "--time=20:00" in longer.why


@pytest.mark.parametrize(
    ("line", "pairs", "rest"),
    [
        ("sbatch --parsable", [], []),
        ("sbatch -N2 --contiguous job.sh --lr 3", [("nodes", "2"), ("contiguous", "")],
         ["job.sh", "--lr", "3"]),
        ("sbatch --mem=1G --wrap sleep 1 && echo", [("mem", "1G")], []),
        ("sbatch --comment it's --wrap x", [("comment", "it's")], []),
        ("srun --pty bash", [], []),
    ],
)  # fmt: skip
def test_options_of_a_line_without_quotes(line: str, pairs: list, rest: list) -> None:
    assert _options_of_line(line) == (pairs, rest)


def test_fields_no_job_can_have_are_named() -> None:
    texts, wrong = form_texts_of_fields({"job_name": "a\nb", "time": "5"})
    assert texts == {"time": "5"}
    assert "line break" in wrong[0]


async def test_an_old_job_opens_the_form_with_a_choice() -> None:
    scene = FormScene()
    scene.batch = OURS
    scene.jobs = [job("9", UserName="alice", State="OUT_OF_MEMORY")]
    scene.runs = [run(State="OUT_OF_MEMORY", ExitCode="0:125")]
    app = scene.app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await expect_text(pilot, "OUT_OF_MEMORY")
        await pilot.press("A")
        await expect_text(pilot, "More memory")
        assert "As it was" in text(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        assert app.screen.texts["mem"] == "8G"
        await looked_at(pilot)
        assert "from job 9" in text(app)
        app.session.draft = Draft({"what": "mine"})


async def test_the_job_on_the_screen_is_submitted_again() -> None:
    scene = FormScene()
    scene.batch, scene.runs = OURS, [run(State="RUNNING")]
    scene.jobs = [job("9", UserName="alice")]
    app = scene.app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await expect_text(pilot, "RUNNING")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        assert app.screen.texts["what"] == "python train.py '[bold]$x'"


@pytest.mark.parametrize("key", ["n", "A"])
async def test_the_keys_of_the_form_work_over_a_jobs_screen(key: str) -> None:
    """Tab was dead, and what was typed for a field went into the command."""
    scene = FormScene()
    scene.batch, scene.runs = OURS, [run(State="RUNNING")]
    scene.jobs = [job("9", UserName="alice")]
    app = scene.app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await expect_text(pilot, "RUNNING")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        await until(pilot, lambda: the_form(app)._offers is not None)
        chain = app.screen.focus_chain
        at = chain.index(app.screen.focused)
        steps = (("tab", 1), ("tab", 1), ("down", 1), ("up", -1), ("shift+tab", -1))
        for pressed, step in steps:
            at += step
            await pilot.press(pressed)
            assert app.screen.focused is chain[at]
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))


async def test_without_slurmctld_all_fields_are_there_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = FormScene()

    def down(*_: object, **__: object) -> None:
        raise ControllerDown("slurmctld does not answer")

    monkeypatch.setattr(scene._cluster, "standing", down)
    app = scene.app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("n")
        await expect_text(pilot, "this cluster offers: slurmctld")
        assert the_form(app).row("reservation").display
        await typed(pilot, what="hostname")
        assert "not ready: slurmctld does not answer" in text(app)
        await pilot.press("ctrl+s")
        await expect_text(pilot, "not sent: slurmctld does not answer")
        assert not scene.sent
