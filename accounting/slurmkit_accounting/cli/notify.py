"""`slurmkit notify`: be told of one's own jobs."""

from __future__ import annotations

import click

from slurmkit.text import printable


@click.command("notify")
@click.argument("job_ids", nargs=-1, metavar="[JOB_ID...]")
def notify_command(job_ids: tuple[str, ...]) -> None:
    """Tell you when your jobs start, fail or end, until all have ended.

    Without ids it is all your jobs that are in the queue now. What you want to know, and how, is
    in section [notify] of your configuration: `jobs = ["start", "fail", "end"]`, `by = ["mail"]`
    or `["webhook"]`, and `to`, your mail address. Leave it running, in tmux for example; Ctrl-C
    leaves the jobs alone.

    \b
    Examples:
      slurmkit notify
      slurmkit notify 12 13_4 &
    """
    from slurmkit.cluster import Cluster  # noqa: PLC0415
    from slurmkit.config import load_section  # noqa: PLC0415
    from slurmkit.errors import BadConfig, BadInput, MaybeSent, NotSent  # noqa: PLC0415
    from slurmkit.jobs.ids import check_job_id  # noqa: PLC0415
    from slurmkit.queue.snapshot import QueueFilter  # noqa: PLC0415
    from slurmkit_accounting.notify.config import NotifySection  # noqa: PLC0415
    from slurmkit_accounting.notify.jobs import News  # noqa: PLC0415
    from slurmkit_accounting.plugins import notifier  # noqa: PLC0415

    section = load_section("notify", NotifySection)
    if not section.jobs:
        raise BadConfig(
            '[notify] jobs is not set; write in your own configuration file which of "start",'
            ' "fail" and "end" you want to be told of'
        )
    cluster = Cluster()
    asked = tuple(map(check_job_id, job_ids))
    queued = (row.job_id for row in cluster.queue(QueueFilter(me=True)).rows)
    # Of an array whose tasks wait together, the array.
    ids = asked or tuple(dict.fromkeys(job_id.partition("_[")[0] for job_id in queued))
    if not ids:
        raise BadInput("you have no jobs in the queue; submit some first")
    by = {name: notifier(name) for name in section.by}
    news = News(section, cluster.capabilities().cluster_name)
    click.echo(f"watching {len(ids)} job{'s' if len(ids) > 1 else ''}", err=True)
    with cluster.poller.watch(ids) as watch:
        for known in watch.changes():
            for notice in news.of(known):
                for name, one in by.items():
                    try:
                        one.send(notice)
                    except (NotSent, MaybeSent) as error:  # the next one may get through
                        click.echo(f"{name}: {printable(str(error))}", err=True)
                click.echo(printable(notice.subject))
