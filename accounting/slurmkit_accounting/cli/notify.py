"""`slurmkit notify`: which mails about your jobs the site's service sends you."""

from __future__ import annotations

import click

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.errors import BadInput
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


@click.group("notify")
def notify_command() -> None:
    """Choose which mails about your jobs the site's ledger service sends you.

    \b
    Examples:
      slurmkit submit --mail-type END,FAIL --time 10 -- python train.py
      slurmkit notify settings --mails daily
    """


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
            "this site has no ledger service that sends mails; Slurm itself may send some: submit"
            " with --mail-type=END,FAIL"
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
