"""Secrets, from files or the environment and never argv; the password for LDAP."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurmkit.errors import BadConfig
from slurmkit_accounting.config import LdapSection

VARIABLE = "SLURMKIT_LDAP_PASSWORD"


def bind_password(section: LdapSection) -> str:
    """Find the password of `bind_dn`; empty when it binds as nobody.

    Raises:
        BadConfig: when there is none, or everybody on this machine can read its file.
    """
    if not section.bind_dn:
        return ""
    found = os.environ.get(VARIABLE) or secret_in(
        "[ldap] bind_password_file", section.bind_password_file
    )
    if not found:  # LDAP takes a bind without a password as anonymous, and says it went well
        raise BadConfig(
            f"[ldap] bind_dn needs a password: set bind_password_file, or {VARIABLE} in the"
            " environment"
        )
    return found


def _words(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8 text"


def secret_in(key: str, name: str) -> str:
    """Read a secret from its file; empty when no file is named.

    Args:
        key: of the configuration that names the file, for the error.
        name: path of the file.

    Raises:
        BadConfig: when it cannot be read, or everybody on this machine can.
    """
    if not name:
        return ""
    path = Path(name)
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfig(f"{key}: cannot read {path}: {_words(error)}") from error
    if mode & stat.S_IRWXO:
        raise BadConfig(f"{key}: everybody can read {path}; run: chmod o= {path}")
    return text.removesuffix("\n")
