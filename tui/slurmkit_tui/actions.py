"""Everything the keyboard can do: key, palette entry, help and confirmation in one declaration."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding, BindingType

from slurmkit.queue.rows import QueueRow


@dataclass(frozen=True)
class Action:
    """One thing to do.

    Attributes:
        name: what Textual calls: `refresh` is the method `action_refresh`.
        keys: separated by commas, the first is the one shown.
        label: a word for the foot of the screen.
        help: a sentence for the help and the palette.
        home: who carries it out.
        footer: shown at the foot of the screen.
        command: for what changes the cluster: the command for a job. It is shown, confirmed, and
            then run as shown; never with --read-only.
        question: asked before the command is run, with the job's fields filled in.
    """

    name: str
    keys: str
    label: str
    help: str
    home: Literal["app", "table"] = "app"
    footer: bool = False
    command: Callable[[QueueRow], list[str]] | None = None
    question: str = ""

    @property
    def call(self) -> str:
        """The action string Textual runs."""
        return f"propose('{self.name}')" if self.command else self.name


def job_argument(job_id: str) -> str:
    """The id of a job, or of the first task of a pending array, as Slurm's commands take it."""
    return re.sub(r"\[(\d+).*", r"\1", job_id)


def cancel_command(row: QueueRow) -> list[str]:
    """Cancel a job; of an array's waiting tasks, those and not the ones that run already."""
    array, bracket, _ = row.job_id.partition("_[")
    return ["scancel", *(["--state=PENDING"] if bracket else []), array]


ACTIONS = (
    Action("filter", "slash", "Filter", "Show only rows that contain a text", footer=True),
    Action("clear", "escape", "Clear", "Clear the filter", footer=True),
    Action("mine", "u", "Mine", "Show only my jobs, or all again", footer=True),
    Action("detail", "enter", "Detail", "Show one job, with the GPUs it holds", footer=True),
    Action(
        "cancel",
        "c",
        "Cancel",
        "Cancel the job; asks first",
        footer=True,
        command=cancel_command,
        question="Cancel job {job_id} of {user}?",
    ),
    Action("refresh_queue", "r", "Refresh", "Ask squeue now", footer=True),
    Action("pause", "p", "Pause", "Stop asking squeue, or go on", footer=True),
    Action("shade", "t", "Theme", "Dark or light"),
    Action("help", "question_mark", "Help", "Show the keys", footer=True),
    Action("quit", "q,ctrl+c", "Quit", "Leave", footer=True),
    Action("move(1)", "j,down", "Down", "Next job", home="table"),
    Action("move(-1)", "k,up", "Up", "Previous job", home="table"),
    Action("page(1)", "pagedown", "Page down", "A screen down", home="table"),
    Action("page(-1)", "pageup", "Page up", "A screen up", home="table"),
    Action("edge(0)", "home", "First", "First job", home="table"),
    Action("edge(1)", "end", "Last", "Last job", home="table"),
    Action("pan(-8)", "left", "Left", "Columns to the left", home="table"),
    Action("pan(8)", "right", "Right", "Columns to the right", home="table"),
)
BY_NAME = {action.name: action for action in ACTIONS}


def bindings(home: str) -> list[BindingType]:
    """The key bindings of the app or of its tables."""
    return [
        Binding(action.keys, action.call, action.label, show=action.footer, tooltip=action.help)
        for action in ACTIONS
        if action.home == home
    ]
