"""The configuration as a whole: what holds and where it comes from; everything that is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurmkit.cli.main import cli, run_to_exit_code
from slurmkit.config import files
from slurmkit.config.check import declared_sections, inspect_configuration, key_meanings
from slurmkit.config.plugins import Plugin


def run(*args: str) -> int:
    return run_to_exit_code(cli, ["config", *args])


@pytest.fixture
def own() -> Path:
    path = Path.home() / ".config" / "slurmkit" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "named.toml"
    path.write_text("", "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(path))
    return path


@pytest.mark.parametrize("name", files.SECTIONS)
def test_every_key_of_ours_says_what_it_means(name: str) -> None:
    section = declared_sections()[name]
    assert set(key_meanings(section)) == {*section.__struct_fields__}


_WITHOUT_EXTRAS = """
import os
import subprocess
import sys
from slurmkit.config.extras import EXTRAS
sys.modules |= dict.fromkeys({each for modules in EXTRAS.values() for each in modules})
from slurmkit.cli.main import cli, run_to_exit_code
sys.exit(run_to_exit_code(cli, ["config", "check"]))
"""


def test_the_check_needs_no_extra(own: Path) -> None:
    own.write_text('[tui]\nview = "queue"\nkeys = {filter = "f"}\n[project.x]\naccounts = ["a"]\n')
    argv = [sys.executable, "-c", _WITHOUT_EXTRAS]
    environ = os.environ | {"SLURMKIT_CONFIG": str(own)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_show_names_the_file_of_each_value(
    own: Path, named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text('[ldap]\nuri = "ldap://own"\ntimeout = 5\n[gpu.h100]\nwatts = 700\n', "utf-8")
    named.write_text("[ldap]\ntimeout = 7\n[policy.gpu_hours]\nmax_gpu_hours = 9\n", "utf-8")
    assert run("show", "--json") == 0
    shown = {(s["section"], s["key"]): s for s in json.loads(capsys.readouterr().out)["rows"]}
    assert (shown["ldap", "uri"]["value"], shown["ldap", "uri"]["source"]) == (
        "ldap://own",
        str(own),
    )
    assert (shown["ldap", "timeout"]["value"], shown["ldap", "timeout"]["source"]) == (
        7,
        str(named),
    )
    assert shown["ldap", "page_size"]["source"] == "default"
    assert shown["gpu.h100", "watts"]["value"] == 700
    assert shown["policy.gpu_hours", "max_gpu_hours"]["source"] == str(named)
    assert ("gpu.*", "watts") not in shown
    assert "seconds to wait" in shown["ldap", "timeout"]["meaning"]


def test_show_as_a_table(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("SECTION")
    assert "gpu.*" in shown.out
    assert str(named) in shown.err


def test_show_takes_sections(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "ledger.service", "poll") == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert {row.split()[0] for row in rows} == {"ledger.service", "poll"}
    assert run("show", "ledger", "--json") == 0
    found = {row["section"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {"ledger", "ledger.service"} <= found
    assert all(f"{name}.".startswith("ledger.") for name in found)
    assert run("show", "tiu") == 2
    assert "there is no section 'tiu'; did you mean 'tui'?" in capsys.readouterr().err


def test_show_wraps_meanings_on_a_terminal(
    named: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("show", "tui") == 0
    piped = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("show", "tui") == 0
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert sorted(shown.split()) == sorted(piped.split())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://keeper:sesame@db/x", "keeper:***@db/x"),
        ("postgresql://keeper:se/sa@me@db/x", "keeper:***@db/x"),
        ("postgresql://db/x?user=keeper&password=sesame&a=b", "user=keeper&password=***&a=b"),
        ("postgresql://db/x?sslpassword=sesame", "sslpassword=***"),
    ],
)
def test_show_hides_a_password(
    named: Path, capsys: pytest.CaptureFixture[str], url: str, shown: str
) -> None:
    named.write_text(f'[ledger]\ndb = "{url}"', "utf-8")
    assert run("show") == 0
    said = capsys.readouterr().out
    assert shown in said
    assert "sesame" not in said
    assert "sa@me" not in said


WRONG = """
[ldpa]
uri = "x"
[ldap]
tiemout = 1
page_size = "many"
timeout = 4000
[policy.gpu_huors]
[policy.gpu_hours]
default_time = "soon"
[gpu.a100_3g.20gb]
weight = 2
[partition]
untyped = 1
"""


def test_check_collects_everything(
    own: Path, named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text("[ldap", "utf-8")
    named.write_text(WRONG, "utf-8")
    assert run("check") == 2
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    for file, says in [
        (own, "cannot read the configuration file"),
        (named, "[ldpa] no such section; did you mean 'ldap'?"),
        (named, "[ldap] tiemout: no such key; did you mean 'timeout'?"),
        (named, "[ldap] page_size: Expected `int`, got `str` - at `$.page_size`"),
        (named, "[ldap] timeout: Expected `int` <= 3600 - at `$.timeout`"),
        (named, "[policy.gpu_huors] no such section; did you mean 'gpu_hours'?"),
        (named, "[policy.gpu_hours] default_time: time limit 'soon'"),
        (named, "[gpu.a100_3g] 20gb: no such key; known keys:"),
        (named, "[partition.untyped] must be a table"),
    ]:
        assert [line for line in lines if line.startswith(f"{file}:") and says in line], says
    assert len(lines) == 9
    assert shown.err == "slurmkit: 9 problems in the configuration\n"
    assert run("show") == 2


def test_check_as_json(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named.write_text("[ldap]\nx = 1", "utf-8")
    assert run("check", "--json") == 2
    (problem,) = json.loads(capsys.readouterr().out)["rows"]
    assert (problem["file"], problem["section"], problem["key"]) == (str(named), "ldap", "x")


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("budgets", '[[budget]]\npi = "vogel"\n', "a [[budget]] has pi, gpu_hours, from and to"),
        ("overrides", "[[other]]\n", "each under a line [[override]]"),
    ],
)
def test_check_reads_the_files_that_are_named(
    named: Path, capsys: pytest.CaptureFixture[str], key: str, text: str, words: str
) -> None:
    file = named.with_name(f"{key}.toml")
    file.write_text(text, "utf-8")
    named.write_text(f'[ledger]\n{key} = "{file}"\n', "utf-8")
    assert run("check") == 2
    shown = capsys.readouterr().out
    assert shown.startswith("configuration: [ledger] ")
    assert words in shown
    assert run("show", "ledger") == 0
    file.write_text("", "utf-8")
    assert run("check") == 0


def test_check_of_good_files(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named.write_text('[gpu."a100_3g.20gb"]\nweight = 0.5\n[ldap]\ntimeout = 1', "utf-8")
    assert run("check") == 0
    shown = capsys.readouterr()
    assert not shown.out
    assert str(named) in shown.err


def test_names_that_clash_are_a_problem(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named.write_text('[gpu.a]\naliases = ["x"]\n[gpu.b]\naliases = ["X"]', "utf-8")
    assert run("check") == 2
    assert "already stands for a" in capsys.readouterr().out


def test_a_named_file_must_exist(named: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named.unlink()
    assert run("check") == 2
    assert "does not exist" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            "slurmkit.config.prices:PartitionSettings",
            "[site] zzz: no such key; known keys: gpu_type",
        ),
        ("slurmkit.nowhere:X", "plugin: [site] plugin 'site' of slurmkit.config"),
    ],
)
def test_a_plugin_declares_its_section(
    target: str, says: str, named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = Plugin("config", "site", target, "site", "1")
    monkeypatch.setattr("slurmkit.config.plugins.registered_plugins", lambda: (plugin,))
    named.write_text("[site]\nzzz = 1", "utf-8")
    assert says in str(inspect_configuration().problems[0])


def test_a_section_within_a_section(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.write_text('[ledger]\ndb = "x"\n[ledger.service]\nuser = "books"\n', "utf-8")
    assert inspect_configuration().problems == ()
    assert run("show", "--json") == 0
    shown = {
        (s["section"], s["key"]): s["value"] for s in json.loads(capsys.readouterr().out)["rows"]
    }
    assert shown["ledger", "db"] == "x"
    assert shown["ledger.service", "user"] == "books"
    own.write_text("[ledger.servise]\n[ledger.service]\nusr = 1\n", "utf-8")
    assert [(p.section, p.key) for p in inspect_configuration().problems] == [
        ("ledger", "servise"),
        ("ledger.service", "usr"),
    ]


def test_a_table_of_several_files_is_shown_and_checked_as_it_holds(
    own: Path, named: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text('[tui]\nview = "mine"\nkeys = {cancel = "X", hold = "Z"}\n', "utf-8")
    named.write_text('[tui]\nkeys.hold = "Q"\n', "utf-8")
    assert run("show", "--json") == 0
    shown = {
        s["key"]: s for s in json.loads(capsys.readouterr().out)["rows"] if s["section"] == "tui"
    }
    assert shown["keys"]["value"] == {"cancel": "X", "hold": "Q"}
    assert shown["keys"]["source"] == f"{own}, {named}"
    assert shown["view"]["source"] == str(own)
    named.write_text('[tui]\nkeys.hold = "X"\n', "utf-8")
    assert run("check") == 2
    assert "used twice" in capsys.readouterr().out
