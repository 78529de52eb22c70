"""The runtime Apptainer: `srun … -- apptainer exec … IMAGE COMMAND`.

Options are those of apptainer's cmd/internal/cli/action_flags.go. Apptainer passes the job's
variables on by itself. The image's variables override them, except those set as APPTAINERENV_NAME.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmkit.spec.containers import Container, ContainerLaunch, ContainerPaths, Mount
from slurmkit.spec.findings import Finding
from slurmkit.state.model import Capabilities
from slurmkit_containers.runtimes.common import (
    apptainer_view,
    error,
    missing_features,
    note,
    warning,
    why_not_configured,
)

NAME = "apptainer"
_KINDS = ("registry", "daemon", "squashfs", "sif")
_FEATURES = "mounts workdir mount_home remap_root writable entrypoint environment unshare".split()
_FLAGS = frozenset(["ro", "rw"])
# Apptainer's --rocm or --nv; the vendor of the GPUs is known only on the node. Up to 1.2 Apptainer
# takes only --nv if both are set.
_GPUS = (
    "if [ -e /dev/kfd ] && [ ! -e /dev/nvidiactl ]; then"
    " export APPTAINER_NV=0 APPTAINER_ROCM=1; else export APPTAINER_NV=1 APPTAINER_ROCM=0; fi"
)
_UNSHARE = {"net": ("--net", "--network=none"), "ipc": ("--ipc",), "uts": ("--uts",)}


class Apptainer:
    """The container runtime Apptainer: a command prefix."""

    def runs(self, kind: str) -> bool:
        """Return True for every kind of image except OCI bundles."""
        return kind in _KINDS

    def available(self, capabilities: Capabilities) -> str | None:
        """Return why Apptainer cannot be used: the configuration does not name it."""
        del capabilities
        return why_not_configured(NAME)

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """Yield findings about features that Apptainer lacks, or does differently from pyxis."""
        del capabilities
        yield from missing_features(NAME, container, _KINDS, _FEATURES)
        for mount in container.mounted:
            yield from _mount_needs(mount)
        image = container.source
        if image is not None and image.user is not None:
            yield error(
                NAME,
                f"apptainer takes no user in a reference; write {str(image).partition('@')[2]},"
                " and log in with apptainer registry login",
            )
        if image is not None and image.kind == "registry":
            yield note(
                NAME,
                "each task converts the image by itself, unless Apptainer's cache has it; for"
                " several tasks, make a file first: apptainer pull FILE.sif",
            )
        if image is not None and image.kind == "squashfs":
            yield warning(
                NAME,
                f"apptainer does not set the variables of the image in {image.name}: they are in"
                " its /etc/environment, which only enroot reads; set the ones you need in the job",
            )
        if container.writable:
            yield note(
                NAME, "files written into the container are in memory only, and lost at its end"
            )

    def view(self, container: Container, folder: str) -> ContainerPaths:
        """Return what the container sees of the node: mounts, home and the job's directory."""
        return apptainer_view(container, folder)

    def step(self, container: Container, *, gpus: bool) -> ContainerLaunch:
        """Return the command prefix: `apptainer run` for the entry point, else `apptainer exec`."""
        image = "" if container.source is None else container.source.apptainer
        verb = "run" if container.entrypoint else "exec"
        variables = (
            f'[ -z "${{{name}+set}}" ] || export APPTAINERENV_{name}="${name}"'
            for name in container.environment
        )
        return ContainerLaunch(
            before=(*((_GPUS,) if gpus else ()), *variables),
            prefix=("apptainer", verb, *_options(container), image),
        )


def _mount_needs(mount: Mount) -> Iterator[Finding]:
    if not mount.is_bind:
        yield error(NAME, f"apptainer cannot mount {mount}; pyxis and enroot can")
    elif not mount.target.startswith("/"):
        yield error(NAME, f"mount {mount}: apptainer needs an absolute target; pyxis does not")
    if mount.is_bind and (others := sorted(set(mount.flags) - _FLAGS)):
        yield error(
            NAME,
            f"mount {mount}: apptainer knows only ro and rw, not {others[0]}; pyxis and enroot"
            " know it",
        )


def _options(container: Container) -> Iterator[str]:
    for mount in container.mounted:
        yield f"--bind={mount}"
    if container.workdir is not None:
        yield f"--pwd={container.workdir}"  # every release knows this name of the option
    if container.mount_home is False:
        yield "--no-home"
    if container.remap_root:
        yield "--fakeroot"
    if container.writable:
        yield "--writable-tmpfs"
    for name in container.unshare:
        yield from _UNSHARE[name]
