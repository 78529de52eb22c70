"""A person of the cluster who logs in from outside: a key, ssh's configuration, slurmkit's."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from waiting import PATIENCE

if TYPE_CHECKING:
    from cluster_lab import Lab

REPOSITORY = Path(__file__).resolve().parents[2]

# A second sshd of the login node, which after the key asks PAM, and PAM for a code.
_CODES = """
set -eu
mkdir -p -m 700 /run/codes
printf '%s\\n' "$@" >/run/codes/left
cat >/run/codes/check <<'END'
#!/bin/sh
# Each code lets in once.
code=$(tr -d '\\000')
grep -qxF -- "$code" /run/codes/left && sed -i "/^$code\\$/d" /run/codes/left
END
chmod 700 /run/codes/check
cat >/etc/pam.d/sshd-codes <<'END'
auth required pam_exec.so expose_authtok quiet /run/codes/check
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
END
ln -sf sshd /usr/sbin/sshd-codes
service=PAMServiceName=sshd-codes  # older ones take their own name
/usr/sbin/sshd -t -o $service 2>/dev/null || service=UsePAM=yes
/usr/sbin/sshd-codes -p 2222 -o UsePAM=yes -o $service -o KbdInteractiveAuthentication=yes \
    -o AuthenticationMethods=publickey,keyboard-interactive -o PidFile=/run/codes/pid
"""
_NO_CODES = (
    "kill $(cat /run/codes/pid); rm -r /run/codes /etc/pam.d/sshd-codes /usr/sbin/sshd-codes"
)


class Person:
    """Somebody at a laptop; `run` is `slurmkit` there.

    Attributes:
        port: where the login node's sshd is reached on this host.
        config: file for ssh; `known` its host keys; `key` the person's.
    """

    def __init__(self, lab: Lab, user: str, folder: Path) -> None:
        self.lab, self.user, self.folder = lab, user, folder
        self.key, self.known, self.config = (folder / n for n in ("key", "known_hosts", "config"))
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "from-outside", "-f", self.key],
            check=True,
        )
        said = subprocess.run(
            ["docker", "port", lab.container("login"), "22"], capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        self.port = int(said.stdout.split()[0].rpartition(":")[2])
        self.host_key = lab.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub").stdout
        self.trust(self.port)
        self.configure("lab", self.port)
        (folder / "slurmkit.toml").write_text(
            f'[clusters.lab]\nssh_config = "{self.config}"\n', "utf-8"
        )
        self.env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(folder),
            "PYTHONPATH": ":".join(map(str, _packages())),
            "SLURMKIT_CONFIG": str(folder / "slurmkit.toml"),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
        }

    def trust(self, port: int, host: str = "127.0.0.1") -> None:
        with self.known.open("a", encoding="utf-8") as file:
            file.write(f"[{host}]:{port} {' '.join(self.host_key.split()[:2])}\n")

    def configure(self, alias: str, port: int, *more: str) -> None:
        """Make a Host; the first of two lines with the same option counts."""
        lines = [
            f"Host {alias}", *more, "HostName 127.0.0.1", f"Port {port}", f"User {self.user}",
            f"IdentityFile {self.key}", "IdentitiesOnly yes", "IdentityAgent none",
            f"UserKnownHostsFile {self.known}", "GlobalKnownHostsFile /dev/null", "",
        ]  # fmt: skip
        before = self.config.read_text("utf-8") if self.config.exists() and alias != "lab" else ""
        self.config.write_text("\n".join([*lines, before]), "utf-8")

    def run(
        self, *words: str, check: bool = True, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "slurmkit", *words]
        done = subprocess.run(
            argv, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=timeout,
            check=False, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def at_terminal(self, words: list[str], answers: list[tuple[str, str]], *program: str) -> str:
        """Run slurmkit, or another program, at a terminal; return what it said and its exit status.

        Args:
            words: its arguments.
            answers: each is typed once its pattern is in what was said.
            program: by default slurmkit.
        """
        argv = [*(program or (sys.executable, "-m", "slurmkit")), *words]
        child, screen = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            os.execvpe(argv[0], argv, self.env)  # noqa: S606
        left, said, deadline = list(answers), "", time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if select.select([screen], [], [], 0.5)[0]:
                try:
                    piece = os.read(screen, 65536)
                except OSError:
                    break
                said += piece.decode("utf-8", "replace")
            if left and re.search(left[0][0], said):
                os.write(screen, left.pop(0)[1].encode())
        else:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(screen)
        return f"{said}\nexit {os.waitstatus_to_exitcode(status)}"

    @contextmanager
    def asked_for_codes(
        self, alias: str, *codes: str, more: tuple[str, ...] = ()
    ) -> Iterator[None]:
        """Meanwhile the login node has a second sshd, which after the key asks for a code.

        Args:
            alias: what ssh and slurmkit call it.
            codes: each lets in once.
            more: further lines for ssh.
        """
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
        asked = ["docker", "inspect", "--format", address, self.lab.container("login")]
        host = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[0]
        settings = self.folder / "slurmkit.toml"
        before = {path: path.read_text("utf-8") for path in (self.known, self.config, settings)}
        self.trust(2222, host)
        self.configure(alias, 2222, f"HostName {host}", *more)
        section = f'[clusters.{alias}]\nssh_config = "{self.config}"\n'
        settings.write_text(before[settings] + section, "utf-8")
        self.lab.run("bash", "-c", _CODES, "-", *codes, user="")
        try:
            yield
        finally:
            self.lab.run("bash", "-c", _NO_CODES, user="")
            for path, text in before.items():
                path.write_text(text, "utf-8")

    @contextmanager
    def let_in(self) -> Iterator[None]:
        """The person's key is accepted meanwhile."""
        public = Path(f"{self.key}.pub").read_text("utf-8").strip()
        script = 'umask 077; mkdir -p ~/.ssh; echo "$1" >>~/.ssh/authorized_keys'
        self.lab.run("bash", "-c", script, "-", public, user=self.user)
        try:
            yield
        finally:
            out = "sed -i '/ from-outside$/d' ~/.ssh/authorized_keys"
            self.lab.run("bash", "-c", out, user=self.user)


def _packages() -> list[Path]:
    return [REPOSITORY, *(REPOSITORY / n for n in ("containers", "accounting", "tui", "plugins"))]
