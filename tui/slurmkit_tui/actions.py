"""Everything the keyboard can do: key, palette entry, help and confirmation in one declaration."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType

from slurmkit_tui import commands
from slurmkit_tui.commands import Change, Wanted, changed


@dataclass(frozen=True)
class Action:
    """One thing to do.

    Attributes:
        name: what Textual calls: `refresh` is the method `action_refresh`.
        keys: separated by commas, the first is the one shown; empty for what only the menu and
            the palette offer.
        label: a word for the foot of the screen.
        help: a sentence for the help and the palette.
        home: who carries it out: the app or a table.
        footer: shown at the foot of the screen.
        change: for what changes the cluster. The commands are shown, confirmed, and then run as
            shown; never with --read-only.
    """

    name: str
    keys: str
    label: str
    help: str
    home: str = "app"
    footer: bool = False
    change: Change | None = None

    @property
    def call(self) -> str:
        """The action string Textual runs."""
        return f"propose('{self.name}')" if self.change else self.name


_SIGNAL = Wanted("Signal", "USR1 to its steps, B:USR1 to its batch script", commands.signal_name)
_LIMIT = Wanted(
    "Time limit", "minutes, H:MM:SS or D-HH:MM; users may only lower that of a running job",
    changed("time_limit"), lambda row: row.time_limit,
)  # fmt: skip
_PRIORITY = Wanted("Priority", "a number; 0 holds the job", changed("priority"))
_PARTITION = Wanted("Partition", "a name, or several with commas", changed("partition"))
_REASON = Wanted("Reason", "why, for those who find it drained", commands.reason)

CHANGES = (
    Action("cancel", "c", "Cancel", "Cancel jobs", footer=True,
           change=Change("QueueRow", commands.cancel, "Cancel {what}?")),
    Action("hold", "h", "Hold", "Hold jobs back that wait",
           change=Change("QueueRow", commands.scontrol("hold"), "Hold {what}?",
                         commands.only_waiting)),
    Action("release", "H", "Release", "Let held jobs go",
           change=Change("QueueRow", commands.scontrol("release"), "Release {what}?",
                         commands.only_waiting)),
    Action("requeue", "R", "Requeue", "Stop jobs and put them back into the queue",
           change=Change("QueueRow", commands.scontrol("requeue"), "Stop and requeue {what}?",
                         commands.only_started)),
    Action("signal", "K", "Signal", "Send jobs a signal",
           change=Change("QueueRow", commands.signal, "Send the signal to {what}?",
                         commands.only_started, wanted=_SIGNAL)),
    Action("limit", "L", "Time limit", "Change the time limit of jobs",
           change=Change("QueueRow", commands.update("TimeLimit"), "Change {what}?",
                         wanted=_LIMIT)),
    Action("partition", "", "Partition", "Move waiting jobs to another partition",
           change=Change("QueueRow", commands.update("Partition"), "Move {what}?",
                         commands.only_waiting, wanted=_PARTITION)),
    Action("priority", "", "Priority", "Set the priority of waiting jobs; operators only",
           change=Change("QueueRow", commands.update("Priority"), "Change {what}?",
                         commands.only_waiting, needs="operator", wanted=_PRIORITY)),
    Action("drain", "d", "Drain", "Let nodes take no further jobs; administrators only",
           change=Change("NodeRow", commands.node("DRAIN"), "Drain {what}?", needs="administrator",
                         wanted=_REASON)),
    Action("resume", "D", "Resume", "Let nodes take jobs again; administrators only",
           change=Change("NodeRow", commands.node("RESUME"), "Resume {what}?",
                         needs="administrator")),
)  # fmt: skip
ACTIONS = (
    Action("filter", "slash", "Filter", "Show only some rows: words, user:me, >8gpu, -/regex/",
           footer=True),
    Action("clear", "escape", "Clear", "Clear the filter, then what was chosen", footer=True),
    Action("mine", "u", "Mine", "Show only my jobs, or all again", footer=True),
    Action("detail", "enter", "Detail", "Show one row with all that is known of it", footer=True),
    Action("open_tab('log')", "l", "Log", "Show the log of the job", footer=True),
    Action("open_tab('why')", "w", "Why", "Say why the job waits, or why it failed", footer=True),
    Action("menu", "a", "Actions", "List what can be done to the rows chosen", footer=True),
    *CHANGES,
    Action("sort", "o", "Sort", "Choose the column to sort by"),
    Action("columns", "C", "Columns", "Choose the columns"),
    Action("copy", "y", "Copy", "Copy the rows chosen"),
    Action("export", "e", "Export", "Write the rows shown to a CSV or JSON file"),
    Action("refresh", "r", "Refresh", "Ask now"),
    Action("pause", "p", "Pause", "Stop asking, or go on"),
    Action("seek(-60)", "less_than_sign", "Back", "In a recording: a minute back", footer=True),
    Action("seek(60)", "greater_than_sign", "On", "In a recording: a minute on", footer=True),
    Action("seek(-5)", "comma", "Step back", "In a recording: five seconds back"),
    Action("seek(5)", "full_stop", "Step on", "In a recording: five seconds on"),
    Action("shade", "t", "Theme", "Dark or light"),
    Action("help", "question_mark", "Help", "Show the keys", footer=True),
    Action("quit", "q,ctrl+c", "Quit", "Leave", footer=True),
    Action("move(1)", "j,down", "Down", "Next row", home="table"),
    Action("move(-1)", "k,up", "Up", "Previous row", home="table"),
    Action("page(1)", "pagedown", "Page down", "A screen down", home="table"),
    Action("page(-1)", "pageup", "Page up", "A screen up", home="table"),
    Action("edge(0)", "home,g", "First", "First row", home="table"),
    Action("edge(1)", "end,G", "Last", "Last row", home="table"),
    Action("pan(-8)", "left", "Left", "Columns to the left", home="table"),
    Action("pan(8)", "right", "Right", "Columns to the right", home="table"),
    Action("choose", "space", "Choose", "Choose the row, or not any more", home="table"),
    Action("choose_all", "asterisk", "Choose all", "Choose all rows shown, or none",
           home="table"),
)  # fmt: skip
BY_NAME = {action.name: action for action in ACTIONS}


def bindings(home: str) -> list[BindingType]:
    """The key bindings of the app or of its tables."""
    return [
        Binding(action.keys, action.call, action.label, show=action.footer, tooltip=action.help)
        for action in ACTIONS
        if action.home == home and action.keys
    ]
