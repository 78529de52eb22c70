"""People from LDAP, jobs from sacct, GPU-hours under the right PI: on the real cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from cluster_lab import Lab
from waiting import PATIENCE, wait_for

from slurmkit.formats.display import format_number

pytestmark = [pytest.mark.cluster, pytest.mark.service]

KEEPER = "slurmkit"  # the user who keeps the books on the login node
DATABASE = "slurmkit"
POSTGRESQL = f"postgresql+psycopg://slurmkit@postgres/{DATABASE}"
BEGIN, END = "2020-01-01", "2100-01-01"


@pytest.fixture
def postgresql_books(lab: Lab) -> Iterator[str]:
    """URL of a new ledger in PostgreSQL, in a schema of its own."""
    schema = f"test_{uuid4().hex}"
    psql(lab, f"CREATE SCHEMA {schema} AUTHORIZATION slurmkit")
    yield f"{POSTGRESQL}?options=-csearch_path%3D{schema}"
    psql(lab, f"DROP SCHEMA {schema} CASCADE")


def psql(lab: Lab, command: str) -> str:
    words = ["psql", "-qAtd", DATABASE, "-c", command]
    return lab.run(*words, user="postgres", service="postgres").stdout


@pytest.fixture(scope="module")
def job(lab: Lab) -> str:
    """A two-node GPU job of frank's that has ended; he is in genomics, whose PI is garcia."""
    return ended_job(lab, "frank", "--gpus-per-node", "a100:2", "--nodes", "2")


def ended_job(lab: Lab, user: str, *request: str) -> str:
    command = ["slurmkit", "submit", "--parsable", *request, "--time", "2", "--", "sleep", "3"]
    number = lab.run(*command, user=user).stdout.strip()
    wait_for_end(lab, number)
    return number


def wait_for_end(lab: Lab, number: str) -> None:
    wait_for(lambda: sacct(lab, number), lambda job: job["State"] == "COMPLETED")


def sacct(lab: Lab, number: str) -> dict[str, str]:
    """The job's own row, asked for without slurmkit."""
    fields = ("State", "Start", "End", "ElapsedRaw", "AllocTRES", "AllocCPUS")
    asked = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-X", "-n", "-P", "-j", number]
    found = lab.run(*asked, f"--format={','.join(fields)}", user="").stdout.splitlines()
    return dict(zip(fields, found[0].split("|"), strict=True)) if found else {"State": "unknown"}


def keep(lab: Lab, *words: str, db: str, check: bool = True):
    return lab.run("slurmkit", *words, "--db", db, user=KEEPER, check=check)


def usage(lab: Lab, db: str, by: str, begin: str = BEGIN, end: str = END) -> dict:
    words = ["report", "usage", "--from", begin, "--to", end, "--by", by, "--timezone", "UTC"]
    return json.loads(keep(lab, *words, "--format", "json", db=db).stdout)


def row(report: dict, by: str, key: str) -> dict:
    (found,) = [one for one in report["rows"] if one[by] == key]
    return found


def iso(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(epoch))


def counts(said: str) -> list[int]:
    """Rows read, new, changed and rejected."""
    return [int(word) for word in said.replace(":", " ").split() if word.isdigit()][:4]


def wait_for_quiet(lab: Lab) -> None:
    """Until no job runs any more, so that none ends between two ingests."""
    deadline = time.monotonic() + PATIENCE
    while lab.run("squeue", "-h", "-t", "R,CG").stdout and time.monotonic() < deadline:
        time.sleep(1)


def count_runs(lab: Lab) -> int:
    """The runs of the days that a first ingest reads, counted without slurmkit."""
    asked = ["sacct", "-aXDnP", "-S", "now-30days", "-o", "JobIDRaw,Submit"]
    return len(set(lab.run(*asked, user=KEEPER).stdout.splitlines()))


def check_the_line(lab: Lab, db: str, number: str) -> None:
    wait_for_quiet(lab)
    synced = keep(lab, "ledger", "people", "sync", db=db).stdout
    assert "membership added: frank in genomics" in synced
    ingested = keep(lab, "ledger", "ingest", db=db).stdout
    read, new, changed, rejected = counts(ingested)
    # sacct is asked day by day, so a run that went on over midnight is read twice.
    assert read >= new == count_runs(lab) > 0
    assert (changed, rejected) == (0, 0)

    fact = sacct(lab, number)
    assert "gres/gpu=4" in fact["AllocTRES"].split(",")
    hours = 4 * int(fact["ElapsedRaw"]) / 3600
    assert hours > 0
    # A window exactly as long as the job ran: nobody else of its group runs anything then.
    window = iso(int(fact["Start"])), iso(int(fact["End"]))
    for by, key in (("user", "frank"), ("account", "genomics"), ("pi", "garcia")):
        found = row(usage(lab, db, by, *window), by, key)
        assert found["gpu_hours"] == pytest.approx(hours, abs=0.00005)
        assert found["cpu_hours"] == pytest.approx(
            int(fact["AllocCPUS"]) * int(fact["ElapsedRaw"]) / 3600, abs=0.00005
        )

    words = ["report", "usage", "--from", window[0], "--to", window[1], "--timezone", "UTC"]
    table = keep(lab, *words, "--by", "pi", db=db).stdout
    assert format_number(hours) in table.split()

    # Again: nothing is new, and every number is as before.
    before = usage(lab, db, "pi", *window)
    synced = keep(lab, "ledger", "people", "sync", db=db).stdout
    assert synced.splitlines()[0] == "people: 0 added, 0 changed, 0 closed"
    again = counts(keep(lab, "ledger", "ingest", db=db).stdout)
    assert again[1:] == [0, 0, 0]
    assert usage(lab, db, "pi", *window)["rows"] == before["rows"]


def test_a_gpu_job_becomes_a_line_under_the_right_pi(lab: Lab, books: str, job: str) -> None:
    check_the_line(lab, books, job)


def test_the_same_on_postgresql(lab: Lab, postgresql_books: str, job: str) -> None:
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
    before = psql(lab, tables)
    check_the_line(lab, postgresql_books, job)
    assert psql(lab, tables) == before


def test_everybody_in_ldap_is_in_the_ledger(lab: Lab, books: str) -> None:
    said = keep(lab, "ledger", "people", "sync", db=books).stdout.splitlines()
    added = {line.removeprefix("person added: ") for line in said if "person added" in line}
    in_ldap = lab.run("getent", "passwd", user="").stdout.splitlines()
    numbers = {fields[0]: int(fields[2]) for fields in (line.split(":") for line in in_ldap)}
    assert {name for name, number in numbers.items() if 10000 < number < 20000} == added
    assert "membership added: judy in genomics-imaging" in said
    assert "membership added: genomics-imaging in genomics" in said


def test_a_cpu_job_has_no_gpu_hours(lab: Lab, books: str) -> None:
    number = ended_job(lab, "niaj", "--partition", "cpu")
    keep(lab, "ledger", "people", "sync", db=books)
    keep(lab, "ledger", "ingest", db=books)
    fact = sacct(lab, number)
    window = iso(int(fact["Start"])), iso(int(fact["End"]))
    found = row(usage(lab, books, "user", *window), "user", "niaj")
    assert found["gpu_hours"] == 0
    assert found["cpu_hours"] > 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('uri = "ldap://ldap:390"', "cannot read ldap://ldap:390"),
        ('ca_file = "/etc/ssl/certs/ca-certificates.crt"', "not signed by the CA"),
        ('bind_dn = "cn=nobody,dc=lab,dc=example"', "does not accept [ldap] bind_dn"),
        ('people_filter = "(uid=nobody)"', "shows no people"),
    ],
)
def test_a_directory_that_cannot_be_read_changes_nothing(
    lab: Lab, books: str, setting: str, words: str
) -> None:
    keep(lab, "ledger", "people", "sync", db=books)
    folder = books.removeprefix("sqlite:///").removesuffix("/ledger.db")
    lab.run("tee", f"{folder}/config.toml", input=f"[ldap]\n{setting}\n", user=KEEPER)
    command = ["env", f"SLURMKIT_CONFIG={folder}/config.toml", "slurmkit", "ledger", "people"]
    done = lab.run(*command, "sync", "--db", books, user=KEEPER, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line
    said = keep(lab, "ledger", "people", "sync", db=books).stdout.splitlines()
    assert said == [
        "people: 0 added, 0 changed, 0 closed",
        "groups: 0 added, 0 changed, 0 closed",
        "memberships: 0 added, 0 closed",
    ]


@pytest.mark.parametrize(
    ("db", "words", "code"),
    [
        ("sqlite:////proc/none/ledger.db", "cannot create or open", 1),
        ("sqlite:////etc/passwd", "file is not a database", 1),
        ("mysql://db/slurmkit", "cannot be stored in 'mysql'", 2),
        ("postgresql+psycopg://slurmkit@ldap/slurmkit", "cannot use the ledger", 1),
    ],
)
def test_a_ledger_that_cannot_be_is_one_line(lab: Lab, db: str, words: str, code: int) -> None:
    done = keep(lab, "ledger", "ingest", db=db, check=False)
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert words in line
