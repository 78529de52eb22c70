"""What `slurmkit image import` is asked for: which importer, and under which name."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from slurmkit.errors import BadInput
from slurmkit.image import Image
from slurmkit_containers.archives import import_path
from slurmkit_containers.cache import LOCAL, Cache, Cached, Made
from slurmkit_containers.catalogue import named
from slurmkit_containers.from_registry import import_image
from slurmkit_containers.images import canonical, is_local, meant
from slurmkit_containers.importing import Again, import_once
from slurmkit_containers.trust import Report

_ARCHIVE = re.compile(r"(.+?)\.(?:tar|tar\.gz|tgz|tar\.xz)")


class Wanted(msgspec.Struct, frozen=True):
    """An image to import, from a path or else from where its reference says.

    Attributes:
        reference: what it will be called, as `images.canonical` writes it.
    """

    reference: str
    image: Image
    path: Path | None = None

    def have(self, cache: Cache, *, again: bool, report: Report) -> tuple[Cached, bool]:
        """Have it in a cache; returns and raises as `importing.import_once`.

        A path is read anew each time: what is in it may have changed, or it is another.
        """
        if self.path is not None:
            return import_once(cache, self.reference, self._make, again="always", report=report)
        how: Again = "anew" if again else "missing"
        return import_once(cache, self.reference, self._make, again=how, report=report)

    def _make(self, file: Path, report: Report) -> Made:
        if self.path is not None:
            return import_path(self.path, file, report)
        return import_image(self.image, file, report)


def wanted(what: str, name: str | None) -> Wanted:
    """Read what is to be imported.

    Args:
        what: a reference, a name of the catalogue, or a path.
        name: what to call it instead.

    Raises:
        BadInput: for none of these, and for a file that is none of ours to import.
    """
    if not what.startswith(("/", ".")) and not _ARCHIVE.fullmatch(what):
        image, _ = meant(what)
        if image.is_file:
            raise BadInput(f"{what} is {image.name}: a file, which jobs use as it is")
        if is_local(image):
            given = canonical(image).removeprefix(LOCAL)
            raise BadInput(f"{what} is in no registry; slurmkit image import PATH --as {given}")
        return Wanted(canonical(_called(name) if name else image), image)
    path = Path(what)
    if not path.exists():
        raise BadInput(f"{what} does not exist")
    if path.suffix in (".sqsh", ".squashfs", ".sqfs", ".sif"):
        raise BadInput(f"{what} needs no import: write --container-image {path.resolve()}")
    image = _called(name or _name_of(path))
    return Wanted(canonical(image), image, path.resolve())


def _name_of(path: Path) -> str:
    found = _ARCHIVE.fullmatch(path.name)
    return (found[1] if found else path.resolve().name).lower()


def _called(name: str) -> Image:
    if named(name) is not None:
        raise BadInput(f"{name} is a name of the catalogue; give another one: --as mine:1")
    try:
        image = Image.parse(name)
    except BadInput as error:
        raise BadInput(f"{name!r} cannot be an image's name; give one: --as mine:1") from error
    local = is_local(image)
    if image.kind != "registry" or image.digest or image.user or (image.registry and not local):
        raise BadInput(f"{name!r} cannot be an image's name; give one: --as mine:1")
    return image if local else msgspec.structs.replace(image, registry="local")
