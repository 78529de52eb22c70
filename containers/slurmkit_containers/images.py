"""What is used for an image that is asked for: the catalogue, imported files, mirrors."""

from __future__ import annotations

import os
import pwd
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurmkit.container import Container
from slurmkit.errors import BadConfig, BadInput, ImageError
from slurmkit.findings import Finding
from slurmkit.image import Image
from slurmkit.runtimes import NOT_HERE, Settled, containers_section
from slurmkit.tres import size_in_bytes
from slurmkit_containers.cache import LOCAL, Cache, Cached
from slurmkit_containers.catalogue import CatalogueSection, catalogue, named
from slurmkit_containers.trust import check_folder

_CODE = "container-image"
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def canonical(image: Image) -> str:
    """One spelling for all references that mean the same image.

    >>> canonical(Image.parse("docker.io/library/ubuntu"))
    'docker.io#ubuntu:latest'
    """
    if image.kind != "registry":
        return str(image)
    if is_local(image):
        name = image.name if image.registry else image.name.removeprefix("local/")
        return f"{LOCAL}{name}{_last(image)}"
    name = image.name.removeprefix("library/") if image.registry is None else image.name
    return f"{image.registry or 'docker.io'}#{name}{_last(image)}"


def _last(image: Image) -> str:
    return f"@{image.digest}" if image.digest else f":{image.tag or 'latest'}"


def is_local(image: Image) -> bool:
    """Whether it has a name that somebody gave it here, `local/…`: no registry is asked for it."""
    known = "local" if image.registry is None and image.name.startswith("local/") else None
    return image.kind == "registry" and "local" in (image.registry, known)


def short(reference: str) -> str:
    """A canonical name as people write it."""
    return reference.removeprefix("docker.io#").replace("#", "/", 1)


def own_cache() -> Cache:
    """The folder that one's images are imported into.

    Raises:
        BadConfig: when it is no absolute path.
    """
    given = containers_section().cache
    if given is None:
        home = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
        return Cache(base / "slurmkit" / "images")
    return Cache(_folder("cache", given))


def caches() -> list[Cache]:
    """One's own folder, then the shared ones that can be trusted.

    Raises:
        BadConfig: as `own_cache`, and when there is no such account as `shared_owner`.
    """
    return [own_cache(), *(cache for cache, wrong in _shared() if wrong is None)]


def _shared() -> Iterator[tuple[Cache, str | None]]:
    """Every shared folder that is there, and why it is not used."""
    section = containers_section()
    for text in section.shared:
        cache = Cache(_folder("shared", text), {0, _owner(section.shared_owner)})
        try:
            check_folder(cache.folder, cache.owners)
        except FileNotFoundError:
            continue
        except ImageError as error:
            yield cache, str(error)
        else:
            yield cache, None


def _owner(name: str) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        words = f"[containers] shared_owner: there is no account {name!r} here"
        raise BadConfig(words) from error


def size_limit() -> float | None:
    """Bytes that one's folder may take; None where nobody set it.

    Raises:
        BadConfig: when it is no size.
    """
    given = containers_section().cache_size
    if given is None:
        return None
    try:
        return size(given)
    except BadInput as error:
        raise BadConfig(f"[containers] cache_size: {error}") from error


def size(text: str) -> float:
    """Read a size, `200G` or `1.5T`.

    Raises:
        BadInput: for anything else.
    """
    found = size_in_bytes(text)
    if found is None:
        raise BadInput(f"{text!r} is no size, e.g. 200G or 1.5T")
    return found


def look_up(reference: str) -> tuple[Cache, Cached] | None:
    """Find an imported image; not checked.

    Raises:
        ImageError: when others may write into the folder, or it is foreign.
    """
    for cache in caches():
        if found := cache.find(reference):
            return cache, found
    return None


def known_names() -> list[str]:
    """What an image can be called here: those imported, and the catalogue's.

    Raises:
        ImageError: as `look_up`.
        BadConfig: for a wrong file.
    """
    kept = (each.entry.references for cache in caches() for each in cache.entries())
    return list(dict.fromkeys([*(short(name) for names in kept for name in names), *catalogue()]))


def mirrored(image: Image) -> Image:
    """The image as `[containers.mirrors]` has it asked for; the same where that says nothing.

    Raises:
        BadConfig: when a mirror is no registry.
    """
    registry = image.registry or "docker.io"
    mirror = containers_section().mirrors.get(registry)
    if mirror is None or image.kind != "registry" or is_local(image):
        return image
    host, _, path = mirror.strip("/").partition("/")
    # Docker Hub alone lets `library/` be left out.
    official = "library/" if registry == "docker.io" and "/" not in image.name else ""
    text = f"{host}#{path}{'/' * bool(path)}{official}{image.name}"
    try:
        found = Image.parse(text)
    except BadInput as error:
        words = f"[containers.mirrors] {registry}: {mirror!r} is no registry, e.g. r.site:5000"
        raise BadConfig(words) from error
    return msgspec.structs.replace(found, tag=image.tag, digest=image.digest)


def meant(text: str) -> tuple[Image, CatalogueSection | None]:
    """The image that a reference or a name of the catalogue means.

    Raises:
        BadConfig: for an entry of the catalogue that is no image.
        BadInput: for what is neither.
    """
    entry = named(text)
    if entry is None:
        return Image.parse(text), None
    try:
        return Image.parse(entry.image), entry
    except BadInput as error:
        raise BadConfig(f"[containers.catalogue.{text}] image: {error}") from error


def settle(container: Container, nodes: int) -> Settled:
    """See `slurmkit.runtimes.settled`."""
    if container.image is None:
        return Settled(container)
    image, entry = meant(container.image)
    told = [] if entry is None else [_from_catalogue(container.image, entry)]
    architecture = ""
    if image.kind == "registry":
        image, more, architecture = _from_registry(image, nodes)
        told += [_finding("warning", f"not used: {wrong}") for _, wrong in _shared() if wrong]
        told += more
    return Settled(msgspec.structs.replace(container, image=str(image)), tuple(told), architecture)


def _from_registry(image: Image, nodes: int) -> tuple[Image, list[Finding], str]:
    """What is used, what is to be said of that, and its architecture where that is known."""
    name = short(canonical(image))
    try:
        found = look_up(canonical(image))
        if found is None:
            return mirrored(image), list(_not_kept(image, name, nodes)), ""
        cache, cached = found
        cache.check(cached)
        cache.used(cached)
    except ImageError as error:
        return image, [_finding("error", str(error))], ""
    file, said = Image.parse(str(cached.path)), _finding("note", _kept(name, cached))
    return file, [said], cached.entry.made.architecture or ""


def _kept(name: str, cached: Cached) -> str:
    entry = cached.entry
    return (
        f"image {name} is {cached.path}, imported {age(time.time() - entry.imported)} ago from"
        f" {entry.made.source}"
    )


def _not_kept(image: Image, name: str, nodes: int) -> Iterator[Finding]:
    if is_local(image):
        given = canonical(image).removeprefix(LOCAL)
        words = (
            f"image {name} is not imported, and no registry is asked for it; import it: slurmkit"
            f" image import PATH --as {given}"
        )
        yield _finding("error", words)
        return
    place = mirrored(image).registry or "Docker Hub"
    yield _finding("note", f"image {name} is not imported: the nodes fetch it from {place}")
    own = f"{LOCAL}{canonical(image).partition('#')[2]}"
    if image.registry is None and look_up(own) is not None:
        yield _finding("warning", f"image {name} is another than {short(own)}, which is imported")
    if nodes > 1:
        yield _each_by_itself(image, name, nodes)


def _each_by_itself(image: Image, name: str, nodes: int) -> Finding:
    if containers_section().import_first:
        words = (
            f"slurmkit submit imports image {name} first, on the machine where it runs, once for"
            f" all {nodes} nodes; --no-import leaves it to each of them"
        )
        return msgspec.structs.replace(_finding("note", words), code=NOT_HERE)
    text = name if image.user is None else shlex.quote(str(image))
    words = (
        f"each of {nodes} nodes would import image {name} by itself; import it once before:"
        f" slurmkit image import {text}"
    )
    return msgspec.structs.replace(_finding("warning", words), code=NOT_HERE)


def _from_catalogue(name: str, entry: CatalogueSection) -> Finding:
    driver = (
        f"; needs an NVIDIA driver {entry.driver} at the very least, not checked"
        if entry.driver
        else ""
    )
    launch = f"; --launch {entry.launch} suits it" if entry.launch else ""
    return _finding("note", f"image {name} of the catalogue is {entry.image}{driver}{launch}")


def _finding(severity: str, message: str) -> Finding:
    found = {"severity": severity, "code": _CODE, "message": message, "source": "images"}
    return msgspec.convert(found, Finding)


def age(seconds: float) -> str:
    """How long something is, in words: `3 days`."""
    for unit, word in _UNITS:
        count = int(seconds // unit)
        if count:
            return f"{count} {word}{'s' * (count > 1)}"
    return "less than a minute"


def _folder(key: str, text: str) -> Path:
    path = Path(os.path.expandvars(text)).expanduser()
    if "$" in str(path):
        raise BadConfig(f"[containers] {key}: a variable in {text!r} is not set here")
    if not path.is_absolute():
        raise BadConfig(f"[containers] {key}: {text!r} is no absolute path")
    return path
