"""`slurmkit tui` before the app starts."""

from __future__ import annotations

import pytest

from slurmkit.cli.main import cli, run_to_exit_code


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "needs a terminal"),
        (["--interval", "1"], "1.0 is not in the range x>=2.0"),
        (["--interval", "soon"], "'soon' is not a valid float"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    args: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to_exit_code(cli, ["tui", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "meant"), [("smaple", "did you mean 'sample'? name a file"), ("x.rec", "name a file")]
)
def test_a_recording_that_is_not_there(
    name: str, meant: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert run_to_exit_code(cli, ["tui", "--replay", name]) == 2
    _, err = capsys.readouterr()
    assert f"--replay {name}: there is no such file; {meant}" in err
    assert "'sample' for the demo cluster" in err
    assert err.count("\n") == 1


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    run_to_exit_code(cli, ["tui", "--help"])
    shown = capsys.readouterr().out
    assert "slurmkit tui --mine --interval 30" in shown
    assert "slurmkit tui --replay sample" in shown
