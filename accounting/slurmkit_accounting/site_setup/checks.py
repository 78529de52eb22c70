"""Checks of a proposed configuration: what it names answers, before anything is written."""

from __future__ import annotations

import os
import pwd
import shlex
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from slurmkit.doctor.accounting import is_operator, no_operator_finding
from slurmkit.doctor.case import Check, CheckContext, CheckFinding
from slurmkit.doctor.checks import CHECKS
from slurmkit.errors import BadConfig, DirectoryError, NotSent, SlurmkitError
from slurmkit_accounting.config import (
    LdapSection,
    LedgerSection,
    MailSection,
    ServiceSection,
    read_bind_password,
)
from slurmkit_accounting.notify.mail import check_server
from slurmkit_accounting.people.ldap import read_directory
from slurmkit_accounting.remote.protocol import UNIX, connect_to_socket
from slurmkit_accounting.site_setup.account import find_account, run_as
from slurmkit_accounting.site_setup.cluster import account_names
from slurmkit_accounting.site_setup.config_text import ProposedValue
from slurmkit_accounting.site_setup.database import check_database

SectionT = TypeVar("SectionT", bound=msgspec.Struct)
_OF_DOCTOR = ("commands", "slurmctld", "slurmdbd", "release", "clock", "munge")
_PARTS = ("ledger", "ldap", "mail")  # sections that only the service reads
_SHOWN = 3
NAMED = frozenset(("service-account", "database", "directory", "files", "mail", "service"))
"""Names of the checks of what the configuration names."""


def checks_of(
    contents: Mapping[str, Any], asked: Sequence[ProposedValue] = ()
) -> tuple[Check, ...]:
    """Return the checks of a host with this configuration.

    A host with the URL of a service needs only that one, unless it has parts of the service, too.

    Args:
        contents: the site's configuration as it would be, by section.
        asked: values from options of the command line.

    Raises:
        BadConfig: when a section has a wrong key or value.
    """
    service = section_of(contents, "ledger.service", ServiceSection)
    checks = tuple(check for check in CHECKS if check.name in _OF_DOCTOR)
    if service.url:
        look = partial(_check_service, service.url)
        checks = (*checks, Check("service", "the service's port answers", look))
    serves = "listen" in _table_of(contents, "ledger.service")
    if service.url and not serves and not any(each.section in _PARTS for each in asked):
        return checks
    return (*checks, *_service_checks(contents, service))


def _service_checks(contents: Mapping[str, Any], service: ServiceSection) -> tuple[Check, ...]:
    """Return the checks of what the service itself uses."""
    db = section_of(contents, "ledger", LedgerSection).db
    ldap = section_of(contents, "ldap", LdapSection)
    mail = section_of(contents, "mail", MailSection)
    passwords = (ldap.bind_password_file, mail.password_file, service.jwt_key)
    authorities = (ldap.ca_file, mail.ca_file, service.jwks)
    gpu = contents.get("gpu", {})
    return (
        Check(
            "service-account", "the service sees all jobs", partial(_check_account, service.user)
        ),
        Check(
            "database",
            "the database can be used",
            lambda _: check_database(db, service.user),
        ),
        Check("directory", "the directory can be read", partial(_check_directory, ldap)),
        Check(
            "files",
            "the service can read the files of the directory and of the mail server",
            partial(_check_files, service.user, passwords, authorities),
        ),
        Check("mail", "the mail server answers", partial(_check_mail, mail)),
        Check("prices", "GPUs have prices", partial(_check_prices, gpu)),
    )


def section_of(contents: Mapping[str, Any], name: str, section: type[SectionT]) -> SectionT:
    """Return a section of parsed contents; keys of its subsections are left out.

    Raises:
        BadConfig: when a value is wrong.
    """
    table = _table_of(contents, name)
    known = {field.encode_name for field in msgspec.structs.fields(section)}
    try:
        return msgspec.convert({k: v for k, v in table.items() if k in known}, section)
    except msgspec.ValidationError as error:
        raise BadConfig(f"[{name}]: {error}") from error


def _table_of(contents: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table of a section; empty if there is none."""
    table: Any = contents
    for part in name.split("."):
        table = table.get(part, {}) if isinstance(table, Mapping) else {}
    return table if isinstance(table, Mapping) else {}


def _check_account(name: str, case: CheckContext) -> Iterator[CheckFinding]:
    """Check that the service's account exists, and that Slurm shows it all jobs."""
    try:
        person = find_account(name)
    except KeyError:
        yield CheckFinding(
            "error",
            f"there is no account {name} on this host",
            "the service cannot run",
            f"useradd --system --user-group --home-dir /var/lib/{name} --shell /usr/sbin/nologin"
            f" {name}",
            "as root, with the same uid on all hosts of the cluster",
        )
        return
    if person.pw_uid != 0 and not is_operator(case, person.pw_name):
        yield no_operator_finding(person.pw_name)


def _check_directory(section: LdapSection, case: CheckContext) -> Iterator[CheckFinding]:
    """Read the whole directory, and compare its groups with Slurm's accounts."""
    if not section.uri:
        yield CheckFinding(
            "note",
            "no directory is configured",
            "PIs come from coordinators and overrides only",
            "slurmkit setup --ldap-uri ldap://HOST",
            "in the configuration",
        )
        return
    try:
        found = read_directory(section, read_bind_password(section))
    except (BadConfig, DirectoryError) as error:
        yield CheckFinding(
            "error",
            str(error),
            "no report knows people and PIs",
            "correct [ldap]",
            "in the configuration",
        )
        return
    groups = {group.name.lower() for group in found.groups}
    accounts = account_names(case)
    owned = sum(bool(group.owners) for group in found.groups)
    sizes = f"{len(found.people)} people, {len(found.groups)} groups, {owned} of them with an owner"
    if found.groups and not owned:
        yield CheckFinding(
            "warning",
            f"{sizes}: no entry has the attribute {section.owner_attribute!r}",
            "PIs come from coordinators and overrides only",
            "set [ldap] owner_attribute to the attribute that names a group's PI",
            "in the configuration",
        )
    elif missing := sorted(name for name in accounts if name.lower() not in groups):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        yield CheckFinding(
            "note",
            f"{sizes}; accounts of Slurm without a group: {', '.join(missing[:_SHOWN])}{more}",
            "their PIs come from coordinators and overrides only",
            "slurmkit ledger people unmapped",
            "as the service's account",
        )
    else:
        yield CheckFinding("ok", sizes)


def _check_files(
    name: str, passwords: Sequence[str], authorities: Sequence[str], case: CheckContext
) -> Iterator[CheckFinding]:
    """Check that the service's account can read files; root can read them in any case."""
    del case
    paths = [path for path in (*passwords, *authorities) if path]
    try:
        person = find_account(name)
    except KeyError:
        return  # the check of the account says so
    if paths and os.geteuid() not in {0, person.pw_uid}:
        raise SlurmkitError(f"not checked: only root and {person.pw_name} can find out")
    for path in paths:
        if _can_read(person, path):
            continue
        quoted = shlex.quote(path)
        # The service must not be able to replace the CA that it is checked against.
        is_password = path in passwords
        yield CheckFinding(
            "error",
            f"{person.pw_name} cannot read {path}",
            "the service cannot use it",
            f"chown {person.pw_name} {quoted}" if is_password else f"chmod a+r {quoted}",
            "as root; if the file is there, and each folder above it can be entered",
        )


def _can_read(person: pwd.struct_passwd, path: str) -> bool:
    if os.geteuid() != 0:
        return os.access(path, os.R_OK)
    return run_as(person, ["test", "-r", path]).returncode == 0


def _check_mail(section: MailSection, case: CheckContext) -> Iterator[CheckFinding]:
    """Connect to the mail server and log in; no mail is sent."""
    del case
    if not section.host:
        yield CheckFinding(
            "note",
            "no mail server is configured",
            "the service sends no reports, notices and mails about jobs",
            "slurmkit setup --mail-host HOST --mail-sender ADDRESS",
            "in the configuration",
        )
        return
    try:
        check_server(section)
    except (BadConfig, NotSent) as error:
        yield CheckFinding(
            "error", str(error), "no mail is sent", "correct [mail]", "in the configuration"
        )
        return
    if not section.sender:
        yield CheckFinding(
            "error",
            "[mail] sender is not set",
            "no mail is sent",
            "slurmkit setup --mail-sender ADDRESS",
            "in the configuration",
        )


def _check_prices(gpu: Mapping[str, Any], case: CheckContext) -> Iterator[CheckFinding]:
    """Check that each type of GPU has a price."""
    types = {of.type for node in case.gpu_nodes for of in node.gpus if of.type}
    # A MIG slice has the price of the whole GPU, times its weight.
    priced = {name for name, table in gpu.items() if table.get("prices") or table.get("part_of")}
    aliases = {alias for table in gpu.values() for alias in table.get("aliases", ())}
    known: Collection[str] = {name.lower() for name in priced | aliases}
    if missing := sorted(name for name in types if name.lower() not in known):
        yield CheckFinding(
            "note",
            f"no price for: {', '.join(missing)}",
            "reports and plans show GPU-hours without their cost",
            f"[[gpu.{missing[0]}.prices]], as docs/configuration.md shows",
            "in the configuration",
        )


def _check_service(url: str, case: CheckContext) -> Iterator[CheckFinding]:
    """Connect to the port of the service."""
    del case
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or {"https": 443}.get(parts.scheme, 80)
    except ValueError as error:
        raise SlurmkitError(f"[ledger.service] url {url!r} is not valid: {error}") from error
    try:
        if url.startswith(UNIX):
            connect_to_socket(url.removeprefix(UNIX), 10).close()
            return
        with socket.create_connection((host or "", port), timeout=10):
            return
    except OSError as error:
        yield CheckFinding(
            "error",
            f"nothing answers at {url}: {error.strerror or error}",
            "no reports on this host",
            "systemctl status slurmkit-ledger; check the firewall and [ledger.service] listen",
            "on the service's host",
        )
