"""The `slurmkit` command. Each subcommand is imported when it is used."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from slurmkit.cli.commands import COMMANDS, is_completing, site_commands
from slurmkit.cli.tables import wants_colours
from slurmkit.config.files import default_cluster_name, set_default_cluster
from slurmkit.errors import BadInput, MissingExtra, SlurmkitError, SlurmMissing
from slurmkit.formats.display import printable
from slurmkit.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return our subcommands in the order of `COMMANDS`, then the site's."""
        del ctx
        return [*COMMANDS, *sorted(site_commands())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one subcommand; a site's own cannot replace one of ours."""
        del ctx
        if cmd_name in COMMANDS:
            return _load_for_completion(cmd_name) if is_completing() else _load_command(cmd_name)
        site = site_commands().get(cmd_name)
        return cast("click.Command", site.load()) if site else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a subcommand; the error for an unknown name suggests a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer names and help from `COMMANDS`, so that Tab imports no subcommand."""
        from click.shell_completion import CompletionItem

        rows = [CompletionItem(name, help=entry.help) for name, entry in COMMANDS.items()]
        begun = [row for row in rows if row.value.startswith(incomplete)]
        return [*begun, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List subcommands with help from `COMMANDS`, so that `--help` imports none of them."""
        from slurmkit.cli.help import write_commands

        del ctx
        rows = {name: entry.help for name, entry in COMMANDS.items()}
        rows |= {name: f"from {site.target}" for name, site in sorted(site_commands().items())}
        write_commands(formatter, rows)


def _load_command(name: str) -> click.Command:
    """Import one of our subcommands.

    Raises:
        BadInput: over SSH, for a subcommand that works only on a login node.
    """
    if COMMANDS[name].here and (where := default_cluster_name()):
        raise BadInput(
            f"slurmkit {name} does not work over SSH; run it on the login node of {where}"
        )
    return COMMANDS[name].load()


def _choose_cluster(_ctx: click.Context, _param: click.Parameter, name: str | None) -> None:
    set_default_cluster(name)


def _complete_cluster(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Return the configured clusters whose names begin with the text so far, for Tab."""
    from slurmkit.slurm.ssh.hosts import load_clusters

    try:
        return [name for name in load_clusters() if name.startswith(begun)]
    except SlurmkitError:
        return []


def _load_for_completion(name: str) -> click.Command | None:
    """Import a subcommand for Tab; None if its extra is missing, as Tab cannot show an error."""
    from slurmkit.cli.completion import complete_from_cache

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
    callback=_choose_cluster,
    shell_complete=_complete_cluster,
    help="Use this cluster from your configuration, over SSH.  [env: SLURMKIT_CLUSTER]",
)
@click.version_option(__version__, "-V", "--version", prog_name="slurmkit")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Submit GPU jobs to Slurm, follow them, and account for every GPU-hour.

    \b
    Examples:
      slurmkit plan --gpus-per-node 1 --time 10 -- python train.py
      slurmkit submit --gpus-per-node 1 --time 10 -- python train.py
      slurmkit queue --me
      slurmkit why 12
    """
    ctx.color = wants_colours() or None  # with True, click keeps colours in a pipe


def main() -> None:
    """Run the command line and exit; an error becomes one line and an exit code."""
    _open_closed_streams()
    sys.exit(run_to_exit_code(cli))


def _open_closed_streams() -> None:
    """Open /dev/null as the standard output and error that the caller closed, as with `>&-`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - kept open
            setattr(sys, name, nothing)


def run_to_exit_code(command: click.Command, args: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    0 is success, 1 a failed operation, 2 bad input, 130 interrupted. With SLURMKIT_DEBUG=1 the
    traceback is shown.
    """
    try:
        done = command.main(args=args, prog_name="slurmkit", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # `slurmkit queue | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1  # as click does where it catches the error
    except (SlurmkitError, click.ClickException, click.Abort, KeyboardInterrupt, OSError) as error:
        return _report_error(error)
    except ModuleNotFoundError as error:  # a command imports what it needs when it runs
        from slurmkit.config.extras import extra_of, missing_extra

        if not (error.name and (extra := extra_of(error.name))):
            raise
        return _report_error(missing_extra(error.name, extra))
    return done if isinstance(done, int) else 0


def _report_error(error: BaseException) -> int:
    """Print an error and return its exit code."""
    lost = _discard_lost_output()
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return error.exit_code
        case SlurmMissing() if not default_cluster_name():
            return _print_error(error, f"{error}{_clusters_hint()}", error.exit_code)
        case SlurmkitError():
            return _print_error(error, str(error), error.exit_code)
        case click.ClickException():
            return _print_error(error, _click_message(error), error.exit_code)
        case OSError():
            where = error.filename or ("standard output" if lost else "the operating system")
            return _print_error(error, f"{where}: {error.strerror}", 1)
        case _:
            return _print_error(error, "interrupted", 128 + signal.SIGINT)


def _discard_lost_output() -> bool:
    """Return whether standard output cannot be written; then discard what is left of it.

    Otherwise Python would try again at its exit, and end with its own message and exit code.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _clusters_hint() -> str:
    """Return how to use a configured cluster from here; empty if there is none."""
    from slurmkit.slurm.ssh.hosts import load_clusters

    try:
        names = ", ".join(load_clusters())
    except SlurmkitError:
        return ""
    return f"; or use a cluster over SSH: slurmkit --cluster NAME …, with {names}" if names else ""


def _print_error(error: BaseException, words: str, code: int) -> int:
    """Print the message of an error, or raise it with SLURMKIT_DEBUG=1; return `code`."""
    if os.environ.get("SLURMKIT_DEBUG") == "1":
        raise error
    with suppress(OSError):  # a full disk, with 2>FILE
        click.echo(f"slurmkit: {printable(words)}", err=True)
    return code


def _click_message(error: click.ClickException) -> str:
    """Return click's message on one line, with the --help command to run."""
    words = " ".join(error.format_message().split()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        words = error.message.rstrip(".")
        if similar := _similar_options(error.option_name, error.ctx):
            words += f". Did you mean {', '.join(similar)}?"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{words}; see: {error.ctx.command_path} --help"
    return words


def _similar_options(name: str, ctx: click.Context) -> list[str]:
    """Return the options of a command that an unknown one may mean.

    Options that begin with it come first, as `--gpus` for `--gpu`; otherwise the nearest ones.
    """
    from difflib import get_close_matches

    known = [each for param in ctx.command.get_params(ctx) for each in param.opts]
    return [each for each in known if each.startswith(name)] or get_close_matches(name, known)
