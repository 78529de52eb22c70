"""A shell in a running job: which commands lead there, who gets one, and what is written down."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from fake_queue import Scene, expect_text, job, running, text, until, waiting
from slurmkit_tui.screens.shells import expand_nodelist, shell_commands
from slurmkit_tui.widgets.dialogs import ChoiceDialog

from slurmkit.cluster.cluster import Cluster
from slurmkit.config.paths import state_folder


def row(**fields: str):
    return Cluster(Scene([job("11", UserName="alice", **fields)]).slurm).queue().rows[0]


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("c1", ["c1"]),
        ("c[1-3]", ["c1", "c2", "c3"]),
        ("gpu[008-010,12],login1", ["gpu008", "gpu009", "gpu010", "gpu12", "login1"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
        ("", []),
    ],
)
def test_nodes_of_a_list(listed: str, names: list[str]) -> None:
    assert list(expand_nodelist(listed)) == names


def test_the_commands() -> None:
    inside = ["srun", "--jobid", "11", "--overlap"]
    assert shell_commands(row(NodeList="c1")) == [[*inside, "--pty", "bash", "-l"], ["ssh", "c1"]]
    several = shell_commands(row(NodeList="c[1-2]"))
    assert several[1] == [*inside, "-w", "c1", "--pty", "bash", "-l"]
    assert several[-1] == ["ssh", "c2"]
    assert len(shell_commands(row(NodeList="c[1-5000]"))) == 33


@pytest.mark.parametrize(
    ("job_id", "raw", "words"),
    [
        ("12_3", "15", ["--jobid", "15"]),
        ("12+1", "13", ["--jobid", "12", "--het-group=1"]),
    ],
)
def test_a_task_and_a_part_of_a_het_job_as_srun_takes_them(
    job_id: str, raw: str, words: list[str]
) -> None:
    told = {**job(job_id, UserName="alice", NodeList="c1"), "JobID": raw}
    (one,) = Cluster(Scene([told]).slurm).queue().rows
    assert shell_commands(one)[0] == ["srun", *words, "--overlap", "--pty", "bash", "-l"]


class Lending(Scene):
    """A cluster whose terminal can be lent."""

    def app(self, **options: object):
        made = super().app(**options)
        self.lent: list[list[str]] = []
        made.session.feed.attach = lambda argv: self.lent.append(list(argv)) or 3

        @contextmanager
        def suspend():
            yield

        made.suspend = suspend
        return made


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said while Enter is waited for."""
    said: list[str] = []
    monkeypatch.setattr("builtins.input", lambda words: said.append(words) or "")
    return said


async def test_the_command_is_shown_run_told_and_written_down(waited: list[str]) -> None:
    cluster = Lending([job("11", UserName="alice", NodeList="c1")])
    app = cluster.app()
    async with running(app) as pilot:
        await pilot.press("S")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.pause()
        assert "srun --jobid 11 --overlap --pty bash -l" in text(app)
        assert "ssh c1        if this cluster allows ssh to its nodes" in text(app)
        assert cluster.lent == []
        await pilot.press("enter")
        await expect_text(pilot, "ended with exit code 3")
        assert cluster.lent == [["srun", "--jobid", "11", "--overlap", "--pty", "bash", "-l"]]
        written = (state_folder() / "tui-actions.log").read_text()
        assert written.endswith("srun --jobid 11 --overlap --pty bash -l ended with exit code 3\n")
        assert waited == ["srun ended with exit code 3; press Enter to return "]
        await until(pilot, lambda: not app.terminal_lent)


@pytest.mark.parametrize(
    ("told", "words", "read_only"),
    [
        (job("11", UserName="bob"), "job 11 is bob's", False),
        (waiting("11", UserName="alice"), "job 11 does not run", False),
        (job("11", UserName="alice"), "read-only", True),
    ],
)
async def test_who_gets_none_is_told_why(told: dict[str, str], words: str, read_only: bool) -> None:
    cluster = Lending([told])
    app = cluster.app(read_only=read_only)
    async with running(app) as pilot:
        await pilot.press("S")
        await expect_text(pilot, f"shell is refused: {words}")
        assert len(app.screen_stack) == 1
        assert cluster.lent == []
