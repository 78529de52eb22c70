"""Which subcommand lives where; strings, so that nothing is imported before it is used."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from slurmkit.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

    from slurmkit.plugins import Plugin

OURS = (
    "slurmkit",
    "slurmkit_accounting",
    "slurmkit_containers",
    "slurmkit_plugins",
    "slurmkit_tui",
)


class Entry(NamedTuple):
    """One subcommand: `module:attribute`, its line of help, the extra it needs.

    `here` is one that works on this machine's own cluster and files alone, never over SSH.
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
        try:
            with _without_collector():
                return cast("click.Command", getattr(import_module(module), attribute))
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if self.extra is None or missing in OURS:
                raise
            raise MissingExtra(
                f"this command needs {missing}, which is not installed;"
                f" run: pip install 'slurmkit-hpc[{self.extra}]'"
            ) from error


@contextmanager
def _without_collector() -> Iterator[None]:
    """What is imported stays: to look for garbage in it, then and later, is time for nothing."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.freeze()
            gc.enable()


COMMANDS = {
    "plan": Entry("slurmkit.cli.submit:plan_command", "Show exactly what would be submitted."),
    "submit": Entry("slurmkit.cli.submit:submit_command", "Submit a job."),
    "sweep": Entry("slurmkit.cli.sweep:sweep_group", "Points of sweeps, and failed ones again."),
    "workflow": Entry(
        "slurmkit.cli.workflow:workflow_group", "Several jobs that wait for each other."
    ),
    "shell": Entry("slurmkit.cli.shell:shell_command", "A shell on nodes and GPUs of one's own."),
    "jupyter": Entry(
        "slurmkit.cli.jupyter:jupyter_group", "A notebook server in a job.", here=True
    ),
    "tunnel": Entry("slurmkit.cli.tunnel:tunnel_command", "Reach a port of a job's node."),
    "queue": Entry("slurmkit.cli.queue:queue_command", "List the jobs in the queue."),
    "job": Entry("slurmkit.cli.jobs:job_command", "Show jobs and the GPUs they hold."),
    "log": Entry("slurmkit.cli.jobs:log_command", "Print or follow a job's output."),
    "why": Entry("slurmkit.cli.why:why_command", "Why a job waits or failed; what starts sooner."),
    "cancel": Entry("slurmkit.cli.control:cancel_command", "Cancel jobs."),
    "hold": Entry("slurmkit.cli.control:hold_command", "Keep jobs from starting."),
    "release": Entry("slurmkit.cli.control:release_command", "Let held jobs start."),
    "requeue": Entry("slurmkit.cli.control:requeue_command", "Put jobs back in the queue."),
    "interrupt": Entry(
        "slurmkit.cli.control:interrupt_command", "Rehearse a time limit or a preemption."
    ),
    "update": Entry("slurmkit.cli.control:update_command", "Change jobs."),
    "wait": Entry("slurmkit.cli.waiting:wait_command", "Wait for jobs; end with their exit code."),
    "nodes": Entry("slurmkit.cli.nodes:nodes_command", "List the nodes and what is in use."),
    "gpus": Entry("slurmkit.cli.gpus:gpus_command", "Show who is on which GPU."),
    "topo": Entry("slurmkit.cli.topo:topo_command", "Show where the GPUs of nodes sit.", here=True),
    "capabilities": Entry(
        "slurmkit.cli.capabilities:capabilities_command", "Show what this cluster has and enforces."
    ),
    "reservations": Entry(
        "slurmkit.cli.reservations:reservations_command", "List reservations and who may use them."
    ),
    "fairshare": Entry(
        "slurmkit.cli.fairshare:fairshare_command", "Show shares, their use and your priority."
    ),
    "image": Entry(
        "slurmkit_containers.cli:image_group", "Import and keep container images.", here=True
    ),
    "doctor": Entry(
        "slurmkit.cli.doctor:doctor_command", "Say what is missing or unwise here.", here=True
    ),
    "tui": Entry("slurmkit_tui.cli:tui_command", "Watch the cluster in the terminal.", "tui"),
    "report": Entry(
        "slurmkit_accounting.cli.report:report_group",
        "GPU-hours by PI, account or user.",
        "accounting",
        here=True,
    ),
    "ledger": Entry(
        "slurmkit_accounting.cli.ledger:ledger_group",
        "Keep the books: jobs and people.",
        "accounting",
        here=True,
    ),
    "notify": Entry(
        "slurmkit_accounting.cli.notify:notify_command",
        "Be told when your jobs start, fail or end.",
        "accounting",
        here=True,
    ),
    "clusters": Entry(
        "slurmkit.cli.clusters:clusters_group", "List the clusters reached over SSH.", "ssh"
    ),
    "send": Entry("slurmkit.cli.send:send_command", "Send code to a cluster over SSH.", "ssh"),
    "find": Entry("slurmkit.cli.find:find_command", "What became of a submit that was cut off."),
    "config": Entry("slurmkit.cli.config:config_group", "Show and check the configuration."),
    "plugins": Entry("slurmkit.cli.plugins:plugins_command", "List what plugins are installed."),
    "completion": Entry(
        "slurmkit.cli.completion:completion_command", "Print a shell's completion script."
    ),
}


def completing() -> bool:
    """Whether a shell asks, on a press of Tab, how the line could go on."""
    return "_SLURMKIT_COMPLETE" in os.environ


def site_commands() -> dict[str, Plugin]:
    """Subcommands a site has installed; scanned only for an unknown name or `--help`."""
    if completing():  # a press of Tab must not wait for a scan
        return {}
    from slurmkit.plugins import plugins  # noqa: PLC0415 - the scan takes 17 ms

    return {name: each for name, each in plugins("commands").items() if name not in COMMANDS}
