"""A shell on a node of a running job: the commands, and the terminal given to them."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import printable
from slurmkit_tui.actions.commands import Argv
from slurmkit_tui.state_files import log_command

if TYPE_CHECKING:
    from slurmkit_tui.actions.commands import JobRow
    from slurmkit_tui.host import AppHost

_MOST = 16  # nodes offered
_AT_ONCE = 5.0  # seconds; a command that fails sooner was no shell
_SETTLED = 0.3  # seconds in which a Ctrl-C meant for the shell may still arrive
_PART = re.compile(r"([^,\[]+)(?:\[([^\]]+)\])?([^,\[]*)")


def expand_nodelist(node_list: str) -> Iterator[str]:
    """Yield the nodes of a Slurm nodelist: `c[1-3,07-08],d9`."""
    for part in _PART.finditer(node_list):
        before, ranges, after = part.groups()
        for each in ranges.split(",") if ranges else [""]:
            first, _, last = each.partition("-")
            if not last:
                yield f"{before}{first}{after}"
                continue
            for number in range(int(first), int(last) + 1):
                yield f"{before}{number:0{len(first)}}{after}"


def shell_commands(row: JobRow) -> list[Argv]:
    """Return the commands that open a shell in a running job, the most useful one first."""
    nodes = [name for name, _ in zip(expand_nodelist(row.node_list), range(_MOST), strict=False)]
    inside = ["srun", *_inside(row), "--overlap"]
    bash = ["--pty", "bash", "-l"]
    chosen = [[*inside, "-w", node, *bash] for node in nodes] if len(nodes) > 1 else []
    return [[*inside, *bash], *chosen, *(["ssh", node] for node in nodes)]


def _inside(row: JobRow) -> list[str]:
    """Return the job options that every srun takes, for array tasks and parts of a het job too."""
    leader, part_of, part = row.job_id.partition("+")
    return ["--jobid", leader, f"--het-group={part}"] if part_of else ["--jobid", row.raw_id]


def describe_shell(argv: Argv) -> str:
    """Describe a command that opens a shell."""
    if argv[0] == "ssh":
        return "if this cluster allows ssh to its nodes"
    return "inside the job's allocation" if "-w" not in argv else "the same, on that node"


def shell_refusal(row: JobRow, me: str) -> str:
    """Return why the person gets no shell in a job; empty when they get one."""
    if getattr(row, "tally", {}):
        return f"job {row.job_id} consists of several; open one of them"
    owner = row.user
    return "" if owner == me else f"job {row.job_id} is {owner}'s; only {owner} gets a shell in it"


def lend_terminal(app: AppHost, argv: Sequence[str]) -> None:
    """Give the terminal to a command until it ends; then show the TUI again."""
    command, error = list(argv), None
    app.terminal_lent = True
    try:
        with app.suspend():
            print(f"{printable(shlex.join(command))}   # exit returns to slurmkit tui", flush=True)
            began = time.monotonic()
            code = app.session.feed.attach(command)
            if code and time.monotonic() - began < _AT_ONCE:
                _wait_for_enter(f"{command[0]} ended with exit code {code}; press Enter to return")
    except SuspendNotSupported:
        app.tell("a shell cannot use this terminal", "error")
        return
    except SlurmkitError as refused:
        error, code = refused, 1
    finally:
        app.set_timer(_SETTLED, app.take_back)
    ended = f"ended with exit code {code}" if code else "ended"
    log_command(app.session.cluster, command, error, ended)
    result = str(error) if error else ended
    app.tell(f"{command[0]} {result}", "error" if error else "information")


def _wait_for_enter(words: str) -> None:
    """Keep the output of a failed command on the screen until Enter."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        input(f"{words} ")
