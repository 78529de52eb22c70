"""Read secrets from files or the environment, never from argv; the password for LDAP."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurmkit.errors import BadConfig
from slurmkit_accounting.config import LdapSection

PASSWORD_VARIABLE = "SLURMKIT_LDAP_PASSWORD"  # noqa: S105 - a name


def read_bind_password(section: LdapSection) -> str:
    """Read the password of `bind_dn`; empty for an anonymous bind.

    Raises:
        BadConfig: when there is none, or everybody on this machine can read its file.
    """
    if not section.bind_dn:
        return ""
    password = os.environ.get(PASSWORD_VARIABLE) or read_secret_file(
        "[ldap] bind_password_file", section.bind_password_file
    )
    if not password:  # LDAP treats a bind without a password as anonymous, and reports success
        raise BadConfig(
            "[ldap] bind_dn needs a password:"
            f" set bind_password_file, or {PASSWORD_VARIABLE} in the environment"
        )
    return password


def read_secret_file(key: str, name: str) -> str:
    """Read a secret from its file; empty when no file is named.

    Args:
        key: the configuration key that names the file, for the error.
        name: path of the file.

    Raises:
        BadConfig: when the file cannot be read, or everybody on this machine can read it.
    """
    if not name:
        return ""
    path = Path(name)
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BadConfig(f"{key}: cannot read {path}: {why}") from error
    if mode & stat.S_IRWXO:
        raise BadConfig(f"{key}: everybody can read {path}; run: chmod o= {path}")
    return text.removesuffix("\n")
