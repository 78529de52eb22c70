"""What servers of different kinds hold, and connections that are lost."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from msgspec import structs
from slurmkit_accounting.config import LdapSection
from slurmkit_accounting.people import ldap
from slurmkit_accounting.people.ldap import _entries, read_directory
from slurmkit_accounting.people.ldap_entries import attributes_to_read, parse_person
from slurmkit_accounting.people.ldap_entries import parse_directory as made_of

from slurmkit.errors import DirectoryError

EXCEPTIONS = ldap.ldap3.core.exceptions
NOW = 20_000 * 86400
SECTION = LdapSection(
    uri="ldap://one ldaps://two:1636", people_base="ou=p", groups_base="ou=g", bind_dn="cn=reader"
)
ANN = ("uid=ann,ou=p", {"entryUUID": [b"1"], "uid": [b"ann"]})
BEN = ("uid=ben,ou=p", {"entryUUID": [b"2"], "uid": [b"Ben"]})


def with_(**settings) -> LdapSection:
    return structs.replace(SECTION, **settings)


def lab(**values: list[bytes]) -> tuple[str, dict[str, list[bytes]]]:
    return ("cn=lab,ou=g", {"entryUUID": [b"3"], "cn": [b"lab"]} | values)


def members(section: LdapSection, *groups, people=(ANN, BEN)) -> tuple[str, ...]:
    return made_of(section, people, groups, NOW).groups[0].members


class TestMembers:
    def test_by_dn(self):
        assert members(SECTION, lab(member=[b"UID=Ann, ou=p"])) == ("uid=ann,ou=p",)

    def test_by_dn_with_the_bits_that_unique_members_may_have(self):
        section = with_(member_attribute="uniqueMember")
        group = lab(uniqueMember=[b"uid=ann,ou=p#'0101'B", b"uid=ben,ou=p"])
        assert members(section, group) == ("uid=ann,ou=p", "uid=ben,ou=p")

    def test_by_user_name(self):
        section = with_(members="username", member_attribute="memberUid")
        group = lab(memberUid=[b"ann", b"ben", b"nobody"])
        assert members(section, group) == ("uid=ann,ou=p", "uid=ben,ou=p", "nobody")

    def test_by_the_members_themselves_groups_too(self):
        section = with_(members="member_of")
        of_lab = {"memberOf": [b"CN=Lab,OU=g", b"cn=else,ou=g"]}
        inner = ("cn=inner,ou=g", {"entryUUID": [b"4"], "cn": [b"inner"]} | of_lab)
        ann = (ANN[0], ANN[1] | of_lab)
        assert members(section, lab(), inner, people=(ann, BEN)) == (
            "uid=ann,ou=p",
            "cn=inner,ou=g",
        )

    def test_member_of_is_asked_for_only_where_it_is_used(self):
        assert "memberOf" not in attributes_to_read(SECTION)
        assert "memberOf" in attributes_to_read(with_(members="member_of"))

    def test_an_attribute_without_a_name_is_not_asked_for(self):
        assert "" not in attributes_to_read(with_(expire_attribute=""))
        assert parse_person(*ANN, with_(expire_attribute="", department_attribute=""), NOW).active


@pytest.mark.parametrize(
    "dn", ["uid=ann,ou=p", "UID=Ann , ou=p", "cn=Ann B.+uid=ann,ou=p", "uid=ann+cn=Ann B.,ou=p"]
)
def test_of_several_names_the_one_in_the_dn_counts(dn):
    """As for SSSD, the others are aliases; their order says nothing."""
    ann = (dn, {"entryUUID": [b"1"], "uid": [b"a.b", b"ann", b"annb"]})
    assert parse_person(*ann, SECTION, NOW).username == "ann"
    elsewhere = ("cn=ann,ou=p", ann[1])
    assert parse_person(*elsewhere, SECTION, NOW).username == "a.b"
    names = [b"robotics", b"r\xc3\xb6botik, the lab"]
    group = ("cn=R\xd6botik\\2C the lab,ou=g", {"entryUUID": [b"3"], "cn": names})
    assert made_of(SECTION, (), (group,), NOW).groups[0].name == "r\xf6botik, the lab"
    section = with_(members="username", member_attribute="memberUid")
    by_alias = lab(memberUid=[b"annb"])
    assert members(section, by_alias, people=(ann, BEN)) == (parse_person(*ann, SECTION, NOW).dn,)


@pytest.mark.parametrize("owner", [b"uid=ben,ou=p", b"ben", b"BEN"])
def test_an_owner_is_a_dn_or_a_user_name(owner):
    found = made_of(with_(owner_attribute="manager"), (ANN, BEN), (lab(manager=[owner]),), NOW)
    assert found.groups[0].owners == ("uid=ben,ou=p",)


class TestActiveDirectory:
    SECTION = with_(
        id_attribute="objectGUID",
        username_attribute="sAMAccountName",
        expire_attribute="accountExpires",
        department_attribute="department",
    )
    GUID = bytes.fromhex("33221100554477668899aabbccddeeff")

    def entry(self, **values: list[bytes]):
        fixed = {"objectGUID": [self.GUID], "sAMAccountName": [b"ann"], "cn": [b"ann"]}
        return parse_person("cn=ann", fixed | values, self.SECTION, NOW)

    def test_a_guid_is_written_as_ad_does(self):
        assert self.entry().directory_id == "00112233-4455-6677-8899-aabbccddeeff"
        entry = {"objectGUID": [self.GUID[::-1]], "cn": [b"g"]}
        (group,) = made_of(self.SECTION, [], [("cn=g", entry)], NOW).groups
        assert group.directory_id != self.entry().directory_id

    @pytest.mark.parametrize(
        ("expires", "active"),
        [
            (b"0", True),
            (b"9223372036854775807", True),
            (b"%d" % ((NOW - 86400 + 11644473600) * 10**7), False),
            (b"%d" % ((NOW + 86400 + 11644473600) * 10**7), True),
        ],
    )
    def test_accounts_expire_in_its_own_time(self, expires, active):
        assert self.entry(accountExpires=[expires]).active is active

    def test_a_department(self):
        assert self.entry(department=["Größe".encode()]).department == "Größe"


class Server:
    """Shows a group whose members are `values`, no more than `STEP` of them at a time."""

    STEP = 1500

    def __init__(self, *values: bytes) -> None:
        self.values = values
        self.searches: list[tuple[str, str]] = []

    def search(self, base, search_filter, *, attributes, **options):
        (ranged,) = [name for name in attributes if ";" in name] or ["member;range=0-*"]
        self.searches.append((base, ranged))
        begin = int(re.search(r"range=(\d+)", ranged)[1])
        end = begin + self.STEP
        last = "*" if end >= len(self.values) else str(end - 1)
        found = {f"member;range={begin}-{last}": list(self.values[begin:end])}
        if ";" not in "".join(attributes):
            found = {"entryUUID": [b"3"], "CN": [b"lab"], "member": []} | found
        self.result = {"result": 0, "description": "success"}
        self.response = [{"type": "searchResEntry", "dn": "cn=lab,ou=g", "raw_attributes": found}]


@pytest.mark.parametrize("number", [1, 1500, 1501, 4000])
def test_a_group_that_ad_shows_in_parts_is_read_whole(number):
    server = Server(*(b"uid=p%d" % n for n in range(number)))
    found = list(_entries(server, SECTION, "ou=g", "(cn=*)"))
    assert members(SECTION, *found, people=()) == tuple(f"uid=p{n}" for n in range(number))
    assert len(server.searches) == -(-number // Server.STEP)
    assert {base for base, _ in server.searches[1:]} <= {"cn=lab,ou=g"}


def test_parts_are_put_together_under_the_name_that_was_asked_for():
    section, server = (
        with_(member_attribute="Member"),
        Server(*(b"uid=p%d" % n for n in range(3000))),
    )
    found = list(_entries(server, section, "ou=g", "(cn=*)"))
    assert len(members(section, *found, people=())) == 3000


def test_a_part_that_is_not_shown_is_an_error():
    server = Server(*(b"uid=p%d" % n for n in range(1600)))
    search = server.search

    def first_only(base, search_filter, **options):
        search(base, search_filter, **options)
        if len(server.searches) > 1:
            server.response = []

    server.search = first_only
    with pytest.raises(DirectoryError, match=r"does not show member;range=1500-\* of "):
        list(_entries(server, SECTION, "ou=g", "(cn=*)"))


class Connection:
    """Of ldap3's, what is used; `does` has by host what it does when it is read or opened."""

    socket = None
    strategy = SimpleNamespace(decode_response_fast=None)

    def __init__(self, does, opened, server) -> None:
        self.does, self.opened, self.host = does[server.host], opened, server.host

    def open(self, read_server_info):
        self.opened.append(self.host)
        if self.does == ["down"]:
            raise OSError("no route to host")

    def start_tls(self, read_server_info):
        return True

    def bind(self, read_server_info):
        if self.does == ["denied"]:
            raise EXCEPTIONS.LDAPInvalidCredentialsResult(description="invalidCredentials")

    def unbind(self):
        pass

    def search(self, base, search_filter, **options):
        if self.does:
            raise self.does.pop(0)
        dn, found = {"ou=p": ANN, "ou=g": lab()}[base]
        self.result = {"result": 0, "description": "success"}
        self.response = [{"type": "searchResEntry", "dn": dn, "raw_attributes": found}]


class TestLostConnections:
    @pytest.fixture(autouse=True)
    def _servers(self, monkeypatch):
        self.does: dict[str, list] = {"one": [], "two": []}
        self.opened: list[str] = []

        def connection(server, *args, **options):
            return Connection(self.does, self.opened, server)

        monkeypatch.setattr(ldap.ldap3, "Connection", connection)
        monkeypatch.setattr(ldap.time, "sleep", lambda seconds: None)

    def test_the_first_server_is_read(self):
        assert len(read_directory(SECTION, "x").people) == 1
        assert self.opened == ["one"]

    def test_the_next_one_where_it_does_not_answer(self):
        self.does["one"] = ["down"]
        assert len(read_directory(SECTION, "x").people) == 1
        assert self.opened == ["one", "two"]

    def test_none_that_answers_names_all(self):
        self.does |= {"one": ["down"], "two": ["down"]}
        words = "cannot read ldap://one: .*; cannot read ldaps://two:1636: .*nothing was changed"
        with pytest.raises(DirectoryError, match=words):
            read_directory(SECTION, "x")
        assert self.opened == ["one", "two"]

    def test_a_password_that_is_wrong_is_not_tried_again(self):
        self.does["one"] = ["denied"]
        with pytest.raises(DirectoryError, match="does not accept"):
            read_directory(SECTION, "x")
        assert self.opened == ["one"]

    def test_one_that_breaks_off_is_read_again(self):
        self.does["one"] = [
            EXCEPTIONS.LDAPSocketReceiveError("cut"),
            EXCEPTIONS.LDAPSocketReceiveError("cut"),
        ]
        assert len(read_directory(SECTION, "x").people) == 1
        assert self.opened == ["one", "one", "one"]

    def test_and_given_up_in_the_end(self):
        self.does["one"] = [EXCEPTIONS.LDAPSocketReceiveError("cut") for _ in range(9)]
        with pytest.raises(
            DirectoryError, match="cannot read ldap://one: cut; nothing was changed"
        ):
            read_directory(SECTION, "x")
        assert self.opened == ["one"] * 3
