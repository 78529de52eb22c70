"""What the form says in one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from textual.content import Content

from slurmkit.errors import SlurmError, SlurmkitError, SlurmTimeout
from slurmkit.text import printable
from slurmkit_tui.submit.checked import Checked
from slurmkit_tui.submit.draft import NOTHING, Draft, Texts
from slurmkit_tui.submit.fields import FIELDS, Field

if TYPE_CHECKING:
    from slurmkit.planner import Plan

UNSURE = "it is unknown whether the job was submitted; look at Mine before you send it again"
_SAID = 40  # signs of a text


def title(cluster: str | None, draft: Draft) -> Content:
    """What the form is for."""
    where = f" on {printable(cluster)}" if cluster else ""
    origin = f"  from {printable(draft.origin)}" if draft.origin else ""
    return Content.assemble((f" New job{where} ", "$primary bold"), (origin, "$quiet"))


def noted(notes: Sequence[str]) -> Content:
    """What is to be known of a draft; it stays on the form."""
    said = (Content.assemble(("note: ", "$warning bold"), printable(note)) for note in notes)
    return Content("\n").join(said)


def hint(field: Field, offered: Sequence[str], room: int) -> Content:
    """What belongs into a field, and as many of the values offered as there is room for."""
    room -= len(field.label) + len(field.help) + 16
    widths = accumulate(len(value) + 2 for value in offered)
    shown = [value for value, width in zip(offered, widths, strict=True) if width < room]
    more = ["…"] if len(shown) < len(offered) else []
    said = f"  {printable(', '.join([*shown, *more]))}" if offered else ""
    return Content.assemble((f"{field.label}: ", "bold"), field.help, (said, "$accent"))


def verdict(checked: Checked | None, now: float, *, sending: bool) -> Content:
    """How the form stands; `checked` is None while what stands there was not looked at."""
    if sending:
        return Content.styled("sending…", "$warning bold")
    if checked is None:
        return Content.styled("checking…", "$quiet")
    if checked.plan is None:
        words = next(iter(checked.errors), "")
        if words == NOTHING and len(checked.beside) == 1:
            return Content.styled(words, "$quiet")
        return Content.assemble(("not ready: ", "$error bold"), printable(words))
    ago = "" if checked.taken is None else f"{max(0, now - checked.taken):.0f} s ago"
    age = f", asked {ago}" if checked.judged else f", by limits of {ago}"
    if errors := checked.errors:
        count = f"{len(errors)} error{'s' * (len(errors) > 1)}"
        first = f": {printable(errors[0])}"
        return Content.assemble((count, "$error bold"), (age, "$quiet"), first)
    warnings = len(checked.plan.warnings)
    said = f", {warnings} warning{'s' * (warnings > 1)}" if warnings else ""
    facts = dict(checked.plan.estimate.facts() if checked.plan.estimate else [])
    named = (("Uses", ""), ("Starts", "starts "))
    told = "; ".join(f"{word}{printable(facts[name])}" for name, word in named if name in facts)
    return Content.assemble(
        ("ready" if checked.judged else "no error found", "$success bold"),
        (said, "$warning"),
        (age, "$quiet"),
        f": {told}" if told else "",
    )


def refused(errors: Sequence[str]) -> str:
    """Why a job is not sent."""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"not sent: {errors[0]}{more}"


def changed(before: Texts, after: Texts) -> str:
    """What is another text now, field by field."""
    words = (
        f"{field.label}: {_said(before, field)} is now {_said(after, field)}"
        for field in FIELDS
        if before.get(field.name, "") != after.get(field.name, "")
    )
    return "; ".join(words)


def _said(texts: Texts, field: Field) -> str:
    text = " ".join(texts.get(field.name, "").split())
    return (text if len(text) <= _SAID else f"{text[:_SAID]}…") or "nothing"


def is_unsure(error: SlurmkitError) -> bool:
    """Whether a job may have been taken all the same: the answer was lost, or was none."""
    lost = any(sign in str(error) for sign in ("timed out", "send/recv", "Zero Bytes"))
    return lost or isinstance(error, SlurmTimeout) or type(error) in (SlurmError, SlurmkitError)


def question(plan: Plan, *, maybe_sent: bool) -> str:
    """What is asked before a plan is sent."""
    before = "A job was perhaps submitted from this form before: look at Mine first. "
    first = plan.submissions[0]
    options = dict(first.options)
    where = options.get("partition", "the default partition")
    lines = sum(each.script.count("\n") for each in plan.submissions)
    return (
        f"{before if maybe_sent else ''}Submit {options.get('job-name', 'the job')} to {where}?"
        f" sbatch reads the script shown in the form, {lines} lines, from its standard input."
    )
