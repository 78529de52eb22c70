"""`slurmkit submit job.sh`, and a script on standard input, as with sbatch."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planner_lab import Lab
from recorded_lab import slurm
from waiting import PATIENCE

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.testing import FakeSlurm

JOB = "#!/bin/sh\n#SBATCH --nodes=2 --time=9\n#SBATCH --job-name=two\n\nhostname\n"
PLAIN = "#!/bin/sh\nhostname\n"


@pytest.fixture(autouse=True)
def border(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = slurm()
    monkeypatch.setattr("slurmkit.cli.submit.Cluster", lambda: Lab(made))
    return made


@pytest.fixture
def planned(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The one submission of `slurmkit plan`, and what it said, as `said`."""

    def run(*words: str) -> dict[str, Any]:
        assert run_to_exit_code(cli, ["plan", "--json", *words]) == 0
        shown = capsys.readouterr()
        (made,) = json.loads(shown.out)["rows"]
        (submission,) = made["submissions"]
        notes = "\n".join(note["message"] for note in made["notes"])
        return {**submission, "said": notes}

    return run


def write(name: str, text: str, mode: int = 0o644) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text, "utf-8")
    Path(name).chmod(mode)


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


@pytest.mark.parametrize("mode", [0o644, 0o755])
@pytest.mark.parametrize("word", ["job.sh", "./job.sh"])
def test_a_batch_script_is_taken_with_its_options(planned: Any, word: str, mode: int) -> None:
    write("job.sh", JOB, mode)
    made = planned("--time", "5", word)
    assert made["options"]["nodes"] == "2"
    assert made["options"]["time"] == "5"  # as in sbatch, the command line wins
    assert made["options"]["job-name"] == "two"
    assert made["script"].endswith("\n\nhostname\n")
    assert "srun" not in made["script"]
    said = f"{word} is submitted as a batch script, as with sbatch; to start it as a program"
    assert said in made["said"]


def test_submit_sends_the_script(border: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    write("job.sh", JOB)
    assert run_to_exit_code(cli, ["submit", "job.sh"]) == 0
    assert "note: job.sh is submitted as a batch script" in capsys.readouterr().err
    assert ["sbatch", "--parsable"] in border.asked


def test_words_after_the_script_are_its_arguments(planned: Any) -> None:
    """sbatch's rule, the rest of the words belong to the script."""
    write("job.sh", JOB)
    made = planned("job.sh", "--lr", "1 2")
    assert made["options"]["nodes"] == "2"
    assert made["script"].endswith("\nset -- --lr '1 2'\nhostname\n")
    assert "as a batch script with the arguments --lr '1 2', as with sbatch" in made["said"]


def test_only_a_shell_script_gets_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    write("job.py", "#!/usr/bin/python3\nprint(1)\n", 0o755)
    assert run_to_exit_code(cli, ["plan", "--time", "1", "job.py", "3"]) == 2
    assert "job.py is no shell script, so it gets no arguments" in capsys.readouterr().err


def test_a_file_that_is_not_there_or_no_script_is_no_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """sbatch refuses these; a job that fails later is worth less."""
    write("train.toml", "command = ['true']\n")
    write("bare.sh", "hostname\n")
    for word, says in (
        ("nofile.sh", "no file nofile.sh here; if it is a program on the nodes: -- nofile.sh"),
        ("train.toml", "a job file: slurmkit submit --job-file train.toml"),
        ("bare.sh", "bare.sh has no first line with #!"),
    ):
        assert run_to_exit_code(cli, ["plan", "--time", "1", word]) == 2
        assert says in capsys.readouterr().err
    assert run_to_exit_code(cli, ["plan", "--time", "1", "--", "nofile.sh"]) == 0
    write("sub/run.sh", "hostname\n", 0o755)
    assert run_to_exit_code(cli, ["plan", "--time", "1", "--chdir", "sub", "./run.sh"]) == 0
    swept = ["--sweep", "lr=1,2", "run_{lr}.sh"]
    assert run_to_exit_code(cli, ["plan", "--time", "1", *swept]) == 0


def test_after_two_dashes_a_script_is_a_program(planned: Any) -> None:
    """`-- program args` stays the way to start a program."""
    write("run.sh", PLAIN, 0o755)
    made = planned("--time", "1", "--", "./run.sh", "a")
    assert made["script"].endswith("-- ./run.sh a\n")
    assert made["said"] == ""


def test_a_binary_and_a_program_on_the_path_stay_commands(
    planned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executable without `#!`, and a program that is a script."""
    write("binary", "\x7fELF", 0o755)
    assert planned("--time", "1", "./binary")["script"].endswith("-- ./binary\n")
    write("bin/tool", "#!/bin/sh\necho\n", 0o755)
    write("bin/site-job", JOB, 0o755)
    monkeypatch.setenv("PATH", f"{Path.cwd()}/bin:/usr/bin:/bin")
    assert planned("--time", "1", "tool", "a")["script"].endswith("-- tool a\n")
    write("tool", PLAIN)  # the program on the PATH is what a user means
    assert planned("--time", "1", "tool", "a")["script"].endswith("-- tool a\n")
    assert planned("site-job")["options"]["nodes"] == "2"  # as in sbatch, which searches the PATH


@pytest.mark.parametrize("words", [(), ("--script", "-")])
def test_a_script_on_standard_input(
    planned: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    pipe(monkeypatch, JOB.replace("#SBATCH --job-name=two\n", ""))
    made = planned("--time", "5", *words)
    assert made["options"].items() >= {"nodes": "2", "time": "5", "job-name": "sbatch"}.items()
    assert made["said"] == "the batch script is read from standard input"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no command to run; give it after --, e.g. -- python train.py, or give a batch"),
        ("hostname\n", "the script's first line must name its interpreter"),
        ("#!/bin/sh\n#SBATCH --nodes\nx\n", "standard input: line 2: --nodes needs a value"),
    ],
)
def test_what_is_no_script_on_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, says: str
) -> None:
    pipe(monkeypatch, text)
    assert run_to_exit_code(cli, ["submit"]) == 2
    assert says in capsys.readouterr().err


def test_a_job_file_needs_no_standard_input(planned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, JOB)
    write("job.toml", 'command = ["x"]\ntime = 1\n')
    assert planned("--job-file", "job.toml")["script"].endswith("-- x\n")


def test_words_that_a_sweep_fills_in_belong_to_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A line `set -- {lr}` of a script would reach each task as it is."""
    write("train.sh", PLAIN, 0o755)
    argv = ["plan", "--json", "--sweep", "lr=1,2", "./train.sh", "--lr", "{lr}"]
    assert run_to_exit_code(cli, argv) == 0
    (made,) = json.loads(capsys.readouterr().out)["rows"]
    (submission,) = made["submissions"]
    assert "set --" not in submission["script"]
    assert './train.sh --lr "$lr"' in submission["script"] or "$lr" in submission["script"]


def test_an_open_pipe_as_standard_input_is_not_waited_for_without_a_word() -> None:
    pipe = subprocess.PIPE
    argv = [sys.executable, "-m", "slurmkit", "plan", "--nodes", "2"]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as started:
        assert started.stderr is not None
        assert started.stderr.readline().startswith(
            "slurmkit: waiting for the end of a batch script on standard input"
        )
        out, err = started.communicate(timeout=PATIENCE)  # an empty script
    assert (started.returncode, out) == (2, "")
    assert "no command to run; give it after --" in err
