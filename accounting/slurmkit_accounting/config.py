"""The sections `[ledger]` and `[ldap]` of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[int, msgspec.Meta(ge=1, le=3600)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]  # what LDAP can carry, RFC 2696

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class LedgerSection(msgspec.Struct, frozen=True):
    """`[ledger]`.

    Attributes:
        db: URL of the database; empty for the SQLite file under $XDG_DATA_HOME.
        budgets: file of the PIs' budgets; empty for budgets.toml beside a configuration file.
        overrides: file that says whose accounts and users are, before anybody else is asked.
    """

    db: str = ""
    budgets: str = ""
    overrides: str = ""


class LdapSection(msgspec.Struct, frozen=True, kw_only=True):
    """`[ldap]`: where people are read from, and what their attributes are called there.

    Attributes:
        uri: `ldap://HOST[:PORT]` or `ldaps://HOST[:PORT]`; of several, separated by blanks, the
            first that answers.
        starttls: whether an ldap:// connection is encrypted; false sends everything in clear.
        ca_file: PEM file of the CA that signed the server's certificate; empty for the system's.
        bind_dn: who reads the directory; empty for anonymous.
        bind_password_file: file with the password of `bind_dn`, not readable by others.
        people_base: subtree with the people.
        groups_base: subtree with the research groups.
        timeout: seconds to wait for a connection, and for each answer.
        page_size: entries asked for at a time.
        ignore_referrals: whether to go without the entries for which the server refers to
            another one; otherwise such a directory is not read in full, which is an error.
        max_vanish: share of the known people, or groups, that may be gone from the directory at
            once; a sync that finds fewer is not applied, unless it is forced.
        people_filter: which entries under `people_base` are people.
        groups_filter: which entries under `groups_base` are groups.
        id_attribute: identifies an entry for ever, through renames.
        username_attribute: the login name.
        uid_attribute: the numeric user id.
        name_attribute: the name for people to read.
        mail_attribute: the mail address.
        department_attribute: the department.
        expire_attribute: when the account expires: in days since 1970, or as AD's accountExpires.
        group_name_attribute: equal to the group's Slurm account.
        members: how membership is kept: `dn`, the group has the DN of each member; `username`, it
            has their user names; `member_of`, people and groups have the DNs of their groups.
        member_attribute: of a group, with its members: `member`, `uniqueMember` or `memberUid`.
        member_of_attribute: of people and groups, with the groups they are in.
        owner_attribute: DN or user name of the group's PI.
    """

    uri: str = ""
    starttls: bool = True
    ca_file: str = ""
    bind_dn: str = ""
    bind_password_file: str = ""
    people_base: str = ""
    groups_base: str = ""
    timeout: Seconds = 10
    page_size: PageSize = 500
    ignore_referrals: bool = False
    max_vanish: Share = 0.1
    people_filter: str = "(objectClass=posixAccount)"
    groups_filter: str = "(objectClass=groupOfNames)"
    id_attribute: str = "entryUUID"
    username_attribute: str = "uid"
    uid_attribute: str = "uidNumber"
    name_attribute: str = "cn"
    mail_attribute: str = "mail"
    department_attribute: str = "departmentNumber"
    expire_attribute: str = "shadowExpire"
    group_name_attribute: str = "cn"
    members: Literal["dn", "username", "member_of"] = "dn"
    member_attribute: str = "member"
    member_of_attribute: str = "memberOf"
    owner_attribute: str = "owner"
