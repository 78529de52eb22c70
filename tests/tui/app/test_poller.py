"""The poller: what is asked for is what the view wanted when it was asked for."""

from __future__ import annotations

from fake_queue import NOW, Scene, expect_text, job, running, text, until
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.options import AppOptions
from stub_feed import StubFeed
from usage_values import VALUES

from slurmkit.state.capabilities import SlurmConfig


async def test_a_view_that_wants_something_else_meanwhile_leaves_no_question_open() -> None:
    app = StubFeed(**VALUES).app("utilization")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        by_day = app.session.last_answer(app.view.ask)
        app._ask_now()
        app.view.action_by()  # before the worker of the question began
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await until(pilot, lambda: not by_day.pace.asking)


async def test_where_nothing_is_anybodys_nothing_is_called_mine() -> None:
    app = SlurmkitApp(StubFeed(**VALUES), AppOptions(view="health", mine=True, clock=lambda: NOW))
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: app.session.last_answer(app.view.ask).prepared is not None)
        await expect_text(pilot, "finding")
        assert "mine" not in text(app).splitlines()[1]


async def test_a_cluster_that_did_not_say_its_name_is_asked_again() -> None:
    stub = StubFeed(**{**VALUES, "site": SlurmConfig()})
    stub.name = ""
    app = stub.app("health")
    async with app.run_test(size=(120, 30)) as pilot:
        await expect_text(pilot, "cluster unknown", "finding")
        stub.values["site"] = SlurmConfig("lab")
        await pilot.press("r")
        await until(pilot, lambda: "cluster unknown" not in text(app))


async def test_a_question_that_is_due_when_the_app_ends_is_no_mistake() -> None:
    app = Scene([job("11")]).app()
    async with running(app):
        pass
    assert not app.screen_stack
    app._update_status_lines()
    app._update_summary()
