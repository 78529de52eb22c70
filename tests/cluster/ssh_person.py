"""A person of the cluster who logs in from outside: a key, ssh's configuration, slurmkit's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster_lab import Lab

REPOSITORY = Path(__file__).resolve().parents[2]


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

    def trust(self, port: int) -> None:
        with self.known.open("a", encoding="utf-8") as file:
            file.write(f"[127.0.0.1]:{port} {' '.join(self.host_key.split()[:2])}\n")

    def configure(self, alias: str, port: int, *more: str) -> None:
        lines = [
            f"Host {alias}", "HostName 127.0.0.1", f"Port {port}", f"User {self.user}",
            f"IdentityFile {self.key}", "IdentitiesOnly yes", "IdentityAgent none",
            f"UserKnownHostsFile {self.known}", "GlobalKnownHostsFile /dev/null", *more, "",
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
