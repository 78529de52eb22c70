"""A shell in a running job's node: which commands lead there, and the terminal lent to them."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from slurmkit.errors import SlurmkitError
from slurmkit.text import printable
from slurmkit_tui.commands import Argv
from slurmkit_tui.logs import note_command

if TYPE_CHECKING:
    from slurmkit.queue.rows import QueueRow
    from slurmkit_tui.app import SlurmkitApp

_MOST = 16  # nodes offered
_AT_ONCE = 5.0  # seconds; what ends with an error sooner was no shell
_SETTLED = 0.3  # seconds until a Ctrl-C that was meant for the shell has been passed over
_PART = re.compile(r"([^,\[]+)(?:\[([^\]]+)\])?([^,\[]*)")


def hosts(node_list: str) -> Iterator[str]:
    """The nodes of a list as Slurm writes it: `c[1-3,07-08],d9`."""
    for found in _PART.finditer(node_list):
        before, ranges, after = found.groups()
        for each in ranges.split(",") if ranges else [""]:
            first, _, last = each.partition("-")
            if not last:
                yield f"{before}{first}{after}"
                continue
            for number in range(int(first), int(last) + 1):
                yield f"{before}{number:0{len(first)}}{after}"


def shells(row: QueueRow) -> list[Argv]:
    """The commands that open a shell in a running job; the first is what most people want."""
    nodes = [name for name, _ in zip(hosts(row.node_list), range(_MOST), strict=False)]
    inside = ["srun", *_inside(row), "--overlap"]
    bash = ["--pty", "bash", "-l"]
    chosen = [[*inside, "-w", node, *bash] for node in nodes] if len(nodes) > 1 else []
    return [[*inside, *bash], *chosen, *(["ssh", node] for node in nodes)]


def _inside(row: QueueRow) -> list[str]:
    """The job, as every srun takes it: an array's task and a part of a het job by number."""
    leader, part_of, part = row.job_id.partition("+")
    return ["--jobid", leader, f"--het-group={part}"] if part_of else ["--jobid", row.raw_id]


def words(argv: Argv) -> str:
    """What a command that opens a shell comes to."""
    if argv[0] == "ssh":
        return "where this cluster lets people in by ssh"
    return "within what the job holds" if "-w" not in argv else "the same, on that node"


def refusal(row: QueueRow, me: str) -> str:
    """Why there is no shell in a job; empty when there is one."""
    return "" if row.user == me else f"job {row.job_id} is {row.user}'s; a shell is theirs alone"


def lend(app: SlurmkitApp, argv: Sequence[str]) -> None:
    """Give the terminal to a command until it ends, and come back."""
    given, error = list(argv), None
    app.lent = True
    try:
        with app.suspend():
            print(f"{printable(shlex.join(given))}   # exit comes back", flush=True)
            began = time.monotonic()
            code = app.session.feed.attach(given)
            if code and time.monotonic() - began < _AT_ONCE:
                _let_read(f"{given[0]} ended with exit code {code}; Enter comes back")
    except SuspendNotSupported:
        app.tell("this terminal cannot be lent to a shell", "error")
        return
    except SlurmkitError as refused:
        error, code = refused, 1
    finally:
        app.set_timer(_SETTLED, app.take_back)
    ended = f"ended with exit code {code}" if code else "ended"
    note_command(app.session.cluster, given, error, ended)
    said = str(error) if error else ended
    app.tell(f"{given[0]} {said}", "error" if error else "information")


def _let_read(words: str) -> None:
    """Leave what a command that failed has said on the screen until it was read."""
    with suppress(EOFError, OSError, KeyboardInterrupt):
        input(f"{words} ")
