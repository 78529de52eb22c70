"""A login node over SSH, on a real sshd: who it is, who we are, and what a shell is told."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import paramiko
import pytest
from cutting_proxy import CuttingProxy
from ssh_lab import Spool, Sshd, keygen, shared_sshd

from slurmkit.cluster.cluster import Cluster
from slurmkit.errors import (
    BadConfig,
    BadInput,
    ConnectionLost,
    HostKeyRefused,
    Refused,
    SlurmMissing,
    SlurmTimeout,
    SshError,
)
from slurmkit.jobs.backends.ssh import OnceBackend, load_pending_submits
from slurmkit.slurm.ssh.authentication import ask_nobody
from slurmkit.slurm.ssh.hosts import ClusterSection, read_ssh_host
from slurmkit.slurm.ssh.known_hosts import load_host_keys
from slurmkit.slurm.ssh.login import SshSlurmCommands, only_reads
from slurmkit.slurm.ssh.shell import SHELL_COMMAND, command_group, command_line
from slurmkit.slurm.ssh.transfer import SendOptions, send_files
from slurmkit.spec.submission import Submission

# Connects standard input and output to HOST PORT.
RELAY = """
import os, socket, sys, threading

line = socket.create_connection((sys.argv[1], int(sys.argv[2])))

def upstream():
    while data := os.read(0, 65536):
        line.sendall(data)

threading.Thread(target=upstream, daemon=True).start()
while data := line.recv(65536):
    os.write(1, data)
"""


assert shared_sshd  # a fixture


@pytest.fixture
def section(sshd: Sshd, tmp_path: Path) -> ClusterSection:
    sshd.configure(sshd.port)
    return ClusterSection(ssh_config=str(sshd.config), path=str(Spool(tmp_path).bin))


@pytest.fixture
def slurm(section: ClusterSection) -> Iterator[SshSlurmCommands]:
    made = SshSlurmCommands("lab", section, ask_nobody)
    yield made
    made.connection.close()


def test_who_is_there(slurm: SshSlurmCommands, sshd: Sshd) -> None:
    node = slurm.node
    assert (node.user, node.name) == (getpass.getuser(), socket.gethostname())
    assert node.home == slurm.folder == str(sshd.folder)
    assert slurm.machine.user in subprocess.check_output(["id", "-un"], text=True)


@pytest.mark.parametrize(
    "words", [("a b", "it's", 'a "b"', "$HOME", "`id`", "\\n", "x\ny", "ü🙂", "")]
)
def test_words_and_input_arrive_as_they_are(
    slurm: SshSlurmCommands, words: tuple[str, ...]
) -> None:
    assert slurm.run(["printf", "%s|", *words]) == "".join(f"{word}|" for word in words)
    for text in ("", "no end", "ends\n\n", "it's $HOME `id` \\ \"\n" * 5000):
        assert slurm.run(["cat"], stdin=text) == text


def test_both_outputs_and_the_exit_code(slurm: SshSlurmCommands) -> None:
    with pytest.raises(Refused, match="no way"):
        slurm.run(["sh", "-c", "echo out; echo no way >&2; exit 3"])
    with pytest.raises(Refused, match="exit code 3 and printed nothing"):
        slurm.run(["sh", "-c", "exit 3"])
    said = slurm.run(["sh", "-c", "echo out; echo err >&2"], errors=True)
    assert said == "out\nerr\n"
    assert list(slurm.stream(["printf", "a\nb\nc"])) == ["a\n", "b\n", "c"]
    assert len(slurm.run(["head", "-c", "9000000", "/dev/zero"])) == 9_000_000


def test_what_takes_too_long_is_given_up(slurm: SshSlurmCommands) -> None:
    with pytest.raises(SlurmTimeout, match=r"sleep gave no answer in 0\.3 s"):
        slurm.run(["sleep", "5"], timeout=0.3)
    assert slurm.run(["echo", "on"]) == "on\n"


def test_times_are_asked_for_as_numbers_but_not_for_the_job(
    slurm: SshSlurmCommands, tmp_path: Path
) -> None:
    show = "#!/bin/sh\nenv\n"
    for name in ("squeue", "sbatch"):
        (tmp_path / "bin" / name).write_text(show, "utf-8")
    assert "SLURM_TIME_FORMAT=%s\n" in slurm.run(["squeue"])
    assert "SLURM_TIME_FORMAT" not in slurm.run(["sbatch"])
    assert "SLURM_TIME_FORMAT=%s\n" in slurm.run(["sbatch", "--test-only"])


def test_many_threads_share_one_connection(slurm: SshSlurmCommands, sshd: Sshd) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(slurm.run(["echo", str(n)])))
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, found)) == list(range(24))


def test_a_read_is_asked_again_and_a_change_is_not(sshd: Sshd, section: ClusterSection) -> None:
    proxy = CuttingProxy(sshd.port)
    sshd.trusted(proxy.port)
    sshd.configure(proxy.port)
    slurm = SshSlurmCommands("lab", section, ask_nobody)
    slurm.run(["true"])
    proxy.arm("up", 300)
    assert slurm.run(["squeue", "-O", "JobID:x"]) == ""
    assert proxy.cuts == 1
    proxy.arm("up", 300)
    with pytest.raises(ConnectionLost):
        slurm.run(["scontrol", "requeue", "12"])
    assert slurm.run(["echo", "again"]) == "again\n"
    slurm.connection.close()
    proxy.close()


def test_what_only_reads() -> None:
    assert only_reads(["scontrol", "show", "job", "1"])
    assert only_reads(["sacctmgr", "-nP", "show", "qos"])
    assert not only_reads(["scontrol", "requeue", "1"])
    assert not only_reads(["scancel", "1"])
    assert not only_reads(["sbatch"])


def test_files_are_read_over_the_same_connection(slurm: SshSlurmCommands, tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = bytes(range(256)) * 5000
    path.write_bytes(data)
    with slurm.machine.open(str(path)) as file:
        assert file.seek(0, 2) == len(data)
        file.seek(5)
        assert file.read() == data[5:]
    assert slurm.machine.exists(str(path))
    assert not slurm.machine.exists(str(tmp_path / "none"))
    with pytest.raises(IsADirectoryError):
        slurm.machine.open(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        slurm.machine.open(str(tmp_path / "none"))


def test_slurm_off_the_path_is_said(sshd: Sshd) -> None:
    if shutil.which("squeue"):
        pytest.skip("this machine has Slurm on its PATH")
    sshd.configure(sshd.port)
    slurm = SshSlurmCommands("lab", ClusterSection(ssh_config=str(sshd.config)), ask_nobody)
    with pytest.raises(SlurmMissing, match=r"path = .* in \[clusters.NAME\]"):
        slurm.run(["squeue"])
    slurm.connection.close()


def test_slurm_on_the_path_of_login_shells_alone(sshd: Sshd, tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    profile = sshd.folder / ".bash_profile"
    profile.write_text(
        f"echo noise\nPATH=$PATH:{spool.bin}\nexport SLURM_CONF=/x/slurm.conf\n", "utf-8"
    )
    sshd.configure(sshd.port)
    slurm = SshSlurmCommands("lab", ClusterSection(ssh_config=str(sshd.config)), ask_nobody)
    try:
        if shutil.which("squeue"):
            pytest.skip("this machine has Slurm on its PATH")
        assert slurm.run(["squeue", "-O", "JobID:x"]) == ""
        assert (slurm.node.path, slurm.node.conf) == (str(spool.bin), "/x/slurm.conf")
    finally:
        profile.unlink()
        slurm.connection.close()


def test_an_unknown_a_changed_and_a_revoked_host_key(
    sshd: Sshd, section: ClusterSection, tmp_path: Path
) -> None:
    known = sshd.known.read_text("utf-8")
    keygen(tmp_path / "other")
    other = (tmp_path / "other.pub").read_text("utf-8")
    own = Path(f"{sshd.host_key}.pub").read_text("utf-8")
    at = f"[127.0.0.1]:{sshd.port}"
    try:
        for text, says in (
            ("", "is not known: ssh-ed25519 SHA256:"),
            (f"{at} {other}", "HAS CHANGED"),
            (f"@revoked {at} {own}{at} {own}", "is revoked"),
        ):
            sshd.known.write_text(text, "utf-8")
            with pytest.raises(HostKeyRefused, match=says) as refused:
                SshSlurmCommands("lab", section, ask_nobody).run(["true"])
            if not text:
                assert str(refused.value).endswith("then accept it: slurmkit clusters trust lab")
    finally:
        sshd.known.write_text(known, "utf-8")


def _with_options(
    sshd: Sshd, section: ClusterSection, tmp_path: Path, *lines: str
) -> ClusterSection:
    config = tmp_path / "ssh_config"
    config.write_text("\n".join((*lines, sshd.config.read_text("utf-8"))), "utf-8")
    return msgspec.structs.replace(section, ssh_config=str(config))


def test_a_key_in_a_file_of_revoked_keys_is_refused(
    sshd: Sshd, section: ClusterSection, tmp_path: Path
) -> None:
    """ssh -G prints RevokedHostKeys."""
    keygen(tmp_path / "other")
    for of, refused in ((Path(f"{sshd.host_key}.pub"), True), (tmp_path / "other.pub", False)):
        krl = tmp_path / "krl"
        subprocess.run(["ssh-keygen", "-q", "-k", "-f", krl, of], check=True)
        for path in (of, krl):
            with_it = _with_options(sshd, section, tmp_path, f"RevokedHostKeys {path}")
            slurm = SshSlurmCommands("lab", with_it, ask_nobody)
            if refused:
                with pytest.raises(HostKeyRefused, match=f"is revoked \\({path}\\)"):
                    slurm.run(["true"])
            else:
                assert slurm.run(["true"]) == ""
            slurm.connection.close()
    missing = _with_options(sshd, section, tmp_path, f"RevokedHostKeys {tmp_path}/none")
    with pytest.raises(HostKeyRefused, match="cannot read the revoked host keys"):
        SshSlurmCommands("lab", missing, ask_nobody).run(["true"])


def test_only_what_openssh_allows_is_offered(
    sshd: Sshd, section: ClusterSection, tmp_path: Path
) -> None:
    """Ciphers, MACs, KexAlgorithms and HostKeyAlgorithms."""
    lines = ("Ciphers aes192-ctr,chacha20-poly1305@openssh.com", "MACs hmac-sha2-512",
             "KexAlgorithms curve25519-sha256", "HostKeyAlgorithms ssh-ed25519")  # fmt: skip
    slurm = SshSlurmCommands("lab", _with_options(sshd, section, tmp_path, *lines), ask_nobody)
    assert slurm.run(["true"]) == ""
    transport = slurm.connection.transport()
    assert (transport.local_cipher, transport.local_mac) == ("aes192-ctr", "hmac-sha2-512")
    slurm.connection.close()
    none = _with_options(sshd, section, tmp_path, "Ciphers chacha20-poly1305@openssh.com")
    with pytest.raises(SshError, match=r"lab only ciphers chacha20.*; slurmkit has aes128-ctr"):
        SshSlurmCommands("lab", none, ask_nobody).run(["true"])


def test_a_proxy_command_is_run_by_the_shell(
    sshd: Sshd, section: ClusterSection, tmp_path: Path
) -> None:
    """Variables, quotes and pipes are the shell's, as with ssh."""
    (tmp_path / "relay.py").write_text(RELAY, "utf-8")
    seen = tmp_path / "seen"
    relay = f"{sys.executable} {tmp_path}/relay.py %h %p"
    command = f"ProxyCommand sh -c 'echo \"%h $((%p))\" >{seen}; exec {relay}' 2>/dev/null"
    slurm = SshSlurmCommands("lab", _with_options(sshd, section, tmp_path, command), ask_nobody)
    assert slurm.run(["true"]) == ""
    slurm.connection.close()
    assert seen.read_text("utf-8") == f"127.0.0.1 {sshd.port}\n"


def test_a_proxy_command_that_fails_is_told(
    sshd: Sshd, section: ClusterSection, tmp_path: Path
) -> None:
    command = "ProxyCommand echo no way to there >&2; exit 3"
    slurm = SshSlurmCommands("lab", _with_options(sshd, section, tmp_path, command), ask_nobody)
    with pytest.raises(SshError, match="its ProxyCommand reported: no way to there"):
        slurm.run(["true"])


def test_a_host_name_is_no_shell_text(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host lab\n HostName a;id\n ProxyCommand nc %h %p\n", "utf-8")
    with pytest.raises(BadConfig, match=r"cannot be part of a ProxyCommand|hostname"):
        read_ssh_host("lab", ClusterSection(ssh_config=str(config)))


def test_the_host_key_of_a_jump_host_is_accepted_with_ssh(tmp_path: Path) -> None:
    """`slurmkit clusters trust` takes clusters, not jump hosts."""
    config = tmp_path / "config"
    config.write_text("Host login\n ProxyJump ann@gate:2222\n", "utf-8")
    host = read_ssh_host("lab", ClusterSection(host="login", ssh_config=str(config)))
    assert host.accept == "slurmkit clusters trust lab"
    assert [jump.accept for jump in host.jumps] == [f"ssh -F {config} -l ann -p 2222 gate"]


@pytest.fixture
def in_project(section: ClusterSection) -> Iterator[SshSlurmCommands]:
    """The cluster `lab` with `folder = "new/project"`, which does not exist."""
    with_folder = msgspec.structs.replace(section, folder="new/project")
    made = SshSlurmCommands("lab", with_folder, ask_nobody)
    yield made
    made.connection.close()


def test_commands_that_read_do_not_need_the_folder(in_project: SshSlurmCommands) -> None:
    assert in_project.run(["echo", "on"]) == "on\n"
    assert list(in_project.stream(["echo", "on"])) == ["on\n"]


def test_a_submit_without_the_folder_says_what_makes_it(in_project: SshSlurmCommands) -> None:
    with pytest.raises(Refused) as refused:
        in_project.run(["sbatch"], stdin="#!/bin/sh\n")
    assert str(refused.value) == (
        'the folder "new/project" of [clusters.lab] does not exist on the login node, or you may'
        " not enter it; to make it, send your code there: slurmkit --cluster lab send FILE"
    )
    with pytest.raises(Refused, match="send your code there"):
        OnceBackend(in_project).submit(Submission("#!/bin/sh\n", ()))
    assert load_pending_submits() == []


def test_send_makes_the_folder(in_project: SshSlurmCommands, sshd: Sshd, tmp_path: Path) -> None:
    code = tmp_path / "train.py"
    code.write_text("print('sent')\n", "utf-8")
    folder = sshd.folder / "new/project"
    try:
        sent = send_files(in_project, [code], SendOptions())
        assert (sent.folder, sent.sent) == (str(folder), 1)
        assert (folder / "train.py").read_text("utf-8") == "print('sent')\n"
        assert in_project.run(["sbatch"], stdin="#!/bin/sh\n").strip().isdecimal()
        assert in_project.run(["pwd"]) == f"{folder}\n"
    finally:
        shutil.rmtree(sshd.folder / "new", ignore_errors=True)


def test_the_folder_may_begin_with_the_home(section: ClusterSection, sshd: Sshd) -> None:
    (sshd.folder / "deep").mkdir()
    at_home = msgspec.structs.replace(section, folder="~/deep")
    slurm = SshSlurmCommands("lab", at_home, ask_nobody)
    assert slurm.run(["pwd"]) == f"{sshd.folder}/deep\n"
    slurm.connection.close()


def test_names_in_known_hosts(tmp_path: Path) -> None:
    path, kind = tmp_path / "known", "ssh-ed25519 AAAA"
    path.write_text(
        f"a,b.example {kind}\n*.wild,!no.wild {kind}\n[p]:22022 {kind}\n# c {kind}\n"
        f"@cert-authority d {kind}\nbroken\n", "utf-8"
    )  # fmt: skip
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True
    )
    hashed = tmp_path / "hashed"
    hashed.write_text(f"h.example {(tmp_path / 'k.pub').read_text('utf-8')}", "utf-8")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", hashed], check=True, capture_output=True)
    found = {
        name: len(load_host_keys(name, (path, hashed)))
        for name in ("a", "b.example", "x.wild", "no.wild", "[p]:22022", "p", "c", "d", "h.example")
    }
    assert found == {"a": 1, "b.example": 1, "x.wild": 1, "no.wild": 0, "[p]:22022": 1, "p": 0,
                     "c": 0, "d": 0, "h.example": 1}  # fmt: skip


def test_what_openssh_is_told_holds(tmp_path: Path) -> None:
    (tmp_path / "more").write_text(
        "Host lab\n HostName lab.example\n User ann\n Port 2222\n ProxyJump u@one:2200,two\n"
        " ConnectTimeout 7\n ServerAliveInterval 11\n IdentitiesOnly yes\n", "utf-8"
    )  # fmt: skip
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/more\nHost two\n HostName two.example\n HostKeyAlias gate\n"
        "Match host lab.example\n IdentityFile /k/%h-%r\n", "utf-8"
    )  # fmt: skip
    host = read_ssh_host("lab", ClusterSection(ssh_config=str(config)))
    assert (host.name, host.user, host.port) == ("lab.example", "ann", 2222)
    assert host.known_as == "[lab.example]:2222"
    assert (host.jumps[0].name, host.jumps[0].user, host.jumps[0].port) == ("one", "u", 2200)
    assert (host.jumps[1].name, host.jumps[1].known_as) == ("two.example", "gate")
    assert Path("/k/lab.example-ann") in host.identities
    assert (host.timeout, host.alive, host.only_identities) == (7.0, 11, True)
    own = read_ssh_host("lab", ClusterSection(ssh_config=str(config), user="eve", port=22))
    assert (own.user, own.port, own.known_as) == ("eve", 22, "lab.example")


def test_what_openssh_refuses_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host lab\n ProxyJump lab\n", "utf-8")
    with pytest.raises(BadConfig, match="loop via lab"):
        read_ssh_host("lab", ClusterSection(ssh_config=str(config)))
    config.write_text("Hots lab\n", "utf-8")
    with pytest.raises(BadConfig, match=r"(?i)bad configuration option"):
        read_ssh_host("lab", ClusterSection(ssh_config=str(config)))
    with pytest.raises(BadConfig):
        read_ssh_host("lab", ClusterSection(host="-oProxyCommand=id", ssh_config=str(config)))


def test_a_key_with_a_passphrase(sshd: Sshd, section: ClusterSection, tmp_path: Path) -> None:
    key = tmp_path / "locked"
    keygen(key, "secret words")
    with (sshd.folder / "authorized").open("a") as file:
        file.write(Path(f"{key}.pub").read_text("utf-8"))
    sshd.config.write_text(
        sshd.config.read_text("utf-8").replace(str(sshd.user_key), str(key)), "utf-8"
    )
    with pytest.raises(SshError, match="needs an answer to 'passphrase of"):
        SshSlurmCommands("lab", section, ask_nobody).run(["true"])
    answers = iter(["wrong", "secret words"])
    slurm = SshSlurmCommands("lab", section, lambda _: next(answers))
    assert slurm.run(["echo", "in"]) == "in\n"
    slurm.connection.close()


class CodeServer(paramiko.ServerInterface):  # type: ignore[misc]
    """Takes a key, then a one-time code, as sites with two factors do; sshd would need PAM."""

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive" if getattr(self, "has_key", False) else "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        self.has_key = True
        return int(paramiko.AUTH_PARTIALLY_SUCCESSFUL)

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        return paramiko.InteractiveQuery("Two factors", "from your token", ("Code: ", False))

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        return int(paramiko.AUTH_SUCCESSFUL if responses == ["123456"] else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        threading.Thread(target=_answer, args=(channel, command), daemon=True).start()
        return True


def _answer(channel: Any, command: bytes) -> None:
    """As sshd does: what comes is handed on at once, either way."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(["bash", "-c", command.decode()], bufsize=0, **pipes) as process:  # type: ignore[call-overload]
        handed = [
            threading.Thread(target=_hand_on, args=args, daemon=True)
            for args in (
                (channel.recv, process.stdin.write, process.stdin.close),
                (process.stdout.read, channel.sendall, None),
                (process.stderr.read, channel.sendall_stderr, None),
            )
        ]
        for thread in handed:
            thread.start()
        for thread in handed:
            thread.join()
        channel.send_exit_status(process.wait())
    channel.close()


def _hand_on(
    take: Callable[[int], bytes], give: Callable[[bytes], object], end: Callable[[], None] | None
) -> None:
    with suppress(OSError):
        while piece := take(65536):
            give(piece)
    if end:
        end()


@pytest.fixture
def coded(sshd: Sshd) -> Iterator[int]:
    server = socket.create_server(("127.0.0.1", 0))
    key = paramiko.PKey.from_path(str(sshd.host_key))

    def serve() -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            transport = paramiko.Transport(line)
            transport.add_server_key(key)
            with suppress(EOFError, paramiko.SSHException):  # the client may be gone at once
                transport.start_server(server=CodeServer())

    threading.Thread(target=serve, daemon=True).start()
    port: int = server.getsockname()[1]
    yield port
    server.close()


def test_a_one_time_code_after_a_key(sshd: Sshd, section: ClusterSection, coded: int) -> None:
    sshd.trusted(coded)
    sshd.configure(coded)
    asked: list[str] = []

    def ask(words: str) -> str:
        asked.append(words)
        return "000000" if len(asked) == 1 else "123456"

    slurm = SshSlurmCommands("lab", section, ask)
    assert slurm.run(["echo", "in"]) == "in\n"
    assert asked == ["lab: Two factors from your token Code:"] * 2
    assert slurm.run(["echo", "still"]) == "still\n"  # the connection is kept: nothing is asked
    assert len(asked) == 2
    slurm.connection.close()
    words = "needs an answer to 'lab: Two factors from your token Code:'"
    with pytest.raises(SshError, match=words):
        SshSlurmCommands("lab", section, ask_nobody).run(["true"])


@pytest.mark.parametrize("shell", ["tcsh", "fish", "zsh", "dash"])
def test_other_login_shells(shell: str) -> None:
    """What is asked of a login shell is `exec /bin/sh`, and the rest is its input."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    text = command_group([command_line(["printf", "%s|", "it's", "a!b", "$x"])], "end")
    done = subprocess.run([shell, "-c", SHELL_COMMAND], input=text, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"it's|a!b|$x|\nend 0\n", b"\nend\n")


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_text_that_is_cut_off_runs_nothing(tmp_path: Path, shell: str, end: str) -> None:
    """At any byte, in the shells that are /bin/sh somewhere."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    given = "a\nb'c $x `id` \\ \x81\x88ü🙂\n)\n}\n" * 3 + end
    lines = [f"touch {tmp_path}/ran", command_line(["cat"], given)]
    text = command_group(lines, "end")
    whole = text.index(b") </dev/null")
    for length in range(0, whole + 1, 3):
        subprocess.run([shell], input=text[:length], capture_output=True, check=False)
        assert not (tmp_path / "ran").exists(), text[:length]
    done = subprocess.run([shell], input=text * 2, capture_output=True, check=True)
    assert done.stdout == (given.encode() + b"\nend 0\n") * 2


def test_a_shell_is_kept_for_the_next_command(slurm: SshSlurmCommands) -> None:
    """Each in surroundings of its own; a shell that may still be at work is not used again."""

    def shell(*more: str) -> list[str]:
        return slurm.run_lines(["x"], ["echo $$", *more], timeout=9).split()

    (first, home, mask) = shell("pwd; umask; cd /; X=1; umask 077")
    assert shell('echo "<$X>"; pwd; umask') == [first, "<>", home, mask]
    assert slurm.run(["printf", "a\n\nslurmkit-\n"]) == "a\n\nslurmkit-\n"
    assert slurm.run(["cat"]) == ""
    assert shell() == [first]
    with pytest.raises(SlurmTimeout):
        slurm.run(["sleep", "5"], timeout=0.3)
    (second,) = shell()
    stream = slurm.stream(["yes"])
    assert next(stream) == "y\n"
    stream.close()
    assert len({first, second, *shell()}) == 3


def test_a_shell_that_was_ended_there_is_not_used(slurm: SshSlurmCommands) -> None:
    slurm.run(["true"])
    with pytest.raises(ConnectionLost):
        slurm.run_lines(["x"], ["kill -9 $$"], timeout=9)
    assert slurm.run(["echo", "on"]) == "on\n"


def test_an_unknown_cluster_names_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[clusters.lab]\nhost = "x"\n[clusters.big]\n', "utf-8")
    monkeypatch.setenv("SLURMKIT_CONFIG", str(config))
    with pytest.raises(BadInput, match="no cluster 'lba'; did you mean 'lab'"):
        Cluster("lba")
    monkeypatch.setenv("SLURMKIT_CLUSTER", "lab")
    assert Cluster().name == "lab"
