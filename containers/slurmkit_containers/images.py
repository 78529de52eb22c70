"""Resolve an image: names of the catalogue, imported files, and registry mirrors."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

import msgspec

from slurmkit.config.files import load_tables
from slurmkit.config.paths import cache_folder
from slurmkit.errors import BadConfig, BadInput, ImageError
from slurmkit.formats.memory import parse_bytes
from slurmkit.planning.containers import IMAGE_NOT_IMPORTED, ResolvedContainer, containers_section
from slurmkit.spec.containers import Container
from slurmkit.spec.findings import Finding
from slurmkit.spec.images import Image
from slurmkit_containers.cache import LOCAL_PREFIX, CachedImage, ImageCache
from slurmkit_containers.trust import check_folder

_CODE = "container-image"
_PATIENCE = 20  # timeout of unsquashfs in seconds
_NO_SUCH_MEMBER = 2  # exit code of unsquashfs -cat
_UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"))


def canonical(image: Image) -> str:
    """Return one spelling for all references that mean the same image.

    >>> canonical(Image.parse("docker.io/library/ubuntu"))
    'docker.io#ubuntu:latest'
    """
    if image.kind != "registry":
        return str(image)
    if is_local(image):
        name = image.name if image.registry else image.name.removeprefix("local/")
        return f"{LOCAL_PREFIX}{name}{_last(image)}"
    name = image.name.removeprefix("library/") if image.registry is None else image.name
    return f"{image.registry or 'docker.io'}#{name}{_last(image)}"


def _last(image: Image) -> str:
    return f"@{image.digest}" if image.digest else f":{image.tag or 'latest'}"


def is_local(image: Image) -> bool:
    """Return whether an image has a user's own name, `local/…`: no registry is asked for it."""
    known = "local" if image.registry is None and image.name.startswith("local/") else None
    return image.kind == "registry" and "local" in (image.registry, known)


def short_name(reference: str) -> str:
    """Return a canonical name as users write it."""
    return reference.removeprefix("docker.io#").replace("#", "/", 1)


def own_cache() -> ImageCache:
    """Return the cache that the user's images are imported into.

    Raises:
        BadConfig: when its path is not absolute.
    """
    configured = containers_section().cache
    if configured is None:
        folder = cache_folder("images")
        if not folder.is_absolute():
            raise BadConfig("you have no home directory for images; set [containers] cache")
        return ImageCache(folder)
    return ImageCache(_folder("cache", configured))


def caches() -> list[ImageCache]:
    """Return the user's own cache, then the shared caches that can be trusted.

    Raises:
        BadConfig: as `own_cache`, and when the account `shared_owner` does not exist.
    """
    return [own_cache(), *(cache for cache, wrong in _shared() if wrong is None)]


def _shared() -> Iterator[tuple[ImageCache, str | None]]:
    """Yield each existing shared cache, and why it is not used (None if it is)."""
    section = containers_section()
    for text in section.shared:
        cache = ImageCache(_folder("shared", text), {0, _owner(section.shared_owner)})
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
    """Return how many bytes the user's cache may take; None for no limit.

    Raises:
        BadConfig: when `cache_size` is not a size.
    """
    configured = containers_section().cache_size
    if configured is None:
        return None
    try:
        return parse_size(configured)
    except BadInput as error:
        raise BadConfig(f"[containers] cache_size: {error}") from error


def parse_size(text: str) -> float:
    """Parse a size such as `200G` or `1.5T`; return bytes.

    Raises:
        BadInput: for anything else.
    """
    bytes_ = parse_bytes(text)
    if bytes_ is None:
        raise BadInput(f"{text!r} is not a size; write for example 200G or 1.5T")
    return bytes_


def image_variables(image: Image) -> frozenset[str] | None:
    """Return the names of the variables that an image sets; None if that is not known here.

    Only a squashfs file that is on this machine can be read.
    """
    program = shutil.which("unsquashfs")
    if image.kind != "squashfs" or program is None:
        return None
    try:
        made = Path(image.name).stat()
    except OSError:
        return None
    return _read_variables(program, image.name, (made.st_ino, made.st_size, made.st_mtime_ns))


@lru_cache(maxsize=16)
def _read_variables(program: str, name: str, version: tuple[int, ...]) -> frozenset[str] | None:
    """Read the variables of a squashfs file once for each version of it: a plan asks often."""
    del version
    argv = [program, "-cat", name, "etc/environment"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode not in (0, _NO_SUCH_MEMBER):
        return None
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return frozenset(line.partition("=")[0] for line in lines)


def find_imported(reference: str) -> tuple[ImageCache, CachedImage] | None:
    """Find an imported image in all caches, unchecked; None if there is none.

    Raises:
        ImageError: when others may write into the folder, or it has another owner.
    """
    for each in caches():
        if found := each.find(reference):
            return each, found
    return None


def known_names() -> list[str]:
    """Return all image names known here: of imported images and of the catalogue.

    Raises:
        ImageError: as `find_imported`.
        BadConfig: when the configuration is wrong.
    """
    imported = (each.entry.references for cache in caches() for each in cache.entries())
    names = (short_name(name) for references in imported for name in references)
    return list(dict.fromkeys([*names, *load_catalogue()]))


def image_at_mirror(image: Image) -> Image:
    """Return the image at its mirror in `[containers.mirrors]`; unchanged if it has none.

    Raises:
        BadConfig: when a mirror is not a registry.
    """
    registry = image.registry or "docker.io"
    mirror = containers_section().mirrors.get(registry)
    if mirror is None or image.kind != "registry" or is_local(image):
        return image
    host, _, path = mirror.strip("/").partition("/")
    # Only Docker Hub adds a missing `library/` itself.
    official = "library/" if registry == "docker.io" and "/" not in image.name else ""
    text = f"{host}#{path}{'/' * bool(path)}{official}{image.name}"
    try:
        found = Image.parse(text)
    except BadInput as error:
        words = (
            f"[containers.mirrors] {registry}: {mirror!r} is not a registry; write for example"
            " r.site:5000"
        )
        raise BadConfig(words) from error
    return msgspec.structs.replace(found, tag=image.tag, digest=image.digest)


def resolve_image_name(text: str) -> tuple[Image, CatalogueSection | None]:
    """Return the image that a reference or catalogue name means, and its catalogue entry.

    Raises:
        BadConfig: when the image of the catalogue entry is invalid.
        BadInput: when the text is neither.
    """
    entry = catalogue_entry(text)
    if entry is None:
        return Image.parse(text), None
    try:
        return Image.parse(entry.image), entry
    except BadInput as error:
        raise BadConfig(f"[containers.catalogue.{text}] image: {error}") from error


def settle(container: Container, nodes: int) -> ResolvedContainer:
    """Replace the container's image by what is really used: an imported file, or a mirror.

    Args:
        container: its image is a reference, a catalogue name or a path.
        nodes: number of nodes of the job.
    """
    if container.image is None:
        return ResolvedContainer(container)
    image, entry = resolve_image_name(container.image)
    findings = [] if entry is None else [_from_catalogue(container.image, entry)]
    architecture = ""
    if image.kind == "registry":
        image, more, architecture = _from_registry(image, nodes)
        findings += [
            _finding("warning", f"[containers] shared: {wrong}") for _, wrong in _shared() if wrong
        ]
        findings += more
    container = msgspec.structs.replace(container, image=str(image))
    return ResolvedContainer(container, tuple(findings), architecture)


def _from_registry(image: Image, nodes: int) -> tuple[Image, list[Finding], str]:
    """Return the image to use, findings about it, and its architecture (empty if unknown)."""
    name = short_name(canonical(image))
    try:
        found = find_imported(canonical(image))
        if found is None:
            return image_at_mirror(image), list(_not_imported(image, name, nodes)), ""
        cache, cached = found
        cache.check(cached)
        cache.used(cached)
    except ImageError as error:
        return image, [_finding("error", str(error))], ""
    entry = cached.entry
    message = (
        f"image {name} is {cached.path},"
        f" imported {format_age(time.time() - entry.imported)} ago from {entry.made.source}"
    )
    architecture = entry.made.architecture or ""
    return Image.parse(str(cached.path)), [_finding("note", message)], architecture


def _not_imported(image: Image, name: str, nodes: int) -> Iterator[Finding]:
    if is_local(image):
        given = canonical(image).removeprefix(LOCAL_PREFIX)
        words = (
            f"image {name} is not imported, and no registry is asked for it; import it: slurmkit"
            f" image import PATH --as {given}"
        )
        yield _finding("error", words)
        return
    place = image_at_mirror(image).registry or "Docker Hub"
    yield _finding("note", f"image {name} is not imported: the nodes fetch it from {place}")
    own = f"{LOCAL_PREFIX}{canonical(image).partition('#')[2]}"
    if image.registry is None and find_imported(own) is not None:
        yield _finding(
            "warning",
            f"image {name} is not the imported image {short_name(own)}; to use that one, write"
            f" {short_name(own)}",
        )
    if nodes > 1:
        yield _each_by_itself(image, name, nodes)


def _each_by_itself(image: Image, name: str, nodes: int) -> Finding:
    if containers_section().import_first:
        words = (
            f"slurmkit submit first imports image {name} on the machine where it runs, once for all"
            f" {nodes} nodes; with --no-import each node imports it itself"
        )
        return msgspec.structs.replace(_finding("note", words), code=IMAGE_NOT_IMPORTED)
    text = name if image.user is None else shlex.quote(str(image))
    words = (
        f"each of {nodes} nodes would import image {name} by itself; import it once before:"
        f" slurmkit image import {text}"
    )
    return msgspec.structs.replace(_finding("warning", words), code=IMAGE_NOT_IMPORTED)


def _from_catalogue(name: str, entry: CatalogueSection) -> Finding:
    driver = (
        f"; it needs NVIDIA driver {entry.driver} or newer (not checked)" if entry.driver else ""
    )
    launch = f"; --launch {entry.launch} suits it" if entry.launch else ""
    return _finding("note", f"image {name} of the catalogue is {entry.image}{driver}{launch}")


def _finding(severity: str, message: str) -> Finding:
    found = {"severity": severity, "code": _CODE, "message": message, "source": "images"}
    return msgspec.convert(found, Finding)


def format_age(seconds: float) -> str:
    """Format a length of time: `3 days`."""
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
        raise BadConfig(f"[containers] {key}: {text!r} is not an absolute path")
    return path


class CatalogueSection(msgspec.Struct, frozen=True):
    """`[containers.catalogue.NAME]`: the image that `--container-image NAME` means.

    Attributes:
        image: a reference with a tag or digest, or a path.
        driver: the oldest NVIDIA driver that it runs on.
        launch: the launcher that suits it.
        about: a short description.
    """

    image: str = ""
    driver: str = ""
    launch: str = ""
    about: str = ""


def load_catalogue() -> dict[str, CatalogueSection]:
    """Return all entries by name; the site's configuration may change slurmkit's own entries.

    Raises:
        BadConfig: when the configuration is wrong.
    """
    site = load_tables("containers.catalogue", CatalogueSection)
    ours = _built_in_catalogue()
    names = sorted({*ours, *site})
    return {name: _merge_entries(ours.get(name), site.get(name)) for name in names}


def catalogue_entry(text: str) -> CatalogueSection | None:
    """Return the entry of a name; None if it does not exist or has no image."""
    entry = load_catalogue().get(text)
    return entry if entry is not None and entry.image else None


def search_catalogue(word: str) -> dict[str, CatalogueSection]:
    """Return the entries that contain a word, ignoring case."""
    return {
        name: entry
        for name, entry in load_catalogue().items()
        if word.casefold() in " ".join((name, entry.image, entry.about)).casefold()
    }


def _merge_entries(
    ours: CatalogueSection | None, site: CatalogueSection | None
) -> CatalogueSection:
    if ours is None or site is None:
        return ours or site or CatalogueSection()
    if site.image:  # our driver and launcher do not apply to another image
        return site
    changes = {name: value for name, value in msgspec.structs.asdict(site).items() if value}
    return msgspec.structs.replace(ours, **changes)


@cache
def _built_in_catalogue() -> dict[str, CatalogueSection]:
    text = files("slurmkit_containers").joinpath("catalogue.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, CatalogueSection])
