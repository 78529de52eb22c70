"""What `why` proposes: chosen in the tab of the job, confirmed, run, and never through a shell."""

from __future__ import annotations

import msgspec
import pytest
from fake_queue import NOW, Scene, running, text, until, waiting
from slurmkit_tui.dialogs import Choose, Confirm
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.remedies import remedies

from slurmkit.why.model import Alternative, Explanation, Waiting
from slurmkit.why.reasons import TIME
from slurmkit.why.telling import telling

ANEW = "scontrol write batch_script 11 - | sed '/x/d' > job-11.sh && sbatch job-11.sh && scancel 11"
ALTERNATIVES = (
    Alternative(changes=(("time", "10"),), start=int(NOW) + 60, test_only=0,
                command="slurmkit update 11 --time=10"),
    Alternative(changes=(("nodes", "1"),), start=int(NOW) + 90, test_only=0,
                command="scontrol update JobId=11 NumNodes=1"),
    Alternative(changes=(("gres", "shard:1"),), start=int(NOW) + 90, test_only=0, command=ANEW),
)  # fmt: skip


def told(*alternatives: Alternative) -> Explanation:
    waits = Waiting(
        reason="Resources", meaning="", who="you", advice="wait", alternatives=alternatives
    )
    return Explanation(
        job_id="11", name="x", user="alice", account="a", partition="gpu", state="PENDING",
        answer="Waits", waiting=waits, source="squeue", taken=NOW,
    )  # fmt: skip


def test_the_commands() -> None:
    time, nodes, anew = remedies(told(*ALTERNATIVES))
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
    assert remedies(told(each))[0].commands == commands


async def opened(pilot, app) -> None:
    live = app.session.feed.fetch

    def fetch(ask: Ask) -> Answer:
        return Answer(told(*ALTERNATIVES), "squeue", NOW, 0.0) if ask.what == "why" else live(ask)

    app.session.feed.fetch = fetch
    await pilot.press("w")
    await until(pilot, lambda: "Waits" in text(app))
    await pilot.press("x")
    await until(pilot, lambda: isinstance(app.screen, Choose))
    await pilot.pause()


async def test_one_is_chosen_confirmed_and_run() -> None:
    cluster = Scene([waiting("11", UserName="alice")])
    app = cluster.app()
    async with running(app) as pilot:
        await opened(pilot, app)
        assert "--time=10" in text(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, Confirm))
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
        await until(pilot, lambda: "copied, for a shell" in text(app))
        assert app.clipboard == ANEW
        assert cluster.commands("scancel") == cluster.commands("sbatch") == []


async def test_nothing_is_changed_when_reading_only() -> None:
    app = Scene([waiting("11", UserName="alice")]).app(read_only=True)
    async with running(app) as pilot:
        await opened(pilot, app)
        assert "not now: read-only" in text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, Choose)


async def test_there_is_no_key_where_nothing_is_proposed() -> None:
    app = Scene([waiting("11", UserName="alice")]).app()
    async with running(app) as pilot:
        await pilot.press("enter")
        await until(pilot, lambda: len(app.screen_stack) == 2)
        await pilot.pause()
        assert not {"x", "enter"} & set(app.screen.active_bindings)


async def test_where_nothing_is_proposed_the_key_says_why() -> None:
    why = "what would start sooner is worked out for bob alone"
    waits = msgspec.structs.replace(told().waiting, no_alternatives=why)
    app = Scene([waiting("11", UserName="bob")]).app()
    live = app.session.feed.fetch

    def fetch(ask: Ask) -> Answer:
        found = msgspec.structs.replace(told(), user="bob", waiting=waits)
        return Answer(found, "squeue", NOW, 0.0) if ask.what == "why" else live(ask)

    app.session.feed.fetch = fetch
    async with running(app) as pilot:
        await pilot.press("w")
        await until(pilot, lambda: "Waits" in text(app))
        await pilot.press("x")
        await until(pilot, lambda: "no change is offered: what would start" in text(app))
        assert not isinstance(app.screen, Choose)


def test_what_passes_by_itself_and_can_be_hurried_is_no_contradiction() -> None:
    waits = msgspec.structs.replace(told(*ALTERNATIVES).waiting, who=TIME)
    some = msgspec.structs.replace(told(*ALTERNATIVES), waiting=waits)
    none = msgspec.structs.replace(some, waiting=msgspec.structs.replace(waits, alternatives=()))
    assert "nobody" not in dict(telling(some))["Who can"]
    assert "by a change below" in dict(telling(some))["Who can"]
    assert dict(telling(none))["Who can"] == f"{TIME}; wait"
