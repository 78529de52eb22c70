"""The table of subcommands. Their modules are strings, so that each is imported only on use."""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from slurmkit.config.plugins import plugins

if TYPE_CHECKING:
    import click

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
            from slurmkit.config.extras import missing_extra

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
        "slurmkit.cli.jupyter:jupyter_group", "Run a notebook server in a job.", here=True
    ),
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
    "tui": CommandEntry(
        "slurmkit_tui.cli:tui_command", "Watch the cluster in the terminal.", "tui"
    ),
    "report": CommandEntry(
        "slurmkit_accounting.cli.report:report_group",
        "Report GPU-hours by PI, account or user.",
        "accounting",
        here=True,
    ),
    "ledger": CommandEntry(
        "slurmkit_accounting.cli.ledger:ledger_group",
        "Keep the ledger of jobs and people for the reports.",
        "accounting",
        here=True,
    ),
    "notify": CommandEntry(
        "slurmkit_accounting.cli.notify:notify_command",
        "Send notices when your jobs start, fail or end.",
        "accounting",
        here=True,
    ),
    "clusters": CommandEntry(
        "slurmkit.cli.remote:clusters_group", "List the clusters reached over SSH.", "ssh"
    ),
    "send": CommandEntry(
        "slurmkit.cli.remote:send_command", "Send code to a cluster over SSH.", "ssh"
    ),
    "find": CommandEntry(
        "slurmkit.cli.remote:find_command", "Find the job of a submit whose connection broke."
    ),
    "config": CommandEntry(
        "slurmkit.cli.settings:config_group", "Show and check the configuration."
    ),
    "plugins": CommandEntry("slurmkit.cli.settings:plugins_command", "List the installed plugins."),
    "completion": CommandEntry(
        "slurmkit.cli.completion:completion_command", "Print a shell's completion script."
    ),
}


def is_completing() -> bool:
    """Return whether a shell runs this process to complete a line after Tab."""
    return "_SLURMKIT_COMPLETE" in os.environ


def site_commands() -> dict[str, Plugin]:
    """Return the subcommands a site has installed; needed only for an unknown name or `--help`."""
    if is_completing():  # Tab must not wait for the scan
        return {}
    return {name: each for name, each in plugins("commands").items() if name not in COMMANDS}
