"""What all runtimes share: findings about missing features, and what a container sees."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from slurmkit.planning.containers import containers_section
from slurmkit.spec.containers import Container, ContainerPaths, Mount
from slurmkit.spec.findings import Finding, Severity
from slurmkit.spec.images import IMAGE_KIND_NAMES
from slurmkit_containers.trust import find_password_command, unsafe_credentials

# For each feature that not every runtime has: the runtimes that have it.
_RUNTIMES_WITH_FEATURE = {
    "mounts": "pyxis, enroot and Apptainer have them",
    "workdir": "pyxis, enroot and Apptainer have it",
    "mount_home": "pyxis, enroot and Apptainer have it",
    "remap_root": "pyxis, enroot and Apptainer have it",
    "writable": "pyxis, enroot and Apptainer have it",
    "entrypoint": "pyxis, enroot and Apptainer have it",
    "entrypoint_log": "pyxis from 0.20 on has it",
    "environment": "pyxis from 0.15 on and all others have it",
    "name": "pyxis and enroot have it",
    "save": "pyxis has it",
    "unshare": "pyxis from 0.24 on and Apptainer have it",
}
_RUNTIMES_FOR_IMAGE = {
    "registry": "pyxis, enroot and Apptainer can",
    "daemon": "pyxis from 0.15 on, enroot and Apptainer can",
    "squashfs": "pyxis, enroot and Apptainer can",
    "sif": "Apptainer can",
    "bundle": "Slurm itself can, as the runtime oci",
}
LOGIN_SHELL = 'export ENROOT_LOGIN_SHELL="${ENROOT_LOGIN_SHELL:-n}"'
"""Line of a batch script that keeps the image's PATH.

By default enroot starts a login shell in the container. /etc/profile of Debian sets PATH there, so
the programs of images such as golang and rust would not be found (enroot's src/runtime.sh).
"""
_TMP = "/tmp"  # noqa: S108 - the node's, which is shown


def error(runtime: str, message: str) -> Finding:
    """Return an error about a missing feature; the job is not submitted."""
    return _finding("error", runtime, message)


def warning(runtime: str, message: str) -> Finding:
    """Return a warning about a feature that may be missing; this machine cannot tell."""
    return _finding("warning", runtime, message)


def note(runtime: str, message: str) -> Finding:
    """Return a note about how a runtime works."""
    return _finding("note", runtime, message)


def _finding(severity: Severity, runtime: str, message: str) -> Finding:
    code = "container-runtime" if severity == "note" else "container-feature"
    source = f"container runtime {runtime}"
    return Finding(severity=severity, code=code, message=message, source=source)


def why_not_configured(runtime: str) -> str | None:
    """Return why a runtime on the nodes cannot be used: the configuration does not name it."""
    if runtime in containers_section().runtimes:
        return None
    return f"[containers] runtimes in the configuration does not name {runtime}"


def missing_features(
    runtime: str, container: Container, kinds: Collection[str], features: Collection[str]
) -> Iterator[Finding]:
    """Yield errors for an image that the runtime cannot run, and for fields that it lacks.

    Args:
        runtime: name of the runtime.
        container: the requested container.
        kinds: kinds of images that the runtime runs.
        features: fields of `Container` that the runtime supports.
    """
    image = container.source
    if image is not None and image.kind not in kinds:
        words = (
            f"{runtime} cannot run {IMAGE_KIND_NAMES[image.kind]} ({image});"
            f" {_RUNTIMES_FOR_IMAGE[image.kind]}"
        )
        yield error(runtime, words)
    for field in container.asked:
        if field not in features:
            option = field.replace("_", "-")
            yield error(
                runtime,
                f"{runtime} has no {option} for a container; {_RUNTIMES_WITH_FEATURE[field]}",
            )


def check_credentials(runtime: str, container: Container) -> Iterator[Finding]:
    """Check the file of passwords that enroot reads, which this runtime starts.

    Yields an error if others may write it and enroot would run a password of it as shell code, and
    a note if it runs a command for the image's registry.
    """
    image = container.source
    if image is None or image.kind != "registry":
        return
    if wrong := unsafe_credentials():
        yield error(runtime, wrong)
    elif where := find_password_command(image.registry or "registry-1.docker.io"):
        yield note(
            runtime,
            f"the password is a command ({where}); each node that fetches the image runs it, so its"
            " program must be on the nodes",
        )


def bind_mounts(container: Container) -> tuple[Mount, ...]:
    """Return the bind mounts with an absolute target, which does not depend on the image."""
    return tuple(m for m in container.mounted if m.is_bind and m.target.startswith("/"))


def enroot_view(container: Container) -> ContainerPaths:
    """Return what an enroot or pyxis container sees: mounts, and home if requested.

    For a user remapped to root, home is /root (enroot's conf/hooks/10-home.sh).
    """
    home = str(Path.home())
    where = "/root" if container.remap_root else home
    homes = (Mount(home, where),) if container.mount_home else ()
    return ContainerPaths((*bind_mounts(container), *homes), container.workdir)


def apptainer_view(container: Container, folder: str) -> ContainerPaths:
    """Return what an Apptainer container sees: mounts, home, /tmp and the job's directory.

    Source: "Bind Paths" in Apptainer's user guide.
    """
    own = [folder, _TMP]
    own += [] if container.mount_home is False else [str(Path.home())]
    mounts = (*bind_mounts(container), *(Mount(path, path) for path in own))
    return ContainerPaths(mounts, container.workdir or folder)
