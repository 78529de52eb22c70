"""Completion on Tab: the scripts, and what they are answered."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from shell_completion import tab

from slurmkit.cli.completion import SHELLS
from slurmkit.cli.main import COMMANDS, cli, run_to_exit_code
from slurmkit.formats.tres import Gres
from slurmkit.state.cache import local_cluster_key, save_cached
from slurmkit.state.model import Capabilities, Node, Partition


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_the_shell_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(cli, ["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_SLURMKIT_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("line", "words", "asked", "replies"),
    [
        ("slurmkit pl", "slurmkit pl", "pl", "h100:1 h100:2"),
        ("slurmkit plan --gpus h", "slurmkit plan --gpus h", "h", "h100:1 h100:2"),
        ("slurmkit plan --gpus h100:", "slurmkit plan --gpus h100 :", "h100:", "1 2"),
        ("slurmkit plan --gpus h100:2", "slurmkit plan --gpus h100 : 2", "h100:2", "1 2"),
        ("slurmkit plan --gpus=h1", "slurmkit plan --gpus = h1", "--gpus=h1", "h100:1 h100:2"),
        ("slurmkit plan --gpus=", "slurmkit plan --gpus =", "--gpus=", "h100:1 h100:2"),
        ("slurmkit plan --gpus=h100:", "slurmkit plan --gpus = h100 :", "--gpus=h100:", "1 2"),
        ("slurmkit plan --gpus=x -t 1:0", "slurmkit plan --gpus = x -t 1 : 0", "1:0", ""),
        ("slurmkit plan ", "slurmkit plan _", "", "h100:1 h100:2"),
    ],
)
def test_bash_is_given_what_is_missing_of_a_word_that_it_splits(
    line: str, words: str, asked: str, replies: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Bash splits at `=` and `:`, and nothing, or files, were offered."""
    assert run_to_exit_code(cli, ["completion", "bash"]) == 0
    script = capsys.readouterr().out
    stub = tmp_path / "slurmkit"
    stub.write_text(
        f'#!/bin/sh\necho "$COMP_WORDS" | tail -n 1 > {tmp_path}/asked\n'
        "echo plain,h100:1; echo plain,h100:2\n"
    )
    stub.chmod(0o755)
    split = " ".join("''" if word == "_" else f"'{word}'" for word in words.split())
    after = f"""
        COMP_LINE='{line}' COMP_WORDS=({split}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _slurmkit_completion '{stub}'; echo "${{COMPREPLY[*]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script + after], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "asked").read_text().strip() == asked
    if replies:
        assert done.stdout.split() == replies.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_the_command_of_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(cli, ["completion", "bash"]) == 0
    begin = """
        COMP_WORDS=(slurmkit submit --gpus 1 -- unam) COMP_CWORD=5
        _slurmkit_completion slurmkit; echo "${COMPREPLY[*]}"
        _command_offset() { echo "the words from $1 on"; }
        _slurmkit_completion slurmkit
    """
    script = capsys.readouterr().out + begin
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["uname", "the words from 5 on"]


def test_commands_and_options_are_offered() -> None:
    assert tab("slurmkit ") == list(COMMANDS)
    assert tab("slurmkit que") == ["queue"]
    assert "--json" in tab("slurmkit queue --")
    assert tab("slurmkit config ch") == ["check"]
    assert tab("slurmkit tui --replay s") == ["sample"]


def test_tab_on_commands_imports_none_of_them_and_scans_nothing() -> None:
    code = (
        "import atexit, sys\n"
        "@atexit.register\n"
        "def said():\n"
        "    bad = {'slurmkit.cli.jobs', 'slurmkit.planning.planner',"
        " 'importlib.metadata', 'rich'}\n"
        "    print(*('plain,LOADED' for name in bad & {*sys.modules}))\n"
        "from slurmkit.cli.main import main\n"
        "main()"
    )
    assert tab("slurmkit ", code) == list(COMMANDS)


def test_a_missing_extra_is_silent_on_tab() -> None:
    code = (
        "from slurmkit.cli import main as cli\n"
        "cli.COMMANDS['tui'] = cli.CommandEntry('not_installed_anywhere:x', '', 'tui')\n"
        "cli.main()"
    )
    assert tab("slurmkit tui --hel", code) == ["--help"]  # of slurmkit itself


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("slurmkit plan --partition ", ["cpu", "gpu"]),
        ("slurmkit submit --partition=g", ["gpu"]),
        ("slurmkit plan --partition cpu,g", ["cpu,gpu"]),
        ("slurmkit queue --nodelist c", ["c1"]),
        ("slurmkit plan --constraint ", ["ib"]),
        ("slurmkit plan --account ", []),
        ("slurmkit plan --gpus-per-node ", ["a100:1", "a100:2", "a100:4"]),
        ("slurmkit submit --gpus h", []),
        ("slurmkit plan --gpus-per-socket a100:2", ["a100:2"]),
        ("slurmkit plan --hint no", ["nomultithread"]),
        ("slurmkit submit --cpu-bind=c", ["cores"]),
        ("slurmkit report usage --gpu-type ", ["a100"]),
        ("slurmkit report usage --partition g", ["gpu"]),
    ],
)
def test_values_are_offered_from_what_is_kept_on_disk(line: str, offered: list[str]) -> None:
    node = Node(
        name="c1",
        states=("IDLE",),
        cpus=1,
        sockets=1,
        cores_per_socket=1,
        threads_per_core=1,
        memory=1,
        features=("ib",),
        gres=(Gres("gpu", "a100", 4), Gres("gpu", None, 2)),
    )
    partitions = (Partition(name="gpu"), Partition(name="cpu"))
    known = Capabilities(
        taken=0, release=(24, 11), cluster_name="x", config={}, nodes=(node,), partitions=partitions
    )
    save_cached("capabilities", local_cluster_key(), known)
    assert tab(line) == offered


def test_sweeps_are_offered_the_newest_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("lab/9.json", "big/12.json", "lab/0123456789ab.json"):
        (tmp_path / "slurmkit/arrays" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "slurmkit/arrays" / name).touch()
    assert tab("slurmkit sweep show ") == ["12", "9"]
    assert tab("slurmkit sweep rerun 1") == ["12"]


def test_dimensions_of_a_report_are_offered() -> None:
    assert tab("slurmkit report usage --by gpu") == ["gpu-type"]
    assert tab("slurmkit report wait --by user,pa") == ["user,partition"]
    assert tab("slurmkit gpus --by a") == ["account"]


def test_ids_of_sweeps_and_notebooks_are_offered_where_a_job_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "slurmkit/arrays/lab").mkdir(parents=True)
    (tmp_path / "slurmkit/arrays/lab/9.json").touch()
    (tmp_path / "slurmkit/jupyter/lab/12").mkdir(parents=True)
    (tmp_path / "slurmkit/jupyter/lab/other").mkdir()
    for command in ("job", "log", "why", "cancel", "hold", "wait", "queue"):
        assert tab(f"slurmkit {command} ") == ["12", "9"], command
    assert tab("slurmkit cancel 12 9") == ["9"]
    assert tab("slurmkit jupyter stop ") == ["12"]


def test_nothing_is_offered_where_nothing_is_kept() -> None:
    assert tab("slurmkit plan --partition ") == []


def test_files_are_offered_for_a_batch_script() -> None:
    """The shell completes what click calls a file."""
    for line in ("slurmkit submit --time 5 jo", "slurmkit plan jo"):
        assert tab(line) == ["jo"]
    assert "--time" in tab("slurmkit submit --ti")
