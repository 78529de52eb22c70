"""The plan of the form's job, prepared for the screen. Runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from textual.content import Content

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.formats.display import format_time, printable
from slurmkit.planning.planner import plan_offline
from slurmkit.planning.request import SiteState
from slurmkit.spec.findings import Finding
from slurmkit.spec.sbatch_options import with_options
from slurmkit_tui.feed import Feed, FeedQuestion
from slurmkit_tui.jobform.draft import NOTHING_TO_RUN, FormTexts, form_texts, parse_form
from slurmkit_tui.jobform.fields import FIELDS, field_of_finding
from slurmkit_tui.submit.script_view import NO_SCRIPT, ShownScript, prepare_script
from slurmkit_tui.widgets.wrapped_text import TextLine, TextLines, two_columns

if TYPE_CHECKING:
    from slurmkit.planning.planner import Plan
    from slurmkit.spec.jobspec import JobSpec
    from slurmkit_tui.feed.knowledge import ClusterDataCache

_STYLES = {"error": "$error bold", "warning": "$warning bold", "note": "$primary"}
_INDENT = 2  # cells before the rest of a long finding
_LABELS = {field.name: field.label for field in FIELDS}


class FieldMessage(NamedTuple):
    """A message at a field of the form."""

    severity: str
    words: str


class PlannedForm(NamedTuple):
    """The form, parsed and planned.

    Attributes:
        texts: the form's texts that were planned; they may have changed since.
        spec: the job; None if the texts are no job.
        plan: what would be submitted; None if there is none.
        messages: message of each field, by name.
        found: findings, use, cost and start, for the screen.
        script: the scripts that would be submitted, for the screen.
        problem: why planning failed; empty when there is a plan or no job.
        taken: epoch seconds of the cluster data; None if none was needed.
        judged: whether slurmctld was asked about exactly this job.
    """

    texts: FormTexts
    spec: JobSpec | None
    plan: Plan | None
    messages: dict[str, FieldMessage]
    found: TextLines
    script: ShownScript = NO_SCRIPT
    problem: str = ""
    taken: float | None = None
    judged: bool = False

    @property
    def shown_messages(self) -> dict[str, FieldMessage]:
        """The messages to show at the fields."""
        return _typed_wrong(self.messages)

    @property
    def errors(self) -> list[str]:
        """Why the job cannot be submitted; empty when it can."""
        if self.plan is not None:
            return [error.message for error in self.plan.errors]
        return [self.problem] if self.problem else [s.words for s in self.messages.values()]


def plan_form(knowledge: ClusterDataCache, texts: FormTexts, now: float) -> PlannedForm:
    """Parse the form and plan its job with the cached cluster data. Blocks."""
    reading = parse_form(texts)
    if reading.spec is None:
        messages = {name: FieldMessage("error", why) for name, why in reading.wrong.items()}
        return PlannedForm(texts, None, None, messages, _wrong_fields(_typed_wrong(messages)))
    try:
        known = knowledge.known(now)
        plan = plan_offline(reading.spec, SiteState(known.capabilities, known.standing))
        if plan.errors:  # perhaps the cached data is out of date
            known = knowledge.read_again(known, now)
            plan = plan_offline(reading.spec, SiteState(known.capabilities, known.standing))
    except SlurmkitError as error:
        return planning_failed(texts, reading.spec, error)
    return _checked(texts, reading.spec, plan, known.taken, judged=False)


def plan_with_test_only(feed: Feed, checked: PlannedForm) -> PlannedForm:
    """Plan the job again with `sbatch --test-only`, which also estimates its start. Blocks."""
    try:
        answer = feed.fetch(FeedQuestion("plan", (msgspec.json.encode(checked.spec).decode(),)))
    except SlurmkitError as error:
        return planning_failed(checked.texts, checked.spec, error)
    return _checked(checked.texts, checked.spec, answer.value, answer.taken, judged=True)


def texts_with_fixes(checked: PlannedForm | None) -> FormTexts:
    """Return the form with the fixes of all errors; other fields stay as typed.

    Raises:
        BadInput: when no error has a fix, or the fixes cannot be applied.
    """
    plan = checked.plan if checked else None
    fixes = [pair for error in (plan.errors if plan else ()) for pair in error.fix]
    if checked is None or checked.spec is None or not fixes:
        raise BadInput("no error comes with a value that fits")
    try:
        wanted = with_options(checked.spec, fixes)
    except BadInput as error:
        raise BadInput(f"the values that fit cannot be applied: {error}") from error
    before, after = form_texts(checked.spec), form_texts(wanted)
    names = {name for name in (*before, *after) if before.get(name) != after.get(name)}
    texts = {**checked.texts, **{name: after.get(name, "") for name in names}}
    return texts if parse_form(texts).spec == wanted else after  # #SBATCH lines may conflict


def planning_failed(texts: FormTexts, spec: JobSpec | None, error: SlurmkitError) -> PlannedForm:
    """Return the result for a form whose planning failed."""
    found = [TextLine(Content.assemble(("not checked: ", "$error bold"), printable(str(error))), 2)]
    return PlannedForm(texts, spec, None, {}, found, problem=str(error), judged=True)


def _checked(
    texts: FormTexts, spec: JobSpec | None, plan: Plan, taken: float, *, judged: bool
) -> PlannedForm:
    return PlannedForm(
        texts,
        spec,
        plan,
        messages=_field_messages(plan),
        found=_summary(plan, taken, judged=judged),
        script=prepare_script(plan),
        taken=taken,
        judged=judged,
    )


def _typed_wrong(messages: dict[str, FieldMessage]) -> dict[str, FieldMessage]:
    """Return the messages about typed texts; a field that is still empty is no mistake."""
    return {name: each for name, each in messages.items() if each.words != NOTHING_TO_RUN}


def _wrong_fields(messages: dict[str, FieldMessage]) -> TextLines:
    """List the fields that cannot be parsed."""
    return [
        TextLine(
            Content.assemble((f"{_LABELS[name]}: ", "$error bold"), printable(each.words)), _INDENT
        )
        for name, each in messages.items()
    ]


def _field_messages(plan: Plan) -> dict[str, FieldMessage]:
    """Return the worst finding of each field."""
    messages: dict[str, FieldMessage] = {}
    for finding in (*plan.errors, *plan.warnings):
        name = field_of_finding(finding)
        if name and name not in messages:
            fits = f"; fits: {finding.fix_words}" if finding.fix else ""
            messages[name] = FieldMessage(finding.severity, f"{finding.message}{fits}")
    return messages


def _summary(plan: Plan, taken: float, *, judged: bool) -> TextLines:
    """List findings, use, cost and start of a plan, and the age of the data."""
    findings = [*_findings(plan)]
    facts = plan.estimate.facts() if plan.estimate else []
    if not any(name == "Starts" for name, _ in facts):
        facts = [*facts, ("Starts", _no_start(plan, judged=judged))]
    settings = f"cluster settings from {format_time(plan.capabilities_taken)}"
    asked = (
        "Checked" if judged else "Limits",
        f"{'' if judged else 'from '}{format_time(taken)}; {settings}",
    )
    gap = [TextLine(Content())] if findings else []
    return [*findings, *gap, *two_columns([*facts, asked])]


def _no_start(plan: Plan, *, judged: bool) -> str:
    if plan.errors:
        return "unknown: slurmctld is asked when there are no errors"
    return "unknown" if judged else "unknown: slurmctld is asked 2 s after the last change"


def _findings(plan: Plan) -> Iterable[TextLine]:
    for finding in (*plan.errors, *plan.warnings, *plan.notes):
        yield from _finding(finding)
    for change in plan.changes:
        before, after = change.before or "nothing", change.after or "nothing"
        words = f"policy {change.policy} changed {change.field}: {before} -> {after}"
        yield TextLine(Content.assemble(("note ", _STYLES["note"]), printable(words)), _INDENT)


def _finding(finding: Finding) -> Iterable[TextLine]:
    source = f" ({finding.source})" if finding.source else ""
    message = Content.assemble(
        (f"{finding.severity} ", _STYLES[finding.severity]),
        printable(finding.message),
        (printable(source), "$quiet"),
    )
    yield TextLine(message, _INDENT)
    if finding.fix:
        fits = Content.assemble(("  fits: ", "$quiet"), (printable(finding.fix_words), "bold"))
        yield TextLine(fits, len("  fits: "))
