"""What was recorded is shown again, without Slurm."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_queue import NOW, Scene, expect_text, ids, job, running, text
from slurmkit_tui.app.app import SlurmkitApp
from slurmkit_tui.cli import SAMPLE, _feed, _first_view
from slurmkit_tui.feed import FeedAnswer, FeedQuestion
from slurmkit_tui.feed.live import LiveFeed
from slurmkit_tui.feed.recording import RecordingFeed, ReplayFeed
from slurmkit_tui.options import AppOptions

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import BadInput, ControllerDown, SlurmkitError
from slurmkit.state.queue_rows import QueueRow


def recorded(path: Path) -> Path:
    """Two looks at a queue, the second with one more job."""
    scene = Scene([job("11", UserName="alice")])
    feed = RecordingFeed(LiveFeed(Cluster(scene.slurm), "alice"), path)
    for ask in (FeedQuestion("queue"), FeedQuestion("site"), FeedQuestion("rights")):
        feed.fetch(ask)
    scene.jobs.append(job("12", Name="[red]hostile\x1b[2J"))
    feed.fetch(FeedQuestion("queue"))
    feed.close()
    return path


def test_a_recording_of_one_view_is_replayed_from_that_view(tmp_path: Path) -> None:
    assert _first_view(ReplayFeed(recorded(tmp_path / "a.rec"))) == "queue"
    assert _first_view(_feed(None, SAMPLE, ExitStack())) is None  # it has all that Home shows
    assert _first_view(LiveFeed(Cluster(Scene([]).slurm), "alice")) is None


async def test_replay(tmp_path: Path) -> None:
    feed = ReplayFeed(recorded(tmp_path / "a.rec"))
    assert feed.me == "alice"
    feed.seek(feed.end)
    app = SlurmkitApp(feed, AppOptions(view="queue"))
    async with running(app) as pilot:
        assert ids(app) == ["11", "12"]
        assert "RECORDED" in text(app)
        assert "lab" in text(app)
        await pilot.press("c")
        await expect_text(pilot, "this is a recording")
        await pilot.press("3")
        await expect_text(pilot, "nobody looked at this")


def test_answers_are_those_of_the_time(tmp_path: Path) -> None:
    feed = ReplayFeed(recorded(tmp_path / "a.rec"))
    feed.pause(paused=True)
    feed.seek(feed.begin)
    queue = feed.fetch(FeedQuestion("queue")).value
    assert feed.clock() == feed.begin
    assert {type(row) for row in queue.rows} == {QueueRow}
    feed.seek(feed.end + 100)
    assert feed.clock() == feed.end
    assert len(feed.fetch(FeedQuestion("queue")).value.rows) == 2
    with pytest.raises(SlurmkitError, match="nobody looked at this"):
        feed.fetch(FeedQuestion("nodes"))


def test_what_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.rec")
    whole = path.read_bytes()
    for size in range(len(whole) - 40, len(whole)):
        path.write_bytes(whole[:size])
        assert ReplayFeed(path).fetch(FeedQuestion("queue")).value.taken == NOW


@pytest.mark.parametrize("data", [b"", b"no gzip", b"\x1f\x8b\x08\x00broken"])
def test_other_files_are_refused_in_one_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"recording|is an empty recording"):
        ReplayFeed(path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.rec")
    with pytest.raises(BadInput, match="there already"):
        RecordingFeed(LiveFeed(Cluster(Scene([]).slurm), "alice"), path)


async def test_what_went_wrong_is_replayed_too(tmp_path: Path) -> None:
    path, scene = tmp_path / "a.rec", Scene([job("11", UserName="alice")])
    feed = RecordingFeed(LiveFeed(Cluster(scene.slurm), "alice"), path)
    for ask in (FeedQuestion("queue"), FeedQuestion("site"), FeedQuestion("rights")):
        feed.fetch(ask)
    scene.error = ControllerDown("slurmctld does not answer")
    with pytest.raises(ControllerDown):
        feed.fetch(FeedQuestion("queue"))
    feed.close()
    replay = ReplayFeed(path)
    app = SlurmkitApp(replay, AppOptions(view="queue"))
    async with running(app) as pilot:
        app.action_seek(10**9)
        await expect_text(pilot, "✗ slurmctld does not answer")
        assert ids(app) == ["11"]
        assert app.session.last_answer(FeedQuestion("queue")).pace.delay == 10


def test_a_full_disk_stops_the_recording_and_nothing_else(tmp_path: Path) -> None:
    path, scene = tmp_path / "a.rec", Scene([job("11", UserName="alice")])
    feed = RecordingFeed(LiveFeed(Cluster(scene.slurm), "alice"), path)
    feed.fetch(FeedQuestion("queue"))
    feed._file.close()
    feed._file = Path("/dev/full").open("wb")  # noqa: SIM115 - the feed closes it
    assert len(feed.fetch(FeedQuestion("queue")).value.rows) == 1
    assert "No space left" in feed.trouble
    feed.close()
    assert len(ReplayFeed(path).fetch(FeedQuestion("queue")).value.rows) == 1


def test_a_recording_is_the_persons_own(tmp_path: Path) -> None:
    assert recorded(tmp_path / "a.rec").stat().st_mode & 0o077 == 0


def test_what_is_typed_into_the_form_is_not_recorded(tmp_path: Path) -> None:
    class Planner(LiveFeed):
        def fetch(self, ask: FeedQuestion) -> FeedAnswer:
            return FeedAnswer(ask.about[0], "sbatch", 1.0, 0.1)

    path = tmp_path / "a.rec"
    feed = RecordingFeed(Planner(Cluster(Scene([]).slurm), "alice"), path)
    for what in ("plan", "logpath"):
        assert feed.fetch(FeedQuestion(what, (f"{what} of hunter2",))).value == f"{what} of hunter2"
    feed.close()
    replay = ReplayFeed(path)
    assert (
        replay.fetch(FeedQuestion("logpath", ("logpath of hunter2",))).value == "logpath of hunter2"
    )
    with pytest.raises(SlurmkitError, match="nobody looked at this"):
        replay.fetch(FeedQuestion("plan", ("plan of hunter2",)))
