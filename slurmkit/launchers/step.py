"""What a launcher is given: the job, and what its step must be given."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

import msgspec

from slurmkit.capabilities.model import Capabilities
from slurmkit.container import View
from slurmkit.planning.layout import Layout
from slurmkit.spec import JobSpec

PATIENCE = ("--wait=60", "--kill-on-bad-exit=1")
"""One task that fails ends the others, which would wait for it for ever (srun(1))."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose command is to be started.

    Attributes:
        spec: the job, with what the launcher itself took for granted.
        layout: its nodes, tasks and GPUs.
        options: of srun for any step, as words of an argv, not quoted: binding, labels, export,
            and those that put it into its container.
        prefix: words that stand before whatever a task starts, not quoted: a container's.
        view: what the container sees of the node; None without one, and when not known.
    """

    spec: JobSpec
    layout: Layout
    options: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    capabilities: Capabilities
    view: View | None = None

    @property
    def cpus(self) -> str:
        """Which srun does not take from the job on every release."""
        return f"--cpus-per-task={self.layout.cpus_per_task}"

    @property
    def tasks_per_node(self) -> int:
        """Tasks on each node, where all have as many."""
        return self.layout.ntasks_per_node or -(-self.layout.tasks // self.layout.least_nodes)

    @property
    def single_node(self) -> bool:
        """Whether it has one node whatever Slurm decides."""
        return self.layout.nodes == 1 and self.layout.most in (None, 1)


def srun(options: Iterable[str], command: Iterable[str], quoted: str = "") -> str:
    """A line that starts a step; what stands after `--` is the command alone.

    Args:
        options: words of an argv.
        command: likewise.
        quoted: further options as the shell reads them, with a blank before.
    """
    return f"srun{quoted} {shlex.join([*options, '--', *command])}"
