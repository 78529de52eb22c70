"""Print the part of constraints.txt that slurmkit itself needs, without the tools of its tests.

    python3 packaging/requirements.py [--also NAME…] < constraints.txt

The `# via` comments of constraints.txt say what needs each distribution; slurmkit's own entries
are `slurmkit-hpc (pyproject.toml)`, those of its development `slurmkit-hpc (pyproject.toml:dev)`.
`--also` adds a distribution of the development group with all that it needs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator

_OURS = "slurmkit-hpc (pyproject.toml)"
_ENTRY = re.compile(r"^(?=\w)", re.MULTILINE)


def runtime_requirements(constraints: str, also: Iterable[str] = ()) -> str:
    """Return the entries of constraints.txt that our wheel with the extra `all` installs.

    Args:
        constraints: the text of constraints.txt.
        also: further distributions to keep, with all that they need.

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
    kept = {name for name, via in needed_by.items() if _OURS in via} | set(also)
    if unknown := kept - needed_by.keys():
        raise ValueError(f"constraints.txt has no {', '.join(sorted(unknown))}")
    while more := {name for name, via in needed_by.items() if via & kept} - kept:
        kept |= more
    return "".join(entry for entry in entries if _name(entry) in kept)


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
    """Read constraints.txt from standard input and print what is kept."""
    parser = argparse.ArgumentParser(description="the part of constraints.txt that is installed")
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME")
    arguments = parser.parse_args()
    sys.stdout.write(runtime_requirements(sys.stdin.read(), arguments.also))


if __name__ == "__main__":
    main()
