"""`slurmkit setup`: propose the site's configuration, check what it names, and write it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.settings import count_by_severity, print_diagnosis
from slurmkit.cli.tables import in_colour
from slurmkit.config.check import hide_password, inspect_configuration
from slurmkit.config.files import SITE_FOLDER, config_paths
from slurmkit.doctor.case import CheckContext, Diagnosis
from slurmkit.doctor.checks import run_checks
from slurmkit.errors import BadConfig
from slurmkit.formats.display import printable
from slurmkit.slurm.commands import LocalSlurmCommands
from slurmkit_accounting.cli import refuse_password
from slurmkit_accounting.site_setup.checks import NAMED, checks_of
from slurmkit_accounting.site_setup.config_text import ProposedValue, write_config_text
from slurmkit_accounting.site_setup.proposal import ComparedValue, Proposal, make_proposal

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class _Asked(NamedTuple):
    """An option that gives the value of a key."""

    option: str
    section: str
    key: str
    metavar: str
    help: str
    is_path: bool = False


_ASKED = (
    _Asked("--db", "ledger", "db", "URL", "Database of the ledger."),
    _Asked("--listen", "ledger.service", "listen", "ADDRESS:PORT", "Where the service answers."),
    _Asked("--service-user", "ledger.service", "user", "NAME", "Account of the service."),
    _Asked("--timezone", "ledger.schedule", "timezone", "TZ", "Time zone of months and schedule."),
    _Asked(
        "--service-url", "ledger.service", "url", "URL",
        "For a login node: http://HOST:PORT of the site's service.",
    ),
    _Asked("--ldap-uri", "ldap", "uri", "URI", "Directory: ldap://HOST or ldaps://HOST."),
    _Asked("--ldap-ca-file", "ldap", "ca_file", "FILE", "CA of its certificate.", is_path=True),
    _Asked("--ldap-bind-dn", "ldap", "bind_dn", "DN", "Account to read it.  [default: anonymous]"),
    _Asked(
        "--ldap-password-file", "ldap", "bind_password_file", "FILE",
        "File with the password of that account.", is_path=True,
    ),
    _Asked("--ldap-people-base", "ldap", "people_base", "DN", "Subtree with the people."),
    _Asked("--ldap-groups-base", "ldap", "groups_base", "DN", "Subtree with the groups of PIs."),
    _Asked("--mail-host", "mail", "host", "HOST", "Mail server."),
    _Asked("--mail-sender", "mail", "sender", "ADDRESS", "Sender of mails."),
)  # fmt: skip


def _value_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `_ASKED` to a command, in their order."""
    for each in reversed(_ASKED):
        refuse = refuse_password if each.key == "db" else None
        kind = click.Path(dir_okay=False) if each.is_path else None
        command = click.option(
            each.option, metavar=each.metavar, help=each.help, callback=refuse, type=kind
        )(command)
    return command


@click.command("setup")
@_value_options
@click.option(
    "--file", "path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
    help="Propose this file, and look at no other.  [default: /etc/slurmkit/config.toml]",
)  # fmt: skip
@click.option("--write", is_flag=True, help="Write the file; without it nothing is changed.")
@click.option("--force", is_flag=True, help="Write it although something that it names fails.")
@json_option("slurmkit.setup/1", text="Print the proposed values as JSON.")
@click.pass_context
def setup_command(
    ctx: click.Context,
    /,
    path: Path | None,
    *,
    write: bool,
    force: bool,
    as_json: JsonOutput | None,
    **given: str | None,
) -> None:
    """Propose the site's configuration, and check what it names.

    The command asks Slurm, this host and the directory. It checks slurmctld, slurmdbd, MUNGE, the
    clock, the database, the directory and the mail server, and prints the changes of the file as a
    diff. It asks no questions: options give what it cannot find out.

    Values and comments in the file stay. Only an option replaces a value. So you can run it again
    at any time, and it proposes only what is new. --write writes the file as a whole, and stores
    the old file next to it, as a backup. It writes nothing if the account, the database, the
    directory or the mail server fails. The exit code is 1 when a check finds an error.

    \b
    Examples:
      slurmkit setup
      slurmkit setup --ldap-uri ldap://ldap.example.org --ldap-ca-file /etc/ssl/site-ca.pem
      slurmkit setup --write
      slurmkit setup --file ./new.toml --db sqlite:////var/lib/slurmkit/ledger.db --write
      slurmkit setup --service-url http://ledger.example.org:6830 --write    # on a login node
    """
    target = (path or SITE_FOLDER / "config.toml").absolute()
    site = [each for each in config_paths() if each.is_relative_to(SITE_FOLDER)]
    others = [] if path else [each for each in site if each != target]
    case = CheckContext(LocalSlurmCommands())
    asked = _asked_values(given)
    proposal = make_proposal(case, asked, target, others)
    _refuse_wrong(target, proposal)
    found = list(run_checks(case.slurm, checks_of(proposal.contents, asked)))
    failed = [each.check for each in found if each.check in NAMED and each.severity == "error"]
    is_new = proposal.after != proposal.before
    writes = write and is_new and (force or not failed)
    backup = write_config_text(target, proposal.before, proposal.after) if writes else None
    diff = _diff(target, proposal)
    if as_json:
        further = {"file": str(target), "diff": diff, "notes": proposal.notes, "checks": found}
        done = {"written": writes, "backup": None if backup is None else str(backup)}
        rows = [
            msgspec.structs.replace(each, now=hide_password(each.now)) for each in proposal.values
        ]
        as_json.print(rows, further={**further, **done})
    else:
        _print_findings(found, proposal)
        _print_diff(diff)
        end = _outcome(target, backup, failed, is_new=is_new, write=write, writes=writes)
        click.echo(printable(end), err=True)
    if any(each.severity == "error" for each in found):
        ctx.exit(1)


def _asked_values(given: Mapping[str, str | None]) -> list[ProposedValue]:
    values = []
    for each in _ASKED:
        value = given[each.option.removeprefix("--").replace("-", "_")]
        if value is not None:
            value = str(Path(value).absolute()) if each.is_path else value
            source = f"option {each.option}"
            values.append(ProposedValue(each.section, each.key, value, source, asked=True))
    return values


def _refuse_wrong(target: Path, proposal: Proposal) -> None:
    """Raise BadConfig if the proposed file has a wrong section, key or value."""
    problems = inspect_configuration({target: proposal.after}).problems
    for problem in problems:
        if problem.file == str(target):
            raise BadConfig(f"{problem}; nothing was written")


def _diff(target: Path, proposal: Proposal) -> str:
    before, after = (text.splitlines(keepends=True) for text in (proposal.before, proposal.after))
    names = (str(target), f"{target} (proposed)")
    lines = (
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before, after, *names)
    )
    return str(hide_password("".join(lines)))


def _print_findings(found: Iterable[Diagnosis], proposal: Proposal) -> None:
    found = list(found)
    for each in found:
        print_diagnosis(each, err=True)
    click.echo(count_by_severity(found), err=True)
    for note in proposal.notes:
        click.echo(f"not found: {printable(note)}", err=True)
    for value in proposal.values:
        if value.state == "kept":
            click.echo(_unchanged_words(value), err=True)


def _unchanged_words(value: ComparedValue) -> str:
    now = hide_password(value.now)
    return printable(
        f"kept: [{value.section}] {value.key} = {now!r} of {value.file}; setup would write"
        f" {value.value!r} ({value.source})"
    )


def _print_diff(diff: str) -> None:
    for line in diff.splitlines():
        click.echo(in_colour(printable(line), _COLOURS.get(line[:1])))


def _outcome(
    target: Path,
    backup: Path | None,
    failed: Sequence[str],
    *,
    is_new: bool,
    write: bool,
    writes: bool,
) -> str:
    if not is_new:
        return f"nothing to change in {target}"
    if writes:
        return f"wrote {target}" + (f"; the file from before is {backup}" if backup else "")
    if write:
        return f"nothing was written, because of: {', '.join(failed)}; --force writes it anyway"
    return f"nothing was written; to write {target}, add --write"
