"""`slurmkit workflow wait`."""

from __future__ import annotations

import signal

import click

from slurmkit.cli.each import say
from slurmkit.cli.waiting import show_progress
from slurmkit.cli.workflowshow import given_up
from slurmkit.jobs.progress import Known
from slurmkit.text import printable
from slurmkit.workflows.record import Record
from slurmkit.workflows.sent import SentWorkflow
from slurmkit.workflows.standing import Standing, standings, verdicts


def wait_for(sent: SentWorkflow, timeout: float | None) -> int:
    """Wait until all jobs have ended; returns 0 when all completed that were to run, else 1."""
    record = sent.record
    if record.phase == "sending":
        say(f"workflow {record.name} is not all sent or released; see: slurmkit workflow resume")
    try:
        with sent.cluster.poller.watch(record.ids) as watch:
            show_progress(watch, timeout)
            known = watch.known
    except KeyboardInterrupt:
        say(f"no longer waiting; left as it is: slurmkit workflow cancel {sent.token}")
        return 128 + signal.SIGINT
    return _told(record, known)


def _told(record: Record, known: dict[str, Known]) -> int:
    found = standings(record, {job_id: one.info for job_id, one in known.items()})
    bad = [found[name] for name, made in verdicts(found).items() if made not in ("done", "skipped")]
    for one in bad:
        why = given_up(one, found) or _end(one)
        click.echo(printable(f"{one.name}: {why}"), err=True)
    good = len(found) - len(bad)
    click.echo(f"workflow {record.name}: {good} of {len(found)} jobs are done", err=True)
    if bad:
        click.echo(f"see: slurmkit workflow show {record.name}", err=True)
    return 1 if bad else 0


def _end(one: Standing) -> str:
    ids = ",".join(one.ids)
    code = one.info.exit_code if one.info and one.state == "FAILED" else None
    return f"{one.state}{f', exit code {code}' if code else ''}{f' (job {ids})' if ids else ''}"
