"""The check of the configuration: its sections as declared, and as the files set them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import msgspec

from slurmkit.config.files import (
    SECTIONS,
    Table,
    config_paths,
    did_you_mean,
    explain_validation_error,
    load_config_file,
    merge_tables,
    parse_config_text,
    quote_key,
    unknown_keys,
    without_subsections,
)
from slurmkit.config.plugins import plugins
from slurmkit.config.prices import gpu_settings
from slurmkit.errors import BadConfig, BrokenPlugin

SectionType = type[msgspec.Struct]
_ATTRIBUTE = re.compile(r"^    (?P<name>\w+): (?P<text>.*(?:\n {8,}.*)*)", re.MULTILINE)
# `//user:PASSWORD@host`, where the password may hold any character, blanks and `@` too, and
# `?password=PASSWORD`. It hides all up to the last `@` of a line: rather too much than too little.
_PASSWORD = re.compile(r"(?<=://)([^\s/@:]*:).+(?=@)|([?&]\w*passw\w*=)[^\s&]+", re.IGNORECASE)


class ConfigSetting(msgspec.Struct, frozen=True):
    """One key of one section, with its value.

    Attributes:
        section: name of the section; `gpu.*` where no file has a table `[gpu.TYPE]`.
        value: the effective value; a password in a URL is replaced by `***`.
        source: the file the value comes from, or `default`.
        meaning: from the docstring of the section's Struct.
    """

    section: str
    key: str
    value: object
    source: str
    meaning: str


class SectionTable(NamedTuple):
    """A table of a configuration file that is a declared section."""

    path: Path
    name: str
    table: Table
    section: SectionType


class UnknownEntry(NamedTuple):
    """An entry of a file that is not a section; `known` lists the names valid there."""

    path: Path
    name: str
    value: object
    known: list[str]


# Functions that read the files which sections name, as `module:function`.
_FILES = (
    "slurmkit_accounting.reports.budget:load_budgets",
    "slurmkit_accounting.people.sync:load_configured_overrides",
)


def declared_sections() -> dict[str, SectionType]:
    """Import every section of our own packages."""
    split = ((name, target.partition(":")) for name, target in SECTIONS.items())
    return {name: getattr(import_module(module), each) for name, (module, _, each) in split}


def plugin_section(name: str) -> SectionType:
    """Import the section that a plugin declares; raises as `Plugin.load` does."""
    return cast("SectionType", plugins("config")[name].load())


def find_sections(
    path: Path, table: Table, sections: dict[str, SectionType], above: str = ""
) -> Iterator[SectionTable | UnknownEntry]:
    """Find the sections of one parsed file, and everything else in it."""
    for key, value in table.items():
        name = f"{above}{quote_key(key)}"
        section = sections.get(name) or sections.get(f"{above}*")
        known = _names_below(above, sections)
        if not isinstance(value, dict) or (section is None and key not in known):
            yield UnknownEntry(path, name, value, known)
        elif section is None:
            yield from find_sections(path, value, sections, f"{name}.")
        else:
            own = without_subsections(name, value, sections)
            yield SectionTable(path, name, own, section)
            inner = {key: value[key] for key in value.keys() - own.keys()}
            yield from find_sections(path, inner, sections, f"{name}.")


def _names_below(above: str, sections: dict[str, SectionType]) -> list[str]:
    below = [name.removeprefix(above) for name in sections if name.startswith(above)]
    return sorted({name.partition(".")[0] for name in below} - {"*"})


def merge_section(name: str, tables: list[SectionTable]) -> Table:
    """Merge a section from all files; later files win key by key."""
    values: Table = {}
    for each in tables:
        values = merge_tables(values, each.table if each.name == name else {})
    return values


def list_settings(
    sections: dict[str, SectionType], tables: list[SectionTable]
) -> Iterator[ConfigSetting]:
    """List every key of every section with its value; the files must have passed the check."""
    for pattern, section in sections.items():
        stem = pattern.removesuffix("*")
        names = [each.name for each in tables if each.name.startswith(stem)]
        for name in dict.fromkeys(names if stem != pattern and names else [pattern]):
            yield from _settings_of(name, section, tables)


def _settings_of(
    name: str, section: SectionType, tables: list[SectionTable]
) -> Iterator[ConfigSetting]:
    values = merge_section(name, tables)
    configured = msgspec.convert(values, section) if values else None
    sources = _sources([each for each in tables if each.name == name])
    for field in msgspec.structs.fields(section):
        value = msgspec.to_builtins(
            getattr(configured, field.name) if configured else _default(field)
        )
        source = sources.get(field.encode_name, "default")
        meaning = key_meanings(section).get(field.name, "")
        yield ConfigSetting(name, field.encode_name, hide_password(value), source, meaning)


def _sources(tables: list[SectionTable]) -> dict[str, str]:
    """Return the file each key's value comes from; of a table, all files that add to it."""
    sources: dict[str, str] = {}
    for path, key, value in ((t.path, *item) for t in tables for item in t.table.items()):
        before = f"{sources[key]}, " if key in sources and isinstance(value, dict) else ""
        sources[key] = f"{before}{path}"
    return sources


def key_meanings(section: SectionType) -> dict[str, str]:
    """Return the meaning of each attribute, from the section's docstring, on one line."""
    _, _, listed = cleandoc(section.__doc__ or "").partition("Attributes:\n")
    return {match["name"]: " ".join(match["text"].split()) for match in _ATTRIBUTE.finditer(listed)}


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return cast("Any", field.default_factory)()
    return None if field.default is msgspec.NODEFAULT else field.default


def hide_password(value: object) -> object:
    """Return a value with `***` for a password in a URL."""
    return _PASSWORD.sub(r"\1\2***", value) if isinstance(value, str) else value


class ConfigProblem(msgspec.Struct, frozen=True):
    """One problem of the configuration.

    Attributes:
        file: path of the file; `plugin` or `configuration` where the problem is in no file.
        section: empty for the file as a whole.
        key: empty for the section as a whole.
        message: what is wrong and what is allowed.
    """

    file: str
    section: str
    key: str
    message: str

    def __str__(self) -> str:
        where = f" [{self.section}]" if self.section else ""
        return f"{self.file}:{where} {self.key + ': ' if self.key else ''}{self.message}"


class ConfigReport(msgspec.Struct, frozen=True):
    """All settings of the configuration, or all its problems.

    Attributes:
        settings: every key of every section; empty when there are problems.
        problems: by file in the order of `config_paths`.
    """

    settings: tuple[ConfigSetting, ...]
    problems: tuple[ConfigProblem, ...]


def inspect_configuration(texts: Mapping[Path, str] = MappingProxyType({})) -> ConfigReport:
    """Read every configuration file and check it against the declared sections.

    Args:
        texts: by path, texts to check as if they were in these files.
    """
    problems: list[ConfigProblem] = []
    sections = declared_sections() | _plugin_sections(problems)
    tables: list[SectionTable] = []
    paths = config_paths()
    for path in (*paths, *(path for path in texts if path not in paths)):
        contents = _load_or_report(path, problems, texts.get(path))
        for each in find_sections(path, contents, sections):
            if isinstance(each, UnknownEntry):
                problems.append(_unknown_section(each))
            else:
                tables.append(each)
                problems += _check_table(each)
    problems += _check_sections(tables, problems)
    return ConfigReport(() if problems else tuple(list_settings(sections, tables)), tuple(problems))


def check_named_files() -> Iterator[ConfigProblem]:
    """Check the files that the sections name; the sections must have passed the check."""
    for target in _FILES:
        module, _, function = target.partition(":")
        try:
            getattr(import_module(module), function)()
        except ModuleNotFoundError:
            continue  # this host has no ledger
        except BadConfig as error:
            yield ConfigProblem("configuration", "ledger", "", str(error))


def _plugin_sections(problems: list[ConfigProblem]) -> dict[str, SectionType]:
    sections: dict[str, SectionType] = {}
    for name in plugins("config"):
        try:
            sections[name] = plugin_section(name)
        except BrokenPlugin as error:
            problems.append(ConfigProblem("plugin", name, "", str(error)))
    return sections


def _load_or_report(path: Path, problems: list[ConfigProblem], text: str | None) -> Table:
    try:
        return load_config_file(path) if text is None else parse_config_text(path, text)
    except BadConfig as error:
        problems.append(ConfigProblem(str(path), "", "", str(error)))
        return {}


def _unknown_section(stray: UnknownEntry) -> ConfigProblem:
    name = stray.name.rpartition(".")[2]
    if name in stray.known or not stray.known:
        message = f"must be a table, e.g. [{stray.name}] on a line of its own"
    else:
        message = f"no such section; {did_you_mean(name, stray.known, 'sections')}"
    return ConfigProblem(str(stray.path), stray.name, "", message)


def _check_table(entry: SectionTable) -> Iterator[ConfigProblem]:
    file = str(entry.path)
    for key, hint in unknown_keys(entry.table, entry.section).items():
        yield ConfigProblem(file, entry.name, key, f"no such key; {hint}")
    for field in msgspec.structs.fields(entry.section):
        key = field.encode_name
        if key in entry.table and (wrong := _value_error(key, entry.table[key], field.type)):
            yield ConfigProblem(file, entry.name, key, wrong)


def _value_error(key: str, value: object, wanted: object) -> str:
    """Return what is wrong with one value; empty if nothing is."""
    # In a struct of its own, so that msgspec's error names the path of the value.
    holder = msgspec.defstruct("Holder", [("value", wanted)])
    try:
        msgspec.convert({"value": value}, holder)
    except msgspec.ValidationError as error:
        return (
            explain_validation_error(error, holder)
            .replace("$.value", f"$.{key}")
            .removeprefix("value: ")
        )
    return ""


def _check_sections(
    tables: list[SectionTable], known: list[ConfigProblem]
) -> Iterator[ConfigProblem]:
    """Find problems that show only once all files are merged, and across sections."""
    bad = {problem.section for problem in known}
    last_tables = {entry.name: entry for entry in tables if entry.name not in bad}
    for name, entry in last_tables.items():
        try:
            msgspec.convert(merge_section(name, tables), entry.section)
        except msgspec.ValidationError as error:
            yield ConfigProblem(
                str(entry.path), name, "", explain_validation_error(error, entry.section)
            )
    if not known:
        try:
            gpu_settings()
        except BadConfig as error:
            yield ConfigProblem("configuration", "", "", str(error))
