"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from slurmkit.cli.job_options import OPTION_HEADINGS
from slurmkit.cli.main import COMMAND_HEADINGS, COMMANDS, cli, run_to_exit_code
from slurmkit.errors import SlurmkitError
from slurmkit.testing import squeue_text
from slurmkit.version import __version__


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
        (["plan", "--time", "2h", "--", "x"], "not one of Slurm's forms; write 2:00:00"),
        (["plan", "--time", "1 day 12 hours", "--", "x"], "; write 1-12:00:00"),
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
        assert "\nCommands:\n" in shown or "\nStart here:\n" in shown


def test_every_command_is_under_one_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in COMMAND_HEADINGS.values() for name in names) == sorted(COMMANDS)
    assert run("--help") == 0
    shown = capsys.readouterr().out
    at = [shown.index(f"\n{heading}:\n") for heading in COMMAND_HEADINGS]
    assert at == sorted(at)
    assert "Commands of this site" not in shown


@pytest.mark.parametrize(
    "words", [["plan"], ["submit"], ["shell"], ["jupyter", "start"], ["code-server", "start"]]
)
def test_the_options_of_a_job_are_under_headings(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option once, and only the command's own under its own heading."""
    own = {"plan": 3, "submit": 8, "shell": 1, "jupyter": 4, "code-server": 4}[words[0]]
    assert run(*words, "--help") == 0
    _, *headed = capsys.readouterr().out.partition("\nGPUs:\n")
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", "".join(headed), re.MULTILINE)
    assert len(listed) == len(set(listed)) == own + sum(map(len, OPTION_HEADINGS.values()))
    last = "".join(headed).partition("\nThis command:\n")[2]
    assert len(re.findall(r"^  -", last, re.MULTILINE)) == own


def groups(words: list[str], command: click.Command) -> Iterator[list[str]]:
    """Every group at or below a command, by the words that reach it."""
    if isinstance(command, click.Group):
        yield words
        for name, sub in command.commands.items():
            yield from groups([*words, name], sub)


def test_every_group_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name, entry in COMMANDS.items():
        for words in groups([name], entry.load()):
            assert run(*words, "--help") == 0
            assert "Example" in capsys.readouterr().out, words


def test_the_version_has_two_spellings(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("-V", "--version"):
        assert run(option) == 0
        assert capsys.readouterr().out == f"slurmkit, version {__version__}\n"


def test_an_unknown_option_suggests_those_that_begin_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("plan", "--gpu", "a100:2", "--", "x") == 2
    shown = capsys.readouterr().err
    near = "--gpus-per-node, --gpus-per-task, --gpus, --gpus-per-socket, --gpu-bind"
    assert f"Did you mean {near}?" in shown
    assert "--output" not in shown
    assert run("plan", "--gpu-per-node", "2", "--", "x") == 2
    assert "Did you mean --gpus-per-node" in capsys.readouterr().err


def test_an_unknown_option_of_sbatch_is_passed_on_with_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("plan", "--contigous", "--", "x") == 2
    says = "No such option: --contigous; give any other option of sbatch as --option NAME=VALUE"
    assert f"{says}, e.g. --option contiguous" in capsys.readouterr().err


def test_a_command_without_slurm_names_the_configured_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[clusters.lab]\n[clusters.next]\n", "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("queue") == 1
    shown = capsys.readouterr().err
    assert "; or use a cluster over SSH: slurmkit --cluster NAME …, with lab, next" in shown
    assert shown.count("\n") == 1


def queue_with(redirection: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run `slurmkit queue` with one job in the queue, in a shell."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$@"\n', "utf-8")
    squeue.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    line = f"{sys.executable} -m slurmkit queue {redirection}"
    return subprocess.run(
        ["bash", "-c", line], env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_matter(redirection: str, tmp_path: Path) -> None:
    """Cron may close them."""
    done = queue_with(redirection, tmp_path)
    assert done.returncode == 0
    assert not done.stdout
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_line_and_exit_1(tmp_path: Path) -> None:
    done = queue_with(">/dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith(": No space left on device\n")
    assert done.stderr.count("\n") == 1


def test_ctrl_c_while_the_command_is_loaded_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os\nos.kill(os.getpid(), 2)\n")
    done = subprocess.run(
        [sys.executable, "-m", "slurmkit"], env=os.environ | {"PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def print_a_long_queue() -> None:
    """Stand in for squeue in `test_a_closed_pipe_ends_quietly`."""
    print(squeue_text(sys.argv, [{"JobArrayID": "7"}] * 5000), end="")


if __name__ == "__main__":
    print_a_long_queue()
