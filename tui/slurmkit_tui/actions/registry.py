"""All actions: key, palette entry, help and confirmation in one declaration each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from textual.binding import Binding, BindingType

from slurmkit_tui.actions import commands
from slurmkit_tui.actions.commands import ClusterChange, ValuePrompt, change_checker


class ViewOfActions(Protocol):
    """The view on the screen, as the actions see it.

    Attributes:
        OF_JOBS: whether Enter opens a job.
        filters_rows: whether the rows can be filtered.
        IS_TABLE: whether its rows are in a table.
        HAS_ROWS: whether there are rows at all.
    """

    OF_JOBS: ClassVar[bool]
    HAS_ROWS: ClassVar[bool]
    filters_rows: ClassVar[bool]
    IS_TABLE: ClassVar[bool]

    @property
    def is_mounted(self) -> bool:
        """Whether it is on the screen already."""

    @property
    def clearable(self) -> bool:
        """Whether there is a filter, or chosen rows, that Esc clears."""

    @property
    def knows_mine(self) -> bool:
        """Whether it can show only my rows."""


class ActionScope(NamedTuple):
    """What is on the screen, as far as it decides which actions are available.

    Attributes:
        view: the view.
        targets: what a change applies to: the job of an open job's screen, else rows of the view;
            empty for an action that is no change.
        over_job: whether a job's screen is open over the view.
        in_recording: whether a recording is shown instead of a cluster.
    """

    view: ViewOfActions
    targets: Sequence[Any]
    over_job: bool
    in_recording: bool


def _always(_scope: ActionScope) -> bool:
    return True


def _in_table(scope: ActionScope) -> bool:
    return scope.view.IS_TABLE


def _has_rows(scope: ActionScope) -> bool:
    return scope.view.HAS_ROWS or scope.over_job


def _of_jobs(scope: ActionScope) -> bool:
    return scope.view.OF_JOBS


def _in_recording(scope: ActionScope) -> bool:
    return scope.in_recording


@dataclass(frozen=True)
class Action:
    """One action of the TUI.

    Attributes:
        name: action in Textual: `refresh` calls the method `action_refresh`.
        keys: keys separated by commas, the first one is shown; empty for an action that only the
            menu and the palette offer.
        label: a word for the key bar.
        help: a sentence for the help and the palette.
        home: where it works: `app`, `view`, or the widget or screen that has the focus.
        footer: rank in the key bar. On a narrow screen the highest numbers are left out first;
            1 always stays, 0 is never shown.
        alias: name in the configuration, if it is not made from the label.
        change: set if the action changes the cluster. Its commands are shown, confirmed, and run as
            shown; never with --read-only.
        first: whether its key has priority over the keys of the focused widget.
        over_jobs: whether it also works over a job's screen; changes of the cluster always do.
        submits: whether it leads to a submission, or to a list of changes.
        offered: returns whether the view has something to use it on; not asked for changes.
        at: name of a view that always offers it, where others may not; the palette goes there.
    """

    name: str
    keys: str
    label: str
    help: str
    home: str = "app"
    footer: int = 0
    change: ClusterChange | None = None
    alias: str = ""
    first: bool = False
    over_jobs: bool = False
    submits: bool = False
    offered: Callable[[ActionScope], bool] = _always
    at: str = ""

    @property
    def id(self) -> str:
        """Name in the configuration: `time-limit`. It means the same in each home."""
        return self.alias or self.label.lower().replace(" ", "-")

    @property
    def call(self) -> str:
        """Action string that Textual runs."""
        return f"propose('{self.name}')" if self.change else self.name

    @property
    def is_refused_in_recordings(self) -> bool:
        """Whether a recording, or `--read-only`, refuses it: it is not offered there."""
        return self.submits or self.change is not None

    @property
    def is_for_rows(self) -> bool:
        """Whether it is for a row, or for chosen ones, and not for the view as a whole."""
        return self.change is not None or self.at == "mine" or self.name == "copy"

    @property
    def view(self) -> str:
        """Name of a view that offers it, for the palette of other views; empty for none."""
        if self.change is not None:
            return "mine" if self.change.is_for is commands.is_job_row else "nodes"
        return self.at

    @property
    def works_over_jobs(self) -> bool:
        """Whether it also works over a job's screen."""
        return self.over_jobs or self.change is not None

    def applies_to(self, rows: Sequence[Any]) -> bool:
        """Return whether it is a change of the cluster for this class of rows."""
        return self.change is not None and bool(rows) and self.change.is_for(rows[0])

    def available(self, scope: ActionScope) -> bool:
        """Return whether the action can be used on what is on the screen."""
        if scope.over_job and not self.works_over_jobs:
            return False
        if self.change is not None and scope.over_job:
            return self.change.is_for is commands.is_job_row  # also before the job is read
        if self.change is not None:
            return self.applies_to(scope.targets)
        return self.offered(scope)


_SIGNAL = ValuePrompt(
    "Signal", "USR1 goes to the job's steps, B:USR1 to its batch script", commands.check_signal_name
)
_LIMIT = ValuePrompt(
    "Time limit", "minutes, H:MM:SS or D-HH:MM; of a running job, users may only lower it",
    change_checker("time_limit"), lambda row: row.time_limit,
)  # fmt: skip
_PRIORITY = ValuePrompt("Priority", "a number; 0 holds the job", change_checker("priority"))
_PARTITION = ValuePrompt(
    "Partition", "a partition, or several with commas", change_checker("partition")
)
_REASON = ValuePrompt(
    "Reason", "why the nodes are drained; all users can read it", commands.check_reason
)

_KEEP = ValuePrompt(
    "Reason", "why it needs idle GPUs; your PI and the operators see it", commands.check_keep_reason
)

_BACK = "Copy the selected text; if there is none, close what is open. Never quits"

CHANGE_ACTIONS = (
    Action(
        "cancel",
        "c,ctrl+d,f9",
        "Cancel",
        "Cancel jobs",
        footer=3,
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.cancel_commands,
            "Cancel {what}?",
            commands.refuse_ended,
        ),
    ),
    Action(
        "hold",
        "h",
        "Hold",
        "Keep pending jobs from starting",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.scontrol_commands("hold"),
            "Hold {what}?",
            commands.refuse_unless_pending,
        ),
    ),
    Action(
        "release",
        "H",
        "Release",
        "Let held jobs start",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.scontrol_commands("release"),
            "Release {what}?",
            commands.refuse_unless_pending,
        ),
    ),
    Action(
        "requeue",
        "R",
        "Requeue",
        "Stop jobs and put them back into the queue",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.scontrol_commands("requeue"),
            "Stop and requeue {what}?",
            commands.refuse_unless_started,
        ),
    ),
    Action(
        "signal",
        "K",
        "Signal",
        "Send jobs a signal",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.signal_commands,
            "Send the signal to {what}?",
            commands.refuse_unless_started,
            wanted=_SIGNAL,
        ),
    ),
    Action(
        "limit",
        "L",
        "Time limit",
        "Change the time limit of jobs",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.update_commands("TimeLimit"),
            "Change {what}?",
            commands.refuse_ended,
            wanted=_LIMIT,
        ),
    ),
    Action(
        "partition",
        "",
        "Partition",
        "Move pending jobs to another partition",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.update_commands("Partition"),
            "Move {what}?",
            commands.refuse_unless_pending,
            wanted=_PARTITION,
        ),
    ),
    Action(
        "priority",
        "",
        "Priority",
        "Set the priority of pending jobs; operators only",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.update_commands("Priority"),
            "Change {what}?",
            commands.refuse_unless_pending,
            needs="operator",
            wanted=_PRIORITY,
        ),
    ),
    Action(
        "shell",
        "S",
        "Shell",
        "Open a shell on a node of a running job",
        home="view",
        change=ClusterChange(
            commands.is_job_row, commands.no_commands, "", commands.refuse_unless_running
        ),
    ),
    Action(
        "keep",
        "",
        "Keep",
        "Have a warned job's idle GPUs left alone",
        home="view",
        change=ClusterChange(
            commands.is_job_row,
            commands.keep_commands,
            "Have the idle GPUs of {what} left alone?",
            commands.refuse_unless_running,
            wanted=_KEEP,
        ),
    ),
    Action(
        "drain",
        "d",
        "Drain",
        "Start no more jobs on nodes; administrators only",
        home="view",
        change=ClusterChange(
            commands.is_node_row,
            commands.node_state_commands("DRAIN"),
            "Drain {what}?",
            needs="administrator",
            wanted=_REASON,
        ),
    ),
    Action(
        "resume",
        "D",
        "Resume",
        "Let nodes take jobs again; administrators only",
        home="view",
        change=ClusterChange(
            commands.is_node_row,
            commands.node_state_commands("RESUME"),
            "Resume {what}?",
            needs="administrator",
        ),
    ),
)
ACTIONS = (
    Action("filter", "slash", "Filter", "Show only some rows: words, user:me, >8gpu, -/regex/",
           home="view", footer=2, offered=lambda scope: scope.view.filters_rows, at="queue"),
    Action("clear", "escape", "Clear", "Clear the filter, then the chosen rows", home="view",
           footer=1, offered=lambda scope: scope.view.is_mounted and scope.view.clearable),
    Action("mine", "u", "Mine", "Show only my jobs, or all again", home="view", footer=5,
           offered=lambda scope: scope.view.knows_mine, at="queue"),
    Action("detail", "enter", "Detail", "Show all details of one row", home="view",
           footer=3, offered=_has_rows, at="mine"),
    Action("open_tab('log')", "l", "Log", "Show the log of the job", home="view", footer=4,
           offered=_of_jobs, at="mine"),
    Action("open_tab('why')", "w", "Why", "Explain why the job waits, or why it failed",
           home="view", footer=4, offered=_of_jobs, at="mine"),
    Action("open_tab('gpus')", "U", "GPUs", "Show what the GPUs of the job do, or did",
           home="view", offered=_of_jobs, at="mine"),
    Action("menu", "a", "Actions", "List the actions for the chosen rows", home="view",
           footer=2, over_jobs=True, submits=True, offered=_has_rows, at="mine"),
    *CHANGE_ACTIONS,
    Action("sort", "o", "Sort", "Choose the column to sort by", home="view", offered=_in_table,
           at="queue"),
    Action("columns", "C", "Columns", "Choose the columns", home="view", offered=_in_table,
           at="queue"),
    Action("copy", "y", "Copy", "Copy the chosen rows", home="view", offered=_in_table, at="queue"),
    Action("export", "e", "Export", "Write the rows shown to a CSV or JSON file", home="view",
           offered=_in_table, at="queue"),
    Action("new_job", "n", "New job", "Fill in a job, see its plan, and submit it", footer=2,
           over_jobs=True, submits=True),
    Action("submit_again", "A", "Submit again", "Fill in a new job from the one under the cursor",
           over_jobs=True, submits=True,
           offered=lambda scope: scope.view.OF_JOBS or scope.over_job, at="mine"),
    Action("refresh", "r", "Refresh", "Fetch new data now"),
    Action("jump", "J,ctrl+j", "Jump", "Show letters to press on all tabs and fields",
           over_jobs=True),
    Action("pause", "p", "Pause", "Stop fetching new data, or go on"),
    Action("seek(-60)", "less_than_sign", "Back", "In a recording: a minute back", footer=2,
           offered=_in_recording),
    Action("seek(60)", "greater_than_sign", "On", "In a recording: a minute on", footer=2,
           offered=_in_recording),
    Action("seek(-5)", "comma", "Step back", "In a recording: five seconds back",
           offered=_in_recording),
    Action("seek(5)", "full_stop", "Step on", "In a recording: five seconds on",
           offered=_in_recording),
    Action("shade", "t", "Theme", "Switch between dark and light colours", over_jobs=True),
    Action("help", "question_mark,f1", "Help", "Show the keys that work on this screen",
           footer=1, over_jobs=True),
    Action("back", "ctrl+c", "Back", _BACK, alias="interrupt", first=True, over_jobs=True),
    Action("palette", "colon", "Commands", "Find a view or an action by its name"),
    Action("quit", "q,f10", "Quit", "Leave the app", footer=2, over_jobs=True),
)  # fmt: skip
WIDGET_ACTIONS = (
    Action("move(1)", "j,down", "Down", "Next row", home="table"),
    Action("move(-1)", "k,up", "Up", "Previous row", home="table"),
    Action("page(1)", "pagedown", "Page down", "A screen down", home="table"),
    Action("page(-1)", "pageup", "Page up", "A screen up", home="table"),
    Action("edge(0)", "home,g", "First", "First row", home="table"),
    Action("edge(1)", "end,G", "Last", "Last row", home="table"),
    Action("pan(-8)", "left", "Left", "Columns to the left", home="table"),
    Action("pan(8)", "right", "Right", "Columns to the right", home="table"),
    Action("choose", "space", "Choose", "Choose the row, or undo that", home="table"),
    Action("choose_all", "asterisk", "Choose all", "Choose all rows shown, or none",
           home="table"),
    Action("open_box", "enter", "Open", "Open the view that the box is taken from", home="box",
           footer=1),
    Action("go_to_box(0, 1)", "j,down", "Box below", "Go to the box below", home="box"),
    Action("go_to_box(0, -1)", "k,up", "Box above", "Go to the box above", home="box"),
    Action("go_to_box(1, 0)", "right", "Box right", "Go to the box on the right", home="box"),
    Action("go_to_box(-1, 0)", "left", "Box left", "Go to the box on the left", home="box"),
    Action("go(1, 0)", "j,down", "Down", "Next node", home="map"),
    Action("go(-1, 0)", "k,up", "Up", "Previous node", home="map"),
    Action("go(0, 1)", "right", "Right", "Next GPU", home="map"),
    Action("go(0, -1)", "left", "Left", "Previous GPU", home="map"),
    Action("page(1)", "pagedown", "Page down", "A screen down", home="map"),
    Action("page(-1)", "pageup", "Page up", "A screen up", home="map"),
    Action("edge(0)", "home,g", "First", "First node", home="map"),
    Action("edge(1)", "end,G", "Last", "Last node", home="map"),
    Action("by", "b", "By", "Show users, accounts, jobs, or the use of each GPU", home="map",
           footer=2, at="gpus"),
    Action("by", "b", "By", "Sum by GPU type, partition or account", home="utilization",
           footer=2, at="utilization"),
    Action("span", "h", "Span", "Show the last 24 hours, 7 days or 30 days", home="utilization",
           footer=2, at="utilization"),
    Action("step(-1)", "left", "Earlier", "The stretch of time before", home="plot"),
    Action("step(1)", "right", "Later", "The next stretch of time", home="plot"),
    Action("edge(0)", "home", "Oldest", "The oldest stretch of time", home="plot"),
    Action("edge(1)", "end", "Now", "The present stretch of time", home="plot"),
    Action("dismiss", "escape", "Back", "Back to the view", home="job", footer=1,
           alias="leave"),
    Action("tab('facts')", "f", "Facts", "All facts of the job", home="job", footer=4),
    Action("tab('log')", "l", "Log", "Its log", home="job", footer=4),
    Action("tab('errors')", "e", "Stderr", "Its standard error", home="job", footer=4),
    Action("tab('why')", "w", "Why", "Why it waits, or why it failed", home="job", footer=4),
    Action("tab('steps')", "T", "Steps", "Its steps, and the CPU, memory and GPUs they use",
           home="job", footer=4),
    Action("tab('gpus')", "U", "GPUs", "What its GPUs do, or did: use, memory and power",
           home="job", footer=4),
    Action("run(1)", "right_square_bracket", "Next run", "The next run of a requeued job, or the"
           " next task", home="gpu-page"),
    Action("run(-1)", "left_square_bracket", "This run", "The run before, or the task before",
           home="gpu-page"),
    Action("go(1)", "j,down", "Down", "The next GPU", home="gpu-page"),
    Action("go(-1)", "k,up", "Up", "The GPU before", home="gpu-page"),
    Action("open_gpu", "enter", "Curves", "The curves of a GPU, where each has a line; or its line"
           " again", home="gpu-page"),
    Action("tab('script')", "s", "Script", "Its script", home="job", footer=4),
    Action("again", "r", "Refresh", "Fetch this tab again", home="job"),
    Action("remedy", "x,enter", "Change", "Choose a change that would start the job sooner",
           home="job", footer=1),
    Action("send", "ctrl+s", "Send", "Show the command, and submit the job after you confirm it",
           home="form", footer=1),
    Action("preview", "ctrl+t", "Preview", "Go to the findings and the script, or back",
           home="form", footer=2),
    Action("values", "ctrl+l", "Values", "List the values for this field", home="form", footer=3),
    Action("fit", "ctrl+f", "Fit", "Replace wrong values with values that fit", home="form",
           footer=2),
    Action("open_file", "ctrl+o", "Open file", "Fill the form from a job file or a batch script",
           home="form", footer=4),
    Action("save_file", "ctrl+g", "Save file", "Save the form as a job file", home="form",
           footer=4),
    Action("anew", "ctrl+n", "Anew", "Throw the draft away", home="form", footer=3),
    Action("app.help", "f1", "Help", "Show the keys that work on this screen", home="form",
           footer=1),
    Action("app.jump", "ctrl+j", "Jump", "Show letters to press on all tabs and fields",
           home="form"),
    Action("app.back", "ctrl+c", "Back", _BACK, home="form", alias="interrupt", first=True),
    Action("leave", "escape", "Close",
           "Back to the fields, then close the form. The draft is saved",
           home="form", footer=1),
    Action("move(1)", "j,down", "Down", "Next line", home="log"),
    Action("move(-1)", "k,up", "Up", "Previous line", home="log"),
    Action("page(1)", "pagedown,space", "Page down", "A screen down", home="log"),
    Action("page(-1)", "pageup,b", "Page up", "A screen up", home="log"),
    Action("edge(0)", "home,g", "First", "The beginning of the file", home="log"),
    Action("edge(1)", "end,G", "Last", "The end of the file, and follow it", home="log"),
    Action("pan(-16)", "left", "Left", "To the left", home="log"),
    Action("pan(16)", "right", "Right", "To the right", home="log"),
    Action("search", "slash", "Search", "Search for a regular expression", home="log",
           footer=2),
    Action("again(1)", "n", "Next", "Find the next match", home="log", footer=4),
    Action("again(-1)", "N", "Previous", "Find the match before", home="log"),
    Action("first_error", "E", "First error", "The first line that looks like an error",
           home="log", footer=4),
    Action("run(1)", "right_square_bracket", "Next run",
           "Where the next run of a requeued job begins", home="log"),
    Action("run(-1)", "left_square_bracket", "This run",
           "Where this run began; pressed again, the run before", home="log"),
    Action("wrap", "W", "Wrap", "Wrap long lines, or cut them at the right edge", home="log",
           footer=4),
    Action("follow", "F", "Follow", "Follow new lines, or stop", home="log", footer=4),
)  # fmt: skip
ACTIONS_BY_NAME = {action.name: action for action in ACTIONS}
_ACTIONS_BY_METHOD = {
    action.name.partition("(")[0]: action for action in ACTIONS if not action.change
}


def is_available(method: str, parameters: Sequence[object], scope: ActionScope) -> bool:
    """Return whether the app may run an action now.

    Args:
        method: name of the action as Textual calls it: `open_tab`, or `propose` for a change.
        parameters: its parameters: for `propose`, the name of the change.
        scope: what is on the screen.
    """
    if method == "propose":
        change = ACTIONS_BY_NAME.get(str(parameters[0]))
        return change is not None and change.available(scope)
    action = _ACTIONS_BY_METHOD.get(method)
    # Those of Textual itself, such as `focus_next`, and of views are for whatever is on the screen.
    return action is None or action.available(scope)


def key_bindings(*homes: str) -> list[BindingType]:
    """Return the key bindings of the actions with one of these homes."""
    return [
        Binding(
            action.keys, action.call, action.label, show=bool(action.footer), tooltip=action.help,
            id=action.id, priority=action.first,
        )
        for action in (*ACTIONS, *WIDGET_ACTIONS)
        if action.home in homes and action.keys
    ]  # fmt: skip
