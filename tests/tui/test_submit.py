"""The form that submits a job: typing, checking, sending; files and old jobs."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from fake_queue import NOW, job, text, until
from form_scene import FormScene, form, looked_at, the_form, typed
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from slurmkit_tui.feed import Ask
from slurmkit_tui.feed.recording import RecordingFeed, ReplayFeed
from slurmkit_tui.jobscreen import JobScreen
from slurmkit_tui.submit import drafts
from slurmkit_tui.submit import form as form_module
from slurmkit_tui.submit.draft import Draft, read, texts_of, texts_of_fields
from slurmkit_tui.submit.fields import FIELDS, field_of
from slurmkit_tui.submit.files import draft_of, write_draft
from slurmkit_tui.submit.form import SubmitForm
from slurmkit_tui.submit.inputs import Area, Row
from slurmkit_tui.submit.offers import offers
from slurmkit_tui.submit.past import _options_of_line
from slurmkit_tui.submit.script import ScriptView, cuts
from slurmkit_tui.submit.words import is_unsure

from slurmkit.capabilities.model import Reservation
from slurmkit.errors import (
    BadInput,
    ControllerDown,
    Refused,
    SlurmError,
    SlurmkitError,
    SlurmTimeout,
)
from slurmkit.findings import Finding
from slurmkit.gpus import Gpus
from slurmkit.jobfile import job_file_text, read_job_file
from slurmkit.planner import Plan
from slurmkit.spec import JobSpec, Launch

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
    JobSpec(command=("x",), gpus=Gpus(mig="3g.20gb"), array="0-9%2", dependency="afterok:1"),
)


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_texts_and_job_files_mean_the_same_job(spec: JobSpec, tmp_path: Path) -> None:
    assert read(texts_of(spec)).spec == spec
    write_draft(tmp_path / "job.toml", spec)
    assert JobSpec(**read_job_file(tmp_path / "job.toml")) == spec
    assert read(draft_of(tmp_path / "job.toml").texts).spec == spec
    with pytest.raises(BadInput, match="is there already"):
        write_draft(tmp_path / "job.toml", spec)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
                min_size=1))  # fmt: skip
def test_any_command_is_the_same_after_the_form(words: list[str]) -> None:
    if any("\r\n" in word for word in words) or not "".join(words).strip():
        return
    spec = JobSpec(command=tuple(words))
    assert read(texts_of(spec)).spec == spec


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
    spec = read({"what": runs}).spec
    assert spec is not None
    assert (spec.script is not None) == is_script


def test_a_scripts_own_lines_are_weaker_than_the_fields() -> None:
    runs = "#!/bin/bash\n#SBATCH --time=5 -N2\nls"
    spec = read({"what": runs, "time": "10"}).spec
    assert (spec.time, spec.nodes, spec.script) == ("10", 2, "#!/bin/bash\nls")


@pytest.mark.parametrize(
    ("texts", "field", "words"),
    [
        ({"time": "x"}, "time", "is not one of Slurm's forms"),
        ({"ntasks": "two"}, "ntasks", "whole number"),
        ({"gpus": "a100:"}, "gpus", "not of a known form"),
        ({"gpus": "2", "gpus-for": "rack"}, "gpus-for", "node, task or job"),
        ({"mem": "9", "more": "--mem-per-cpu=3"}, "more", "exclude each other"),
        ({"more": "--wrap=x"}, "more", "not passed on"),
        ({"more": "--gpu-bind=none"}, "more", "needs GPUs"),
        ({"job-name": "a\nb"}, "job-name", "line break"),
        ({"what": "ls 'a"}, "what", "quotation"),
        ({"what": ""}, "what", "say what is to run"),
    ],
)
def test_what_is_wrong_is_told_of_its_field(texts: dict[str, str], field: str, words: str) -> None:
    reading = read({"what": "ls", **texts})
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
        await until(pilot, lambda: "ready" in text(app))
        assert "#SBATCH --gpus-per-node=a100:1" in text(app)
        assert "srun --cpus-per-task=1" in text(app)
        assert "--test-only)" in text(app)
        assert "asked" in text(app)
        assert not scene.sent
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "sbatch --parsable" in text(app))
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
        await until(pilot, lambda: "sbatch --parsable" in text(pilot.app))
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
        await until(pilot, lambda: "not sent:" in text(app))
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
    assert field_of(made) == field


async def test_what_fits_is_taken_over() -> None:
    async with form(FormScene()) as pilot:
        await typed(pilot, what="hostname", time="30-0")
        assert "error" in text(pilot.app)
        await pilot.press("ctrl+f")
        await looked_at(pilot)
        assert the_form(pilot.app).texts["time"] == "7-00:00:00"
        assert "ready" in text(pilot.app)


async def test_an_answer_to_an_older_text_is_dropped() -> None:
    scene = FormScene()
    async with form(scene) as pilot:
        await looked_at(pilot)
        with scene.gate:
            the_form(pilot.app).row("what").text = "first"
            await until(pilot, lambda: len(scene.planned) == 1)
            the_form(pilot.app).row("what").text = "second"
            await until(pilot, lambda: "no error found" in text(pilot.app))
            await pilot.press("ctrl+s")  # sent once it was judged, not before
            await pilot.pause(0.5)
            assert len(scene.planned) == 1  # one question at a time
            assert isinstance(pilot.app.screen, SubmitForm)
        await until(pilot, lambda: "Submit second to" in text(pilot.app))
        assert len(scene.planned) == 2
        assert "first" not in str(the_form(pilot.app)._checked.texts)


async def test_typing_asks_slurm_nothing_and_a_form_left_still_asks_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(form_module, "_STILL", 1.0)
    scene = FormScene()
    async with form(scene) as pilot:
        app, shown = pilot.app, the_form(pilot.app)
        app.paused = True
        app._plan(None)
        await looked_at(pilot)
        before, known = scene.calls, scene.asked.count("known")
        for number in range(1, 6):
            shown.row("what").text = f"python train.py --lr 0.{number}"
            shown.row("cpus-per-task").text = str(number)
            await until(pilot, lambda: shown._is_looked_at)
        await until(pilot, lambda: "no error found" in text(app))
        assert "asked once nothing changes" in text(app)
        assert scene.calls == before
        assert scene.asked.count("known") == known == 1
        await until(pilot, lambda: "ready, " in text(app))
        assert len(scene.planned) == 1
        assert "at the earliest" in text(app)
        judged = scene.calls
        await pilot.pause(1.5)
        assert scene.calls == judged  # as long as nothing changes
        shown.row("cpus-per-task").text = "1"
        await until(pilot, lambda: shown._is_looked_at)
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
            Ask("known", ("now",))
        ] * 2  # the fake's standing is as old as ever
        assert not scene.planned


async def test_a_refusal_keeps_what_was_typed() -> None:
    scene = FormScene()
    scene.refusal = Refused("[bold]Invalid\x1b[2J account")
    async with form(scene) as pilot:
        await typed(pilot, what="hostname")
        await pilot.press("ctrl+s", "y")
        await until(pilot, lambda: "not submitted: [bold]Invalid\\x1b[2J" in text(pilot.app))
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
        await until(pilot, lambda: "unknown whether the job was submitted" in text(pilot.app))
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "perhaps submitted from this form" in text(pilot.app))
        assert not scene.sent


async def test_help_open_while_it_is_sent_leaves_no_form_to_send_again() -> None:
    scene = FormScene()
    async with form(scene) as pilot:
        app = pilot.app
        await typed(pilot, what="hostname")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "sbatch --parsable" in text(app))
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
            await until(pilot, lambda: "Open file" in text(app))
            await until(pilot, lambda: len(scene.planned) == 1)
        await until(pilot, lambda: not the_form(app)._judging)
        await pilot.press("y", "y")
        await pilot.pause()
        assert "Open file" in text(app)
        assert not scene.sent


@pytest.mark.parametrize(
    ("error", "unsure"),
    [
        (SlurmTimeout("x"), True),
        (SlurmError("sbatch answered 'x' where a job id was expected"), True),
        (Refused("sbatch: error: Socket timed out on send/recv operation"), True),
        (Refused("Invalid account"), False),
        (ControllerDown("slurmctld does not answer"), False),
        (BadInput("the plan has errors"), False),
    ],
)
def test_when_a_job_may_have_been_taken(error: SlurmkitError, unsure: bool) -> None:
    assert is_unsure(error) == unsure


async def test_a_draft_outlives_the_app_and_not_the_sending(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    scene = FormScene()
    kept = tmp_path / "slurmkit" / "tui-drafts.json"
    for leaves in ("escape", ""):  # closed, or open when the app ends
        async with form(scene, keep_drafts=True) as pilot:
            await looked_at(pilot)
            await typed(pilot, what=f"hostname {leaves}", more="--env TOKEN=x")
            await pilot.press(*filter(None, [leaves]))
        assert kept.stat().st_mode & 0o777 == 0o600
        async with form(scene, keep_drafts=True) as pilot:
            assert the_form(pilot.app).texts["what"] == f"hostname {leaves}"
            assert "from the draft of before" in text(pilot.app)
    async with form(scene, keep_drafts=True) as pilot:
        await typed(pilot, more="")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "sbatch --parsable" in text(pilot.app))
        await pilot.press("y")
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))
    assert kept.read_text() == "{}"


def test_drafts_of_clusters_do_not_mix(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    drafts.keep("a", Draft({"what": "x"}, "job 1", ("its script is unknown",)))
    drafts.keep("b", Draft({"what": "y"}))
    drafts.keep("b", None)
    assert drafts.kept("a") == Draft({"what": "x"}, "job 1", ("its script is unknown",))
    assert drafts.kept("b") is None
    drafts.path().write_text("{")
    assert drafts.kept("a") is None


async def test_a_long_script_is_there_whole_and_drawn_as_far_as_it_is_seen() -> None:
    big = (
        "#!/bin/bash\n" + "\n".join(f"echo {number}" for number in range(5000)) + "\n[bold]end\x1b"
    )
    async with form(FormScene()) as pilot:
        shown = the_form(pilot.app)
        await typed(pilot, what=big)
        view = pilot.app.screen.query_one(ScriptView)
        drawn: list[int] = []
        real = view.render_line
        view.render_line = lambda y: drawn.append(y) or real(y)
        pilot.app.screen.query_one("#preview").scroll_end(animate=False)
        await until(pilot, lambda: "[bold]end\\x1b" in text(pilot.app))
        assert len(set(drawn)) < 200
        assert shown.row("what").text == big
        assert not pilot.app.screen.query_one(Area).soft_wrap


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers(2, 20))
def test_rows_of_a_line_are_no_wider_than_the_screen(line: str, width: int) -> None:
    begins = [*cuts(line, width)]
    ends = [*begins[1:], max(begins[-1], cell_len(line))]
    assert begins[0] == 0
    assert all(0 <= end - begin <= width for begin, end in zip(begins, ends, strict=True))


async def test_all_fields_come_in_their_order() -> None:
    async with form(FormScene()) as pilot:
        screen = pilot.app.screen
        await until(pilot, lambda: len(screen.query(Row)) == len(FIELDS))
        assert [row.field for row in screen.query(Row)] == list(FIELDS)


async def test_the_draft_is_kept_until_it_is_thrown_away() -> None:
    async with form(FormScene()) as pilot:
        await typed(pilot, what="hostname", mem="2G")
        await pilot.press("escape")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
        await pilot.press("n")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
        assert the_form(pilot.app).texts == {"what": "hostname", "mem": "2G"}
        await pilot.press("ctrl+n")
        await until(pilot, lambda: "holds a draft" in text(pilot.app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: the_form(pilot.app).texts == {})


async def test_files_fill_the_form_and_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('command = ["hostname"]\ntime = "5"\n')
    (tmp_path / "b.toml").write_text('comand = ["hostname"]\n')
    async with form(FormScene()) as pilot:
        app = pilot.app

        async def opened(name: str) -> None:
            await pilot.press("ctrl+o")
            await until(pilot, lambda: "Open file" in text(app))
            await pilot.press(*str(tmp_path / name), "enter")

        await opened("b.toml")
        await until(pilot, lambda: "comand" in text(app))
        await opened("a.toml")
        await until(pilot, lambda: the_form(app).texts == {"what": "hostname", "time": "5"})
        await looked_at(pilot)
        await pilot.press("ctrl+g")
        await until(pilot, lambda: "Save file" in text(app))
        await pilot.press("ctrl+u", *str(tmp_path / "c.toml"), "enter")
        await until(pilot, (tmp_path / "c.toml").exists)
        assert read_job_file(tmp_path / "c.toml") == read_job_file(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda path: path.mkdir(), "no plain file"),
        (os.mkfifo, "no plain file"),
        (lambda path: path.symlink_to("/dev/zero"), "no plain file"),
        (lambda path: path.symlink_to(path), "cannot read"),
        (lambda path: path.write_bytes(b"\x7fELF\0\xff"), "UTF-8"),
        (lambda path: path.write_bytes(b"#!" + b"\xff" * 9), "UTF-8"),
        (lambda path: path.write_bytes(b"#!" + bytes(4 << 20)), "larger than"),
        (lambda path: None, "cannot read"),
    ],
)
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, made, words: str) -> None:
    made(tmp_path / "x")
    with pytest.raises(BadInput, match=words):
        draft_of(tmp_path / "x")


async def test_pasted_lines_stay_in_their_field_and_send_nothing() -> None:
    from textual.events import Paste  # noqa: PLC0415

    scene = FormScene()
    hostile = "evil\n\x1b[2J[bold]x[/bold]\r\nls\n\x13"
    async with form(scene) as pilot:
        app = pilot.app
        for name in ("what", "job-name", "more"):
            the_form(app).row(name).enter()
            await pilot.pause()
            app.focused.post_message(Paste(hostile))
            await pilot.pause()
        await looked_at(pilot)
        assert the_form(app).texts["job-name"] == "evil \x1b[2J[bold]x[/bold] ls \x13"
        assert the_form(app).texts["what"].splitlines()[1] == "\x1b[2J[bold]x[/bold]"
        assert "\x1b" not in text(app)
        assert "[bold]x[/bold]" in text(app)
        await typed(pilot, what="if a\n\tb\nfi")
        assert " " * 20 + "b " in text(app)
        assert not scene.sent


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)])
async def test_it_fits_the_terminal(size: tuple[int, int]) -> None:
    async with form(FormScene(), size) as pilot:
        await typed(pilot, what="hostname", gpus="a100:1", mem="1G")
        shown = text(pilot.app)
        assert "Runs" in shown
        assert "ready" in shown
        assert ("#SBATCH" in shown) == (size[0] >= 110)
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "#SBATCH" in text(pilot.app))
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "Runs" in text(pilot.app))
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        await pilot.resize_terminal(*size)
        await until(pilot, lambda: "ready" in text(pilot.app))


async def test_values_are_offered_and_completed() -> None:
    async with form(FormScene()) as pilot:
        app = pilot.app
        the_form(app).row("partition").enter()
        await pilot.pause()
        assert "gpu, " in text(app)
        await pilot.press("u")
        await until(pilot, lambda: "untyped" in text(app))
        await pilot.press("right")
        assert the_form(app).texts == {"partition": "untyped"}
        await pilot.press("ctrl+l")
        await until(pilot, lambda: len(app.screen_stack) == 3)
        await pilot.press("enter")
        await until(pilot, lambda: the_form(app).texts == {"partition": "gpu"})
        assert not the_form(app).row("reservation").display


@pytest.mark.parametrize("key", ["n", "A"])
async def test_read_only_opens_no_form(key: str) -> None:
    scene = FormScene()
    scene.jobs = [job("11", UserName="alice")]
    app = scene.app(read_only=True)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: "11" in text(app))
        await pilot.press(key)
        await until(pilot, lambda: "is refused: read-only" in text(app))
        assert len(app.screen_stack) == 1


def test_a_plan_is_recorded_and_replayed(tmp_path: Path) -> None:
    scene = FormScene()
    ask = Ask("plan", (msgspec.json.encode(SPECS[0]).decode(),))
    feed = RecordingFeed(scene, tmp_path / "a.rec")
    made = feed.fetch(ask).value
    known = feed.fetch(Ask("known")).value
    feed.close()
    replay = ReplayFeed(tmp_path / "a.rec")
    assert isinstance(replay.fetch(ask).value, Plan)
    assert replay.fetch(ask).value == made
    assert replay.fetch(Ask("known")).value == known
    with pytest.raises(Exception, match="this is a recording"):
        replay.submit(made)


# What a cluster offers


def test_only_what_there_is_is_offered() -> None:
    from recorded_lab import capabilities, standing  # noqa: PLC0415

    found = offers(capabilities(), standing())
    assert found.values["partition"][0] == "gpu"
    assert found.values["account"] == ("vision",)
    assert set(found.values["qos"]) == {"normal", "high", "scavenger"}
    assert {"a100:1", "shard:1", "2"} <= set(found.values["gpus"])
    assert set(found.absent) == {"reservation"}
    reserved = Reservation(name="course", start=0, end=2_000_000_000, users=("alice",))
    other = Reservation(name="theirs", start=0, end=2_000_000_000, users=("bob",))
    with_some = msgspec.structs.replace(standing(), reservations=(reserved, other))
    assert offers(capabilities(), with_some).values["reservation"] == ("course",)
    bare = msgspec.structs.replace(
        capabilities(),
        nodes=tuple(msgspec.structs.replace(n, gres=()) for n in capabilities().nodes),
        config={"AccountingStorageType": "(null)"},
    )
    assert {"account", "qos", "gpus", "gpus-for"} <= set(offers(bare, standing()).absent)
    closed = msgspec.structs.replace(
        capabilities(),
        partitions=tuple(
            msgspec.structs.replace(p, allow_groups=("others",)) if p.name == "gpu" else p
            for p in capabilities().partitions
        ),
    )
    assert "gpu" not in offers(closed, standing()).values["partition"]


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
    past = scene.fetch(Ask("past", ("9",))).value
    assert past.notes == ()
    spec = read(past.texts).spec
    assert spec.command == ("python", "train.py", "[bold]$x")
    assert (spec.gpus, spec.time, spec.qos) == (Gpus(2, "a100"), "00:10:00", "normal")
    assert past.proposals == ()


def test_a_script_that_is_not_known_is_said_and_left_empty() -> None:
    scene = FormScene()
    scene.runs = [run(SubmitLine="sbatch job.sh --lr 3")]
    scene.stored = "Batch Script for 9\n-----\nNONE\n"
    past = scene.fetch(Ask("past", ("9",))).value
    assert "what" not in past.texts
    assert "script is not known any more" in past.notes[0]
    assert past.texts["gpus"] == "a100:2"
    assert past.texts["mem"] == "4G"
    assert past.texts["cpus-per-task"] == "2"
    scene.stored = "Batch Script for 9\n-----\n#!/bin/sh\nhostname\n"
    assert scene.fetch(Ask("past", ("9",))).value.texts["what"] == "#!/bin/sh\nhostname\n"


async def test_what_is_unknown_of_an_old_job_stays_on_the_form() -> None:
    scene = FormScene()
    scene.jobs, scene.runs = [job("9", UserName="alice")], [run(SubmitLine="sbatch job.sh --lr 3")]
    app = scene.app()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until(pilot, lambda: "alice" in text(app))
        await pilot.press("A")
        await until(pilot, lambda: "note: its script is not known any more" in text(app))
        assert not app._notifications
        await typed(pilot, what="hostname")
        assert "note: its script is not known any more" in text(app)


def test_more_of_what_ran_out_is_offered_first() -> None:
    scene = FormScene()
    scene.batch = OURS
    scene.runs = [run(State="OUT_OF_MEMORY", ExitCode="0:125")]
    (memory,) = scene.fetch(Ask("past", ("9",))).value.proposals
    assert memory.texts["mem"] == "8G"
    assert "--mem=8G" in memory.why
    scene.runs = [run(State="TIMEOUT", ExitCode="0:0")]
    (longer,) = scene.fetch(Ask("past", ("9",))).value.proposals
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
    texts, wrong = texts_of_fields({"job_name": "a\nb", "time": "5"})
    assert texts == {"time": "5"}
    assert "line break" in wrong[0]


async def test_an_old_job_opens_the_form_with_a_choice() -> None:
    scene = FormScene()
    scene.batch = OURS
    scene.jobs = [job("9", UserName="alice", State="OUT_OF_MEMORY")]
    scene.runs = [run(State="OUT_OF_MEMORY", ExitCode="0:125")]
    app = scene.app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: "OUT_OF_MEMORY" in text(app))
        await pilot.press("A")
        await until(pilot, lambda: "More memory" in text(app))
        assert "As it was" in text(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        assert app.screen.texts["mem"] == "8G"
        await looked_at(pilot)
        assert "from job 9" in text(app)
        app.session.draft = Draft({"what": "mine"})


def test_a_job_file_of_a_spec_is_readable() -> None:
    said = job_file_text(SPECS[2])
    assert '[gpus]\ntype = "a100"\nfraction = 0.5' in said


async def test_the_job_on_the_screen_is_submitted_again() -> None:
    scene = FormScene()
    scene.batch, scene.runs = OURS, [run(State="RUNNING")]
    scene.jobs = [job("9", UserName="alice")]
    app = scene.app()
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await until(pilot, lambda: "RUNNING" in text(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, JobScreen))
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, SubmitForm))
        assert app.screen.texts["what"] == "python train.py '[bold]$x'"


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
        await until(pilot, lambda: "offers is unknown: slurmctld" in text(app))
        assert the_form(app).row("reservation").display
        await typed(pilot, what="hostname")
        assert "not ready: slurmctld does not answer" in text(app)
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "not sent: slurmctld does not answer" in text(app))
        assert not scene.sent
