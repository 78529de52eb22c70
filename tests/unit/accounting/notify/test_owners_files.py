"""Logs of other users: read within a deadline, by few processes; of a large one the two ends."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from slurmkit_accounting.notify import owners_files
from slurmkit_accounting.notify.owners_files import FileReader
from waiting import PATIENCE


def test_processes_that_cannot_be_killed_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those in state D; each file is on a file system of its own."""
    monkeypatch.setattr(owners_files, "_READ", "import time; time.sleep(600)")
    killed: list[subprocess.Popen[bytes]] = []

    def kill(process: subprocess.Popen[bytes]) -> None:
        killed.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", kill)
    monkeypatch.setattr(owners_files, "_filesystem_of", lambda path: path)
    reader = FileReader(seconds=0.1)
    try:
        for number in range(8):
            with pytest.raises(TimeoutError, match="its file system does not answer"):
                reader.open(str(tmp_path / str(number)), os.getuid())
        assert len(killed) == 4
    finally:
        for each in killed:
            each.send_signal(signal.SIGKILL)
            each.wait()
    log = tmp_path / "log"
    log.write_text("x")
    monkeypatch.undo()
    reader._seconds = PATIENCE  # a new Python takes longer on a busy machine
    with reader.open(str(log), os.getuid()) as copy:
        assert copy.read() == b"x"


def test_of_a_large_log_the_two_ends_are_read(tmp_path: Path) -> None:
    piece = 4 << 20
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"begin")
        file.seek(10 * piece)
        file.write(b"the end")
    with FileReader().open(str(log), os.getuid()) as copy:
        assert copy.read(5) == b"begin"
        assert copy.seek(0, os.SEEK_END) == 10 * piece + 7
        copy.seek(10 * piece)
        assert copy.read() == b"the end"
    for size in (0, 1, piece, piece + 1, 2 * piece):
        log.write_bytes(os.urandom(size))
        with FileReader().open(str(log), os.getuid()) as copy:
            assert copy.read() == log.read_bytes()


@pytest.mark.parametrize("kind", ["folder", "pipe", "none"])
def test_what_is_no_log(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    make = {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "none": lambda: None}
    make[kind]()
    with pytest.raises(OSError, match=r"no regular file|No such file"):
        FileReader().open(str(path), os.getuid())
