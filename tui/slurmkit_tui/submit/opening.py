"""Opening the form: for a new job, with the saved draft, or with an old job."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from slurmkit.cli.job_options import default_fields, sbatch_variables
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.state.queue_rows import QueueRow
from slurmkit_tui.actions.commands import query_id
from slurmkit_tui.feed import FeedQuestion
from slurmkit_tui.feed.threads import in_thread, tune_garbage_collector
from slurmkit_tui.jobform.draft import Draft, form_texts_of_fields
from slurmkit_tui.jobform.draft_store import DraftStore
from slurmkit_tui.jobform.my_jobs import MyJobRow
from slurmkit_tui.screens.job import JobScreen
from slurmkit_tui.widgets.dialogs import ChoiceDialog, ChoiceOption
from slurmkit_tui.widgets.messages import AskingScreen

if TYPE_CHECKING:
    from slurmkit_tui.host import AppHost
    from slurmkit_tui.jobform.past_jobs import PastJob

_AS_IT_WAS = "as it was"


def submit_refusal(app: AppHost) -> str:
    """Return why no job can be submitted; empty when one can."""
    is_open = any(screen.id == "submit-form" for screen in app.screen_stack)
    return app.change_refusal or ("the form is open already" if is_open else "")


def open_new_job(app: AppHost) -> None:
    """Open the form with the saved draft, or an empty one."""
    if why := submit_refusal(app):
        app.tell(f"new job is refused: {why}", "warning")
    else:
        app.run_worker(_open_saved_draft(app), group="form", exclusive=True, description="form")


async def _open_saved_draft(app: AppHost) -> None:
    session = app.session
    draft = await in_thread(partial(_load_draft, app))
    if session is app.session and not submit_refusal(app):
        _push_form(app, draft or _from_environment(app))


def _load_draft(app: AppHost) -> Draft | None:
    """Return the saved draft, and import the form's modules in this thread. Blocks."""
    if "slurmkit_tui.submit.form" not in sys.modules:
        import_module("slurmkit_tui.submit.form")
        import_module("slurmkit.planning.planner")
        tune_garbage_collector()
    return app.session.draft or DraftStore(_cluster_to_keep(app)).load()


def _cluster_to_keep(app: AppHost) -> str | None:
    """Return the cluster whose draft the file has; None if drafts are not saved."""
    return app.session.cluster if app.options.keep_drafts else None


def open_old_job(app: AppHost, screen: AskingScreen | None, row: object) -> None:
    """Open the form with the job of a screen, or else with the job of a row."""
    job_id = screen.job_id if screen is not None else _job_of(row)
    if not job_id:
        return
    if why := submit_refusal(app):
        app.tell(f"submit again is refused: {why}", "warning")
    else:
        app.run_worker(_open_old_job(app, job_id), description="past")


def _job_of(row: object) -> str:
    if isinstance(row, QueueRow):
        return query_id(row.job_id)
    if isinstance(row, MyJobRow):
        return query_id(row.rows[0].job_id) if row.rows else row.whole
    return ""


def _from_environment(app: AppHost) -> Draft:
    """Return a draft from the `SBATCH_*` variables, which count here as on the command line."""
    try:
        texts, _ = form_texts_of_fields(default_fields(sbatch_variables(os.environ), {}))
    except BadInput as error:
        app.tell(str(error), "warning")
        texts = {}
    return Draft(texts, "SBATCH_* in the environment" if texts else "")


async def _open_old_job(app: AppHost, job_id: str) -> None:
    session = app.session
    try:
        answer = await in_thread(partial(session.feed.fetch, FeedQuestion("past", (job_id,))))
    except SlurmkitError as error:
        app.tell(f"job {job_id}: {error}", "error")
        return
    draft = await in_thread(partial(_load_draft, app))
    if session is app.session and not submit_refusal(app):
        _offer_changes(app, answer.value, draft)


def _offer_changes(app: AppHost, past: PastJob, draft: Draft | None) -> None:
    """Offer to change the resource that the job ran out of; then open the form."""
    texts = {each.label: each.texts for each in past.proposals} | {_AS_IT_WAS: past.texts}
    if not past.proposals:
        _open_past_draft(app, past, past.texts, draft)
        return

    def chosen(name: str | None) -> None:
        if name is not None:
            _open_past_draft(app, past, texts[name], draft)

    options = [ChoiceOption(each.label, each.label, each.why) for each in past.proposals]
    options.append(ChoiceOption(_AS_IT_WAS, "As it was", "with the same options"))
    app.push_screen(ChoiceDialog(f"Submit job {past.job_id} again", options), chosen)


def _open_past_draft(
    app: AppHost, past: PastJob, texts: dict[str, str], saved: Draft | None
) -> None:
    draft = Draft(texts, f"job {past.job_id} ({past.state})", past.notes)
    _push_form(app, saved or draft, draft if saved else None)


def _push_form(app: AppHost, draft: Draft, instead: Draft | None = None) -> None:
    """Open the form; `instead` replaces the draft after a confirmation."""

    def closed(job_id: str | None) -> None:
        if job_id is not None:
            app.tell(f"submitted job {job_id}")
            app.push_screen(JobScreen(job_id, [("Name", "asking…")]))
            app.action_refresh()

    from slurmkit_tui.submit.form import SubmitForm  # noqa: PLC0415 - imported in a thread by then

    form = SubmitForm(DraftStore(_cluster_to_keep(app), draft))
    app.push_screen(form, closed)
    if instead is not None:
        form.call_after_refresh(form.replace, instead)
