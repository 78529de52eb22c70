from __future__ import annotations

import pytest
from entries import group, person
from msgspec import structs
from slurmkit_accounting.config import LdapSection, read_bind_password
from slurmkit_accounting.people.ldap import _entries, read_directory
from slurmkit_accounting.people.ldap_entries import normalise_dn, parse_directory, parse_person
from slurmkit_accounting.people.model import (
    Directory,
    PersonEntry,
    directory_warnings,
    has_expired,
    memberships_of_groups,
    memberships_of_people,
    pick_owner,
)

from slurmkit.errors import BadConfig, DirectoryError

NOW = 20_000 * 86400
SECTION = LdapSection(uri="ldap://localhost", people_base="ou=p", groups_base="ou=g")
ALICE = {
    "entryUUID": [b"uuid-1"],
    "uid": [b"alice"],
    "uidNumber": [b"10011"],
    "cn": ["Zoë Ångström".encode()],
    "mail": [b"alice@lab.example", b"other@lab.example"],
}


def test_an_entry_becomes_a_person():
    assert parse_person("UID=Alice, OU=p", ALICE, SECTION, NOW) == PersonEntry(
        dn="uid=alice,ou=p",
        directory_id="uuid-1",
        username="alice",
        uid=10011,
        display_name="Zoë Ångström",
        mail="alice@lab.example",
        active=True,
    )


@pytest.mark.parametrize(
    ("days", "is_expired"),
    [(None, False), (-1, False), (20_001, False), (20_000, True), (19_999, True), (0, True)],
)
def test_shadow_expire_is_in_days(days, is_expired):
    assert has_expired(days, NOW) is is_expired
    expire = {} if days is None else {"shadowExpire": [str(days).encode()]}
    assert parse_person("uid=a", ALICE | expire, SECTION, NOW).active is not is_expired


@pytest.mark.parametrize("missing", ["entryUUID", "uid"])
def test_an_entry_that_hides_who_it_is_is_an_error(missing):
    with pytest.raises(DirectoryError, match=f"shows no {missing}; nothing was changed"):
        parse_person("uid=a", {**ALICE, missing: []}, SECTION, NOW)


def test_a_number_that_is_none_is_an_error():
    with pytest.raises(DirectoryError, match="uidNumber 'ten', which is not a number"):
        parse_person("uid=a", {**ALICE, "uidNumber": [b"ten"]}, SECTION, NOW)


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**30])
def test_a_number_too_big_to_store_is_an_error(number):
    entry = {**ALICE, "uidNumber": [str(number).encode()]}
    with pytest.raises(DirectoryError, match=f"uidNumber '{number}', which is too big"):
        parse_person("uid=a", entry, SECTION, NOW)
    assert parse_person("uid=a", {**ALICE, "uidNumber": [b"%d" % (2**63 - 1)]}, SECTION, NOW).uid


def test_a_person_may_lack_the_rest():
    bare = {"entryUUID": [b"u"], "uid": [b"a"]}
    found = parse_person("uid=a", bare, SECTION, NOW)
    assert (found.uid, found.display_name, found.mail, found.active) == (None, "", "", True)


def test_an_entry_becomes_a_group():
    entry = {
        "entryUUID": [b"uuid-2"],
        "cn": [b"vision"],
        "member": [b"uid=alice,ou=p", b"CN=Sub, OU=g"],
        "owner": [b"uid=vogel,ou=p"],
    }
    (found,) = parse_directory(SECTION, [], [("cn=vision,ou=g", entry)], NOW).groups
    assert (found.name, found.owners) == ("vision", ("uid=vogel,ou=p",))
    assert found.members == ("uid=alice,ou=p", "cn=sub,ou=g")


def test_attributes_can_have_other_names():
    section = LdapSection(id_attribute="nsUniqueId", username_attribute="sAMAccountName")
    entry = {"nsUniqueId": [b"n1"], "sAMAccountName": [b"alice"]}
    found = parse_person("cn=a", entry, section, NOW)
    assert (found.directory_id, found.username) == ("n1", "alice")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("uid=Alice,OU=People,dc=x", "UID=alice , ou=people, DC=X"),
        ("cn=Ann  Lee,dc=x", "cn=ann lee,dc=x"),
        ("cn=Ann+UID=a,dc=x", "uid=a + cn=ann,dc=x"),
        ("cn=a\\2Cb,dc=x", "cn=a\\,b,dc=x"),
        ("cn=\\C3\\A5,dc=x", "cn=Å,dc=x"),
        ('cn="a,b";dc=x', "cn=a\\,b,dc=x"),
        ("cn=a\\  ,dc=x", "cn=a\\20,dc=x"),
        ("cn=a+SN=b,dc=x", "cn=A + sn=b,dc=x"),
        ("1.2.3=x,dc=x", "1.2.3 = X,dc=x"),
    ],
)
def test_equal_dns_are_equal_texts(one, other):
    assert normalise_dn(one) == normalise_dn(other)


def test_different_dns_are_different_texts():
    assert normalise_dn("cn=a\\,dc=b,dc=x") != normalise_dn("cn=a,dc=b,dc=x")
    assert normalise_dn("cn=a\\5C,dc=x") != normalise_dn("cn=a,dc=x")
    assert normalise_dn("cn=a\\ ,dc=x") != normalise_dn("cn=a ,dc=x")


@pytest.mark.parametrize("many", ["\\41", " ", "a ", "\\ ", "\\\\"])
def test_a_long_dn_takes_no_long_time(many):
    """With a regular expression of all, each two of these doubled the time."""
    value = many * 50_000
    with pytest.raises(DirectoryError, match="instead of a DN"):
        normalise_dn(f'cn={value}"')
    assert normalise_dn(f"cn=x{value}y,dc=x").endswith("y,dc=x")


@pytest.mark.parametrize("text", ["no dn at all", "", "cn", "cn=a,", "cn=a,,dc=x", "=x", "cn=a\\"])
def test_a_dn_that_is_none_is_an_error(text):
    with pytest.raises(DirectoryError, match="instead of a DN"):
        normalise_dn(text)


def test_who_and_which_groups_are_in_a_group_also_in_a_circle():
    people = tuple(person(name) for name in ("ann", "ben", "pi"))
    groups = (
        group("outer", "uid=ann", "cn=inner", owners=("pi",)),
        group("inner", "uid=ben", "cn=outer", "cn=inner"),
        group("apart", "uid=ann", "cn=unknown", "uid=stranger"),
    )
    found = Directory(people, groups)
    assert memberships_of_people(found) == {
        ("cn=outer", "uid=ann"),
        ("cn=outer", "uid=pi"),
        ("cn=inner", "uid=ben"),
        ("cn=apart", "uid=ann"),
    }
    assert memberships_of_groups(found) == {("cn=inner", "cn=outer"), ("cn=outer", "cn=inner")}


def test_of_several_owners_the_first_by_name():
    people = {one.dn: one for one in (person("zed"), person("amy"))}
    assert pick_owner(group("g", owners=("zed", "amy", "gone")), people).username == "amy"
    assert pick_owner(group("g", owners=("gone",)), people) is None


def test_what_was_probably_not_meant_is_said():
    found = Directory(
        (person("amy"), person("zed")),
        (group("none", "uid=amy"), group("two", "uid=gone", owners=("zed", "amy"))),
    )
    assert list(directory_warnings(found)) == [
        "group none has no owner in the directory, so its jobs get no PI from it",
        "group two has 2 owners; amy, the first by name, is PI",
        "group two has 1 members that are neither people nor groups",
    ]


@pytest.mark.parametrize(
    ("people", "groups", "words"),
    [
        (
            (person("a"), person("b", username="a")),
            (),
            "uid=a and uid=b have the same user name 'a'",
        ),
        # Nowhere else does case tell two of them apart.
        ((person("a"), person("A")), (), "uid=a and uid=A have the same user name 'a'"),
        ((person("a", uid=7), person("b", uid=7)), (), "uid number '7'"),
        ((person("a"), person("b", directory_id="id-a")), (), "id 'id-a'"),
        (
            (person("a"),),
            (group("g"), group("g", dn="cn=h", directory_id="id-h")),
            "group name 'g'",
        ),
        (
            (person("a"),),
            (group("Vision"), group("vision", dn="cn=v", directory_id="id-v")),
            "cn=Vision and cn=v have the same group name 'vision'",
        ),
    ],
)
def test_two_entries_cannot_be_the_same(people, groups, words):
    with pytest.raises(DirectoryError, match=words):
        Directory(people, groups)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (LdapSection(), "uri '' is not valid; write ldap://HOST"),
        (LdapSection(uri="http://x"), "uri 'http://x' is not valid; write ldap://HOST"),
        (LdapSection(uri="ldap://"), "is not valid; write ldap://HOST"),
        (LdapSection(uri="ldap://[::1"), "is not valid; write ldap://HOST"),
        (LdapSection(uri="ldap://h:99999"), "is not valid; write ldap://HOST"),
        (LdapSection(uri="ldap://h:abc"), "is not valid; write ldap://HOST"),
        (LdapSection(uri="ldap://h:0"), "is not valid; write ldap://HOST"),
        (LdapSection(uri="ldap://x", groups_base="ou=g"), "people_base is not set"),
        (LdapSection(uri="ldap://x", people_base="ou=p"), "groups_base is not set"),
    ],
)
def test_a_section_that_cannot_be_meant(section, words):
    with pytest.raises(BadConfig, match=words):
        read_directory(section, "")


class ServerThatRefers:
    """Answers with one person and, for others, with the name of another server."""

    def search(self, base, search_filter, **options):
        self.result = {"result": 0, "description": "success"}
        self.response = [
            {"type": "searchResEntry", "dn": "uid=alice", "raw_attributes": ALICE},
            {"type": "searchResRef", "uri": ["ldap://other.example/ou=p", "ldap://[half"]},
        ]


def test_a_directory_that_refers_to_another_server_is_not_read_in_full():
    words = r"refers to other.example or ldap://\[half for a part of ou=p; nothing was changed"
    with pytest.raises(DirectoryError, match=words):
        list(_entries(ServerThatRefers(), SECTION, "ou=p", "(uid=*)"))


def test_a_part_of_the_directory_can_be_left_out_on_purpose():
    section = structs.replace(SECTION, ignore_referrals=True)
    found = list(_entries(ServerThatRefers(), section, "ou=p", "(uid=*)"))
    assert found == [("uid=alice", ALICE)]


def test_a_server_that_is_not_there():
    section = LdapSection(uri="ldap://127.0.0.1:1", people_base="ou=p", groups_base="ou=g")
    with pytest.raises(
        DirectoryError, match=r"cannot read ldap://127.0.0.1:1: .*nothing was changed"
    ):
        read_directory(section, "")


def test_a_ca_file_that_is_not_there(tmp_path):
    section = LdapSection(
        uri="ldap://127.0.0.1:1", ca_file=str(tmp_path / "no.pem"), people_base="x", groups_base="x"
    )
    with pytest.raises(DirectoryError, match="ca_file does not exist"):
        read_directory(section, "")


class TestBindPassword:
    def test_nobody_needs_none(self):
        assert read_bind_password(LdapSection()) == ""

    def test_from_a_file_without_its_line_end(self, tmp_path):
        path = tmp_path / "password"
        path.write_text(" s3cret \n", "utf-8")
        path.chmod(0o640)
        assert (
            read_bind_password(LdapSection(bind_dn="cn=x", bind_password_file=str(path)))
            == " s3cret "
        )

    def test_the_environment_wins(self, monkeypatch):
        monkeypatch.setenv("SLURMKIT_LDAP_PASSWORD", "from-env")
        section = LdapSection(bind_dn="cn=x", bind_password_file="/nowhere")
        assert read_bind_password(section) == "from-env"

    def test_a_file_everybody_can_read_is_refused(self, tmp_path):
        path = tmp_path / "password"
        path.write_text("s3cret\n", "utf-8")
        path.chmod(0o644)
        with pytest.raises(BadConfig, match=r"everybody can read .*; run: chmod o=") as caught:
            read_bind_password(LdapSection(bind_dn="cn=x", bind_password_file=str(path)))
        assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("text", ["", "\n"])
    def test_a_name_without_a_password_is_refused(self, tmp_path, text):
        path = tmp_path / "password"
        path.write_text(text, "utf-8")
        path.chmod(0o600)
        for name in ("", str(path)):
            with pytest.raises(BadConfig, match="bind_dn needs a password"):
                read_bind_password(LdapSection(bind_dn="cn=x", bind_password_file=name))

    def test_a_file_that_is_not_there(self):
        with pytest.raises(BadConfig, match="cannot read /nowhere"):
            read_bind_password(LdapSection(bind_dn="cn=x", bind_password_file="/nowhere"))
