"""NO_COLOR (https://no-color.org) and FORCE_COLOR (https://force-color.org)."""

from __future__ import annotations

from pathlib import Path

import pytest
from json_cases import SCENES

from slurmkit.cli.main import cli, run_to_exit_code

PIPE = {"NO_COLOR": "", "FORCE_COLOR": "", "TERM": "xterm"}


@pytest.mark.parametrize(
    ("environ", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, True),  # any value that is not empty
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
@pytest.mark.parametrize("command", ["queue", "gpus", "doctor", "plan"])
def test_colours_in_a_pipe(
    command: str,
    environ: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (PIPE | environ).items():
        monkeypatch.setenv(name, value)
    words = SCENES[command](monkeypatch, tmp_path)
    assert run_to_exit_code(cli, [command, *words]) == 0
    shown = capsys.readouterr()
    assert ("\x1b[" in shown.out + shown.err) is coloured


@pytest.mark.parametrize("command", ["doctor", "plan"])
def test_no_color_holds_on_a_terminal(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)  # as on a terminal
    words = SCENES[command](monkeypatch, tmp_path)
    assert run_to_exit_code(cli, [command, *words]) == 0
    shown = capsys.readouterr()
    assert "\x1b[" not in shown.out + shown.err
