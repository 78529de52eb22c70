"""How a job's command is started: by srun once per task, or once by the batch shell itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slurmkit.findings import Finding

if TYPE_CHECKING:
    from slurmkit.capabilities.model import Capabilities
    from slurmkit.spec import JobSpec


_NO_PROGRAM = re.compile(
    r"=|^(if|then|elif|else|fi|time|for|in|until|while|do|done|case|esac|coproc|select|function)$"
)


class Srun:
    """One srun for the command: once per task, on every node of the job."""

    def needs(self, spec: JobSpec, capabilities: Capabilities) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`: a whole script is no command."""
        del capabilities
        if spec.script is not None:
            yield Finding(
                severity="error",
                code="launcher-needs-command",
                message="the launcher srun starts a command once per task, and this job is a whole"
                " script; leave --launcher out and write srun in the script where tasks begin",
                source="launcher srun",
            )
        if spec.exclusive is True and spec.cpus_per_task is None:
            yield Finding(
                severity="note",
                code="exclusive-cpus",
                message="--exclusive takes whole nodes, but a task only its --cpus-per-task",
                source="srun(1) --cpus-per-task",
            )

    def lines(self, spec: JobSpec, srun_options: tuple[str, ...]) -> tuple[str, ...]:
        """See `slurmkit.plugins.Launcher`; what stands after `--` is the command alone."""
        return (shlex.join(["srun", *srun_options, "--", *spec.command]),)


class Batch:
    """The batch shell runs the command once, on the first node; a script stands as it is."""

    def needs(self, spec: JobSpec, capabilities: Capabilities) -> Iterable[Finding]:
        """See `slurmkit.plugins.Launcher`: what several tasks are for, unless a script says."""
        del capabilities
        launch = spec.launch
        if launch.mpi or launch.label:
            given = " and ".join(n for n in ("mpi", "label") if getattr(launch, n))
            yield Finding(
                severity="warning",
                code="launcher-no-srun",
                message=f"{given} is for srun, which the launcher none does not start; give it to"
                " srun in the script",
                source="launcher none",
            )
        if spec.script is None and spec.gpus is not None and spec.gpus.bind:
            yield Finding(
                severity="note",
                code="launcher-no-binding",
                message=f"GPU binding {spec.gpus.bind} is for what the command itself starts with"
                " srun; the command sees all GPUs of its node",
                source="launcher none",
            )
        tasks = (spec.ntasks or 1, spec.ntasks_per_node or 1, spec.most_nodes or 1)
        if spec.script is None and max(tasks) > 1:
            yield Finding(
                severity="warning",
                code="launcher-runs-once",
                message="the launcher none runs the command once, on the first node: the other"
                " tasks and nodes are idle unless the command itself starts something there",
                source="launcher none",
            )

    def lines(self, spec: JobSpec, srun_options: tuple[str, ...]) -> tuple[str, ...]:
        """See `slurmkit.plugins.Launcher`; srun is not used, so neither are its options."""
        del srun_options
        first, *more = spec.command
        return (" ".join([_program(first), *map(shlex.quote, more)]),)


def _program(word: str) -> str:
    """A command's first word, quoted where a shell would take it for an assignment or a keyword."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted == word and _NO_PROGRAM.search(word) else quoted
