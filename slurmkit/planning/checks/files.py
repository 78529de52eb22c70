"""Checks of files that a job names: its program, its folder, and where its log goes.

They look on the machine that submits. The nodes may have other files, so these are warnings.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Iterator

from slurmkit.formats.releases import LOG_FOLDERS_MADE_SINCE, format_release
from slurmkit.slurm.commands import LocalSlurmCommands, SlurmCommands
from slurmkit.slurm.machine import Machine, machine_of
from slurmkit.spec.findings import Finding, warning
from slurmkit.spec.jobspec import JobSpec

# Launchers that start the command's first word as a program; the others may take a Python script.
_STARTING_A_PROGRAM = (None, "srun", "none", "mpi")
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|bash|sh|dash|zsh|perl|Rscript|ruby|node")
_PLAIN_FLAG = re.compile(r"-[uBEIOSsvx]+")  # of an interpreter, without a value
_SHELL_BUILTIN = re.compile(r"[.:\[]|cd|command|echo|eval|exec|exit|export|set|source|test|true")
_NODES_TOO = "the job fails if the nodes lack it, too"


def check_files(
    spec: JobSpec, slurm: SlurmCommands, release: tuple[int, ...], *, remote: bool
) -> Iterator[Finding]:
    """Warn of a program, a folder or a log's place that the submitting machine does not have.

    Args:
        spec: the job as it is submitted.
        slurm: runs Slurm's commands. Only real ones run on a machine whose files say anything
            about the nodes, not those of `slurmkit.testing.FakeSlurm`.
        release: of the cluster's Slurm, as (24, 11, 5).
        remote: look on a login node over SSH, too; each look takes a moment there.
    """
    machine = machine_of(slurm)
    if isinstance(slurm, LocalSlurmCommands) or (remote and not machine.is_here):
        yield from files_missing(spec, machine, release)


def files_missing(spec: JobSpec, machine: Machine, release: tuple[int, ...]) -> Iterator[Finding]:
    """Warn of what a job names and this machine does not have."""
    folder = _inside(machine.folder, spec.chdir or "")
    makes_folders = release >= LOG_FOLDERS_MADE_SINCE
    if not _exists(machine, folder):
        so = (
            "the job starts in an empty folder that Slurm makes for its log, or in /tmp"
            if makes_folders
            else "the job fails and leaves no log"
        )
        message = (
            f"there is no folder {folder} on {_host(machine)} (--chdir); without it on the nodes,"
            f" too, {so}"
        )
        yield warning("no-chdir", message, "--chdir")
    else:
        yield from _program(spec, machine, folder)
    for option, path in (("output", spec.output), ("error", spec.error)):
        if path is not None and (posixpath.isabs(path) or _exists(machine, folder)):
            yield from _log(option, _inside(folder, path), machine, release)


def _inside(folder: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(folder, path))


def _host(machine: Machine) -> str:
    return "this machine" if machine.is_here else machine.name


def _exists(machine: Machine, path: str) -> bool:
    """Return whether a path exists; also True where the user may not look."""
    try:
        return machine.exists(path)
    except OSError:
        return True


def _program(spec: JobSpec, machine: Machine, folder: str) -> Iterator[Finding]:
    """Check the command's first word, and the script of an interpreter."""
    if not spec.command or spec.container or spec.launch.launcher not in _STARTING_A_PROGRAM:
        return
    if spec.dependency is not None:  # the job before it may make the program
        return
    first, *words = spec.command
    if first.isdecimal():
        yield _number(spec, first)
        return
    if _is_known(first, spec):
        yield from _missing(first, spec, machine, folder)
    if _INTERPRETER.fullmatch(posixpath.basename(first)):
        rest = (word for word in words if not _PLAIN_FLAG.fullmatch(word))
        script = next(rest, "-")
        path = _inside(folder, script)
        is_file = not script.startswith("-") and ("/" in script or "." in script)
        if is_file and _is_known(script, spec) and not _exists(machine, path):
            yield _no_file(path, machine)


def _is_known(word: str, spec: JobSpec) -> bool:
    """Return whether a word is no template of a sweep."""
    return spec.sweep is None or "{" not in word


def _number(spec: JobSpec, first: str) -> Finding:
    gpus, hint = spec.gpus, ""
    if gpus is not None and not gpus.is_part:
        kind = gpus.mig or gpus.type
        hint = f"; for {first} GPUs write --{gpus.option}={f'{kind}:{first}' if kind else first}"
    message = f"the command begins with the number {first}, which is no program{hint}"
    return warning("command-number", message, "command")


def _missing(first: str, spec: JobSpec, machine: Machine, folder: str) -> Iterator[Finding]:
    """Report a program that is not there; one without a path is looked up in PATH, here only."""
    if "/" in first:
        path = _inside(folder, first)
        if not _exists(machine, path):
            yield _no_file(path, machine)
        # os.path does not raise where a folder above may not be searched.
        elif machine.is_here and os.path.isfile(path) and not os.access(path, os.X_OK):  # noqa: PTH113
            message = f"{path} is not executable; chmod +x {path}"
            yield warning("not-executable", message, "command")
        return
    search = spec.environment.get("PATH")
    in_shell = spec.launch.launcher == "none" and _SHELL_BUILTIN.fullmatch(first)
    if not machine.is_here or in_shell or shutil.which(first, path=search):
        return
    here = _exists(machine, _inside(folder, first))
    hint = f"; for the file in {folder} write ./{first}" if here else f"; {_NODES_TOO}"
    message = f"there is no program {first!r} in PATH on {_host(machine)}{hint}"
    yield warning("no-program", message, "command")


def _no_file(path: str, machine: Machine) -> Finding:
    message = f"there is no {path} on {_host(machine)}; {_NODES_TOO}"
    return warning("no-program", message, "command")


def _log(option: str, path: str, machine: Machine, release: tuple[int, ...]) -> Iterator[Finding]:
    """Check the folder of a log, which old releases of Slurm do not make, and new ones may not."""
    folder = posixpath.dirname(path)
    if "%" in folder or "\\" in path:  # Slurm replaces the patterns
        return
    if _exists(machine, folder):
        known = path if _exists(machine, path) else folder
        if machine.is_here and not os.access(known, os.W_OK):
            message = f"you may not write to {path}; then the job fails and leaves no log"
            yield warning("log-unwritable", message, f"--{option}")
        return
    above = folder
    while above != "/" and not _exists(machine, above):
        above = posixpath.dirname(above)
    if release < LOG_FOLDERS_MADE_SINCE:
        why = f"Slurm {format_release(release)} does not make it"
    elif machine.is_here and not os.access(above, os.W_OK):
        why = f"you may not make it in {above}"
    else:
        return
    message = (
        f"there is no folder {folder} on {_host(machine)} (--{option}); {why}, and without it the"
        f" job fails and leaves no log; mkdir -p {folder}"
    )
    yield warning("no-log-folder", message, f"--{option}")
