"""The sources of `slurmkit image import`: which importer to use, and under which name.

enroot imports images of registries and daemons. Without enroot, only an image of a registry that
needs no password can be imported.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from slurmkit.errors import BadInput, ImageError
from slurmkit.spec.images import Image
from slurmkit_containers.cache import LOCAL_PREFIX, CachedImage, ImageCache, ImageOrigin
from slurmkit_containers.images import (
    canonical,
    catalogue_entry,
    image_at_mirror,
    is_local,
    resolve_image_name,
    short_name,
)
from slurmkit_containers.importing.archives import import_path, local_architecture
from slurmkit_containers.importing.download import import_public_image
from slurmkit_containers.importing.importer import ReimportMode, check_room, import_once, run_child
from slurmkit_containers.importing.registry import ask_registry
from slurmkit_containers.trust import ReportProgress, unsafe_password

_ARCHIVE = re.compile(r"(.+?)\.(?:tar|tar\.gz|tgz|tar\.xz)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_OTHER = "architecture doesn't match"  # a warning of enroot's src/docker.sh
_PATIENCE = 60  # timeout in seconds of `enroot digest`


class ImportSource(msgspec.Struct, frozen=True):
    """An image to import, from a path or from a registry or Docker daemon.

    Attributes:
        reference: the name it will have, as `images.canonical` writes it.
        image: the image that the reference names.
        path: the archive or folder to import; None for a registry or daemon.
    """

    reference: str
    image: Image
    path: Path | None = None

    def import_into(
        self, cache: ImageCache, *, again: bool, report: ReportProgress
    ) -> tuple[CachedImage, bool]:
        """Import it into a cache; returns and raises as `import_once`.

        A path is imported every time, since its contents may have changed.
        """
        if self.path is not None:
            return import_once(cache, self.reference, self._make, again="always", report=report)
        how: ReimportMode = "anew" if again else "missing"
        return import_once(cache, self.reference, self._make, again=how, report=report)

    def _make(self, file: Path, report: ReportProgress) -> ImageOrigin:
        if self.path is not None:
            return import_path(self.path, file, report)
        return import_image(self.image, file, report)


def parse_import_source(what: str, name: str | None) -> ImportSource:
    """Parse the arguments of `slurmkit image import`.

    Args:
        what: a reference, a name of the catalogue, or a path.
        name: the image's name instead of its own.

    Raises:
        BadInput: when `what` is none of these, or a file that needs no import.
    """
    if not what.startswith(("/", ".")) and not _ARCHIVE.fullmatch(what):
        image, _ = resolve_image_name(what)
        if image.is_file:
            raise BadInput(
                f"{what} is the file {image.name}, which needs no import: write"
                f" --container-image {what}"
            )
        if is_local(image):
            own = canonical(image).removeprefix(LOCAL_PREFIX)
            raise BadInput(
                f"{what} is in no registry; import it from a path: slurmkit image import PATH"
                f" --as {own}"
            )
        return ImportSource(canonical(_parse_own_name(name) if name else image), image)
    path = Path(what)
    if not path.exists():
        raise BadInput(f"{what} does not exist")
    if path.suffix in (".sqsh", ".squashfs", ".sqfs", ".sif"):
        raise BadInput(f"{what} needs no import: write --container-image {path.resolve()}")
    archive = _ARCHIVE.fullmatch(path.name)
    own_name = (archive[1] if archive else path.resolve().name).lower()
    image = _parse_own_name(name or own_name)
    return ImportSource(canonical(image), image, path.resolve())


def _parse_own_name(name: str) -> Image:
    if catalogue_entry(name) is not None:
        raise BadInput(f"{name} is a name of the catalogue; choose another: --as mine:1")
    try:
        image = Image.parse(name)
    except BadInput as error:
        raise BadInput(
            f"{name!r} cannot be an image's name; choose another: --as mine:1"
        ) from error
    local = is_local(image)
    if image.kind != "registry" or image.digest or image.user or (image.registry and not local):
        raise BadInput(f"{name!r} cannot be an image's name; choose another: --as mine:1")
    return image if local else msgspec.structs.replace(image, registry="local")


def import_image(image: Image, file: Path, report: ReportProgress) -> ImageOrigin:
    """Write the squashfs file of an image. enroot reads credentials from its own file.

    Without enroot, only an image of a registry that needs no password can be imported.

    Args:
        image: an image of a registry, fetched from its mirror if it has one, or of a daemon.
        file: the file to write.
        report: called with the progress.

    Raises:
        ImageError: when it fails, needs enroot, or has a password that would be run as code.
        BadConfig: when a mirror is not a registry.
    """
    asked = image_at_mirror(image)
    source = short_name(canonical(asked)) if asked.kind == "registry" else asked.enroot
    if shutil.which("enroot") is None:
        made = _without_enroot(asked, file, report)
        return msgspec.structs.replace(made, source=source)
    if asked.kind == "registry" and (wrong := unsafe_password()) is not None:
        raise ImageError(wrong)
    digest = _digest(asked, file.parent, report)
    if digest is not None:  # fetch exactly the image whose digest is recorded
        asked = msgspec.structs.replace(asked, digest=digest)
    # Without --arch, enroot takes any architecture and does not compare it with the machine's.
    arch = ["--arch", platform.machine()] if asked.kind == "registry" else []
    argv = ["enroot", "import", *arch, "--output", str(file), asked.enroot]
    if _OTHER in run_child(argv, file, report):
        raise ImageError(
            f"image {asked} is for another architecture than this machine, {local_architecture()}"
        )
    return ImageOrigin(source=source, digest=digest, architecture=local_architecture())


def _without_enroot(image: Image, file: Path, report: ReportProgress) -> ImageOrigin:
    if image.kind == "registry" and image.user is None:
        return import_public_image(image, file, report)
    raise ImageError(
        f"image {image} needs enroot, which is not on the PATH here: import it on a machine that"
        " has enroot, or from a file of docker save: slurmkit image import ./FILE.tar"
    )


def _digest(image: Image, folder: Path, report: ReportProgress) -> str | None:
    """Return the image's digest, from the registry or else from `enroot digest`.

    The registry also says the size, so an image that cannot fit is refused now. None if the
    registry does not answer, or if enroot is older than release 4, which has no such command.
    """
    if image.kind != "registry":
        return None
    report("asking the registry", 0, None)
    if (found := ask_registry(image, local_architecture())) is not None:
        check_room(folder, found.size)
        return found.digest
    if image.digest is not None:
        return image.digest
    argv = ["enroot", "digest", image.enroot]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    digest = done.stdout.decode("ascii", "replace").strip()
    return digest if done.returncode == 0 and _DIGEST.fullmatch(digest) else None
