"""`slurmkit notify` tells of one's own jobs, by mail."""

from __future__ import annotations

import pytest
from cluster_lab import Lab

pytestmark = pytest.mark.cluster

# The simplest mail server that there is, on a free port, and `slurmkit notify` beside it. The jobs
# end once mail has told of their start.
TOLD = r"""
import os, pathlib, re, socketserver, subprocess, sys, tempfile, threading
folder, *jobs = sys.argv[1:]
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
                if sum(" started" in one for one in mails) == len(jobs):
                    pathlib.Path(folder, "told").touch()
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
    subprocess.run(["slurmkit", "notify", *jobs], env=environ, check=True)
for mail in mails:
    print(re.search("To: (.*?)\r\n", mail)[1], re.search("Subject: (.*?)\r\n", mail)[1], sep="|")
"""


def test_of_a_job_that_completes_and_one_that_fails(lab: Lab) -> None:
    folder = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    submit = ("sbatch", "--parsable", "--output=/dev/null", "--time=20")
    wait = f"--wrap=until test -e {folder}/told; do sleep 0.2; done"
    well = lab.run(*submit, "--job-name=well", wait).stdout.strip()
    bad = lab.run(*submit, "--job-name=bad", f"{wait}; exit 3").stdout.strip()
    said = lab.run("python3", "-c", TOLD, folder, well, bad).stdout
    lab.run("rm", "-r", folder)
    mails = [line for line in said.splitlines() if "|" in line]
    assert sorted(mails) == sorted(
        [
            f"me@lab.example|job {well} (well) started",
            f"me@lab.example|job {well} (well) completed",
            f"me@lab.example|job {bad} (bad) started",
            f"me@lab.example|job {bad} (bad) ended as FAILED",
        ]
    )


def test_without_a_wish_there_is_nothing_to_tell(lab: Lab) -> None:
    done = lab.run("slurmkit", "notify", "1", check=False)
    assert done.returncode == 2
    assert "[notify] jobs is not set" in done.stderr
