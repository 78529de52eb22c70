"""The one poller: it plans the questions and hands answers to the view on the screen."""

from __future__ import annotations

import time
from functools import partial

from textual import on, work
from textual.screen import Screen
from textual.timer import Timer

from slurmkit.errors import SlurmkitError
from slurmkit.facts import clock
from slurmkit_tui.feed import Ask, Feed, Recorded
from slurmkit_tui.feed.sources import SOURCES
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.feed.turns import Turns
from slurmkit_tui.keyorder import InOrder
from slurmkit_tui.listview import ListView
from slurmkit_tui.memory import calm
from slurmkit_tui.messages import Answered, Unanswered
from slurmkit_tui.options import Options
from slurmkit_tui.session import Picture, Session
from slurmkit_tui.status import Problem, Source, Status, Summary, Tabs
from slurmkit_tui.view import View
from slurmkit_tui.views import VIEWS, Place, load_all


class PollingApp(InOrder):
    """One cluster at a time, one view of it at a time; only what that shows is asked for.

    Attributes:
        session: what is known of the cluster.
        view: the one on the screen.
        paused: nothing is asked by itself.
    """

    def __init__(self, feed: Feed, options: Options | None = None) -> None:
        super().__init__()
        self.options = options or Options()
        self.session = Session(feed, self.options.interval)
        self._replay = feed if isinstance(feed, Recorded) else None
        self._clock = self._replay.clock if self._replay else self.options.clock
        self.view: View = self._new_view(self.options.view)
        self.paused = False
        self._timer: Timer | None = None
        self._turns = Turns()
        self._offered: tuple[object, ...] = ()

    def _new_view(self, name: str) -> View:
        kind = _place(name).load()
        if not issubclass(kind, ListView):
            return kind(id=name)
        view = kind(mine=self.options.mine)
        view.columns = self.options.columns.get(name, ())
        return view

    # The views

    @property
    def main(self) -> Screen[object]:
        """The screen under all dialogs."""
        return self.screen_stack[0]

    async def action_view(self, name: str) -> None:
        """Switch to a view; what it knows is shown at once, however old, and then asked anew."""
        views = {str(view.NAME): view for view in self.main.query(View)}
        if name not in views:
            # To import is to read files; after each, another thread may have the interpreter.
            await in_thread(_place(name).load)
            views[name] = self._new_view(name)
            await self.main.query_one("#views").mount(views[name])
        self.view = views[name]
        for view in views.values():
            view.display = view is self.view
        self.view.focus_main()
        picture = self._picture
        self._turns.prefer(picture)
        if picture.prepared is not None:
            self.view.take(picture.prepared)
        self._count()
        if not self.paused:
            self._ask_when_due()

    @on(View.Asks)
    def _ask_anew(self) -> None:
        self._ask()

    # The one poller: only what is on the screen is asked for

    def _ask_when_due(self) -> None:
        answer = self._picture.answer
        due = 0.0 if answer is None else answer.taken + self._picture.pace.delay
        if due <= self._clock():
            self._ask()
        else:
            self._plan(due - self._clock())

    @property
    def _picture(self) -> Picture:
        return self.session.picture(self.view.ask, self.view.EVERY)

    def _ask(self) -> None:
        self._turns.prefer(self._picture)
        if not self._picture.pace.asking:
            self._picture.pace.asking = True
            self._plan(None)
            self._look(self.session, self.view, self.view.ask)
        self._say()

    # Each worker is described, since Textual would else write its arguments out: all jobs.
    @work(group="look", description="look")
    async def _look(self, session: Session, view: View, ask: Ask) -> None:
        began = time.perf_counter()
        try:
            look = partial(session.look, ask, view.make)
            turn = partial(self._turns.run, session.picture(ask), look)
            answer, prepared = await in_thread(turn)
        except SlurmkitError as error:
            self.post_message(Unanswered(session, ask, error, time.perf_counter() - began))
        else:
            self.post_message(Answered(session, ask, answer, prepared))

    @on(Answered)
    def _take(self, message: Answered) -> None:
        if self._is_ending:
            return
        picture = message.session.picture(message.ask)
        if picture.answer is None:
            self._load_views()
        picture.answer, picture.prepared, picture.problem = message.answer, message.prepared, ""
        picture.pace.answered(0.0 if self._replay else message.answer.seconds)
        if self._shows(message):
            self.view.take(message.prepared)
            self._plan(picture.pace.delay)

    @work(group="load", description="load")
    async def _load_views(self) -> None:
        """What the other views need, beside the screen, so that to open one is quick."""
        await in_thread(load_all)
        calm()

    @on(Unanswered)
    def _keep(self, message: Unanswered) -> None:
        if self._is_ending:
            return
        picture = message.session.picture(message.ask)
        picture.problem = str(message.error)
        if self._replay:  # nobody is spared there, and the next answer must not be missed
            picture.pace.answered(0.0)
        else:
            picture.pace.failed(message.took)
        if self._shows(message):
            if picture.answer is None:
                self.view.say(f"{SOURCES[message.ask.what]} has not answered yet")
            self._plan(picture.pace.delay)

    def _shows(self, message: Answered | Unanswered) -> bool:
        return message.session is self.session and message.ask == self.view.ask

    def _plan(self, delay: float | None) -> None:
        """Set the time of the next question; None for none."""
        if self._timer is not None:
            self._timer.stop()
        waits = delay is not None and not self.paused
        self._timer = self.set_timer(delay or 0, self._ask) if waits else None
        self._picture.pace.next_at = self._clock() + (delay or 0) if waits else None
        self._say()

    # What the screen says

    @on(View.Changed)
    def _count(self) -> None:
        """Bring the lines above the view up to date; at 50,000 jobs not for every second."""
        if self._is_ending:
            return
        self.main.query_one(Tabs).show(self.view.NAME)
        self.main.query_one(Summary).show(self.session, self.view)
        offered = self.view.NAME, bool(self.view.rows), self.view.clearable
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()

    def _say(self) -> None:
        """Bring the lines below the view up to date."""
        if self._is_ending:
            return
        now, picture = self._clock(), self._picture
        asked = SOURCES[self.view.ask.what]
        source = Source(self.session, picture, asked, self._marks)
        self.main.query_one(Status).show(source, now=now)
        self.main.query_one(Problem).show(picture.problem, picture.pace, now=now)

    @property
    def _is_ending(self) -> bool:
        return not (self.is_running and self.screen_stack and self.main.query(Status))

    @property
    def _marks(self) -> list[str]:
        """What is not as usual, for the line below."""
        marks = {"PAUSED": self.paused, "READ-ONLY": self.options.read_only}
        found = [mark for mark, on in marks.items() if on]
        return [f"RECORDED {clock(int(self._clock()))}", *found] if self._replay else found


def _place(name: str) -> Place:
    return next(place for place in VIEWS if name == place.name)
