"""The proposed configuration: what was asked for, found, and what the files have already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from slurmkit.config.files import find_table, parse_config_text
from slurmkit.doctor.case import CheckContext
from slurmkit.errors import BadConfig, DirectoryError, SlurmkitError
from slurmkit_accounting.config import LdapSection, ServiceSection, read_bind_password
from slurmkit_accounting.site_setup.checks import section_of
from slurmkit_accounting.site_setup.cluster import account_names, propose_job_mail, propose_ledger
from slurmkit_accounting.site_setup.config_text import (
    ConfigValue,
    ProposedValue,
    change_config,
    merge_contents,
    read_config_text,
)
from slurmkit_accounting.site_setup.directory import propose_subtrees
from slurmkit_accounting.site_setup.host_files import find_host_directory

_HEAD = "# Made by slurmkit setup. Change what you like: setup keeps what stands here.\n\n"
_ORDER = ("ledger", "ledger.service", "ledger.schedule", "ldap", "mail", "job_mail")
ValueState = Literal["new", "changed", "same", "kept"]


class ComparedValue(msgspec.Struct, frozen=True):
    """A proposed value, and what the files have.

    Attributes:
        source: where the proposed value comes from, in words.
        state: `new`: no file has the key; `changed`: an option gives another value than the file;
            `same`: a file has this value; `kept`: a file has another value, which stays.
        now: the value of the file; None if no file has the key.
        file: the file with that value; empty if none has it.
    """

    section: str
    key: str
    value: ConfigValue
    source: str
    state: ValueState
    now: Any = None
    file: str = ""


class Proposal(NamedTuple):
    """A proposed file.

    Attributes:
        before: text of the file now; empty if there is none.
        after: the proposed text.
        values: all proposed values, also those that change nothing.
        notes: what could not be found out, in words.
        contents: what all files of the site would set, by section.
    """

    before: str
    after: str
    values: list[ComparedValue]
    notes: list[str]
    contents: dict[str, Any]


def make_proposal(
    case: CheckContext, asked: Sequence[ProposedValue], target: Path, others: Sequence[Path]
) -> Proposal:
    """Ask the cluster and the directory, and propose a configuration file.

    Args:
        case: the cluster.
        asked: values from options of the command line.
        target: the file to propose.
        others: further files of the site, which are read after it.

    Raises:
        BadConfig: when a file cannot be read or changed.
    """
    notes: list[str] = []
    before = read_config_text(target)
    files = {
        path: parse_config_text(path, before if path == target else read_config_text(path))
        for path in (target, *others)
    }
    found = list(_find_values(case, asked, merge_contents(files.values()), notes))
    values = [_compare(each, files, target) for each in found]
    pairs = zip(found, values, strict=True)
    chosen = [each for each, compared in pairs if compared.state in {"new", "changed"}]
    after = change_config(target, before or _HEAD, chosen) if chosen else before
    files[target] = parse_config_text(target, after)
    return Proposal(before, after, values, notes, merge_contents(files.values()))


def _find_values(
    case: CheckContext,
    asked: Sequence[ProposedValue],
    present: Mapping[str, Any],
    notes: list[str],
) -> Iterator[ProposedValue]:
    """Yield each proposed value once; what an option gives comes before what was found."""
    own = {(each.section, each.key) for each in asked}
    service = section_of(_with_values(present, asked), "ledger.service", ServiceSection)
    if service.url:  # a host where people run reports
        yield from asked
        return
    found = list(propose_ledger(service.user))
    found += _find_directory(case, asked, present, notes)
    try:
        found += propose_job_mail(case)
    except SlurmkitError as error:
        notes.append(f"the cluster does not say whether it hands over mails about jobs: {error}")
    every = (*asked, *(each for each in found if (each.section, each.key) not in own))
    order = {name: number for number, name in enumerate(_ORDER)}
    yield from sorted(every, key=lambda each: order[each.section])


def _find_directory(
    case: CheckContext,
    asked: Sequence[ProposedValue],
    present: Mapping[str, Any],
    notes: list[str],
) -> list[ProposedValue]:
    """Find `[ldap]`; without its subtrees nothing of it is proposed, since it would not work."""
    found: list[ProposedValue] = []
    section = section_of(_with_values(present, asked), "ldap", LdapSection)
    if not section.uri:
        host = find_host_directory()
        if host is None:
            notes.append("no file of this host names a directory; give one with --ldap-uri")
            return []
        source = f"{host.path} of this host"
        found.append(ProposedValue("ldap", "uri", host.uri, source))
        if host.ca_file and not section.ca_file:
            found.append(ProposedValue("ldap", "ca_file", host.ca_file, source))
        section = section_of(_with_values(present, [*found, *asked]), "ldap", LdapSection)
    stored = present.get("ldap", {})
    try:
        password = read_bind_password(section)
        keys = stored if isinstance(stored, Mapping) else ()
        return [*found, *propose_subtrees(section, password, account_names(case), keys)]
    except (BadConfig, DirectoryError) as error:
        notes.append(f"[ldap]: {error}")
        return []


def _with_values(present: Mapping[str, Any], values: Sequence[ProposedValue]) -> dict[str, Any]:
    """Return the contents of files with some values changed."""
    tables: list[dict[str, Any]] = []
    for each in values:
        table: dict[str, Any] = {each.key: each.value}
        for part in reversed(each.section.split(".")):
            table = {part: table}
        tables.append(table)
    return merge_contents([present, *tables])


def _compare(
    each: ProposedValue, files: Mapping[Path, Mapping[str, Any]], target: Path
) -> ComparedValue:
    """Compare a value with that of the file that wins, the last one that has the key."""
    facts = (each.section, each.key, each.value, each.source)
    for path, contents in reversed(list(files.items())):
        table = find_table(path, dict(contents), each.section) or {}
        if each.key not in table:
            continue
        now = table[each.key]
        if now == each.value:
            state: ValueState = "same"
        else:
            state = "changed" if each.asked and path == target else "kept"
        return ComparedValue(*facts, state, now, str(path))
    return ComparedValue(*facts, "new")
