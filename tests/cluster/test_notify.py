"""`slurmkit notify` tells of one's own jobs, by mail."""

from __future__ import annotations

import pytest
from cluster_lab import Lab

pytestmark = pytest.mark.cluster

# The simplest mail server that there is, on a free port, and `slurmkit notify` beside it.
TOLD = r"""
import os, re, socketserver, subprocess, sys, tempfile, threading
mails = []
class Smtp(socketserver.StreamRequestHandler):
    def handle(self):
        say = lambda words: self.wfile.write(words.encode() + b"\r\n")
        say("220 here")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                say("354 go on")
                mail = b""
                while (line := self.rfile.readline()) != b".\r\n":
                    mail += line
                mails.append(mail.decode())
            say("221 bye" if word == b"QUIT" else "250 well")
            if word == b"QUIT":
                return
server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Smtp)
threading.Thread(target=server.serve_forever, daemon=True).start()
with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
    config.write(f'''[notify]
jobs = ["start", "fail", "end"]
to = "me@lab.example"
[mail]
host = "127.0.0.1"
port = {server.server_address[1]}
security = "none"
sender = "slurmkit@lab.example"
''')
    config.flush()
    environ = os.environ | {"SLURMKIT_CONFIG": config.name}
    subprocess.run(["slurmkit", "notify", *sys.argv[1:]], env=environ, check=True)
for mail in mails:
    print(re.search("To: (.*?)\r\n", mail)[1], re.search("Subject: (.*?)\r\n", mail)[1], sep="|")
"""


def test_of_a_job_that_completes_and_one_that_fails(lab: Lab) -> None:
    submit = ("sbatch", "--parsable", "--output=/dev/null", "--time=2")
    well = lab.run(*submit, "--job-name=well", "--wrap=sleep 3").stdout.strip()
    bad = lab.run(*submit, "--job-name=bad", "--wrap=sleep 2; exit 3").stdout.strip()
    said = lab.run("python3", "-c", TOLD, well, bad).stdout
    mails = [line for line in said.splitlines() if "|" in line]
    assert f"me@lab.example|job {well} (well) started" in mails
    assert f"me@lab.example|job {well} (well) completed" in mails
    assert f"me@lab.example|job {bad} (bad) ended as FAILED" in mails
    assert len(mails) == len(set(mails)) <= 4


def test_without_a_wish_there_is_nothing_to_tell(lab: Lab) -> None:
    done = lab.run("slurmkit", "notify", "1", check=False)
    assert done.returncode == 2
    assert "[notify] jobs is not set" in done.stderr
