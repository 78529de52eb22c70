"""Which container runtime a job gets: what is named, or what suits its image and the cluster."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import msgspec

from slurmkit.config import load_section, nearest
from slurmkit.container import Container
from slurmkit.errors import BadInput, BrokenPlugin
from slurmkit.findings import Finding
from slurmkit.image import WORDS
from slurmkit.plugins import Runtime, load, plugins

if TYPE_CHECKING:
    from slurmkit.capabilities.model import Capabilities

_IMAGES = "slurmkit_containers"
"""The package that knows of images; a string, so that the library stands alone."""

NOT_HERE = "container-image-import"
"""Code of the finding that each of several nodes would fetch the image for itself."""

IMPORTING = ("pyxis", "enroot")
"""Runtimes that lose nothing of an image by its import."""

ORDER = ("pyxis", "enroot", "apptainer", "oci")
"""Runtimes that are looked at when none is named, the best first."""


class ContainersSection(msgspec.Struct, frozen=True):
    """`[containers]`.

    Attributes:
        runtime: what jobs get that name none, wherever it can run the image.
        runtimes: what is installed on the nodes; `enroot`, `apptainer` and `oci` cannot be seen
            from elsewhere.
        cache: folder for one's imported images, which the nodes see too; `~` and `$USER` are
            replaced. None is `$XDG_CACHE_HOME/slurmkit/images`.
        cache_size: what all of them may take, e.g. `200G`; the longest unused are removed for it.
        shared: other folders of imported images, which everybody may use.
        shared_owner: the account whose files are used of these folders, beside root's.
        import_first: `slurmkit submit` imports the image of a job on several nodes before it sends
            it, on the machine where it runs; false leaves the fetching to the nodes.
        mirrors: a registry to the one that is asked in its place, with a path if need be.
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
    """Read `[containers]` of the configuration.

    Raises:
        BadConfig: when it cannot be read.
        BadInput: when it names a runtime that does not exist.
    """
    section = load_section("containers", ContainersSection)
    known = plugins("runtimes") if section.runtimes else {}
    for name in section.runtimes:
        if name not in known:
            hint = nearest(name, list(known), "runtimes")
            raise BadInput(
                f"[containers] runtimes: no plugin {name!r} of slurmkit.runtimes; {hint}"
            )
    return section


class Settled(msgspec.Struct, frozen=True):
    """A container with what is used for its image, and what is to be said of that.

    Attributes:
        architecture: the image's, as Docker names it; empty when not known.
    """

    container: Container
    findings: tuple[Finding, ...] = ()
    architecture: str = ""


def settled(container: Container, *, nodes: int) -> Settled:
    """Look a container's image up in the catalogue, the folders of imported ones, and mirrors.

    Args:
        container: what the user means.
        nodes: how many the job has at least.

    Raises:
        BadConfig: for a wrong configuration.
    """
    found: Settled = _images("images", "settle")(container, nodes)
    return found


def import_image(image: str) -> None:
    """Import an image to where `settled` finds it, with progress on standard error.

    Raises:
        ImageError: when it cannot be had.
        BadInput: when it is none that is imported.
        BadConfig: for a wrong configuration.
    """
    _images("cli", "import_here")(image)


def image_names() -> list[str]:
    """What an image can be called here: those imported, and the catalogue's.

    Raises:
        ImageError: when a folder of images cannot be trusted.
        BadConfig: for a wrong configuration.
    """
    found: list[str] = _images("images", "known_names")()
    return found


def _images(module: str, name: str) -> Any:
    return getattr(import_module(f"{_IMAGES}.{module}"), name)


def runtime(name: str) -> Runtime:
    """Make the runtime of that name; raises as `slurmkit.plugins.load`."""
    made = cast("Callable[[], Runtime]", load("runtimes", name))
    try:
        return made()
    except (Exception, SystemExit) as error:  # a plugin's code may raise anything
        title = plugins("runtimes")[name].title
        raise BrokenPlugin(f"{title}: {type(error).__name__}: {error}") from error


def choose(container: Container, capabilities: Capabilities) -> str:
    """Name the runtime of a job.

    In this order: what the container names; what the configuration names, if it can run such an
    image; the first of `ORDER` that is here and can.

    Raises:
        BadInput: when what is named cannot be used here, or nothing can; with what there is.
        BrokenPlugin: when one of them cannot be imported.
    """
    if container.runtime is not None:
        return _usable(container.runtime, capabilities)
    preferred = containers_section().runtime
    if preferred and _cannot(runtime(preferred), container, capabilities) is None:
        return _usable(preferred, capabilities)
    lacking: dict[str, str] = {}
    for name in (name for name in ORDER if name in plugins("runtimes")):
        made = runtime(name)
        why = _why_not(made, container, capabilities)
        if why is None:
            return name
        lacking[name] = why
    what = WORDS[container.source.kind] if container.source else "a container by its name"
    reasons = "; ".join(f"{name}: {why}" for name, why in lacking.items())
    raise BadInput(f"no container runtime here can run {what}: {reasons}")


def _usable(name: str, capabilities: Capabilities) -> str:
    if why := runtime(name).available(capabilities):
        raise BadInput(f"the container runtime {name} cannot be used here: {why}")
    return name


def _why_not(made: Runtime, container: Container, capabilities: Capabilities) -> str | None:
    cannot = _cannot(made, container, capabilities)
    absent = made.available(capabilities)
    return (cannot or absent) if container.source else (absent or cannot)


def _cannot(made: Runtime, container: Container, capabilities: Capabilities) -> str | None:
    """Why a runtime cannot run such a container anywhere; what else it lacks is found later."""
    if container.source is not None:
        kind = container.source.kind
        return None if made.runs(kind) else f"cannot run {WORDS[kind]}"
    wrong = (f.message for f in made.needs(container, capabilities) if f.severity == "error")
    return next(wrong, None)
