"""What the queue shows, and how it moves."""

from __future__ import annotations

import threading

import pytest
from fake_queue import (
    Scene,
    cells,
    expect_text,
    ids,
    job,
    running,
    table,
    text,
    until,
    view,
    waiting,
)
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.widgets.table import Table
from waiting import PATIENCE

from slurmkit.errors import ControllerDown, SlurmMissing


def three() -> Scene:
    return Scene(
        [
            job("11", UserName="alice", Name="resnet"),
            job("12", NodeList="c[1-2]", NumNodes="2"),
            waiting("13_[4-9%2]", UserName="carol", Name="sweep"),
        ]
    )


async def test_the_frame_is_painted_before_squeue_answers() -> None:
    gate = threading.Event()
    scene = three()
    scene.gate = lambda: gate.wait(PATIENCE)
    app = scene.app()
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: bool(scene.slurm.asked))
        await pilot.pause()
        assert "asking squeue…" in text(app)
        assert "squeue: no answer yet" in text(app)
        gate.set()
        await until(pilot, lambda: ids(app) == ["11", "12", "13_[4-9%2]"])


async def test_rows_and_their_numbers_with_source_and_age() -> None:
    app = three().app()
    async with running(app):
        screen = text(app)
    assert "lab  ·  3 jobs  ·  2 running  ·  6 pending  ·  4 GPUs held" in screen
    assert "squeue 3 s ago, took 0.00 s  ·  every 10 s  ·  3 Slurm calls" in screen
    assert "▸11" in screen
    assert "c[1-2]" in screen
    assert "(Priority)" in screen


async def test_pending_tasks_are_counted_as_in_my_jobs() -> None:
    """A row may be 1,000 tasks, and REQUEUE_HOLD waits too."""
    mine = [
        waiting("12_[1-1000]", UserName="alice"),
        waiting("13", UserName="alice", State="REQUEUE_HOLD"),
        job("14", UserName="alice"),
        job("15", UserName="alice", State="COMPLETING"),
    ]
    for name in ("queue", "mine"):
        app = Scene(mine).app(view=name)
        async with app.run_test(size=(120, 30)) as pilot:
            await expect_text(pilot, "1 running  ·  1,001 pending")


async def test_a_cluster_that_does_not_count_gpus_shows_none_as_unknown() -> None:
    scene = three()
    scene.config = scene.config.replace(",gres/gpu,gres/gpu:a100", "")
    for row in scene.jobs:
        row["tres-alloc"] = "cpu=8,mem=64G,node=1"
    app = scene.app()
    async with running(app):
        assert "GPUs unknown" in text(app)
        assert set(cells(app, "gpus")) == {"?"}


async def test_a_pending_job_without_tres_has_an_unknown_number_of_gpus() -> None:
    app = Scene([waiting("1", tres_alloc=""), job("2", tres_alloc="cpu=8,node=1")]).app()
    async with running(app):
        assert cells(app, "gpus") == ["?", "0"]


async def test_the_filter_takes_the_keys_at_once_and_escape_clears_it() -> None:
    app = three().app()
    async with running(app) as pilot:
        await pilot.press("slash", "c", "A", "r", "o")
        await until(pilot, lambda: ids(app) == ["13_[4-9%2]"])
        assert "1 of 3 jobs (cAro)" in text(app)
        await pilot.press("enter")
        assert isinstance(app.focused, Table)
        await pilot.press("escape")
        await until(pilot, lambda: len(ids(app)) == 3)
        assert "filter" not in text(app)


async def test_a_filter_finds_a_state_by_its_short_code_too() -> None:
    app = three().app()
    async with running(app) as pilot:
        await pilot.press("slash", "p", "d")
        await until(pilot, lambda: ids(app) == ["13_[4-9%2]"])


async def test_a_filter_that_matches_nothing_says_so() -> None:
    app = three().app()
    async with running(app) as pilot:
        await pilot.press("slash", *"xyzzy")
        await until(pilot, lambda: not ids(app))
        assert "no job matches xyzzy; Esc clears the filter" in text(app)


async def test_only_mine_and_back() -> None:
    app = three().app()
    async with running(app) as pilot:
        await pilot.press("u")
        assert ids(app) == ["11"]
        await pilot.press("u")
        assert len(ids(app)) == 3


async def test_start_with_mine() -> None:
    app = three().app(mine=True)
    async with running(app):
        assert ids(app) == ["11"]
        assert "1 of 3 jobs (mine)" in text(app)


async def test_the_selection_follows_its_job_through_a_refresh() -> None:
    scene = three()
    app = scene.app()
    async with running(app) as pilot:
        await pilot.press("j", "j")
        scene.jobs[:] = [job("9"), job("10"), *scene.jobs[:2], waiting("13_[6-9%2]")]
        await pilot.press("r")
        await until(pilot, lambda: len(ids(app)) == 5)
        assert table(app).selected.job_id == "13_[6-9%2]"


async def test_a_selected_job_that_is_gone_leaves_the_cursor_in_place() -> None:
    scene = three()
    app = scene.app()
    async with running(app) as pilot:
        await pilot.press("end")
        del scene.jobs[2]
        await pilot.press("r")
        await until(pilot, lambda: len(ids(app)) == 2)
        assert table(app).selected.job_id == "12"


async def test_a_reader_further_down_keeps_the_row_at_its_place() -> None:
    scene = Scene([job(str(n)) for n in range(100, 300)])
    app = scene.app()
    async with running(app) as pilot:
        await pilot.press("pagedown", "pagedown", "k", "k")
        place = table(app).cursor - table(app).scroll_offset.y
        scene.jobs[:0] = [job(str(n)) for n in range(30)]
        await pilot.press("r")
        await until(pilot, lambda: len(ids(app)) == 230)
        await pilot.pause()
        assert table(app).cursor - table(app).scroll_offset.y == place
        assert table(app).scroll_offset.y > 30


@pytest.mark.parametrize(
    ("keys", "cursor"),
    [
        (["j"], 1),
        (["down", "down", "k"], 1),
        (["up"], 0),
        (["end"], 199),
        (["end", "home"], 0),
        (["end", "j"], 199),
        (["pagedown"], 25),
        (["pagedown", "pagedown", "pageup"], 25),
    ],
)
async def test_keys_move_the_cursor_and_it_stays_in_sight(keys: list[str], cursor: int) -> None:
    app = Scene([job(str(n)) for n in range(200)]).app()
    async with running(app) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        assert table(app).cursor == cursor
        assert f"▸{cursor} " in text(app)


async def test_columns_scroll_sideways() -> None:
    app = Scene([job("1", Name="a" * 50 + "END")]).app()
    async with running(app, size=(80, 24)) as pilot:
        assert "aEND" not in text(app)
        await pilot.press(*["right"] * 10)
        await pilot.pause()
        assert "aEND" in text(app)
        await pilot.press(*["left"] * 10)
        await pilot.pause()
        assert "▸1" in text(app)


async def test_fifty_thousand_rows_format_only_what_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = Scene([job(str(n)) for n in range(50_000)]).app()
    drawn: list[int] = []
    line = Table._line
    monkeypatch.setattr(Table, "_line", lambda self, at: drawn.append(at) or line(self, at))
    async with running(app) as pilot:
        assert len(ids(app)) == 50_000
        assert 0 < len(set(drawn)) <= 26
        drawn.clear()
        await pilot.press("j")
        await pilot.pause()
        assert set(drawn) == {0, 1}
        drawn.clear()
        await pilot.press("end")
        await pilot.pause()
        assert 49_999 in drawn
        assert len(set(drawn)) <= 27


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "[red]markup[/]", "[/]", "\u202eevil"])
async def test_a_hostile_name_is_shown_escaped(name: str) -> None:
    app = Scene([job("1", Name=name, Reason="[bold", Account=name)]).app()
    shown = name.encode("unicode_escape").decode()
    async with running(app, size=(160, 30)) as pilot:
        assert text(app).count(shown) == 2
        await pilot.press("enter")
        await expect_text(pilot, "squeue at")
        assert f"Name       {shown}" in text(app)


async def test_the_screen_may_shrink_and_grow() -> None:
    app = Scene([job(str(n), UserName="alice") for n in range(40)]).app()
    async with running(app) as pilot:
        before = text(app)
        await pilot.press(*["j"] * 20)
        await pilot.resize_terminal(40, 10)
        await pilot.pause()
        assert "▸20" in text(app)
        for key in ("question_mark", "enter", "c"):
            await pilot.press(key)
            await pilot.pause()
            assert len(app.screen_stack) == 2
            await pilot.press("escape")
        await pilot.resize_terminal(120, 30)
        await pilot.press("home")
        await pilot.pause()
        assert text(app).splitlines()[:10] == before.splitlines()[:10]


async def test_a_dead_slurmctld_leaves_the_rows_and_says_so() -> None:
    scene = three()
    app = scene.app()
    async with running(app) as pilot:
        scene.error = ControllerDown("slurmctld does not answer; [see] `scontrol ping`\x1b[2J")
        await pilot.press("r")
        await expect_text(pilot, "slurmctld does not answer")
        assert r"[see] `scontrol ping`\x1b[2J · next try in 20 s" in " ".join(text(app).split())
        assert len(ids(app)) == 3
        assert "squeue 3 s ago" in text(app)
        scene.error = None
        await pilot.press("r")
        await until(pilot, lambda: "slurmctld" not in text(app))


async def test_without_slurm_the_app_says_what_is_missing() -> None:
    scene = Scene([], error=SlurmMissing("Slurm's squeue is not on the PATH"))
    app = scene.app()
    async with app.run_test() as pilot:
        await expect_text(pilot, "squeue is not on the PATH")
        assert "cluster unknown" in text(app)
        assert "squeue has not answered yet" in text(app)


async def test_pause_stops_the_poller_and_goes_on() -> None:
    scene = three()
    app = scene.app()
    async with running(app) as pilot:
        asked = len(scene.commands("squeue"))
        await pilot.press("p")
        assert app._timer is None
        assert "PAUSED" in text(app)
        await pilot.press("p")
        await until(pilot, lambda: app._timer is not None)
        assert len(scene.commands("squeue")) == asked + 1


async def test_no_second_question_while_one_is_under_way() -> None:
    gate = threading.Event()
    scene = three()
    scene.gate = lambda: gate.wait(PATIENCE)
    app = scene.app()
    async with app.run_test() as pilot:
        await until(pilot, lambda: bool(scene.slurm.asked))
        await pilot.press("r", "r", "p", "p")
        assert len(scene.commands("squeue")) == 1
        gate.set()
        await until(pilot, lambda: bool(ids(app)))


async def test_quitting_does_not_wait_for_squeue() -> None:
    gate = threading.Event()
    scene = three()
    scene.gate = gate.wait
    app: SlurmkitApp = scene.app()
    async with app.run_test() as pilot:
        await until(pilot, lambda: bool(scene.slurm.asked))
        await pilot.press("q")
    assert not app.is_running
    gate.set()


async def test_an_empty_queue_says_so() -> None:
    app = Scene([]).app()
    async with app.run_test() as pilot:
        await expect_text(pilot, "no jobs in the queue")
        await pilot.press("j", "end", "enter", "c", "pageup")
        assert len(app.screen_stack) == 1


async def test_parts_of_gpus_are_said_as_such_and_are_less_than_one() -> None:
    kinds = {"1": "gres/gpu=1", "2": "gres/shard=3", "3": "billing=1", "4": "gres/mps=50"}
    app = Scene([job(at, tres_alloc=f"cpu=1,{tres}") for at, tres in kinds.items()]).app()
    async with running(app) as pilot:
        assert cells(app, "gpus") == ["1", "3 shard", "0", "50 mps"]
        assert " 50 mps " in text(app)
        view(app).set_row_query(view(app).row_query.sorted_by("gpus"))
        await until(pilot, lambda: ids(app) == ["3", "2", "4", "1"])
