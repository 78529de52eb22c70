"""`--json` of every command: one shape, described in docs/json.md, and the shape of 0.1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from json_cases import SCENES, fixed_time, make_report, old_names
from planner_lab import Lab
from recorded_lab import slurm
from slurmkit_accounting.render.text import as_old_json

from slurmkit.cli.json_output import JsonOption, in_old_shape
from slurmkit.cli.main import cli, run_to_exit_code

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "json.md").read_text("utf-8")
# What prints text for people or shells alone, or asks questions.
WITHOUT_JSON = {
    "clusters trust",
    "code",
    "completion",
    "config slurm-lua",
    "gpu-exporter",
    "ledger serve",
    "log",
    "node-check",  # it has the JSON of node_check.py
    "notify",
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


def row_of_page(schema: str) -> str:
    (line,) = [line for line in PAGE.splitlines() if f"`{schema}`" in line and line[0] == "|"]
    return line


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
        assert f"`{name}" in row_of_page(schema)
    assert option.has_old == any(command_of(old) == name for old in old_names())


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
    page = row_of_page(found["schema"])
    keys = {key for row in found["rows"] for key in row} | set(list(found)[3:])
    if "the columns of the report" in page:
        keys = set(list(found)[3:])
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_a_plan_of_the_old_shape_has_later_fields_in_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slurmkit.cli.submit.Cluster", lambda: Lab(slurm()))
    later = {"mincpus": "3", "overcommit": "", "hint": "nomultithread", "tmp": "2G"}
    words = [f"--{name}={value}" if value else f"--{name}" for name, value in later.items()]
    per_socket = ["--gpus-per-socket=a100:2", "--sockets-per-node=2", "--option=contiguous"]
    argv = ["plan", "--json=0.1", "--time=5", "--ntasks=1", *words, *per_socket, "--", "x"]
    run_to_exit_code(cli, argv)
    spec = json.loads(capsys.readouterr().out)["spec"]
    sockets = {"gpus-per-socket": "a100:2", "sockets-per-node": "2"}
    assert spec.pop("options") == {**later, **sockets, "contiguous": ""}
    assert set(spec) & {*later, *sockets, "gpus"} == set()


@pytest.mark.parametrize("scene", old_names())
def test_the_old_shape_is_that_of_0_1(printed: Any, scene: str) -> None:
    """A key that 0.1 did not have belongs into `_ADDED_KEYS` of slurmkit/cli/json_output.py."""
    assert printed(scene, "--json=0.1") == old_names()[scene].read_bytes()


@pytest.mark.parametrize("flag", ["--json=1", "--json=", "--json=0.2"])
def test_another_shape_is_an_error_that_names_the_known(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to_exit_code(cli, ["queue", flag]) == 2
    said = capsys.readouterr().err
    assert f"{flag} is not known here; give --json or --json=0.1; see" in said
    assert run_to_exit_code(cli, ["hold", "--json=0.1", "7"]) == 2
    assert "--json=0.1 is not known here; give --json; see" in capsys.readouterr().err


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


def test_reports_in_the_old_shape_have_the_old_names() -> None:
    report = make_report("wait", definitions=("a mean",), notes=("odd",))
    meta = msgspec.structs.replace(report.meta, by=("gpu_type",), total={"jobs": 1})
    row = {"gpu_type": "a100", "jobs": 1}
    old = json.loads(as_old_json(msgspec.structs.replace(report, meta=meta, rows=(row,))))
    assert old["rows"] == [{"gpu-type": "a100", "jobs": 1}]
    assert (old["meta"]["by"], old["meta"]["total"]) == (["gpu-type"], {})
    assert (old["meta"]["notes"], "definitions" in old["meta"]) == (["a mean", "odd"], False)


def test_an_added_key_is_left_out_only_in_its_object() -> None:
    data = {"outcome": {"part": 1, "kind": 2}, "part": 3}
    assert in_old_shape([data]) == [{"outcome": {"kind": 2}, "part": 3}]


def test_an_exit_code_in_doubt_is_that_of_sacct_in_the_old_shape() -> None:
    job = {"exit_code": "1 or 129", "outcome": {"exit_code": None, "exit_codes": [1, 129]}}
    assert in_old_shape(job) == {"exit_code": "1:0", "outcome": {"exit_code": 1}}
    ended = {"exit_code": "3:0", "outcome": {"exit_code": 3, "exit_codes": [3]}}
    assert in_old_shape(ended) == {"exit_code": "3:0", "outcome": {"exit_code": 3}}
