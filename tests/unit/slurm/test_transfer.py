"""Files that are sent to a login node, and files that are left there; on a real sshd."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from ssh_lab import Spool, Sshd, shared_sshd

from slurmkit.errors import SshError
from slurmkit.slurm.ssh.authentication import ask_nobody
from slurmkit.slurm.ssh.hosts import ClusterSection
from slurmkit.slurm.ssh.login import SshSlurmCommands
from slurmkit.slurm.ssh.transfer import SendOptions, send_files

assert shared_sshd  # a fixture


@pytest.fixture
def slurm(sshd: Sshd, tmp_path: Path) -> Iterator[SshSlurmCommands]:
    section = ClusterSection(ssh_config=str(sshd.config), path=str(Spool(tmp_path).bin))
    made = SshSlurmCommands("lab", section, ask_nobody)
    yield made
    made.connection.close()


def modes(folder: Path) -> set[int]:
    return {path.stat().st_mode & 0o777 for path in folder.iterdir()}


def test_a_private_file_is_private_from_its_first_byte(
    slurm: SshSlurmCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, code, there = tmp_path / "-key", tmp_path / "code.py", tmp_path / "there"
    for path, mode in ((key, 0o600), (code, 0o644)):
        path.write_bytes(b"x" * 100_000)
        path.chmod(mode)
    seen: set[int] = set()
    write = paramiko.SFTPFile.write

    def watched(self: paramiko.SFTPFile, data: bytes) -> None:
        seen.update(modes(there))
        write(self, data)

    monkeypatch.setattr(paramiko.SFTPFile, "write", watched)
    send_files(slurm, [key], SendOptions(target=str(there)))
    assert seen == {0o600}
    assert (there / "-key").read_bytes() == key.read_bytes()
    send_files(slurm, [code], SendOptions(target=str(there)))
    assert {path.name: path.stat().st_mode & 0o777 for path in there.iterdir()} == {
        "-key": 0o600,
        "code.py": 0o644,
    }


def test_a_send_that_fails_leaves_no_part(
    slurm: SshSlurmCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, there = [tmp_path / name for name in ("a", "b", "c")], tmp_path / "there"
    for path in files:
        path.write_text(path.name, "utf-8")
    put = paramiko.SFTPClient.put

    def fails(self: paramiko.SFTPClient, here: str, aside: str, **options: bool) -> object:
        if here.endswith("b"):
            raise OSError(28, "No space left on device")
        return put(self, here, aside, **options)

    monkeypatch.setattr(paramiko.SFTPClient, "put", fails)
    with pytest.raises(SshError, match=r"cannot write .*/there/b on the login node: No space left"):
        send_files(slurm, files, SendOptions(target=str(there)))
    assert list(there.iterdir()) == []


def test_scripts_that_a_lost_connection_left_are_removed_after_a_day(
    slurm: SshSlurmCommands,
) -> None:
    fresh = Path(slurm.script(["sbatch"], ["echo fresh"]))
    old, marks = fresh.with_name("run-old"), fresh.with_name("run-folder")
    old.write_text("export HF_TOKEN=x", "utf-8")
    marks.mkdir()
    for path in (old, marks):
        os.utime(path, (time.time() - 90_000,) * 2)
    again = Path(slurm.script(["sbatch"], ["echo again"]))
    assert again.read_text("utf-8").endswith("echo again\n")
    assert again.stat().st_mode & 0o777 == 0o600
    assert fresh.exists()
    assert marks.exists()
    assert not old.exists()
