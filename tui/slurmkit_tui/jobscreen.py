"""One job on a screen of its own: facts, log, script, and why it waits or failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Static

from slurmkit.errors import SlurmkitError
from slurmkit.facts import Fact
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.steps import Steps
from slurmkit.survive.history import RunEnd
from slurmkit.text import printable
from slurmkit.why.model import Explanation
from slurmkit.why.telling import telling
from slurmkit_tui.actions import FOCUSED, bindings
from slurmkit_tui.dialogs import keys, pairs
from slurmkit_tui.facts import all_facts
from slurmkit_tui.feed import Answer, Ask
from slurmkit_tui.foot import Foot
from slurmkit_tui.log.view import LogView
from slurmkit_tui.messages import Found
from slurmkit_tui.steps import table

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp

TABS = {
    "facts": "Facts", "log": "Log", "errors": "Stderr", "why": "Why", "steps": "Steps",
    "script": "Script",
}  # fmt: skip


_CHANGING = frozenset(("facts", "steps"))


class JobScreen(Screen[None]):
    """A job; what needs Slurm is asked for when its tab is first looked at.

    Its facts and steps are asked for again and again until it has ended.
    """

    app: SlurmkitApp
    BINDINGS: ClassVar[list[BindingType]] = bindings("job")

    def __init__(self, job_id: str, known: Sequence[Fact], tab: str = "facts") -> None:
        super().__init__()
        self.job_id = job_id
        self._known = known
        self._tab = tab
        self._asked: set[str] = set()
        self._open: set[str] = set()  # questions without an answer yet
        self._told: Explanation | None = None
        self._info: JobInfo | None = None
        self._at = 0.0  # when that was found
        self._runs: Sequence[RunEnd] = ()

    def compose(self) -> ComposeResult:
        """Stack the job's name, the tabs and what they show."""
        yield Static("", id="job-tabs", markup=False)
        with ContentSwitcher(initial=self._tab):
            for name in ("facts", "why", "steps", "script"):
                with VerticalScroll(id=name, can_focus=True):
                    yield Static("asking…", id=f"{name}-text", markup=False)
            for name in ("log", "errors"):
                view = LogView(self.app.session.feed)
                view.id = name
                yield view
        yield Foot()

    def on_mount(self) -> None:
        """Show what the row said at once."""
        self._put("facts", pairs([*self._known, ("Source", "asking for more…")]))
        self.action_tab(self._tab)
        if self._tab != "facts":
            self._ask("facts")
        self.set_interval(self.app.session.interval, self._keep_up)

    def _keep_up(self) -> None:
        """Ask again for what changes while the job waits or runs, one question at a time."""
        ended = self._info is not None and self._info.ended is not None
        looked_at = self._tab in _CHANGING and self.app.screen is self
        if looked_at and not (ended or self.app.paused or self._open):
            self._ask(self._tab)

    def action_tab(self, name: str) -> None:
        """Show a tab, and ask for it when that was not done yet."""
        self._tab = name
        self.refresh_bindings()
        self.query_one(ContentSwitcher).current = name
        words = [(f" {self._key(title)} {title} ",
                  "$primary bold reverse" if each == name else "$quiet")
                 for each, title in TABS.items()]  # fmt: skip
        heading = (f" Job {printable(self.job_id)}  ", "$primary bold")
        self.query_one("#job-tabs", Static).update(Content.assemble(heading, *words))
        shown = self.query_one(f"#{name}")
        (shown.lines if isinstance(shown, LogView) else shown).focus()
        if name not in self._asked:
            self._ask(name)

    def _key(self, title: str) -> str:
        """The key of a tab, which the person may have changed."""
        given = next(each for each in FOCUSED if each.home == "job" and each.label == title)
        return keys(self.app.options.keys.get(given.id, given.keys)).partition(" ")[0]

    async def action_dismiss(self, result: None = None) -> None:
        """Leave the line to search in first, where it is open; then the job."""
        if not any(log.leave_search() for log in self.query(LogView)):
            await super().action_dismiss(result)

    def action_again(self) -> None:
        """Ask anew for what is shown."""
        self._ask(self._tab)

    def action_remedy(self) -> None:
        """Choose what would start the job sooner, or say why there is nothing."""
        if self._told is None:
            return
        waiting = self._told.waiting
        if waiting is not None and waiting.alternatives:
            self.app.propose_remedies(self._told)
        else:
            why = waiting.no_alternatives if waiting else f"job {self.job_id} does not wait"
            self.app.tell(f"no change is offered: {why or 'none is known'}")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Offer a change where one could be proposed."""
        del parameters
        return action != "remedy" or (self._tab == "why" and self._told is not None)

    def _ask(self, name: str) -> None:
        self._asked.add(name)
        self._open.add(name)
        self.app.ask_for(self._question(name))

    def _question(self, name: str) -> Ask:
        if name in ("log", "errors"):
            return Ask("logpath", (self.job_id, "stderr" if name == "errors" else "stdout"))
        return Ask({"facts": "job"}.get(name, name), (self.job_id,))

    def take(self, message: Found, at: float) -> None:
        """Show what was found at `at`."""
        if message.ask == self._of_runs:
            self._take_runs(message.found)
        for name in TABS:
            if message.ask == self._question(name):
                self._open.discard(name)
                self._show(name, message.found, at)

    @property
    def _of_runs(self) -> Ask:
        return Ask("restarts", (self.job_id,))

    def _take_runs(self, found: Answer | SlurmkitError) -> None:
        """Show them with the facts; an older recording has none."""
        if not isinstance(found, SlurmkitError) and found.value != self._runs:
            self._runs = found.value
            self._put_facts()

    def _put_facts(self) -> None:
        if self._info is not None:
            self._put("facts", pairs(all_facts(self._known, self._info, self._at, self._runs)))

    def _show(self, name: str, found: Answer | SlurmkitError, at: float) -> None:
        if name in ("log", "errors"):
            view = self.query_one(f"#{name}", LogView)
            if isinstance(found, SlurmkitError) or not found.value:
                view.say(
                    str(found) if isinstance(found, SlurmkitError) else "no such file is known"
                )
            else:
                view.open(found.value)
            return
        if isinstance(found, SlurmkitError):
            rows = [*(self._known if name == "facts" else []), ("Problem", str(found))]
            self._put(name, pairs(rows))
        elif isinstance(found.value, JobInfo):
            self._info, self._at = found.value, at
            self._put_facts()
            self.app.ask_for(self._of_runs)
        elif isinstance(found.value, Explanation):
            self._told = found.value
            self.refresh_bindings()
            lines = [("", f"{found.value.answer}."), ("", ""), *telling(found.value)]
            self._put(name, pairs(lines))
        elif isinstance(found.value, Steps):
            self._put(name, table(found.value))
        else:
            text = "\n".join(map(printable, str(found.value).splitlines()))
            self._put(name, Content(text))

    def _put(self, name: str, content: Content) -> None:
        self.query_one(f"#{name}-text", Static).update(content)
