"""The form on the screen: what is typed, what a plan says of it, and the sending."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import ScreenResume
from textual.screen import ModalScreen
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from slurmkit.backends.commands import command
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit_tui.actions import bindings
from slurmkit_tui.dialogs import Choose, Confirm, Option
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.foot import Foot
from slurmkit_tui.submit import drafts
from slurmkit_tui.submit.checked import Checked, check, fitting, judge, unchecked
from slurmkit_tui.submit.draft import Draft
from slurmkit_tui.submit.fieldlist import FieldList
from slurmkit_tui.submit.fields import WHAT
from slurmkit_tui.submit.files import ask_open, ask_save
from slurmkit_tui.submit.inputs import Row
from slurmkit_tui.submit.known import Knowledge
from slurmkit_tui.submit.offers import Offers, offers
from slurmkit_tui.submit.script import ScriptView
from slurmkit_tui.submit.sending import send
from slurmkit_tui.submit.words import (
    UNSURE,
    changed,
    hint,
    is_unsure,
    noted,
    question,
    refused,
    title,
    verdict,
)

if TYPE_CHECKING:
    from slurmkit.planner import Plan
    from slurmkit_tui.app import SlurmkitApp

_PAUSE = 0.3  # seconds without a key after which the form is looked at
_STILL = 2.0  # seconds without a key after which the controller is asked
_STALE = 60.0  # seconds after which a plan is made anew before it is sent


class SubmitForm(ModalScreen[str | None]):
    """Returns the id of the job that was sent; None when none was, and the draft is kept."""

    app: SlurmkitApp
    CSS_PATH = "form.tcss"
    BINDINGS: ClassVar[list[BindingType]] = bindings("form")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - declared by Textual

    def __init__(self, draft: Draft) -> None:
        super().__init__(id="submit-form")
        self._draft = draft
        self._offers: Offers | None = None
        self._checked: Checked | None = None
        self._timer: Timer | None = None
        self._still: Timer | None = None
        self._checking = False
        self._judging = False
        self._sending = False
        self._sent = ""  # the id of its job
        self._maybe_sent = False
        self._eager = False  # send it once it has been looked at
        self._here: Row | None = None
        self._list = FieldList(draft.texts)

    def compose(self) -> ComposeResult:
        """Put the form beside what is said of it."""
        yield Static("", id="form-title", markup=False)
        with Horizontal(id="form-body"):
            yield self._list
            with VerticalScroll(id="preview"):
                yield Static("", id="form-found", markup=False)
                yield ScriptView()
        yield Static("", id="form-hint", markup=False)
        yield Static("", id="form-verdict", markup=False)
        yield Foot()

    def on_mount(self) -> None:
        """Let the person type, and ask what the cluster offers."""
        self._session = self.app.session
        self._place = self._session.cluster if self.app.options.keep_drafts else None
        self._knowledge = self._session.knowledge or Knowledge(self._session.feed)
        self._session.knowledge = self._knowledge
        self.row(WHAT).enter()
        self._tell_notes()
        self._tell_title()
        self.set_interval(1, self._tell)
        self._ask_offers()
        self._look()

    # What stands in it

    @property
    def focus_chain(self) -> list[Widget]:
        """The fields in their order: Textual goes by place, and some have none yet at first."""
        order: dict[object, int] = {row: at for at, row in enumerate(self._list.rows.values())}
        return sorted(super().focus_chain, key=lambda each: order.get(each.parent, len(order)))

    def row(self, name: str) -> Row:
        """A field of the form."""
        return self._list.rows[name]

    @property
    def texts(self) -> dict[str, str]:
        """What stands in the form; fields with nothing in them are left out."""
        return self._list.texts

    def fill(self, draft: Draft) -> None:
        """Put other texts into all fields."""
        self._draft = draft
        self._list.fill(draft.texts)
        lost = [n for n, text in draft.texts.items() if self.row(n).text != text]
        if lost:
            said = "line ends that are none of Unix became plain ones: see the preview"
            self.app.tell(said, "warning")
        self._tell_notes()
        self._tell_title()
        self._look()

    @work(group="offers", description="offers")
    async def _ask_offers(self) -> None:
        now = self.app.now()

        def work() -> Offers:
            known = self._knowledge.known(now)
            return offers(known.capabilities, known.standing)

        try:
            self._offers = await in_thread(work)
        except SlurmkitError as error:
            if not self._is_open:
                return
            self.app.tell(f"what this cluster offers is unknown: {error}", "warning")
            self._list.offer(None)
        else:
            if self._is_open:
                self._list.offer(self._offers)
                self._hint()

    # What is said of it

    @on(Row.Typed)
    def _typed(self) -> None:
        self._eager = False
        for timer in (self._timer, self._still):
            if timer is not None:
                timer.stop()
        self._timer = self.set_timer(_PAUSE, self._look)
        self._tell()

    @property
    def _is_open(self) -> bool:
        """What comes late finds the form closed, and its widgets gone."""
        return bool(self.query("#form-verdict"))

    @property
    def _is_looked_at(self) -> bool:
        return self._checked is not None and self._checked.texts == self.texts

    def _look(self) -> None:
        """Look at what stands there now, by what is known; one look at a time."""
        known = self._checked if self._is_looked_at else None
        if known is not None and known.judged and not (known.problem or self._is_old(known)):
            self._show(known)
        elif not self._checking:
            self._checking = True
            self._check(self.texts)
        self._tell()

    @work(group="check", description="check")
    async def _check(self, texts: Mapping[str, str]) -> None:
        try:
            checked = await in_thread(partial(check, self._knowledge, texts, self.app.now()))
        except SlurmkitError as error:  # a mistake of ours
            checked = unchecked(texts, None, error)
        self._checking = False
        if not self._is_open:
            return
        if checked.texts != self.texts:  # of an older text it is dropped
            self._look()
            return
        self._show(checked)
        if not self._eager:
            self._still = self.set_timer(_STILL - _PAUSE, self._ask)
        elif checked.errors:
            self._answer(checked)
        else:
            self._ask()

    def _ask(self) -> None:
        """Have the controller judge what has no error; one question at a time, and once."""
        checked = self._checked
        if checked is None or not self._is_looked_at:
            return
        self.run_worker(self._keep(self._kept), group="keep", description="keep")
        if self._judging:
            return
        if self._eager or (not checked.judged and checked.spec and not checked.errors):
            self._judging = True
            self._judge(checked)

    @work(group="plan", description="plan")
    async def _judge(self, checked: Checked) -> None:
        try:
            judged = await in_thread(partial(judge, self._session.feed, checked))
        except SlurmkitError as error:  # a mistake of ours
            judged = unchecked(checked.texts, checked.spec, error)
        self._judging = False
        if not self._is_open:
            return
        if judged.texts == self.texts:
            self._show(judged)
            if self._eager:
                self._answer(judged)
        elif self._eager:
            self._ask()
        elif self._is_looked_at:
            self._still = self.set_timer(_STILL, self._ask)

    def _show(self, checked: Checked) -> None:
        """Show what was found."""
        if not self._is_open:
            return
        self._checked = checked
        self._list.say(checked.beside)
        self.query_one("#form-found", Static).update(checked.found)
        self.query_one(ScriptView).update(checked.script)
        self._tell()

    def _tell(self) -> None:
        """Say on one line how the form stands, and how old that is."""
        if not self._is_open:
            return
        current = self._checked if self._is_looked_at else None
        words = verdict(current, self.app.now(), sending=self._sending)
        self.query_one("#form-verdict", Static).update(words, layout=False)
        self.query_one("#preview").set_class(current is None, "-old")
        self._tell_title()  # the cluster may have told its name only now

    def _tell_notes(self) -> None:
        notes = self.query_one("#form-notes", Static)
        notes.display = bool(self._draft.notes)
        notes.update(noted(self._draft.notes))

    def _tell_title(self) -> None:
        words = title(self._session.cluster, self._draft)
        self.query_one("#form-title", Static).update(words, layout=False)

    @on(Row.Entered)
    def _entered(self, event: Row.Entered) -> None:
        self._here = event.row
        self._hint()

    def _hint(self) -> None:
        row = self._here
        if row is None or not self._is_open:
            return
        words = hint(row.field, row.offered, 2 * (self.size.width - 2))
        self.query_one("#form-hint", Static).update(words)

    # What its keys do

    def action_leave(self) -> None:
        """Go back to the fields, or close; what was typed is kept for `n`."""
        if self._is_previewing:
            self.action_preview()
            return
        if self._sending:
            self.app.tell("it is being sent; wait for the answer", "warning")
            return
        self._session.draft = self._kept
        self.dismiss(None)

    @property
    def _kept(self) -> Draft | None:
        texts = self.texts
        return self._draft._replace(texts=texts) if texts else None

    async def on_unmount(self) -> None:
        """Keep what was not sent, however the form is left."""
        await self._keep(self._session.draft if self._sent else self._kept)

    async def _keep(self, draft: Draft | None) -> None:
        if self._place is None:
            return
        try:
            await in_thread(partial(drafts.keep, self._place, draft))
        except SlurmkitError as error:
            self.app.tell(f"the draft is not kept: {error}", "warning")

    def action_preview(self) -> None:
        """Go to what was found, or back."""
        if self._is_previewing:
            self.remove_class("-previewing")
            (self._here or self.row(WHAT)).enter()
        else:
            self.add_class("-previewing")
            self.query_one("#preview").focus()

    @property
    def _is_previewing(self) -> bool:
        """Whether the keys are for the preview, or the fields are not on the screen at all."""
        narrow = self.has_class("-previewing") and self.has_class("-narrow")
        return narrow or self.query_one("#preview").has_focus

    def action_values(self) -> None:
        """List what the field can be."""
        row = self._here
        if row is None or not row.offered:
            self.app.tell("nothing is listed for this field; its help is below the form")
        else:
            row.choose()

    def action_fit(self) -> None:
        """Take over what fits in the place of each error."""
        try:
            texts = fitting(self._checked if self._is_looked_at else None)
        except BadInput as error:
            self.app.tell(str(error), "warning")
        else:
            self.app.tell(changed(self.texts, texts))
            self.fill(self._draft._replace(texts=texts))

    def action_anew(self) -> None:
        """Throw the draft away, when that is meant."""
        self.replace(Draft({}))

    def replace(self, draft: Draft) -> None:
        """Put another draft in the place of this one, once the person says so."""
        if not self._is_open:
            return
        if not self.texts or self.texts == dict(draft.texts):
            self.fill(draft)
            return

        def chosen(name: str | None) -> None:
            if name == "replace":
                self.fill(draft)

        keep = Option("keep", "Keep", "go on with what stands in the form")
        replace = Option("replace", "Replace", "what stands in the form is thrown away")
        self.app.push_screen(Choose("The form holds a draft", [keep, replace]), chosen)

    def action_open_file(self) -> None:
        """Fill the form from a file."""
        ask_open(self)

    def action_save_file(self) -> None:
        """Write the form as a job file."""
        ask_save(self)

    # Sending

    def action_send(self) -> None:
        """Show the command and ask; what was not looked at yet is looked at first."""
        if self._sending or self._sent:
            return
        self._eager = True
        checked = self._checked if self._is_looked_at else None
        if checked is None or checked.problem:
            self._look()
        elif self._is_old(checked) or not (checked.judged or checked.errors):
            self._ask()
        else:
            self._answer(checked)

    def _is_old(self, checked: Checked) -> bool:
        return checked.taken is not None and self.app.now() - checked.taken > _STALE

    def _answer(self, checked: Checked) -> None:
        """Say what is in the way, or ask whether it is meant."""
        self._eager = False
        if not self.is_active:  # keys for what is open over the form must not answer
            return
        if checked.errors or checked.plan is None:
            self._refuse(checked)
        else:
            self._confirm(checked.plan)

    def _refuse(self, checked: Checked) -> None:
        self.app.tell(refused(checked.errors), "warning")
        wrong = [name for name, said in checked.beside.items() if said.severity == "error"]
        if wrong:
            self.row(wrong[0]).enter()

    def _confirm(self, plan: Plan) -> None:
        def answered(yes: bool | None) -> None:  # noqa: FBT001 - called by Textual
            if yes and not self._sending:
                self._sending = True
                self._tell()
                self._send(plan)

        commands = [command(each) for each in plan.submissions]
        self.app.push_screen(
            Confirm(question(plan, maybe_sent=self._maybe_sent), commands), answered
        )

    @work(group="send", description="send")
    async def _send(self, plan: Plan) -> None:
        """Send just what was shown."""
        job_id, refusal = await send(self._session, plan)
        self._sending = False
        if refusal is None:
            self._sent, self._session.draft = job_id, None
            self._close()
            return
        self._maybe_sent = self._maybe_sent or is_unsure(refusal)
        self._tell()
        said = UNSURE if is_unsure(refusal) else "not submitted"
        self.app.tell(f"{said}: {refusal}", "error")

    @on(ScreenResume)
    def _close(self) -> None:
        """Once it is sent; what is open over the form, help perhaps, is closed first."""
        if self._sent and self.is_active:
            self.dismiss(self._sent)
