"""The container step of a job: its image, its runtime, and paths that it cannot see.

The runtime is the one named, or one that suits the image and the cluster.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Protocol, cast

import msgspec

from slurmkit.config.files import did_you_mean, load_section
from slurmkit.config.paths import state_folder
from slurmkit.config.plugins import load_plugin, plugins
from slurmkit.errors import BadInput, BrokenPlugin
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.spec.containers import UNSET_PYXIS, Container, ContainerLaunch, ContainerPaths
from slurmkit.spec.findings import Finding, Pairs, error, note, warning
from slurmkit.spec.images import IMAGE_KIND_NAMES, KERNEL_ARCHITECTURES
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.model import Capabilities, Node

_IMAGES = "slurmkit_containers"
"""The package that handles images; a string, so that slurmkit works without it."""
IMAGE_NOT_IMPORTED = "container-image-import"
"""Code of the finding that each of several nodes would fetch the image itself."""
IMPORTING_RUNTIMES = ("pyxis", "enroot")
"""Runtimes for which importing an image loses nothing of it."""
RUNTIME_ORDER = ("pyxis", "enroot", "apptainer", "oci")
"""Runtimes that are tried when none is named, best first."""

_NO_STEP = (
    "a container works only for steps that srun starts, and this job's batch shell starts its"
    " program itself; give a command, or write srun's container options in the script"
)
_NO_CHECKPOINT_FILE = (
    "the container may not see the folder {}, and a file there asks the work for a checkpoint;"
    " mount that folder, or let the work react to --checkpoint-signal only"
)
_VARIABLES_LOST = "if the image sets {} itself, the job gets the image's value: {}"

_CODE = "container-unseen"
_SOURCE = "container"
# Folders that an image has itself, or that a runtime adds.
_IMAGE_FOLDERS = tuple(
    "/bin /boot /dev /etc /lib /lib64 /opt /proc /run /sbin /sys /usr /var".split()
)
_FIXED = "; the bundle's config.json sets which paths it sees"
_WHOLE = "; give its whole path"


class Runtime(Protocol):
    """A container runtime for a job's steps. The entry point's object is its class."""

    def runs(self, kind: str) -> bool:
        """Tell whether it can run images of a kind (`slurmkit.spec.images.ImageKind`)."""
        ...

    def available(self, capabilities: Capabilities) -> str | None:
        """Return why this cluster cannot use it; None when it can."""
        ...

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """Return what it lacks for `container`; an error names a runtime or version that has it."""
        ...

    def view(self, container: Container, folder: str) -> ContainerPaths | None:
        """Return the node paths `container` sees; None if that cannot be known here.

        Args:
            container: as the user asked for it.
            folder: where the job starts, absolute.
        """
        ...

    def step(self, container: Container, *, gpus: bool) -> ContainerLaunch:
        """Return how to run a step in `container`; called only if `needs` found no error.

        Args:
            container: as the user asked for it.
            gpus: whether the job has GPUs.
        """
        ...


class ContainersSection(msgspec.Struct, frozen=True):
    """`[containers]`.

    Attributes:
        runtime: the runtime of jobs that name none, if it can run their image.
        runtimes: the runtimes on the nodes; slurmkit cannot detect `enroot`, `apptainer` and `oci`
            from another machine.
        cache: folder for a user's imported images, which the nodes see too; `~` and `$USER` are
            replaced. None is `$XDG_CACHE_HOME/slurmkit/images`.
        cache_size: the most that these images may take, e.g. `200G`; to stay below it, slurmkit
            removes the images that were unused for longest.
        shared: other folders of imported images, which everybody may use.
        shared_owner: in the shared folders, slurmkit uses only the files of this account and of
            root.
        import_first: before it submits a job on several nodes, `slurmkit submit` imports the
            image, on the machine where it runs itself; with false each node fetches the image.
        mirrors: for a registry, the one to use in its place, with a path if needed.
    """

    runtime: str | None = None
    runtimes: tuple[str, ...] = ()
    cache: str | None = None
    cache_size: str | None = None
    shared: tuple[str, ...] = ()
    shared_owner: str = "root"
    import_first: bool = True
    mirrors: dict[str, str] = {}


def containers_section() -> ContainersSection:
    """Load `[containers]` of the configuration.

    Raises:
        BadConfig: when it cannot be read.
        BadInput: when it names a runtime that does not exist.
    """
    section = load_section("containers", ContainersSection)
    known = plugins("runtimes") if section.runtimes else {}
    for name in section.runtimes:
        if name not in known:
            hint = did_you_mean(name, list(known), "runtimes")
            raise BadInput(
                f"[containers] runtimes: no plugin {name!r} of slurmkit.runtimes; {hint}"
            )
    return section


class ResolvedContainer(msgspec.Struct, frozen=True):
    """A container whose image is resolved, with findings about that.

    Attributes:
        architecture: of the image, as Docker names it; empty when unknown.
    """

    container: Container
    findings: tuple[Finding, ...] = ()
    architecture: str = ""


def resolve_container(container: Container, *, nodes: int) -> ResolvedContainer:
    """Look up a container's image in the catalogue, the imported images, and the mirrors.

    Args:
        container: as the user asked for it.
        nodes: the fewest nodes the job has.

    Raises:
        BadConfig: for a wrong configuration.
    """
    resolved: ResolvedContainer = _images_function("images", "settle")(container, nodes)
    return resolved


def import_image(image: str) -> None:
    """Import an image to where `resolve_container` finds it, with progress on standard error.

    Raises:
        ImageError: when it cannot be imported.
        BadInput: when images of its kind are not imported.
        BadConfig: for a wrong configuration.
    """
    _images_function("cli", "import_here")(image)


def image_names() -> list[str]:
    """Return the names of images known here: the imported ones and the catalogue's.

    Raises:
        ImageError: when a folder of images cannot be trusted.
        BadConfig: for a wrong configuration.
    """
    names: list[str] = _images_function("images", "known_names")()
    return names


def _images_function(module: str, name: str) -> Any:
    return getattr(import_module(f"{_IMAGES}.{module}"), name)


def make_runtime(name: str) -> Runtime:
    """Make the runtime of that name; raises as `slurmkit.config.plugins.load_plugin` does."""
    factory = cast("Callable[[], Runtime]", load_plugin("runtimes", name))
    try:
        return factory()
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        title = plugins("runtimes")[name].title
        raise BrokenPlugin(f"{title}: {type(error).__name__}: {error}") from error


def choose_runtime(container: Container, capabilities: Capabilities) -> str:
    """Choose the runtime of a job and return its name.

    In this order: the one the container names; the one the configuration names, if it can run
    such an image; the first of `RUNTIME_ORDER` that is installed and can.

    Raises:
        BadInput: when the named one cannot be used here, or none can run the image.
        BrokenPlugin: when a runtime cannot be imported.
    """
    if container.runtime is not None:
        return _require_available(container.runtime, capabilities)
    preferred = containers_section().runtime
    if preferred and _why_cannot_run(make_runtime(preferred), container, capabilities) is None:
        return _require_available(preferred, capabilities)
    lacking: dict[str, str] = {}
    for name in (name for name in RUNTIME_ORDER if name in plugins("runtimes")):
        candidate = make_runtime(name)
        why = _why_not(candidate, container, capabilities)
        if why is None:
            return name
        lacking[name] = why
    what = (
        IMAGE_KIND_NAMES[container.source.kind] if container.source else "a container by its name"
    )
    reasons = "; ".join(f"{name}: {why}" for name, why in lacking.items())
    raise BadInput(f"no container runtime here can run {what}: {reasons}")


def _require_available(name: str, capabilities: Capabilities) -> str:
    if why := make_runtime(name).available(capabilities):
        raise BadInput(f"the container runtime {name} cannot be used here: {why}")
    return name


def _why_not(candidate: Runtime, container: Container, capabilities: Capabilities) -> str | None:
    cannot = _why_cannot_run(candidate, container, capabilities)
    absent = candidate.available(capabilities)
    return (cannot or absent) if container.source else (absent or cannot)


def _why_cannot_run(
    candidate: Runtime, container: Container, capabilities: Capabilities
) -> str | None:
    """Return why a runtime cannot run such a container on any cluster; None if it can."""
    if container.source is not None:
        kind = container.source.kind
        return None if candidate.runs(kind) else f"cannot run {IMAGE_KIND_NAMES[kind]}"
    wrong = (f.message for f in candidate.needs(container, capabilities) if f.severity == "error")
    return next(wrong, None)


class ContainerStep(msgspec.Struct, frozen=True):
    """How a job's step runs in its container.

    Attributes:
        wrapped: what the runtime adds to the step; empty without a container, or if `findings` has
            an error.
        named: name of the runtime; empty without a container.
        architecture: of the image, as Docker names it; empty when not known.
        view: the paths of the node that it sees; None without a container, and when not known.
    """

    wrapped: ContainerLaunch = ContainerLaunch()
    named: str = ""
    findings: tuple[Finding, ...] = ()
    architecture: str = ""
    view: ContainerPaths | None = None

    def around(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return the lines that start the step, with the runtime's lines around them."""
        if not self.named:
            return lines
        after = self.wrapped.after
        trap = ("slurmkit_end() {", *(f"  {line}" for line in after), "}", "trap slurmkit_end EXIT")
        return (UNSET_PYXIS, *(trap if after else ()), *self.wrapped.before, "", *lines)


def container_step(spec: JobSpec, capabilities: Capabilities, nodes: int = 1) -> ContainerStep:
    """Look up the image of a job's container, choose a runtime, and wrap the step.

    Args:
        spec: the job.
        capabilities: of the cluster.
        nodes: the least number of nodes of the job.

    Raises:
        BrokenPlugin: for a runtime that cannot be imported.
        BadConfig: for a wrong configuration.
    """
    if spec.container is None:
        return ContainerStep()
    if spec.script is not None or spec.launch.launcher == "none":
        return ContainerStep(findings=(error("container-needs-step", _NO_STEP, "container"),))
    image = resolve_container(spec.container.at(LOCAL_MACHINE.folder), nodes=nodes)
    try:
        name = choose_runtime(image.container, capabilities)
    except BadInput as wrong:
        return ContainerStep(findings=(error("container-runtime", str(wrong), "runtimes"),))
    chosen = make_runtime(name)
    of_image = (
        f for f in image.findings if f.code != IMAGE_NOT_IMPORTED or name in IMPORTING_RUNTIMES
    )
    findings = (*of_image, *chosen.needs(image.container, capabilities))
    if any(finding.severity == "error" for finding in findings):
        return ContainerStep(named=name, findings=findings)
    in_runtime = note("container-runtime", f"its steps run in {name}", name)
    container, doubts = _pass_job_variables(
        spec, image.container, runtime=chosen, runtime_name=name, capabilities=capabilities
    )
    view = chosen.view(container, spec.chdir or LOCAL_MACHINE.folder)
    doubts = (
        *doubts,
        *check_missing_sources(container),
        *(check_hidden_paths(spec, container, view) if view else ()),
    )
    if spec.survive:
        container, no_checkpoint = _mount_checkpoint_folder(container, view)
        view = chosen.view(container, spec.chdir or LOCAL_MACHINE.folder)
        doubts = (*doubts, *no_checkpoint)
    wrapped = chosen.step(container, gpus=spec.gpus is not None)
    return ContainerStep(wrapped, name, (in_runtime, *findings, *doubts), image.architecture, view)


def _mount_checkpoint_folder(
    container: Container, view: ContainerPaths | None
) -> tuple[Container, tuple[Finding, ...]]:
    """Mount the folder of the checkpoint file, unless the container already sees it.

    The job makes that folder before its step starts.
    """
    folder = str(state_folder("runs"))
    if view is not None and view.inside(folder) == folder:
        return container, ()
    doubt = warning(
        "container-survive", _NO_CHECKPOINT_FILE.format(folder), "$SLURMKIT_CHECKPOINT_FILE"
    )
    if view is None or not view.is_asked:
        return container, (doubt,)
    try:
        return msgspec.structs.replace(container, mounts=(*container.mounts, folder)), ()
    except BadInput:  # no runtime takes such a path
        return container, (doubt,)


def _pass_job_variables(
    spec: JobSpec,
    container: Container,
    *,
    runtime: Runtime,
    runtime_name: str,
    capabilities: Capabilities,
) -> tuple[Container, tuple[Finding, ...]]:
    """Let the job's own variables replace the image's, as far as the runtime can do that."""
    own = [each for each in spec.environment if each not in container.environment]
    # Both enroot and pyxis write them into a file with one variable on each line.
    broken = [each for each in own if "\n" in spec.environment[each]]
    named = tuple(each for each in own if each not in broken)
    full = msgspec.structs.replace(container, environment=(*container.environment, *named))
    errors = (f.message for f in runtime.needs(full, capabilities) if f.severity == "error")
    if named and (why := next(errors, None)):
        lost = warning(
            "container-variables", _VARIABLES_LOST.format(", ".join(named), why), runtime_name
        )
        return container, (lost,)
    if broken:
        why = "a value of several lines cannot replace the image's value"
        lost = note(
            "container-variables", _VARIABLES_LOST.format(", ".join(broken), why), runtime_name
        )
        return full, (lost,)
    return full, ()


def check_architecture(inside: ContainerStep, nodes: Iterable[Node]) -> Iterator[Finding]:
    """Report nodes that the job may get and whose architecture is not the image's."""
    kernel = KERNEL_ARCHITECTURES.get(inside.architecture)
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
        message = f"{words} {', '.join(sorted(there))}; import an image for them on such a machine"
        yield error("container-architecture", message, "scontrol show node: Arch")


def check_hidden_paths(
    spec: JobSpec, container: Container, view: ContainerPaths
) -> Iterator[Finding]:
    """Name paths of the command that exist here but not in the container; suggest mounts.

    Args:
        spec: the job.
        container: its container.
        view: the paths that the container sees.
    """
    folder = spec.chdir or LOCAL_MACHINE.folder
    relative = [w for w in _paths(spec.command) if not posixpath.isabs(w)]
    relative = [w for w in relative if os.path.lexists(posixpath.join(folder, w))]
    lost = relative if _starts_elsewhere(view, folder, relative) else []
    far = [path for path in _absolute_paths(spec.command, container) if not view.sees(path)]
    shown = view.inside(folder)
    missing = [*([folder] if lost and shown is None else []), *map(_folder_of, far)]
    start = (shown or folder) if lost else None
    if missing or lost:
        fix = _fix(container, missing, start) if view.is_asked else ()
        how = "" if view.is_asked else _FIXED if missing else _WHOLE
        words = _hidden(missing, [*lost, *far]) if missing else _started(lost, shown or folder)
        yield warning(_CODE, words + how, _SOURCE, fix)
    elif shown is None:
        words = f"the container does not see {folder}, where the job starts"
        fix = _fix(container, [folder], folder) if view.is_asked and not view.start else ()
        yield note(_CODE, words, _SOURCE, fix)


def _hidden(missing: list[str], named: list[str]) -> str:
    there = [each for each in named if each not in missing]
    where = f"where {_joined_words(there)} {_is_or_are(there)}" if there else "which the job names"
    return f"the container does not see {_joined_words(missing)}, {where}"


def _started(lost: list[str], folder: str) -> str:
    return (
        f"{_joined_words(lost)} {_is_or_are(lost)} not found in the container:"
        f" its command starts in the image's own folder, not in {folder}"
    )


def check_missing_sources(container: Container) -> Iterator[Finding]:
    """Name files and mounts of the container that do not exist on this machine.

    This machine mounts the same file systems as the nodes.
    """
    image = container.source
    needed = [image.name] if image is not None and image.is_file else []
    needed += [mount.source for mount in container.mounted if mount.is_bind]
    needed += [posixpath.dirname(container.save)] if container.save else []
    for path in dict.fromkeys(needed):
        if not os.path.lexists(path):
            message = f"there is no {path} on this machine; the job fails if the nodes lack it, too"
            yield warning("container-absent", message, _SOURCE)


def _paths(command: Iterable[str]) -> Iterator[str]:
    """Yield words of a command, and values of options, that may be paths."""
    for at, word in enumerate(command):
        path = word.partition("=")[2] if word.startswith("-") else word
        # A first word without a slash is searched in PATH, unless it is a script for the launcher.
        if path and (at or "/" in path or path.endswith(".py")):
            yield path


def _starts_elsewhere(view: ContainerPaths, folder: str, words: list[str]) -> bool:
    """Return whether the container starts where these paths below `folder` do not exist."""
    return bool(words) and (view.start is None or view.start == folder != view.inside(folder))


def _absolute_paths(command: Iterable[str], container: Container) -> Iterator[str]:
    """Yield absolute paths that exist on this machine and that an image hardly has."""
    named = [*_paths(command), container.workdir or ""]
    for path in dict.fromkeys(map(posixpath.normpath, filter(posixpath.isabs, named))):
        own = any(path == each or path.startswith(f"{each}/") for each in _IMAGE_FOLDERS)
        if path != "/" and not own and os.path.lexists(path):
            yield path


def _folder_of(path: str) -> str:
    return path if os.path.isdir(path) else posixpath.dirname(path)  # noqa: PTH112


def _fix(container: Container, missing: list[str], start: str | None) -> Pairs:
    """Return options that mount what is missing, and that start in the folder `start`."""
    needed = dict.fromkeys(missing)
    whole = [each for each in needed if not any(each.startswith(f"{other}/") for other in needed)]
    mounts = (("container-mounts", ",".join([*container.mounts, *whole])),) if whole else ()
    workdir = (("container-workdir", start),) if start and start != container.workdir else ()
    return (*mounts, *workdir)


def _joined_words(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))


def _is_or_are(words: Iterable[str]) -> str:
    return "is" if len(dict.fromkeys(words)) == 1 else "are"
