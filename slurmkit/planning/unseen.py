"""Paths that a job names, and that its container does not see: nothing is mounted unasked."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator

from slurmkit.checks.say import Pairs, note, warning
from slurmkit.container import Container, View
from slurmkit.findings import Finding
from slurmkit.machine import HERE
from slurmkit.spec import JobSpec

_CODE = "container-unseen"
_SOURCE = "container"
# What an image has of its own under the same names, or a runtime brings.
_OWN = tuple("/bin /boot /dev /etc /lib /lib64 /opt /proc /run /sbin /sys /usr /var".split())


def unseen(spec: JobSpec, container: Container, view: View) -> Iterator[Finding]:
    """Name what of the command is on this machine and not in the container, with the mounts to add.

    Args:
        spec: the job.
        container: what it asks for.
        view: what that sees.
    """
    folder = spec.chdir or HERE.folder
    beside = [w for w in _paths(spec.command) if not posixpath.isabs(w) and _is(folder, w)]
    lost = beside if _elsewhere(view, folder, beside) else []
    far = [path for path in _far(spec.command, container) if not view.sees(path)]
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
    where = f"where {_and(there)} {_are(there)}" if there else "which is named"
    return f"the container does not see {_and(missing)}, {where}"


def _started(lost: list[str], folder: str) -> str:
    return (
        f"{_and(lost)} {_are(lost)} not found in the container: its command starts in the image's"
        f" own folder, not in {folder}"
    )


def absent(container: Container) -> Iterator[Finding]:
    """Name what the container needs of the node and this machine has not, which mounts the same."""
    image = container.source
    needed = [image.name] if image is not None and image.is_file else []
    needed += [mount.source for mount in container.mounted if mount.is_bind]
    needed += [posixpath.dirname(container.save)] if container.save else []
    for path in dict.fromkeys(needed):
        if not os.path.lexists(path):
            message = f"there is no {path} on this machine; without it on the nodes the job fails"
            yield warning("container-absent", message, _SOURCE)


_FIXED = "; what it sees stands in the bundle's config.json"
_WHOLE = "; give its whole path"


def _paths(command: Iterable[str]) -> Iterator[str]:
    """Words that may be paths, and values of options that may."""
    for at, word in enumerate(command):
        path = word.partition("=")[2] if word.startswith("-") else word
        # A first word alone is looked for in PATH, unless it is a script for the launcher.
        if path and (at or "/" in path or path.endswith(".py")):
            yield path


def _is(folder: str, word: str) -> bool:
    return os.path.lexists(posixpath.join(folder, word))


def _elsewhere(view: View, folder: str, words: list[str]) -> bool:
    """Whether words that are paths below `folder` are none where the container starts."""
    return bool(words) and (view.start is None or view.start == folder != view.inside(folder))


def _far(command: Iterable[str], container: Container) -> Iterator[str]:
    """Absolute paths that are there on this machine, and hardly in an image."""
    named = [*_paths(command), container.workdir or ""]
    for path in dict.fromkeys(map(posixpath.normpath, filter(posixpath.isabs, named))):
        own = any(path == each or path.startswith(f"{each}/") for each in _OWN)
        if path != "/" and not own and os.path.lexists(path):
            yield path


def _folder_of(path: str) -> str:
    return path if os.path.isdir(path) else posixpath.dirname(path)  # noqa: PTH112


def _fix(container: Container, missing: list[str], start: str | None) -> Pairs:
    """Options that mount what is missing, and start in the folder `start`."""
    needed = dict.fromkeys(missing)
    whole = [each for each in needed if not any(each.startswith(f"{other}/") for other in needed)]
    mounts = (("container-mounts", ",".join([*container.mounts, *whole])),) if whole else ()
    workdir = (("container-workdir", start),) if start and start != container.workdir else ()
    return (*mounts, *workdir)


def _and(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))


def _are(words: Iterable[str]) -> str:
    return "is" if len(dict.fromkeys(words)) == 1 else "are"
