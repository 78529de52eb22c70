"""`slurmkit ssh-config`: real ssh, scp and port forwarding into a job, and no way in for others."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ssh_person import Person
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
CUTS = int(os.environ.get("SLURMKIT_TEST_CUTS", "10"))
JOB = ("--gpus-per-node", "a100:1", "--time", "120", "--mem", "1G")


def jobs(lab: Lab) -> list[str]:
    listed = lab.run("squeue", "--me", "-h", "--name=ssh-gpu", "-o", "%i %T").stdout.split("\n")
    return [line for line in listed if line and "COMPLETING" not in line]


def ssh(lab: Lab, command: str, *options: str, check: bool = True) -> str:
    return lab.run("ssh", *options, "slurmkit-gpu", command, check=check).stdout


def cancel(lab: Lab) -> None:
    """End the job of the profile."""
    lab.run("scancel", "--me", "--name=ssh-gpu")
    wait_for(lambda: not jobs(lab))


@pytest.fixture(scope="module")
def profile(lab: Lab) -> Iterator[str]:
    """A profile of alice's with one GPU; her configuration before it stays."""
    lab.run(
        "sh", "-c", "mkdir -p -m 700 ~/.ssh && printf 'ServerAliveCountMax 7\\n' >~/.ssh/config"
    )
    made = lab.run("slurmkit", "ssh-config", "gpu", *JOB, "--idle", "3")
    assert "connect: ssh slurmkit-gpu" in made.stderr
    yield "gpu"
    lab.run("scancel", "--me", "--name=ssh-gpu")
    lab.run("slurmkit", "ssh-config", "gpu", "--remove")
    assert lab.run("cat", "/home/alice/.ssh/config").stdout == "ServerAliveCountMax 7\n"
    lab.run("rm", "/home/alice/.ssh/config")


def test_ssh_leads_into_one_job_with_its_gpu(lab: Lab, profile: str) -> None:
    """The first connections are made at the same time; all find the same job."""
    say = "hostname; echo $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES; id -un"
    each = f"for i in 1 2 3 4; do ssh -n slurmkit-{profile} '{say}' & done; wait"
    lines = lab.run("bash", "-c", each).stdout.split("\n")
    assert lines.count("alice") == 4
    (node,) = {line for line in lines if re.fullmatch(r"c\d", line)}
    ((job, gpu),) = {tuple(line.split()) for line in lines if re.fullmatch(r"\d+ \d+", line)}
    assert jobs(lab) == [f"{job} RUNNING"]
    held = json.loads(lab.run("slurmkit", "job", job, "--json").stdout)["rows"][0]
    assert held["node_list"] == node
    assert gpu.isdecimal()
    (row,) = json.loads(lab.run("slurmkit", "ssh-config", "--json").stdout)["rows"]
    assert (row["host"], row["job_id"], row["node"]) == ("slurmkit-gpu", job, node)


def test_files_and_ports_go_through(lab: Lab, profile: str) -> None:
    host = f"slurmkit-{profile}"
    same = (
        f"head -c 2000000 /dev/urandom >blob && scp -q blob {host}:blob-there"
        f" && cmp blob blob-there && echo 'put blob blob-sftp' | sftp -q -b - {host} >/dev/null"
        " && cmp blob blob-sftp && rm blob blob-there blob-sftp && echo same"
    )
    assert lab.run("bash", "-c", same).stdout == "same\n"
    work = (
        "set -e; rm -rf there here there.git; mkdir -p here/deep; echo one >here/deep/file"
        f"; rsync -a here/ {host}:there/; cmp here/deep/file there/deep/file"
        f"; rsync -a {host}:there/ back/; cmp here/deep/file back/deep/file"
        f"; git init -q --bare there.git; git clone -q {host}:there.git mine 2>/dev/null; cd mine"
        "; git config user.email a@b; git config user.name a; git commit -q --allow-empty -m first"
        "; git push -q origin HEAD:refs/heads/main; cd .."
        "; git --git-dir there.git log --format=%s main; rm -rf here there there.git back mine"
    )
    assert lab.run("bash", "-c", work).stdout == "first\n"
    forward = (
        f"ssh -n {host} 'cd /tmp && exec python3 -m http.server --bind 127.0.0.1 18765' >/dev/null"
        f" 2>&1 & ssh -n -N -o ExitOnForwardFailure=yes -L 18766:127.0.0.1:18765 {host} &"
        " for i in $(seq 300); do curl -sfm 60 http://127.0.0.1:18766/ && break; sleep 1; done;"
        " kill $(jobs -p)"
    )
    assert "Directory listing" in lab.run("bash", "-c", forward, timeout=300, check=False).stdout
    # A terminal, as a person has it.
    assert "/dev/pts/" in ssh(lab, "tty", "-tt")


def test_what_was_started_stays_when_connections_break(lab: Lab, profile: str) -> None:
    """As the server of an editor does; each cut is at another moment, by another process."""
    pick = random.Random(26)
    ssh(lab, "nohup sleep 7000 >/dev/null 2>&1 & echo $! >~/kept.pid")
    before = jobs(lab)
    for _ in range(CUTS):
        killed = pick.choice(["ssh slurmkit", "srun --jobid", "slurmkit ssh-config"])
        seconds = pick.uniform(0, 4)
        cut = (
            f"ssh -n slurmkit-{profile} 'sleep 30' >/dev/null 2>&1 & sleep {seconds:.2f};"
            f" pkill -9 -u alice -f '^[^ ]*{killed}'; kill -9 $! 2>/dev/null; true"
        )
        lab.run("bash", "-c", cut)
    assert jobs(lab) == before
    assert ssh(lab, "kill -0 $(cat ~/kept.pid) && echo alive") == "alive\n"
    assert jobs(lab) == before


def test_what_was_started_ends_with_the_job(lab: Lab, profile: str) -> None:
    mark = random.Random(3).randint(7001, 7999)
    node = ssh(lab, f"nohup sleep {mark} >/dev/null 2>&1 & hostname").strip()
    there = ("pgrep", "-f", f"^sleep {mark}$")
    assert lab.run(*there, service=node).stdout
    cancel(lab)
    wait_for(lambda: lab.run(*there, service=node, check=False).returncode)


# Listens on a socket in the place of the keeper, and says what comes.
_LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.bind(chr(0) + sys.argv[1]); s.listen(); print("listens", flush=True)
    other, _ = s.accept(); other.sendall(b"SSH-2.0-bob"); print(other.recv(99), flush=True)
"""
_CONNECT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect(chr(0) + sys.argv[1]); print(s.recv(20))
"""


def test_nobody_else_gets_in(lab: Lab, profile: str) -> None:
    """bob has a shell on the login node and, by a job of his own, on alice's node."""
    ssh(lab, "true")
    folder = f"/home/alice/.local/state/slurmkit/ssh/{lab.name}/{profile}"
    facts = json.loads(lab.run("cat", f"{folder}/address.json").stdout)
    job, node, socket = facts["job_id"], facts["node"], facts["socket"]
    (keeper,) = lab.run("pgrep", "-u", "alice", "-f", "keeper.py keep", service=node).stdout.split()
    files = ("", "/client_key", "/host_key", "/address.json", "/job.toml", "/keeper.py")
    overlap = ("srun", f"--jobid={job}", "--overlap")
    on_login: list[tuple[str, ...]] = [
        *(("cat", f"{folder}{path}") for path in files),
        *(("sh", "-c", f"echo x >>{folder}{path}") for path in files),
        ("ln", "-s", "/home/bob", f"{folder}/lock"),
        (*overlap, "id"),
        (*overlap, "--uid=alice", "id"),
        ("env", f"SLURM_JOB_ID={job}", "srun", "--overlap", "id"),
        ("sattach", f"{job}.0"),
        ("sbcast", f"--jobid={job}", "/etc/hostname", "/tmp/from-bob"),
        ("scancel", job),
        ("scontrol", "update", f"jobid={job}", "timelimit=1"),
        ("scontrol", "requeue", job),
        ("scontrol", "write", "batch_script", job, "-"),
        ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", f"alice@{node}", "id"),
        ("slurmkit", "ssh-config", profile, "--connect"),
        ("env", "HOME=/home/alice", "slurmkit", "ssh-config", profile, "--connect"),
        ("env", "XDG_STATE_HOME=/home/alice/.local/state", "slurmkit", "ssh-config", profile,
         "--connect"),
        ("ssh", "-F", "/home/alice/.ssh/config", f"slurmkit-{profile}", "id"),
    ]  # fmt: skip
    on_node: list[tuple[str, ...]] = [
        ("cat", f"/proc/{keeper}/environ"),
        ("ls", f"/proc/{keeper}/fd"),
        ("kill", keeper),
        ("python3", "-c", _LISTEN, socket),  # the name is taken
    ]
    for service, tries in (("login", on_login), (node, on_node)):
        for argv in tries:
            done = lab.run(*argv, user="bob", service=service, check=False)
            # scontrol write says no, and ends with 0.
            assert done.returncode or "Invalid user id" in done.stderr, (argv, done.stdout)
            assert not done.stdout, (argv, done.stdout)
    connect = ("python3", "-c", _CONNECT, socket)
    assert "SSH-2.0" not in lab.run(*connect, user="bob", service=node, check=False).stdout
    assert "SSH-2.0" in lab.run(*connect, user="alice", service=node).stdout
    assert jobs(lab) == [f"{job} RUNNING"]


def test_a_connection_is_led_to_nobody_else(lab: Lab, profile: str) -> None:
    """bob listens under the name that alice's file has; she hears nothing, and tells nothing."""
    folder = f"/home/alice/.local/state/slurmkit/ssh/{lab.name}/{profile}"
    ssh(lab, "true")
    node = json.loads(lab.run("cat", f"{folder}/address.json").stdout)["node"]
    name = f"slurmkit-ssh-{random.Random(7).getrandbits(60)}"
    heard = f"/tmp/{name}"
    listen = f"exec python3 -c '{_LISTEN}' {name} >{heard} 2>&1"
    lab.run("bash", "-c", f"({listen}) & disown", user="bob", service=node)
    wait_for(lambda: "listens" in lab.run("cat", heard, user="bob", service=node).stdout)
    bridge = ("python3", f"{folder}/keeper.py", "bridge", name)
    refused = lab.run(*bridge, service=node, check=False, input="secret")
    assert refused.returncode == 1
    assert "belongs to another user" in refused.stderr
    assert "SSH-2.0" not in refused.stdout
    ended = f"! pgrep -u bob -f {name} >/dev/null && cat {heard}"
    said = wait_for(lambda: lab.run("sh", "-c", ended, service=node, check=False).stdout)
    assert "secret" not in said
    lab.run("rm", heard, user="bob", service=node)


def test_an_edited_job_that_cannot_run_is_explained(lab: Lab, profile: str) -> None:
    cancel(lab)
    file = f"/home/alice/.local/state/slurmkit/ssh/{lab.name}/{profile}/job.toml"
    lab.run("cp", file, f"{file}.kept")
    lab.run("sed", "-i", 's/type = "a100"/type = "a999"/', file)
    refused = lab.run("ssh", f"slurmkit-{profile}", "true", check=False)
    lab.run("mv", f"{file}.kept", file)
    assert refused.returncode == 255
    assert "a999" in refused.stderr
    assert not jobs(lab)


def test_the_job_ends_when_nobody_is_connected(lab: Lab, profile: str) -> None:
    job = ssh(lab, "echo $SLURM_JOB_ID").strip()
    changed = lab.run("slurmkit", "ssh-config", profile, *JOB, "--idle", "0.2")
    assert f"job {job} goes on as it is" in changed.stderr
    cancel(lab)
    job = ssh(lab, "echo $SLURM_JOB_ID").strip()
    wait_for(lambda: not jobs(lab))
    log = lab.run("slurmkit", "log", job).stdout
    assert "nobody was connected for 0.2 minutes: the job ends" in log
    state = json.loads(lab.run("slurmkit", "job", job, "--json").stdout)["rows"][0]["state"]
    assert state == "COMPLETED"


def laptop_of_alice(lab: Lab, profile: str, folder: Path) -> tuple[Person, str]:
    """Return a laptop, which has its own key and what `--laptop` prints, and its login node."""
    block = lab.run("slurmkit", "ssh-config", profile, "--laptop").stdout
    (login,) = re.findall(r"ProxyCommand ssh (\S+) ", block)
    laptop = Person(lab, "alice", folder)
    laptop.configure(login, laptop.port)
    known = laptop.config.read_text("utf-8")
    block = block.replace("ProxyCommand ssh ", f"ProxyCommand ssh -F {laptop.config} ")
    block = block.replace("\n    User ", f"\n    IdentityFile {laptop.key}\n    User ", 1)
    laptop.config.write_text(f"{block}\n{known}", "utf-8")
    return laptop, login


def run_on(laptop: Person, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program there, without a terminal."""
    return subprocess.run(
        argv, cwd=laptop.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, start_new_session=True,
    )  # fmt: skip


def test_from_outside_through_the_login_node(
    lab: Lab, profile: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The host key is known beforehand; files and git go through as from inside."""
    laptop, _ = laptop_of_alice(lab, profile, tmp_path_factory.mktemp("laptop"))
    host, options = f"slurmkit-{profile}", ("-F", str(laptop.config))
    there = f"ssh {shlex.join(options)} {host}"
    refused = run_on(laptop, "ssh", *options, host, "id")
    assert refused.returncode == 255
    with laptop.let_in():
        done = run_on(laptop, "ssh", *options, host, "hostname")
        assert re.fullmatch(r"c\d\n", done.stdout), done.stderr
        work = (
            f"set -e; export GIT_SSH_COMMAND='ssh -F {laptop.config}'; mkdir data; echo one >data/x"
            f"; scp -q {shlex.join(options)} data/x {host}:from-laptop"
            f"; {there} 'cat from-laptop; git init -q --bare from-laptop.git'"
            f"; git clone -q {host}:from-laptop.git mine 2>/dev/null; cd mine"
            "; git -c user.email=a@b -c user.name=a commit -q --allow-empty -m first"
            f"; git push -q origin HEAD:refs/heads/main"
            f"; {there} 'git --git-dir from-laptop.git log --format=%s main; rm -r from-laptop*'"
        )
        done = run_on(laptop, "bash", "-c", work)
        assert done.stdout == "one\nfirst\n", done.stderr


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A folder for a socket, whose path has at most 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def test_from_outside_with_a_one_time_code(
    lab: Lab, profile: str, tmp_path_factory: pytest.TempPathFactory, short_folder: str
) -> None:
    """With the lines of docs/editors.md for the login node, one code is enough for the day."""
    laptop, login = laptop_of_alice(lab, profile, tmp_path_factory.mktemp("laptop-codes"))
    guide = (Path(__file__).parents[2] / "docs" / "editors.md").read_text("utf-8")
    (lines,) = re.findall(r"^Host hpc\n((?:    .*\n)+)", guide, re.MULTILINE)
    once = lines.replace("~/.ssh", short_folder).splitlines()
    argv = ("-F", str(laptop.config), f"slurmkit-{profile}", "hostname")
    with laptop.let_in(), laptop.asked_for_codes(login, "246810", more=tuple(once)):
        said = laptop.at_terminal(list(argv), [("Password: ?", "246810\r")], "ssh")
        assert re.search(r"^c\d\r?$", said, re.MULTILINE), said
        assert said.endswith("exit 0")
        for _ in range(3):
            done = run_on(laptop, "ssh", *argv)
            assert re.fullmatch(r"c\d\n", done.stdout)
        assert run_on(laptop, "ssh", *argv[:2], "-O", "exit", login).returncode == 0
        assert run_on(laptop, "ssh", *argv).returncode == 255
