"""The cluster from outside, over SSH to its login node's own sshd."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cutting_proxy import CuttingProxy
from ssh_person import Person
from waiting import PATIENCE, wait_for

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import HostKeyRefused, SshError
from slurmkit.jobs.backends.ssh import OnceBackend, load_pending_submits
from slurmkit.planning.planner import plan
from slurmkit.slurm.ssh.authentication import ask_nobody
from slurmkit.slurm.ssh.hosts import ClusterSection
from slurmkit.slurm.ssh.login import SshSlurmCommands
from slurmkit.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from cluster_lab import Lab

pytestmark = pytest.mark.cluster
CUTS = int(os.environ.get("SLURMKIT_TEST_CUTS", "40"))
CPU = ("--partition=cpu", "--time=20")


@pytest.fixture(scope="module")
def alice(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    person = Person(lab, "alice", tmp_path_factory.mktemp("laptop"))
    with person.let_in():
        yield person


@pytest.fixture
def lab_cluster(alice: Person, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """As in Python on the laptop."""
    made = over(alice, monkeypatch, alice.port)
    yield made
    made.slurm.connection.close()  # type: ignore[attr-defined]


def over(person: Person, monkeypatch: pytest.MonkeyPatch, port: int, *more: str) -> Cluster:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(person.folder / name.lower()))
    person.configure("lab", port, *more)
    slurm = SshSlurmCommands("lab", ClusterSection(ssh_config=str(person.config)), ask_nobody)
    return Cluster(slurm, OnceBackend(slurm))


def test_submit_follow_and_cancel(alice: Person) -> None:
    slow = "for i in 1 2 3; do echo line $i; sleep 1; done"
    job_id = alice.run(
        "--cluster", "lab", "submit", "--parsable", *CPU, "--", "bash", "-c", slow
    ).stdout.strip()
    followed = alice.run("--cluster", "lab", "log", "--follow", job_id)
    assert followed.stdout == "line 1\nline 2\nline 3\n"
    assert "COMPLETED" in followed.stderr
    assert "alice" in alice.run("--cluster", "lab", "job", job_id).stdout
    long = alice.run(
        "--cluster", "lab", "submit", "--parsable", *CPU, "--", "sleep", "1000"
    ).stdout.strip()
    listed = alice.run("--cluster", "lab", "queue", "--me").stdout
    assert long in listed
    alice.run("--cluster", "lab", "cancel", "--yes", long)
    ended = alice.run("--cluster", "lab", "wait", long, check=False)
    assert ended.returncode == 1
    assert "CANCELLED" in alice.run("--cluster", "lab", "job", long).stdout


def test_the_environment_names_the_cluster_too(alice: Person) -> None:
    alice.env["SLURMKIT_CLUSTER"] = "lab"
    try:
        assert "c7" in alice.run("nodes").stdout
    finally:
        del alice.env["SLURMKIT_CLUSTER"]


@pytest.mark.parametrize("command", ["gpus", "nodes", "reservations", "fairshare", "capabilities"])
def test_what_else_reads_the_cluster(alice: Person, command: str) -> None:
    assert alice.run("--cluster", "lab", command).returncode == 0


@pytest.mark.parametrize("command", ["doctor", "image", "ledger", "jupyter", "topo", "notify"])
def test_what_does_not_work_over_ssh_says_so(alice: Person, command: str) -> None:
    done = alice.run("--cluster", "lab", command, check=False)
    assert done.returncode == 2
    assert f"slurmkit {command} does not work over SSH" in done.stderr


def test_the_list_of_clusters(alice: Person) -> None:
    said = alice.run("clusters").stdout.splitlines()
    assert re.match(rf"lab +lab +yes +{alice.lab.release}\.\d+ +\d+ ms", said[1])


def test_code_is_sent_and_what_is_there_is_not(alice: Person) -> None:
    folder = alice.folder / "code"
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text("print('sent')\n", "utf-8")
    (folder / "deep" / 'it\'s "odd" $x').write_bytes(os.urandom(70_000))
    first = alice.run("--cluster", "lab", "send", str(folder), "--to", "sent")
    assert "2 files sent" in first.stderr
    (folder / "train.py").write_text("print('sent anew')\n", "utf-8")
    second = alice.run("--cluster", "lab", "send", str(folder), "--to", "sent")
    assert "1 file sent" in second.stderr
    assert "1 there already" in second.stderr
    asked = ("submit", "--wait", *CPU, "--chdir", "sent/code", "--output", "out.txt")
    alice.run("--cluster", "lab", *asked, "--", "python3", "train.py")
    assert alice.lab.run("cat", "sent/code/out.txt").stdout == "sent anew\n"
    assert alice.lab.run("find", "sent", "-name", "*.part").stdout == ""
    alice.lab.run("rm", "-r", "sent")


def test_a_tunnel_over_the_connection(alice: Person) -> None:
    served = ("python3", "-m", "http.server", "18455", "--bind", "0.0.0.0")  # noqa: S104
    sent = alice.run("--cluster", "lab", "submit", "--parsable", *CPU, "--", *served)
    job_id = sent.stdout.strip()
    argv = [sys.executable, "-m", "slurmkit", "--cluster", "lab", "tunnel", job_id, "18455"]
    wait_for(lambda: "RUNNING" in alice.run("--cluster", "lab", "job", job_id).stdout)
    process = subprocess.Popen(
        [*argv, "--open", "--local-port", "18456"], env=alice.env, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        wait_for(lambda: "127.0.0.1:18456 leads to" in str(process.stderr.readline()))  # type: ignore[union-attr]
        got = subprocess.run(
            ["curl", "-sS", "--retry", "300", "--retry-all-errors", "--retry-delay", "1",
             "http://127.0.0.1:18456/"], capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "Directory listing" in got.stdout
        alice.run("--cluster", "lab", "cancel", "--yes", job_id)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_shell_on_a_node(alice: Person) -> None:
    said = alice.at_terminal(
        ["--cluster", "lab", "shell", *CPU, "--", "bash", "--norc"],
        [(r"bash-[\d.]+\$ ", "echo at $SLURMD_NODENAME; exit 7\r")],
    )
    assert "at c7" in said
    assert said.endswith("exit 7")


def test_the_screen(alice: Person, lab_cluster: Cluster) -> None:
    spec = JobSpec(command=("sleep", "1000"), time="20", partition="cpu", job_name="onscreen")
    job = lab_cluster.submit(plan(spec, lab_cluster))
    said = alice.at_terminal(["tui", "--cluster", "lab"], [("onscreen", "q")])
    job.cancel()
    assert "onscreen" in said
    assert said.endswith("exit 0")


def test_cuts_neither_double_nor_lose(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any byte, both ways; each job is counted by its token and its name."""
    proxy = CuttingProxy(alice.port)
    alice.trust(proxy.port)
    cluster = over(alice, monkeypatch, proxy.port)
    run = f"cut{time.time_ns()}"

    once = cluster.backend
    spec = JobSpec(command=("true",), time="1", partition="cpu", job_name=run, begin="now+1hour")
    (submission,) = plan(spec, cluster, ask=False).submissions
    ids = [once.submit(submission)]
    long = proxy.least(lambda: ids.append(once.submit(submission)))
    chance, cuts = random.Random(11), proxy.cuts
    told: list[str] = []
    for _ in range(2 * CUTS):
        if proxy.cuts - cuts == CUTS:
            break
        way = chance.choice(["up", "up", "down"])
        proxy.arm(way, chance.randint(1, long[way]))
        try:
            ids.append(once.submit(submission))
        except SshError as error:  # it was cut while it connected anew: nothing was sent
            told.append(str(error))
    proxy.arm()
    cut = proxy.cuts - cuts
    there = alice.lab.run("squeue", "--noheader", "--name", run, "-o", "%A").stdout.split()
    ever = alice.lab.run("sacct", "-XnP", "--name", run, "-o", "JobIDRaw", "-S", "now-1hour").stdout
    alice.lab.run("scancel", "--name", run)
    proxy.close()
    assert sorted(ids) == sorted(there)  # 0 double, 0 lost
    assert set(ever.split()) <= set(ids)
    assert cut == CUTS
    assert all("does not speak SSH" in words or "cannot log in" in words for words in told)
    assert load_pending_submits() == []


def test_an_unknown_host_key_is_refused_until_it_is_trusted(alice: Person, tmp_path: Path) -> None:
    known = alice.known.read_text("utf-8")
    alice.configure("lab", alice.port)
    try:
        alice.known.write_text("", "utf-8")
        refused = alice.run("--cluster", "lab", "queue", check=False)
        assert refused.returncode == 1
        (seen,) = set(re.findall(r"SHA256:\S{43}", refused.stderr))
        assert "slurmkit clusters trust lab\n" in refused.stderr
        wrong = alice.run("clusters", "trust", "lab", "--fingerprint", "SHA256:x", check=False)
        assert wrong.returncode == 2
        alice.run("clusters", "trust", "lab", "--fingerprint", seen)
        assert alice.run("--cluster", "lab", "queue").returncode == 0
    finally:
        alice.known.write_text(known, "utf-8")


def test_a_changed_host_key_is_refused_loudly(
    alice: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    key = " ".join(Path(f"{other}.pub").read_text("utf-8").split()[:2])
    changed = tmp_path / "known_hosts"
    changed.write_text(f"[127.0.0.1]:{alice.port} {key}\n", "utf-8")
    before = alice.known
    alice.known = changed
    try:
        cluster = over(alice, monkeypatch, alice.port)
        with pytest.raises(HostKeyRefused, match="HAS CHANGED"):
            cluster.queue()
        changed.write_text(
            f"@revoked [127.0.0.1]:{alice.port} {' '.join(alice.host_key.split()[:2])}\n", "utf-8"
        )
        with pytest.raises(HostKeyRefused, match="revoked"):
            cluster.queue()
    finally:
        alice.known = before
        alice.configure("lab", alice.port)


def test_through_a_jump_host(alice: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login node itself is the jump host: from there it is `login`, port 22."""
    alice.configure("lab", alice.port)
    alice.configure("gate", alice.port)
    with alice.known.open("a", encoding="utf-8") as file:
        file.write(f"login {' '.join(alice.host_key.split()[:2])}\n")
    alice.configure("inside", 22, "ProxyJump gate", "HostKeyAlias login")
    text = alice.config.read_text("utf-8").replace(
        "Host inside\nHostName 127.0.0.1", "Host inside\nHostName login"
    )
    alice.config.write_text(text, "utf-8")
    slurm = SshSlurmCommands(
        "inside", ClusterSection(ssh_config=str(alice.config), host="inside"), ask_nobody
    )
    assert "c7" in Cluster(slurm, OnceBackend(slurm)).slurm.run(["sinfo", "-hN"])
    assert len(slurm.connection._line) == 2
    slurm.connection.close()
    alice.configure("lab", alice.port)


def test_a_one_time_code_after_the_key(alice: Person) -> None:
    prompt, words = r"Password: ?", ["--cluster", "token", "submit", *CPU, "--", "true"]
    with alice.asked_for_codes("token", "246810"):
        wrong_first = [(prompt, "000000\r"), (rf"{prompt}[^$]*{prompt}", "246810\r")]
        said = alice.at_terminal(words, wrong_first)
        assert re.search(r"\b\d+\b", said)
        assert said.endswith("exit 0"), said
        assert "246810" not in said
        again = [(rf"({prompt}[^$]*){{{n}}}", "246810\r") for n in (1, 2, 3)]
        said = alice.at_terminal(words, again)
        assert "tried: the key" in said
        assert "a one-time code" in said
        assert said.endswith("exit 1")
        nobody_there = alice.run(*words, check=False)
        assert "there is no terminal here" in nobody_there.stderr


def test_the_guide(alice: Person) -> None:
    """What docs/from-my-laptop.md does every day, with the cluster's `folder` left out."""
    guide = (Path(__file__).parents[2] / "docs" / "from-my-laptop.md").read_text("utf-8")
    (script,) = re.findall(r"^```bash\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    python, _ = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (alice.folder / "train.py").write_text("print('trained')\n", "utf-8")
    bash = f'slurmkit() {{ "{sys.executable}" -m slurmkit "$@"; }}\n{script}'
    given = {"env": alice.env, "cwd": alice.folder, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-ec", bash], check=False, timeout=600, **given)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained\n" in done.stdout
    done = subprocess.run([sys.executable, "-c", python], check=False, timeout=600, **given)  # type: ignore[call-overload]
    assert done.stdout == "COMPLETED\n", done.stderr
    alice.lab.run("rm", "train.py")


def test_what_a_login_shell_sets_changes_nothing(
    alice: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of a shell's own, and variables that Slurm's commands would take for options."""
    lines = "echo welcome; export SBATCH_PARTITION=mig SQUEUE_FORMAT=%i SBATCH_QOS=nope MINE=kept\n"
    before = alice.lab.run("cat", ".bashrc", check=False).stdout
    alice.lab.run("tee", ".bashrc", input=lines + before)
    try:
        cluster = over(alice, monkeypatch, alice.port)
        spec = JobSpec(command=("bash", "-c", "env"), time="5", partition="cpu")
        job = cluster.submit(plan(spec, cluster))
        job.wait(PATIENCE)
        said = b"".join(job.log()).decode().splitlines()
        assert "MINE=kept" in said
        assert not [line for line in said if line.startswith("SBATCH_")]
        assert "SQUEUE_FORMAT=%i" in said  # the person's taste, for a squeue in the job
        assert [row.partition for row in cluster.queue().rows if row.job_id == job.id] in (
            [],
            ["cpu"],
        )
    finally:
        alice.lab.run("tee", ".bashrc", input=before)
