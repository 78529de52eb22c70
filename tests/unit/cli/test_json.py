"""`--json` of every command: one shape, described in docs/json.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from json_cases import SCENES, fixed_time

from slurmkit.cli.json_output import JsonOption
from slurmkit.cli.main import cli, run_to_exit_code

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "json.md").read_text("utf-8")
# What prints text for people or shells alone, or asks questions.
WITHOUT_JSON = {
    "allocation coldfront usage",  # it is a script
    "clusters trust",
    "code",
    "completion",
    "config slurm-lua",
    "gpu-exporter",
    "jupyter kernel",  # it writes files, one of them in JSON
    "ledger serve",
    "log",
    "node-check",  # it has the JSON of node_check.py
    "shell",
    "tui",
}


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command that can be run, by its name."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        if command and not (
            isinstance(command, click.Group) and not command.invoke_without_command
        ):
            yield " ".join((*words, name)), command


COMMANDS = dict(commands(cli))


def json_options(command: click.Command) -> list[click.Parameter]:
    return [param for param in command.params if "--json" in param.opts]


def command_of(scene: str) -> str:
    """The longest command that a scene's name begins with."""
    return max((name for name in COMMANDS if f"{scene} ".startswith(f"{name} ")), key=len)


def section_of_page(schema: str) -> str:
    (section,) = [part for part in re.split(r"^#+ ", PAGE, flags=re.M) if f"`{schema}`" in part]
    return section


@pytest.fixture
def printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> Any:
    """What a command prints in a scene."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    for name in ("CACHE", "CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))

    def run(scene: str, flag: str) -> bytes:
        fixed_time(monkeypatch)
        words = SCENES[scene](monkeypatch, tmp_path)
        code = run_to_exit_code(cli, [*command_of(scene).split(), flag, *words])
        shown = capfdbinary.readouterr()
        assert code == 0, shown.err
        return shown.out.replace(str(tmp_path).encode(), b"FOLDER")

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json_or_says_why_not(name: str) -> None:
    """A new command belongs into a scene of tests/support/json_cases.py and into docs/json.md."""
    options = json_options(COMMANDS[name])
    if not options:
        assert name in WITHOUT_JSON
        return
    (option,) = options
    assert isinstance(option, JsonOption)
    assert name in {command_of(scene) for scene in SCENES}
    for schema in option.schemas:
        assert re.fullmatch(r"slurmkit(\.[a-z]+)+/1", schema)
        assert f"`{name}" in section_of_page(schema)


def test_each_schema_is_that_of_one_command() -> None:
    schemas = [
        schema
        for command in COMMANDS.values()
        for option in json_options(command)
        for schema in getattr(option, "schemas", ())
    ]
    assert len(schemas) == len(set(schemas))
    assert set(re.findall(r"`(slurmkit\.[a-z.]+/\d+)`", PAGE)) == set(schemas)


@pytest.mark.parametrize("scene", SCENES)
def test_the_shape_is_that_of_the_page(printed: Any, scene: str) -> None:
    shown = printed(scene, "--json")
    assert shown.count(b"\n") == 1
    found = json.loads(shown)
    assert list(found)[:3] == ["schema", "taken", "rows"]
    (option,) = json_options(COMMANDS[command_of(scene)])
    assert isinstance(option, JsonOption)
    assert found["schema"] in option.schemas
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["taken"])
    assert isinstance(found["rows"], list)
    page = section_of_page(found["schema"])
    keys = {key for row in found["rows"] for key in row} | set(list(found)[3:])
    if "the columns of the report" in page:
        keys = set(list(found)[3:])
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_json_takes_no_word(printed: Any) -> None:
    """`--json 7` asks for JSON about job 7."""
    assert json.loads(printed("job", "--json"))["rows"][0]["job_id"] == "7"


def test_what_fails_prints_no_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SCENES["job"](monkeypatch, tmp_path)
    for words in (["job", "--json", "99"], ["hold", "--json", "x"], ["cancel", "--json", "--me"]):
        assert run_to_exit_code(cli, words) != 0
        shown = capsys.readouterr()
        assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_all_of_several_that_can_be_shown_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    SCENES["job several"](monkeypatch, tmp_path)
    assert run_to_exit_code(cli, ["job", "--json", "7", "99", "8"]) == 1
    shown = capsys.readouterr()
    assert [row["job_id"] for row in json.loads(shown.out)["rows"]] == ["7", "8"]
    assert "no job 99" in shown.err
