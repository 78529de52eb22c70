"""`slurmkit ssh-config`: real ssh, scp and port forwarding into a job, and no way in for others."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from ssh_person import Person
from waiting import wait_for

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
CUTS = 20
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
    forward = (
        f"ssh -n {host} 'cd /tmp && exec python3 -m http.server --bind 127.0.0.1 18765' >/dev/null"
        f" 2>&1 & ssh -n -N -o ExitOnForwardFailure=yes -L 18766:127.0.0.1:18765 {host} &"
        " for i in $(seq 300); do curl -sf http://127.0.0.1:18766/ && break; sleep 1; done;"
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


def test_nobody_else_gets_in(lab: Lab, profile: str) -> None:
    """bob has alice's files neither to read nor to write, and cannot use her socket."""
    ssh(lab, "true")
    folder = f"/home/alice/.local/state/slurmkit/ssh/{lab.name}/{profile}"
    facts = json.loads(lab.run("cat", f"{folder}/address.json").stdout)
    for path in ("", "/client_key", "/address.json", "/job.toml", "/keeper.py"):
        assert lab.run("cat", f"{folder}{path}", user="bob", check=False).returncode
        assert lab.run("sh", "-c", f"echo x >>{folder}{path}", user="bob", check=False).returncode
    tries = [
        ["srun", f"--jobid={facts['job_id']}", "--overlap", "id"],
        ["scancel", facts["job_id"]],
        ["scontrol", "update", f"jobid={facts['job_id']}", "timelimit=1"],
    ]
    for argv in tries:
        assert lab.run(*argv, user="bob", check=False).returncode, argv
    connect = (
        "import socket; s = socket.socket(socket.AF_UNIX);"
        f" s.connect(chr(0) + {facts['socket']!r}); print(s.recv(20))"
    )
    got = lab.run("python3", "-c", connect, user="bob", service=facts["node"], check=False)
    assert "SSH-2.0" not in got.stdout
    assert (
        "SSH-2.0" in lab.run("python3", "-c", connect, user="alice", service=facts["node"]).stdout
    )


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


def test_from_outside_through_the_login_node(
    lab: Lab, profile: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A laptop has its own key, and what `--laptop` prints; the host key is known beforehand."""
    block = lab.run("slurmkit", "ssh-config", profile, "--laptop").stdout
    (login,) = re.findall(r"ProxyCommand ssh (\S+) ", block)
    laptop = Person(lab, "alice", tmp_path_factory.mktemp("laptop"))
    laptop.configure(login, laptop.port)
    known = laptop.config.read_text("utf-8")
    block = block.replace("ProxyCommand ssh ", f"ProxyCommand ssh -F {laptop.config} ")
    laptop.config.write_text(f"{block}\n{known}", "utf-8")
    options = ("-F", str(laptop.config), "-i", str(laptop.key))
    argv = ["ssh", *options, f"slurmkit-{profile}", "hostname"]
    refused = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert refused.returncode == 255
    with laptop.let_in():
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert re.fullmatch(r"c\d\n", done.stdout), done.stderr
