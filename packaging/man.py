"""Write the man pages of slurmkit from the help of its commands.

    python packaging/man.py FOLDER

One page for each command: slurmkit.1, slurmkit-submit.1, slurmkit-ledger-ingest.1 … It needs
slurmkit, and no cluster. SOURCE_DATE_EPOCH gives the date of the pages.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from slurmkit.cli.main import COMMANDS, LazyGroup, cli
from slurmkit.errors import MissingExtra
from slurmkit.version import __version__

_WITHOUT_EXTRAS = "packaging.man.without_extras"  # key of click.Context.meta
_EXAMPLES = ("Example:", "Examples:")
_COMMON = r"""
.SH "EXIT STATUS"
.TP
.B 0
Done.
.TP
.B 1
The operation failed.
.TP
.B 2
The input cannot be right: an option, a job or the configuration.
.TP
.B 130
Interrupted, for example by Ctrl\-C.
.SH FILES
.TP
.I /etc/slurmkit/config.toml
The site's configuration.
.TP
.I /etc/slurmkit/conf.d/*.toml
Further files of the site.
.TP
.I ~/.config/slurmkit/config.toml
Your own configuration. It goes before the site's.
"""


class ManFormatter(click.HelpFormatter):
    """A formatter that writes help as roff, man(7), where click would write it for a terminal.

    click's commands decide what their help says and under which headings; so do the pages.
    """

    def __init__(self) -> None:
        super().__init__(width=10_000)
        self._described = False

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the synopsis."""
        del prefix
        self.write(f".SH SYNOPSIS\n.B {roff(prog)}\n{roff(args)}\n")

    def write_heading(self, heading: str) -> None:
        """Begin a section."""
        self.write(f'.SH "{roff(heading.upper())}"\n')

    def write_paragraph(self) -> None:
        """Write nothing: each text begins its own paragraph."""

    def write_text(self, text: str) -> None:
        r"""Write paragraphs. Those that begin with click's mark \b keep their lines."""
        if not self._described:
            self._described = True
            self.write(".SH DESCRIPTION\n")
        for paragraph in re.split(r"\n\s*\n", text.strip()):
            first, _, rest = paragraph.partition("\n")
            if first.strip() == "\b":
                self._write_lines(rest.splitlines())
            else:
                self.write(f".PP\n{roff(' '.join(paragraph.split()))}\n")

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write a list of terms and what they mean."""
        del col_max, col_spacing
        for term, meaning in rows:
            self.write(f".TP\n.B {roff(term.strip())}\n{roff(' '.join(meaning.split()))}\n")

    def _write_lines(self, lines: list[str]) -> None:
        if lines and lines[0].strip() in _EXAMPLES:
            self.write(".SH EXAMPLES\n")
            lines = lines[1:]
        body = "\n".join(roff(line.removeprefix("  ")) for line in lines)
        self.write(f".PP\n.nf\n{body}\n.fi\n")


def roff(text: str) -> str:
    r"""Return a line of text as roff shows it: `-` stays an ASCII minus, a leading dot is text."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    escaped = escaped.replace("'", r"\(aq").replace("`", r"\(ga").replace("^", r"\(ha")
    escaped = escaped.replace("~", r"\(ti")
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def man_pages(*, without_extras: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each page; hidden commands have none.

    Args:
        without_extras: leave out the commands whose extra is not installed.

    Raises:
        MissingExtra: when an extra is not installed, and no command is to be left out.
    """
    context = click.Context(cli, info_name="slurmkit", **cli.context_settings)
    context.meta[_WITHOUT_EXTRAS] = without_extras  # for the contexts below, too
    yield from _pages(cli, context)


def _pages(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    below = [(name, each) for name, each in _subcommands(command, context) if not each.hidden]
    name = context.command_path.replace(" ", "-")
    yield f"{name}.1", _page(command, context, [each for each, _ in below])
    for each, subcommand in below:
        nested = click.Context(subcommand, info_name=each, parent=context)
        yield from _pages(subcommand, nested)


def _subcommands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command]]:
    """Yield the names and commands of a group. A site's own commands are not in our pages."""
    if not isinstance(command, click.Group):
        return
    names = list(COMMANDS) if isinstance(command, LazyGroup) else command.list_commands(context)
    for name in names:
        try:
            found = command.get_command(context, name)
        except MissingExtra:
            if context.meta[_WITHOUT_EXTRAS]:
                continue
            raise
        if found is None:
            raise LookupError(f"{context.command_path} {name}")
        yield name, found


def _page(command: click.Command, context: click.Context, below: list[str]) -> str:
    name = context.command_path.replace(" ", "-")
    date = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC).date()
    formatter = ManFormatter()
    command.format_help(context, formatter)
    title = f'.TH {name.upper()} 1 {date} "slurmkit {__version__}" "slurmkit"\n'
    what = " ".join((command.help or "").split("\n\n")[0].split()).rstrip(".")
    return (
        f"{title}.SH NAME\n{roff(name)} \\- {roff(what)}\n{formatter.getvalue()}"
        f"{_COMMON.lstrip() if context.parent is None else ''}{_see_also(context, below)}"
    )


def _see_also(context: click.Context, below: list[str]) -> str:
    name = context.command_path.replace(" ", "-")
    others = [f"{name}-{each}" for each in below]
    if context.parent is not None:
        others.insert(0, context.parent.command_path.replace(" ", "-"))
    return ".SH SEE ALSO\n" + ",\n".join(rf".BR {roff(other)} (1)" for other in others) + "\n"


def main(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in man_pages():
        folder.joinpath(name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
