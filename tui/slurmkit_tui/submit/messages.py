"""Texts of the form, and the submission of the plan that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from textual.content import Content

from slurmkit.errors import SlurmError, SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.jobs.backends.commands import is_answer_lost, sbatch_command
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.jobform.draft import NOTHING_TO_RUN, Draft, FormTexts
from slurmkit_tui.jobform.fields import FIELDS, FormField
from slurmkit_tui.state_files import log_command
from slurmkit_tui.submit.planned import PlannedForm

if TYPE_CHECKING:
    from slurmkit.planning.planner import Plan
    from slurmkit_tui.session import ClusterSession

MAYBE_SUBMITTED = (
    "it is unknown whether the job was submitted; look at Mine before you send it again"
)
_SHORT = 40  # most characters of a text


def form_title(cluster: str | None, draft: Draft) -> Content:
    """Return the title: the cluster, and where the draft comes from."""
    where = f" on {printable(cluster)}" if cluster else ""
    origin = f"  from {printable(draft.origin)}" if draft.origin else ""
    return Content.assemble((f" New job{where} ", "$primary bold"), (origin, "$quiet"))


def notes_text(notes: Sequence[str]) -> Content:
    """Return the notes of a draft."""
    lines = (Content.assemble(("note: ", "$warning bold"), printable(note)) for note in notes)
    return Content("\n").join(lines)


def field_hint(field: FormField, offered: Sequence[str], room: int) -> Content:
    """Return the help of a field, and as many of its values as fit into `room` characters."""
    room -= len(field.label) + len(field.help) + 16
    widths = accumulate(len(value) + 2 for value in offered)
    shown = [value for value, width in zip(offered, widths, strict=True) if width < room]
    more = ["…"] if len(shown) < len(offered) else []
    values = f"  {printable(', '.join([*shown, *more]))}" if offered else ""
    return Content.assemble((f"{field.label}: ", "bold"), field.help, (values, "$accent"))


def form_state(checked: PlannedForm | None, now: float, *, sending: bool) -> Content:
    """Return the state of the form; `checked` is None while the current texts are not planned."""
    if sending:
        return Content.styled("sending…", "$warning bold")
    if checked is None:
        return Content.styled("checking…", "$quiet")
    if checked.plan is None:
        words = next(iter(checked.errors), "")
        if words == NOTHING_TO_RUN and len(checked.messages) == 1:
            return Content.styled(words, "$quiet")
        return Content.assemble(("not ready: ", "$error bold"), printable(words))
    ago = "" if checked.taken is None else f"{max(0, now - checked.taken):.0f} s ago"
    age = f", checked {ago}" if checked.judged else f", with limits read {ago}"
    if errors := checked.errors:
        count = f"{len(errors)} error{'s' * (len(errors) > 1)}"
        first = f": {printable(errors[0])}"
        return Content.assemble((count, "$error bold"), (age, "$quiet"), first)
    warnings = len(checked.plan.warnings)
    warned = f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    facts = dict(checked.plan.estimate.facts() if checked.plan.estimate else [])
    named = (("Uses", ""), ("Starts", "starts "))
    estimate = "; ".join(f"{word}{printable(facts[name])}" for name, word in named if name in facts)
    return Content.assemble(
        ("ready" if checked.judged else "no error found", "$success bold"),
        (warned, "$warning"),
        (age, "$quiet"),
        f": {estimate}" if estimate else "",
    )


def not_sent_text(errors: Sequence[str]) -> str:
    """Return why a job is not submitted."""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"not sent: {errors[0]}{more}"


def changes_text(before: FormTexts, after: FormTexts) -> str:
    """List the fields that differ, with old and new text."""
    words = (
        f"{field.label}: {_shortened(before, field)} is now {_shortened(after, field)}"
        for field in FIELDS
        if before.get(field.name, "") != after.get(field.name, "")
    )
    return "; ".join(words)


def _shortened(texts: FormTexts, field: FormField) -> str:
    text = " ".join(texts.get(field.name, "").split())
    return (text if len(text) <= _SHORT else f"{text[:_SHORT]}…") or "nothing"


def may_be_submitted(error: SlurmkitError) -> bool:
    """Return whether a job may exist despite the error: the answer was lost or unreadable."""
    return is_answer_lost(error) or type(error) in (SlurmError, SlurmkitError)


def confirm_question(plan: Plan, *, maybe_sent: bool) -> str:
    """Return the question before a plan is submitted."""
    before = "This form may have submitted a job already: look at Mine first. "
    first = plan.submissions[0]
    options = dict(first.options)
    where = options.get("partition", "the default partition")
    lines = sum(each.script.count("\n") for each in plan.submissions)
    return (
        f"{before if maybe_sent else ''}Submit {options.get('job-name', 'the job')} to {where}?"
        f" sbatch reads the script shown in the form, {lines} lines, from its standard input."
    )


async def submit_plan(session: ClusterSession, plan: Plan) -> tuple[str, SlurmkitError | None]:
    """Submit exactly what was shown, and log it. Return the job id, or "" and the error."""
    job_id, refusal = "", None
    try:
        job_id = await in_thread(partial(session.feed.submit, plan))
    except SlurmkitError as error:
        refusal = error
    for each in plan.submissions:
        name = dict(each.options).get("job-name", "")
        done = f"submitted job {job_id} {name}"
        log_command(session.cluster, sbatch_command(each), refusal, done)
    return job_id, refusal
