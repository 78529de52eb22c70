"""The `slurmkit` command: a static table of subcommands, each imported on use."""

from __future__ import annotations

import sys

import click

from slurmkit import __version__
from slurmkit.cli.ending import run_to_exit_code
from slurmkit.cli.table import COMMANDS, site_commands


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is used, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Ours in the order of the table, then the site's."""
        del ctx
        return [*COMMANDS, *sorted(site_commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one subcommand; a site's cannot take the name of one of ours."""
        del ctx
        if cmd_name in COMMANDS:
            return COMMANDS[cmd_name].load()
        site = site_commands().get(cmd_name)
        return site.load() if site else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List subcommands with the table's lines, so that `--help` imports none of them."""
        del ctx
        rows = [(name, entry.help) for name, entry in COMMANDS.items()]
        rows += [(name, f"from {site.value}") for name, site in sorted(site_commands().items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command has --help with examples. SLURMKIT_DEBUG=1 shows tracebacks.",
)
@click.version_option(__version__, prog_name="slurmkit")
def cli() -> None:
    """Submit GPU jobs to Slurm, follow them, and account for every GPU-hour."""


def main() -> None:
    """Run the command line; every error becomes one line and an exit code here."""
    sys.exit(run_to_exit_code(cli))
