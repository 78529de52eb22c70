"""A shell in a running job's node: which commands lead there, and the terminal lent to them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from slurmkit.errors import SlurmkitError
from slurmkit_tui.commands import Argv
from slurmkit_tui.logs import note_command

if TYPE_CHECKING:
    from slurmkit.queue.rows import QueueRow
    from slurmkit_tui.app import SlurmkitApp

_MOST = 16  # nodes offered
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
    inside = ["srun", "--jobid", row.job_id, "--overlap"]
    bash = ["--pty", "bash", "-l"]
    chosen = [[*inside, "-w", node, *bash] for node in nodes] if len(nodes) > 1 else []
    return [[*inside, *bash], *chosen, *(["ssh", node] for node in nodes)]


def refusal(row: QueueRow, me: str) -> str:
    """Why there is no shell in a job; empty when there is one."""
    return "" if row.user == me else f"job {row.job_id} is {row.user}'s; a shell is theirs alone"


def lend(app: SlurmkitApp, argv: Sequence[str]) -> None:
    """Give the terminal to a command until it ends, and come back."""
    words, error = list(argv), None
    app.lent = True
    try:
        with app.suspend():
            print(f"{shlex.join(words)}   # exit comes back", flush=True)
            code = app.session.feed.attach(words)
    except SuspendNotSupported:
        app.tell("this terminal cannot be lent to a shell", "error")
        return
    except SlurmkitError as refused:
        error, code = refused, 1
    finally:
        app.set_timer(_SETTLED, app.take_back)
    note_command(app.session.cluster, words, error)
    said = str(error) if error else f"ended with exit code {code}" if code else "ended"
    app.tell(f"{words[0]} {said}", "error" if error else "information")
