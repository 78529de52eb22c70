"""What a plan says of the form, made ready for the screen; runs in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from textual.content import Content
from textual.highlight import highlight

from slurmkit.errors import SlurmkitError
from slurmkit.facts import clock
from slurmkit.findings import Finding
from slurmkit.text import printable
from slurmkit_tui.dialogs import pairs
from slurmkit_tui.feed import Ask, Feed
from slurmkit_tui.submit.draft import Texts, read
from slurmkit_tui.submit.fields import FIELDS, field_of

if TYPE_CHECKING:
    from slurmkit.planner import Plan
    from slurmkit.spec import JobSpec

_LINES = 400  # of a script shown; all of it is sent
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
        taken: epoch seconds at which the cluster was asked; None where it was not.
    """

    texts: Texts
    spec: JobSpec | None
    plan: Plan | None
    beside: dict[str, Said]
    found: Content
    script: Content
    problem: str = ""
    taken: float | None = None

    @property
    def errors(self) -> list[str]:
        """Why it cannot be sent, in words; empty when it can."""
        if self.plan is not None:
            return [error.message for error in self.plan.errors]
        return [self.problem] if self.problem else [s.words for s in self.beside.values()]


def check(feed: Feed, texts: Texts) -> Checked:
    """Read the form and plan its job. Blocks."""
    reading = read(texts)
    if reading.spec is None:
        beside = {name: Said("error", why) for name, why in reading.wrong.items()}
        return Checked(texts, None, None, beside, _unread(beside), Content())
    try:
        answer = feed.fetch(Ask("plan", (msgspec.json.encode(reading.spec).decode(),)))
    except SlurmkitError as error:
        found = Content.assemble(("not checked: ", "$error bold"), printable(str(error)))
        return Checked(texts, reading.spec, None, {}, found, Content(), str(error))
    made: Plan = answer.value
    return Checked(
        texts, reading.spec, made, _beside(made), _found(made, answer.taken), _scripts(made),
        taken=answer.taken,
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


def _found(plan: Plan, taken: float) -> Content:
    parts = [*_findings(plan)]
    facts = plan.estimate.facts() if plan.estimate else []
    if not any(name == "Starts" for name, _ in facts):
        why = "unknown: slurmctld is asked once there is no error" if plan.errors else "unknown"
        facts = [*facts, ("Starts", why)]
    kept = f"; the cluster's settings are as of {clock(plan.capabilities_taken)}"
    facts = [*facts, ("Asked", f"{clock(taken)}{kept}")]
    return Content("\n").join([*parts, *([Content()] if parts else []), pairs(facts)])


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


def _scripts(plan: Plan) -> Content:
    return Content("\n\n").join(_script(each.script) for each in plan.submissions)


def _script(script: str) -> Content:
    lines = [printable(line.expandtabs(8)) for line in script.removesuffix("\n").split("\n")]
    more = len(lines) - _LINES
    rest = [f"… and {more} more lines, which are sent too"] if more > 0 else []
    language = "python" if "python" in lines[0] else "bash"
    return highlight("\n".join([*lines[:_LINES], *rest]), language=language)
