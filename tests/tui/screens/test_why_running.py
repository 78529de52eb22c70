"""The tab Why of a running job: it asks the job's nodes in the background."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fake_queue import NOW, Scene, expect_text, job, running, text
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.kinds import QUESTION_KINDS, ClusterReader
from waiting import PATIENCE

from slurmkit.diagnose.model import (
    Explanation,
    RunningExplanation,
    RunningFinding,
    WatchedRank,
)

STOPPED = "rank 3 on c2 (pid 811) is stopped (SIGSTOP)"
FOUND = RunningExplanation(
    runs="on c2",
    findings=(RunningFinding(kind="stopped", text=STOPPED, source="/proc", taken=NOW),),
    ranks=(
        WatchedRank(
            rank=3,
            node="c2",
            pid=811,
            step="0",
            command="evil\x1b[2J",
            state="T",
            does="is stopped",
        ),
    ),
)
ANSWER = Explanation(
    job_id="11", name="x", user="alice", account="a", partition="gpu", state="RUNNING",
    answer=f"job 11 is stuck: {STOPPED}", running=FOUND, source="squeue", taken=NOW,
)  # fmt: skip


async def test_the_screen_answers_keys_while_the_nodes_are_asked() -> None:
    app = Scene([job("11", UserName="alice", State="RUNNING")]).app()
    may_answer = threading.Event()
    async with running(app) as pilot:
        live = app.session.feed.fetch

        def fetch(ask: FeedQuestion) -> FeedAnswer:
            if ask.what != "why":
                return live(ask)
            assert may_answer.wait(PATIENCE)
            return FeedAnswer(ANSWER, "squeue", NOW, 0.0)

        app.session.feed.fetch = fetch
        await pilot.press("w")
        await expect_text(pilot, "asking")
        await pilot.press("right")  # to another tab, and back
        await pilot.pause()
        await pilot.press("left")
        may_answer.set()
        await expect_text(pilot, "job 11 is stuck")
        assert "is stopped (SIGSTOP)" in text(app)
        assert "3 c2 pid 811 evil\\x1b[2J: is stopped" in text(app)


def test_it_looks_at_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def explain(*words: Any, **options: Any) -> Explanation:
        seen.append((words[1:], options))
        return ANSWER

    monkeypatch.setattr("slurmkit.diagnose.explain.explain", explain)
    reader: Any = ClusterReader(None, "alice")  # type: ignore[arg-type]
    assert QUESTION_KINDS["why"].read(reader, "11") is ANSWER
    assert seen == [(("11",), {"probe": True})]
