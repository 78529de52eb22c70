"""The container step of a job: its image, its runtime, and what the job should know of both.

The runtime is the one named, or one that suits the image and the cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from slurmkit.config.files import did_you_mean, load_section
from slurmkit.config.paths import state_folder
from slurmkit.config.plugins import load_plugin, plugins
from slurmkit.errors import BadInput, BrokenPlugin
from slurmkit.planning.arrays import array_throttle
from slurmkit.planning.container_paths import (
    check_hidden_paths,
    check_missing_sources,
    joined_words,
)
from slurmkit.planning.layout import nodes_by_name
from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.spec.containers import UNSET_PYXIS, Container, ContainerLaunch, ContainerPaths
from slurmkit.spec.findings import Finding, error, note, warning
from slurmkit.spec.images import IMAGE_KIND_NAMES, KERNEL_ARCHITECTURES
from slurmkit.spec.jobspec import JobSpec
from slurmkit.state.container_site import read_pyxis_settings
from slurmkit.state.model import Capabilities, Node

_IMAGES = "slurmkit_containers"
"""The package that handles images; a string, so that slurmkit works without it."""
IMAGE_NOT_IMPORTED = "container-image-import"
"""Code of the finding that each of several nodes would fetch the image itself."""
ENROOT_RUNTIMES = ("pyxis", "enroot")
"""Runtimes that start enroot; importing an image loses nothing of it for these."""
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
_SAVED_BY_EACH = "{} would save its container to {}, and the last one overwrites the others; {}"
_NAME_SHARED = (
    "tasks of the array that run on one node at the same time would share the container {!r}, and"
    " most of them fail; leave --container-name out, or let one task run after the other:"
    " --array={}%1"
)
_NAME_REUSED = (
    "each node keeps its own container {!r}; where one of that name exists, it is used as it is,"
    " whatever image it was made of; remove it on the node: enroot remove {}"
)
# enroot replaces the file only after a complete export (`enroot export --force`). After a failed
# one, pyxis lets the step end with 0.
_SAVE_BEFORE = "slurmkit_saved=$(stat -c '%i %s %y %z' -- {file} 2>/dev/null)"
_SAVE_AFTER = """
slurmkit_code=$?
if [ "$slurmkit_code" = 0 ] && {{ [ ! -s {file} ] ||
  [ "$(stat -c '%i %s %y %z' -- {file})" = "$slurmkit_saved" ]; }}; then
  echo "slurmkit: the container was not saved to" {file} >&2
  slurmkit_code=1
fi
(exit "$slurmkit_code")
""".strip()
GPU_VARIABLES = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
}
"""Variables with which enroot mounts the GPUs' driver; images built for GPUs set them themselves.

Source: enroot's conf/hooks/98-nvidia.sh. The GPUs that a job may use are still Slurm's to decide.
"""
_EXPORTS = " ".join(f'{name}="${{{name}:-{value}}}"' for name, value in GPU_VARIABLES.items())
EXPORT_GPU_VARIABLES = f"if command -v nvidia-container-cli >/dev/null; then export {_EXPORTS}; fi"
"""Line of a shell on a node: exports those variables, if the node has NVIDIA's program for them."""
_GPUS_GIVEN = (
    "the image does not ask for GPUs (it sets no NVIDIA_VISIBLE_DEVICES), so the job sets"
    " NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)
_GPUS_PERHAPS = (
    "if the image does not set NVIDIA_VISIBLE_DEVICES, no NVIDIA GPU is seen in it; then import"
    " it first (slurmkit image import), or add --env NVIDIA_VISIBLE_DEVICES=all"
    " --env NVIDIA_DRIVER_CAPABILITIES=compute,utility"
)
_GPU_REGISTRIES = ("nvcr.io",)  # whose images ask for GPUs
# pyxis does not pass these on to enroot (enroot_deny_env in its pyxis_slurmstepd.c).
_NOT_OF_A_JOB = frozenset(
    (
        "ENROOT_LIBRARY_PATH ENROOT_SYSCONF_PATH ENROOT_RUNTIME_PATH ENROOT_CACHE_PATH"
        " ENROOT_DATA_PATH ENROOT_TEMP_PATH ENROOT_ZSTD_OPTIONS ENROOT_TRANSFER_RETRIES"
        " ENROOT_CONNECT_TIMEOUT ENROOT_MAX_CONNECTIONS ENROOT_ALLOW_HTTP"
    ).split()
)
_LAUNCHER_VARIABLES = {"srun": ("MASTER_ADDR", "MASTER_PORT")}
"""Variables of the batch shell that the tasks of a launcher read themselves, by launcher.

enroot's hook 50-slurm-pytorch.sh would give the container others.
"""
_VARIABLES_LOST = "if the image sets {} itself, the job gets the image's value: {}"


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
        save: file to which the container is saved at the end of the step, absolute.
    """

    wrapped: ContainerLaunch = ContainerLaunch()
    named: str = ""
    findings: tuple[Finding, ...] = ()
    architecture: str = ""
    view: ContainerPaths | None = None
    save: str | None = None

    def around(self, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return the lines that start the step, with the runtime's lines around them."""
        if not self.named:
            return lines
        if self.save is not None:
            file = shlex.quote(self.save)
            check = _SAVE_AFTER.format(file=file).split("\n")
            lines = (_SAVE_BEFORE.format(file=file), *lines, *check)
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
    findings = (
        *_image_findings(image, name, capabilities),
        *chosen.needs(image.container, capabilities),
        *check_shared_containers(spec, image.container, name),
    )
    if any(finding.severity == "error" for finding in findings):
        return ContainerStep(named=name, findings=findings)
    in_runtime = note("container-runtime", f"its steps run in {name}", name)
    container, doubts = _pass_job_variables(
        spec, image.container, runtime=chosen, runtime_name=name, capabilities=capabilities
    )
    view = chosen.view(container, spec.chdir or LOCAL_MACHINE.folder)
    doubts = (
        *doubts,
        *(check_enroot_variables(spec) if name == "pyxis" else ()),
        *check_missing_sources(container),
        *(check_hidden_paths(spec, container, view) if view else ()),
    )
    if spec.survive:
        container, no_checkpoint = _mount_checkpoint_folder(container, view)
        view = chosen.view(container, spec.chdir or LOCAL_MACHINE.folder)
        doubts = (*doubts, *no_checkpoint)
    wrapped = chosen.step(container, gpus=spec.gpus is not None)
    for_gpus, on_gpus = gpu_variable_lines(spec, container, name)
    return ContainerStep(
        wrapped=msgspec.structs.replace(wrapped, before=(*for_gpus, *wrapped.before)),
        named=name,
        findings=(in_runtime, *findings, *on_gpus, *doubts),
        architecture=image.architecture,
        view=view,
        save=container.save,
    )


def _image_findings(
    image: ResolvedContainer, runtime_name: str, capabilities: Capabilities
) -> Iterator[Finding]:
    """Yield the findings about an image, without an import for which this runtime has no use."""
    pyxis = read_pyxis_settings(capabilities.config) if runtime_name == "pyxis" else None
    importer = pyxis.importer if pyxis else ""
    for each in image.findings:
        if each.code != IMAGE_NOT_IMPORTED or (runtime_name in ENROOT_RUNTIMES and not importer):
            yield each
        elif importer:
            message = f"pyxis here fetches images of registries by the site's importer {importer}"
            yield note("container-importer", message, "plugstack.conf")


def check_enroot_variables(spec: JobSpec) -> Iterator[Finding]:
    """Warn of settings of enroot that a job cannot change with pyxis."""
    if lost := sorted(_NOT_OF_A_JOB & set(spec.environment)):
        message = (
            f"pyxis does not pass {joined_words(lost)} of a job on to enroot; the site sets it in"
            " enroot.conf of the nodes"
        )
        yield warning("container-variables", message, "pyxis")


def check_shared_containers(
    spec: JobSpec, container: Container, runtime_name: str
) -> Iterator[Finding]:
    """Report a container name or a saved file that several nodes or tasks of an array would share.

    pyxis does not replace Slurm's patterns (`%a`) in either. Tasks on one node that create a
    container of one name do not wait for each other; slurmkit's own lines for enroot do.
    """
    array, one_by_one = spec.array or "", array_throttle(spec.array or "") == 1
    if array and not one_by_one and container.name and runtime_name == "pyxis":
        message = _NAME_SHARED.format(container.name, array.partition("%")[0])
        yield error("container-name", message, "--container-name")
    elif container.name and container.source is not None and ":" not in container.name:
        on_disk = f"{'pyxis_' * (runtime_name == 'pyxis')}{container.name}"
        message = _NAME_REUSED.format(container.name, on_disk)
        yield note("container-name", message, "--container-name")
    if container.save is None:
        return
    several = max(spec.most_nodes or 1, nodes_by_name(spec)) > 1
    several = several or (spec.nodes is None and (spec.ntasks or 1) > 1)
    if several:
        message = _SAVED_BY_EACH.format("each node", container.save, "give --nodes 1")
        yield error("container-save", message, "--container-save")
    elif array:
        how = "submit one job that saves it"
        message = _SAVED_BY_EACH.format("each task of the array", container.save, how)
        yield error("container-save", message, "--container-save")


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
    if runtime_name in ENROOT_RUNTIMES:
        ours = _LAUNCHER_VARIABLES.get(spec.launch.launcher or "", ())
        container = _with_environment(container, ours, runtime, capabilities)
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


def _with_environment(
    container: Container, names: Iterable[str], runtime: Runtime, capabilities: Capabilities
) -> Container:
    """Return the container with variables that keep the job's value; unchanged if it cannot."""
    environment = tuple(dict.fromkeys((*container.environment, *names)))
    full = msgspec.structs.replace(container, environment=environment)
    lacks = any(f.severity == "error" for f in runtime.needs(full, capabilities))
    return container if lacks else full


def gpu_variable_lines(
    spec: JobSpec, container: Container, runtime_name: str
) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Return lines that let an image see GPUs for which it does not ask, and findings on that.

    An image that sets these variables itself must keep its own values, for example `video`. Only
    files can be read here; slurmkit's own lines for enroot look into the container on the node.
    """
    given = any(name in spec.environment for name in GPU_VARIABLES)
    image = container.source
    if spec.gpus is None or given or image is None or runtime_name != "pyxis":
        return (), ()
    known: frozenset[str] | None = _images_function("images", "image_variables")(image)
    if known is None:
        is_here = image.kind != "squashfs" or Path(image.name).is_file()
        perhaps = is_here and image.registry not in _GPU_REGISTRIES
        doubt = note("container-gpus", _GPUS_PERHAPS, "NVIDIA_VISIBLE_DEVICES")
        return (), ((doubt,) if perhaps else ())
    if "NVIDIA_VISIBLE_DEVICES" in known:
        return (), ()
    return (EXPORT_GPU_VARIABLES,), (note("container-gpus", _GPUS_GIVEN, "the image's variables"),)


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
