"""The form that submits a job: drafts, files, pastes, sizes, what is offered."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from fake_queue import expect_text, job, text, until
from form_scene import FormScene, form, looked_at, the_form, typed
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from slurmkit_tui.jobform.draft import Draft
from slurmkit_tui.jobform.draft_store import DraftStore, drafts_path
from slurmkit_tui.jobform.fields import FIELDS, field_offers
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.submit.form import load_draft_file
from slurmkit_tui.submit.inputs import AreaInput, FieldRow
from slurmkit_tui.submit.script_view import ScriptView, wrap_columns

from slurmkit.errors import (
    BadInput,
)
from slurmkit.spec.jobfile import load_job_file
from slurmkit.state.model import Reservation


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
            assert "from your saved draft" in text(pilot.app)
    async with form(scene, keep_drafts=True) as pilot:
        await typed(pilot, more="")
        await pilot.press("ctrl+s")
        await expect_text(pilot, "sbatch --parsable")
        await pilot.press("y")
        await until(pilot, lambda: isinstance(pilot.app.screen, JobScreen))
    assert kept.read_text() == "{}"


def test_drafts_of_clusters_do_not_mix(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first, second = DraftStore("a"), DraftStore("b")
    first.save(Draft({"what": "x"}, "job 1", ("its script is unknown",)))
    second.save(Draft({"what": "y"}))
    second.save(None)
    assert first.load() == Draft({"what": "x"}, "job 1", ("its script is unknown",))
    assert second.load() is None
    drafts_path().write_text("{")
    assert first.load() is None


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
        await expect_text(pilot, "[bold]end\\x1b")
        assert len(set(drawn)) < 200
        assert shown.row("what").text == big
        assert not pilot.app.screen.query_one(AreaInput).soft_wrap


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers(2, 20))
def test_rows_of_a_line_are_no_wider_than_the_screen(line: str, width: int) -> None:
    begins = [*wrap_columns(line, width)]
    ends = [*begins[1:], max(begins[-1], cell_len(line))]
    assert begins[0] == 0
    assert all(0 <= end - begin <= width for begin, end in zip(begins, ends, strict=True))


async def test_all_fields_come_in_their_order() -> None:
    async with form(FormScene()) as pilot:
        screen = pilot.app.screen
        await until(pilot, lambda: len(screen.query(FieldRow)) == len(FIELDS))
        assert [row.field for row in screen.query(FieldRow)] == list(FIELDS)


async def test_the_draft_is_kept_until_it_is_thrown_away() -> None:
    async with form(FormScene()) as pilot:
        await typed(pilot, what="hostname", mem="2G")
        await pilot.press("escape")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
        await pilot.press("n")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2)
        assert the_form(pilot.app).texts == {"what": "hostname", "mem": "2G"}
        await pilot.press("ctrl+n")
        await expect_text(pilot, "holds a draft")
        await pilot.press("down", "enter")
        await until(pilot, lambda: the_form(pilot.app).texts == {})


async def test_files_fill_the_form_and_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('command = ["hostname"]\ntime = "5"\n')
    (tmp_path / "b.toml").write_text('comand = ["hostname"]\n')
    async with form(FormScene()) as pilot:
        app = pilot.app

        async def opened(name: str) -> None:
            await pilot.press("ctrl+o")
            await expect_text(pilot, "Open file")
            await pilot.press(*str(tmp_path / name), "enter")

        await opened("b.toml")
        await expect_text(pilot, "comand")
        await opened("a.toml")
        await until(pilot, lambda: the_form(app).texts == {"what": "hostname", "time": "5"})
        await looked_at(pilot)
        await pilot.press("ctrl+g")
        await expect_text(pilot, "Save file")
        await pilot.press("ctrl+u", *str(tmp_path / "c.toml"), "enter")
        await until(pilot, (tmp_path / "c.toml").exists)
        assert load_job_file(tmp_path / "c.toml") == load_job_file(tmp_path / "a.toml")


async def test_a_saved_job_file_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    async with form(FormScene(), size=(200, 40)) as pilot:
        await typed(pilot, what="hostname", more="--env HF_TOKEN=hf_aaabbbccc --env MODE=fast")
        await pilot.press("ctrl+g")
        await expect_text(pilot, "Save file")
        await pilot.press("ctrl+u", *str(path), "enter")
        await until(pilot, lambda: bool(pilot.app._notifications))
        (told,) = (each.message for each in pilot.app._notifications)
        assert "left out, as they look like secrets: HF_TOKEN" in told
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hf_aaabbbccc" not in path.read_text()
    assert "give it with --env HF_TOKEN" in path.read_text()
    assert load_job_file(path)["environment"] == {"MODE": "fast"}


async def test_an_empty_form_says_once_what_is_missing() -> None:
    async with form(FormScene()) as pilot:
        await looked_at(pilot)
        assert text(pilot.app).count("enter what the job runs") == 1
        assert "error" not in text(pilot.app)
        await typed(pilot, gpus="nonsense")
        assert text(pilot.app).count("enter what the job runs") <= 1
        await typed(pilot, gpus="")
        the_form(pilot.app).row("time").enter()
        await pilot.press("ctrl+s")
        await expect_text(pilot, "not sent: enter what the job runs")
        await until(pilot, lambda: pilot.app.focused.parent is the_form(pilot.app).row("what"))


@pytest.mark.parametrize("keys", [["ctrl+n", "down", "enter"], ["ctrl+n", "r"]])
async def test_a_form_begun_anew_is_typed_into_from_its_first_field(keys: list[str]) -> None:
    async with form(FormScene()) as pilot:
        app = pilot.app
        assert "Anew" in text(app).splitlines()[-1]
        if keys[-1] == "enter":
            await typed(pilot, what="hostname", gpus="1")
        the_form(app).row("gpus").enter()
        await until(pilot, lambda: app.focused.parent is the_form(app).row("gpus"))
        for key in keys[:-1]:
            await pilot.press(key)
            await pilot.pause()
        await pilot.press(keys[-1])
        await until(pilot, lambda: app.focused.parent is the_form(app).row("what"))
        assert the_form(app).texts.get("gpus") is None


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda path: path.mkdir(), "no regular file"),
        (os.mkfifo, "no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
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
        load_draft_file(tmp_path / "x")


async def test_pasted_lines_stay_in_their_field_and_send_nothing() -> None:
    from textual.events import Paste  # noqa: PLC0415

    scene = FormScene()
    said = "Name takes one line; the 4 pasted lines were ignored"
    hostile = "evil\n\x1b[2J[bold]x[/bold]\r\nls\n\x13"
    async with form(scene) as pilot:
        app = pilot.app
        for name in ("what", "job-name", "more"):
            the_form(app).row(name).enter()
            await pilot.pause()
            app.focused.post_message(Paste(hostile))
            await pilot.pause()
            if name == "job-name":  # what is said is gone after some seconds
                await expect_text(pilot, said)
        await looked_at(pilot)
        assert "job-name" not in the_form(app).texts
        the_form(app).row("job-name").enter()
        await pilot.pause()
        app.focused.post_message(Paste("evil\x1b[2J\n"))
        await until(pilot, lambda: the_form(app).texts.get("job-name") == "evil\x1b[2J")
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
        await expect_text(pilot, "#SBATCH")
        await pilot.press("ctrl+t")
        await expect_text(pilot, "Runs")
        for small_or_not in ((40, 10), size):
            await pilot.resize_terminal(*small_or_not)
            await until(pilot, lambda now=small_or_not: pilot.app.size == now)
        await expect_text(pilot, "ready")


async def test_values_are_offered_and_completed() -> None:
    async with form(FormScene()) as pilot:
        app = pilot.app
        the_form(app).row("partition").enter()
        await expect_text(pilot, "gpu, ")
        await pilot.press("u")
        await expect_text(pilot, "untyped")
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
        await expect_text(pilot, "11")
        await pilot.press(key)
        await expect_text(pilot, "is refused: read-only")
        assert len(app.screen_stack) == 1


# What a cluster offers


def test_only_what_there_is_is_offered() -> None:
    from recorded_lab import capabilities, standing  # noqa: PLC0415

    found = field_offers(capabilities(), standing())
    assert found.values["partition"][0] == "gpu"
    assert found.values["account"] == ("vision",)
    assert set(found.values["qos"]) == {"normal", "high", "scavenger"}
    assert {"a100:1", "shard:1", "2"} <= set(found.values["gpus"])
    assert set(found.absent) == {"reservation"}
    reserved = Reservation(name="course", start=0, end=2_000_000_000, users=("alice",))
    other = Reservation(name="theirs", start=0, end=2_000_000_000, users=("bob",))
    with_some = msgspec.structs.replace(standing(), reservations=(reserved, other))
    assert field_offers(capabilities(), with_some).values["reservation"] == ("course",)
    bare = msgspec.structs.replace(
        capabilities(),
        nodes=tuple(msgspec.structs.replace(n, gres=()) for n in capabilities().nodes),
        config={"AccountingStorageType": "(null)"},
    )
    assert {"account", "qos", "gpus", "gpus-for"} <= set(field_offers(bare, standing()).absent)
    closed = msgspec.structs.replace(
        capabilities(),
        partitions=tuple(
            msgspec.structs.replace(p, allow_groups=("others",)) if p.name == "gpu" else p
            for p in capabilities().partitions
        ),
    )
    assert "gpu" not in field_offers(closed, standing()).values["partition"]
