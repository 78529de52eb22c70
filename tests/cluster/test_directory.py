"""A big directory in a real slapd with TLS: read in full and in time, and cut off half-way."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_lab import CLUSTER, Lab

pytestmark = pytest.mark.cluster

KEEPER = "slurmkit"
SCRIPT = Path(__file__).with_name("big_directory.py")
PEOPLE, GROUPS = 20_000, 2_000
SMALL = 4  # a part of them, in a smaller directory
MOST_TIMES = 5  # the CPU time of that
PORT, CUT_PORT = 3890, 3891
HALF_WAY = 2_000_000  # bytes; all of it is about 8 million
SECTION = """[ldap]
uri = "{uri}"
bind_dn = "cn=admin,dc=big,dc=example"
bind_password_file = "{folder}/password"
people_base = "ou=people,dc=big,dc=example"
groups_base = "ou=research,dc=big,dc=example"
"""


@contextmanager
def started(lab: Lab, folder: str, *arguments: object) -> Iterator[None]:
    """Something that big_directory.py starts, until it is not needed any more."""
    words = ["python3", f"{folder}/big_directory.py", folder, *map(str, arguments)]
    command = [str(CLUSTER), "exec", "ldap", "--name", lab.name, "--", *words]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.stdin.close()


@contextmanager
def directory(lab: Lab, people: int, groups: int) -> Iterator[str]:
    """A slapd of so many; its folder in the container of LDAP."""
    folder = lab.run("mktemp", "-d", user="", service="ldap").stdout.strip()
    path = f"{folder}/big_directory.py"
    lab.run("tee", path, user="", service="ldap", input=SCRIPT.read_text("utf-8"))
    with started(lab, folder, people, groups):
        yield folder
    lab.run("rm", "-r", folder, user="", service="ldap")


@pytest.fixture(scope="module")
def small(lab: Lab) -> float:
    """Seconds of CPU time that a sync of the smaller directory takes."""
    with directory(lab, PEOPLE // SMALL, GROUPS // SMALL), keeping(lab) as folder:
        done = sync(lab, folder, f"ldap://ldap:{PORT}")
    assert f"people: {PEOPLE // SMALL} added, 0 changed, 0 closed\n" in done.stdout, done.stderr
    return cpu_seconds(done)


@pytest.fixture(scope="module")
def big(lab: Lab, small: float) -> Iterator[str]:
    """The folder in the container of LDAP, with slapd up."""
    del small  # measured first: both are on one port
    with directory(lab, PEOPLE, GROUPS) as folder:
        yield folder


@pytest.fixture
def folder(lab: Lab) -> Iterator[str]:
    """A folder of the keeper's on the login node, with the password."""
    with keeping(lab) as made:
        yield made


@contextmanager
def keeping(lab: Lab) -> Iterator[str]:
    """See `folder`."""
    made = lab.run("mktemp", "-d", user=KEEPER).stdout.strip()
    hidden = f"umask 077; cat > {made}/password"
    lab.run("sh", "-c", hidden, user=KEEPER, input="secret")
    yield made
    lab.run("rm", "-r", made, user=KEEPER)


def sync(lab: Lab, folder: str, uri: str, *words: str) -> subprocess.CompletedProcess[str]:
    section = SECTION.format(uri=uri, folder=folder)
    lab.run("tee", f"{folder}/config.toml", user=KEEPER, input=section)
    where = f"SLURMKIT_CONFIG={folder}/config.toml SLURMKIT_DB=sqlite:///{folder}/ledger.db"
    command = f"TIMEFORMAT='%U %S'; time env {where} slurmkit ledger people sync {' '.join(words)}"
    return lab.run("bash", "-c", command, user=KEEPER, check=False)


def cpu_seconds(done: subprocess.CompletedProcess[str]) -> float:
    """Of the command itself: what else the machine does, and slapd's own part, is not counted."""
    return sum(map(float, done.stderr.splitlines()[-1].split()))


def test_many_people_and_groups_in_a_ring_are_synced_in_time(
    lab: Lab, big: str, small: float, folder: str
) -> None:
    """The time grows as the directory does, not as its square."""
    done = sync(lab, folder, f"ldap://ldap:{PORT}")
    assert done.returncode == 0
    assert cpu_seconds(done) < MOST_TIMES * small
    assert f"people: {PEOPLE} added, 0 changed, 0 closed\n" in done.stdout
    assert f"{PEOPLE} people and {GROUPS} groups in ldap://ldap:{PORT}" in done.stderr
    show = ["slurmkit", "ledger", "people", "show", "p4711", "--json"]
    db = ["--db", f"sqlite:///{folder}/ledger.db"]
    (found,) = json.loads(lab.run(*show, *db, user=KEEPER).stdout)["rows"]
    groups = [line["value"] for line in found["lines"] if line["what"] == "group"]
    assert len(set(groups)) == GROUPS  # each is in the next one, and the last in the first


def test_a_directory_that_is_cut_off_half_way_changes_nothing(
    lab: Lab, big: str, folder: str
) -> None:
    uri = f"ldap://ldap:{CUT_PORT}"
    with started(lab, big, "cut", CUT_PORT, HALF_WAY, 99):
        done = sync(lab, folder, uri)
    assert done.returncode == 1
    assert done.stdout == ""
    line, _ = done.stderr.splitlines()
    assert line.startswith(f"slurmkit: cannot read {uri}: ")
    assert line.endswith("nothing was changed")
    done = sync(lab, folder, f"ldap://ldap:{PORT}", "--dry-run")
    assert f"people: {PEOPLE} added, 0 changed, 0 closed\n" in done.stdout


def test_one_that_breaks_off_once_is_read_again(lab: Lab, big: str, folder: str) -> None:
    with started(lab, big, "cut", CUT_PORT, HALF_WAY, 1):
        done = sync(lab, folder, f"ldap://nowhere.invalid ldap://ldap:{CUT_PORT}")
    assert done.returncode == 0
    assert f"people: {PEOPLE} added, 0 changed, 0 closed\n" in done.stdout
