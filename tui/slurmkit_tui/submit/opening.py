"""The ways into the form: a new job, the draft of before, an old job once more."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from textual.screen import Screen

from slurmkit.cli.defaults import defaults, weakest
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.queue.rows import QueueRow
from slurmkit_tui.commands import job_argument
from slurmkit_tui.dialogs import Choose, Option
from slurmkit_tui.feed import Ask
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.jobscreen import JobScreen
from slurmkit_tui.memory import calm
from slurmkit_tui.myjobs import MyJob
from slurmkit_tui.submit import drafts
from slurmkit_tui.submit.draft import Draft, texts_of_fields

if TYPE_CHECKING:
    from slurmkit_tui.app import SlurmkitApp
    from slurmkit_tui.submit.past import Past

_AS_IT_WAS = "as it was"


def refusal(app: SlurmkitApp) -> str:
    """Why no job can be submitted; empty when one can."""
    if app.options.read_only:
        return "read-only"
    if not app.session.feed.writable:
        return "this is a recording"
    is_open = any(screen.id == "submit-form" for screen in app.screen_stack)
    return "the form is open already" if is_open else ""


def open_new(app: SlurmkitApp) -> None:
    """Open the form with the draft of before, or an empty one."""
    if why := refusal(app):
        app.tell(f"new job is refused: {why}", "warning")
    else:
        app.run_worker(_open_new(app), group="form", exclusive=True, description="form")


async def _open_new(app: SlurmkitApp) -> None:
    session = app.session
    kept = await in_thread(partial(_kept, app))
    if session is app.session and not refusal(app):
        _open(app, kept or _from_environment(app))


def _kept(app: SlurmkitApp) -> Draft | None:
    """The draft of before; loads what the form needs, beside the screen. Blocks."""
    if "slurmkit_tui.submit.form" not in sys.modules:
        import_module("slurmkit_tui.submit.form")
        import_module("slurmkit.planner")
        calm()
    cluster = app.session.cluster
    if app.session.draft is None and app.options.keep_drafts and cluster:
        return drafts.kept(cluster)
    return app.session.draft


def open_again(app: SlurmkitApp, screen: Screen[object], row: object) -> None:
    """Open the form with the job of a screen, or else of a row of a view."""
    job_id = screen.job_id if isinstance(screen, JobScreen) else _job_of(row)
    if not job_id:
        return
    if why := refusal(app):
        app.tell(f"submit again is refused: {why}", "warning")
    else:
        app.run_worker(_ask(app, job_id), description="past")


def _job_of(row: object) -> str:
    if isinstance(row, QueueRow):
        return job_argument(row.job_id)
    if isinstance(row, MyJob):
        return job_argument(row.rows[0].job_id) if row.rows else row.whole
    return ""


def _from_environment(app: SlurmkitApp) -> Draft:
    """A person's `SBATCH_*` variables count here as on the command line."""
    try:
        texts, _ = texts_of_fields(weakest(defaults(os.environ), {}))
    except BadInput as error:
        app.tell(str(error), "warning")
        texts = {}
    return Draft(texts, "SBATCH_* in the environment" if texts else "")


async def _ask(app: SlurmkitApp, job_id: str) -> None:
    session = app.session
    try:
        answer = await in_thread(partial(session.feed.fetch, Ask("past", (job_id,))))
    except SlurmkitError as error:
        app.tell(f"job {job_id}: {error}", "error")
        return
    kept = await in_thread(partial(_kept, app))
    if session is app.session and not refusal(app):
        _propose(app, answer.value, kept)


def _propose(app: SlurmkitApp, past: Past, kept: Draft | None) -> None:
    """Offer more of what it ran out of first."""
    texts = {each.label: each.texts for each in past.proposals} | {_AS_IT_WAS: past.texts}
    if not past.proposals:
        _show(app, past, past.texts, kept)
        return

    def chosen(name: str | None) -> None:
        if name is not None:
            _show(app, past, texts[name], kept)

    options = [Option(each.label, each.label, each.why) for each in past.proposals]
    options.append(Option(_AS_IT_WAS, "As it was", "with the same options"))
    app.push_screen(Choose(f"Submit job {past.job_id} again", options), chosen)


def _show(app: SlurmkitApp, past: Past, texts: dict[str, str], kept: Draft | None) -> None:
    draft = Draft(texts, f"job {past.job_id} ({past.state})", past.notes)
    _open(app, kept or draft, draft if kept else None)


def _open(app: SlurmkitApp, draft: Draft, instead: Draft | None = None) -> None:
    """Open the form; `instead` replaces the draft once the person says so."""

    def closed(job_id: str | None) -> None:
        if job_id is not None:
            app.tell(f"submitted job {job_id}")
            app.push_screen(JobScreen(job_id, [("Name", "asking…")]))
            app.action_refresh()

    from slurmkit_tui.submit.form import SubmitForm  # noqa: PLC0415 - loaded beside the screen

    form = SubmitForm(draft)
    app.push_screen(form, closed)
    if instead is not None:
        form.call_after_refresh(form.replace, instead)
