"""The form's screen: fields, preview, keys, submission, and job files opened and saved."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import ScreenResume
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static
from textual.worker import Worker

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.jobs.backends.commands import sbatch_command
from slurmkit.planning.secrets import secret_variables
from slurmkit.spec.jobfile import format_job_file, load_job_file, load_script
from slurmkit_tui.actions.commands import ValuePrompt
from slurmkit_tui.actions.registry import key_bindings
from slurmkit_tui.feed.knowledge import ClusterDataCache
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.jobform.draft import Draft, form_texts_of_fields, parse_form
from slurmkit_tui.jobform.draft_store import DraftStore
from slurmkit_tui.jobform.fields import COMMAND_FIELD, FieldOffers, field_offers
from slurmkit_tui.submit.form_planner import FormPlanner
from slurmkit_tui.submit.inputs import FieldList, FieldRow
from slurmkit_tui.submit.messages import (
    MAYBE_SUBMITTED,
    changes_text,
    confirm_question,
    field_hint,
    form_state,
    form_title,
    may_be_submitted,
    not_sent_text,
    notes_text,
    submit_plan,
)
from slurmkit_tui.submit.planned import PlannedForm, texts_with_fixes
from slurmkit_tui.submit.script_view import ScriptView
from slurmkit_tui.widgets.dialogs import ChoiceDialog, ChoiceOption, ConfirmDialog, ValueDialog
from slurmkit_tui.widgets.key_bar import KeyBar
from slurmkit_tui.widgets.wrapped_text import WrappedText

if TYPE_CHECKING:
    from slurmkit.planning.planner import Plan
    from slurmkit.spec.jobspec import JobSpec
    from slurmkit_tui.host import AppHost

_LARGEST = 4 << 20  # bytes; sbatch refuses larger scripts by default (max_script_size)


class SubmitForm(ModalScreen[str | None]):
    """The screen of the form. It returns the submitted job's id, or None and keeps the draft."""

    app: AppHost
    CSS_PATH = "form.tcss"
    BINDINGS: ClassVar[list[BindingType]] = key_bindings("form")
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 - declared by Textual

    def __init__(self, drafts: DraftStore) -> None:
        super().__init__(id="submit-form")
        self._drafts = drafts
        self._offers: FieldOffers | None = None
        self._sending = False
        self._sent = ""  # id of the submitted job
        self._maybe_sent = False
        self._current_row: FieldRow | None = None
        self._fields = FieldList(drafts.draft.texts)

    def compose(self) -> ComposeResult:
        """Put the fields and the preview side by side."""
        yield Static("", id="form-title", markup=False)
        with Horizontal(id="form-body"):
            yield self._fields
            with VerticalScroll(id="preview"):
                yield WrappedText(id="form-found")
                yield ScriptView()
        yield Static("", id="form-hint", markup=False)
        yield Static("", id="form-verdict", markup=False)
        yield KeyBar()

    def on_mount(self) -> None:
        """Focus the first field, and ask what the cluster offers."""
        self._session = self.app.session
        self._knowledge = self._session.knowledge or ClusterDataCache(self._session.feed)
        self._session.knowledge = self._knowledge
        self.planner = FormPlanner(
            self, self._session.feed, self._knowledge, self.app.now, self.app.options.pause
        )
        self.row(COMMAND_FIELD).enter()
        self._update_notes()
        self._update_title()
        self.set_interval(1, self._update_state)
        self._ask_offers()
        self._plan_texts()

    # Content

    @property
    def focus_chain(self) -> list[Widget]:
        """The fields in order; Textual sorts by position, which unmounted fields do not have."""
        order: dict[object, int] = {row: at for at, row in enumerate(self._fields.rows.values())}
        return sorted(super().focus_chain, key=lambda each: order.get(each.parent, len(order)))

    def row(self, name: str) -> FieldRow:
        """Return a field of the form."""
        return self._fields.rows[name]

    @property
    def texts(self) -> dict[str, str]:
        """Texts of the form, without empty ones."""
        return self._fields.texts

    def fill(self, draft: Draft) -> None:
        """Show another draft."""
        self._drafts.draft = draft
        self._fields.fill(draft.texts)
        lost = [n for n, text in draft.texts.items() if self.row(n).text != text]
        if lost:
            warning = "line ends were changed to those of Unix: check the preview"
            self.app.tell(warning, "warning")
        self._update_notes()
        self._update_title()
        self._plan_texts()

    @work(group="offers", description="offers")
    async def _ask_offers(self) -> None:
        now = self.app.now()

        def work() -> FieldOffers:
            known = self._knowledge.known(now)
            return field_offers(known.capabilities, known.standing)

        try:
            self._offers = await in_thread(work)
        except SlurmkitError as error:
            if not self.is_open:
                return
            self.app.tell(f"cannot list what this cluster offers: {error}", "warning")
            self._fields.offer(None)
        else:
            if self.is_open:
                self._fields.offer(self._offers)
                self._update_hint()

    # Planning

    @on(FieldRow.Typed)
    def _typed(self) -> None:
        self.planner.typed()
        self._update_state()

    def _plan_texts(self) -> None:
        self.planner.plan()
        self._update_state()

    @property
    def is_open(self) -> bool:
        """Whether the form is still mounted; late answers find it closed."""
        return bool(self.query("#form-verdict"))

    def run_while_open(
        self, work: Callable[[], Coroutine[None, None, None]], group: str, *, alone: bool = False
    ) -> None:
        _: Worker[None] = self.run_worker(work, group=group, description=group, exclusive=alone)

    def show_planned(self, planned: PlannedForm) -> None:
        """Show the findings and the script."""
        if not self.is_open:
            return
        self._fields.say(planned.shown_messages)
        self.query_one("#form-found", WrappedText).show(planned.found)
        self.query_one(ScriptView).update(planned.script)
        self._update_state()

    def _update_state(self) -> None:
        """Show the state of the form and its age on one line."""
        if not self.is_open:
            return
        current = self.planner.current
        words = form_state(current, self.app.now(), sending=self._sending)
        self.query_one("#form-verdict", Static).update(words, layout=False)
        self.query_one("#preview").set_class(current is None, "-old")
        self._update_title()  # the cluster's name may be known only now

    def _update_notes(self) -> None:
        notes = self.query_one("#form-notes", Static)
        notes.display = bool(self._drafts.draft.notes)
        notes.update(notes_text(self._drafts.draft.notes))

    def _update_title(self) -> None:
        words = form_title(self._session.cluster, self._drafts.draft)
        self.query_one("#form-title", Static).update(words, layout=False)

    @on(FieldRow.Entered)
    def _entered(self, event: FieldRow.Entered) -> None:
        self._current_row = event.row
        self._update_hint()

    def _update_hint(self) -> None:
        row = self._current_row
        if row is None or not self.is_open:
            return
        words = field_hint(row.field, row.offered, 2 * (self.size.width - 2))
        self.query_one("#form-hint", Static).update(words)

    # Actions

    def action_leave(self) -> None:
        """Go back to the fields, or close the form and save the draft."""
        if self._is_previewing:
            self.action_preview()
            return
        if self._sending:
            self.app.tell("the job is being submitted; wait for the answer", "warning")
            return
        self._session.draft = self._drafts.with_texts(self.texts)
        self.dismiss(None)

    async def on_unmount(self) -> None:
        """Save the draft if it was not submitted, however the form is left."""
        unsent = self._session.draft if self._sent else self._drafts.with_texts(self.texts)
        await self._save_draft(unsent)

    def keep_draft(self) -> None:
        """Save the current texts for the next start."""
        draft = self._drafts.with_texts(self.texts)
        self.run_while_open(partial(self._save_draft, draft), "keep")

    async def _save_draft(self, draft: Draft | None) -> None:
        try:
            await in_thread(partial(self._drafts.save, draft))
        except SlurmkitError as error:
            self.app.tell(f"the draft is not saved: {error}", "warning")

    def action_preview(self) -> None:
        """Go to the preview, or back."""
        if self._is_previewing:
            self.remove_class("-previewing")
            (self._current_row or self.row(COMMAND_FIELD)).enter()
        else:
            self.add_class("-previewing")
            self.query_one("#preview").focus()

    @property
    def _is_previewing(self) -> bool:
        """Whether the preview has the focus, or hides the fields on a narrow screen."""
        narrow = self.has_class("-previewing") and self.has_class("-narrow")
        return narrow or self.query_one("#preview").has_focus

    def action_values(self) -> None:
        """List the possible values of the field."""
        row = self._current_row
        if row is None or not row.offered:
            self.app.tell("there is no list of values for this field; see the help below the form")
        else:
            row.choose()

    def action_fit(self) -> None:
        """Apply the fixes of all errors."""
        try:
            texts = texts_with_fixes(self.planner.current)
        except BadInput as error:
            self.app.tell(str(error), "warning")
        else:
            self.app.tell(changes_text(self.texts, texts))
            self.fill(self._drafts.draft._replace(texts=texts))

    def action_anew(self) -> None:
        """Throw the draft away, after a confirmation."""
        self.replace(Draft({}))

    def replace(self, draft: Draft) -> None:
        """Replace the draft, after a confirmation if the form is not empty."""
        if not self.is_open:
            return
        if not self.texts or self.texts == dict(draft.texts):
            self._begin(draft)
            return

        def chosen(name: str | None) -> None:
            if name == "replace":
                self._begin(draft)

        keep = ChoiceOption("keep", "Keep", "go on with the draft in the form")
        replace = ChoiceOption("replace", "Replace", "throw the draft in the form away")
        self.app.push_screen(ChoiceDialog("The form holds a draft", [keep, replace]), chosen)

    def _begin(self, draft: Draft) -> None:
        """Show another draft, and go to its first field."""
        self.fill(draft)
        self.remove_class("-previewing")
        self.row(COMMAND_FIELD).enter()

    def action_open_file(self) -> None:
        """Fill the form from a file."""
        ask_open(self)

    def action_save_file(self) -> None:
        """Write the form as a job file."""
        ask_save(self)

    # Submission

    def action_send(self) -> None:
        """Show the command and ask for confirmation; plan the current texts first if needed."""
        if self._sending or self._sent:
            return
        self.planner.submit()
        self._update_state()

    def refuse_or_confirm(self, planned: PlannedForm) -> None:
        """Show the errors, or ask for confirmation."""
        if not self.is_active:  # a dialog is open; keys meant for it must not confirm
            return
        if planned.errors or planned.plan is None:
            self._refuse(planned)
        else:
            self._confirm(planned.plan)

    def _refuse(self, planned: PlannedForm) -> None:
        self.app.tell(not_sent_text(planned.errors), "warning")
        wrong = [name for name, each in planned.messages.items() if each.severity == "error"]
        if wrong:
            self.row(wrong[0]).enter()

    def _confirm(self, plan: Plan) -> None:
        def answered(yes: bool | None) -> None:  # noqa: FBT001 - called by Textual
            if yes and not self._sending:
                self._sending = True
                self._update_state()
                self._send(plan)

        commands = [sbatch_command(each) for each in plan.submissions]
        self.app.push_screen(
            ConfirmDialog(confirm_question(plan, maybe_sent=self._maybe_sent), commands), answered
        )

    @work(group="send", description="send")
    async def _send(self, plan: Plan) -> None:
        """Submit exactly the plan that was shown."""
        job_id, refusal = await submit_plan(self._session, plan)
        self._sending = False
        if refusal is None:
            self._sent, self._session.draft = job_id, None
            self._close()
            return
        self._maybe_sent = self._maybe_sent or may_be_submitted(refusal)
        self._update_state()
        result = MAYBE_SUBMITTED if may_be_submitted(refusal) else "not submitted"
        self.app.tell(f"{result}: {refusal}", "error")

    @on(ScreenResume)
    def _close(self) -> None:
        """Close the form after submission, once no other screen is open over it."""
        if self._sent and self.is_active:
            self.dismiss(self._sent)


def load_draft_file(path: Path) -> Draft:
    """Load a draft from a job file or a batch script.

    Raises:
        BadInput: with the file, and the key or line that is wrong.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a device or a pipe may have no end
            raise BadInput(f"{path} is no regular file; name a job file or a batch script")
        with path.open("rb") as file:
            is_script = file.read(2) == b"#!"
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    if status.st_size > _LARGEST:
        raise BadInput(
            f"{path} is larger than {_LARGEST >> 20} MiB; a job file or batch script is smaller"
        )
    texts, wrong = form_texts_of_fields(load_script(path) if is_script else load_job_file(path))
    if wrong:
        raise BadInput(f"{path}: {'; '.join(wrong)}")
    return Draft(texts, str(path))


def write_job_file(path: Path, spec: JobSpec) -> list[str]:
    """Write a new job file that only its owner can read, and return the variables left out.

    Variables that look like secrets are left out: such a file is copied and shared.

    Raises:
        BadInput: when the file exists or cannot be written.
    """
    secret = secret_variables(spec)
    public = {name: value for name, value in spec.environment.items() if name not in secret}
    note = "".join(
        f"# {name} looks like a secret and is not in this file; give it with --env {name}\n"
        for name in secret
    )
    try:
        with open(path, "x", encoding="utf-8", opener=_open_private) as file:
            file.write(note + format_job_file(msgspec.structs.replace(spec, environment=public)))
    except FileExistsError as error:
        raise BadInput(f"{path} is there already; choose another name") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    return list(secret)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def ask_open(form: SubmitForm) -> None:
    """Ask for a file name, and fill the form from that file."""

    def typed(name: str | None) -> None:
        if name is not None:
            form.run_worker(_open(form, _path(name)), description="open")

    hint = "a job file in TOML (slurmkit submit --job-file), or a batch script"
    form.app.push_screen(ValueDialog(ValuePrompt("Open file", hint, _check_name)), typed)


def ask_save(form: SubmitForm) -> None:
    """Ask for a file name, and write the form into that file."""
    reading = parse_form(form.texts)
    if reading.spec is None:
        form.app.tell(f"not saved: {next(iter(reading.wrong.values()))}", "warning")
        return
    spec = reading.spec

    def typed(name: str | None) -> None:
        if name is not None:
            form.run_worker(_save(form, _path(name), spec), description="save")

    hint = "a job file in TOML, for slurmkit submit --job-file, plan and this form"
    start = f"{spec.job_name or 'job'}.toml"
    wanted = ValuePrompt("Save file", hint, _check_name, lambda _row: start)
    form.app.push_screen(ValueDialog(wanted, start if start.isprintable() else "job.toml"), typed)


async def _open(form: SubmitForm, path: Path) -> None:
    try:
        draft = await in_thread(partial(load_draft_file, path))
    except SlurmkitError as error:
        form.app.tell(str(error), "error")
    else:
        form.replace(draft)


async def _save(form: SubmitForm, path: Path, spec: JobSpec) -> None:
    try:
        secret = await in_thread(partial(write_job_file, path, spec))
    except SlurmkitError as error:
        form.app.tell(str(error), "error")
    else:
        left_out = f"; left out, as they look like secrets: {', '.join(secret)}" if secret else ""
        form.app.tell(f"wrote {path.absolute()}{left_out}")


def _check_name(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise BadInput("give the name of a file")
    return text.strip()


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # no such user in `~user`
        return Path(name)
