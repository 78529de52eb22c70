"""Who asks the ledger's service, where munged vouches."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_lab import Lab
from portal_service import PYTHON

pytestmark = [pytest.mark.cluster, pytest.mark.service]
SEND = (Path(__file__).parent / "query_driver.py").read_text("utf-8")


@pytest.fixture(autouse=True)
def _munge(lab: Lab) -> None:
    if lab.auth != "munge":
        pytest.skip("this cluster has no MUNGE")


def sent(lab: Lab, user: str, kind: str, times: int = 1) -> list[str]:
    return lab.run(PYTHON, "-c", SEND, kind, str(times), user=user).stdout.splitlines()


def test_a_replayed_credential_is_refused(lab: Lab) -> None:
    first, again = sent(lab, "alice", "query", 2)
    assert first == "200 alice: your own runs, and the runs of groups whose PI you are"
    assert again.startswith("403 the credential was used before")
    assert sent(lab, "alice", "query")[0].startswith("200")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("for-root", "is for another user"),
        ("no-query", "holds no query"),
        ("cut", "is invalid: it was changed on the way"),
    ],
)
def test_what_is_not_a_query_for_the_service_is_refused(lab: Lab, kind: str, words: str) -> None:
    (said,) = sent(lab, "alice", kind)
    assert said.startswith("403")
    assert words in said


def test_nobody_else_can_read_a_query_or_an_answer(lab: Lab) -> None:
    seal = (
        "from slurmkit_accounting.remote.protocol import seal\n"
        "print(seal(b'secret', reader=10011).decode())"  # alice
    )
    credential = lab.run(PYTHON, "-c", seal, user="slurmkit").stdout
    for reader in ("bob", ""):  # and root
        refused = lab.run("unmunge", input=credential, user=reader, check=False)
        assert refused.returncode == 18
        assert "secret" not in refused.stdout
    assert "secret" in lab.run("unmunge", input=credential, user="alice").stdout


def test_an_expired_credential_is_refused(lab: Lab) -> None:
    code = (
        "import subprocess, time\n"
        "from slurmkit_accounting.remote.protocol import unseal\n"
        "made = subprocess.run(['munge', '--ttl=1', '-n'], capture_output=True).stdout\n"
        "time.sleep(2.1)\n"
        "unseal(made)"
    )
    done = lab.run(PYTHON, "-c", code, user="alice", check=False)
    assert "NotVouched: the credential has expired" in done.stderr
