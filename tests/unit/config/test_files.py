"""Configuration files: who wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurmkit.config import files
from slurmkit.config.check import inspect_configuration
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
    shared = [Path("/etc/slurmkit/config.toml"), Path("/etc/xdg/slurmkit/config.toml")]
    assert config_paths() == shared


def test_a_relative_folder_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("XDG_CONFIG_DIRS", "here:/there::./")
    assert config_paths()[1:] == [
        Path("/there/slurmkit/config.toml"),
        Path.home() / ".config" / "slurmkit" / "config.toml",
    ]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The site's folder, with a folder of further files."""
    folder = tmp_path / "etc"
    (folder / "conf.d").mkdir(parents=True)
    monkeypatch.setattr(files, "SITE_FOLDER", folder)
    return folder


def test_further_files_of_the_site_win_over_its_first_by_name(site: Path) -> None:
    (site / "config.toml").write_text('[ldap]\nuri = "ldap://first"\nport = 1', "utf-8")
    for name, port in (("20-b.toml", 3), ("10-a.toml", 2), (".hidden.toml", 4), ("x.toml~", 5)):
        (site / "conf.d" / name).write_text(f"[ldap]\nport = {port}", "utf-8")
    assert load_section("ldap", Section) == Section("ldap://first", 3)
    own = Path.home() / ".config" / "slurmkit" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[ldap]\nport = 9", "utf-8")
    assert load_section("ldap", Section) == Section("ldap://first", 9)


def test_of_shared_folders_the_first_wins(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """XDG Base Directory Specification: the order of XDG_CONFIG_DIRS is that of importance."""
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path}/one:{tmp_path}/two")
    for name, text in (("one", "port = 1"), ("two", 'port = 2\nuri = "ldap://two"')):
        (tmp_path / name / "slurmkit").mkdir(parents=True)
        (tmp_path / name / "slurmkit" / "config.toml").write_text(f"[ldap]\n{text}", "utf-8")
    (site / "conf.d" / "a.toml").write_text('[ldap]\nport = 3\nuri = "x"', "utf-8")
    assert load_section("ldap", Section) == Section("ldap://two", 1)


def test_each_value_is_shown_with_the_file_it_is_from(site: Path) -> None:
    (site / "config.toml").write_text('[tui]\ntheme = "light"\nview = "queue"', "utf-8")
    (site / "conf.d" / "tui.toml").write_text('[tui]\nview = "mine"', "utf-8")
    found = {each.key: each for each in inspect_configuration().settings if each.section == "tui"}
    assert found["theme"].source == str(site / "config.toml")
    assert (found["view"].value, found["view"].source) == ("mine", str(site / "conf.d/tui.toml"))


def test_a_folder_that_cannot_be_read_is_an_error(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(files.os, "listdir", refuse)
    with pytest.raises(BadConfig, match=f"cannot read the folder .*{site}/conf.d"):
        config_paths()
