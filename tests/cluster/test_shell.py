"""`slurmkit shell` at a real terminal: the GPUs asked for are there, and given back at the end."""

from __future__ import annotations

import pytest
from cluster_lab import Lab
from tui_terminal import Terminal, open_terminal

pytestmark = pytest.mark.cluster
assert open_terminal  # a fixture


def test_a_shell_has_its_gpus_and_gives_them_back(lab: Lab, terminal: Terminal) -> None:
    words = "slurmkit shell --gpus-per-node a100:2 --time 5 --env GREETING=hello"
    terminal.type(words, "Enter")
    terminal.wait_for("Granted job allocation", "@c")
    terminal.type("echo has $CUDA_VISIBLE_DEVICES, $GREETING, $(hostname)", "Enter")
    terminal.wait_for(", hello, c")
    terminal.type("sleep 100", "Enter")
    terminal.type("C-c")
    terminal.type("exit 4", "Enter")
    terminal.wait_for("Relinquishing job allocation")
    terminal.type("echo code $?", "Enter")
    terminal.wait_for("code 4")
    assert not lab.run("squeue", "-h", "--me", "-n", "bash").stdout


def test_a_shell_that_can_never_start_is_not_waited_for(lab: Lab) -> None:
    done = lab.run("slurmkit", "shell", "--gpus-per-node=a100:99", "--time=5", check=False)
    assert done.returncode == 2
    assert "no shell was started: 1 error" in done.stderr
