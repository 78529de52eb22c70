"""The runtime pyxis: a Slurm plugin that adds container options to srun.

The syntax is that of pyxis's args.c (before 0.8: pyxis.c), checked at every tag from v0.1.0 to
v0.24.0; `_SINCE` says which release brought each option. srun's help does not show two features:
modes of a container name since 0.14 (before, the mode becomes part of the name), and images of a
Docker daemon since 0.15 (pyxis_slurmstepd.c). enroot supports unshare only after its v4.1.2.

Never give a value to an option without one: srun would take it for the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slurmkit.spec.containers import Container, ContainerLaunch, ContainerPaths
from slurmkit.spec.findings import Finding
from slurmkit.state.model import Capabilities
from slurmkit_containers.runtimes.common import (
    LOGIN_SHELL,
    check_credentials,
    enroot_view,
    error,
    missing_features,
    warning,
)

NAME = "pyxis"
_KINDS = ("registry", "daemon", "squashfs")
# For each field: the option that srun's help must show, and the release that brought it.
_SINCE = {
    "mounts": ("container-mounts", "0.1"),
    "workdir": ("container-workdir", "0.1"),
    "name": ("container-name", "0.1"),
    "save": ("container-save", "0.7"),
    "mount_home": ("container-mount-home", "0.3"),
    "remap_root": ("container-remap-root", "0.4"),
    "entrypoint": ("container-entrypoint", "0.8"),
    "writable": ("container-writable", "0.11"),
    "environment": ("container-env", "0.15"),
    "entrypoint_log": ("container-entrypoint-log", "0.20"),
    "unshare": ("container-unshare", "0.24"),
}


class Pyxis:
    """The container runtime pyxis: it needs only options of srun."""

    def runs(self, kind: str) -> bool:
        """Return True for images of a registry or Docker daemon, and for squashfs files."""
        return kind in _KINDS

    def available(self, capabilities: Capabilities) -> str | None:
        """Return why pyxis cannot be used: srun here does not know `--container-image`."""
        if not capabilities.container_options:  # Slurm has some of its own since 21.08
            return "the options of srun could not be read"
        if "container-image" not in capabilities.container_options:
            return "srun has no option --container-image, so pyxis is not installed"
        return None

    def needs(self, container: Container, capabilities: Capabilities) -> Iterable[Finding]:
        """Yield errors for options that this release lacks, and for images it cannot run."""
        known = capabilities.container_options
        yield from missing_features(NAME, container, _KINDS, _SINCE)
        yield from check_credentials(NAME, container)
        for field in container.asked:
            option, since = _SINCE[field]
            if option not in known:
                yield error(NAME, f"pyxis here has no --{option}; pyxis has it from {since} on")
        yield from _hidden(container, "container-env" in known)
        if container.unshare and "container-unshare" in known:
            yield warning(
                NAME,
                "if the nodes have enroot 4.1.2 or older, unshare is ignored without a message",
            )

    def view(self, container: Container, folder: str) -> ContainerPaths:
        """Return what the container sees of the node: the requested mounts."""
        del folder
        return enroot_view(container)

    def step(self, container: Container, *, gpus: bool) -> ContainerLaunch:
        """Return the step's srun options, one for each field."""
        del gpus  # enroot's hooks look at variables: planning.containers.gpu_variable_lines
        options = tuple(f"--{word}" for word in _options(container))
        return ContainerLaunch(srun_options=options, before=(LOGIN_SHELL,))


def _hidden(container: Container, is_0_15: bool) -> Iterator[Finding]:  # noqa: FBT001 - private
    """Yield errors for features that a release lacks although its options do not show it."""
    if is_0_15:
        return
    if container.source is not None and container.source.kind == "daemon":
        yield error(NAME, "pyxis here cannot import from a Docker daemon; pyxis can from 0.15 on")
    if ":" in (container.name or ""):
        yield error(
            NAME,
            "pyxis here is older than 0.15, and before 0.14 the mode would become part of the"
            f" container's name; write name {str(container.name).partition(':')[0]} alone",
        )


def _options(container: Container) -> Iterator[str]:
    if container.source is not None:
        yield f"container-image={container.source.pyxis}"
    if container.mounts:
        yield f"container-mounts={','.join(map(str, container.mounted))}"
    for option, value in (
        ("workdir", container.workdir),
        ("name", container.name),
        ("save", container.save),
        ("env", ",".join(container.environment) or None),
        ("unshare", ",".join(container.unshare) or None),
    ):
        if value is not None:
            yield f"container-{option}={value}"
    yield from _switches(container)


def _switches(container: Container) -> Iterator[str]:
    for option, value in (
        ("container-mount-home", container.mount_home),
        ("container-remap-root", container.remap_root),
        ("container-entrypoint", container.entrypoint),
    ):
        if value is not None:
            yield option if value else f"no-{option}"
    if container.entrypoint_log:
        yield "container-entrypoint-log"
    if container.writable is not None:
        yield "container-writable" if container.writable else "container-readonly"
