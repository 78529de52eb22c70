"""Print the part of constraints.txt that slurmkit itself needs, without the tools of its tests.

    python3 packaging/requirements.py [--also NAME…] [--extra NAME] < constraints.txt

The `# via` comments of constraints.txt say what needs each distribution; slurmkit's own entries
are `slurmkit-hpc (pyproject.toml)`, those of its development `slurmkit-hpc (pyproject.toml:dev)`.
`--also` adds a distribution of the development group with all that it needs. `--extra` leaves out
what only other extras need.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_OURS = "slurmkit-hpc (pyproject.toml)"
_PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_ENTRY = re.compile(r"^(?=\w)", re.MULTILINE)


def runtime_requirements(
    constraints: str, also: Iterable[str] = (), own: Collection[str] | None = None
) -> str:
    """Return the entries of constraints.txt that our wheel installs.

    Args:
        constraints: the text of constraints.txt.
        also: further distributions to include, with all that they need.
        own: the distributions that the wheel itself needs; with the extra `all` when left out.

    Raises:
        ValueError: when an entry has no hash or no `# via`, or one of `also` is not there.
    """
    entries = [entry for entry in _ENTRY.split(constraints) if entry.strip()]
    needed_by: dict[str, set[str]] = {}  # one distribution may have an entry for each Python
    for entry in entries:
        name, via = _name(entry), set(_needed_by(entry))
        if "--hash=sha256:" not in entry or not via:
            raise ValueError(f"constraints.txt: {name} has no hash or no `# via`")
        needed_by.setdefault(name, set()).update(via)
    if own is None:
        own = {name for name, via in needed_by.items() if _OURS in via}
    needed = {*own, *also}
    if unknown := needed - needed_by.keys():
        raise ValueError(f"constraints.txt has no {', '.join(sorted(unknown))}")
    while more := {name for name, via in needed_by.items() if via & needed} - needed:
        needed |= more
    return "".join(entry for entry in entries if _name(entry) in needed)


def needed_with_extra(extra: str) -> set[str]:
    """Return the distributions that pyproject.toml names for our wheel with one extra."""
    project = tomllib.loads(_PROJECT.read_text("utf-8"))["project"]
    wanted = (*project["dependencies"], *project["optional-dependencies"][extra])
    names = (re.split(r"[\[<>=!~; ]", each, maxsplit=1)[0] for each in wanted)
    return {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def _name(entry: str) -> str:
    return entry.partition("==")[0]


def _needed_by(entry: str) -> Iterator[str]:
    """Yield what needs an entry: `# via NAME`, or one `#   NAME` a line after `# via`."""
    for line in entry.splitlines():
        words = line.strip()
        if words.startswith("# via "):
            yield words.removeprefix("# via ").strip()
        elif words.startswith("#   "):
            yield words.removeprefix("#   ").strip()


def main() -> None:
    """Read constraints.txt from standard input and print what is needed."""
    parser = argparse.ArgumentParser(description="the part of constraints.txt that is installed")
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--extra", metavar="NAME", help="without what only other extras need")
    arguments = parser.parse_args()
    own = needed_with_extra(arguments.extra) if arguments.extra else None
    sys.stdout.write(runtime_requirements(sys.stdin.read(), arguments.also, own))


if __name__ == "__main__":
    main()
