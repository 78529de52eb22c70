"""The `slurmkit` command: the table of its subcommands, and how errors end.

Their modules are strings, so that each subcommand is imported only when it is used.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import click
from click.shell_completion import CompletionItem

from slurmkit.cli.tables import wants_colours
from slurmkit.config.extras import extra_of, missing_extra
from slurmkit.config.files import default_cluster_name, set_default_cluster, similar_names
from slurmkit.config.plugins import plugins
from slurmkit.errors import BadInput, MissingExtra, SlurmkitError, SlurmMissing
from slurmkit.formats.display import printable
from slurmkit.version import __version__

if TYPE_CHECKING:
    from slurmkit.config.plugins import Plugin

OWN_PACKAGES = (
    "slurmkit",
    "slurmkit_accounting",
    "slurmkit_containers",
    "slurmkit_plugins",
    "slurmkit_tui",
)


class CommandEntry(NamedTuple):
    """One subcommand.

    Attributes:
        target: `module:attribute` of the click command.
        help: its line in `slurmkit --help`.
        extra: the optional dependencies it needs.
        here: whether it works only with this machine's own cluster and files, never over SSH.
    """

    target: str
    help: str
    extra: str | None = None
    here: bool = False

    def load(self) -> click.Command:
        """Import the command.

        Raises:
            MissingExtra: when one of its optional dependencies is not installed.
        """
        module, _, attribute = self.target.partition(":")
        gc.disable()  # imported objects live for ever: collecting among them only costs time
        try:
            return cast("click.Command", getattr(import_module(module), attribute))
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if self.extra is None or missing.partition(".")[0] in OWN_PACKAGES:
                raise
            raise missing_extra(missing, self.extra) from error
        finally:
            gc.freeze()
            gc.enable()


COMMANDS = {
    "plan": CommandEntry(
        "slurmkit.cli.submit:plan_command", "Show exactly what would be submitted."
    ),
    "submit": CommandEntry("slurmkit.cli.submit:submit_command", "Submit a job."),
    "sweep": CommandEntry(
        "slurmkit.cli.sweep:sweep_group", "Show the points of a sweep, and run failed ones again."
    ),
    "workflow": CommandEntry(
        "slurmkit.cli.workflow:workflow_group", "Run several jobs that wait for each other."
    ),
    "shell": CommandEntry(
        "slurmkit.cli.shell:shell_command", "Open a shell on nodes and GPUs of your own."
    ),
    "jupyter": CommandEntry(
        "slurmkit.cli.web_servers:jupyter_group", "Run a notebook server in a job.", here=True
    ),
    "code-server": CommandEntry(
        "slurmkit.cli.web_servers:code_server_group",
        "Run VS Code for a browser in a job.",
        here=True,
    ),
    "ssh-config": CommandEntry(
        "slurmkit.cli.ssh:ssh_config_command", "Let ssh and editors into a job.", here=True
    ),
    "code": CommandEntry("slurmkit.cli.ssh:code_command", "Open VS Code in such a job.", here=True),
    "tunnel": CommandEntry("slurmkit.cli.shell:tunnel_command", "Reach a port on a job's node."),
    "queue": CommandEntry("slurmkit.cli.queue:queue_command", "List the jobs in the queue."),
    "job": CommandEntry("slurmkit.cli.jobs:job_command", "Show jobs and the GPUs they hold."),
    "log": CommandEntry("slurmkit.cli.jobs:log_command", "Print or follow a job's output."),
    "why": CommandEntry(
        "slurmkit.cli.why:why_command",
        "Explain why a job waits or failed; show what starts sooner.",
    ),
    "cancel": CommandEntry("slurmkit.cli.control:cancel_command", "Cancel jobs."),
    "hold": CommandEntry("slurmkit.cli.control:hold_command", "Keep jobs from starting."),
    "release": CommandEntry("slurmkit.cli.control:release_command", "Let held jobs start."),
    "requeue": CommandEntry("slurmkit.cli.control:requeue_command", "Put jobs back in the queue."),
    "interrupt": CommandEntry(
        "slurmkit.cli.control:interrupt_command",
        "Test how jobs handle a time limit or a preemption.",
    ),
    "update": CommandEntry(
        "slurmkit.cli.control:update_command",
        "Change the time limit, partition or other options of jobs.",
    ),
    "wait": CommandEntry(
        "slurmkit.cli.jobs:wait_command", "Wait for jobs, and exit with their exit code."
    ),
    "nodes": CommandEntry(
        "slurmkit.cli.cluster_state:nodes_command", "List the nodes, and what is in use on them."
    ),
    "gpus": CommandEntry("slurmkit.cli.cluster_state:gpus_command", "Show who uses which GPU."),
    "topo": CommandEntry(
        "slurmkit.cli.capabilities:topo_command",
        "Show how the GPUs of a node are connected.",
        here=True,
    ),
    "capabilities": CommandEntry(
        "slurmkit.cli.capabilities:capabilities_command",
        "Show this cluster's GPUs, partitions, QOS and limits.",
    ),
    "reservations": CommandEntry(
        "slurmkit.cli.reservations:reservations_command", "List reservations and who may use them."
    ),
    "fairshare": CommandEntry(
        "slurmkit.cli.fairshare:fairshare_command",
        "Show shares, usage and the priority of your jobs.",
    ),
    "image": CommandEntry(
        "slurmkit_containers.cli:image_group", "Import and keep container images.", here=True
    ),
    "doctor": CommandEntry(
        "slurmkit.cli.settings:doctor_command",
        "Check the installation and the cluster; say what to improve.",
        here=True,
    ),
    "setup": CommandEntry(
        "slurmkit_accounting.cli.setup:setup_command",
        "Propose, check and write the site's configuration.",
        "accounting",
        here=True,
    ),
    "tui": CommandEntry(
        "slurmkit_tui.cli:tui_command", "Watch the cluster in the terminal.", "tui"
    ),
    "report": CommandEntry(
        "slurmkit_accounting.cli.report:report_group",
        "Report GPU-hours by PI, account or user.",
        "accounting",
        here=True,
    ),
    "balance": CommandEntry(
        "slurmkit_accounting.cli.balance:balance_command",
        "Show what is left of the allocations of your accounts.",
        "accounting",
        here=True,
    ),
    "allocation": CommandEntry(
        "slurmkit_accounting.cli.allocation:allocation_group",
        "Grant GPU-hours to accounts, PIs and projects.",
        "accounting",
        here=True,
    ),
    "ledger": CommandEntry(
        "slurmkit_accounting.cli.ledger:ledger_group",
        "Keep the ledger of jobs and people for the reports.",
        "accounting",
        here=True,
    ),
    "reclaim": CommandEntry(
        "slurmkit_accounting.cli.reclaim:reclaim_group",
        "Give idle GPUs back: check policies, or have a job left alone.",
        "accounting",
        here=True,
    ),
    "benchmark": CommandEntry(
        "slurmkit_accounting.cli.benchmark:benchmark_group",
        "Measure how fast nodes and GPUs are, in low-priority jobs.",
        "accounting",
        here=True,
    ),
    "notify": CommandEntry(
        "slurmkit_accounting.cli.notify:notify_command",
        "Choose which mails the service sends you about your jobs.",
        "accounting",
        here=True,
    ),
    "gpu-exporter": CommandEntry(
        "slurmkit_plugins.gpu_exporter.cli:gpu_exporter_command",
        "Serve what this node's GPUs do, for Prometheus and the ledger.",
        "gpu-exporter",
        here=True,
    ),
    "node-check": CommandEntry(
        "slurmkit_plugins.node_check_command:node_check_command",
        "Check GPUs, links and disk of this machine.",
        here=True,
    ),
    "clusters": CommandEntry(
        "slurmkit.cli.remote:clusters_group", "List the clusters reached over SSH.", "ssh"
    ),
    "send": CommandEntry(
        "slurmkit.cli.remote:send_command", "Send code to a cluster over SSH.", "ssh"
    ),
    "find": CommandEntry(
        "slurmkit.cli.remote:find_command",
        "Find the job of a submit whose connection broke.",
        "ssh",
    ),
    "config": CommandEntry(
        "slurmkit.cli.settings:config_group", "Show and check the configuration."
    ),
    "plugins": CommandEntry("slurmkit.cli.settings:plugins_command", "List the installed plugins."),
    "completion": CommandEntry(
        "slurmkit.cli.completion:completion_command", "Print a shell's completion script."
    ),
}


COMMAND_HEADINGS: dict[str, tuple[str, ...]] = {
    "Start here": ("plan", "submit", "queue", "log", "why", "cancel"),
    "Other ways to run something": (
        "sweep", "workflow", "shell", "jupyter", "ssh-config", "code", "code-server", "tunnel",
        "image",
    ),
    "Your jobs": (
        "job", "wait", "hold", "release", "requeue", "interrupt", "update", "notify",
    ),
    "The cluster": (
        "tui", "nodes", "gpus", "topo", "capabilities", "reservations", "fairshare",
        "node-check", "benchmark",
    ),
    "GPU-hours": ("balance", "report", "allocation", "reclaim", "ledger", "gpu-exporter"),
    "Clusters over SSH": ("clusters", "send", "find"),
    "slurmkit itself": ("doctor", "setup", "config", "plugins", "completion"),
}  # fmt: skip
"""Each heading of `slurmkit --help` -> the subcommands under it."""


def is_completing() -> bool:
    """Return whether a shell runs this process to complete a line after Tab."""
    return "_SLURMKIT_COMPLETE" in os.environ


def site_commands() -> dict[str, Plugin]:
    """Return the subcommands a site has installed; needed only for an unknown name or `--help`."""
    if is_completing():  # Tab must not wait for the scan
        return {}
    return {name: each for name, each in plugins("commands").items() if name not in COMMANDS}


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
            near = similar_names(args[0], self.list_commands(ctx))
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer names and help from `COMMANDS`, so that Tab imports no subcommand."""
        rows = [CompletionItem(name, help=entry.help) for name, entry in COMMANDS.items()]
        begun = [row for row in rows if row.value.startswith(incomplete)]
        return [*begun, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List subcommands with help from `COMMANDS`, so that `--help` imports none of them."""
        del ctx
        rows = {name: entry.help for name, entry in COMMANDS.items()}
        rows |= {name: f"from {site.target}" for name, site in sorted(site_commands().items())}
        _write_commands(formatter, rows)


def _write_commands(formatter: click.HelpFormatter, help_by_name: Mapping[str, str]) -> None:
    """List commands under `COMMAND_HEADINGS`, and those that are under none as the site's own."""
    width = max(map(len, help_by_name))
    rest = dict(help_by_name)
    for heading, names in COMMAND_HEADINGS.items():
        rows = [(name.ljust(width), rest.pop(name)) for name in names]
        with formatter.section(heading):
            formatter.write_dl(rows)
    if rest:
        with formatter.section("Commands of this site"):
            formatter.write_dl([(name.ljust(width), text) for name, text in rest.items()])


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
    return [name for name in _configured_clusters() if name.startswith(begun)]


def _configured_clusters() -> list[str]:
    """Return the names of the configured clusters; none if the configuration cannot be read."""
    from slurmkit.slurm.ssh.hosts import load_clusters

    try:
        return list(load_clusters())
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
            nothing = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - stays open
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
    names = ", ".join(_configured_clusters())
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
    known = [each for param in ctx.command.get_params(ctx) for each in param.opts]
    return [each for each in known if each.startswith(name)] or similar_names(name, known)
