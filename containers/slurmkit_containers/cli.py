"""`slurmkit image`: import container images once, and keep them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import click
import msgspec

from slurmkit.cli.show import hanging, key_values, table
from slurmkit.cli.tab import ImageNames
from slurmkit.errors import BadInput, ImageError
from slurmkit.facts import clock
from slurmkit.text import printable
from slurmkit_containers.cache import Cache, Cached, over
from slurmkit_containers.catalogue import matching
from slurmkit_containers.images import (
    age,
    caches,
    canonical,
    look_up,
    meant,
    own_cache,
    short,
    size,
    size_limit,
)
from slurmkit_containers.importing import clean, gib
from slurmkit_containers.progress import progress, stoppable

_COLUMNS = tuple("IMAGE SIZE ARCH IMPORTED USED FROM".split())


@click.group("image")
def image_group() -> None:
    """Import container images once, and keep them.

    A job whose --container-image was imported uses the imported file: on many nodes nothing is
    fetched, and nothing changes under it.
    """


@image_group.command("import", short_help="Import an image, print its file's path.")
@click.argument("what", type=ImageNames())
@click.option("--as", "name", metavar="NAME", help="What it is called: local/NAME.")
@click.option("--again", is_flag=True, help="Also where it is there: a tag may mean another now.")
def import_command(*, what: str, name: str | None, again: bool) -> None:
    """Import an image, and print the path of its file.

    WHAT is a reference, a name of the catalogue, or a path, which begins with / or . or ends in
    .tar, .tar.gz, .tgz or .tar.xz: what docker save wrote, an OCI layout, or a root file system,
    as an archive or a folder. No registry is needed for a path.

    With --as, and from a path, it is called local/NAME: jobs say --container-image local/NAME, and
    no registry is ever asked for such a name.

    Whoever asks for the same image meanwhile waits, and gets the same file.

    \b
    Examples:
      slurmkit image import pytorch
      slurmkit image import nvcr.io/nvidia/pytorch:25.06-py3
      slurmkit image import ./mine.tar --as mine:2
      slurmkit image import ./rootfs --as base
      slurmkit submit --container-image local/mine:2 -- python train.py
    """
    click.echo(str(import_here(what, name, again=again).path))


def import_here(what: str, name: str | None = None, *, again: bool = False) -> Cached:
    """Import an image into one's folder, and tell of it on standard error.

    Args:
        what: as `slurmkit image import` has it; likewise `name` and `again`.
        name: what it is called in place of its own name.
        again: also where it is there.

    Raises:
        ImageError: when it cannot be had.
        BadInput: for what is no image to import.
        BadConfig: for a wrong configuration.
    """
    from slurmkit_containers.wanted import wanted  # noqa: PLC0415 - Tab and list need no importer

    asked = wanted(what, name)
    cache = own_cache()
    with stoppable(), progress() as report:
        found, new = asked.have(cache, again=again, report=report)
    entry = found.entry
    when = "now" if new else f"{age(time.time() - entry.imported)} ago; --again does it anew"
    click.echo(f"{short(asked.reference)}: {gib(entry.size)}, imported {when}", err=True)
    _make_room(cache, found)
    return found


@image_group.command("list", short_help="List what is imported.")
@click.option("--json", "as_json", is_flag=True, help="Print all that is recorded as JSON.")
def list_command(*, as_json: bool) -> None:
    """List the images that are imported, the last used first.

    \b
    Examples:
      slurmkit image list
      slurmkit image list --json | jq '.[].path'
    """
    found = _all()
    if as_json:
        click.echo(msgspec.json.encode([_facts(each) for each in found]))
        return
    table(_COLUMNS, map(_row, found), right=("SIZE",))
    whole, limit = sum(each.entry.size for each in found), size_limit()
    most = f" of {gib(limit)} ([containers] cache_size)" if limit is not None else ""
    folders = ", ".join(str(cache.folder) for cache in caches())
    click.echo(printable(f"{gib(whole)}{most} in {folders}"), err=True)


@image_group.command("inspect", short_help="Show and check an imported image.")
@click.argument("image", type=ImageNames())
@click.option("--full", is_flag=True, help="Read the whole file and compare its SHA-256.")
@click.option("--json", "as_json", is_flag=True, help="Print all that is recorded as JSON.")
def inspect_command(*, image: str, full: bool, as_json: bool) -> None:
    """Show what is known of an imported image, and whether its file can be trusted.

    The file must be one's own or root's (in a shared folder, of its account), writable by nobody
    else, and have size and times of the import; if the times differ, or with --full, its SHA-256
    is compared.

    \b
    Examples:
      slurmkit image inspect pytorch
      slurmkit image inspect ubuntu:24.04 --full
      slurmkit image inspect local/mine:2 --json
    """
    cache, found = _found(image)
    with progress() as report:
        cache.check(found, full=full, report=report)
    if as_json:
        click.echo(msgspec.json.encode(_facts(found) | {"checked": "sha256" if full else "times"}))
        return
    entry = found.entry
    key_values(
        (
            ("Image", ", ".join(map(short, entry.references)) or "no name any more"),
            ("File", str(found.path)),
            ("Size", gib(entry.size)),
            ("From", entry.made.source),
            ("Digest", entry.made.digest or "unknown"),
            ("SHA-256", entry.sha256),
            ("Architecture", entry.made.architecture or "unknown"),
            ("Imported", clock(int(entry.imported))),
            ("Last used", clock(int(found.used))),
            ("Checked", "the whole file" if full else "owner, mode, size, times; --full: SHA-256"),
        )
    )


@image_group.command("prune", short_help="Remove images, or the longest unused.")
@click.argument("images", nargs=-1, type=ImageNames())
@click.option("--size", "limit", metavar="SIZE", help="What all may take afterwards, e.g. 100G.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune_command(*, images: tuple[str, ...], limit: str | None, dry_run: bool) -> None:
    """Remove the images named, or those longest unused until the others fit a size.

    The size is that of --size, or of [containers] cache_size in the configuration. What imports
    that were killed left is removed, too. A job that waits would miss its image: it is looked up
    when the job is planned.

    \b
    Examples:
      slurmkit image prune --size 100G --dry-run
      slurmkit image prune --size 0
      slurmkit image prune pytorch ubuntu:24.04
    """
    cache = own_cache()
    gone = list(_chosen(cache, images, limit))
    for each in gone:
        words = "would remove" if dry_run else "removed"
        click.echo(printable(f"{words} {_title(each)}: {gib(each.entry.size)}"), err=True)
    if not dry_run and cache.folder.is_dir():
        cache.remove(gone)
        clean(cache)
    freed = gib(sum(each.entry.size for each in gone))
    click.echo(f"{freed} {'would be ' if dry_run else ''}freed in {cache.folder}", err=True)


@image_group.command("search", short_help="Search the catalogue of short names.")
@click.argument("word", default="")
@click.option("--json", "as_json", is_flag=True, help="Print the entries as JSON.")
def search_command(*, word: str, as_json: bool) -> None:
    """Search the catalogue: short names that --container-image takes. No registry is asked.

    DRIVER is the least NVIDIA driver, LAUNCH the launcher that suits the image.

    \b
    Examples:
      slurmkit image search
      slurmkit image search torch
      slurmkit plan --container-image pytorch --gpus-per-node 2 --time 10 -- python train.py
    """
    found = matching(word)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    rows = ((name, e.image, e.driver, e.launch, e.about) for name, e in found.items())
    table(("NAME", "IMAGE", "DRIVER", "LAUNCH", "ABOUT"), rows)
    if not found:
        hanging("", f"nothing in the catalogue has {word!r}", indent=0, err=True)


def _all() -> list[Cached]:
    return [each for cache in caches() for each in cache.entries()]


def _found(text: str) -> tuple[Cache, Cached]:
    reference = canonical(meant(text)[0])
    found = look_up(reference)
    if found is None:
        raise ImageError(
            f"{short(reference)} is not imported; slurmkit image list shows what is, and slurmkit"
            f" image import {text} imports it"
        )
    return found


def _chosen(cache: Cache, images: Iterable[str], limit: str | None) -> Iterable[Cached]:
    named = [_own(cache, text) for text in images]
    if named and limit is not None:
        raise BadInput("--size is for the longest unused images; name images, or give a size")
    if named:
        return named
    most = size_limit() if limit is None else size(limit)
    if most is None:
        raise BadInput(
            "nothing says what may stay; give --size 100G, or name images, or set cache_size in"
            " [containers] of the configuration"
        )
    return over(cache.entries(), most)


def _own(cache: Cache, text: str) -> Cached:
    found = cache.find(canonical(meant(text)[0]))
    if found is None:
        raise ImageError(f"{text} is not imported in {cache.folder}; see: slurmkit image list")
    return found


def _make_room(cache: Cache, new: Cached) -> None:
    """Keep to the size that the configuration sets; what was just imported stays."""
    limit = size_limit()
    if limit is None:
        return
    others = [each for each in cache.entries() if each.entry.address != new.entry.address]
    # What a path gave cannot be fetched again, and is removed by hand alone.
    stays = sum(each.entry.size for each in others if each.entry.of_path) + new.entry.size
    gone = list(over((each for each in others if not each.entry.of_path), limit - stays))
    cache.remove(gone)
    for each in gone:
        words = f"removed {_title(each)}, longest unused: [containers] cache_size is {gib(limit)}"
        click.echo(printable(words), err=True)


def _names(found: Iterable[Cached]) -> list[str]:
    return [short(name) for each in found for name in each.entry.references]


def _title(cached: Cached) -> str:
    return ", ".join(_names([cached])) or cached.entry.address


def _row(cached: Cached) -> tuple[str, ...]:
    entry, now = cached.entry, time.time()
    return (
        ", ".join(map(short, entry.references)) or "-",
        gib(entry.size),
        entry.made.architecture or "?",
        f"{age(now - entry.imported)} ago",
        f"{age(now - cached.used)} ago",
        entry.made.source,
    )


def _facts(cached: Cached) -> dict[str, object]:
    entry = cached.entry
    return {
        "images": [short(name) for name in entry.references],
        "path": str(cached.path),
        "size": entry.size,
        "source": entry.made.source,
        "digest": entry.made.digest,
        "sha256": entry.sha256,
        "architecture": entry.made.architecture,
        "imported": entry.imported,
        "used": cached.used,
    }
