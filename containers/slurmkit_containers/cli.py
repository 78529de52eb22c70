"""`slurmkit image`: import container images once, and keep them."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click
import msgspec

from slurmkit.cli.completion import ImageNames
from slurmkit.cli.json_output import JsonOutput, json_option
from slurmkit.cli.tables import Fit, print_key_values, print_table, print_wrapped
from slurmkit.errors import BadInput, ImageError
from slurmkit.formats.display import format_time, printable
from slurmkit.formats.memory import format_bytes
from slurmkit_containers.cache import CachedImage, ImageCache, longest_unused
from slurmkit_containers.images import (
    caches,
    canonical,
    find_imported,
    format_age,
    own_cache,
    parse_size,
    resolve_image_name,
    search_catalogue,
    short_name,
    size_limit,
)
from slurmkit_containers.importing.importer import remove_leftovers
from slurmkit_containers.importing.sources import parse_import_source
from slurmkit_containers.trust import LINE_STAYS, ReportProgress

_COLUMNS = tuple("IMAGE SIZE ARCH IMPORTED USED FROM".split())
_EVERY = 0.1  # seconds
_WORDS = 50  # columns


@click.group("image")
def image_group() -> None:
    """Import container images once, and keep them.

    A job uses the imported file of its --container-image, if there is one. Then no node fetches
    the image, and it does not change between jobs.

    \b
    Examples:
      slurmkit image search pytorch
      slurmkit image import ubuntu:24.04
      slurmkit image list
    """


@image_group.command("import", short_help="Import an image, print its file's path.")
@click.argument("what", type=ImageNames())
@click.option("--as", "name", metavar="NAME", help="Call the image local/NAME.")
@click.option("--again", is_flag=True, help="Import again: the tag may mean another image by now.")
@json_option("slurmkit.image.import/1", text="Print what is recorded as JSON.")
def import_command(*, what: str, name: str | None, again: bool, as_json: JsonOutput | None) -> None:
    """Import an image, and print the path of its file.

    WHAT is a reference, a name of the catalogue, or a path. A path begins with / or . or ends in
    .tar, .tar.gz, .tgz or .tar.xz. It is an archive of docker save, an OCI layout or a root file
    system, as an archive or a folder. No registry is needed for a path.

    With --as, and from a path, the image is called local/NAME. Jobs name it with
    --container-image local/NAME, and no registry is ever asked for it.

    If another import of the same image is running, this one waits and uses its file.

    \b
    Examples:
      slurmkit image import pytorch
      slurmkit image import nvcr.io/nvidia/pytorch:25.06-py3
      slurmkit image import ./mine.tar --as mine:2
      slurmkit image import ./rootfs --as base
      slurmkit submit --container-image local/mine:2 -- python train.py
    """
    found = import_here(what, name, again=again)
    if as_json:
        as_json.print([_facts(found)])
    else:
        click.echo(str(found.path))


def import_here(what: str, name: str | None = None, *, again: bool = False) -> CachedImage:
    """Import an image into the user's cache, and report on standard error.

    Args:
        what: a reference, a name of the catalogue, or a path.
        name: the image's name instead of its own.
        again: import it even if it is already there.

    Raises:
        ImageError: when the import fails.
        BadInput: when `what` is not an image that can be imported.
        BadConfig: when the configuration is wrong.
    """
    asked = parse_import_source(what, name)
    cache = own_cache()
    with end_on_signals(), show_progress() as report:
        found, new = asked.import_into(cache, again=again, report=report)
    entry = found.entry
    age = format_age(time.time() - entry.imported)
    when = "now" if new else f"{age} ago; --again imports it again"
    click.echo(
        f"{short_name(asked.reference)}: {format_bytes(entry.size)}, imported {when}", err=True
    )
    _make_room(cache, found)
    return found


@image_group.command("list", short_help="List what is imported.")
@json_option("slurmkit.image.list/1", text="Print all that is recorded as JSON.")
def list_command(*, as_json: JsonOutput | None) -> None:
    """List the imported images, last used first.

    \b
    Examples:
      slurmkit image list
      slurmkit image list --json | jq '.rows[].path'
    """
    images = [each for cache in caches() for each in cache.entries()]
    if as_json:
        rows = [_facts(each) for each in images]
        as_json.print(rows)
        return
    fit = Fit(("IMAGE",), least=("ARCH", "USED", "IMPORTED", "FROM"))
    print_table(_COLUMNS, map(_row, images), right=("SIZE",), fit=fit)
    total, limit = sum(each.entry.size for each in images), size_limit()
    most = f" of {format_bytes(limit)} ([containers] cache_size)" if limit is not None else ""
    folders = ", ".join(str(cache.folder) for cache in caches())
    click.echo(printable(f"{format_bytes(total)}{most} in {folders}"), err=True)


@image_group.command("inspect", short_help="Show and check an imported image.")
@click.argument("image", type=ImageNames())
@click.option("--full", is_flag=True, help="Read the whole file and compare its SHA-256.")
@json_option("slurmkit.image.inspect/1", text="Print all that is recorded as JSON.")
def inspect_command(*, image: str, full: bool, as_json: JsonOutput | None) -> None:
    """Show an imported image, and check its file.

    The file must belong to you or root (in a shared folder, to that folder's account). Nobody else
    may be able to write it. Its size and times must be those of the import; if the times differ,
    or with --full, its SHA-256 is compared.

    \b
    Examples:
      slurmkit image inspect pytorch
      slurmkit image inspect ubuntu:24.04 --full
      slurmkit image inspect local/mine:2 --json
    """
    cache, found = _find_image(image)
    with show_progress() as report:
        cache.check(found, full=full, report=report)
    if as_json:
        row = _facts(found) | {"checked": "sha256" if full else "times"}
        as_json.print([row])
        return
    entry = found.entry
    print_key_values(
        (
            ("Image", ", ".join(map(short_name, entry.references)) or "no name any more"),
            ("File", str(found.path)),
            ("Size", format_bytes(entry.size)),
            ("From", entry.made.source),
            ("Digest", entry.made.digest or "unknown"),
            ("SHA-256", entry.sha256),
            ("Architecture", entry.made.architecture or "unknown"),
            ("Imported", format_time(int(entry.imported))),
            ("Last used", format_time(int(found.used))),
            ("Checked", "the whole file" if full else "owner, mode, size, times; --full: SHA-256"),
        )
    )


@image_group.command("prune", short_help="Remove images, or the longest unused.")
@click.argument("images", nargs=-1, type=ImageNames())
@click.option("--size", "limit", metavar="SIZE", help="Largest size of what stays, e.g. 100G.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option("slurmkit.image.prune/1", text="Print what is removed as JSON.")
def prune_command(
    *, images: tuple[str, ...], limit: str | None, dry_run: bool, as_json: JsonOutput | None
) -> None:
    """Remove the named images, or the longest unused ones until the others fit a size.

    The size is --size, or [containers] cache_size of the configuration. Files left by killed
    imports are removed, too. Do not remove an image that a pending job needs: the path of its file
    is already in the job.

    \b
    Examples:
      slurmkit image prune --size 100G --dry-run
      slurmkit image prune --size 0
      slurmkit image prune pytorch ubuntu:24.04
    """
    cache = own_cache()
    removed = list(_images_to_remove(cache, images, limit))
    for each in removed:
        verb = "would remove" if dry_run else "removed"
        click.echo(printable(f"{verb} {_title(each)}: {format_bytes(each.entry.size)}"), err=True)
    if not dry_run and cache.folder.is_dir():
        cache.remove(removed)
        remove_leftovers(cache)
    freed = format_bytes(sum(each.entry.size for each in removed))
    click.echo(f"{freed} {'would be ' if dry_run else ''}freed in {cache.folder}", err=True)
    if as_json:
        as_json.print(map(_facts, removed), further={"dry_run": dry_run})


@image_group.command("search", short_help="Search the catalogue of short names.")
@click.argument("word", default="")
@json_option("slurmkit.image.search/1", text="Print the entries as JSON.")
def search_command(*, word: str, as_json: JsonOutput | None) -> None:
    """Search the catalogue of short names for --container-image. No registry is asked.

    DRIVER is the oldest NVIDIA driver that the image runs on. LAUNCH is the launcher that suits it.

    \b
    Examples:
      slurmkit image search
      slurmkit image search torch
      slurmkit plan --container-image pytorch --gpus-per-node 2 --time 10 -- python train.py
    """
    entries = search_catalogue(word)
    if as_json:
        facts = [{"name": name} | msgspec.structs.asdict(e) for name, e in entries.items()]
        as_json.print(facts)
        return
    rows = ((name, e.image, e.driver, e.launch, e.about) for name, e in entries.items())
    fit = Fit(("NAME",), ("IMAGE", "ABOUT"), least=("LAUNCH", "DRIVER"))
    print_table(("NAME", "IMAGE", "DRIVER", "LAUNCH", "ABOUT"), rows, fit=fit)
    if not entries:
        print_wrapped("", f"no entry of the catalogue contains {word!r}", indent=0, err=True)


def _find_image(text: str) -> tuple[ImageCache, CachedImage]:
    reference = canonical(resolve_image_name(text)[0])
    found = find_imported(reference)
    if found is None:
        raise ImageError(
            f"{short_name(reference)} is not imported; import it: slurmkit image import {text};"
            " see the imported images: slurmkit image list"
        )
    return found


def _images_to_remove(
    cache: ImageCache, images: Iterable[str], limit: str | None
) -> Iterable[CachedImage]:
    named = [_find_own_image(cache, text) for text in images]
    if named and limit is not None:
        raise BadInput(
            "name images, or give --size, not both: --size removes the longest unused images"
        )
    if named:
        return named
    most = size_limit() if limit is None else parse_size(limit)
    if most is None:
        raise BadInput(
            "no image is named and no size is set; name images, or give --size 100G, or set"
            " cache_size in [containers] of the configuration"
        )
    return longest_unused(cache.entries(), most)


def _find_own_image(cache: ImageCache, text: str) -> CachedImage:
    found = cache.find(canonical(resolve_image_name(text)[0]))
    if found is None:
        raise ImageError(f"{text} is not imported in {cache.folder}; see: slurmkit image list")
    return found


def _make_room(cache: ImageCache, new: CachedImage) -> None:
    """Remove the longest unused images over the configured size, but not the new one."""
    limit = size_limit()
    if limit is None:
        return
    others = [each for each in cache.entries() if each.entry.address != new.entry.address]
    # Images made from a path cannot be fetched again: they are removed only by name.
    stays = sum(each.entry.size for each in others if each.entry.of_path) + new.entry.size
    removed = list(
        longest_unused((each for each in others if not each.entry.of_path), limit - stays)
    )
    cache.remove(removed)
    for each in removed:
        words = (
            f"removed {_title(each)}, longest unused:"
            f" [containers] cache_size is {format_bytes(limit)}"
        )
        click.echo(printable(words), err=True)


def _title(cached: CachedImage) -> str:
    return ", ".join(map(short_name, cached.entry.references)) or cached.entry.address


def _row(cached: CachedImage) -> tuple[str, ...]:
    entry, now = cached.entry, time.time()
    return (
        ", ".join(map(short_name, entry.references)) or "-",
        format_bytes(entry.size),
        entry.made.architecture or "?",
        f"{format_age(now - entry.imported)} ago",
        f"{format_age(now - cached.used)} ago",
        entry.made.source,
    )


def _facts(cached: CachedImage) -> dict[str, object]:
    entry = cached.entry
    return {
        "images": [short_name(name) for name in entry.references],
        "path": str(cached.path),
        "size": entry.size,
        "source": entry.made.source,
        "digest": entry.made.digest,
        "sha256": entry.sha256,
        "architecture": entry.made.architecture,
        "imported": entry.imported,
        "used": cached.used,
    }


@contextmanager
def show_progress() -> Iterator[ReportProgress]:
    """Show progress on standard error; if that is no terminal, print only lines that stay."""
    if not sys.stderr.isatty():
        yield _print_lines_that_stay
        return
    from rich import console, progress

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TimeElapsedColumn(),
    )
    with progress.Progress(*columns, console=console.Console(stderr=True), transient=True) as bar:
        task, last = bar.add_task("starting", total=None), 0.0

        def report(words: str, done: int, total: int | None) -> None:
            nonlocal last
            if done == LINE_STAYS:
                bar.console.print(printable(words), markup=False, highlight=False)
                return
            now = time.monotonic()
            if now - last >= _EVERY or done == total:
                last = now
                bar.update(task, description=words[:_WORDS], completed=done, total=total)

        yield report


def _print_lines_that_stay(words: str, done: int, total: int | None) -> None:
    del total
    if done == LINE_STAYS:
        click.echo(printable(words), err=True)


@contextmanager
def end_on_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that no partial files are left."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL  # keep nohup's handling of SIGHUP
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
