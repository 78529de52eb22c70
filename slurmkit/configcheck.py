"""All that is wrong in the configuration files, collected rather than raised one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from slurmkit.config import Table, config_paths, explained, nearest, read_file, unknown_keys
from slurmkit.errors import BadConfig, BrokenPlugin
from slurmkit.plugins import plugins
from slurmkit.prices import gpu_settings
from slurmkit.sections import (
    Found,
    Section,
    Setting,
    Stray,
    declared,
    declared_by,
    merged,
    settings,
    walk,
)


class Problem(msgspec.Struct, frozen=True):
    """Something wrong in the configuration.

    Attributes:
        file: path of the file, or what else is to be put right.
        section: where in it; empty for the file as a whole. So `key`.
        message: what is wrong and what is allowed.
    """

    file: str
    section: str
    key: str
    message: str

    def __str__(self) -> str:
        where = f" [{self.section}]" if self.section else ""
        return f"{self.file}:{where} {self.key + ': ' if self.key else ''}{self.message}"


class Survey(msgspec.Struct, frozen=True):
    """The configuration as it is: what holds, unless something is wrong.

    Attributes:
        settings: every key of every section; empty when there are problems.
        problems: all of them, by file in the order of `config_paths`.
    """

    settings: tuple[Setting, ...]
    problems: tuple[Problem, ...]


def survey() -> Survey:
    """Read every file and compare it with every declared section."""
    problems: list[Problem] = []
    sections = declared() | _of_plugins(problems)
    tables: list[Found] = []
    for path in config_paths():
        for each in walk(path, _read(path, problems), sections):
            if isinstance(each, Stray):
                problems.append(_stray(each))
            else:
                tables.append(each)
                problems += _in_table(each)
    problems += _in_sections(tables, problems)
    return Survey(() if problems else tuple(settings(sections, tables)), tuple(problems))


def _of_plugins(problems: list[Problem]) -> dict[str, Section]:
    found: dict[str, Section] = {}
    for name in plugins("config"):
        try:
            found[name] = declared_by(name)
        except BrokenPlugin as error:
            problems.append(Problem("plugin", name, "", str(error)))
    return found


def _read(path: Path, problems: list[Problem]) -> Table:
    try:
        return read_file(path)
    except BadConfig as error:
        problems.append(Problem(str(path), "", "", str(error)))
        return {}


def _stray(stray: Stray) -> Problem:
    name = stray.name.rpartition(".")[2]
    if name in stray.known or not stray.known:
        message = f"must be a table, e.g. [{stray.name}] on a line of its own"
    else:
        message = f"no such section; {nearest(name, stray.known, 'sections')}"
    return Problem(str(stray.path), stray.name, "", message)


def _in_table(found: Found) -> Iterator[Problem]:
    file = str(found.path)
    for key, hint in unknown_keys(found.table, found.section).items():
        yield Problem(file, found.name, key, f"no such key; {hint}")
    for field in msgspec.structs.fields(found.section):
        key = field.encode_name
        if key in found.table and (wrong := _wrong(key, found.table[key], field.type)):
            yield Problem(file, found.name, key, wrong)


def _wrong(key: str, value: object, wanted: object) -> str:
    """What is wrong with one value; in a struct of its own, so that the error has its path."""
    holder = msgspec.defstruct("Holder", [("value", wanted)])
    try:
        msgspec.convert({"value": value}, holder)
    except msgspec.ValidationError as error:
        return explained(error, holder).replace("$.value", f"$.{key}").removeprefix("value: ")
    return ""


def _in_sections(tables: list[Found], known: list[Problem]) -> Iterator[Problem]:
    """What only shows when a section is put together from all files, and all sections."""
    bad = {problem.section for problem in known}
    whole = {found.name: found for found in tables if found.name not in bad}
    for name, found in whole.items():
        try:
            msgspec.convert(merged(name, tables), found.section)
        except msgspec.ValidationError as error:
            yield Problem(str(found.path), name, "", explained(error, found.section))
    if not known:
        yield from _in_names()


def _in_names() -> Iterator[Problem]:
    try:
        gpu_settings()
    except BadConfig as error:
        yield Problem("configuration", "", "", str(error))
