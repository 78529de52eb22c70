"""Idle GPUs are given back on a real Slurm: warned, checkpointed and held, or cancelled."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from cluster_lab import Lab

if TYPE_CHECKING:
    import subprocess

pytestmark = [pytest.mark.cluster, pytest.mark.service, pytest.mark.timeout(1800)]
PATIENCE = int(os.environ.get("SLURMKIT_TEST_RECLAIM_SECONDS", "420"))
TARGET = 100  # counts of a fifth of a second
# A second service, on the login node, with a policy that is quick.
CONFIG = """
[ledger]
db = "sqlite:///{folder}/ledger.db"
[ledger.service]
url = ""
listen = "unix:{folder}/socket"
monitor = "127.0.0.1:26841"
[ledger.schedule]
ingest = "* * * * *"
[gpu_use]
source = "exporters"
interval = 10
[mail]
host = "127.0.0.1"
port = 2526
security = "none"
sender = "ledger@lab.example"
[reclaim.idle]
action = "cancel"
minutes = 1
skip_minutes = 0
covered = 0.5
warn_minutes = 1
interactive_minutes = 0
"""
# A mail server that writes each mail as a line of JSON.
SMTP = r"""
import json, socketserver, sys
class Smtp(socketserver.StreamRequestHandler):
    def handle(self):
        say = lambda words: self.wfile.write(words.encode() + b"\r\n")
        say("220 here")
        to = []
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"RCPT":
                to.append(line.decode().partition("<")[2].partition(">")[0])
            if word == b"DATA":
                say("354 go on")
                mail = b""
                while (line := self.rfile.readline()) != b".\r\n":
                    mail += line
                with open(sys.argv[1], "a") as file:
                    file.write(json.dumps([to, mail.decode()]) + "\n")
            say("221 bye" if word == b"QUIT" else "250 well")
            if word == b"QUIT":
                return
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", 2526), Smtp).serve_forever()
"""
# Counts a fifth of a second for a fifth of a second; saves its count when it is asked. The first
# run does not count the last.
COUNTER = """
import os, signal, sys, time
def save(*_):
    with open(".count.new", "w") as file: file.write(str(count))
    os.replace(".count.new", "count")
    os._exit(75)
count = int(open("count").read()) if os.path.exists("count") else 0
print("run", os.environ["SLURMKIT_RESTART"], "from", count, flush=True)
signal.signal(signal.SIGUSR1, save)
target, first = int(sys.argv[1]), os.environ["SLURMKIT_RESTART"] == "0"
while count < target:
    time.sleep(0.2)
    if not first or count + 1 < target: count += 1
print("counted", count, flush=True)
"""


class Site:
    """The second service, and jobs of alice's."""

    def __init__(self, lab: Lab, folder: str) -> None:
        self.lab = lab
        self.folder = folder

    def as_service(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.lab.run(
            "env", f"XDG_CONFIG_HOME={self.folder}", *words, user="slurmkit", check=False
        )

    def as_alice(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of alice's that asks this service."""
        return self.lab.run("env", "SLURMKIT_CONFIG=/tmp/reclaim-client.toml", *words, check=False)

    def acts(self, job: str) -> list[tuple[str, str]]:
        """What was done about a job, and what came of it."""
        asked = ("slurmkit", "report", "reclaimed", "--job", job, "--json")
        shown = self.as_service(*asked)
        assert shown.returncode == 0, shown.stderr
        return [(row["action"], row["outcome"]) for row in json.loads(shown.stdout)["rows"]]

    def mails(self, job: str) -> list[tuple[list[str], str]]:
        text = self.lab.run("cat", f"{self.folder}/mails", user="", check=False).stdout
        found = [json.loads(line) for line in text.splitlines()]
        return [
            (to, mail) for to, mail in found if re.search(rf"^Subject: job {job}\b", mail, re.M)
        ]

    def state(self, job: str) -> str:
        asked = ("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r")
        return self.lab.run(*asked, check=False).stdout.strip()


def until(look: Callable[[], Any], good: Callable[[Any], object], seconds: float = PATIENCE) -> Any:
    end = time.monotonic() + seconds
    while not good(found := look()):
        assert time.monotonic() < end, found
        time.sleep(2)
    return found


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    folder = lab.run("mktemp", "-d", user="slurmkit").stdout.strip()
    lab.run("mkdir", f"{folder}/slurmkit", user="slurmkit")
    config = CONFIG.format(folder=folder)
    lab.run("tee", f"{folder}/slurmkit/config.toml", user="slurmkit", input=config)
    lab.run("chmod", "a+x", folder, user="slurmkit")
    client = f'[ledger.service]\nurl = "unix:{folder}/socket"\n'
    lab.run("tee", "/tmp/reclaim-client.toml", user="", input=client)
    operator = ("sacctmgr", "-i", "add", "user", "slurmkit", "account=root", "adminlevel=operator")
    lab.run(*operator, user="", service="ctld")
    run = f"setsid python3 -c '{SMTP}' {folder}/mails >{folder}/smtp 2>&1 & echo $!"
    mail = lab.run("sh", "-c", run, user="slurmkit").stdout.strip()
    run = f"XDG_CONFIG_HOME={folder} setsid slurmkit ledger serve >{folder}/log 2>&1 & echo $!"
    serve = lab.run("sh", "-c", run, user="slurmkit").stdout.strip()
    made = Site(lab, folder)
    log = ("cat", f"{folder}/log")
    until(lambda: lab.run(*log, user="").stdout, lambda text: "done task=ingest" in text)
    yield made
    print(lab.run(*log, user="", check=False).stdout)
    lab.run("kill", serve, mail, user="slurmkit", check=False)
    lab.run("sacctmgr", "-i", "delete", "user", "slurmkit", user="", service="ctld", check=False)
    lab.run("rm", "-r", folder, "/tmp/reclaim-client.toml", user="", check=False)


@pytest.fixture(scope="module")
def jobs(site: Site) -> Iterator[dict[str, str]]:
    """The jobs, all at the same time."""
    lab = site.lab
    home = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    lab.run("tee", f"{home}/counter.py", input=COUNTER)
    gpu = "--gres=gpu:a100:1 --time=60 --mem=500M"
    survive = "--on-timeout requeue --checkpoint-signal USR1 --grace 30 --restart-delay 0"
    submit = (
        f"cd {home} && slurmkit submit --parsable {gpu} {survive} -- python3 counter.py {TARGET}"
    )
    sbatch = f"cd {home} && sbatch --parsable {gpu} --output=/dev/null --wrap"
    made = {
        "survives": lab.run("sh", "-c", submit).stdout.strip(),
        "plain": lab.run("sh", "-c", f"{sbatch} 'sleep 3000'").stdout.strip(),
        "busy": lab.run("sh", "-c", f"{sbatch} 'gpu-play --for 3000 busy 80'").stdout.strip(),
        "kept": lab.run("sh", "-c", f"{sbatch} 'sleep 3000'").stdout.strip(),
        "home": home,
    }
    yield made
    ids = [job for name, job in made.items() if name != "home"]
    lab.run("scancel", "-Q", *ids, check=False)
    lab.run("rm", "-r", home, check=False)


@pytest.mark.slow
def test_a_user_has_a_job_left_alone(site: Site, jobs: dict[str, str]) -> None:
    job = jobs["kept"]
    until(lambda: site.acts(job), lambda acts: ("mail", "mailed") in acts)
    keep = ("slurmkit", "reclaim", "keep", job, "--reason", "waits for its data")
    not_mine = site.lab.run(
        "env", "SLURMKIT_CONFIG=/tmp/reclaim-client.toml", *keep, user="bob", check=False
    )
    assert "is not yours" in not_mine.stderr
    kept = site.as_alice(*keep)
    assert kept.returncode == 0, kept.stderr
    assert "is left alone until" in kept.stdout
    assert "once for a job" in site.as_alice(*keep).stderr
    assert ("keep", "kept") in site.acts(job)


@pytest.mark.slow
def test_a_job_that_does_not_survive_is_warned_and_cancelled(
    site: Site, jobs: dict[str, str]
) -> None:
    job = jobs["plain"]
    until(lambda: site.acts(job), lambda acts: len(acts) == 2 and acts[1][1] != "under way")
    assert site.acts(job) == [("mail", "mailed"), ("cancel", "cancelled")]
    assert site.state(job).startswith("CANCELLED")
    (warned, text), (_, told) = site.mails(job)
    assert warned[0].startswith("alice@")
    assert "1 of 1 GPUs idle" in text
    assert "was cancelled" in told


@pytest.mark.slow
def test_a_job_that_survives_is_held_and_goes_on_after_its_release(
    site: Site, jobs: dict[str, str]
) -> None:
    job, home = jobs["survives"], jobs["home"]
    until(lambda: site.acts(job), lambda acts: ("requeue", "held") in acts)
    assert site.state(job) == "PENDING JobHeldUser"
    time.sleep(20)
    assert site.state(job) == "PENDING JobHeldUser"
    saved = int(site.lab.run("cat", f"{home}/count").stdout)
    assert 0 < saved < TARGET
    assert site.as_alice("slurmkit", "release", job).returncode == 0
    ended = site.lab.run("slurmkit", "wait", job, timeout=PATIENCE, check=False)
    log = site.lab.run("cat", f"{home}/slurm-{job}.out").stdout
    assert ended.returncode == 0, log
    assert f"run 1 from {saved}\n" in log
    assert f"counted {TARGET}\n" in log


@pytest.mark.slow
def test_a_busy_job_and_a_kept_one_are_not_touched(site: Site, jobs: dict[str, str]) -> None:
    """They began before the others, which are over by now."""
    assert site.state(jobs["busy"]).startswith("RUNNING")
    assert site.acts(jobs["busy"]) == []
    assert site.mails(jobs["busy"]) == []
    assert site.state(jobs["kept"]).startswith("RUNNING")
    assert [action for action, _ in site.acts(jobs["kept"])] == ["mail", "keep"]
