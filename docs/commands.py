"""Write the commands into docs/commands.md, from their own help.

    .venv/bin/python docs/commands.py

It needs slurmkit with all extras, and no cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from slurmkit.cli.main import COMMAND_HEADINGS, cli

PAGE = Path(__file__).with_name("commands.md")
MARK = "<!-- What follows is made from the help, by docs/commands.py. -->\n"


def page() -> str:
    """Return the text of the page."""
    context = click.Context(cli, info_name="slurmkit")
    parts = [PAGE.read_text("utf-8").partition(MARK)[0], MARK]
    for heading, names in COMMAND_HEADINGS.items():
        rows = [row for name in names for row in _rows(cli, name, context)]
        parts.append(f"\n## {heading}\n\n| command | what it does |\n|---|---|\n" + "".join(rows))
    return "".join(parts)


def _rows(group: click.Group, name: str, context: click.Context) -> Iterator[str]:
    """Yield the row of a command, and the rows of those below it."""
    if (command := group.get_command(context, name)) is None:
        raise LookupError(name)
    below = click.Context(command, info_name=name, parent=context)
    words = " ".join((command.help or "").split("\n\n")[0].split()).replace("|", "\\|")
    if command.params or not isinstance(command, click.Group) or command.invoke_without_command:
        yield f"| `{below.command_path}` | {words} |\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(below):
            yield from _rows(command, each, below)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
