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
        home: where it works: in the whole app, in a view, or in what has the focus there.
        footer: shown at the foot of the screen; where that is narrow, those with the highest
            number give way first, and 1 never does. 0 is not shown.
        alias: the name it is configured by, where that is not its label.
        change: for what changes the cluster. The commands are shown, confirmed, and then run as
            shown; never with --read-only.
        first: its key is for it whatever has the focus.
    """

    name: str
    keys: str
    label: str
    help: str
    home: str = "app"
    footer: int = 0
    change: Change | None = None
    alias: str = ""
    first: bool = False

    @property
    def id(self) -> str:
        """The name it is configured by: `time-limit`. The same in each home means the same."""
        return self.alias or self.label.lower().replace(" ", "-")

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

_BACK = "Copy what is selected; else close what is open, as Esc does. It never quits"

CHANGES = (
    Action("cancel", "c", "Cancel", "Cancel jobs", footer=3,
           home="view",
           change=Change("QueueRow", commands.cancel, "Cancel {what}?")),
    Action("hold", "h", "Hold", "Hold jobs back that wait",
           home="view",
           change=Change("QueueRow", commands.scontrol("hold"), "Hold {what}?",
                         commands.only_waiting)),
    Action("release", "H", "Release", "Let held jobs go",
           home="view",
           change=Change("QueueRow", commands.scontrol("release"), "Release {what}?",
                         commands.only_waiting)),
    Action("requeue", "R", "Requeue", "Stop jobs and put them back into the queue",
           home="view",
           change=Change("QueueRow", commands.scontrol("requeue"), "Stop and requeue {what}?",
                         commands.only_started)),
    Action("signal", "K", "Signal", "Send jobs a signal",
           home="view",
           change=Change("QueueRow", commands.signal, "Send the signal to {what}?",
                         commands.only_started, wanted=_SIGNAL)),
    Action("limit", "L", "Time limit", "Change the time limit of jobs",
           home="view",
           change=Change("QueueRow", commands.update("TimeLimit"), "Change {what}?",
                         wanted=_LIMIT)),
    Action("partition", "", "Partition", "Move waiting jobs to another partition",
           home="view",
           change=Change("QueueRow", commands.update("Partition"), "Move {what}?",
                         commands.only_waiting, wanted=_PARTITION)),
    Action("priority", "", "Priority", "Set the priority of waiting jobs; operators only",
           home="view",
           change=Change("QueueRow", commands.update("Priority"), "Change {what}?",
                         commands.only_waiting, needs="operator", wanted=_PRIORITY)),
    Action("shell", "S", "Shell", "Open a shell in the node of a running job", home="view",
           change=Change("QueueRow", commands.nothing, "", commands.only_running)),
    Action("drain", "d", "Drain", "Let nodes take no further jobs; administrators only",
           home="view",
           change=Change("NodeRow", commands.node("DRAIN"), "Drain {what}?", needs="administrator",
                         wanted=_REASON)),
    Action("resume", "D", "Resume", "Let nodes take jobs again; administrators only",
           home="view",
           change=Change("NodeRow", commands.node("RESUME"), "Resume {what}?",
                         needs="administrator")),
)  # fmt: skip
ACTIONS = (
    Action("filter", "slash", "Filter", "Show only some rows: words, user:me, >8gpu, -/regex/",
           home="view", footer=2),
    Action("clear", "escape", "Clear", "Clear the filter, then what was chosen", home="view",
           footer=1),
    Action("mine", "u", "Mine", "Show only my jobs, or all again", home="view", footer=5),
    Action("detail", "enter", "Detail", "Show one row with all that is known of it", home="view",
           footer=3),
    Action("open_tab('log')", "l", "Log", "Show the log of the job", home="view", footer=4),
    Action("open_tab('why')", "w", "Why", "Say why the job waits, or why it failed", home="view",
           footer=4),
    Action("menu", "a", "Actions", "List what can be done to the rows chosen", home="view",
           footer=2),
    *CHANGES,
    Action("sort", "o", "Sort", "Choose the column to sort by", home="view"),
    Action("columns", "C", "Columns", "Choose the columns", home="view"),
    Action("copy", "y", "Copy", "Copy the rows chosen", home="view"),
    Action("export", "e", "Export", "Write the rows shown to a CSV or JSON file", home="view"),
    Action("new_job", "n", "New job", "Fill in a job, see its plan, and submit it", footer=2),
    Action("submit_again", "A", "Submit again", "Fill in a new job from the one under the cursor"),
    Action("refresh", "r", "Refresh", "Ask now"),
    Action("jump", "J,ctrl+j", "Jump", "Letters over all that the keys can go to"),
    Action("pause", "p", "Pause", "Stop asking, or go on"),
    Action("seek(-60)", "less_than_sign", "Back", "In a recording: a minute back", footer=2),
    Action("seek(60)", "greater_than_sign", "On", "In a recording: a minute on", footer=2),
    Action("seek(-5)", "comma", "Step back", "In a recording: five seconds back"),
    Action("seek(5)", "full_stop", "Step on", "In a recording: five seconds on"),
    Action("shade", "t", "Theme", "Dark or light"),
    Action("help", "question_mark,f1", "Help", "Show the keys of what is on the screen",
           footer=1),
    Action("back", "ctrl+c", "Back", _BACK, alias="interrupt", first=True),
    Action("quit", "q", "Quit", "Leave", footer=2),
)  # fmt: skip
FOCUSED = (
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
    Action("go(1, 0)", "j,down", "Down", "Next node", home="map"),
    Action("go(-1, 0)", "k,up", "Up", "Previous node", home="map"),
    Action("go(0, 1)", "right", "Right", "Next GPU", home="map"),
    Action("go(0, -1)", "left", "Left", "Previous GPU", home="map"),
    Action("page(1)", "pagedown", "Page down", "A screen down", home="map"),
    Action("page(-1)", "pageup", "Page up", "A screen up", home="map"),
    Action("edge(0)", "home,g", "First", "First node", home="map"),
    Action("edge(1)", "end,G", "Last", "Last node", home="map"),
    Action("by", "b", "By", "Letters by user, account or job", home="map", footer=2),
    Action("by", "b", "By", "By day, GPU type, partition, account", home="utilization",
           footer=2),
    Action("hours", "h", "Hours", "By hour, or by day again", home="utilization", footer=3),
    Action("dismiss", "escape", "Back", "Back to the view", home="job", footer=1,
           alias="leave"),
    Action("tab('facts')", "f", "Facts", "What is known of the job", home="job", footer=4),
    Action("tab('log')", "l", "Log", "Its log", home="job", footer=4),
    Action("tab('errors')", "e", "Stderr", "Its standard error", home="job", footer=4),
    Action("tab('why')", "w", "Why", "Why it waits, or why it failed", home="job", footer=4),
    Action("tab('steps')", "T", "Steps", "Its steps, what they use and used", home="job",
           footer=4),
    Action("tab('script')", "s", "Script", "Its script", home="job", footer=4),
    Action("again", "r", "Refresh", "Ask anew for what is shown", home="job"),
    Action("remedy", "enter,x", "Change", "Choose what would start the job sooner, and do it",
           home="job", footer=1),
    Action("send", "ctrl+s", "Send", "Show the command, and submit the job once that is confirmed",
           home="form", footer=1),
    Action("preview", "ctrl+t", "Preview", "What was found and the script, and back",
           home="form", footer=2),
    Action("values", "ctrl+l", "Values", "List what this field can be", home="form", footer=3),
    Action("fit", "ctrl+f", "Fit", "Take over what fits in the place of the errors", home="form",
           footer=2),
    Action("open_file", "ctrl+o", "Open file", "Fill in a job file or a batch script",
           home="form", footer=4),
    Action("save_file", "ctrl+g", "Save file", "Write a job file", home="form", footer=4),
    Action("anew", "ctrl+n", "Anew", "Throw the draft away", home="form"),
    Action("app.help", "f1", "Help", "Show the keys of what is on the screen", home="form",
           footer=1),
    Action("app.jump", "ctrl+j", "Jump", "Letters over all that the keys can go to", home="form"),
    Action("app.back", "ctrl+c", "Back", _BACK, home="form", alias="interrupt", first=True),
    Action("leave", "escape", "Close", "Back to the fields; then close, and keep the draft",
           home="form", footer=1),
    Action("move(1)", "j,down", "Down", "Next line", home="log"),
    Action("move(-1)", "k,up", "Up", "Previous line", home="log"),
    Action("page(1)", "pagedown,space", "Page down", "A screen down", home="log"),
    Action("page(-1)", "pageup,b", "Page up", "A screen up", home="log"),
    Action("edge(0)", "home,g", "First", "The begin of the file", home="log"),
    Action("edge(1)", "end,G", "Last", "The end of the file, followed", home="log"),
    Action("pan(-16)", "left", "Left", "To the left", home="log"),
    Action("pan(16)", "right", "Right", "To the right", home="log"),
    Action("search", "slash", "Search", "Look for a regular expression", home="log",
           footer=2),
    Action("again(1)", "n", "Next", "Look for the same further down", home="log", footer=4),
    Action("again(-1)", "N", "Previous", "Look for the same further up", home="log"),
    Action("first_error", "E", "First error", "The first line that looks like an error",
           home="log", footer=4),
    Action("run(1)", "right_square_bracket", "Next run",
           "Where the next run of a requeued job begins", home="log"),
    Action("run(-1)", "left_square_bracket", "This run",
           "Where this run began; again: the one before", home="log"),
    Action("follow", "F", "Follow", "Follow what is written, or stop", home="log", footer=4),
)  # fmt: skip
BY_NAME = {action.name: action for action in ACTIONS}


def bindings(*homes: str) -> list[BindingType]:
    """The key bindings of homes: of the app, which carries out what views offer, or of a table."""
    return [
        Binding(
            action.keys, action.call, action.label, show=bool(action.footer), tooltip=action.help,
            id=action.id, priority=action.first,
        )
        for action in (*ACTIONS, *FOCUSED)
        if action.home in homes and action.keys
    ]  # fmt: skip
