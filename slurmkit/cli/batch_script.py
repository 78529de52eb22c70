"""The batch script of `slurmkit submit job.sh`, and of a script on standard input, as with sbatch.

sbatch takes the first word as the script and the rest as its arguments, and without a word it reads
the script from standard input (sbatch(1), DESCRIPTION).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import threading
from pathlib import Path, PosixPath
from typing import Any

import click

from slurmkit.errors import BadInput
from slurmkit.formats.display import printable
from slurmkit.spec.findings import Finding
from slurmkit.spec.jobspec import is_shell, script_header

_HEAD_BYTES = 64 * 1024  # bytes of a file to search for #SBATCH lines
_STANDARD_INPUT = Path("-")
_SILENT_SECONDS = 1.0  # after which a notice says that standard input is still open
_WAITING = (
    "slurmkit: waiting for the end of a batch script on standard input, as sbatch does without a"
    " script; to start a command: slurmkit submit -- COMMAND"
)
_SCRIPT_ENDINGS = frozenset((".sh", ".bash", ".sbatch", ".slurm"))
_OTHER_SOURCES = ("command", "script", "job_file", "wrap")


class ReadScript(PosixPath):
    """A batch script whose text is at hand, for the readers of script files.

    Attributes:
        text: the script.
        name: the default name of the job.
    """

    text: str
    name: str = "sbatch"  # as sbatch calls a job from standard input

    def read_bytes(self) -> bytes:
        """Return the script."""
        return self.text.encode("utf-8", "surrogateescape")


def take_batch_script(options: dict[str, Any], *, is_marked: bool) -> tuple[Finding, ...]:
    """Put the batch script that a command line means into its option `script`; return notes.

    Args:
        options: what the command line gave; its `command` and `script` may change.
        is_marked: whether `--` stands before COMMAND, which is then a program.

    Raises:
        BadInput: when standard input has no script, or arguments are for a script that is not a
            shell script.
    """
    if options["script"] == _STANDARD_INPUT or _is_piped(options):
        options["script"] = _read_standard_input()
        return (_note("the batch script is read from standard input"),)
    words = () if is_marked or options["script"] or options.get("wrap") else options["command"]
    if not words:
        return ()
    is_swept = bool(options.get("sweep") or options.get("points"))
    if (path := _find_script(words[0])) is None:
        # A program of the job's folder, or with a parameter in its name, need not be here.
        if not (options.get("chdir") or (is_swept and "{" in words[0])):
            _refuse_mistaken_file(words)
        return ()
    if is_swept and any("{" in word for word in words[1:]):
        return ()  # slurmkit fills {NAME} in for a command only
    options["command"] = ()
    options["script"] = _with_arguments(path, words[1:]) if len(words) > 1 else path
    arguments = f" with the arguments {shlex.join(words[1:])}" if len(words) > 1 else ""
    program = shlex.join(words)
    return (
        _note(
            f"{words[0]} is submitted as a batch script{arguments}, as with sbatch; to start it as"
            f" a program in each task: -- {program}"
        ),
    )


def is_unused_script(word: str) -> bool:
    """Return whether COMMAND after `--` begins with a batch script, perhaps by mistake."""
    path = Path(word)
    if not _is_file(path) or ("/" not in word and shutil.which(word)):
        return False
    head = _read_head(path)
    return head.startswith(b"#!") and (b"\n#SBATCH" in head or not os.access(path, os.X_OK))


def _is_piped(options: dict[str, Any]) -> bool:
    """Return whether the command line names nothing to run, and standard input may hold it."""
    if any(options.get(name) for name in _OTHER_SOURCES) or sys.stdin is None:
        return False
    return not sys.stdin.isatty()


def _read_standard_input() -> ReadScript:
    script = ReadScript("standard input")
    waiting = threading.Timer(_SILENT_SECONDS, click.echo, (_WAITING,), {"err": True})
    waiting.daemon = True
    waiting.start()
    try:
        data = sys.stdin.buffer.read() if sys.stdin else b""
    except OSError:  # as with `<&-`, or in the background of a terminal
        data = b""
    finally:
        waiting.cancel()
    script.text = data.decode("utf-8", "surrogateescape")
    if not script.text.strip():
        raise BadInput(
            "no command to run; give it after --, e.g. -- python train.py, or give a batch script:"
            " slurmkit submit job.sh, or on standard input, which is empty now"
        )
    return script


def _find_script(word: str) -> Path | None:
    """Return the batch script that a word names; None if it names a program.

    As in sbatch, a file of the current folder goes before one on the PATH. A program on the PATH
    stays a program, although it may begin with `#!`, unless it has #SBATCH lines.
    """
    on_path = None if "/" in word else shutil.which(word)
    path = Path(word) if _is_file(Path(word)) else Path(on_path) if on_path else None
    head = _read_head(path) if path else b""
    if not head.startswith(b"#!") or (on_path and b"\n#SBATCH" not in head):
        return None
    return path


def _refuse_mistaken_file(words: tuple[str, ...]) -> None:
    """Refuse a word that by its ending was meant as a file and cannot be what was meant."""
    word, ending = printable(words[0]), Path(words[0]).suffix
    if ending == ".toml" and _is_file(Path(words[0])):
        raise BadInput(f"{word} is no batch script; a job file: slurmkit submit --job-file {word}")
    if ending not in _SCRIPT_ENDINGS or shutil.which(words[0]):
        return
    program = printable(shlex.join(words))
    if not _is_file(Path(words[0])):
        raise BadInput(
            f"there is no file {word} here; if it is a program on the nodes: -- {program}"
        )
    if not _read_head(Path(words[0])).startswith(b"#!"):
        raise BadInput(
            f"{word} has no first line with #!, so it is no batch script; write #!/bin/bash there"
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder above may not be searched
        return False


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as script:
            return script.read(_HEAD_BYTES)
    except OSError:
        return b""


def _with_arguments(path: Path, arguments: tuple[str, ...]) -> ReadScript:
    """Return a shell script that sets its own arguments; sbatch takes none with standard input."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    if not is_shell(text):
        program = shlex.join((str(path), *arguments))
        raise BadInput(
            f"{printable(str(path))} is no shell script, so it gets no arguments as a batch script;"
            f" start it as a program in each task: -- {printable(program)}"
        )
    lines, header = text.split("\n"), len(script_header(text))
    lines.insert(header, f"set -- {shlex.join(arguments)}")
    script = ReadScript(path)
    script.name, script.text = path.name, "\n".join(lines)
    return script


def _note(message: str) -> Finding:
    return Finding(severity="note", code="batch-script", message=message)
