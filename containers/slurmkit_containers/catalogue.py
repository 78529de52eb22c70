"""Short names for known images: ours, and the site's `[containers.catalogue.NAME]`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files

import msgspec

from slurmkit.config import load_tables


class CatalogueSection(msgspec.Struct, frozen=True):
    """`[containers.catalogue.NAME]`: an image that `--container-image NAME` means.

    Attributes:
        image: its reference, with a tag or digest, or a path.
        driver: the least NVIDIA driver it runs on.
        launch: the launcher that suits it.
        about: what is in it.
    """

    image: str = ""
    driver: str = ""
    launch: str = ""
    about: str = ""


def catalogue() -> dict[str, CatalogueSection]:
    """Every name; of a name of ours the site may change what it likes.

    Raises:
        BadConfig: for a wrong file.
    """
    site = load_tables("containers.catalogue", CatalogueSection)
    ours = _ours()
    names = sorted({*ours, *site})
    return {name: _joined(ours.get(name), site.get(name)) for name in names}


def named(text: str) -> CatalogueSection | None:
    """What a name means; None for what the catalogue has not, or has no image of."""
    found = catalogue().get(text)
    return found if found is not None and found.image else None


def matching(word: str) -> dict[str, CatalogueSection]:
    """The entries in which a word stands, in any case."""
    return {
        name: entry
        for name, entry in catalogue().items()
        if word.casefold() in " ".join((name, entry.image, entry.about)).casefold()
    }


def _joined(ours: CatalogueSection | None, site: CatalogueSection | None) -> CatalogueSection:
    if ours is None or site is None:
        return ours or site or CatalogueSection()
    if site.image:  # what we know of our image is not true of the site's
        return site
    given = {name: value for name, value in msgspec.structs.asdict(site).items() if value}
    return msgspec.structs.replace(ours, **given)


@cache
def _ours() -> dict[str, CatalogueSection]:
    text = files("slurmkit_containers").joinpath("catalogue.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, CatalogueSection])
