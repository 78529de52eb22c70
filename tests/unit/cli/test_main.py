"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from slurmkit.cli.commands import COMMANDS, CommandEntry
from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.errors import MissingExtra, SlurmkitError
from slurmkit.testing import squeue_text


def run(*args: str) -> int:
    return run_to_exit_code(cli, list(args))


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert name in shown
        assert entry.help in shown


def leaves(words: list[str], command: click.Command) -> Iterator[list[str]]:
    """Every command below one, by the words that reach it."""
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from leaves([*words, name], sub)
    else:
        yield words


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in leaves([name], COMMANDS[name].load()):
        assert run(*words, "--help") == 0
        assert "Example" in capsys.readouterr().out, words


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["plan", "--gpus-per-node", "a100:x", "--", "x"], "cannot read GPUs 'a100:x'"),
        (["plan", "--nodes", "two", "--", "x"], "--nodes must be a whole number, not 'two'"),
        (["plan", "--time", "soon", "--", "x"], "not one of Slurm's forms"),
        (["plan"], "no command to run; give it after --"),
        (["report", "usage", "--from", "1", "--to", "2", "--by", "x"], "'x' is not one of"),
        (["plan", "--nod", "2", "--", "x"], "No such option"),
        (["nope"], "No such command 'nope'"),
        (["queu"], "No such command 'queu'. Did you mean 'queue'?"),
        (["job", "x y"], "'x y' is not a job id"),
        (["cancel", "1", "all"], "'all' is not a job id"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_no_slurm_is_one_line_and_exit_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("queue") == 1
    shown = capsys.readouterr().err
    assert "squeue is not on the PATH" in shown
    assert shown.count("\n") == 1


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMKIT_DEBUG", "1")
    with pytest.raises(SlurmkitError):
        run("job", "x")


def test_foreign_words_in_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--partition", "a\x1b[2J\nb", "--", "x") == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert shown.count("\n") == 1


def test_a_missing_extra_names_the_install_command() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'slurmkit-hpc\[tui\]'"):
        CommandEntry("not_installed_anywhere.cli:x", "", "tui").load()


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    """More than a pipe holds, to a reader that leaves at once."""
    script = tmp_path / "squeue"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n', "utf-8")
    script.chmod(0o755)
    line = f"{sys.executable} -m slurmkit queue | head -n1; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.startswith("JOBID")
    assert not done.stderr


def test_a_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["ledger"], ["report"]):
        assert run(*words) == 2
        shown = capsys.readouterr().err
        assert "Usage: slurmkit" in shown
        assert "\nCommands:\n" in shown


def print_a_long_queue() -> None:
    """Stand in for squeue in `test_a_closed_pipe_ends_quietly`."""
    print(squeue_text(sys.argv, [{"JobArrayID": "7"}] * 5000), end="")


if __name__ == "__main__":
    print_a_long_queue()
