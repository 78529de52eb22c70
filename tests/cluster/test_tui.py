"""The app in a real terminal on the real cluster: tmux runs it on the login node as alice."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tui_terminal import Terminal, open_terminal, row
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
assert open_terminal  # a fixture


@pytest.fixture
def jobs(lab: Lab) -> Iterator[dict[str, str]]:
    """Two jobs of alice's; the second cannot start."""

    def submit(name: str, *args: str) -> str:
        fixed = ("--parsable", "--chdir=/tmp", "--output=/dev/null", f"--job-name={name}")
        return lab.run("sbatch", *fixed, *args, "--wrap", "sleep 3000").stdout.strip()

    names = {"holdsgpus": ("--gres=gpu:a100:2",), "heldback": ("--hold",)}
    submitted = {name: submit(name, *args) for name, args in names.items()}
    yield submitted
    lab.run("scancel", *submitted.values())


def test_a_running_job_is_shown_filtered_opened_and_cancelled(
    terminal: Terminal, jobs: dict[str, str]
) -> None:
    mine, held = jobs["holdsgpus"], jobs["heldback"]
    terminal.type("slurmkit tui --mine --interval 2", "Enter")
    terminal.wait_for("(JobHeldUser)", "holdsgpus", "squeue")
    shown = terminal.wait_for_row(mine, "RUNNING")
    assert " alice " in row(shown, mine)
    assert row(shown, mine).split()[-2] in {"c1", "c2"}
    assert "(JobHeldUser)" in row(shown, held)

    terminal.type("/")
    terminal.type("-l", "holdsg")
    shown = terminal.wait_for("(mine, holdsg)")
    assert row(shown, mine)
    assert not row(shown, held)

    terminal.type("Enter")
    terminal.wait_for("q Quit")
    terminal.type("Enter")
    shown = terminal.wait_for(f"Job {mine}", "squeue at")
    assert re.search(r"GPUs +2 a100\b", shown)
    assert re.search(r" c[12] +GPU \d, \d", shown)
    terminal.type("Escape")

    terminal.wait_for("q Quit")
    terminal.type("c")
    terminal.wait_for(f"Cancel job {mine} of alice?", f"scancel {mine}")
    terminal.type("y")
    terminal.wait_for(f"done: scancel {mine}")
    terminal.wait_for("0 of")


def test_read_only_cancels_nothing(lab: Lab, terminal: Terminal, jobs: dict[str, str]) -> None:
    terminal.type("slurmkit tui --mine --read-only", "Enter")
    terminal.wait_for("READ-ONLY")
    terminal.wait_for_row(jobs["holdsgpus"], "RUNNING")
    terminal.type("c")
    terminal.wait_for("cancel is refused: read-only")
    terminal.type("y")
    states = lab.run("squeue", "--noheader", "-o", "%T", "-j", ",".join(jobs.values())).stdout
    assert sorted(states.split()) == ["PENDING", "RUNNING"]


def test_the_map_shows_who_is_on_which_gpu(
    lab: Lab, terminal: Terminal, jobs: dict[str, str]
) -> None:
    mine = jobs["holdsgpus"]
    terminal.type("slurmkit tui --view gpus --interval 2", "Enter")
    terminal.wait_for("a alice: ", "largest block on one node")
    held = ""
    while "IDX:" not in held:
        held = lab.run("scontrol", "show", "job", "-d", mine).stdout
    node, indices = re.search(r"Nodes=(\S+) .*GRES=gpu:a100:2\(IDX:([\d,-]+)\)", held).groups()
    first, _, last = indices.replace(",", "-").partition("-")

    def drawn() -> list[str]:
        line = next(line for line in terminal.screen().splitlines() if f"{node} " in line)
        return line.split("a100", 1)[1].split()

    # The map may be older than the job.
    wait_for(drawn, lambda letters: letters[int(first)] == letters[int(last)] == "a")
    terminal.type("/")
    terminal.type("-l", f"job={mine}")
    terminal.wait_for(f"2 match job={mine}")
    terminal.type("Enter")
    terminal.type("Enter")
    terminal.wait_for(f"Job {mine}", "GPU is", "held")


def test_an_administrator_drains_and_resumes_a_node_and_nobody_else(lab: Lab) -> None:
    def state() -> str:
        return lab.run("sinfo", "-h", "-n", "c7", "-o", "%T %E", user="").stdout

    for user, words in (("alice", ("only Slurm's administrators may",)), ("", ("Reason",))):
        opened = Terminal(lab, f"tui{time.time_ns()}", user)
        try:
            opened.type("slurmkit tui --view nodes", "Enter")
            opened.wait_for("c7", "nodes")
            opened.type("End")
            opened.type("d")
            opened.wait_for(*words)
            if user:
                continue
            opened.type("-l", "bad fan")
            opened.type("Enter")
            opened.wait_for("scontrol update NodeName=c7 State=DRAIN 'Reason=bad fan'")
            opened.type("y")
            opened.wait_for("done: scontrol update", "drained")
            assert "bad fan" in state()
            opened.type("D")
            opened.wait_for("scontrol update NodeName=c7 State=RESUME")
            opened.type("y")
            opened.wait_for("done: scontrol update NodeName=c7 State=RESUME")
            assert "drain" not in state()
        finally:
            opened.close()


def test_a_recording_is_replayed_without_slurm(
    lab: Lab, terminal: Terminal, jobs: dict[str, str]
) -> None:
    folder = lab.run("mktemp", "-d").stdout.strip()
    terminal.type(f"slurmkit tui --mine --record {folder}/a.rec", "Enter")
    terminal.wait_for_row(jobs["holdsgpus"], "RUNNING")
    terminal.type("q")
    terminal.type("clear", "Enter")
    terminal.type(f"PATH=/opt/slurmkit/venv/bin slurmkit tui --replay {folder}/a.rec", "Enter")
    terminal.wait_for("RECORDED", "holdsgpus")
    terminal.type("c")
    terminal.wait_for("this is a recording")
    lab.run("rm", "-r", folder)


def test_the_log_is_followed_and_the_cancelled_job_is_found_in_mine(
    lab: Lab, terminal: Terminal
) -> None:
    folder = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    script = "for n in $(seq 9000); do echo step $n; sleep 0.5; done"
    words = ["sbatch", "--parsable", f"--output={folder}/out", "--job-name=steps", "--time=60"]
    mine = lab.run(*words, f"--wrap={script}").stdout.strip()
    try:
        terminal.type("slurmkit tui --mine --interval 2", "Enter")
        terminal.wait_for_row(mine, "RUNNING")
        terminal.type("/")
        terminal.type("-l", "steps")
        terminal.type("Enter")
        terminal.type("l")
        first = last_step(terminal.wait_for("step ", "following"))
        wait_for(lambda: last_step(terminal.screen()), lambda last: last > first)
        terminal.type("Escape")
        terminal.wait_for("c Cancel")
        terminal.type("c")
        terminal.wait_for(f"scancel {mine}")
        terminal.type("y")
        terminal.wait_for(f"done: scancel {mine}")
        terminal.type("1")
        terminal.wait_for_row(mine, "CANCELLED")
    finally:
        lab.run("scancel", mine)
        lab.run("rm", "-r", folder)


def test_every_view_has_something_to_show(terminal: Terminal) -> None:
    terminal.type("slurmkit tui", "Enter")
    terminal.wait_for("q Quit", "squeue")
    terminal.wait_for(" held ", "Last 24 hours", "My running jobs", "Needs attention")
    for key, words in {
        "5": ("GPUs held (", "GPU-hours"),
        "6": ("ACCOUNT / USER", "alice", "the fairshare factor of alice"),
        "7": ("MONTH", "ledger"),
        "8": ("SEVERITY", "doctor"),
        "4": ("NODE", "c7", "scontrol"),
    }.items():
        terminal.type(key)
        terminal.wait_for(*words)


@pytest.mark.parametrize("end", ["q", "kill -TERM", "kill -INT"])
def test_the_shell_is_clean_afterwards(lab: Lab, terminal: Terminal, end: str) -> None:
    before = terminal.mode()
    terminal.type("slurmkit tui", "Enter")
    terminal.wait_for("q Quit", "Slurm calls")
    assert terminal.mode() != before
    if end.startswith("kill"):
        lab.run("kill", end.removeprefix("kill "), terminal.child())
    else:
        terminal.type(end)
    terminal.wait_for("ready:slurmkit tui")
    terminal.type("echo status $?; stty -a | grep -o ' -\\?echo '", "Enter")
    shown = terminal.wait_for("status 0")
    assert "Quit" not in shown
    assert " -echo " not in shown
    assert terminal.mode() == before


def test_a_slurmctld_out_of_reach_is_said_in_words(terminal: Terminal) -> None:
    conf = "sed 's/^SlurmctldPort=.*//' /etc/slurm/slurm.conf > /tmp/$USER.conf"
    terminal.type(f"{conf}; echo SlurmctldPort=1 >> /tmp/$USER.conf", "Enter")
    terminal.type("SLURM_CONF=/tmp/$USER.conf slurmkit tui", "Enter")
    shown = terminal.wait_for("slurmctld does not answer", "next try in")
    assert "Traceback" not in shown
    assert "squeue: no answer yet" in shown
    terminal.type("q")
    terminal.wait_for("ready:")


def test_a_job_from_the_form_is_followed_changed_cancelled_and_found(
    lab: Lab, terminal: Terminal
) -> None:
    folder = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    name = f"walk{time.time_ns() % 1_000_000}"
    try:
        own = f"XDG_STATE_HOME={folder}"  # with no draft of before
        terminal.type(f"cd {folder}; {own} slurmkit tui --mine --interval 2", "Enter")
        terminal.wait_for("q Quit", "squeue")
        mine = submitted_from_the_form(terminal, name)
        node, index = held_gpu(lab, mine)
        terminal.type("l")
        terminal.wait_for("step ", "following")
        terminal.type("Escape")
        terminal.wait_for("q Quit")
        terminal.type("3")
        terminal.wait_for("a alice: ")
        # The map may be older than the job.
        wait_for(lambda: letters(terminal, node), lambda drawn: drawn[index] == "a")
        terminal.type("1")
        terminal.wait_for_row(mine, "RUNNING")
        terminal.type("/")
        terminal.type("-l", name)
        terminal.type("Enter")
        terminal.wait_for("c Cancel")
        terminal.type("L")
        terminal.wait_for("Time limit", "minutes, H:MM:SS")
        terminal.type("C-u", "50", "Enter")  # read at once
        terminal.wait_for(f"scontrol update JobId={mine} TimeLimit=50")
        terminal.type("y")
        terminal.wait_for(f"done: scontrol update JobId={mine}")
        assert lab.run("squeue", "-h", "-o", "%l", "-j", mine).stdout.strip() == "50:00"
        terminal.type("c")
        terminal.wait_for(f"scancel {mine}")
        terminal.type("y")
        terminal.wait_for(f"done: scancel {mine}")
        terminal.wait_for_row(mine, "CANCELLED")
        terminal.type("A")
        shown = terminal.wait_for(f"from job {mine} (CANCELLED)", "#SBATCH --time=00:50:00")
        assert "seq 9000" in shown
        assert "#SBATCH --gpus-per-node=a100:1" in shown
        terminal.type("Escape")
        log = lab.run("tail", "-n", "20", f"{folder}/slurmkit/tui-actions.log").stdout
        assert f"sbatch --parsable submitted job {mine} {name}" in log
    finally:
        lab.run("scancel", f"--name={name}", "--user=alice")
        lab.run("rm", "-r", folder)


def submitted_from_the_form(terminal: Terminal, name: str) -> str:
    """Type a job with one GPU, see it planned, send it; its id."""
    terminal.type("n")
    terminal.wait_for("New job on", "enter what the job runs")
    terminal.type("-l", "for n in $(seq 9000); do echo step $n; sleep 0.5; done")
    terminal.type("Tab")
    terminal.wait_for("GPUs: Whole GPUs", "a100:1")  # what the cluster offers
    terminal.type("-l", "a100:1")
    terminal.type(*["Tab"] * 2)
    terminal.type("-l", name)
    terminal.type(*["Tab"] * 11)
    terminal.wait_for("Time: ")
    terminal.type("-l", "60")
    terminal.wait_for("ready", "#SBATCH --gpus-per-node=a100:1", "#SBATCH --time=60")
    terminal.type("C-s")
    terminal.wait_for(f"Submit {name} to", "sbatch --parsable")
    terminal.type("y")
    shown = terminal.wait_for("Job ", "Facts", f"{name}")
    return re.search(r"Job (\d+) ", shown)[1]


def held_gpu(lab: Lab, job_id: str) -> tuple[str, int]:
    """Node and index of a job's only GPU, once it runs."""
    show = ("scontrol", "show", "job", "-d", job_id)
    held = re.compile(r"Nodes=(\S+) .*GRES=gpu:a100:1\(IDX:(\d+)\)")
    found = wait_for(lambda: held.search(lab.run(*show).stdout))
    assert found is not None
    return found[1], int(found[2])


def letters(terminal: Terminal, node: str) -> list[str]:
    """The holders of a node's GPUs, as the map draws them."""
    line = next(line for line in terminal.screen().splitlines() if f"{node} " in line)
    return line.split("a100", 1)[1].split()


def last_step(screen: str) -> int:
    """The last step that a followed log shows."""
    return max((int(number) for number in re.findall(r"step (\d+)", screen)), default=0)
