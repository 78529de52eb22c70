"""Completion on Tab: the scripts, and what they are answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurmkit.capabilities.cache import keep, local_key
from slurmkit.capabilities.model import Capabilities, Node, Partition
from slurmkit.cli import cli
from slurmkit.cli.completion import SHELLS
from slurmkit.cli.ending import run_to_exit_code
from slurmkit.cli.table import COMMANDS


def tab(line: str, code: str = "from slurmkit.cli import main; main()") -> list[str]:
    """What bash is offered for a line, its last word being typed."""
    words = line.split(" ")
    env = {
        **os.environ,
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_SLURMKIT_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return [offered.partition(",")[2] for offered in done.stdout.split()]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_the_shell_reads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(cli, ["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_SLURMKIT_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


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
        "    bad = {'slurmkit.cli.jobs', 'slurmkit.planner', 'importlib.metadata', 'rich'}\n"
        "    print(*('plain,LOADED' for name in bad & {*sys.modules}))\n"
        "from slurmkit.cli import main\n"
        "main()"
    )
    assert tab("slurmkit ", code) == list(COMMANDS)


def test_a_missing_extra_is_silent_on_tab() -> None:
    code = (
        "from slurmkit.cli import main, table\n"
        "table.COMMANDS['tui'] = table.Entry('not_installed_anywhere:x', '', 'tui')\n"
        "main()"
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
    )
    partitions = (Partition(name="gpu"), Partition(name="cpu"))
    known = Capabilities(
        taken=0, release=(24, 11), cluster_name="x", config={}, nodes=(node,), partitions=partitions
    )
    keep("capabilities", local_key(), known)
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


def test_nothing_is_offered_where_nothing_is_kept() -> None:
    assert tab("slurmkit plan --partition ") == []
