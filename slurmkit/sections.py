"""Every section of the configuration as it is declared, and as the files have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from slurmkit.config import SECTIONS, Table, joined, own_keys, quoted
from slurmkit.plugins import plugins

Section = type[msgspec.Struct]
_ENTRY = re.compile(r"^    (?P<name>\w+): (?P<text>.*(?:\n {8,}.*)*)", re.MULTILINE)
# `//user:PASSWORD@host`, which may hold any sign, and `?password=PASSWORD`.
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*:)\S+(?=@)|([?&]\w*passw\w*=)[^\s&]+", re.IGNORECASE)


class Setting(msgspec.Struct, frozen=True):
    """One key of one section.

    Attributes:
        section: name of the section; `gpu.*` where no file has a table `[gpu.TYPE]`.
        value: what holds; a password within a URL is left out.
        source: the file it comes from, or `default`.
        meaning: what the section's declaration says of it.
    """

    section: str
    key: str
    value: object
    source: str
    meaning: str


class Found(NamedTuple):
    """A table of a file that is a declared section."""

    path: Path
    name: str
    table: Table
    section: Section


class Stray(NamedTuple):
    """Something in a file that is no section; `known` are the names that could stand there."""

    path: Path
    name: str
    value: object
    known: list[str]


def declared() -> dict[str, Section]:
    """Every section of our packages, imported."""
    split = ((name, target.partition(":")) for name, target in SECTIONS.items())
    return {name: getattr(import_module(module), each) for name, (module, _, each) in split}


def declared_by(name: str) -> Section:
    """The section that a plugin declares; `Plugin.load` says what may be raised."""
    return cast("Section", plugins("config")[name].load())


def walk(
    path: Path, table: Table, sections: dict[str, Section], above: str = ""
) -> Iterator[Found | Stray]:
    """Find the sections of one parsed file, and what is none."""
    for key, value in table.items():
        name = f"{above}{quoted(key)}"
        section = sections.get(name) or sections.get(f"{above}*")
        known = _names_below(above, sections)
        if not isinstance(value, dict) or (section is None and key not in known):
            yield Stray(path, name, value, known)
        elif section is None:
            yield from walk(path, value, sections, f"{name}.")
        else:
            own = own_keys(name, value, sections)
            yield Found(path, name, own, section)
            inner = {key: value[key] for key in value.keys() - own.keys()}
            yield from walk(path, inner, sections, f"{name}.")


def _names_below(above: str, sections: dict[str, Section]) -> list[str]:
    below = [name.removeprefix(above) for name in sections if name.startswith(above)]
    return sorted({name.partition(".")[0] for name in below} - {"*"})


def merged(name: str, tables: list[Found]) -> Table:
    """What all files together give a section, later ones winning key by key."""
    values: Table = {}
    for found in tables:
        values = joined(values, found.table if found.name == name else {})
    return values


def settings(sections: dict[str, Section], tables: list[Found]) -> Iterator[Setting]:
    """Every key of every section with what holds; the files must have passed the check."""
    for pattern, section in sections.items():
        stem = pattern.removesuffix("*")
        names = [found.name for found in tables if found.name.startswith(stem)]
        for name in dict.fromkeys(names if stem != pattern and names else [pattern]):
            yield from _settings_of(name, section, tables)


def _settings_of(name: str, section: Section, tables: list[Found]) -> Iterator[Setting]:
    values = merged(name, tables)
    made = msgspec.convert(values, section) if values else None
    sources = _sources([found for found in tables if found.name == name])
    for field in msgspec.structs.fields(section):
        value = msgspec.to_builtins(getattr(made, field.name) if made else _default(field))
        source = sources.get(field.encode_name, "default")
        meaning = meanings(section).get(field.name, "")
        yield Setting(name, field.encode_name, _without_password(value), source, meaning)


def _sources(tables: list[Found]) -> dict[str, str]:
    """The files that the value of each key comes from: the last one, of a table several."""
    sources: dict[str, str] = {}
    for path, key, value in ((t.path, *item) for t in tables for item in t.table.items()):
        before = f"{sources[key]}, " if key in sources and isinstance(value, dict) else ""
        sources[key] = f"{before}{path}"
    return sources


def meanings(section: Section) -> dict[str, str]:
    """What the docstring of a section says of each attribute, on one line."""
    _, _, listed = cleandoc(section.__doc__ or "").partition("Attributes:\n")
    return {found["name"]: " ".join(found["text"].split()) for found in _ENTRY.finditer(listed)}


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return cast("Any", field.default_factory)()
    return None if field.default is msgspec.NODEFAULT else field.default


def _without_password(value: object) -> object:
    return _PASSWORD.sub(r"\1\2***", value) if isinstance(value, str) else value
