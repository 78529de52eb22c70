"""The form that submits a job: typing, checking, sending."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_queue import NOW, expect_text, text, until
from form_scene import FormScene, HeldPause, form, looked_at, the_form, typed
from hypothesis import example, given
from hypothesis import strategies as st
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.jobform.draft import form_texts, parse_form
from slurmkit_tui.jobform.fields import field_of_finding
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.submit.form import SubmitForm, load_draft_file, write_job_file
from slurmkit_tui.submit.messages import may_be_submitted

from slurmkit.errors import (
    BadInput,
    ControllerDown,
    Refused,
    SentUnknown,
    SlurmkitError,
    SlurmTimeout,
)
from slurmkit.spec.containers import Container
from slurmkit.spec.findings import Finding
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobfile import format_job_file, load_job_file
from slurmkit.spec.jobspec import JobSpec, Launch

SPECS = (
    JobSpec(command=("python", "train.py", "--lr", "0.1")),
    JobSpec(command=("A=1", "a b", "c\n'''\x1b[2J\x7f$HOME", "[bold]x")),
    JobSpec(
        script="#!/bin/bash\n\techo 'x' | wc\n# é '''\n",
        job_name="[bold]ä\x1b[31m",
        gpus=Gpus(fraction=0.5, type="a100", bind="none"),
        gres="tmp:1",
        nodes="1-4",
        exclusive=True,
        requeue=False,
        time="1:00:00",
        environment={"A": "x\ny", "B": ""},
        options={"contiguous": "", "wckey": "a=b"},
        nice=0,
        launch=Launch(label=True),
    ),
    JobSpec(command=("x",), gpus=Gpus(2, "a100", "task"), comment="it's #1", mem_per_gpu="4G"),
    JobSpec(command=("x",), gpus=Gpus(shard=2, type="h100"), gres="tmp:1", hold=True),
    JobSpec(
        command=("x",),
        launch=Launch(
            launcher="torchrun",
            mpi="none",
            per_gpu=False,
            log_per_rank=True,
            nccl_debug="WARN",
            preflight="nccl",
        ),
        environment={"A": "1"},
        container=Container(
            image="nvcr.io#nvidia/pytorch:25.06-py3",
            mounts=("/data:/data:ro+nosuid", "tmpfs:/tmp"),
            workdir="/w d",
            mount_home=False,
            remap_root=True,
            writable=False,
            entrypoint=True,
            entrypoint_log=True,
            environment=("A", "B"),
            name="train:create",
            save="/x.sqsh",
            unshare=("ipc",),
            runtime="pyxis",
        ),
    ),
    JobSpec(command=("x",), container=Container(image="/x.sqsh", writable=True)),
    JobSpec(
        command=("x",),
        gpus=Gpus(4, "a100", sockets=2),
        sockets_per_node=2,
        cpus_per_gpu=4,
        hint="nomultithread",
        overcommit=True,
        launch=Launch(cpu_bind="cores"),
        options={"export": "PATH", "distribution": "block:cyclic"},
    ),
    JobSpec(command=("x",), gpus=Gpus(mig="3g.20gb"), array="0-9%2", dependency="afterok:1"),
)


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_texts_and_job_files_mean_the_same_job(spec: JobSpec, tmp_path: Path) -> None:
    assert parse_form(form_texts(spec)).spec == spec
    write_job_file(tmp_path / "job.toml", spec)
    assert JobSpec(**load_job_file(tmp_path / "job.toml")) == spec
    assert parse_form(load_draft_file(tmp_path / "job.toml").texts).spec == spec
    with pytest.raises(BadInput, match="is there already"):
        write_job_file(tmp_path / "job.toml", spec)


@pytest.mark.parametrize("others", [{"gpus": "a100:2"}, {"gpus": "4", "gpus-for": "job"},
                                    {"ntasks": "4"}])  # fmt: skip
def test_tasks_for_each_gpu_go_with_the_gpus_or_tasks_of_another_field(
    others: dict[str, str],
) -> None:
    found = parse_form({"what": "x", "ntasks-per-gpu": "2", **others})
    assert found.wrong == {}
    assert found.spec is not None
    assert found.spec.ntasks_per_gpu == 2


def test_tasks_and_cpus_for_each_gpu_that_do_not_fit_are_said_in_their_field() -> None:
    alone = parse_form({"what": "x", "ntasks-per-gpu": "2"})
    assert "needs GPUs" in alone.wrong["ntasks-per-gpu"]
    twice = parse_form({"what": "x", "gpus": "2", "cpus-per-gpu": "4", "cpus-per-task": "2"})
    assert "cannot be combined" in "".join(twice.wrong.values())
    word = parse_form({"what": "x", "gpus": "2", "cpus-per-gpu": "many"})
    assert "whole number" in word.wrong["cpus-per-gpu"]
    spec = parse_form({"what": "x", "gpus": "2", "cpus-per-gpu": "4"}).spec
    assert spec is not None
    assert form_texts(spec)["cpus-per-gpu"] == "4"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--container-imag=x", "did you mean"),
        ("--container-writable=true --container-image=x", "--container-writable takes no value"),
        ("--container-image", "--container-image needs a value"),
        ("--container-workdir=/w", "a container needs an image"),
        ("--task-per-gpu=2", "--task-per-gpu is yes or no"),
        ("--launch=A", "launch.launcher 'A' is not a name"),
    ],
)
def test_what_is_wrong_among_our_own_options_is_said(more: str, says: str) -> None:
    found = parse_form({"what": "x", "more": more})
    assert found.spec is None
    assert says in found.wrong["more"]


def test_a_job_file_of_a_spec_is_readable() -> None:
    said = format_job_file(SPECS[2])
    assert '[gpus]\ntype = "a100"\nfraction = 0.5' in said


@example(["", "0="])
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
                min_size=1))  # fmt: skip
def test_any_command_is_the_same_after_the_form(words: list[str]) -> None:
    if any("\r\n" in word for word in words) or not "".join(words).strip():
        return
    spec = JobSpec(command=tuple(words))
    assert parse_form(form_texts(spec)).spec == spec


@pytest.mark.parametrize(
    ("runs", "is_script"),
    [
        ("python train.py", False),
        ("echo 'a | b; $c'", False),
        ("echo $HOME", True),
        ("a && b", True),
        ("X=1 a", True),
        ("a\nb", True),
        ("#!/usr/bin/env python3\nprint(1)", True),
    ],
)
def test_what_a_shell_has_to_read_is_a_batch_script(runs: str, is_script: bool) -> None:
    spec = parse_form({"what": runs}).spec
    assert spec is not None
    assert (spec.script is not None) == is_script


def test_a_scripts_own_lines_are_weaker_than_the_fields() -> None:
    runs = "#!/bin/bash\n#SBATCH --time=5 -N2\nls"
    spec = parse_form({"what": runs, "time": "10"}).spec
    assert (spec.time, spec.nodes, spec.script) == ("10", 2, "#!/bin/bash\nls")


@pytest.mark.parametrize(
    ("texts", "field", "words"),
    [
        ({"time": "x"}, "time", "is not one of Slurm's forms"),
        ({"ntasks": "two"}, "ntasks", "whole number"),
        ({"gpus": "a100:"}, "gpus", "cannot read GPUs 'a100:'"),
        ({"gpus": "2", "gpus-for": "rack"}, "gpus-for", "node, task or job"),
        ({"mem": "9", "more": "--mem-per-cpu=3"}, "more", "cannot be combined"),
        ({"more": "--wrap=x"}, "more", "not passed on"),
        ({"more": "--gpu-bind=none"}, "more", "needs GPUs"),
        ({"job-name": "a\nb"}, "job-name", "line break"),
        ({"what": "ls 'a"}, "what", "quotation"),
        ({"what": ""}, "what", "enter what the job runs"),
    ],
)
def test_what_is_wrong_is_told_of_its_field(texts: dict[str, str], field: str, words: str) -> None:
    reading = parse_form({"what": "ls", **texts})
    assert reading.spec is None
    assert list(reading.wrong) == [field]
    assert words in reading.wrong[field]


# On the screen


async def test_a_job_is_checked_while_it_is_typed_and_sent_once() -> None:
    scene = FormScene()
    async with form(scene) as pilot:
        app = pilot.app
        await pilot.press(*"python train.py")
        await typed(pilot, gpus="a100:1", time="10")
        await expect_text(pilot, "ready")
        assert "#SBATCH --gpus-per-node=a100:1" in text(app)
        assert "srun --cpus-per-task=1" in text(app)
        assert "--test-only)" in text(app)
        assert "ready, checked " in text(app)
        assert not scene.sent
        await pilot.press("ctrl+s")
        await expect_text(pilot, "sbatch --parsable")
        await pilot.press("y", "y", "enter", "enter", "ctrl+s")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        plan = scene.fetch(scene.planned[-1]).value
        assert scene.sent == [plan.submissions[0].script]
        assert app.screen.job_id == "7"
        await pilot.press("escape", "n")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        assert app.screen.texts == {}


async def test_the_log_of_actions_names_the_job(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    scene = FormScene()
    async with form(scene) as pilot:
        await typed(pilot, what="hostname", job_name="[red]x")
        await pilot.press("ctrl+s")
        await expect_text(pilot, "sbatch --parsable")
        await pilot.press("y")
        await until(pilot, lambda: bool(scene.sent))
        log = tmp_path / "slurmkit" / "tui-actions.log"
        await until(pilot, log.exists)
        assert "sbatch --parsable submitted job 7 [red]x" in log.read_text()


async def test_errors_stand_beside_their_field_and_stop_the_sending() -> None:
    scene = FormScene()
    async with form(scene) as pilot:
        app = pilot.app
        await typed(pilot, what="hostname", gpus="a100:99", qos="nonsense")
        shown = text(app).splitlines()
        at = next(n for n, line in enumerate(shown) if line.startswith(" QOS "))
        assert "error: " in shown[at + 1]
        assert "fits:" in text(app)
        await pilot.press("ctrl+s")
        await expect_text(pilot, "not sent:")
        assert isinstance(app.screen, SubmitForm)
        assert not scene.sent


@pytest.mark.parametrize(
    ("code", "source", "field"),
    [
        ("partition-max-time", "partition gpu: MaxTime=7-0", "time"),
        ("qos-max-wall", "QOS high: MaxWall=1440", "time"),
        ("qos-max-tres-per-user", "QOS high: MaxTRESPU gres/gpu=8", "gpus"),
        ("qos-not-allowed", "sacctmgr", "qos"),
        ("partition-max-mem-per-node", "partition gpu: MaxMemPerNode=9", "mem"),
        ("partition-unknown", "partitions", "partition"),
        ("slurm-refuses", "sbatch --test-only", ""),
    ],
)
def test_the_field_that_a_finding_is_about(code: str, source: str, field: str) -> None:
    fix = (("qos", "normal"), ("time", "1"))
    made = Finding(severity="error", code=code, message="", source=source, fix=fix if field else ())
    assert field_of_finding(made) == field


async def test_what_fits_is_taken_over() -> None:
    async with form(FormScene()) as pilot:
        await typed(pilot, what="hostname", time="30-0")
        assert "error" in text(pilot.app)
        await pilot.press("ctrl+f")
        await looked_at(pilot)
        assert the_form(pilot.app).texts["time"] == "7-00:00:00"
        assert "ready" in text(pilot.app)


async def test_what_fits_changes_nothing_else_and_says_what_it_changed() -> None:
    async with form(FormScene()) as pilot:
        await typed(pilot, what="cat x | wc  -l", time="30-0", mem="2048M")
        await pilot.press("ctrl+f")
        await expect_text(pilot, "Time: 30-0 is now 7-00:00:00")
        await looked_at(pilot)
        wanted = {"what": "cat x | wc  -l", "time": "7-00:00:00", "mem": "2048M"}
        assert the_form(pilot.app).texts == wanted


async def test_what_a_script_itself_asks_for_is_changed_too() -> None:
    script = "#!/bin/bash\n#SBATCH --time=30-0\nls\n"
    async with form(FormScene()) as pilot:
        await typed(pilot, what=script)
        await pilot.press("ctrl+f")
        await looked_at(pilot)
        assert the_form(pilot.app).planner.planned.spec.time == "7-00:00:00"
        assert not the_form(pilot.app).planner.planned.errors


async def test_too_much_memory_is_told_beside_memory() -> None:
    async with form(FormScene()) as pilot:
        await typed(pilot, what="ls", mem="900T")
        messages = the_form(pilot.app).planner.planned.messages
        assert "of memory" in messages["mem"].words
        assert "nodes" not in messages


async def test_too_many_gpus_and_too_much_memory_are_told_beside_gpus() -> None:
    async with form(FormScene()) as pilot:
        await typed(pilot, what="ls", gpus="99")
        assert "gpus" in the_form(pilot.app).planner.planned.messages


async def test_escape_leaves_the_preview_first_and_then_the_form() -> None:
    async with form(FormScene(), (80, 24)) as pilot:
        await typed(pilot, what="hostname")
        await pilot.press("ctrl+t")
        await expect_text(pilot, "#SBATCH")
        await pilot.press("escape")
        await expect_text(pilot, "Runs")
        await pilot.press("x")
        await until(pilot, lambda: the_form(pilot.app).texts["what"] == "xhostname")
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, SubmitForm))


async def test_the_palette_has_what_the_form_can_do() -> None:
    async with form(FormScene()) as pilot:
        app = pilot.app
        offered = {each.title.partition("  ")[0] for each in app.get_system_commands(app.screen)}
        assert {"Send", "Preview", "Values", "Fit", "Open file", "Save file", "Close"} <= offered
        assert "Cancel" not in offered
        await pilot.press("ctrl+p", *"Save file", "enter")
        await expect_text(pilot, "not saved: enter what the job runs")


async def test_an_answer_to_an_older_text_is_dropped() -> None:
    scene = FormScene()
    async with form(scene) as pilot:
        await looked_at(pilot)
        with scene.gate:
            the_form(pilot.app).row("what").text = "first"
            await until(pilot, lambda: len(scene.planned) == 1)
            the_form(pilot.app).row("what").text = "second"
            await expect_text(pilot, "no error found")
            await pilot.press("ctrl+s")  # sent once it was judged, not before
            await pilot.pause(0.5)
            assert len(scene.planned) == 1  # one question at a time
            assert isinstance(pilot.app.screen, SubmitForm)
        await expect_text(pilot, "Submit second to")
        assert len(scene.planned) == 2
        assert "first" not in str(the_form(pilot.app).planner.planned.texts)


async def test_typing_asks_slurm_nothing_and_a_form_left_still_asks_once() -> None:
    scene, pause = FormScene(), HeldPause()
    async with form(scene, pause=pause) as pilot:
        app, shown = pilot.app, the_form(pilot.app)
        app.paused = True
        app._schedule(None)
        await looked_at(pilot)
        before, known = scene.calls, scene.asked.count("known")
        for number in range(1, 6):
            shown.row("what").text = f"python train.py --lr 0.{number}"
            shown.row("cpus-per-task").text = str(number)
            await until(pilot, lambda: shown.planner.current is not None)
        await expect_text(pilot, "no error found")
        await until(pilot, lambda: pause.waiting == 1)
        assert "slurmctld is asked 2 s after" in text(app)
        assert scene.calls == before
        assert scene.asked.count("known") == known == 1
        pause.ends.set()
        await expect_text(pilot, "ready, ")
        assert len(scene.planned) == 1
        assert "at the earliest" in text(app)
        judged = scene.calls
        await pilot.pause(1.5)
        assert scene.calls == judged  # as long as nothing changes
        pause.ends.clear()
        shown.row("cpus-per-task").text = "1"
        await until(pilot, lambda: shown.planner.current is not None)
        assert "at the earliest" not in text(app)  # the estimate was of another job


async def test_what_does_not_fit_is_checked_against_the_cluster_of_now_but_seldom() -> None:
    scene = FormScene()
    now = NOW
    async with form(scene, clock=lambda: now) as pilot:
        await typed(pilot, what="hostname", time="30-0")
        assert scene.asked.count("known") == 1
        now = NOW + 61
        await typed(pilot, time="31-0")
        await typed(pilot, time="32-0")
        assert [ask for ask in scene.abouts if ask.what == "known"][1:] == [
            FeedQuestion("known", ("now",))
        ] * 2  # the fake's standing is as old as ever
        assert not scene.planned


async def test_a_refusal_keeps_what_was_typed() -> None:
    scene = FormScene()
    scene.refusal = Refused("[bold]Invalid\x1b[2J account")
    async with form(scene) as pilot:
        await typed(pilot, what="hostname")
        await pilot.press("ctrl+s", "y")
        await expect_text(pilot, "not submitted: [bold]Invalid\\x1b[2J")
        assert the_form(pilot.app).texts == {"what": "hostname"}
        scene.refusal = None
        await pilot.press("ctrl+s", "y")
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))
        assert len(scene.sent) == 1


async def test_of_a_lost_answer_it_is_said_that_nobody_knows() -> None:
    scene = FormScene()
    scene.refusal = SlurmTimeout("sbatch took longer than 60 s")
    async with form(scene) as pilot:
        await typed(pilot, what="hostname")
        await pilot.press("ctrl+s", "y")
        await expect_text(pilot, "unknown whether the job was submitted")
        await pilot.press("ctrl+s")
        await expect_text(pilot, "may have submitted a job already")
        assert not scene.sent


async def test_help_open_while_it_is_sent_leaves_no_form_to_send_again() -> None:
    scene = FormScene()
    async with form(scene) as pilot:
        app = pilot.app
        await typed(pilot, what="hostname")
        await pilot.press("ctrl+s")
        await expect_text(pilot, "sbatch --parsable")
        with scene.sending:
            await pilot.press("y", "f1")
            await until(pilot, lambda: "sending" in text(app) or app.screen.is_modal)
        await until(pilot, lambda: bool(scene.sent) and not the_form(app)._sending)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        assert len(scene.sent) == 1


async def test_keys_for_a_dialog_never_answer_the_question_to_send() -> None:
    scene = FormScene()
    async with form(scene) as pilot:
        app = pilot.app
        await looked_at(pilot)
        with scene.gate:
            the_form(app).row("what").text = "hostname"
            await pilot.press("ctrl+s", "ctrl+o")
            await expect_text(pilot, "Open file")
            await until(pilot, lambda: len(scene.planned) == 1)
        await until(pilot, lambda: not the_form(app).planner.judging)
        await pilot.press("y", "y")
        await pilot.pause()
        assert "Open file" in text(app)
        assert not scene.sent


@pytest.mark.parametrize(
    ("error", "unsure"),
    [
        (SlurmTimeout("x"), True),
        (SentUnknown("the job x may have been submitted"), True),
        (Refused("sbatch: error: Socket timed out on send/recv operation"), True),
        (Refused("Invalid account"), False),
        (ControllerDown("slurmctld does not answer"), False),
        (BadInput("the plan has errors"), False),
    ],
)
def test_when_a_job_may_have_been_taken(error: SlurmkitError, unsure: bool) -> None:
    assert may_be_submitted(error) == unsure
