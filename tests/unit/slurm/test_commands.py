"""The border to Slurm, with small programs standing in for Slurm's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slurmkit.errors import (
    ControllerDown,
    DatabaseDown,
    NoSuchJob,
    Refused,
    SlurmError,
    SlurmMissing,
    SlurmTimeout,
)
from slurmkit.slurm.commands import (
    LocalSlurmCommands,
    at_low_priority,
    environment_for,
    slurm_error,
)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a folder first on the PATH and return the path of `squeue` in it."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "squeue"


def write(program: Path, body: str) -> None:
    program.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_output_and_input(program: Path) -> None:
    write(program, 'cat; printf "\\377\\r\\n"')
    slurm = LocalSlurmCommands()
    assert slurm.run(["squeue"], stdin="hé") == "hé\ufffd\r\n"
    assert slurm.calls == 1


def test_lines_are_streamed(program: Path) -> None:
    write(program, 'printf "a\\rb\\nc"')
    assert list(LocalSlurmCommands().stream(["squeue"])) == ["a\rb\n", "c"]


def test_a_failing_stream_is_an_error(program: Path) -> None:
    write(program, 'echo one; echo "sacct: error: Problem talking to the database" >&2; exit 1')
    lines = LocalSlurmCommands().stream(["squeue"])
    assert next(lines) == "one\n"
    with pytest.raises(DatabaseDown, match="slurmdbd does not answer"):
        next(lines)


def test_a_stream_left_early_ends_its_command(program: Path) -> None:
    write(program, "echo $$; exec yes")
    lines = LocalSlurmCommands().stream(["squeue"])
    process = int(next(lines))
    lines.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_what_goes_behind_others_has_a_lower_priority(program: Path) -> None:
    """Its own, and not that of commands which are started after it."""
    write(program, 'for _ in $(seq 500); do [ "$(nice)" = "$1" ] && break; sleep 0.01; done; nice')
    slurm, own = LocalSlurmCommands(), os.getpriority(os.PRIO_PROCESS, 0)
    lower = str(min(own + 10, 19))
    with at_low_priority():
        assert slurm.run(["squeue", lower]) == f"{lower}\n"
        assert list(slurm.stream(["squeue", lower])) == [f"{lower}\n"]
    assert slurm.run(["squeue", str(own)]) == f"{own}\n"
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_missing_command() -> None:
    with pytest.raises(SlurmMissing, match="login node"):
        LocalSlurmCommands().run(["squeue-that-is-not-there"])


def test_a_command_that_hangs(program: Path) -> None:
    write(program, "exec sleep 60")
    with pytest.raises(SlurmTimeout, match=r"no answer in 0\.2 s"):
        LocalSlurmCommands().run(["squeue"], timeout=0.2)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("slurm_load_jobs error: Invalid job id specified", NoSuchJob),
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            ControllerDown,
        ),
        ("slurm_load_jobs error: Connection reset by peer", ControllerDown),
        ("sbatch: error: Batch job submission failed: Invalid account", Refused),
        ("", Refused),
    ],
)
def test_what_slurm_says_becomes_one_error(said: str, kind: type[SlurmError]) -> None:
    error = slurm_error("squeue", said, 1)
    assert type(error) is kind
    assert "\n" not in str(error)
    assert str(error)


def test_a_lost_answer_of_slurmdbd_is_not_slurmctlds() -> None:
    said = "sacct: error: slurm_msg_recvfrom_timeout: Connection reset by peer"
    assert type(slurm_error("sacct", said, 1)) is DatabaseDown


INSIDE = {
    "SLURM_JOB_ID": "7",
    "SBATCH_QOS": "x",
    "SQUEUE_FORMAT": "%i",
    "SLURM_TIME_FORMAT": "relative",
    "SLURM_CONF": "/c",
    "LC_ALL": "de_DE.UTF-8",
}


def test_a_surrounding_job_leaks_nothing_into_what_we_read() -> None:
    read = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}
    assert environment_for(["sacct"], INSIDE) == {"SLURM_CONF": "/c", **read}
    quick = {"TZ": "UTC0", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert environment_for(["squeue"], INSIDE) == {"SLURM_CONF": "/c", **read, **quick}


def test_a_job_gets_its_users_environment() -> None:
    kept = environment_for(["sbatch"], INSIDE)
    assert kept == {
        name: INSIDE[name] for name in INSIDE if name not in ("SLURM_JOB_ID", "SBATCH_QOS")
    }


def test_a_job_sent_from_a_job_is_no_task_nor_run_of_that() -> None:
    names = ("ARRAY_TASK_ID", "CHECKPOINT_FILE", "RESTART", "RESTART_REASON", "RUN", "DB")
    outer = {f"SLURMKIT_{name}": "5" for name in names}
    assert environment_for(["sbatch"], outer) == {"SLURMKIT_DB": "5"}


def test_an_unknown_user_is_not_nobody(program: Path) -> None:
    write(program, 'echo "Invalid user: nobody-here" >&2')
    with pytest.raises(Refused, match="Invalid user: nobody-here"):
        LocalSlurmCommands().run(["squeue"])


def test_a_submit_that_mentions_an_invalid_user_is_done(program: Path) -> None:
    """A job_submit plugin may print any text."""
    sbatch = program.with_name("sbatch")
    sbatch.write_text("", "utf-8")
    sbatch.chmod(0o755)
    write(sbatch, "echo 'sbatch: lua: Invalid user group for partition big' >&2; echo 4711")
    assert LocalSlurmCommands().run(["sbatch", "--parsable"], stdin="#!/bin/sh\n") == "4711\n"
    assert list(LocalSlurmCommands().stream(["sbatch"])) == ["4711\n"]


def test_a_command_that_cannot_run(program: Path) -> None:
    program.write_text("not a program", "utf-8")
    program.chmod(0o755)
    with pytest.raises(SlurmError, match="cannot run Slurm's squeue: Exec format error"):
        LocalSlurmCommands().run(["squeue"])
    with pytest.raises(SlurmError, match="cannot run Slurm's squeue: Exec format error"):
        next(LocalSlurmCommands().stream(["squeue"]))
