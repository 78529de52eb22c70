"""The kinds of plugins, and how one is found.

A plugin is a named entry point in the group of its kind, `slurmkit.KIND`, whose object implements
the Protocol of that kind below: our own parts register the same way. A name is known without
importing anything; one plugin is chosen by name, and only policies are all called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

from slurmkit.backends.beside import ALONE, Beside
from slurmkit.config import nearest
from slurmkit.errors import BadInput, BrokenPlugin

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from slurmkit.capabilities.model import Capabilities
    from slurmkit.container import Container, View, Wrapped
    from slurmkit.errors import SlurmError
    from slurmkit.findings import Finding
    from slurmkit.launchers.step import Step
    from slurmkit.planner import Submission
    from slurmkit.queue.snapshot import Queue, QueueFilter
    from slurmkit.spec import JobSpec

OURS = "slurmkit-hpc"
UNREADABLE = "unreadable"
"""Stands for the kind where a distribution's list of entry points cannot be read."""


class Backend(Protocol):
    """A way of talking to slurmctld about jobs. The object is called with a `Slurm` to make one.

    It is what can be done in process instead of by commands: submit, control, and load the queue.
    The accounting database and lists in bulk are read by commands whatever the backend.

    What controls a job raises `NoSuchJob` for an id that slurmctld does not know, `JobOver` for a
    job that has ended, `Refused` for any other refusal, and `ControllerDown` when slurmctld is
    silent. Ids are `12`, `12_3` (an array task) or `12+1` (a het component), and have been checked.
    """

    def submit(self, submission: Submission, beside: Beside = ALONE) -> str:
        """Send one batch job and return its id; nothing is left behind when it is refused.

        Args:
            submission: its script is sent byte for byte.
            beside: what joins its options.

        Raises:
            BadInput: when its own dependency cannot be joined with that of `beside`.
        """
        ...

    def cancel(
        self, job_ids: Sequence[str], *, signal: str | None = None
    ) -> Mapping[str, SlurmError]:
        """Cancel jobs, or send them a signal; returns those it did not work for, and why.

        Args:
            job_ids: of an array, all tasks that have not ended; `12_[4-9]` for some that wait.
            signal: `USR1`, or `B:USR1` for the batch shell instead of the steps.
        """
        ...

    def hold(self, job_id: str) -> None:
        """Keep a job from starting; one that runs goes on."""
        ...

    def release(self, job_id: str) -> None:
        """Let a held job start again."""
        ...

    def requeue(self, job_id: str) -> None:
        """Put a job that runs, or that ended a short while ago, back in the queue."""
        ...

    def update(self, job_id: str, changes: Mapping[str, str]) -> None:
        """Change a job; `changes` are sbatch's long options and their new values."""
        ...

    def queue(self, only: QueueFilter | None = None) -> Queue:
        """Take a snapshot of the queue; ids that slurmctld does not know have no rows."""
        ...


class Launcher(Protocol):
    """Starts a job's command from the batch shell. The object of the entry point is its class."""

    def settle(self, spec: JobSpec) -> JobSpec:
        """The job with what this launcher takes for granted, e.g. one task for each GPU."""
        ...

    def needs(self, step: Step) -> Iterable[Finding]:
        """What keeps this launcher from starting the job on this cluster, or is worth knowing."""
        ...

    def lines(self, step: Step) -> tuple[str, ...]:
        """Shell lines of the batch script that start the command and end with its exit code."""
        ...


class Runtime(Protocol):
    """Runs a job's steps in a container. The object of the entry point is its class."""

    def runs(self, kind: str) -> bool:
        """Whether it can run images of a kind (`slurmkit.image.Kind`)."""
        ...

    def available(self, capabilities: Capabilities) -> str | None:
        """Why this cluster cannot use it, in words; None when it can."""
        ...

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """What of `container` it, or its version here, lacks; an error names what has it."""
        ...

    def view(self, container: Container, folder: str) -> View | None:
        """What of the node `container` sees; None where that cannot be known from here.

        Args:
            container: what the user means.
            folder: where the job starts, absolute.
        """
        ...

    def step(self, container: Container, *, gpus: bool) -> Wrapped:
        """How a step is put into `container`; asked only where `needs` found no error.

        Args:
            container: what the user means.
            gpus: the job has GPUs.
        """
        ...


class Review(msgspec.Struct, frozen=True):
    """What a policy makes of a spec.

    Attributes:
        spec: the spec as it was given, or changed; every change is shown to the user.
        findings: an error refuses the job, a warning or note is shown.
    """

    spec: JobSpec
    findings: tuple[Finding, ...] = ()


class Policy(Protocol):
    """A site's rule for jobs. The object of the entry point is its class; all are called.

    One that is to be off by default looks for its section with `slurmkit.config.has_section`.
    """

    def review(self, spec: JobSpec, capabilities: Capabilities) -> Review:
        """Look at a spec: pass, warn, refuse, or change it."""
        ...


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one GPU was doing; None is unknown.

    Attributes:
        index: as in Slurm's index map of the node.
        taken: epoch seconds of the measurement.
        utilisation: percent of the time in which a kernel ran.
        memory_used: MiB.
        memory_total: MiB.
        watts: power drawn.
    """

    index: int
    taken: float
    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    watts: float | None = None


class GpuMetrics(Protocol):
    """Knows what GPUs are doing, e.g. from a site's Prometheus. The object is its class."""

    def read(self, nodes: Iterable[str], *, seconds: float = 0) -> dict[str, tuple[GpuSample, ...]]:
        """Samples by node; a node without an answer is left out.

        Args:
            nodes: names as Slurm has them.
            seconds: also what was measured in the last so many, several samples of a GPU; with 0
                the newest of each alone.

        Raises:
            SlurmkitError: when the source cannot be asked.
        """
        ...


KINDS: dict[str, type | str | None] = {
    "backends": Backend,
    "launchers": Launcher,
    "runtimes": Runtime,
    "policies": Policy,
    "gpu_metrics": GpuMetrics,
    "renderers": "slurmkit_accounting.plugins:Renderer",
    "notifiers": "slurmkit_accounting.plugins:Notifier",
    "commands": None,
    "config": None,
}
"""Kind to its Protocol, or where that is; None where the object is used otherwise."""


class Plugin(msgspec.Struct, frozen=True):
    """A registered plugin, not imported yet.

    Attributes:
        target: `module:object`.
        distribution: who ships it, and in which version.
    """

    kind: str
    name: str
    target: str
    distribution: str
    version: str

    def load(self) -> object:
        """Import its object and see that it has what its kind must have.

        Raises:
            BrokenPlugin: when it cannot be imported, whatever it does on the way, or lacks a part.
        """
        from importlib.metadata import EntryPoint  # noqa: PLC0415 - see registered

        entry = EntryPoint(self.name, self.target, f"slurmkit.{self.kind}")
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # a plugin's code may raise anything
            raise BrokenPlugin(f"{self.title}: {type(error).__name__}: {error}") from error
        lacking = [part for part in _parts(KINDS.get(self.kind)) if not hasattr(loaded, part)]
        if lacking:
            raise BrokenPlugin(f"{self.title} has no {' and no '.join(lacking)}")
        return cast("object", loaded)

    @property
    def title(self) -> str:
        """For messages: what it is and who ships it."""
        where = f"{self.target}, {self.distribution} {self.version}"
        return f"plugin {self.name!r} of slurmkit.{self.kind} ({where})"


@cache
def registered() -> tuple[Plugin, ...]:
    """Every entry point in a group `slurmkit.…`, ours first, then by kind, name and distribution.

    A distribution whose list of entry points cannot be read stands as one of kind `UNREADABLE`.
    The first look scans what is installed (some 20 ms), so commands that need none do not ask.
    """
    from importlib.metadata import distributions  # noqa: PLC0415 - itself takes 10 ms

    found: dict[str, list[Plugin]] = {}
    for each in distributions():
        if entries := _registered_by(each):
            found.setdefault(entries[0].distribution, entries)  # the first is what is imported
    return tuple(sorted((plugin for each in found.values() for plugin in each), key=_rank))


def _registered_by(distribution: Distribution) -> list[Plugin]:
    try:
        if "slurmkit." not in (distribution.read_text("entry_points.txt") or ""):
            return []
        entries = [(e.group, e.name, e.value) for e in distribution.entry_points]
    except (TypeError, ValueError):  # a line that is none, in a file that anybody wrote
        entries = [(f"slurmkit.{UNREADABLE}", "?", "entry_points.txt")]
    name, version = _said(distribution, "name") or "unknown", _said(distribution, "version") or "?"
    return [
        Plugin(group.removeprefix("slurmkit."), entry, target, name, version)
        for group, entry, target in entries
        if group.startswith("slurmkit.")
    ]


def _said(distribution: Distribution, what: str) -> str:
    """A line of its metadata, which its own properties read as a mail: those modules take 20 ms."""
    try:
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    except ValueError:  # it is no text
        return ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return next((value.strip() for name, _, value in lines if name.lower() == what), "")


def plugins(kind: str) -> dict[str, Plugin]:
    """Every plugin of a kind by name, in order of names; nothing is imported.

    A name is taken once: ours go before a site's.
    """
    by_name: dict[str, Plugin] = {}
    for plugin in registered():
        if plugin.kind == kind:
            by_name.setdefault(plugin.name, plugin)
    return dict(sorted(by_name.items()))


def load(kind: str, name: str) -> object:
    """Import the plugin of a kind that was chosen by name.

    Raises:
        BadInput: when there is none of that name, naming those there are.
        BrokenPlugin: when it cannot be used.
    """
    known = plugins(kind)
    if name not in known:
        hint = nearest(name, list(known), kind) if known else "none is installed"
        raise BadInput(f"no plugin {name!r} of slurmkit.{kind}; {hint}")
    return known[name].load()


def launcher(name: str) -> Launcher:
    """Make the launcher of that name; raises as `load`."""
    made = cast("Callable[[], Launcher]", load("launchers", name))
    try:
        return made()
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        raise BrokenPlugin(
            f"{plugins('launchers')[name].title}: {type(error).__name__}: {error}"
        ) from error


def _rank(plugin: Plugin) -> tuple[object, ...]:
    return plugin.distribution != OURS, plugin.kind, plugin.name, plugin.distribution


def _parts(protocol: type | str | None) -> list[str]:
    if isinstance(protocol, str):
        module, _, attribute = protocol.partition(":")
        protocol = cast("type", getattr(import_module(module), attribute))
    return [name for name in vars(protocol or object) if not name.startswith("_")]
