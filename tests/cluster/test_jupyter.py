"""A notebook and code-server as Alice has them: from her own machine, over ssh, on her GPUs."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from cluster_lab import Lab
from waiting import wait_for

pytestmark = pytest.mark.cluster
_NEEDS = "command -v jupyter-server && /usr/bin/python3 -c 'import ipykernel, tornado'"
LOCAL = "18431"

# A client of Jupyter's HTTP and websocket interface: URL, token, kernel or `new`, code.
CLIENT = """
import asyncio, json, sys, uuid
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

async def main(base, token, kernel, code):
    headers = {"Authorization": "token " + token}
    if kernel == "new":
        made = await AsyncHTTPClient().fetch(
            base + "api/kernels", method="POST", headers=headers, body="{}", request_timeout=300
        )
        kernel = json.loads(made.body)["id"]
    line = await websocket_connect(
        HTTPRequest(f"ws{base[4:]}api/kernels/{kernel}/channels", headers=headers)
    )
    ours, said = uuid.uuid4().hex, ""
    header = {
        "msg_id": ours, "username": "", "session": ours, "msg_type": "execute_request",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "user_expressions": {}, "allow_stdin": False}
    await line.write_message(json.dumps({
        "header": header, "parent_header": {}, "metadata": {}, "channel": "shell",
        "content": content,
    }))
    while True:
        heard = json.loads(await asyncio.wait_for(line.read_message(), 300))
        if heard["parent_header"].get("msg_id") != ours:
            continue
        if heard["msg_type"] in ("stream", "error"):
            said += heard["content"].get("text") or str(heard["content"])
        if heard["msg_type"] == "status" and heard["content"]["execution_state"] == "idle":
            break
    print(json.dumps([kernel, said.strip()]))

asyncio.run(main(*sys.argv[1:]))
"""


# Stands in for code-server, which no image has: it obeys the file that it is given.
CODE_SERVER = """#!/usr/bin/env python3
import http.server, re, sys
from urllib.parse import parse_qs

told = open(sys.argv[sys.argv.index("--config") + 1]).read()
host, port = re.search(r"^bind-addr: (.*):(\\d+)$", told, re.MULTILINE).groups()
password = re.search(r'^password: "(.*)"$', told, re.MULTILINE)[1]

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401)
        self.end_headers()

    def do_POST(self):
        said = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200 if said["password"] == [password] else 401)
        self.end_headers()
        self.wfile.write(sys.argv[-1].encode())

http.server.ThreadingHTTPServer((host, int(port)), Page).serve_forever()
"""
LOG_IN = """
import sys, urllib.error, urllib.parse, urllib.request
try:
    body = urllib.parse.urlencode({"password": sys.argv[2]}).encode()
    print(urllib.request.urlopen(sys.argv[1], body).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""

# A kernel's own srun has the GPUs, too.
WHERE = """
import os, socket, subprocess
mark = 41
step = subprocess.check_output(["srun", "hostname"], text=True)
print(socket.gethostname(), os.environ["CUDA_VISIBLE_DEVICES"], step)
"""


@pytest.fixture
def key(lab: Lab) -> Iterator[str]:
    """An ssh key of Alice's that the login node takes; gone afterwards."""
    made = (
        "umask 077; mkdir -p ~/.ssh; key=$(mktemp -u ~/.ssh/test-XXXXXX);"
        " ssh-keygen -q -t ed25519 -N '' -C ${key##*/} -f $key;"
        " cat $key.pub >>~/.ssh/authorized_keys; echo $key"
    )
    path = lab.run("bash", "-c", made).stdout.strip()
    yield path
    name = path.rpartition("/")[2]
    removed = f"rm {path} {path}.pub; sed -i '/ {name}$/d' ~/.ssh/authorized_keys"
    lab.run("bash", "-c", removed)


@pytest.fixture
def folder(lab: Lab) -> Iterator[str]:
    """Where a job starts and writes its log; whatever of Alice's runs from there ends with it."""
    path = lab.run("mktemp", "-d", "-p", "/home/alice").stdout.strip()
    yield path
    left = lab.run("squeue", "-h", "--me", "-o", "%i %Z").stdout.split("\n")
    ids = [line.split()[0] for line in left if line.endswith(path)]
    if ids:
        lab.run("scancel", *ids)
    lab.run("rm", "-rf", path)


def facts(lab: Lab, job_id: str) -> dict[str, str]:
    words = ("slurmkit", "jupyter", "show", job_id, "--json", "--local-port", LOCAL)
    found: dict[str, str] = json.loads(lab.run(*words).stdout)["rows"][0]
    return found


def ssh(lab: Lab, tunnel: str, key: str) -> str:
    """Type the command that was printed, on a machine that has the key; its process id.

    It names where the cluster's host reaches the login node's sshd. That machine is the login node
    itself, which reaches it by its name.
    """
    asked = ("docker", "port", lab.container("login"), "22")
    host, _, port = subprocess.check_output(asked, text=True).splitlines()[0].rpartition(":")
    words = tunnel.split()
    assert words[-3:] == ["-p", port, f"alice@{host}"], tunnel
    words[1:1] = ["-i", key, "-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes"]
    words[1:1] = ["-o", "HostName=login", "-o", "Port=22"]  # ssh takes the first of each
    line = f"{shlex.join(words)} >/dev/null 2>&1 & echo $!"
    process = lab.run("bash", "-c", line).stdout.strip()
    wait_for_port(lab, LOCAL)
    return process


def wait_for_port(lab: Lab, port: str) -> None:
    tries = f"for i in $(seq 3000); do (: </dev/tcp/127.0.0.1/{port}) 2>/dev/null && exit; sleep .1"
    lab.run("bash", "-c", f"{tries}; done; exit 1")


def wait_until_gone(lab: Lab, path: str) -> None:
    tries = f"for i in {{1..1500}}; do [ -e {path} ] || exit 0; sleep .2; done; exit 1"
    lab.run("bash", "-c", tries)


def ask(lab: Lab, url: str, kernel: str, code: str) -> list[str]:
    split = urlsplit(url)
    token = parse_qs(split.query)["token"][0]
    base = f"{split.scheme}://{split.netloc}/"
    done = lab.run("/usr/bin/python3", "-c", CLIENT, base, token, kernel, code)
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_kernel_runs_where_the_gpus_are_and_lives_when_the_line_is_cut(
    lab: Lab, key: str, folder: str
) -> None:
    for service in ("c3", "login"):
        if lab.run("bash", "-c", _NEEDS, service=service, check=False).returncode:
            pytest.skip(f"no jupyter-server, ipykernel and tornado on {service}")
    start = ("slurmkit", "jupyter", "--gpus-per-node", "2", "--time", "30")
    started = lab.run("bash", "-c", f"cd {folder} && {shlex.join(start)}")
    job_id = started.stdout.split()[1]
    found = facts(lab, job_id)
    token = found["url"].rpartition("=")[2]
    assert len(token) == 48
    assert token in started.stdout

    process = ssh(lab, found["tunnel"], key)
    kernel, said = ask(lab, found["url"], "new", WHERE)
    (shown,) = json.loads(lab.run("slurmkit", "job", job_id, "--json").stdout)["rows"]
    held = shown["gpu_indices"]
    node, indices = next(iter(held.items()))
    assert said == f"{node} {','.join(map(str, indices))} {node}"
    assert node == found["node"]

    lab.run("kill", process)
    assert lab.run("bash", "-c", f": </dev/tcp/127.0.0.1/{LOCAL}", check=False).returncode
    assert facts(lab, job_id) == found
    process = ssh(lab, found["tunnel"], key)
    assert ask(lab, found["url"], kernel, "print(mark + 1)") == [kernel, "42"]
    refused = lab.run(
        "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{LOCAL};"
        " printf 'GET /api/kernels HTTP/1.0\\r\\n\\r\\n' >&3; head -1 <&3"
    )  # fmt: skip
    assert "403" in refused.stdout
    lab.run("kill", process)

    listed = lab.run("slurmkit", "jupyter", "list").stdout
    assert f"http://{node}:" in listed
    seen_by_others = (
        f"cat {folder}/slurm-{job_id}.out; scontrol show job -dd {job_id};"
        f" scontrol write batch_script {job_id} -"
    )
    assert token not in listed + lab.run("bash", "-c", seen_by_others).stdout
    processes = lab.run("bash", "-c", "cat /proc/[0-9]*/cmdline; :", service=node, user="")
    assert "config.py" in processes.stdout
    assert token not in processes.stdout

    state = f"/home/alice/.local/state/slurmkit/jupyter/*/{job_id}"
    modes = lab.run("bash", "-c", f"stat -c '%a %F' {state} {state}/token").stdout.split("\n")
    assert modes[:2] == ["700 directory", "600 regular file"]
    lab.run("slurmkit", "jupyter", "stop", job_id)
    wait_until_gone(lab, state)


def test_code_server_asks_for_the_password_that_only_its_user_is_told(
    lab: Lab, folder: str
) -> None:
    program = f"{folder}/code-server"
    lab.run("tee", program, input=CODE_SERVER)
    lab.run("chmod", "+x", program)
    start = ("slurmkit", "code-server", "--time", "30", "--json", "--", program)
    started = lab.run("bash", "-c", f"cd {folder} && {shlex.join(start)}")
    (row,) = json.loads(started.stdout)["rows"]
    job_id, node, password = row["job_id"], row["node"], row["password"]
    page = f"http://{node}:{row['port']}/"
    assert lab.run("python3", "-c", LOG_IN, page, password).stdout.strip() == folder
    assert lab.run("python3", "-c", LOG_IN, page, "guess").stdout.strip() == "401"
    assert page in lab.run("slurmkit", "code-server", "list").stdout
    processes = lab.run("bash", "-c", "cat /proc/[0-9]*/cmdline; :", service=node, user="").stdout
    assert "config.yaml" in processes
    assert password not in processes
    state = f"/home/alice/.local/state/slurmkit/code-server/*/{job_id}"
    mode = lab.run("bash", "-c", f"stat -c %a {state} {state}/config.yaml").stdout.split()
    assert mode == ["700", "600"]
    lab.run("slurmkit", "code-server", "stop", job_id)
    wait_until_gone(lab, state)


def test_one_that_waits_says_why_and_is_left_alone(lab: Lab, folder: str) -> None:
    start = "slurmkit jupyter --begin now+1hour --time 30"
    why = "it may not start before its begin time"
    interrupted = (  # with set -m it heeds interrupts in the background, too
        f"cd {folder}; set -m; {start} 2>said & for i in {{1..1500}}; do grep -q '{why}' said &&"
        " break; sleep .2; done; kill -INT %1; wait %1; code=$?; cat said >&2; exit $code"
    )
    done = lab.run("bash", "-c", interrupted, check=False)
    assert done.returncode == 130
    assert why in done.stderr
    assert "goes on; to wait for it again: slurmkit jupyter show" in done.stderr
    rows = json.loads(lab.run("slurmkit", "jupyter", "list", "--json").stdout)["rows"]
    mine = [row for row in rows if f"job {row['job_id']} " in done.stderr]
    assert [row["state"] for row in mine] == ["PENDING"]
    lab.run("slurmkit", "jupyter", "stop", mine[0]["job_id"])


def test_a_tunnel_from_here_ends_with_the_job(lab: Lab, folder: str) -> None:
    serve = (
        "import socket; s = socket.create_server(('', 18433))\n"
        "while True: c, _ = s.accept(); c.sendall(socket.gethostname().encode()); c.close()"
    )
    words = ("slurmkit", "submit", "--parsable", "--time=30", "--chdir", folder, "--partition=gpu")
    job_id = lab.run(*words, "--", "python3", "-c", serve).stdout.strip()
    wait = f'until [ "$(squeue -h -j {job_id} -o %T)" = RUNNING ]; do sleep .3; done'
    lab.run("timeout", "300", "bash", "-c", wait)
    node = lab.run("squeue", "-h", "-j", job_id, "-o", "%N").stdout.strip()
    tunnel = f"slurmkit tunnel {job_id} 18433 --open --local-port 18434"
    log = f"{folder}/log"
    lab.run(
        "bash", "-c", f"(timeout 1000 {tunnel} 2>{log}; echo ended $? >>{log}) >/dev/null 2>&1 &"
    )
    wait_for_port(lab, "18434")
    assert lab.run("bash", "-c", "cat </dev/tcp/127.0.0.1/18434").stdout == node
    taken = lab.run(*tunnel.split(), check=False)
    assert taken.returncode == 2
    assert "choose another: --local-port" in taken.stderr
    others = lab.run("slurmkit", "tunnel", job_id, "18433", user="bob", check=False)
    assert (others.returncode, others.stdout) == (2, "")
    lab.run("slurmkit", "cancel", job_id)
    wait_for(lambda: lab.run("cat", log).stdout, lambda said: "ended 0" in said)
