"""The one way a job of the form is sent."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slurmkit.backends.commands import command
from slurmkit.errors import SlurmkitError
from slurmkit_tui.feed.threads import in_thread
from slurmkit_tui.logs import note_command

if TYPE_CHECKING:
    from slurmkit.planner import Plan
    from slurmkit_tui.session import Session


async def send(session: Session, plan: Plan) -> tuple[str, SlurmkitError | None]:
    """Send just what was shown, and write it down: the id of the job, or why there is none."""
    job_id, refusal = "", None
    try:
        job_id = await in_thread(partial(session.feed.submit, plan))
    except SlurmkitError as error:
        refusal = error
    for each in plan.submissions:
        name = dict(each.options).get("job-name", "")
        done = f"submitted job {job_id} {name}"
        note_command(session.cluster, command(each), refusal, done)
    return job_id, refusal
