"""Errors of a directory in words of the configuration."""

from __future__ import annotations

# What ldap3 and servers say, and what it means here.
_MEANINGS = (
    ("invalid CA public key file", "[ldap] ca_file does not exist or cannot be read"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by the CA in [ldap] ca_file"),
    ("doesn't match any name", "its certificate is for another host name than [ldap] uri"),
    ("invalidCredentials", "it does not accept [ldap] bind_dn with this password"),
    ("confidentialityRequired", "it wants TLS; set [ldap] starttls = true"),
    ("noSuchObject", "[ldap] people_base or groups_base is not there for [ldap] bind_dn"),
    ("socket connection error", "nothing answers there; check [ldap] uri"),
    ("timed out", "it does not answer in time; check [ldap] uri and timeout"),
    ("invalid filter", "[ldap] people_filter or groups_filter is no LDAP filter"),
    ("invalid server address", "its host name cannot be resolved"),
)


def said_plainly(error: Exception) -> str:
    """What an error of ldap3 means, and in brackets what it said."""
    words = _words(error)
    for sign, meaning in _MEANINGS:
        if sign in words:
            return f"{meaning} ({words})"
    return words


def _words(error: Exception) -> str:
    description = getattr(error, "description", None)  # what a server answered
    if description:
        return " ".join(filter(None, (description, getattr(error, "message", None))))
    said: object = error
    while isinstance(said, Exception | tuple):  # ldap3 wraps words in tuples in errors
        parts = said.args if isinstance(said, Exception) else said
        if len(parts) != 1:
            break
        said = parts[0]
    return " ".join(str(said).split()) or type(error).__name__
