"""Who asks the ledger's service, where a token of Slurm says it: docker/cluster up --auth slurm."""

from __future__ import annotations

import json
import subprocess

import pytest
from cluster_lab import Lab
from portal_service import PYTHON

pytestmark = [pytest.mark.cluster, pytest.mark.service]
REPORT = ("slurmkit", "report", "usage", "--format", "json")
# Sends a query with the token of the first argument; prints the status and what came back.
SEND = """
import http.client, os, pwd, sys
from slurmkit_accounting.remote.protocol import ServiceQuery, open_answer, seal_query
from slurmkit_accounting.remote.slurm_token import TokenBearer
keeper = pwd.getpwnam("slurmkit").pw_uid
query = ServiceQuery("usage", {"begin": "2020-01-01", "end": "2100-01-01", "by": ["user"]})
bearer = TokenBearer(os.environ["SLURM_JWT"], keeper)
connection = http.client.HTTPSConnection("ledger", timeout=300)
connection.request("POST", "/v1/query", seal_query(query, service=keeper, voucher=bearer))
response = connection.getresponse()
body = response.read()
if response.status == 200:
    body = open_answer(body.splitlines(), query.nonce, service=keeper, voucher=bearer).seen_as
    body = body.encode()
print(response.status, body.decode())
"""
# Makes the tokens that somebody with a shell can make of their own.
FORGE = """
import hmac, json, os, sys
from base64 import urlsafe_b64decode as raw, urlsafe_b64encode as text
def part(content): return text(json.dumps(content).encode()).rstrip(b"=").decode()
head, claims, signature = os.environ["SLURM_JWT"].split(".")
told = json.loads(raw(claims + "=="))
olga = part(told | {"sun": "olga"})
own = part({"alg": "HS256", "typ": "JWT"}) + "." + olga
def signed(key):
    return own + "." + text(hmac.digest(key, own.encode(), "sha256")).decode().rstrip("=")
print(json.dumps({
    "for somebody else": f"{head}.{olga}.{signature}",
    "unsigned": part({"alg": "none"}) + f".{olga}.",
    "with an empty key": signed(b""),
    "with what everybody can read": signed(open("/etc/slurmkit/ca.pem", "rb").read()),
    "for longer": f"{head}." + part(told | {"exp": told["exp"] + 86400}) + f".{signature}",
    "a credential of MUNGE": "MUNGE:AwQFAAA=:",
    "nothing": "",
}))
"""


@pytest.fixture(autouse=True)
def _tokens(lab: Lab) -> None:
    if lab.auth != "slurm":
        pytest.skip("this cluster has MUNGE: docker/cluster up --auth slurm")


def token(lab: Lab, user: str, seconds: int = 300) -> str:
    said = lab.run("scontrol", "token", f"lifespan={seconds}", user=user).stdout
    return said.strip().removeprefix("SLURM_JWT=")


def sent(lab: Lab, with_token: str, user: str = "bob") -> str:
    return lab.run("env", f"SLURM_JWT={with_token}", PYTHON, "-c", SEND, user=user).stdout.strip()


def test_no_munged_runs(lab: Lab) -> None:
    for service in ("login", "ledger", "ctld", "dbd", "c1"):
        found = lab.run("pgrep", "-x", "munged", service=service, user="", check=False)
        assert found.returncode == 1


def test_a_token_says_who_asks(lab: Lab) -> None:
    assert sent(lab, token(lab, "bob")).startswith("200 bob: your own runs")
    # Whoever has it is its user: for Slurm, too.
    hers = token(lab, "vogel")
    assert sent(lab, hers).startswith("200 vogel: your own runs, and the runs of groups")
    done = lab.run("env", f"SLURM_JWT={hers}", *REPORT, user="bob")
    assert any(
        note.startswith("shown to vogel") for note in json.loads(done.stdout)["meta"]["notes"]
    )


def test_slurm_gives_nobody_a_token_of_somebody_else(lab: Lab) -> None:
    refused = lab.run("scontrol", "token", "username=olga", user="bob", check=False)
    assert "SLURM_JWT" not in refused.stdout


def test_what_somebody_with_a_shell_can_forge_is_refused(lab: Lab) -> None:
    forged = lab.run(
        "env", f"SLURM_JWT={token(lab, 'bob')}", PYTHON, "-c", FORGE, user="bob"
    ).stdout
    for kind, text in json.loads(forged).items():
        said = sent(lab, text)
        assert said.startswith("403"), kind
        assert "token of Slurm" in said


def test_an_expired_token_is_refused(lab: Lab) -> None:
    old = token(lab, "bob", 60)
    # Made an hour ago, by the clock of the service that reads it.
    code = (
        "import sys, time\n"
        "from slurmkit.errors import NotVouched\n"
        "from slurmkit_accounting.service.slurm_tokens import check_token, load_jwt_key\n"
        "keys = load_jwt_key('/etc/slurmkit/jwt_hs256.key')\n"
        "given = sys.stdin.read().encode()\n"
        "print(check_token(given, keys, int(time.time())))\n"
        "try: check_token(given, keys, int(time.time()) + 3600)\n"
        "except NotVouched as error: print(error)\n"
    )
    said = lab.run(PYTHON, "-c", code, service="ledger", user="slurmkit", input=old).stdout
    name, refused = said.splitlines()
    assert name == "bob"
    assert "expired" in refused


def test_only_the_service_and_slurmctld_can_make_tokens(lab: Lab) -> None:
    for service in ("login", "c1", "dbd"):
        path = "/etc/slurm/jwt_hs256.key /etc/slurmkit/jwt_hs256.key"
        assert not lab.run("sh", "-c", f"cat {path}", service=service, user="", check=False).stdout
    owner = "stat -c '%U %G %a' /etc/slurmkit/jwt_hs256.key"
    assert lab.run("sh", "-c", owner, service="ledger").stdout == "root slurmkit 640\n"
    refused = lab.run("cat", "/etc/slurmkit/jwt_hs256.key", service="ledger", check=False)
    assert refused.returncode == 1


def test_only_the_web_server_hands_tokens_over(lab: Lab) -> None:
    """Nobody can stand there in the service's place, nor ask in the web server's."""
    code = "import socket; socket.socket(socket.AF_UNIX).connect('/run/slurmkit-tokens/socket')"
    refused = lab.run(PYTHON, "-c", code, service="ledger", check=False)
    assert "PermissionError" in refused.stderr
    taken = "touch /run/slurmkit-tokens/other; mv /run/slurmkit-tokens /run/elsewhere"
    assert lab.run("sh", "-c", taken, service="ledger", check=False).returncode
    heard = lab.run("ss", "-Hltn", "sport = :6830", service="ledger").stdout
    assert heard == ""


def test_a_token_goes_nowhere_else(lab: Lab) -> None:
    """Not to a port that somebody else has, nor to a server with another certificate."""
    config = '[ledger.service]\nauth = "jwt"\nurl = "{}"\nuser = "slurmkit"\n'
    for url, code, words in (
        ("http://127.0.0.1:6830", 2, "must be https://HOST"),
        ("https://login:22", 1, "SSL"),
        ("https://127.0.0.1", 1, "refused"),
    ):
        file = lab.run("mktemp").stdout.strip()
        lab.run("tee", file, input=config.format(url))
        refused = lab.run("env", f"SLURMKIT_CONFIG={file}", *REPORT, check=False)
        assert refused.returncode == code
        assert words in refused.stderr


def test_no_token_is_in_the_log(lab: Lab) -> None:
    secret = token(lab, "bob")
    sent(lab, secret)
    sent(lab, secret[:-3] + "AAA")
    log = subprocess.run(
        ["docker", "logs", lab.container("ledger")], check=True, capture_output=True, text=True
    )
    assert "not valid here" in log.stderr
    assert secret.split(".")[1] not in log.stderr + log.stdout
