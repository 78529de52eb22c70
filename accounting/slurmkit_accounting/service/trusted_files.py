"""Check that nobody else can write the files that say who may see and who is charged for what."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from slurmkit.config.files import config_paths, further_site_folder, load_section
from slurmkit.errors import BadConfig
from slurmkit_accounting.config import LedgerSection, ServiceSection
from slurmkit_accounting.reports.budget import budgets_path

_MOST_LINKS = 40  # as the kernel follows


class _Place(NamedTuple):
    """A file, a folder or a link on the way to a file.

    Attributes:
        next_exists: False only for a folder in which the next part of the path is missing.
    """

    path: Path
    facts: os.stat_result
    next_exists: bool


def check_configuration_files() -> None:
    """Check the files of the configuration, overrides, budgets and keys, and the way to them.

    Whoever can write a folder can put another file in the place of the one that is there. That
    holds for all folders above it too, and for those of links.

    Raises:
        BadConfig: when others can write any of them, or when that cannot be found out.
    """
    ledger = load_section("ledger", LedgerSection)
    service = load_section("ledger.service", ServiceSection)
    named = [Path(one) for one in (ledger.overrides, service.jwt_key, service.jwks) if one]
    budgets = budgets_path()
    if budgets:
        named.append(budgets)
    # A file that is not there: nobody else may make one in that folder, even if it is sticky.
    missing = further_site_folder() / ".toml"
    for path in (*config_paths(), missing, *named):
        try:
            for place in _places(path):
                _refuse_writable_by_others(place)
        except OSError as error:
            raise BadConfig(
                f"cannot find out who may write {path}: {error.strerror or error}; the service's"
                " account must be able to read it"
            ) from error


def _places(path: Path) -> Iterator[_Place]:
    """Yield every folder and link that leads to a file, and the file if it is there."""
    parts, here, links = list(reversed(path.absolute().parts[1:])), Path("/"), 0
    while True:
        facts = here.lstat()
        if stat.S_ISLNK(facts.st_mode):
            yield _Place(here, facts, next_exists=True)
            links += 1
            if links > _MOST_LINKS:
                raise OSError(f"{here}: too many links")
            target = here.readlink()
            parts += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            here = Path("/") if target.is_absolute() else here.parent
            continue
        following = here
        while parts and following == here:
            part = parts.pop()
            following = here.parent if part == ".." else here / part
        there = following != here and os.path.lexists(following)
        yield _Place(here, facts, next_exists=there or following == here)
        if not there:
            return
        here = following


def _refuse_writable_by_others(place: _Place) -> None:
    path, facts, next_exists = place
    if facts.st_uid not in {0, os.getuid()}:
        raise BadConfig(
            f"{path} belongs to uid {facts.st_uid}, who could change what the service does; run:"
            f" chown root {path}"
        )
    if stat.S_ISLNK(facts.st_mode):  # its mode means nothing
        return
    by_group = bool(facts.st_mode & stat.S_IWGRP) and not _is_own_group(facts.st_gid)
    by_others = bool(facts.st_mode & stat.S_IWOTH)
    # In a folder like /tmp, others cannot replace what is there, but make what is missing.
    guarded = stat.S_ISDIR(facts.st_mode) and bool(facts.st_mode & stat.S_ISVTX) and next_exists
    if (by_group or by_others) and not guarded:
        raise BadConfig(
            f"other users can write {path}, and so change what the service does; run: chmod go-w"
            f" {path}"
        )


def _is_own_group(gid: int) -> bool:
    """Return whether a group has no members but root and the service's account.

    A primary group counts only if it is named like its account: many accounts may share another
    one, such as `users`, and are not listed as its members.
    """
    try:
        account, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    mine = gid == 0 or (gid == account.pw_gid and group.gr_name == account.pw_name)
    return mine and {"root", account.pw_name}.issuperset(group.gr_mem)
