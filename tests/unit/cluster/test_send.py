"""Secrets of a job: not in what is sent, but in a file that its owner alone can read."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from jobs_lab import FakeJobs
from recorded_lab import capabilities, standing

from slurmkit.cluster.cluster import Cluster
from slurmkit.cluster.send import remove_secrets
from slurmkit.errors import Refused, SlurmkitError
from slurmkit.planning.planner import plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.planning.secrets import FORGET_LINES, FORGET_TRAP, secret_lines, without_secret_lines
from slurmkit.spec.jobspec import JobSpec

NAME = capabilities().cluster_name
SECRET = {"HF_TOKEN": "it's a\nsecret $HOME", "A": "1"}
JOB = JobSpec(command=("x",), environment=SECRET, time="1")


class Sent:
    """A cluster whose sbatch keeps what it is given, and what was in the folder then."""

    def __init__(self, folder: Path) -> None:
        self.jobs, self.folder = FakeJobs(), folder / "slurmkit/secrets" / NAME
        self.fails: str = ""
        self.given: list[str] = []
        self.jobs.slurm._answers |= {"sbatch": self._sbatch, "scancel": lambda *_: ""}
        self.cluster = self.jobs.cluster()
        self.cluster.capabilities = lambda **_: capabilities()  # type: ignore[method-assign]

    def _sbatch(self, argv: Sequence[str], stdin: str | None) -> str:
        self.given += [*argv, stdin or ""]
        if self.fails:
            raise Refused(self.fails)
        self.jobs.waits("7")
        return "7\n"

    def submit(self, spec: JobSpec = JOB) -> str:
        return self.cluster.submit(plan_offline(spec, SiteState(capabilities(), standing()))).id

    @property
    def files(self) -> set[str]:
        found = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        return found - {".looked"}

    def later(self) -> None:
        """Eleven minutes pass."""
        for path in self.folder.iterdir():
            when = path.stat().st_mtime - 660
            os.utime(path, (when, when))


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Sent(tmp_path)


def run(shell: str, lines: Sequence[str], folder: Path, **env: str) -> subprocess.CompletedProcess:
    """Lines in a job 7 that Slurm says runs; nothing sleeps."""
    states = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": NAME, "RUNS": "7"}
    fakes = 'squeue() { echo "$RUNS"; }\nsleep() { :; }\n'
    environ = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(folder)} | states | env
    words = [*shell.split(), "-c", fakes + "\n".join(lines)]
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)


def test_what_is_sent_holds_no_secret_and_the_file_is_the_owners_alone(sent: Sent) -> None:
    assert sent.submit() == "7"
    assert not any("secret $HOME" in text for text in sent.given)
    assert sent.files == {"7"}
    assert stat.S_IMODE((sent.folder / "7").stat().st_mode) == 0o600
    for folder in (sent.folder, sent.folder.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("shell", ["bash -eu", "dash -eu"])
def test_a_job_has_them_and_forgets_them_at_its_end(sent: Sent, shell: str, tmp_path: Path) -> None:
    show = 'printf "%s" "$HF_TOKEN"'
    for lines in ([show, *FORGET_LINES], [*FORGET_TRAP, show]):
        sent.submit()
        ended = run(shell, [*secret_lines(["HF_TOKEN"]), *lines], tmp_path)
        assert (ended.returncode, ended.stdout) == (0, SECRET["HF_TOKEN"])
        assert not sent.files


@pytest.mark.parametrize("shell", ["bash -eu", "dash -eu"])
def test_a_job_that_fails_keeps_them_and_its_exit_code(
    sent: Sent, shell: str, tmp_path: Path
) -> None:
    sent.submit()
    for lines in (["set +e", "(exit 5)", *FORGET_LINES], [*FORGET_TRAP, "exit 5"]):
        ended = run(shell, [*secret_lines(["HF_TOKEN"]), *lines], tmp_path)
        assert ended.returncode == 5
        assert sent.files == {"7"}


def test_a_job_that_is_never_requeued_removes_them_at_once(sent: Sent, tmp_path: Path) -> None:
    sent.submit()
    lines = [*secret_lines(["HF_TOKEN"], once=True), 'printf "%s" "$HF_TOKEN"; exit 5']
    ended = run("dash -eu", lines, tmp_path)
    assert (ended.returncode, ended.stdout) == (5, SECRET["HF_TOKEN"])
    assert not sent.files
    script = "\n".join(["#!/bin/sh", *lines, ""])
    assert without_secret_lines(script) == (f"#!/bin/sh\n{lines[-1]}\n", "HF_TOKEN")


@pytest.mark.parametrize("env", [{"RUNS": ""}, {"SLURM_ARRAY_JOB_ID": "7", "SLURM_JOB_ID": "8"}])
def test_what_may_run_again_keeps_them(sent: Sent, tmp_path: Path, env: dict[str, str]) -> None:
    sent.submit()
    ended = run("bash", [*secret_lines(["HF_TOKEN"]), *FORGET_LINES], tmp_path, **env)
    assert ended.returncode == 0
    assert sent.files == {"7"}


def test_a_job_without_its_file_ends_with_a_word(sent: Sent, tmp_path: Path) -> None:
    ended = run("bash", [*secret_lines(["HF_TOKEN"]), "echo went on"], tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"{sent.folder}/7 is not there" in ended.stderr


def test_the_file_is_there_before_slurm_is_asked_and_goes_when_slurm_refuses(sent: Sent) -> None:
    sent.fails = "no"
    with pytest.raises(Refused):
        sent.submit()
    assert sent.given
    assert not sent.files


def test_without_room_nothing_is_sent(sent: Sent) -> None:
    sent.folder.parent.parent.mkdir()
    sent.folder.parent.write_text("", "utf-8")
    with pytest.raises(SlurmkitError, match="cannot write the job's secret variables"):
        sent.submit()
    assert not sent.given


def test_a_folder_that_leads_elsewhere_is_refused(sent: Sent, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    sent.folder.parent.mkdir(parents=True)
    sent.folder.symlink_to(tmp_path / "there")
    with pytest.raises(SlurmkitError, match="not a folder that you own"):
        sent.submit()
    assert not sent.given


def test_what_a_job_left_goes_once_it_is_over(sent: Sent) -> None:
    sent.submit()
    (sent.folder / ".new-x").touch()
    os.utime(sent.folder / ".new-x", (0, 0))
    (sent.folder / ".new-y").touch()
    remove_secrets(sent.cluster)
    assert sent.files == {"7", ".new-y"}
    sent.later()
    sent.jobs.ends("7")
    remove_secrets(sent.cluster)
    assert sent.files == {".new-y"}


def test_a_job_in_a_hidden_partition_keeps_them(sent: Sent) -> None:
    sent.submit()
    sent.later()
    sent.jobs.hidden.add("7")
    remove_secrets(sent.cluster)
    assert sent.files == {"7"}


def test_a_job_that_a_list_lacks_is_asked_for_by_its_id(sent: Sent) -> None:
    sent.submit()
    complete = sent.jobs.slurm._answers["squeue"]

    def squeue(argv: Sequence[str], stdin: str | None) -> str:
        return complete(argv, stdin) if "--jobs=7" in argv else ""

    sent.jobs.slurm._answers["squeue"] = squeue
    sent.later()
    remove_secrets(sent.cluster)
    assert sent.files == {"7"}
    sent.later()
    sent.jobs.ends("7")
    remove_secrets(sent.cluster)
    assert not sent.files


def test_the_queue_is_looked_at_once_in_ten_minutes(sent: Sent) -> None:
    for _ in range(3):
        sent.submit()
    assert not sent.jobs.asked("squeue")  # nothing is old enough
    for asked in (1, 2):
        sent.later()
        sent.submit()
        remove_secrets(sent.cluster)
        assert len(sent.jobs.asked("squeue")) == asked


def test_of_an_array_they_are_kept_while_a_task_is_left(sent: Sent) -> None:
    sent.submit()
    sent.jobs.leaves("7")
    sent.jobs.runs_now("7_3", JobID="9")
    sent.later()
    remove_secrets(sent.cluster)
    assert sent.files == {"7"}
    sent.later()
    sent.jobs.leaves("7_3")
    remove_secrets(sent.cluster)
    assert not sent.files


def test_those_of_a_cancelled_job_go_at_once_but_not_with_a_task_or_a_signal(sent: Sent) -> None:
    sent.submit()
    sent.cluster.cancel(["7"], signal="USR1")
    sent.cluster.cancel(["7_3"])
    assert sent.files == {"7"}
    sent.cluster.cancel(["7"])
    assert not sent.files


def test_without_secrets_nothing_is_asked_or_made(sent: Sent) -> None:
    sent.submit(JobSpec(command=("x",), environment={"A": "1"}, time="1"))
    sent.cluster.cancel(["7"])
    assert not sent.folder.parent.exists()
    assert not sent.jobs.asked("squeue")


def test_a_slurm_that_is_silent_keeps_them(sent: Sent) -> None:
    sent.submit()
    sent.jobs.squeue_fails = Refused("no")
    remove_secrets(sent.cluster)
    assert sent.files == {"7"}
    assert isinstance(sent.cluster, Cluster)
