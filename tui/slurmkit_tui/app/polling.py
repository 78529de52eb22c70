"""The poller: it schedules questions and passes the answers to the view on the screen."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from textual import on, work
from textual.timer import Timer

from slurmkit.errors import SlurmkitError
from slurmkit.formats.display import format_time
from slurmkit_tui.feed import SOURCE_NAMES, Feed, FeedQuestion, RecordedFeed
from slurmkit_tui.feed.history import HourlyGpus
from slurmkit_tui.feed.threads import ThreadTurns, in_thread, tune_garbage_collector
from slurmkit_tui.host import AppHost
from slurmkit_tui.options import AppOptions
from slurmkit_tui.screens.status_lines import (
    ProblemLine,
    StatusLine,
    StatusValues,
    Summary,
    TabLine,
    Tabs,
)
from slurmkit_tui.session import ClusterSession, LastAnswer
from slurmkit_tui.views import VIEWS, ViewEntry, load_all
from slurmkit_tui.views.base import TableView, View
from slurmkit_tui.widgets.messages import (
    AskingScreen,
    PreviewOutdated,
    ViewAnswered,
    ViewUnanswered,
)

if TYPE_CHECKING:
    from slurmkit_tui.screens.preview import RowPreview


class PollingApp(AppHost):
    """The part of the app that polls: only the question of the view on the screen is asked.

    Attributes:
        session: state of the cluster.
        view: the view on the screen.
        paused: whether polling is stopped.
    """

    def __init__(self, feed: Feed, options: AppOptions | None = None) -> None:
        super().__init__()
        self.options = options or AppOptions()
        self._replay = feed if isinstance(feed, RecordedFeed) else None
        history = HourlyGpus(keep=self.options.keep_history and self._replay is None)
        self._clock = self._replay.clock if self._replay else self.options.clock
        self.session = ClusterSession(
            feed, self.options.interval, history=history, clock=self._clock
        )
        self.view: View = self._new_view(self.options.view)
        self.paused = False
        self._timer: Timer | None = None
        self._turns = ThreadTurns()
        self._also_turn = asyncio.Lock()
        self._preview: RowPreview | None = None
        self._offered: tuple[object, ...] = ()

    def _new_view(self, name: str) -> View:
        view_class = _view_entry(name).load()
        if not issubclass(view_class, TableView):
            return view_class(id=name)
        view = view_class(mine=self.options.mine)
        view.columns = self.options.columns.get(name, ())
        return view

    # The views

    async def action_view(self, name: str) -> None:
        """Switch to a view: show its last answer at once, however old, and ask again when due.

        A job's screen over the views is closed.
        """
        while isinstance(self.screen, AskingScreen):
            await self.pop_screen()
        views = {str(view.NAME): view for view in self.main.query(View)}
        if name not in views:
            # In a thread: an import reads files, which may be slow.
            await in_thread(_view_entry(name).load)
            views[name] = self._new_view(name)
            await self.main.query_one("#views").mount(views[name])
        self.view = views[name]
        for view in views.values():
            view.display = view is self.view
        self.view.focus_main()
        self._turns.prefer(self._last_answer)
        self._show_last_answer()
        self._update_summary()
        if not self.paused:
            self._ask_when_due()
            self._ask_also()  # those that are due, although the view's own question may not be

    @on(TabLine.Clicked)
    async def _open_clicked_view(self, message: TabLine.Clicked) -> None:
        await self.action_view(message.tab)

    @on(View.Opened)
    async def _open_named_view(self, message: View.Opened) -> None:
        await self.action_view(message.view)

    def _show_last_answer(self) -> None:
        """Show the last answer, however old; another view may have asked the same question."""
        last_answer = self._last_answer
        if last_answer.prepared_for == self.view.NAME:
            self.view.take(last_answer.prepared)
        elif last_answer.answer is not None:
            self._prepare(self.session, self.view)

    @on(View.Asks)
    def _ask_again(self) -> None:
        self._ask_now()

    # Polling

    def _ask_when_due(self) -> None:
        answer = self._last_answer.answer
        due = 0.0 if answer is None else answer.taken + self._last_answer.pace.delay
        if due <= self._clock():
            self._ask_now()
        else:
            self._schedule(due - self._clock())

    @property
    def _last_answer(self) -> LastAnswer:
        return self.session.last_answer(self.view.ask, self.view.EVERY)

    def _ask_now(self) -> None:
        self._turns.prefer(self._last_answer)
        if not self._last_answer.pace.asking:
            self._last_answer.pace.asking = True
            self._schedule(None)
            self._fetch(self.session, self.view, self.view.ask)
        self._ask_also()
        self._update_status_lines()

    # A worker needs a description; else Textual writes out its arguments, here all jobs.
    @work(group="look", description="look")
    async def _fetch(self, session: ClusterSession, view: View, ask: FeedQuestion) -> None:
        began, also = time.perf_counter(), _times_of_also(session, view)
        try:
            look = partial(session.look, ask, view.make)
            turn = partial(self._turns.run, session.last_answer(ask), look)
            answer, prepared = await in_thread(turn)
        except SlurmkitError as error:
            self.post_message(ViewUnanswered(session, ask, error, time.perf_counter() - began))
        else:
            self.post_message(ViewAnswered(session, ask, answer, prepared, str(view.NAME), also))

    @work(group="look", description="prepare")
    async def _prepare(self, session: ClusterSession, view: View) -> None:
        """Prepare the last answer for a view again: it, or one it also shows, is another.

        Home shows the answers to its further questions also while its own has none.
        """
        last_answer = session.last_answer(view.ask)
        answer = last_answer.answer
        if answer is None and not view.SHOWS_PARTS:
            return
        also = _times_of_also(session, view)
        try:
            prepared = await in_thread(partial(view.make, answer, session))
        except SlurmkitError as error:
            self.tell(str(error), "error")
            return
        is_newest = also == _times_of_also(session, view)  # else it is prepared once more
        if last_answer.answer is answer and is_newest and not self._is_ending:
            last_answer.prepared, last_answer.prepared_for = prepared, view.NAME
            if session is self.session and view is self.view:
                view.take(prepared)

    def _ask_also(self, *, again: bool = False) -> None:
        """Ask the further questions of the view that are due, or all of them again."""
        if self.view.also:
            self._fetch_also(self.session, self.view, self._clock() if again else 0.0)

    def _is_due(self, last: LastAnswer, since: float) -> bool:
        """Return whether a further question is due, or was not asked since then."""
        if last.answer is not None and last.answer.taken < since:
            return True
        if last.pace.next_at is not None:
            return last.pace.next_at <= self._clock()
        return last.answer is None or last.answer.taken + last.pace.delay <= self._clock()

    @work(group="also", description="also")
    async def _fetch_also(self, session: ClusterSession, view: View, since: float) -> None:
        """Ask one question after another, as views ask one at a time, too."""
        async with self._also_turn:
            for poll in view.also:
                last = session.last_answer(poll.ask, poll.every)
                if self._is_ending or view is not self.view:
                    return
                if not last.pace.asking and self._is_due(last, since):
                    await self._fetch_one(session, last, poll.ask)
                    if view is self.view and not self._is_ending:
                        self._prepare(session, view)

    async def _fetch_one(
        self, session: ClusterSession, last: LastAnswer, ask: FeedQuestion
    ) -> None:
        """Ask a further question; its own view may be on the screen when the answer comes."""
        last.pace.asking = True
        began = time.perf_counter()
        try:
            fetch = partial(session.fetch, ask)
            answer = await in_thread(partial(self._turns.run, last, fetch))
        except SlurmkitError as error:
            last.problem = str(error)
            last.pace.failed(time.perf_counter() - began)
        else:
            last.answer, last.prepared, last.prepared_for = answer, None, ""
            last.problem = ""
            last.pace.answered(0.0 if self._replay else answer.seconds)
        last.pace.next_at = self._clock() + last.pace.delay
        if session is self.session and ask == self.view.ask and not self._is_ending:
            self._show_last_answer()
            if last.answer is None:
                self.view.say(f"{SOURCE_NAMES[ask.what]} has not answered yet")
            self._schedule(last.pace.delay)

    @on(ViewAnswered)
    def _take_answer(self, message: ViewAnswered) -> None:
        if self._is_ending:
            return
        last_answer = message.session.last_answer(message.ask)
        if last_answer.answer is None:
            self._load_views()
        last_answer.answer, last_answer.problem = message.answer, ""
        last_answer.prepared, last_answer.prepared_for = message.prepared, message.view
        last_answer.pace.answered(0.0 if self._replay else message.answer.seconds)
        if self._shows(message):
            self._show_last_answer()
            if message.also != _times_of_also(self.session, self.view):
                # A further answer came in the meantime, or this one made the view ask another.
                self._prepare(self.session, self.view)
                self._ask_also()
            self._schedule(last_answer.pace.delay)

    @work(group="load", description="load")
    async def _load_views(self) -> None:
        """Import the other views and the dialogs in a thread, so that they open quickly."""
        await in_thread(load_all)
        await in_thread(partial(import_module, "slurmkit_tui.app.dialogs"))
        await self._add_preview()
        await in_thread(partial(import_module, "plotext"))  # for the page of a job's GPUs
        tune_garbage_collector()

    @on(ViewUnanswered)
    def _take_failure(self, message: ViewUnanswered) -> None:
        if self._is_ending:
            return
        last_answer = message.session.last_answer(message.ask)
        last_answer.problem = str(message.error)
        if self._replay:  # no load to limit there, and no answer must be skipped
            last_answer.pace.answered(0.0)
        else:
            last_answer.pace.failed(message.took)
        if self._shows(message):
            if last_answer.answer is None:
                self.view.say(f"{SOURCE_NAMES[message.ask.what]} has not answered yet")
            if self.view.also:
                self._prepare(self.session, self.view)
            self._schedule(last_answer.pace.delay)

    def _shows(self, message: ViewAnswered | ViewUnanswered) -> bool:
        return message.session is self.session and message.ask == self.view.ask

    def _schedule(self, delay: float | None) -> None:
        """Schedule the next question in `delay` seconds; None cancels it."""
        if self._timer is not None:
            self._timer.stop()
        waits = delay is not None and not self.paused
        self._timer = self.set_timer(delay or 0, self._ask_now) if waits else None
        self._last_answer.pace.next_at = self._clock() + (delay or 0) if waits else None
        self._update_status_lines()

    # The lines around the view

    @on(View.Changed)
    def _update_summary(self) -> None:
        """Update the lines above the view; not every second, as it takes time for 50,000 jobs."""
        if self._is_ending:
            return
        self._update_preview()
        self.main.query_one(Tabs).show(self.view.NAME)
        self.main.query_one(Summary).show(self.session, self.view)
        offered = self.view.NAME, bool(self.view.rows), self.view.clearable
        if offered != self._offered:
            self._offered = offered
            self.refresh_bindings()

    async def _add_preview(self) -> None:
        """Add the preview, whose module is imported after the first paint."""
        preview = await in_thread(partial(import_module, "slurmkit_tui.screens.preview"))
        if self._preview is None and not self._is_ending:
            self._preview = preview.RowPreview()
            await self.main.mount(self._preview, after="#views")
            self._preview.follow()

    @on(PreviewOutdated)
    def _update_preview(self) -> None:
        if self._preview is not None and self._preview.is_mounted:
            self._preview.follow()

    def _update_status_lines(self) -> None:
        """Update the lines below the view."""
        if self._is_ending:
            return
        now, last_answer = self._clock(), self._last_answer
        asked = SOURCE_NAMES[self.view.ask.what]
        source = StatusValues(self.session, last_answer, asked, self._marks)
        self.main.query_one(StatusLine).show(source, now=now)
        self.main.query_one(ProblemLine).show(last_answer.problem, last_answer.pace, now=now)

    @property
    def _is_ending(self) -> bool:
        return not (self.is_running and self.screen_stack and self.main.query(StatusLine))

    @property
    def _marks(self) -> list[str]:
        """Marks of an unusual mode, for the line below the view."""
        modes = {"PAUSED": self.paused, "READ-ONLY": self.options.read_only}
        marks = [mark for mark, is_on in modes.items() if is_on]
        return [f"RECORDED {format_time(int(self._clock()))}", *marks] if self._replay else marks


def _times_of_also(session: ClusterSession, view: View) -> list[float | None]:
    """Return when the further answers of a view were taken; None for one that has not come."""
    lasts = (session.last_answer(poll.ask) for poll in view.also)
    return [last.answer.taken if last.answer else None for last in lasts]


def _view_entry(name: str) -> ViewEntry:
    return next(place for place in VIEWS if name == place.name)
