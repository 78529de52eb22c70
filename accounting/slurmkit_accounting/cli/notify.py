"""`slurmkit notify`: notices of your own jobs."""

from __future__ import annotations

import click

from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, BadInput, MaybeSent, NotSent
from slurmkit.formats.display import printable
from slurmkit.formats.job_ids import check_job_id
from slurmkit.state.queue import QueueFilter
from slurmkit_accounting.config import NotifySection
from slurmkit_accounting.plugins import notifier


@click.command("notify")
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID...]")
def notify_command(job_ids: tuple[str, ...]) -> None:
    """Send notices when your jobs start, fail or end, until all have ended.

    Without ids, it watches all your jobs in the queue. Choose the notices and how they are sent in
    section [notify] of your configuration: `jobs = ["start", "fail", "end"]`, `by = ["mail"]` or
    `["webhook"]`, and `to`, your mail address. Leave the command running, for example in tmux;
    Ctrl-C does not affect the jobs.

    \b
    Examples:
      slurmkit notify
      slurmkit notify 12 13_4 &
    """
    from slurmkit.cluster.cluster import Cluster
    from slurmkit_accounting.notify.notices import JobNotices

    section = load_section("notify", NotifySection)
    if not section.jobs:
        raise BadConfig(
            "[notify] jobs is not set; choose your notices in your own configuration file, for"
            ' example: jobs = ["start", "fail", "end"]'
        )
    cluster = Cluster()
    given = tuple(map(check_job_id, job_ids))
    queued = (row.job_id for row in cluster.queue(QueueFilter(me=True)).rows)
    # For pending tasks such as `12_[4-9]`, watch the array.
    ids = given or tuple(dict.fromkeys(job_id.partition("_[")[0] for job_id in queued))
    if not ids:
        raise BadInput("you have no jobs in the queue; submit some first")
    by = {name: notifier(name) for name in section.by}
    news = JobNotices(section, cluster.capabilities().cluster_name)
    click.echo(f"watching {len(ids)} job{'s' if len(ids) > 1 else ''}", err=True)
    with cluster.poller.watch(ids) as watch:
        for known in watch.changes():
            for notice in news.of(known):
                for name, one in by.items():
                    try:
                        one.send(notice)
                    except (NotSent, MaybeSent) as error:  # later notices may succeed
                        click.echo(f"{name}: {printable(str(error))}", err=True)
                click.echo(printable(notice.subject))
