"""The ledger's service on the real cluster: each sees exactly what they may."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.service]

WINDOW = ("--from", "2020-01-01", "--to", "2100-01-01", "--timezone", "UTC")
PYTHON = "/opt/slurmkit/venv/bin/python"


@pytest.fixture(scope="module")
def jobs(lab: Lab) -> None:
    """Jobs of alice's (PI vogel) and dave's (PI garcia) that have ended and are in the books."""
    for user in ("alice", "dave"):
        lab.run(
            "sbatch", "--wait", "--gres=gpu:1", "--output=/dev/null", "--wrap=sleep 2", user=user
        )

    def in_the_books() -> bool:
        # Not only when it is its time; it may be at it just now.
        lab.run("slurmkit", "ledger", "ingest", service="ledger", user="slurmkit", check=False)
        return {"alice", "dave"} <= users(lab, "olga")

    wait_for(in_the_books)


def report(lab: Lab, user: str, *words: str, service: str = "login") -> dict:
    command = ("slurmkit", "report", "usage", *WINDOW, "--format", "json", *words)
    return json.loads(lab.run(*command, user=user, service=service).stdout)


def users(lab: Lab, user: str) -> set[str]:
    return {row["user"] for row in report(lab, user, "--by", "user")["rows"]}


@pytest.mark.usefixtures("jobs")
def test_each_sees_exactly_what_they_may(lab: Lab) -> None:
    # trent's runs, when there are any, are of the account vision too.
    vision = {"alice", "bob", "carol", "peggy", "erin", "vogel", "trent"}
    everybody = users(lab, "olga")
    assert {"alice", "dave"} <= everybody
    assert users(lab, "alice") == {"alice"}
    assert users(lab, "dave") == {"dave"}
    assert "alice" in users(lab, "vogel") <= vision
    assert "dave" in users(lab, "garcia")
    assert not users(lab, "garcia") & (vision - {"erin"})  # who is in both groups
    assert users(lab, "nobody") == set()
    seen = report(lab, "alice", "--by", "user", "--user", "dave")
    assert seen["rows"] == []
    note = "shown to alice: your own runs, and the runs of groups whose PI you are"
    assert note in seen["meta"]["notes"]


@pytest.mark.usefixtures("jobs")
def test_the_service_and_the_books_say_the_same(lab: Lab) -> None:
    # Jobs of other tests may run on, and count up to now: so up to a moment that is over.
    by = ("--to", time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()), "--by", "user,account")

    def books() -> list[dict]:
        return report(lab, "slurmkit", *by, service="ledger")["rows"]

    def seen() -> tuple[list[dict], list[dict], list[dict]]:
        return books(), report(lab, "olga", *by)["rows"], books()

    # They may end, or an ingest may come.
    _, asked, after = wait_for(seen, lambda three: three[0] == three[2])
    assert asked == after


def page(lab: Lab, path: str) -> str:
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:6831{path}').read().decode())"
    return lab.run(PYTHON, "-c", code, service="ledger", user="slurmkit").stdout


@pytest.mark.usefixtures("jobs")
def test_health_and_metrics(lab: Lab) -> None:
    # Until it has taken in the jobs of the last minutes, that is one.
    health = wait_for(lambda: json.loads(page(lab, "/health")), lambda seen: not seen["reasons"])
    assert list(health["ingest_age"]) == [lab.name]
    metrics = page(lab, "/metrics")
    assert f'slurmkit_ledger_ingest_lag_seconds{{cluster="{lab.name}"}}' in metrics
    assert 'slurmkit_ledger_month_gpu_hours{cluster="' in metrics
    assert "alice" not in metrics
    # On that host alone.
    refused = lab.run(PYTHON, "-c", "import socket; socket.create_connection(('ledger', 6831), 3)",
                      user="alice", check=False)  # fmt: skip
    assert refused.returncode == 1


def test_it_stops_gracefully_and_comes_back(lab: Lab) -> None:
    container = lab.container("ledger")
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    subprocess.run(["docker", "restart", "-t", "300", container], check=True, capture_output=True)
    # The whole container starts anew.
    usage = ("slurmkit", "report", "usage")
    wait_for(lambda: lab.run(*usage, user="alice", check=False).returncode == 0)
    said = subprocess.run(
        ["docker", "logs", "--since", since, container], check=True, capture_output=True, text=True
    ).stderr
    assert "received signal=SIGTERM" in said
    assert "stopped" in said.splitlines()


def test_on_a_socket_the_kernel_says_who_asks(lab: Lab, jobs: None) -> None:
    """A service of alice's own, without a port: everything for her, for dave what is dave's."""
    del jobs
    home = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    place = lab.run("bash", "-c", "d=$(mktemp -d); chmod 755 $d; echo $d").stdout.strip()
    tasks = "".join(f'{name} = ""\n' for name in ("ingest", "sweep", "people", "digest"))
    served = (
        f'[ledger]\ndb = "sqlite:///{home}/ledger.db"\n[ledger.schedule]\n{tasks}'
        f'[ledger.service]\nuser = "alice"\nlisten = "unix:{place}/socket"\n'
        f'monitor = "unix:{place}/monitor"\n'
    )
    asks = f'[ledger.service]\nurl = "unix:{place}/socket"\nuser = "alice"\n'
    lab.run("tee", f"{home}/service.toml", input=served)
    lab.run("tee", f"{place}/client.toml", input=asks)
    of_service = ("env", f"SLURMKIT_CONFIG={home}/service.toml")
    lab.run(*of_service, "slurmkit", "ledger", "ingest", "--db", f"sqlite:///{home}/ledger.db")
    start = f"{' '.join(of_service)} slurmkit ledger serve >{home}/log 2>&1 & echo $!"
    process = lab.run("bash", "-c", start).stdout.strip()
    try:
        wait = f"for i in {{1..1500}}; do [ -S {place}/socket ] && exit; sleep .2; done; exit 1"
        lab.run("bash", "-c", wait)

        def seen(user: str, client: str = f"{place}/client.toml") -> set[str]:
            words = ("slurmkit", "report", "usage", *WINDOW, "--by", "user", "--format", "json")
            done = lab.run("env", f"SLURMKIT_CONFIG={client}", *words, user=user)
            return {row["user"] for row in json.loads(done.stdout)["rows"]}

        assert {"alice", "dave"} <= seen("alice")
        assert seen("dave") == {"dave"}
        lab.run("tee", f"{place}/other.toml", input=asks.replace("alice", "bob"))
        other = ("env", f"SLURMKIT_CONFIG={place}/other.toml", "slurmkit", "report", "usage")
        refused = lab.run(*other, user="dave", check=False)
        assert refused.returncode == 1
        assert "listens on the socket, not uid" in refused.stderr
    finally:
        # It removes its sockets itself.
        ended = f"kill {process}; while kill -0 {process} 2>/dev/null; do sleep .1; done"
        lab.run("bash", "-c", f"{ended}; cat {home}/log; rm -r {home} {place}")
