"""What `why` proposes: chosen in the tab of the job, confirmed, run, and never through a shell."""

from __future__ import annotations

import msgspec
import pytest
from fake_queue import NOW, Scene, expect_text, running, text, until, waiting
from slurmkit_tui.actions.remedies import remedies_for
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.widgets.dialogs import ChoiceDialog, ConfirmDialog

from slurmkit.diagnose.model import Alternative, Explanation, WaitExplanation
from slurmkit.diagnose.render import explanation_lines
from slurmkit.jobs.pending_reasons import TIME

ANEW = "scontrol write batch_script 11 - | sed '/x/d' > job-11.sh && sbatch job-11.sh && scancel 11"
ALTERNATIVES = (
    Alternative(changes=(("time", "10"),), start=int(NOW) + 60, test_only=0,
                command="slurmkit update 11 --time=10"),
    Alternative(changes=(("nodes", "1"),), start=int(NOW) + 90, test_only=0,
                command="scontrol update JobId=11 NumNodes=1"),
    Alternative(changes=(("gres", "shard:1"),), start=int(NOW) + 90, test_only=0, command=ANEW),
)  # fmt: skip


def told(*alternatives: Alternative) -> Explanation:
    waits = WaitExplanation(
        reason="Resources", meaning="", who="you", advice="wait", alternatives=alternatives
    )
    return Explanation(
        job_id="11", name="x", user="alice", account="a", partition="gpu", state="PENDING",
        answer="Waits", waiting=waits, source="squeue", taken=NOW,
    )  # fmt: skip


def test_the_commands() -> None:
    time, nodes, anew = remedies_for(told(*ALTERNATIVES))
    assert time.commands == [["scontrol", "update", "JobId=11", "TimeLimit=10"]]
    assert nodes.commands == [["scontrol", "update", "JobId=11", "NumNodes=1"]]
    assert (anew.commands, anew.line) == ([], ANEW)


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("a 'b && c' && d", [["a", "b && c"], ["d"]]),
        ("a; b", []),
        ("a $(b)", []),
        ("a > b", []),
        ("a || b", []),
        ("a 'x;y'", [["a", "x;y"]]),
    ],
)
def test_only_lists_of_commands_are_run(line: str, commands: list[list[str]]) -> None:
    each = Alternative(changes=(("gres", "1"),), start=0, test_only=0, command=line)
    assert remedies_for(told(each))[0].commands == commands


async def opened(pilot, app) -> None:
    live = app.session.feed.fetch

    def fetch(ask: FeedQuestion) -> FeedAnswer:
        return (
            FeedAnswer(told(*ALTERNATIVES), "squeue", NOW, 0.0) if ask.what == "why" else live(ask)
        )

    app.session.feed.fetch = fetch
    await pilot.press("w")
    await expect_text(pilot, "Waits")
    await pilot.press("x")
    await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
    await pilot.pause()


async def test_one_is_chosen_confirmed_and_run() -> None:
    cluster = Scene([waiting("11", UserName="alice")])
    app = cluster.app()
    async with running(app) as pilot:
        await opened(pilot, app)
        assert "--time=10" in text(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.pause()
        assert "Change job 11 of alice: --time=10?" in text(app)
        assert "scontrol update JobId=11 TimeLimit=10" in text(app)
        assert not any("update" in argv for argv in cluster.commands("scontrol"))
        await pilot.press("y")
        wanted = ["scontrol", "update", "JobId=11", "TimeLimit=10"]
        await until(pilot, lambda: wanted in cluster.commands("scontrol"))


async def test_what_needs_a_shell_is_copied_and_not_run() -> None:
    cluster = Scene([waiting("11", UserName="alice")])
    app = cluster.app()
    async with running(app) as pilot:
        await opened(pilot, app)
        await pilot.press("down", "down", "enter")
        await expect_text(pilot, "copied; paste this into a shell")
        assert app.clipboard == ANEW
        assert cluster.commands("scancel") == cluster.commands("sbatch") == []


async def test_nothing_is_changed_when_reading_only() -> None:
    app = Scene([waiting("11", UserName="alice")]).app(read_only=True)
    async with running(app) as pilot:
        await opened(pilot, app)
        assert "not possible: read-only" in text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ChoiceDialog)


async def test_there_is_no_key_where_nothing_is_proposed() -> None:
    app = Scene([waiting("11", UserName="alice")]).app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.pause()
        assert not {"x", "enter"} & set(app.screen.active_bindings)


async def test_where_nothing_is_proposed_the_key_says_why() -> None:
    why = "only the job's own user, bob, is offered changes to start sooner"
    waits = msgspec.structs.replace(told().waiting, no_alternatives=why)
    app = Scene([waiting("11", UserName="bob")]).app()
    live = app.session.feed.fetch

    def fetch(ask: FeedQuestion) -> FeedAnswer:
        found = msgspec.structs.replace(told(), user="bob", waiting=waits)
        return FeedAnswer(found, "squeue", NOW, 0.0) if ask.what == "why" else live(ask)

    app.session.feed.fetch = fetch
    async with running(app) as pilot:
        await pilot.press("w")
        await expect_text(pilot, "Waits")
        await pilot.press("x")
        await expect_text(pilot, "no change is offered: only the job's own")
        assert not isinstance(app.screen, ChoiceDialog)


def test_what_passes_by_itself_and_can_be_hurried_is_no_contradiction() -> None:
    waits = msgspec.structs.replace(told(*ALTERNATIVES).waiting, who=TIME)
    some = msgspec.structs.replace(told(*ALTERNATIVES), waiting=waits)
    none = msgspec.structs.replace(some, waiting=msgspec.structs.replace(waits, alternatives=()))
    assert "nobody" not in dict(explanation_lines(some))["Who can act"]
    assert "with a change listed below" in dict(explanation_lines(some))["Who can act"]
    assert dict(explanation_lines(none))["Who can act"] == "nobody needs to: it passes by itself"
