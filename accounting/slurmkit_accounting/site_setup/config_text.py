"""Change the text of a configuration file: what else is in it stays as it is, comments too."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from slurmkit.config.files import find_table, parse_config_text
from slurmkit.config.paths import describe_write_error
from slurmkit.errors import BadConfig, SlurmkitError
from slurmkit.formats.display import printable

ConfigValue: TypeAlias = str | int | bool
_SOURCE = "# setup: "
_HEADER = re.compile(r"\s*\[(?P<name>[^\[\]]+)\]\s*(#.*)?$")
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029]")
_NEW_MODE, _FOLDER_MODE = 0o644, 0o755
_ACL = "system.posix_acl_access"


class ProposedValue(msgspec.Struct, frozen=True):
    """A value for a key of the configuration.

    Attributes:
        section: name of the section, for example `ledger.service`.
        source: where the value comes from, in words.
        asked: whether an option of the command line gives the value; it then replaces another.
    """

    section: str
    key: str
    value: ConfigValue
    source: str
    asked: bool = False


def change_config(path: Path, text: str, values: Sequence[ProposedValue]) -> str:
    """Return the text of a configuration file with some values added or replaced.

    A new key goes to the end of its section, with its source in a comment above it.

    Args:
        path: of the file, for errors.
        text: its text now; empty for a new file.
        values: what to add or replace.

    Raises:
        BadConfig: when the text is not TOML, or its form does not allow the change, for example an
            inline table. The error has the lines to write by hand.
    """
    wanted = parse_config_text(path, text)
    lines = text.splitlines()
    for each in values:
        _table_of(path, wanted, each)[each.key] = each.value
        _change_lines(lines, each)
    changed = "".join(f"{line}\n" for line in lines)
    try:
        is_right = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        by_hand = "; ".join(f"[{each.section}] {_statement(each)}" for each in values)
        raise BadConfig(
            f"{path} is written in a form that setup cannot change; write by hand: {by_hand}"
        )
    return changed


def _table_of(path: Path, contents: dict[str, Any], each: ProposedValue) -> dict[str, Any]:
    """Return the table of a value's section in parsed contents; make it if it is not there."""
    find_table(path, contents, each.section)  # raises if a part of the name is no table
    table = contents
    for part in each.section.split("."):
        table = table.setdefault(part, {})
    return table


def _change_lines(lines: list[str], each: ProposedValue) -> None:
    new = [_SOURCE + printable(each.source), _statement(each)]
    begin = next((at for at, line in enumerate(lines) if _section_of(line) == each.section), None)
    if begin is None:
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{each.section}]", *new]
        return
    after = range(begin + 1, len(lines))
    end = next((at for at in after if lines[at].lstrip().startswith("[")), len(lines))
    is_key = re.compile(rf'\s*"?{re.escape(each.key)}"?\s*=').match
    at = next((at for at in range(begin + 1, end) if is_key(lines[at])), None)
    if at is None:
        content = (at for at in range(begin, end) if not _is_blank_or_comment(lines[at]))
        last = max(content, default=begin)
        lines[last + 1 : last + 1] = new
        return
    first = at - 1 if lines[at - 1].startswith(_SOURCE) else at
    new[1] += _comment_after_value(lines[at])
    lines[first : at + 1] = new


def _section_of(line: str) -> str | None:
    """Return the section whose header a line is."""
    found = _HEADER.match(line)
    return ".".join(part.strip() for part in found["name"].split(".")) if found else None


def _is_blank_or_comment(line: str) -> bool:
    return line.strip() == "" or line.lstrip().startswith("#")


def _comment_after_value(line: str) -> str:
    """Return the comment at the end of `key = value  # comment`, with the blanks before it."""
    for found in re.finditer(r"\s*#", line):
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads(line[: found.start()])
            return line[found.start() :]
    return ""


def _statement(each: ProposedValue) -> str:
    """Format `key = value`."""
    if isinstance(each.value, str):
        # A string of JSON is one of TOML, but for DEL; what terminals act on is escaped, too.
        text = json.dumps(each.value, ensure_ascii=False)
        escaped = _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        return f"{each.key} = {escaped}"
    return f"{each.key} = {json.dumps(each.value)}"


def read_config_text(path: Path) -> str:
    """Return the text of a configuration file; empty when there is none.

    Raises:
        BadConfig: when it cannot be read.
    """
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"cannot read the configuration file {path}: {error}") from error


def write_config_text(path: Path, before: str, text: str) -> Path | None:
    """Replace a configuration file as a whole. Return its backup, if any.

    Owner, mode and access control list stay; a new folder or file can be read by everybody.
    The backup is next to the file, named by the time. A link stays; the file that it leads to is
    written.

    Args:
        path: the file; its folder is made if it does not exist.
        before: the text that the file had when the change was made; it must still have it.
        text: the new text.

    Raises:
        SlurmkitError: when somebody changed the file meanwhile, or it cannot be written.
    """
    aside, backup = None, None
    try:
        file = path.resolve()
        _make_folder(file.parent)
        number, name = tempfile.mkstemp(".unfinished", f".{file.name}-", file.parent)
        aside = Path(name)
        with os.fdopen(number, "w", encoding="utf-8") as new:
            new.write(text)
            _take_over_rights(new.fileno(), file)
            new.flush()
            os.fsync(new.fileno())
        if read_config_text(path) != before:
            raise SlurmkitError(f"{path} was changed meanwhile; run the command again")
        backup = _back_up(file)
        aside.replace(file)
        aside = None
    except OSError as error:
        why = describe_write_error(error)
        raise SlurmkitError(f"cannot write {path}: {why}") from error
    else:
        return backup
    finally:
        if aside is not None:
            for each in filter(None, (aside, backup)):
                with suppress(OSError):
                    each.unlink()


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, which everybody may read whatever the umask says."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir()
            each.chmod(_FOLDER_MODE)


def _back_up(file: Path) -> Path | None:
    """Copy a file to a new file next to it; return the path of the copy."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    backup, number = _open_new_backup(file)
    try:
        with os.fdopen(number, "wb") as copy:
            copy.write(content)
            _take_over_rights(copy.fileno(), file)
            copy.flush()
            os.fsync(copy.fileno())
    except BaseException:
        backup.unlink()
        raise
    return backup


def _open_new_backup(file: Path) -> tuple[Path, int]:
    """Make a file of mode 0600 that is named by the time; return its path and descriptor."""
    name = f"{file.name}.before-{datetime.now().astimezone():%Y%m%dT%H%M%S}"
    for number in count(1):
        backup = file.with_name(name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            return backup, os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    raise AssertionError


def _take_over_rights(number: int, file: Path) -> None:
    """Give an open file the owner, mode and access control list of another; 0644 without one."""
    if not file.exists():
        os.fchmod(number, _NEW_MODE)
        return
    found, new = file.stat(), os.fstat(number)
    if (found.st_uid, found.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(number, found.st_uid, found.st_gid)
    os.fchmod(number, found.st_mode & 0o777)
    if acl := _access_list(file):
        os.setxattr(number, _ACL, acl)
    elif _access_list(number):  # from the defaults of its folder
        os.removexattr(number, _ACL)
        os.fchmod(number, found.st_mode & 0o777)


def _access_list(file: Path | int) -> bytes:
    """Return the POSIX access control list of a file, acl(5); empty if it has none."""
    try:
        return os.getxattr(file, _ACL)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return b""
        raise


def merge_contents(files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge what configuration files set, by section; later files win key by key."""
    merged: dict[str, Any] = {}
    for contents in files:
        merged = _merged(merged, contents)
    return merged


def _merged(before: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    tables = {
        key: _merged(before[key], value)
        for key, value in later.items()
        if isinstance(value, dict) and isinstance(before.get(key), dict)
    }
    return {**before, **later, **tables}
