"""What a runtime lacks, said the same way by all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slurmkit.container import Container
from slurmkit.findings import Finding, Severity
from slurmkit.image import WORDS
from slurmkit.runtimes import containers_section
from slurmkit_containers.credentials import wrong_password

# Of what not every runtime has: which have it.
_HAVE = {
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
_CAN = {
    "registry": "pyxis, enroot and Apptainer can",
    "daemon": "pyxis from 0.15 on, enroot and Apptainer can",
    "squashfs": "pyxis, enroot and Apptainer can",
    "sif": "Apptainer can",
    "bundle": "Slurm itself can, as the runtime oci",
}


def error(runtime: str, message: str) -> Finding:
    """A feature that is not there, which keeps a job from being sent."""
    return _finding("error", runtime, message)


def warning(runtime: str, message: str) -> Finding:
    """A feature that may not be there, which cannot be seen from here."""
    return _finding("warning", runtime, message)


def note(runtime: str, message: str) -> Finding:
    """Something to know about how a runtime works."""
    return _finding("note", runtime, message)


def _finding(severity: Severity, runtime: str, message: str) -> Finding:
    code = "container-runtime" if severity == "note" else "container-feature"
    source = f"container runtime {runtime}"
    return Finding(severity=severity, code=code, message=message, source=source)


def unnamed(runtime: str) -> str | None:
    """Why one that cannot be seen from here cannot be used: nobody says that it is there."""
    if runtime in containers_section().runtimes:
        return None
    return f"[containers] runtimes in the configuration does not name {runtime}"


def lacking(
    runtime: str, container: Container, kinds: Collection[str], features: Collection[str]
) -> Iterator[Finding]:
    """Errors for an image of another kind, and for every field that the runtime has not.

    Args:
        runtime: its name.
        container: what is asked for.
        kinds: of images that it runs.
        features: fields of `Container` that it has.
    """
    image = container.source
    if image is not None and image.kind not in kinds:
        words = f"{runtime} cannot run {WORDS[image.kind]} ({image}); {_CAN[image.kind]}"
        yield error(runtime, words)
    for field in container.asked:
        if field not in features:
            option = field.replace("_", "-")
            yield error(runtime, f"{runtime} has no {option} for a container; {_HAVE[field]}")


def credentials(runtime: str, container: Container) -> Iterator[Finding]:
    """An error where enroot, which this runtime starts, would run a password as shell code."""
    image = container.source
    if image is not None and image.kind == "registry" and (wrong := wrong_password()):
        yield error(runtime, wrong)
