"""The directory that this host itself uses: ldap.conf(5), nslcd.conf(5), sssd-ldap(5)."""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

SSSD = Path("/etc/sssd/sssd.conf")
# Path -> keywords of the servers and of the CA. Files of the libraries come after those of logins.
_KEYWORDS: Mapping[Path, tuple[str, str]] = {
    Path("/etc/nslcd.conf"): ("uri", "tls_cacertfile"),
    Path("/etc/ldap/ldap.conf"): ("uri", "tls_cacert"),
    Path("/etc/openldap/ldap.conf"): ("uri", "tls_cacert"),
}


class HostDirectory(NamedTuple):
    """The directory in a file of this host: servers as in `[ldap] uri`, and the file of the CA."""

    uri: str
    ca_file: str
    path: Path


def find_host_directory(
    files: Mapping[Path, tuple[str, str]] = _KEYWORDS, sssd: Path = SSSD
) -> HostDirectory | None:
    """Return the directory of the first file that names one; files that cannot be read do not."""
    if found := _of_sssd(sssd):
        return found
    for path, (servers, ca) in files.items():
        known = _settings(path)
        if uri := _only_ldap(known.get(servers, "").split()):
            return HostDirectory(uri, known.get(ca, ""), path)
    return None


def _settings(path: Path) -> dict[str, str]:
    """Return the lines `KEYWORD VALUE` of a file; keywords in lower case."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return {}
    split = (line.split(None, 1) for line in text.splitlines() if not line.startswith("#"))
    return {words[0].lower(): words[1].strip() for words in split if len(words) == 2}


def _of_sssd(path: Path) -> HostDirectory | None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(path.read_text("utf-8", "replace"))
    except (OSError, configparser.Error):  # only root may read the file
        return None
    for name in parser.sections():
        servers = parser[name].get("ldap_uri", "").replace(",", " ").split()
        if name.startswith("domain/") and (uri := _only_ldap(servers)):
            return HostDirectory(uri, parser[name].get("ldap_tls_cacert", ""), path)
    return None


def _only_ldap(servers: Sequence[str]) -> str:
    """Return the servers that can be asked over the network, in their order."""
    return " ".join(
        each.rstrip("/") for each in servers if each.startswith(("ldap://", "ldaps://"))
    )
