"""Configuration files: who wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurmkit.config.files import config_paths, load_section
from slurmkit.errors import BadConfig


class Section(msgspec.Struct, frozen=True):
    """A section as a package would declare it."""

    uri: str = "ldap://localhost"
    port: int = 389


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = tmp_path / "named.toml"
    path.write_text("", "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(path))
    return path


def test_defaults_without_files() -> None:
    assert load_section("ldap", Section) == Section()


def test_later_files_win_key_by_key(file: Path) -> None:
    own = Path.home() / ".config" / "slurmkit" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[ldap]\nuri = "ldap://own"\nport = 1', "utf-8")
    file.write_text("[ldap]\nport = 2\n[other]\nx = 1", "utf-8")
    assert load_section("ldap", Section) == Section("ldap://own", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[ldap]\nprot = 1", "has no key 'prot'; did you mean 'port'"),
        ("[ldap]\nzzzz = 1", "known keys: uri, port"),
        ('[ldap]\nport = "x"', r"named.toml: \[ldap\]: Expected `int`, got `str` - at `\$.port`"),
        ("ldap = 1", "must be a table"),
        ("[ldap", "cannot read the configuration file"),
    ],
)
def test_a_wrong_file_is_named(file: Path, text: str, says: str) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(BadConfig, match=says):
        load_section("ldap", Section)


def test_a_named_file_must_exist(file: Path) -> None:
    file.unlink()
    with pytest.raises(BadConfig, match="does not exist"):
        load_section("ldap", Section)


def test_whoever_has_no_home_has_no_file_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user id that this machine has no name for, in a container."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert config_paths() == [Path("/etc/slurmkit/config.toml")]


def test_a_relative_folder_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    assert config_paths()[1] == Path.home() / ".config" / "slurmkit" / "config.toml"
