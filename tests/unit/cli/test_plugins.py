"""`slurmkit plugins`: what is listed, and that a broken one is named."""

from __future__ import annotations

import importlib.metadata
import json

import pytest

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.config.plugins import OWN_DISTRIBUTION, Plugin

OWN = Plugin(
    "launchers",
    "srun",
    "slurmkit.planning.launchers.srun:Srun",
    OWN_DISTRIBUTION,
    importlib.metadata.version(OWN_DISTRIBUTION),
)
SITE = [
    Plugin("launchers", "srun", "site.launch:Srun", "site", "1"),
    Plugin("launchers", "bad\x1b", "slurmkit.launchers:Nowhere", "site", "1"),
    Plugin("commands", "queue", "site.cli:queue", "site", "1"),
    Plugin("lanchers", "x", "site.launch:X", "site", "1"),
]


def listed(capsys: pytest.CaptureFixture[str], *args: str) -> dict[tuple[str, str], dict[str, str]]:
    run_to_exit_code(cli, ["plugins", "--json", *args])
    lines = json.loads(capsys.readouterr().out)["rows"]
    return {(line["name"], line["distribution"]): line for line in lines}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmkit.config.plugins.registered_plugins", lambda: (OWN, *SITE))
    monkeypatch.setattr("slurmkit.cli.settings.registered_plugins", lambda: (OWN, *SITE))


def test_ours_are_listed_and_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(cli, ["plugins", "--check"]) == 0
    shown = capsys.readouterr().out
    for name in ("srun", "none", "gpu_hours"):
        assert name in shown
    assert "not loaded" not in shown


@pytest.mark.usefixtures("installed")
def test_nothing_is_imported_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys)
    assert lines["srun", OWN_DISTRIBUTION]["state"] == "not loaded"
    assert lines["bad\x1b", "site"]["state"] == "not loaded"


@pytest.mark.usefixtures("installed")
def test_check_names_the_broken_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit_code(cli, ["plugins", "--check"]) == 1
    shown = capsys.readouterr()
    assert "failed: plugin 'bad\\x1b' of slurmkit.launchers" in shown.out
    assert "\x1b" not in shown.out
    assert shown.err == "slurmkit: 1 broken plugin\n"


@pytest.mark.usefixtures("installed")
def test_what_is_never_used_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    lines = listed(capsys)
    assert lines["srun", "site"]["why"] == f"the name is taken by {OWN_DISTRIBUTION}"
    assert lines["queue", "site"]["why"] == f"the name is taken by {OWN_DISTRIBUTION}"
    assert (
        "no such kind of plugin: 'lanchers'; the kinds are backends, launchers"
        in lines["x", "site"]["why"]
    )
