"""A real sshd on 127.0.0.1 for the user who runs the tests, and stand-ins for Slurm's commands."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[2]


class Sshd:
    """A login node: `port` listens, `read_host_key` and `user_key` are files, `config` is ssh's."""

    def __init__(self, folder: Path, *extra: str) -> None:
        sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if sshd is None:
            pytest.skip("sshd is not installed")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.folder = folder
        self.host_key, self.user_key = folder / "host_key", folder / "user_key"
        for key in (self.host_key, self.user_key):
            keygen(key)
        shutil.copy(f"{self.user_key}.pub", folder / "authorized")
        self.port = _free_port()
        self.known, self.config = folder / "known_hosts", folder / "config"
        settings = {
            "ListenAddress": "127.0.0.1", "Port": self.port, "HostKey": self.host_key,
            "AuthorizedKeysFile": folder / "authorized", "StrictModes": "no", "UsePAM": "no",
            "PidFile": "none", "Subsystem": "sftp internal-sftp", "PermitRootLogin": "yes",
            "MaxStartups": "100", "SetEnv": f"HOME={folder}",
        }  # fmt: skip
        lines = [f"{name} {value}" for name, value in settings.items()]
        (folder / "sshd_config").write_text("\n".join([*extra, *lines, ""]), "utf-8")
        argv = [sshd, "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "sshd.log").open("wb") as log:
            self._process = subprocess.Popen(argv, stderr=log, stdin=subprocess.DEVNULL)
        self._wait()
        self.trusted(self.port)
        self.configure(self.port)

    def trusted(self, port: int) -> None:
        """Write the host key down for a port."""
        key = Path(f"{self.host_key}.pub").read_text("utf-8")
        with self.known.open("a", encoding="utf-8") as file:
            file.write(f"[127.0.0.1]:{port} {key}")

    def configure(self, port: int, *more: str) -> None:
        """Write ssh's own configuration, for the host `lab`."""
        lines = [
            "Host lab", "HostName 127.0.0.1", f"Port {port}", f"User {getpass.getuser()}",
            f"IdentityFile {self.user_key}", "IdentitiesOnly yes", "IdentityAgent none",
            f"UserKnownHostsFile {self.known}", "GlobalKnownHostsFile /dev/null", *more,
        ]  # fmt: skip
        self.config.write_text("\n".join(lines) + "\n", "utf-8")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _wait(self) -> None:
        for _ in range(int(PATIENCE / 0.05)):
            if self._process.poll() is not None:
                pytest.fail((self.folder / "sshd.log").read_text("utf-8"))
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        pytest.fail("sshd does not listen")


def keygen(path: Path, passphrase: str = "") -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Spool:
    """What the stand-ins for Slurm keep: one folder for each job that was submitted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin, self.jobs = folder / "bin", folder / "jobs"
        self.bin.mkdir()
        self.jobs.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scontrol"):
            self.program(name, _SBATCH if name == "sbatch" else _ASKS)

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        python = f"{sys.executable} {Path(__file__).with_name('slurm_standin.py')}"
        text = text.replace("@JOBS@", str(self.jobs)).replace("@PYTHON@", python)
        path.write_text(text, "utf-8")
        path.chmod(0o755)

    @property
    def ids(self) -> list[str]:
        return sorted((each.name for each in self.jobs.iterdir()), key=int)

    def add_job(self, job_id: str, **fields: str) -> None:
        """Add a job, or change one: with these fields of `squeue -O` and `sacct --format`."""
        folder = self.jobs / job_id
        new = self.folder / f"fields-{job_id}"
        new.write_text(json.dumps(fields), "utf-8")
        if not folder.exists():
            folder.mkdir()
            (folder / "argv").touch()
        new.replace(folder / "fields.json")

    def script(self, job_id: str) -> str:
        return (self.jobs / job_id / "script").read_text("utf-8")


# As sbatch: it takes the script from its input, and prints the id.
_SBATCH = """#!/bin/sh
[ -z "$STANDIN_SECONDS" ] || sleep "$STANDIN_SECONDS"
[ ! -e @JOBS@/../slow ] || sleep "$(cat @JOBS@/../slow)"
id=100
until mkdir "@JOBS@/$id" 2>/dev/null; do id=$((id + 1)); done
printf '%s\\n' "$@" >"@JOBS@/$id/argv"
cat >"@JOBS@/$id/script"
echo "$id"
"""
_ASKS = """#!/bin/sh
exec @PYTHON@ @JOBS@ "$(basename "$0")" "$@"
"""


@pytest.fixture(name="sshd", scope="module")
def shared_sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One sshd for the tests of a module."""
    made = Sshd(tmp_path_factory.mktemp("sshd"))
    yield made
    made.close()
