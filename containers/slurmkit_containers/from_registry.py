"""Import an image of a registry or Docker daemon: with enroot, or openly without."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from slurmkit.errors import ImageError
from slurmkit.image import Image
from slurmkit_containers.archives import here
from slurmkit_containers.cache import Made
from slurmkit_containers.credentials import wrong_password
from slurmkit_containers.download import import_openly
from slurmkit_containers.images import canonical, mirrored, short
from slurmkit_containers.importing import need_room, run_child
from slurmkit_containers.registry import ask
from slurmkit_containers.trust import Report

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_OTHER = "architecture doesn't match"  # a warning of enroot's src/docker.sh
_PATIENCE = 60  # seconds for a registry to say a digest


def import_image(image: Image, file: Path, report: Report) -> Made:
    """Write the squashfs file of an image; enroot reads credentials from its own file.

    Args:
        image: of a registry, asked for at its mirror where it has one, or of a Docker daemon.
        file: what to write.
        report: told how far it is.

    Raises:
        ImageError: without enroot, when it fails, or for credentials that would be run as code.
        BadConfig: when a mirror is no registry.
    """
    asked = mirrored(image)
    source = short(canonical(asked)) if asked.kind == "registry" else asked.enroot
    if shutil.which("enroot") is None:
        made = _without_enroot(asked, file, report)
        return msgspec.structs.replace(made, source=source)
    if asked.kind == "registry" and (wrong := wrong_password()) is not None:
        raise ImageError(wrong)
    digest = _digest(asked, file.parent, report)
    if digest is not None:  # so that what is recorded is what is fetched
        asked = msgspec.structs.replace(asked, digest=digest)
    said = run_child(_argv(asked, file), file, report)
    if _OTHER in said:
        raise ImageError(f"image {asked} is for another architecture than {here()}, this machine's")
    return Made(source=source, digest=digest, architecture=here())


def _without_enroot(image: Image, file: Path, report: Report) -> Made:
    if image.kind == "registry" and image.user is None:
        return import_openly(image, file, report)
    raise ImageError(
        f"image {image} needs enroot, which is not on the PATH here: import it where it is, or from"
        " a file of docker save: slurmkit image import ./FILE.tar"
    )


def _argv(image: Image, file: Path) -> list[str]:
    # Without --arch, enroot takes what there is and compares nothing.
    arch = ["--arch", platform.machine()] if image.kind == "registry" else []
    return ["enroot", "import", *arch, "--output", str(file), image.enroot]


def _digest(image: Image, folder: Path, report: Report) -> str | None:
    """Ask the registry ourselves, which also tells what can never fit; else by enroot.

    None where this enroot cannot (it can from release 4 on), or nobody answers.
    """
    if image.kind != "registry":
        return None
    report("asking the registry", 0, None)
    if (found := ask(image, here())) is not None:
        need_room(folder, found.size)
        return found.digest
    if image.digest is not None:
        return image.digest
    argv = ["enroot", "digest", image.enroot]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    said = done.stdout.decode("ascii", "replace").strip()
    return said if done.returncode == 0 and _DIGEST.fullmatch(said) else None
