"""Mails about jobs: from slurmctld's MailProg through the service to a mail server."""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from email import message_from_string
from email.message import EmailMessage
from email.policy import default
from typing import Any, cast

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.service, pytest.mark.timeout(900)]

FOLDER = "/tmp/test-mail"
# A mail server beside the service, which writes each mail as a line of JSON, until told to stop.
SERVER = r"""
import json, os, pathlib, socketserver, sys, threading, time
folder = pathlib.Path(sys.argv[1])
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
                with open(folder / "mails", "a") as file:
                    file.write(json.dumps({"to": to, "mail": mail.decode()}) + "\n")
            say("221 bye" if word == b"QUIT" else "250 well")
            if word == b"QUIT":
                return
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
server = Server(("127.0.0.1", 2525), Smtp)
threading.Thread(target=server.serve_forever, daemon=True).start()
end = time.monotonic() + 6000
while time.monotonic() < end and not (folder / "stop").exists():
    time.sleep(0.2)
os._exit(0)
"""
TASKS = 300
FAILING = range(7, TASKS, 100)  # of the tasks
SUBMIT = ("sbatch", "--parsable", "--output=/dev/null", "--time=2", "-p", "cpu")


class Mailbox:
    """The mails that the service has sent."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def read(self) -> list[dict[str, Any]]:
        """Return all mails so far."""
        text = self._lab.run("cat", f"{FOLDER}/mails", service="ledger", user="").stdout
        return [json.loads(line) for line in text.splitlines()]

    def about(self, job_id: str) -> list[dict[str, Any]]:
        """Return the mails about a job or array; let the ledger learn of its end meanwhile."""
        self._lab.run(
            "slurmkit", "ledger", "ingest", service="ledger", user="slurmkit", check=False
        )
        return [each for each in self.read() if f" {job_id} (" in subject(each)]


def parsed(mail: dict[str, Any]) -> EmailMessage:
    return cast("EmailMessage", message_from_string(mail["mail"], policy=default))


def subject(mail: dict[str, Any]) -> str:
    return str(parsed(mail)["Subject"])


def body(mail: dict[str, Any], kind: str) -> str:
    found = parsed(mail).get_body((kind,))
    assert found is not None
    return str(found.get_content())


@pytest.fixture(scope="module")
def mailbox(lab: Lab) -> Iterator[Mailbox]:
    lab.run("rm", "-rf", FOLDER, service="ledger", user="")
    lab.run("mkdir", FOLDER, service="ledger", user="")
    lab.run("touch", f"{FOLDER}/mails", service="ledger", user="")
    start = f"setsid python3 -c '{SERVER}' {FOLDER} >{FOLDER}/log 2>&1 </dev/null &"
    lab.run("sh", "-c", start, service="ledger", user="")
    yield Mailbox(lab)
    lab.run("touch", f"{FOLDER}/stop", service="ledger", user="")


def test_slurmctld_hands_its_mails_over(lab: Lab) -> None:
    shown = lab.run("scontrol", "show", "config").stdout
    assert "/etc/slurm/slurmkit-mail" in shown
    mode = lab.run("stat", "-c", "%a %U %G", "/var/spool/slurmkit/mail", service="ctld", user="")
    assert mode.stdout.strip() == "2770 slurm slurmkit"


def test_a_job_that_fails_is_explained(lab: Lab, mailbox: Mailbox) -> None:
    mail_type = "--mail-type=BEGIN,END,FAIL"
    name = "--job-name=a<b>$(id)\tBcc: x@y.example"
    job = lab.run(*SUBMIT, mail_type, name, "--wrap=sleep 2; exit 3").stdout.strip()
    mails = wait_for(lambda: mailbox.about(job), lambda found: len(found) == 2, 600, every=3)
    begun, failed = sorted(mails, key=lambda mail: "failed" in subject(mail))
    assert subject(begun).endswith("started")
    assert subject(failed).endswith("failed")
    assert failed["to"] == begun["to"]
    assert len(failed["to"]) == 1
    assert "Failed with exit code 3" in body(failed, "plain")
    assert "<b>" not in body(failed, "html").partition("<body")[2].replace("<b>What to do:</b>", "")
    assert "a&lt;b&gt;$(id)" in body(failed, "html")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_array_is_one_mail(lab: Lab, mailbox: Mailbox) -> None:
    def run(*mail: str) -> tuple[str, float]:
        array = lab.run(
            *SUBMIT, f"--array=1-{TASKS}", *mail, "--wrap=exit $((SLURM_ARRAY_TASK_ID % 100 == 7))"
        ).stdout.strip()
        seconds = []
        while lab.run("squeue", "-h", "-j", array, check=False).stdout.strip():
            begin = time.monotonic()
            lab.run("squeue", "-h", "-o", "%i")
            seconds.append(time.monotonic() - begin)
        return array, statistics.median(seconds)

    _, without = run()
    array, with_mails = run("--mail-type=END,FAIL,ARRAY_TASKS")
    found = wait_for(lambda: mailbox.about(array), seconds=1800, every=3)
    time.sleep(65)  # two further rounds of the service
    assert [subject(mail) for mail in mailbox.about(array)] == [subject(found[0])]
    # As Slurm has them: under load, a node may fail to start one of so many.
    asked = ("sacct", "-X", "-n", "-P", "-j", array, "-o", "JobID,State")
    tasks = dict(line.split("|") for line in lab.run(*asked, user="").stdout.splitlines())
    assert len(tasks) == TASKS
    assert {tasks[f"{array}_{index}"] for index in FAILING} == {"FAILED"}
    states = Counter(tasks.values())
    assert f"{states['COMPLETED']} completed, {states['FAILED']} failed" in subject(found[0])
    spooled = lab.run("ls", "/var/spool/slurmkit/mail", service="ctld", user="").stdout
    assert spooled == ""
    print(f"squeue: median {without:.2f} s without mails, {with_mails:.2f} s with them")


MANY = 10_000
SLURM_CONF = "/etc/slurm/slurmkit.conf"
# Microseconds of each of 40 squeues, measured where squeue runs.
MEASURE = """
for i in $(seq 40); do
    begin=$(date +%s%N); squeue -h -j $1 >/dev/null; end=$(date +%s%N)
    echo $(((end - begin) / 1000)); sleep 0.2
done
"""


@pytest.fixture
def large_arrays(lab: Lab) -> Iterator[None]:
    """slurmctld takes arrays of 10,000 tasks."""
    if lab.release == "22.05":
        pytest.skip("slurmctld 22.05 takes a new MaxArraySize only at its start")
    kept = lab.as_root("ctld", "cat", SLURM_CONF)
    write = {"service": "ctld", "user": ""}
    try:
        lab.run("tee", SLURM_CONF, input=f"{kept}\nMaxArraySize={MANY + 1}\n", **write)
        lab.as_root("ctld", "scontrol", "reconfigure")
        config = ("scontrol", "show", "config")
        wait_for(lambda: f"= {MANY + 1}\n" in lab.run(*config, check=False).stdout)
        yield
    finally:
        lab.run("tee", SLURM_CONF, input=kept, **write)
        reconfigure = {"service": "ctld", "user": "", "check": False}
        wait_for(lambda: lab.run("scontrol", "reconfigure", **reconfigure).returncode == 0)


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_ten_thousand_calls_of_mailprog_are_one_mail(
    lab: Lab, mailbox: Mailbox, large_arrays: None
) -> None:
    """Each task is a job of its own and ends at once: a task that runs first takes far longer."""
    psql = ("psql", "-qAtd", "postgresql://slurmkit@postgres/ledger", "-c")

    def events(array: str) -> int:
        """Count the times that slurmctld has started MailProg, as far as the service knows."""
        number = int(array)
        query = f"SELECT count(*) FROM job_events WHERE {number} IN (array_id, job_id_raw)"  # noqa: S608
        return int(lab.run(*psql, query, user="slurmkit").stdout)

    def end_all(mail_type: str) -> tuple[str, list[int]]:
        array = lab.run(
            *SUBMIT, "--hold", f"--array=1-{MANY}", f"--mail-type={mail_type}", "--wrap=true"
        ).stdout.strip()
        # slurmctld makes jobs of some of the tasks, but not of all that wait: one is left over.
        parts = [f"{array}_[{first}-{min(first + 499, MANY - 1)}]" for first in range(1, MANY, 500)]
        for part in parts:
            lab.run("scontrol", "update", f"JobId={part}", "Nice=1")
        for part in (*parts, f"{array}_{MANY}"):
            lab.run("scancel", part)  # all at once take longer than slurmctld may to answer
        said = lab.run("sh", "-c", MEASURE, "sh", array).stdout
        return array, [int(line) for line in said.split()]

    _, without = end_all("NONE")
    once, with_one = end_all("END,FAIL")
    began = time.monotonic()
    each, with_all = end_all("END,FAIL,ARRAY_TASKS")
    during = events(each)
    wait_for(lambda: events(each) >= MANY, seconds=2400)
    seconds = time.monotonic() - began
    for what, found in (("no", without), ("one", with_one), (f"{MANY:,}", with_all)):
        print(
            f"squeue beside {what} calls of MailProg: median {statistics.median(found) / 1000:.0f}"
            f" ms, longest {max(found) / 1000:.0f} ms"
        )
    print(f"{during:,} of {MANY:,} calls were taken over meanwhile; all after {seconds:.0f} s")
    for array, calls in ((once, 1), (each, MANY)):
        (mail,) = wait_for(lambda array=array: mailbox.about(array), seconds=1200, every=3)
        assert f"{MANY:,} were cancelled" in subject(mail)
        assert events(array) == calls
    time.sleep(65)  # two further rounds of the service
    assert [len(mailbox.about(array)) for array in (once, each)] == [1, 1]
    assert lab.as_root("ctld", "ls", "/var/spool/slurmkit/mail") == ""


def test_slurms_own_summary_of_an_array(lab: Lab, mailbox: Mailbox) -> None:
    array = lab.run(*SUBMIT, "--array=1-3", "--mail-type=END", "--wrap=true").stdout.strip()
    (mail,) = wait_for(lambda: mailbox.about(array), seconds=600, every=3)
    assert subject(mail).endswith("3 completed")


def test_everybody_chooses_their_mails(lab: Lab, mailbox: Mailbox) -> None:
    try:
        said = lab.run("slurmkit", "notify", "settings", "--mails", "never", user="bob").stdout
        assert said.startswith("mails: never ")
        assert lab.run("slurmkit", "notify", "settings").stdout.startswith("mails: each ")
        submit = (*SUBMIT, "--mail-type=BEGIN", "--wrap=true")
        of_bob = lab.run(*submit, user="bob").stdout.strip()
        of_alice = lab.run(*submit).stdout.strip()
        wait_for(lambda: mailbox.about(of_alice), seconds=600, every=3)
        time.sleep(35)  # a further round of the service
        assert mailbox.about(of_bob) == []
    finally:
        lab.run("slurmkit", "notify", "settings", "--mails", "each", user="bob")
