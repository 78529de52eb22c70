"""A program, a folder or a log's place that is not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from planner_lab import Lab
from recorded_lab import slurm

from slurmkit.planning.checks.files import check_files, files_missing
from slurmkit.planning.planner import plan
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit.slurm.machine import LocalMachine
from slurmkit.spec.containers import Container
from slurmkit.spec.gpus import Gpus
from slurmkit.spec.jobspec import JobSpec, Launch
from slurmkit.spec.sweep import Sweep

OLD = (22, 5, 11)  # makes no folder of a log


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the job, with a program in PATH and a file that is none."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*command: str, **options: Any) -> list[str]:
    spec = JobSpec(command=command, **options)
    return [finding.code for finding in files_missing(spec, LocalMachine(), OLD)]


@pytest.mark.parametrize(
    ("command", "codes"),
    [
        (("python3", "train.py"), []),
        (("python3", "-u", "train.py"), []),
        (("python3", "-m", "train"), []),
        (("python3", "-c", "print(1.5)"), []),
        (("python3", "-"), []),
        (("python3", "gone.py"), ["no-program"]),
        (("python", "train.py"), ["no-program"]),
        (("train.py",), ["no-program"]),
        (("./train.py",), ["not-executable"]),
        (("./gone",), ["no-program"]),
        (("bin/python3",), []),
        (("/nosuch/program",), ["no-program"]),
    ],
)
def test_programs(command: tuple[str, ...], codes: list[str]) -> None:
    assert said(*command) == codes


def test_a_missing_file_is_named_with_what_to_do(folder: Path) -> None:
    here = LocalMachine()
    (finding,) = files_missing(JobSpec(command=("train.py",)), here, OLD)
    assert finding.severity == "warning"
    assert f"for the file in {folder} write ./train.py" in finding.message
    (finding,) = files_missing(JobSpec(command=("python3", "gone.py")), here, OLD)
    says = f"there is no {folder}/gone.py on this machine; the job fails if the nodes lack it, too"
    assert finding.message == says


def test_a_number_before_the_command_belongs_to_the_option_before_it() -> None:
    spec = JobSpec(command=("2", "--", "hostname"), gpus=Gpus(1, "a100"))
    (finding,) = files_missing(spec, LocalMachine(), OLD)
    assert finding.code == "command-number"
    assert "for 2 GPUs write --gpus-per-node=a100:2" in finding.message


def test_programs_that_are_elsewhere_are_not_looked_for(folder: Path) -> None:
    assert not said("gone", container=Container(image="./img.sqsh"))
    assert not said("gone.py", launch=Launch(launcher="torchrun"))
    assert not said("cd", launch=Launch(launcher="none"))
    assert not said("./made-by-12", dependency="afterok:12")
    assert not said("./{name}", sweep=Sweep.grid(name=["a", "b"]))
    own = folder / "own"
    own.mkdir()
    (own / "tool").write_text("")
    (own / "tool").chmod(0o755)
    assert not said("tool", environment={"PATH": str(own)})
    assert said("tool") == ["no-program"]


def test_folders(folder: Path) -> None:
    assert said("python3", chdir="/nosuch") == ["no-chdir"]
    assert said("gone", chdir="/nosuch", output="logs/x.out") == ["no-chdir"]
    assert said("python3", output="logs/%j.out") == ["no-log-folder"]
    assert said("python3", output="%x/%j.out", error="/nosuch/err") == ["no-log-folder"]
    (folder / "logs").mkdir()
    assert not said("python3", output="logs/%j.out", error="/dev/null")
    assert said("python3", chdir=f"{folder}/logs", output="logs/%j.out") == ["no-log-folder"]


@pytest.mark.parametrize("release", [(23, 2, 0), (24, 11, 5), (26, 5, 0)])
def test_newer_releases_make_the_folder_of_a_log(
    release: tuple[int, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobSpec(command=("python3",), output="logs/a/%j.out", dependency="afterok:12")
    assert not list(files_missing(job, LocalMachine(), release))
    monkeypatch.setattr("slurmkit.planning.checks.files.os.access", lambda *_: False)
    (finding,) = files_missing(job, LocalMachine(), release)
    assert f"you may not make it in {folder}, and without it the job fails" in finding.message
    elsewhere = msgspec.structs.replace(job, chdir="/nosuch")
    (finding,) = files_missing(elsewhere, LocalMachine(), release)
    assert "in an empty folder that Slurm makes for its log, or in /tmp" in finding.message


def test_an_old_release_makes_no_folder_and_is_named() -> None:
    job = JobSpec(command=("python3",), output="logs/%j.out")
    (finding,) = files_missing(job, LocalMachine(), OLD)
    assert "Slurm 22.05 does not make it, and without it the job fails" in finding.message


def test_a_log_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.planning.checks.files.os.access", lambda *_: False)
    assert said("/bin/sh", output="x.out") == ["not-executable", "log-unwritable"]


class LoginNode(LocalMachine):
    """A machine elsewhere, with its own files; the user may not look into /root."""

    is_here = False
    name = "login"

    def exists(self, path: str) -> bool:
        if path.startswith("/root"):
            raise PermissionError(path)
        return path in ("/home/alice", "/home/alice/train.py")


def test_over_ssh_the_files_are_those_of_the_login_node() -> None:
    def there(*command: str, **options: Any) -> list[str]:
        spec = JobSpec(command=command, chdir="/home/alice", **options)
        return [finding.code for finding in files_missing(spec, LoginNode(), OLD)]

    assert not there("python", "train.py"), "its PATH is not known here"
    assert there("python", "gone.py") == ["no-program"]
    assert there("./gone") == ["no-program"]
    assert not there("./train.py", output="/root/x.out")
    assert there("./train.py", output="/nosuch/x.out") == ["no-log-folder"]


def test_a_stand_in_for_slurm_has_no_files() -> None:
    gone = JobSpec(command=("gone",))
    assert not list(check_files(gone, slurm(), OLD, remote=True))
    (finding,) = check_files(gone, LocalSlurmCommands(), OLD, remote=False)
    assert finding.code == "no-program"


def test_a_plan_warns_before_the_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    border = slurm()
    monkeypatch.setattr(border, "machine", LoginNode(), raising=False)
    spec = JobSpec(command=("./gone",), chdir="/home/alice", time="10")
    assert [finding.code for finding in plan(spec, Lab(border)).warnings] == ["no-program"]
    assert not plan(spec, Lab(border), ask=False).warnings


@pytest.mark.parametrize("words", [("/hidden/x/run",), ("python3", "/hidden/x/a.py")])
def test_a_folder_that_may_not_be_searched_stops_no_plan(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """Root may search every folder, so the system's answer is a stand-in."""
    real = os.stat

    def refused(path: Any, *args: Any, **more: Any) -> os.stat_result:
        if str(path).startswith("/hidden"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "stat", refused)
    assert said(*words, output="/hidden/x/log") in ([], ["log-unwritable"])
