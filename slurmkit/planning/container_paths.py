"""Paths of a job that its container does not see, and files of the container that do not exist."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator

from slurmkit.slurm.machine import LOCAL_MACHINE
from slurmkit.spec.containers import Container, ContainerPaths
from slurmkit.spec.findings import Finding, Pairs, note, warning
from slurmkit.spec.jobspec import JobSpec

_CODE = "container-unseen"
_SOURCE = "container"
# Folders that an image has itself, or that a runtime adds.
_IMAGE_FOLDERS = tuple(
    "/bin /boot /dev /etc /lib /lib64 /opt /proc /run /sbin /sys /usr /var".split()
)
_FIXED = "; the bundle's config.json sets which paths it sees"
_WHOLE = "; give its whole path"


def check_hidden_paths(
    spec: JobSpec, container: Container, view: ContainerPaths
) -> Iterator[Finding]:
    """Name paths of the command that exist here but not in the container; suggest mounts.

    Args:
        spec: the job.
        container: its container.
        view: the paths that the container sees.
    """
    folder = spec.chdir or LOCAL_MACHINE.folder
    relative = [w for w in _paths(spec.command) if not posixpath.isabs(w)]
    relative = [w for w in relative if os.path.lexists(posixpath.join(folder, w))]
    lost = relative if _starts_elsewhere(view, folder, relative) else []
    far = [path for path in _absolute_paths(spec.command, container) if not view.sees(path)]
    shown = view.inside(folder)
    missing = [*([folder] if lost and shown is None else []), *map(_folder_of, far)]
    start = (shown or folder) if lost else None
    if missing or lost:
        fix = _fix(container, missing, start) if view.is_asked else ()
        how = "" if view.is_asked else _FIXED if missing else _WHOLE
        words = _hidden(missing, [*lost, *far]) if missing else _started(lost, shown or folder)
        yield warning(_CODE, words + how, _SOURCE, fix)
    elif shown is None:
        words = f"the container does not see {folder}, where the job starts"
        fix = _fix(container, [folder], folder) if view.is_asked and not view.start else ()
        yield note(_CODE, words, _SOURCE, fix)


def _hidden(missing: list[str], named: list[str]) -> str:
    there = [each for each in named if each not in missing]
    where = f"where {joined_words(there)} {_is_or_are(there)}" if there else "which the job names"
    return f"the container does not see {joined_words(missing)}, {where}"


def _started(lost: list[str], folder: str) -> str:
    return (
        f"{joined_words(lost)} {_is_or_are(lost)} not found in the container:"
        f" its command starts in the image's own folder, not in {folder}"
    )


def check_missing_sources(container: Container) -> Iterator[Finding]:
    """Name files and mounts of the container that do not exist on this machine.

    This machine mounts the same file systems as the nodes.
    """
    image = container.source
    needed = [image.name] if image is not None and image.is_file else []
    needed += [mount.source for mount in container.mounted if mount.is_bind]
    needed += [posixpath.dirname(container.save)] if container.save else []
    for path in dict.fromkeys(needed):
        if not os.path.lexists(path):
            message = f"there is no {path} on this machine; the job fails if the nodes lack it, too"
            yield warning("container-absent", message, _SOURCE)


def _paths(command: Iterable[str]) -> Iterator[str]:
    """Yield words of a command, and values of options, that may be paths."""
    for at, word in enumerate(command):
        path = word.partition("=")[2] if word.startswith("-") else word
        # A first word without a slash is searched in PATH, unless it is a script for the launcher.
        if path and (at or "/" in path or path.endswith(".py")):
            yield path


def _starts_elsewhere(view: ContainerPaths, folder: str, words: list[str]) -> bool:
    """Return whether the container starts where these paths below `folder` do not exist."""
    return bool(words) and (view.start is None or view.start == folder != view.inside(folder))


def _absolute_paths(command: Iterable[str], container: Container) -> Iterator[str]:
    """Yield absolute paths that exist on this machine and that an image hardly has."""
    named = [*_paths(command), container.workdir or ""]
    for path in dict.fromkeys(map(posixpath.normpath, filter(posixpath.isabs, named))):
        own = any(path == each or path.startswith(f"{each}/") for each in _IMAGE_FOLDERS)
        if path != "/" and not own and os.path.lexists(path):
            yield path


def _folder_of(path: str) -> str:
    return path if os.path.isdir(path) else posixpath.dirname(path)  # noqa: PTH112


def _fix(container: Container, missing: list[str], start: str | None) -> Pairs:
    """Return options that mount what is missing, and that start in the folder `start`."""
    needed = dict.fromkeys(missing)
    whole = [each for each in needed if not any(each.startswith(f"{other}/") for other in needed)]
    mounts = (("container-mounts", ",".join([*container.mounts, *whole])),) if whole else ()
    workdir = (("container-workdir", start),) if start and start != container.workdir else ()
    return (*mounts, *workdir)


def joined_words(words: Iterable[str]) -> str:
    """Join different words: `a and b`."""
    return " and ".join(dict.fromkeys(words))


def _is_or_are(words: Iterable[str]) -> str:
    return "is" if len(dict.fromkeys(words)) == 1 else "are"
