"""One thread at a time makes rows; that of the view on screen first."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_gpus import Recorded
from fake_queue import Scene, job, running, until, view
from slurmkit_tui.feed import threads
from slurmkit_tui.feed.threads import SlurmInTurns, ThreadTurns, let_others_run
from slurmkit_tui.session import LastAnswer, PollSchedule
from waiting import PATIENCE

from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.testing import FakeSlurm


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice is long enough for a pause."""
    monkeypatch.setattr(threads, "_SLICE", 0.0)


class Worker:
    """A thread that works step by step, each of them allowed by the test.

    Attributes:
        done: how many steps it has done.
    """

    def __init__(self, turns_: ThreadTurns, whose: object) -> None:
        self.done = 0
        self._steps, self._changed = threading.Semaphore(0), threading.Condition()
        work = threading.Thread(target=turns_.run, args=(whose, self._work), daemon=True)
        work.start()

    def _work(self) -> None:
        while True:
            let_others_run()
            with self._changed:
                self.done += 1
                self._changed.notify_all()
            self._steps.acquire()
            if self.ends:
                return

    ends = False

    def step(self) -> None:
        self._steps.release()

    def end(self) -> None:
        self.ends = True
        self.step()

    def reaches(self, number: int, within: float = PATIENCE) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.done == number, within)


def test_a_second_one_waits_for_the_first_to_end() -> None:
    both = ThreadTurns()
    first = Worker(both, "queue")
    assert first.reaches(1)
    second = Worker(both, "nodes")
    first.step()
    assert first.reaches(2)
    assert not second.reaches(1, 0.05)
    first.end()
    assert second.reaches(1)


def test_what_is_on_screen_goes_first_and_what_was_left_waits_at_its_next_slice() -> None:
    both = ThreadTurns()
    both.prefer("queue")
    left = Worker(both, "queue")
    assert left.reaches(1)
    both.prefer("nodes")
    left.step()
    assert left.reaches(2)  # the nodes have not answered yet
    shown = Worker(both, "nodes")
    assert shown.reaches(1)
    left.step()
    assert not left.reaches(3, 0.05)
    both.prefer("queue")  # it is back on the screen
    assert left.reaches(3)
    shown.step()
    assert not shown.reaches(2, 0.05)
    left.end()
    assert shown.reaches(2)


def test_nobody_waits_for_one_who_waits_for_slurm() -> None:
    both, asked, answered = ThreadTurns(), threading.Event(), threading.Event()
    both.prefer("nodes")

    def hangs(argv: Sequence[str], stdin: str | None) -> str:
        asked.set()
        assert answered.wait(PATIENCE)
        return ""

    def look() -> None:
        let_others_run()  # at work, until it asks
        SlurmInTurns(FakeSlurm({"sacctmgr": hangs})).run(["sacctmgr"])

    shown = threading.Thread(target=both.run, args=("nodes", look), daemon=True)
    shown.start()
    assert asked.wait(PATIENCE)
    left = Worker(both, "queue")
    assert left.reaches(1)
    answered.set()
    shown.join(PATIENCE)
    assert not shown.is_alive()


def test_one_that_fails_is_no_longer_waited_for() -> None:
    both = ThreadTurns()

    def fails() -> None:
        let_others_run()
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        both.run("queue", fails)
    assert Worker(both, "nodes").reaches(1)


def test_outside_of_turns_a_pause_is_nothing() -> None:
    let_others_run()
    assert list(SlurmInTurns(FakeSlurm({"squeue": lambda *_: "1\n2\n"})).stream(["squeue"])) == [
        "1\n",
        "2\n",
    ]


def test_commands_that_only_ask_go_behind_the_screen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lower = str(min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19))
    ask = tmp_path / "squeue"
    wait = f'for _ in $(seq 20000); do [ "$(nice)" = {lower} ] && break; sleep 0.01; done; nice'
    ask.write_text(f"#!/bin/sh\n{wait}\n")
    ask.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert SlurmInTurns(LocalSlurmCommands()).run(["squeue"]) == f"{lower}\n"
    assert list(SlurmInTurns(LocalSlurmCommands()).stream(["squeue"])) == [f"{lower}\n"]


async def test_views_go_first_while_they_are_on_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    app, preferred = Scene([job("1")]).app(), list[object]()
    prefer = ThreadTurns.prefer

    def noting(self: ThreadTurns, whose: object) -> None:
        preferred.append(whose)
        prefer(self, whose)

    monkeypatch.setattr(ThreadTurns, "prefer", noting)
    async with running(app) as pilot:
        assert preferred[-1] is app.session.last_answer(view(app).ask)
        await pilot.press("8")
        await until(pilot, lambda: app.view.NAME == "health")
        assert preferred[-1] is app.session.last_answer(app.view.ask)
        await pilot.press("2")
        await until(pilot, lambda: preferred[-1] is app.session.last_answer(view(app).ask))


@pytest.mark.parametrize("name", ["queue", "nodes", "gpus"])
async def test_long_answers_are_read_in_turn(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    app, taken = Recorded().app(name), list[object]()
    take = ThreadTurns.take

    def noting(self: ThreadTurns, whose: object) -> None:
        taken.append(whose)
        take(self, whose)

    monkeypatch.setattr(ThreadTurns, "take", noting)
    async with app.run_test() as pilot:
        picture = app.session.last_answer(app.view.ask)
        await until(pilot, lambda: picture.prepared is not None)
        assert set(map(id, taken)) == {id(picture)}


def test_two_questions_that_look_alike_take_turns() -> None:
    both = ThreadTurns()
    first = Worker(both, LastAnswer(PollSchedule(5.0)))
    assert first.reaches(1)
    second = Worker(both, LastAnswer(PollSchedule(5.0)))
    first.step()
    assert first.reaches(2)
    first.end()
    assert second.reaches(1)
