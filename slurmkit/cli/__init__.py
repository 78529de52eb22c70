"""The `slurmkit` command: a static table of subcommands, each imported on use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

import click

from slurmkit import __version__
from slurmkit.chosen import choose, chosen
from slurmkit.cli.ending import run_to_exit_code
from slurmkit.cli.table import COMMANDS, completing, site_commands
from slurmkit.errors import BadInput, MissingExtra, SlurmkitError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


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
            return _on_tab(cmd_name) if completing() else _loaded(cmd_name)
        site = site_commands().get(cmd_name)
        return cast("click.Command", site.load()) if site else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand; a name that is none is told with those near it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # noqa: PLC0415 - only for a slip of the pen

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the table's names and lines, so that Tab imports no subcommand for its help."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for Tab alone

        rows = [CompletionItem(name, help=entry.help) for name, entry in COMMANDS.items()]
        begun = [row for row in rows if row.value.startswith(incomplete)]
        return [*begun, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List subcommands with the table's lines, so that `--help` imports none of them."""
        del ctx
        rows = [(name, entry.help) for name, entry in COMMANDS.items()]
        rows += [(name, f"from {site.target}") for name, site in sorted(site_commands().items())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _loaded(name: str) -> click.Command:
    """Import one of ours; what works on a login node alone is refused over SSH.

    Raises:
        BadInput: naming it.
    """
    if COMMANDS[name].here and (where := chosen()):
        raise BadInput(
            f"slurmkit {name} does not work over SSH; run it on the login node of {where}"
        )
    return COMMANDS[name].load()


def _choose(_ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    choose(name)


def _clusters(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    from slurmkit.ssh.section import sections  # noqa: PLC0415 - for Tab alone

    try:
        return [name for name in sections() if name.startswith(begun)]
    except SlurmkitError:
        return []


def _on_tab(name: str) -> click.Command | None:
    """Load what a press of Tab asks about; it has nowhere to say that an extra is missing."""
    from slurmkit.cli.tab import complete_from_cache  # noqa: PLC0415 - for Tab alone

    try:
        return complete_from_cache(COMMANDS[name].load())
    except MissingExtra:
        return None


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command has --help with examples. SLURMKIT_DEBUG=1 shows tracebacks.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    expose_value=False,
    callback=_choose,
    shell_complete=_clusters,
    help="Work on this cluster of the configuration, over SSH.  [env: SLURMKIT_CLUSTER]",
)
@click.version_option(__version__, prog_name="slurmkit")
def cli() -> None:
    """Submit GPU jobs to Slurm, follow them, and account for every GPU-hour."""


def main() -> None:
    """Run the command line; every error becomes one line and an exit code here."""
    sys.exit(run_to_exit_code(cli))
