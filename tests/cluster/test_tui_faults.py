"""The app in a real terminal while something is wrong: it says so, goes on, and leaves cleanly."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tui_terminal import Terminal
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
HOSTILE = "evil\nline \x1b[2J\x1b]0;owned\x07 [red]not markup[/] \u202egnp.exe"


@pytest.fixture
def terminal(lab: Lab) -> Iterator[Terminal]:
    opened = Terminal(lab, f"faults{time.time_ns()}")
    yield opened
    opened.close()


@pytest.fixture
def job(lab: Lab) -> Iterator[str]:
    """A job of alice's that runs, with a folder of its own for its log."""
    folder = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    words = ["sbatch", "--parsable", f"--output={folder}/out", "--job-name=steady", "--time=60"]
    number = lab.run(*words, "--wrap", "echo begun; sleep 3000").stdout.strip()
    yield number
    lab.run("scancel", number)
    lab.run("rm", "-r", folder)


def signal_controller(lab: Lab, name: str) -> None:
    lab.run("pkill", f"-{name}", "slurmctld", service="ctld", user="")


def leave(terminal: Terminal, before: str) -> None:
    """Quit, and see that the terminal is as it was."""
    terminal.type("q")
    terminal.wait_for("ready:")
    terminal.type("echo left $?; stty -a | grep -o ' -\\?echo '", "Enter")
    shown = terminal.wait_for("left 0")
    assert " -echo " not in shown
    assert terminal.mode() == before
    assert "Traceback" not in shown


def test_a_slow_slurmctld_is_waited_for_and_found_again(
    lab: Lab, terminal: Terminal, job: str
) -> None:
    before = terminal.mode()
    terminal.type("slurmkit tui --mine --interval 2", "Enter")
    terminal.wait_for_row(job, "RUNNING")
    signal_controller(lab, "STOP")
    try:
        asking = ("pgrep", "-u", "alice", "-x", "squeue")
        wait_for(lambda: lab.run(*asking, check=False).stdout)
        terminal.type("?")  # keys work while the question is on its way
        terminal.wait_for("The table")
        terminal.type("Escape")
        shown = terminal.wait_for("✗")
        assert "steady" in shown  # the last picture stays
        terminal.type("3")
        terminal.wait_for("asking scontrol")
        terminal.type("2")
        terminal.wait_for("steady")
    finally:
        signal_controller(lab, "CONT")
    terminal.type("r")
    wait_for(terminal.screen, lambda shown: "✗" not in shown)
    leave(terminal, before)


def test_a_slurmctld_that_is_stopped_is_said_and_found_again(
    lab: Lab, terminal: Terminal, job: str
) -> None:
    before = terminal.mode()
    terminal.type("slurmkit tui --mine --interval 2", "Enter")
    terminal.wait_for_row(job, "RUNNING")
    container = lab.container("ctld")
    try:
        subprocess.run(["docker", "stop", container], check=True, capture_output=True)
        terminal.type("r")
        shown = terminal.wait_for("slurmctld does not answer", "next try in")
        assert "steady" in shown
        terminal.type("c")
        terminal.wait_for(f"scancel {job}")
        terminal.type("n")
    finally:
        brought_back = lab.up()
        assert brought_back.returncode == 0, brought_back.stderr
    terminal.type("r")

    def asked_anew() -> str:
        terminal.type("r")
        return terminal.screen()

    wait_for(asked_anew, lambda shown: "does not answer" not in shown, every=2)
    terminal.wait_for_row(job, "RUNNING")
    leave(terminal, before)


@pytest.mark.parametrize(
    "body",
    ["head -c 200000 /dev/urandom", "printf 'JOBID|\\x1b[2J\\n\\0\\xff'",
     "yes garbage | head -99", "kill -SEGV $$"],
    ids=["noise", "escapes", "lines", "crash"],
)  # fmt: skip
def test_garbage_from_a_command(lab: Lab, terminal: Terminal, body: str) -> None:
    folder = lab.run("mktemp", "-d").stdout.strip()
    before = terminal.mode()
    try:
        lab.run("tee", f"{folder}/squeue", input=f"#!/bin/bash\n{body}\n")
        lab.run("chmod", "+x", f"{folder}/squeue")
        terminal.type(f"PATH={folder}:$PATH slurmkit tui --interval 2", "Enter")
        shown = terminal.wait_for("q Quit", "squeue", "✗")
        assert "Traceback" not in shown
        terminal.type("6")  # what does not need squeue works
        terminal.wait_for("ACCOUNT / USER", "alice")
        leave(terminal, before)
    finally:
        lab.run("rm", "-r", folder)


def test_a_hostile_name_is_only_text(lab: Lab, terminal: Terminal) -> None:
    fixed = ("--parsable", "--chdir=/tmp", "--output=/dev/null", "--hold", f"--job-name={HOSTILE}")
    number = lab.run("sbatch", *fixed, f"--comment={HOSTILE}", "--wrap", "true").stdout.strip()
    before = terminal.mode()
    try:
        terminal.type("slurmkit tui --mine", "Enter")
        shown = terminal.wait_for("evil\\nline \\x1b[2J")
        assert "1 Mine" in shown.splitlines()[0]
        terminal.type("/")
        terminal.type("-l", "evil")
        terminal.type("Enter")
        terminal.wait_for("1 of")
        terminal.type("Enter")
        terminal.wait_for(f"Job {number}", r"\x1b]0;owned\x07 [red]not markup[/] \u202e")
        terminal.type("Escape")
        terminal.wait_for("q Quit")
        terminal.type("c")
        terminal.wait_for(f"scancel {number}")
        terminal.type("n")
        terminal.wait_for("q Quit")
        leave(terminal, before)
    finally:
        lab.run("scancel", number)


def test_a_terminal_made_small_and_large_again(terminal: Terminal, job: str) -> None:
    before = terminal.mode()
    terminal.type("slurmkit tui --mine", "Enter")
    terminal.wait_for_row(job, "RUNNING")
    for key, words in {"2": job, "3": "c1", "4": "c1", "6": "alice", "8": "slurmctld"}.items():
        terminal.type(key)
        terminal.wait_for(words)
        terminal.resize(40, 10)
        terminal.wait_for(" 1 2")  # the digits alone, but for the view that is shown
        time.sleep(0.5)
        shown = terminal.screen()
        assert "Traceback" not in shown
        assert len(shown.splitlines()) <= 10
        terminal.resize(120, 30)
        terminal.wait_for("q Quit", words)
    leave(terminal, before)


def test_a_paste_is_no_command(lab: Lab, terminal: Terminal, job: str) -> None:
    terminal.type("slurmkit tui --mine", "Enter")
    terminal.wait_for_row(job, "RUNNING")
    terminal.paste("cyq\nd1\ny\n")
    terminal.type("?")  # read after it
    terminal.wait_for("The table")
    terminal.type("Escape")
    shown = wait_for(terminal.screen, lambda shown: "The table" not in shown and "q Quit" in shown)
    assert "scancel" not in shown
    assert "RUNNING" in lab.run("squeue", "-h", "-o", "%T", "-j", job).stdout


def test_a_log_of_a_gigabyte(lab: Lab, terminal: Terminal, job: str) -> None:
    path = lab.run("squeue", "-h", "-O", "STDOUT:200", "-j", job).stdout.strip()
    before = terminal.mode()
    begun = f"until grep -q begun {path}; do sleep 0.2; done"  # Slurm empties it at the start
    lab.run("timeout", "300", "bash", "-c", f"{begun}; truncate -s 1G {path}")
    lab.run("bash", "-c", f"printf '\\nthe last line\\nValueError: at the very end\\n' >> {path}")
    terminal.type("slurmkit tui --mine", "Enter")
    terminal.wait_for_row(job, "RUNNING")
    terminal.type("/")
    terminal.type("-l", "steady")
    terminal.type("Enter")
    terminal.type("l")
    terminal.wait_for("the last line", "1 GiB")
    terminal.type("g")
    terminal.wait_for("begun")
    terminal.type("E")
    terminal.wait_for("ValueError: at the very end")
    terminal.type("Escape")
    terminal.wait_for("c Cancel")
    leave(terminal, before)


def test_a_shell_in_a_job_comes_back_to_a_whole_screen(
    lab: Lab, terminal: Terminal, job: str
) -> None:
    before = terminal.mode()
    terminal.type("slurmkit tui --mine", "Enter")
    terminal.wait_for_row(job, "RUNNING")
    terminal.type("/")
    terminal.type("-l", "steady")
    terminal.type("Enter")
    terminal.wait_for("1 of")
    terminal.type("S")
    terminal.wait_for(f"srun --jobid {job} --overlap --pty bash -l")
    terminal.type("Enter")
    terminal.wait_for("alice@c")
    terminal.type("echo in job $SLURM_JOB_ID", "Enter")
    terminal.wait_for(f"in job {job}")
    terminal.type("exit", "Enter")
    shown = terminal.wait_for("1 Mine", "steady", "q Quit")
    assert "in job" not in shown
    assert (
        f"srun --jobid {job}"
        in lab.run("cat", "/home/alice/.local/state/slurmkit/tui-actions.log").stdout
    )
    leave(terminal, before)
