"""The help: the keys that work on the screen now, those of the focused widget first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events
from textual.actions import parse
from textual.app import ComposeResult, SystemCommand
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widgets import Input, Static

from slurmkit.formats.display import spark_signs
from slurmkit.state.gpumap import MARK_MEANINGS
from slurmkit_tui.actions.registry import ACTIONS, WIDGET_ACTIONS, Action
from slurmkit_tui.screens.gpu_page import GpuPage
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.screens.status_lines import Summary, Tabs
from slurmkit_tui.themes import has_plain_signs
from slurmkit_tui.views import VIEWS
from slurmkit_tui.views.base import View
from slurmkit_tui.views.gpus import USE_MEANINGS
from slurmkit_tui.views.home_boxes import HomeBox
from slurmkit_tui.widgets.dialogs import TextDialog, key_names
from slurmkit_tui.widgets.gpu_grid import GpuGrid
from slurmkit_tui.widgets.log_view import LogView
from slurmkit_tui.widgets.plots import GpuPlot
from slurmkit_tui.widgets.table import Table
from slurmkit_tui.widgets.wrapped_text import TextLine, two_columns

if TYPE_CHECKING:
    from slurmkit_tui.host import AppHost

Rows = list[tuple[str, str]]
_OF_VIEWS = frozenset(action.call for action in ACTIONS if action.home == "view")
_FOCUS, _VIEW, _APP = "The active part", "This view", "Everywhere"
_NAMES: dict[type, str] = {
    Table: "The table",
    GpuGrid: "The map",
    GpuPlot: "The curve",
    GpuPage: "The GPUs of the job",
    HomeBox: "The box",
    LogView: "The log",
    Input: "The line",
    VerticalScroll: "The text",
}
# Our words for what Textual itself binds.
_TEXTUAL_WORDS = {
    "Focus Next": "Next field or list",
    "Focus Previous": "Field or list before",
    "Page Left": "A screen to the left",
    "Page Right": "A screen to the right",
    "Copy selected text": "Copy the selected text",
    "Quit the app and return to the command prompt.": "Leave the app",
    "Open the command palette": "Find a view or an action by its name",
}
_FILTER = [
    ("llama", "rows with that text anywhere"),
    ("user:me part:gpu,mig", "rows with the text, or one of several, in that field"),
    ("gpus>=8 >8gpu time>2h", "compare a number or a time; user=alice: exactly alice"),
    ("/res.*50/ name:/^ll/", "a regular expression"),
    ("-state:pd !/test/", "rows that do not match"),
]


class HelpDialog(TextDialog):
    """The dialog that lists the keys."""

    def __init__(self, app: AppHost) -> None:
        lines: list[TextLine] = []
        for title, rows in [*key_sections(app.screen), *_filter(app), *_marks(app)]:
            before = [TextLine(Content())] if lines else []
            lines += [*before, TextLine(Content.styled(title, "$primary bold")), *two_columns(rows)]
        super().__init__("Keys", lines)


def key_sections(screen: Screen[object]) -> list[tuple[str, Rows]]:
    """Group the keys that work on a screen by widget; an action is listed once with all keys."""
    groups: dict[str, dict[str, list[str]]] = {}
    for key, active in screen.active_bindings.items():
        if active.enabled:
            own = active.binding.tooltip or active.binding.description or active.binding.action
            words = _TEXTUAL_WORDS.get(own, own)
            groups.setdefault(_title(active, screen), {}).setdefault(words, []).append(key)
    order = sorted(groups, key=lambda title: (title == _APP, title == _VIEW))
    return [(t, [(key_names(",".join(k)), words) for words, k in groups[t].items()]) for t in order]


def _title(active: ActiveBinding, screen: Screen[object]) -> str:
    node: DOMNode = active.node
    if node is screen.app:
        return _VIEW if active.binding.action in _OF_VIEWS else _APP
    if node is screen.app.screen_stack[0]:  # the screen of the views
        return _APP
    if isinstance(node, View | Screen):
        return _VIEW
    return next((_NAMES[each] for each in type(node).__mro__ if each in _NAMES), _FOCUS)


def _filter(app: AppHost) -> Iterator[tuple[str, Rows]]:
    """Yield the filter language, if the view can be filtered."""
    if app.screen is app.main and app.view.filters_rows:
        yield "Filter: a row must match all terms", _FILTER


def _marks(app: AppHost) -> Iterator[tuple[str, Rows]]:
    """Yield what the marks of the GPU map mean, if the view is the map."""
    if app.screen is app.main and app.view.NAME == "gpus":
        letters = ("a, b, A …", "held by the user, account or job named below the map")
        yield "Marks of the map: one for each GPU", [letters, *MARK_MEANINGS.items()]
        scale = (spark_signs([0, 50, 99], plain=has_plain_signs()), "used a little … fully now")
        yield "Marks of the map by use (b)", [scale, *USE_MEANINGS.items()]


_LETTERS = "asdfghjklqwertyuiopzxcvbnm"


class JumpTarget(NamedTuple):
    """A tab or field to jump to.

    Attributes:
        x: screen column of its letter.
        y: screen line of its letter.
        go: function that goes there.
    """

    x: int
    y: int
    go: Callable[[], object]


class Jump(ModalScreen[None]):
    """The letters over the unchanged screen; any other key removes them."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]

    DEFAULT_CSS = """
    Jump { background: $background 30%; layout: vertical; }
    Jump > Static { position: absolute; width: 3; height: 1; color: $background;
                    background: $warning; text-style: bold; }
    """

    def __init__(self, targets: list[JumpTarget]) -> None:
        super().__init__()
        self._targets = dict(zip(_LETTERS, targets, strict=False))

    def compose(self) -> ComposeResult:
        """Put each letter at the begin of its target."""
        for letter, target in self._targets.items():
            sign = Static(Content(f"[{letter}]"), id=f"jump-{letter}", markup=False)
            sign.styles.offset = (target.x, target.y)
            yield sign

    def on_key(self, event: events.Key) -> None:
        """Close; go to the target of the letter, if there is one."""
        event.stop()
        event.prevent_default()
        self.dismiss()
        if target := self._targets.get(event.character or ""):
            self.app.call_next(target.go)


def jump_targets(app: AppHost) -> list[JumpTarget]:
    """Return all targets on the current screen."""
    screen = app.screen
    return [*(_tabs(app) if screen is app.main else ()), *_fields(app, screen)]


def _tabs(app: AppHost) -> Iterator[JumpTarget]:
    tabs, x = app.main.query_one(Tabs), 0
    line = tabs.region
    for name, word in tabs.tab_texts(line.width).items():
        yield JumpTarget(line.x + x, line.y, partial(app.action_view, name))
        x += len(word)
    if app.view.filters_rows:
        summary = app.main.query_one(Summary).region
        yield JumpTarget(summary.x, summary.y, app.action_filter)


def _fields(app: AppHost, screen: Screen[object]) -> Iterator[JumpTarget]:
    for widget in screen.focus_chain:
        region = widget.region.intersection(screen.region)
        if region.area:
            go = partial(screen.set_focus, widget)
            yield JumpTarget(min(region.x, app.size.width - 3), region.y, go)


def palette_commands(app: AppHost, screen: Screen[object]) -> Iterator[SystemCommand]:
    """Yield the commands for a screen: those of its widgets, those of the app, other views'."""
    for node, home in _homes(screen):
        yield from _commands(app, node, [each for each in WIDGET_ACTIONS if each.home == home])
    if screen is app.main:
        yield from _commands(app, app, ACTIONS)
        yield from _commands_elsewhere(app)
        for view in VIEWS:
            go = partial(app.run_action, f"view('{view.name}')")
            title = f"View {view.title}  {view.key}"
            yield SystemCommand(title, f"Go to {view.title}", go)
    elif not screen.is_modal:
        yield from _commands(app, app, [each for each in ACTIONS if each.works_over_jobs])


def _homes(screen: Screen[object]) -> Iterator[tuple[DOMNode, str]]:
    """Yield widgets of a screen with their home, without those whose keys only move a cursor."""
    if screen.id == "submit-form":
        yield screen, "form"
    if isinstance(screen, JobScreen):
        yield screen, "job"
        yield from ((log, "log") for log in screen.query(LogView) if log.display)


def _commands(app: AppHost, node: DOMNode, actions: list[Action] | tuple[Action, ...]
              ) -> Iterator[SystemCommand]:  # fmt: skip
    for action in actions:
        _, name, parameters = parse(action.call)
        refused = action.is_refused_in_recordings and app.change_refusal
        if not refused and node.check_action(name, parameters):
            run = partial(app.run_action, action.call, node)
            yield SystemCommand(_command_title(app, action), action.help, run)


def _command_title(app: AppHost, action: Action) -> str:
    keys = dict(app.options.keys).get(action.id, action.keys)
    return f"{action.label}  {key_names(keys)}" if keys else action.label


def _commands_elsewhere(app: AppHost) -> Iterator[SystemCommand]:
    """Yield what only other views offer; such a command goes to the view first."""
    titles = {view.name: view.title for view in VIEWS}
    for action in (*ACTIONS, *WIDGET_ACTIONS):
        refused = action.is_refused_in_recordings and app.change_refusal
        if refused or action.view in ("", app.view.NAME):
            continue
        _, name, parameters = parse(action.call)
        if action.home in ("app", "view") and app.check_action(name, parameters):
            continue
        go = partial(_go_and_act, app, action)
        title = f"{titles[action.view]}: {_command_title(app, action)}"
        yield SystemCommand(title, f"{action.help}; goes to {titles[action.view]}", go)


async def _go_and_act(app: AppHost, action: Action) -> None:
    """Go to the view of an action. What is for a row waits for the person to choose one."""
    await app.action_view(action.view)
    if action.is_for_rows:
        keys = key_names(dict(app.options.keys).get(action.id, action.keys))
        app.tell(f"choose a row, then press {keys or 'a'}: {action.help}")
    elif action.home in ("app", "view"):
        await app.run_action(action.call, app)
    else:
        focused = app.view.query_one(GpuGrid) if action.home == "map" else app.view
        await app.run_action(action.call, focused)
