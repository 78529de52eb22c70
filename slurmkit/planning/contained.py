"""The container of a job's steps: which runtime, what it lacks, and what it adds to the script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from slurmkit.capabilities.model import Capabilities, Node
from slurmkit.checks.say import error, note, warning
from slurmkit.container import UNSET_PYXIS, Container, View, Wrapped
from slurmkit.errors import BadInput
from slurmkit.findings import Finding
from slurmkit.image import KERNELS
from slurmkit.machine import HERE
from slurmkit.planning.unseen import absent, unseen
from slurmkit.plugins import Runtime
from slurmkit.runtimes import IMPORTING, NOT_HERE, choose, runtime, settled
from slurmkit.spec import JobSpec
from slurmkit.statehome import state_folder


class Contained(msgspec.Struct, frozen=True):
    """How the step of a job is put into its container.

    Attributes:
        wrapped: what the runtime says; empty without a container, or where `findings` has an error.
        named: the runtime; empty without a container.
        architecture: the image's, as Docker names it; empty when not known.
        view: what it sees of the node; None without a container, and when not known.
    """

    wrapped: Wrapped = Wrapped()
    named: str = ""
    findings: tuple[Finding, ...] = ()
    architecture: str = ""
    view: View | None = None

    def around(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """The lines that start the step, with those that must stand around it."""
        if not self.named:
            return lines
        after = self.wrapped.after
        trap = ("slurmkit_end() {", *(f"  {line}" for line in after), "}", "trap slurmkit_end EXIT")
        return (UNSET_PYXIS, *(trap if after else ()), *self.wrapped.before, "", *lines)


def contained(spec: JobSpec, capabilities: Capabilities, nodes: int = 1) -> Contained:
    """Find what is used for the image of a job's container, choose a runtime, and ask it.

    Args:
        spec: the job.
        capabilities: of the cluster.
        nodes: how many the job has at least.

    Raises:
        BrokenPlugin: for a runtime that cannot be imported.
        BadConfig: for a wrong configuration.
    """
    if spec.container is None:
        return Contained()
    if spec.script is not None or spec.launch.launcher == "none":
        return Contained(findings=(error("container-needs-step", _NO_STEP, "container"),))
    image = settled(spec.container.at(HERE.folder), nodes=nodes)
    try:
        name = choose(image.container, capabilities)
    except BadInput as wrong:
        return Contained(findings=(error("container-runtime", str(wrong), "runtimes"),))
    chosen = runtime(name)
    told = (f for f in image.findings if f.code != NOT_HERE or name in IMPORTING)
    found = (*told, *chosen.needs(image.container, capabilities))
    if any(finding.severity == "error" for finding in found):
        return Contained(named=name, findings=found)
    said = note("container-runtime", f"its steps run in {name}", name)
    container, lost = _with_variables(spec, image.container, (chosen, name, capabilities))
    view = chosen.view(container, spec.chdir or HERE.folder)
    lost = (*lost, *absent(container), *(unseen(spec, container, view) if view else ()))
    if spec.survive:
        container, unasked = _with_checkpoint_file(container, view)
        view = chosen.view(container, spec.chdir or HERE.folder)
        lost = (*lost, *unasked)
    wrapped = chosen.step(container, gpus=spec.gpus is not None)
    return Contained(wrapped, name, (said, *found, *lost), image.architecture, view)


def _with_checkpoint_file(
    container: Container, view: View | None
) -> tuple[Container, tuple[Finding, ...]]:
    """Have it see where its work is asked for a checkpoint; the job makes that folder first."""
    folder = str(state_folder("runs"))
    if view is not None and view.inside(folder) == folder:
        return container, ()
    doubt = warning("container-survive", _UNASKED.format(folder), "$SLURMKIT_CHECKPOINT_FILE")
    if view is None or not view.is_asked:
        return container, (doubt,)
    try:
        return msgspec.structs.replace(container, mounts=(*container.mounts, folder)), ()
    except BadInput:  # no runtime takes such a path
        return container, (doubt,)


def _with_variables(
    spec: JobSpec, container: Container, by: tuple[Runtime, str, Capabilities]
) -> tuple[Container, tuple[Finding, ...]]:
    """Have the job's own variables win over the image's, as far as the runtime can do that."""
    chosen, name, capabilities = by
    own = [each for each in spec.environment if each not in container.environment]
    # Both enroot and pyxis write them into a file that has one on each line.
    broken = [each for each in own if "\n" in spec.environment[each]]
    named = tuple(each for each in own if each not in broken)
    full = msgspec.structs.replace(container, environment=(*container.environment, *named))
    errors = (f.message for f in chosen.needs(full, capabilities) if f.severity == "error")
    if named and (why := next(errors, None)):
        lost = warning("container-variables", _LOST.format(", ".join(named), why), name)
        return container, (lost,)
    if broken:
        why = "a value of several lines is not handed on before the image's"
        lost = note("container-variables", _LOST.format(", ".join(broken), why), name)
        return full, (lost,)
    return full, ()


def for_other_nodes(inside: Contained, nodes: Iterable[Node]) -> Iterator[Finding]:
    """Say when nodes that a job may get are no machines for its image."""
    kernel = KERNELS.get(inside.architecture)
    there = {node.architecture for node in nodes if node.architecture}
    if kernel is None or not there - {kernel}:
        return
    words = f"the image is for {kernel}, and nodes that the job may get are"
    if kernel in there:
        others = ", ".join(sorted(there - {kernel}))
        message = (
            f"{words} {others}, too; leave them out with --partition, --constraint or --exclude"
        )
        yield warning("container-architecture", message, "scontrol show node: Arch")
    else:
        message = f"{words} {', '.join(sorted(there))}; import one for them, on such a machine"
        yield error("container-architecture", message, "scontrol show node: Arch")


_NO_STEP = (
    "a container is for steps that srun starts, and this job's own shell starts its program; give"
    " a command, or write srun's container options in the script"
)
_UNASKED = (
    "the container may not see {}, where a file asks its work for a checkpoint; have it seen there,"
    " or let the work listen to --checkpoint-signal alone"
)
_LOST = "where the image sets {} itself, its value holds: {}"
