"""`slurmkit notify`: notices of your own jobs, and which mails the site's service sends you."""

from __future__ import annotations

from contextlib import suppress

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cluster.cluster import Cluster
from slurmkit.config.files import load_section
from slurmkit.errors import BadConfig, BadInput, MaybeSent, NotSent, SlurmkitError
from slurmkit.formats.display import printable
from slurmkit.formats.job_ids import check_job_id
from slurmkit.state.queue import QueueFilter
from slurmkit_accounting.config import NotifySection
from slurmkit_accounting.plugins import notifier
from slurmkit_accounting.remote.client import configured_remote

_MAILS_WORDS = {
    "each": "a mail for each job or array, at once",
    "daily": "one mail a day",
    "never": "no mails",
}
_ABOUT_WORDS = {
    "all": "everything that --mail-type names",
    "failures": "only what went wrong",
}


class _NotifyGroup(click.Group):
    """A group whose default is to watch jobs: `slurmkit notify 12` needs no subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["settings"]:
            return super().parse_args(ctx, args)
        if {"-h", "--help"} & set(args):
            return super().parse_args(ctx, ["--help"])
        ctx.params["job_ids"] = tuple(args)
        return []


@click.group(
    "notify",
    cls=_NotifyGroup,
    invoke_without_command=True,
    options_metavar="",
    subcommand_metavar="[JOB_ID...] | settings [OPTIONS]",
)
@click.pass_context
def notify_command(ctx: click.Context, job_ids: tuple[str, ...] = ()) -> None:
    """Send notices when your jobs start, fail or end, until all have ended.

    Where the site's ledger service sends the mails about jobs, you need not leave this running:
    submit with --mail-type=END,FAIL, and choose with `slurmkit notify settings` what you get.

    Elsewhere, give the ids of your jobs; without ids, it watches all your jobs in the queue.
    Choose the notices and how they are sent in section [notify] of your configuration: `jobs =
    ["start", "fail", "end"]`, `by = ["mail"]` or `["webhook"]`, and `to`, your mail address. Leave
    the command running, for example in tmux; Ctrl-C does not affect the jobs.

    \b
    Examples:
      slurmkit submit --mail-type END,FAIL --time 10 -- python train.py
      slurmkit notify settings --mails daily
      slurmkit notify
      slurmkit notify 12 13_4 &
    """
    if ctx.invoked_subcommand is None:
        _watch(job_ids)


@notify_command.command("settings")
@click.option(
    "--mails",
    type=click.Choice(list(_MAILS_WORDS)),
    help="A mail for each job or array at once, one mail a day, or none.",
)
@click.option(
    "--about",
    type=click.Choice(list(_ABOUT_WORDS)),
    help="Everything that --mail-type names, or only what went wrong.",
)
@json_option("slurmkit.notify.settings/1", text="Print your settings as JSON.")
def settings_command(mails: str | None, about: str | None, *, as_json: JsonOutput | None) -> None:
    """Show or change which mails about your jobs the site's ledger service sends you.

    \b
    Examples:
      slurmkit notify settings
      slurmkit notify settings --mails daily --about failures
      slurmkit notify settings --mails each --about all
    """
    from slurmkit_accounting.notify.mail_settings import (
        MailSettings,
        change_mail_settings,
        show_mail_settings,
    )

    service = configured_remote()
    if service is None:
        raise BadInput(
            "this site has no ledger service that sends mails; leave `slurmkit notify` running"
            " instead"
        )
    settings: MailSettings
    if mails or about:
        settings = change_mail_settings(service, mails=mails, about=about)  # type: ignore[arg-type]
    else:
        settings = show_mail_settings(service)
    if as_json:
        as_json.print([settings])
        return
    click.echo(f"mails: {settings.mails:<10} {_MAILS_WORDS[settings.mails]}")
    click.echo(f"about: {settings.about:<10} {_ABOUT_WORDS[settings.about]}")


def _watch(job_ids: tuple[str, ...]) -> None:
    """Send notices until all jobs have ended."""
    from slurmkit_accounting.notify.notices import JobNotices

    given = tuple(map(check_job_id, job_ids))
    _tell_of_the_service()
    section = load_section("notify", NotifySection)
    if not section.jobs:
        raise BadConfig(
            "[notify] jobs is not set; choose your notices in your own configuration file, for"
            ' example: jobs = ["start", "fail", "end"]'
        )
    cluster = Cluster()
    queued = (row.job_id for row in cluster.queue(QueueFilter(me=True)).rows)
    # For pending tasks such as `12_[4-9]`, watch the array.
    ids = given or tuple(dict.fromkeys(job_id.partition("_[")[0] for job_id in queued))
    if not ids:
        raise BadInput("you have no jobs in the queue; submit some first")
    by = {name: notifier(name) for name in section.by}
    news = JobNotices(section, cluster.capabilities().cluster_name, cluster.slurm)
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


def _tell_of_the_service() -> None:
    """Say that the site's service sends mails, if it does; it may be away, or be older."""
    from slurmkit_accounting.notify.mail_settings import show_mail_settings

    with suppress(SlurmkitError):
        if (service := configured_remote()) is not None:
            show_mail_settings(service)
            click.echo(
                "the site's ledger service mails you about jobs sent with --mail-type; you need"
                " not leave this running (slurmkit notify settings)",
                err=True,
            )
