"""What a plan says of the form, made ready for the screen; runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from textual.content import Content

from slurmkit.errors import BadInput, SlurmkitError
from slurmkit.facts import clock
from slurmkit.findings import Finding
from slurmkit.options import with_options
from slurmkit.text import printable
from slurmkit_tui.dialogs import pairs
from slurmkit_tui.feed import Ask, Feed
from slurmkit_tui.submit.draft import Texts, read, texts_of
from slurmkit_tui.submit.fields import FIELDS, field_of
from slurmkit_tui.submit.script import NO_SCRIPT, Script, script_of

if TYPE_CHECKING:
    from slurmkit.planner import Plan
    from slurmkit.spec import JobSpec
    from slurmkit_tui.submit.known import Knowledge

_STYLES = {"error": "$error bold", "warning": "$warning bold", "note": "$primary"}
_LABELS = {field.name: field.label for field in FIELDS}


class Said(NamedTuple):
    """What is said beside a field."""

    severity: str
    words: str


class Checked(NamedTuple):
    """What became of the form.

    Attributes:
        texts: the form as it was looked at; what stands there now may be another.
        spec: the job it means; None while it means none.
        plan: what would be sent; None where there is none.
        beside: what to say beside each field.
        found: findings, use, cost and start, for the screen.
        script: what would be sent, for the screen.
        problem: why there is no plan though there is a job; empty when there is one.
        taken: epoch seconds as of which the cluster is known; None where it was not needed.
        judged: whether the controller was asked about just this job.
    """

    texts: Texts
    spec: JobSpec | None
    plan: Plan | None
    beside: dict[str, Said]
    found: Content
    script: Script = NO_SCRIPT
    problem: str = ""
    taken: float | None = None
    judged: bool = False

    @property
    def errors(self) -> list[str]:
        """Why it cannot be sent, in words; empty when it can."""
        if self.plan is not None:
            return [error.message for error in self.plan.errors]
        return [self.problem] if self.problem else [s.words for s in self.beside.values()]


def check(knowledge: Knowledge, texts: Texts, now: float) -> Checked:
    """Read the form and plan its job by what is known of the cluster. Blocks."""
    from slurmkit.planner import plan_unasked  # noqa: PLC0415 - much of the library

    reading = read(texts)
    if reading.spec is None:
        beside = {name: Said("error", why) for name, why in reading.wrong.items()}
        return Checked(texts, None, None, beside, _unread(beside))
    try:
        known = knowledge.known(now)
        made = plan_unasked(reading.spec, (known.capabilities, known.standing))
        if made.errors:
            known = knowledge.doubted(known, now)
            made = plan_unasked(reading.spec, (known.capabilities, known.standing))
    except SlurmkitError as error:
        return unchecked(texts, reading.spec, error)
    return _checked(texts, reading.spec, made, known.taken, judged=False)


def judge(feed: Feed, checked: Checked) -> Checked:
    """Let the controller judge a job that was checked, and say when it would start. Blocks."""
    try:
        answer = feed.fetch(Ask("plan", (msgspec.json.encode(checked.spec).decode(),)))
    except SlurmkitError as error:
        return unchecked(checked.texts, checked.spec, error)
    return _checked(checked.texts, checked.spec, answer.value, answer.taken, judged=True)


def fitting(checked: Checked | None) -> Texts:
    """The form with what fits in the place of each error; all else stays as it was typed.

    Raises:
        BadInput: when nothing does.
    """
    plan = checked.plan if checked else None
    fixes = [pair for error in (plan.errors if plan else ()) for pair in error.fix]
    if checked is None or checked.spec is None or not fixes:
        raise BadInput("there is no error with something that fits instead")
    try:
        wanted = with_options(checked.spec, fixes)
    except BadInput as error:
        raise BadInput(f"it cannot be changed so: {error}") from error
    before, after = texts_of(checked.spec), texts_of(wanted)
    names = {name for name in (*before, *after) if before.get(name) != after.get(name)}
    texts = {**checked.texts, **{name: after.get(name, "") for name in names}}
    return texts if read(texts).spec == wanted else after  # a script's own lines may be in the way


def unchecked(texts: Texts, spec: JobSpec | None, error: SlurmkitError) -> Checked:
    """Nobody could say what becomes of it."""
    found = Content.assemble(("not checked: ", "$error bold"), printable(str(error)))
    return Checked(texts, spec, None, {}, found, problem=str(error), judged=True)


def _checked(
    texts: Texts, spec: JobSpec | None, made: Plan, taken: float, *, judged: bool
) -> Checked:
    return Checked(
        texts, spec, made, _beside(made), _found(made, taken, judged=judged), script_of(made),
        taken=taken, judged=judged,
    )  # fmt: skip


def _unread(beside: dict[str, Said]) -> Content:
    lines = (
        Content.assemble((f"{_LABELS[name]}: ", "$error bold"), printable(said.words))
        for name, said in beside.items()
    )
    return Content("\n").join(lines)


def _beside(plan: Plan) -> dict[str, Said]:
    """The worst finding of each field."""
    said: dict[str, Said] = {}
    for finding in (*plan.errors, *plan.warnings):
        name = field_of(finding)
        if name and name not in said:
            fits = f"; fits: {finding.fix_words}" if finding.fix else ""
            said[name] = Said(finding.severity, f"{finding.message}{fits}")
    return said


def _found(plan: Plan, taken: float, *, judged: bool) -> Content:
    parts = [*_findings(plan)]
    facts = plan.estimate.facts() if plan.estimate else []
    if not any(name == "Starts" for name, _ in facts):
        facts = [*facts, ("Starts", _no_start(plan, judged=judged))]
    settings = f"the cluster's settings are as of {clock(plan.capabilities_taken)}"
    asked = (
        "Asked" if judged else "Limits",
        f"{'' if judged else 'as of '}{clock(taken)}; {settings}",
    )
    return Content("\n").join([*parts, *([Content()] if parts else []), pairs([*facts, asked])])


def _no_start(plan: Plan, *, judged: bool) -> str:
    if plan.errors:
        return "unknown: slurmctld is asked once there is no error"
    return "unknown" if judged else "unknown: slurmctld is asked once nothing changes for 2 s"


def _findings(plan: Plan) -> Iterable[Content]:
    for finding in (*plan.errors, *plan.warnings, *plan.notes):
        yield _finding(finding)
    for change in plan.changes:
        before, after = change.before or "nothing", change.after or "nothing"
        words = f"policy {change.policy} changed {change.field}: {before} -> {after}"
        yield Content.assemble(("note ", _STYLES["note"]), printable(words))


def _finding(finding: Finding) -> Content:
    source = f" ({finding.source})" if finding.source else ""
    said = Content.assemble(
        (f"{finding.severity} ", _STYLES[finding.severity]),
        printable(finding.message),
        (printable(source), "$quiet"),
    )
    if not finding.fix:
        return said
    return Content.assemble(said, ("\n  fits: ", "$quiet"), (printable(finding.fix_words), "bold"))
