"""What a person sees: the form with the profiles, and why their server waits."""

from __future__ import annotations

import time
from html import escape

import msgspec

from slurmkit.errors import BadInput
from slurmkit.formats.display import format_time, printable
from slurmkit.formats.durations import format_duration
from slurmkit.jobs.info import JobInfo
from slurmkit.jobs.pending_reasons import explain_reason
from slurmkit.jobs.waiting import NO_REASON_YET
from slurmkit_plugins.jupyterhub.person import Choice, Offered

_AT_ONCE_SECONDS = 90


class Chosen(msgspec.Struct, frozen=True):
    """What a person chose in the form; empty values are the profile's.

    Attributes:
        profile: name of the profile; empty for the first.
        time: time limit.
        account: account.
    """

    profile: str = ""
    time: str = ""
    account: str = ""


def read_form(form: dict[str, list[str]]) -> dict[str, str]:
    """Return what was chosen, from the fields of the form."""
    return {name: form[name][0].strip() for name in Chosen.__struct_fields__ if form.get(name)}


def read_chosen(options: object) -> Chosen:
    """Return what was chosen in the form, or given to JupyterHub's API.

    Raises:
        BadInput: for other keys or values.
    """
    try:
        return msgspec.convert(options, type=Chosen, strict=True)
    except msgspec.ValidationError as error:
        keys = ", ".join(Chosen.__struct_fields__)
        raise BadInput(f"options of a server: {error}; they are text: {keys}") from error


def make_form(offered: Offered, chosen: Chosen, now: float, patience: int) -> str:
    """Return the form in HTML, with the person's last choice.

    Args:
        offered: what they may start.
        chosen: what they chose the last time.
        now: epoch seconds.
        patience: seconds that the hub waits for a server.
    """
    able = [each.name for each in offered.choices if not each.refusals]
    first = chosen.profile if chosen.profile in able else next(iter(able), "")
    rows = "".join(
        _row(each, describe_choice(each, now, patience), checked=each.name == first)
        for each in offered.choices
    )
    return f"""<style>
.slurmkit-profile {{ display: flex; align-items: start; gap: .75em; padding: .5em .25em; border-bottom: 1px solid #8884; font-weight: normal; }}
.slurmkit-profile small {{ display: block; }}
</style>
<fieldset><legend>Your server runs as a Slurm job</legend>
{rows}</fieldset>
<label for="slurmkit-time">Time limit</label>
<input class="form-control" id="slurmkit-time" name="time" value="{escape(chosen.time)}"
 placeholder="of the profile; for example 2:00:00 for two hours">
{_account_field(offered.accounts, chosen.account)}"""  # noqa: E501


def make_notice(message: str) -> str:
    """Return a message in HTML, in place of the form."""
    return f'<p class="alert alert-warning">{escape(printable(message))}</p>'


def _row(choice: Choice, lines: list[str], *, checked: bool) -> str:
    name = escape(printable(choice.name), quote=True)
    state = " disabled" if choice.refusals else " checked" if checked else ""
    about = "<br>".join(escape(printable(line)) for line in lines)
    title = escape(printable(choice.waited))
    return (
        f'<label class="slurmkit-profile"><input type="radio" name="profile" required'
        f' value="{name}"{state}> <span title="{title}">{name}<small>{about}</small></span>'
        "</label>\n"
    )


def describe_choice(choice: Choice, now: float, patience: int) -> list[str]:
    """Return lines about a profile: when it may start, or why it cannot."""
    if choice.refusals:
        return [f"Not for you now: {each}" for each in choice.refusals]
    limit = [f"Time limit {choice.time}"] if choice.time else []
    if choice.start is None:
        start = "Slurm does not say when it may start"
    elif choice.start <= now + _AT_ONCE_SECONDS:
        start = "May start at once (Slurm's estimate)"
    else:
        start = f"May start at {format_time(choice.start)} at the earliest (Slurm's estimate)"
        if choice.start > now + patience:
            start += f"; the hub gives up after {format_duration(patience)}"
    # Without which jobs these are, which is in the title.
    waited = [f"Such jobs waited: {choice.waited.partition(':')[0]}"] if choice.waited else []
    return [*limit, start, *waited]


def _account_field(accounts: tuple[str, ...], chosen: str) -> str:
    if len(accounts) < 2:
        return ""
    options = "".join(
        f"<option{' selected' if name == chosen else ''}>{escape(printable(name))}</option>"
        for name in accounts
    )
    return (
        '<label for="slurmkit-account">Account</label>\n'
        f'<select class="form-control" id="slurmkit-account" name="account">{options}</select>'
    )


def describe_wait(job_id: str, info: JobInfo | None) -> tuple[int, str]:
    """Return how far a server is, in percent, and what it waits for."""
    if not job_id:
        return 5, "Submitting the job"
    if info is None:
        return 10, f"Job {job_id} is submitted"
    if info.is_over:
        return 90, f"Job {job_id} has ended"
    if info.state != "PENDING":
        return 70, f"Job {job_id} runs on {info.node_list}; Jupyter is starting"
    if info.reason in NO_REASON_YET:
        return 20, f"Job {job_id} waits for Slurm to look at it"
    meaning = explain_reason(info.reason, job_id).meaning
    expected = info.started is not None and info.started > time.time()
    start = f". It may start at {format_time(info.started)} (Slurm's estimate)" if expected else ""
    return 20, f"Job {job_id} waits: {meaning}{start}. More: slurmkit why {job_id}"
