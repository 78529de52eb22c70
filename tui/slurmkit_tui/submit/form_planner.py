"""Planning while the form is filled in: when to plan, and when to ask slurmctld."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Protocol

from slurmkit.errors import SlurmkitError
from slurmkit_tui.feed import Feed
from slurmkit_tui.feed.knowledge import ClusterDataCache
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.jobform.draft import FormTexts
from slurmkit_tui.submit.planned import (
    PlannedForm,
    plan_form,
    plan_with_test_only,
    planning_failed,
)

TYPING_PAUSE = 0.3  # seconds without a key after which the form is planned
STILL_PAUSE = 2.0  # seconds without a key after which slurmctld is asked
_STALE = 60.0  # seconds after which a plan is renewed before it is submitted


class FormToPlan(Protocol):
    """The form, as its planner sees it."""

    @property
    def texts(self) -> dict[str, str]:
        """Current texts of the form, without empty ones."""

    @property
    def is_open(self) -> bool:
        """Whether the form is still mounted; late answers find it closed."""

    def show_planned(self, planned: PlannedForm) -> None:
        """Show the findings and the script."""

    def refuse_or_confirm(self, planned: PlannedForm) -> None:
        """Show the errors, or ask for confirmation of the submission."""

    def keep_draft(self) -> None:
        """Save the current texts for the next start."""

    def run_while_open(
        self, work: Callable[[], Coroutine[None, None, None]], group: str, *, alone: bool = False
    ) -> None:
        """Run a coroutine function until the form is closed.

        Args:
            work: the function.
            group: names the kind of work.
            alone: cancel other work of this group first.
        """


class FormPlanner:
    """Plans the form: after a short pause with cached data, after a longer one with slurmctld.

    Attributes:
        planned: the plan that the form shows; None before the first one.
        judging: whether slurmctld is being asked about a job.
    """

    def __init__(
        self,
        form: FormToPlan,
        feed: Feed,
        knowledge: ClusterDataCache,
        now: Callable[[], float],
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        self._form = form
        self._feed = feed
        self._knowledge = knowledge
        self._now = now
        self._pause = pause
        self._planning = False
        self._submit_when_planned = False
        self.judging = False
        self.planned: PlannedForm | None = None

    @property
    def current(self) -> PlannedForm | None:
        """The plan of the form's current texts; None while there is none."""
        planned = self.planned
        return planned if planned is not None and planned.texts == self._form.texts else None

    def typed(self) -> None:
        """Plan once nothing was typed for a moment; a submission that waits is called off."""
        self._submit_when_planned = False
        self._after_pause(TYPING_PAUSE, self.plan)

    def plan(self) -> None:
        """Plan the current texts with cached cluster data; one plan at a time."""
        known = self.current
        if known is not None and known.judged and not (known.problem or self._is_old(known)):
            self._show(known)
        elif not self._planning:
            self._planning = True
            self._form.run_while_open(partial(self._plan_in_thread, self._form.texts), "check")

    def submit(self) -> None:
        """Let the form refuse or confirm; plan the current texts first if needed."""
        self._submit_when_planned = True
        planned = self.current
        if planned is None or planned.problem:
            self.plan()
        elif self._is_old(planned) or not (planned.judged or planned.errors):
            self._ask_controller()
        else:
            self._refuse_or_confirm(planned)

    def _after_pause(self, seconds: float, act: Callable[[], None]) -> None:
        """Call a function after a pause; it replaces the one that waits for a pause already."""

        async def wait() -> None:
            await self._pause(seconds)
            act()

        self._form.run_while_open(wait, "pause", alone=True)

    async def _plan_in_thread(self, texts: FormTexts) -> None:
        try:
            planned = await in_thread(partial(plan_form, self._knowledge, texts, self._now()))
        except SlurmkitError as error:  # a bug of slurmkit
            planned = planning_failed(texts, None, error)
        self._planning = False
        if not self._form.is_open:
            return
        if planned.texts != self._form.texts:  # the texts have changed: drop this plan
            self.plan()
            return
        self._show(planned)
        if not self._submit_when_planned:
            self._after_pause(STILL_PAUSE - TYPING_PAUSE, self._ask_controller)
        elif planned.errors:
            self._refuse_or_confirm(planned)
        else:
            self._ask_controller()

    def _ask_controller(self) -> None:
        """Ask slurmctld about a job without errors: once per text, and one question at a time."""
        planned = self.current
        if planned is None:
            return
        self._form.keep_draft()
        if self.judging:
            return
        if self._submit_when_planned or (
            not planned.judged and planned.spec and not planned.errors
        ):
            self.judging = True
            self._form.run_while_open(partial(self._judge, planned), "plan")

    async def _judge(self, planned: PlannedForm) -> None:
        try:
            judged = await in_thread(partial(plan_with_test_only, self._feed, planned))
        except SlurmkitError as error:  # a bug of slurmkit
            judged = planning_failed(planned.texts, planned.spec, error)
        self.judging = False
        if not self._form.is_open:
            return
        if judged.texts == self._form.texts:
            self._show(judged)
            if self._submit_when_planned:
                self._refuse_or_confirm(judged)
        elif self._submit_when_planned:
            self._ask_controller()
        elif self.current is not None:
            self._after_pause(STILL_PAUSE, self._ask_controller)

    def _show(self, planned: PlannedForm) -> None:
        if self._form.is_open:
            self.planned = planned
            self._form.show_planned(planned)

    def _refuse_or_confirm(self, planned: PlannedForm) -> None:
        self._submit_when_planned = False
        self._form.refuse_or_confirm(planned)

    def _is_old(self, planned: PlannedForm) -> bool:
        return planned.taken is not None and self._now() - planned.taken > _STALE
