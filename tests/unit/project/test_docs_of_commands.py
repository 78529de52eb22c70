"""Every `slurmkit …` line of the guides and of --help is one that the command line takes."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from slurmkit.cli import cluster_state, fairshare, reservations
from slurmkit.cli.job_options import parse_job_options
from slurmkit.cli.main import cli
from slurmkit.state.queue_rows import QUEUE_COLUMNS

ROOT = Path(__file__).parents[3]
GUIDES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```|((?:^    .*\n)+)", re.MULTILINE | re.DOTALL)
SIGNS = set("|&;()<>")
JOBS = ("plan", "submit", "shell", "start")
# What stands for something else: a shell's variable, or a name in capitals.
SHELL = {"$PWD": "/home/alice/train", "$first": "12", "~/": "/home/alice/"}
PLACEHOLDER = re.compile(r"…|\[|, |\b[A-Z]{2,}\b|\.\.\.")


def in_blocks(text: str) -> Iterator[str]:
    """Command lines in fenced or indented blocks; of a console what follows a prompt."""
    for kind, fenced, indented in BLOCK.findall(text):
        if kind not in ("", "console", "bash", "sh"):
            continue
        lines = (fenced or indented).replace("\\\n", " ").splitlines()
        for line in map(str.strip, lines):
            if kind == "console" and not line.startswith(("$ ", "# ")):
                continue
            yield re.sub(r"^(\$|# (?=docker/|slurmkit)) *", "", line)


def in_words(text: str) -> Iterator[str]:
    """Commands within sentences that are written out in full."""
    outside = BLOCK.sub("", text)
    found = re.findall(r"`(slurmkit [^`]+)`", outside)
    yield from (line for line in found if not PLACEHOLDER.search(line))


def commands(line: str) -> Iterator[list[str]]:
    """The words of each slurmkit in a line of shell."""
    for name, value in SHELL.items():
        line = line.replace(name, value)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        tokens = list(lexer)
    except ValueError:  # a line of something else
        return
    for token in [*tokens, ";"]:
        if set(token) <= SIGNS:
            words = words[words.index("slurmkit") :] if "slurmkit" in words[:8] else []
            if len(words) > 1:
                yield words[1:]
            words = []
        else:
            words.append(token)


def all_lines() -> list[tuple[str, str]]:
    found = []
    for guide in GUIDES:
        text = guide.read_text("utf-8")
        where = str(guide.relative_to(ROOT))
        found += [(where, line) for line in (*in_blocks(text), *in_words(text))]
    return [each for each in dict.fromkeys(found) if list(commands(each[1]))]


def examples(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Lines of `Examples:` of a command and of those below it."""
    text = (command.help or "").partition("Examples:")[2].replace("\\\n", " ")
    yield from ((name, line.strip()) for line in text.splitlines() if "slurmkit " in line)
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from examples(below, f"{name} {each}")


def taken(words: list[str], *, whole: bool = True) -> None:
    """Read the words of a command as it would, short of running it."""
    with suppress(click.exceptions.Exit):  # of --help
        read(words, whole=whole)


def read(words: list[str], *, whole: bool) -> None:
    command: click.Command = cli
    context: click.Context | None = None
    name = "slurmkit"
    while isinstance(command, click.Group):
        context = command.make_context(name, list(words), parent=context)
        rest = [*context._protected_args, *context.args]
        if not rest:  # a group that does something by itself
            return
        found, below, words = command.resolve_command(context, rest)
        assert below is not None
        name, command = found or "", below
    try:
        context = command.make_context(name, list(words), parent=context)
    except (click.MissingParameter, click.BadOptionUsage):
        assert not whole
        return
    if name in JOBS and "job_file" in context.params:
        options = dict(context.params)
        options["command"] = options["command"] or (() if options["script"] else ("x",))
        assert parse_job_options(options).spec


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files that the guides' jobs are read from."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=5\nhostname\n", "utf-8")
    (tmp_path / "train.toml").write_text('command = ["hostname"]\n', "utf-8")
    (tmp_path / "train.py").write_text("", "utf-8")
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "x")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("where", "line"), all_lines())
def test_every_command_of_the_guides_is_taken(where: str, line: str) -> None:
    whole = line in set(in_blocks((ROOT / where).read_text("utf-8")))
    for words in commands(line):
        try:
            taken(words, whole=whole)
        except click.exceptions.NoArgsIsHelpError:
            assert not whole


@pytest.mark.usefixtures("folder")
def test_every_example_of_help_is_taken() -> None:
    found = list(examples(cli, "slurmkit"))
    assert len(found) > 100
    for _, line in found:
        for words in commands(line):
            taken(words)


def test_commands_are_found_and_wrong_ones_not_taken() -> None:
    assert list(commands("id=$(slurmkit submit --parsable -- x | cat) && slurmkit log $id")) == [
        ["submit", "--parsable", "--", "x"],
        ["log", "$id"],
    ]
    assert len(all_lines()) > 120
    for line in ("submit --gpus-per-nod 1 -- x", "submitt -- x", "job --nope 1", "image imports x"):
        with pytest.raises(click.UsageError):
            taken(line.split())


@pytest.mark.parametrize("name", ["commands", "reasons"])
def test_a_page_made_from_the_code_is_up_to_date(name: str) -> None:
    spec = importlib.util.spec_from_file_location(f"{name}_page", ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    assert written == module.page(), f"make it anew: .venv/bin/python docs/{name}.py"


@pytest.mark.parametrize(
    ("command", "columns"),
    [
        ("queue", QUEUE_COLUMNS),
        ("nodes", cluster_state._COLUMNS),
        ("gpus", cluster_state._LIST),
        ("reservations", reservations._COLUMNS),
        ("fairshare", fairshare._COLUMNS),
    ],
)
def test_every_column_is_in_the_reference(command: str, columns: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / "columns.md").read_text("utf-8")
    section = text.partition(f"\n## slurmkit {command}\n")[2].partition("\n## ")[0]
    cells = "".join(re.findall(r"^\|([^|]*)\|", section, re.MULTILINE))
    assert sorted(re.findall(r"`([^`]+)`", cells)) == sorted(columns)
