"""This machine, and slurmkit's own parts."""

from __future__ import annotations

import locale
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from slurmkit.backends.usable import verdict
from slurmkit.doctor.case import Case
from slurmkit.doctor.model import Check, Found
from slurmkit.errors import LedgerError, SlurmkitError

_COMMANDS = (
    "sbatch squeue scontrol scancel sacct sacctmgr srun sinfo sprio sshare sdiag sreport".split()
)
_EXTRAS = {
    "tui": (("textual",), "slurmkit tui"),
    "accounting": (
        tuple(
            "alembic apscheduler jinja2 ldap3 openpyxl pandas prometheus_client sqlalchemy"
            " waitress".split()
        ),
        "slurmkit ledger and report",
    ),
    "ssh": (("paramiko",), "submitting from a laptop over SSH"),
    "postgres": (("psycopg",), "a ledger in PostgreSQL"),
}
_LEDGER = ("slurmkit_accounting.served", "open_books")  # a string: we import nothing of it
# Filesystems that other machines can see, as /proc/self/mounts names them.
_SHARED = (
    "nfs lustre gpfs beegfs ceph glusterfs afs wekafs panfs orangefs pvfs2 cifs smb3 9p"
    " fuse.sshfs fuse.ceph fuse.juicefs".split()
)


def commands(case: Case) -> Iterator[Found]:
    """Slurm's commands on the PATH."""
    del case
    if missing := [name for name in _COMMANDS if shutil.which(name) is None]:
        yield Found("error" if {"sbatch", "squeue", "scontrol"} & set(missing) else "warning",
                    f"not on the PATH: {', '.join(missing)}", "what needs them fails",
                    "install Slurm's client commands, or load the site's Slurm module",
                    "on this machine")  # fmt: skip


def configuration(case: Case) -> Iterator[Found]:
    """Every configuration file, compared with what is declared."""
    del case
    from slurmkit.configcheck import survey  # noqa: PLC0415 - imports every package's sections

    for problem in survey().problems:
        yield Found("error", str(problem), "commands that need this section end with an error",
                    "slurmkit config check", problem.file)  # fmt: skip


def extras(case: Case) -> Iterator[Found]:
    """Optional parts that are not installed."""
    del case
    for extra, (modules, what) in _EXTRAS.items():
        if missing := [name for name in modules if find_spec(name) is None]:
            yield Found("note", f"the extra {extra} is not installed ({', '.join(missing)})",
                        f"no {what}", f"pip install 'slurmkit-hpc[{extra}]'",
                        sys.prefix)  # fmt: skip


def pyslurm(case: Case) -> Iterator[Found]:
    """Whether a process that submits many jobs can do so without an sbatch for each."""
    found = verdict(case.slurm)
    if found.why_not:
        yield Found("warning" if found.version else "note", f"PySlurm is not used: {found.why_not}",
                    "each submit of many starts an sbatch",
                    found.fix, sys.prefix)  # fmt: skip


def ledger(case: Case) -> Iterator[Found]:
    """Whether the ledger can be read: the one named, the site's by its service, or one's own."""
    del case
    if any(find_spec(name) is None for name in _EXTRAS["accounting"][0]):
        raise SlurmkitError("the extra accounting is not installed")
    module, opener = _LEDGER
    try:
        with getattr(import_module(module), opener)():
            return
    except LedgerError as error:
        said = str(error)
    named = bool(os.environ.get("SLURMKIT_DB"))
    yield Found("warning" if named else "note", said,
                "no reports of GPU-hours from this account", "slurmkit ledger ingest",
                "as the account that keeps the books")  # fmt: skip


def shared(case: Case) -> Iterator[Found]:
    """Whether jobs can write where they are submitted from."""
    del case
    here = Path.cwd()
    kind = filesystem(here, Path("/proc/self/mounts").read_text("utf-8", "replace"))
    if not kind.startswith(tuple(_SHARED)):
        raise SlurmkitError(
            f"{here} is on {kind or 'an unknown filesystem'}, and only a node can tell whether it"
            f" sees it; try: srun ls -d {here}"
        )
    yield from ()


def filesystem(path: Path, mounts: str) -> str:
    """Type of the filesystem that an absolute path is on; empty when unknown."""
    rows = [line.split() for line in mounts.splitlines() if line.count(" ") >= 5]
    on = [row for row in rows if path.is_relative_to(row[1].replace("\\040", " "))]
    best = max(on, key=lambda row: len(Path(row[1]).parts), default=None)
    return best[2] if best else ""


def terminal(case: Case) -> Iterator[Found]:
    """Whether names and the terminal app can be shown."""
    del case
    encoding = locale.getencoding()
    if encoding.lower().replace("-", "") != "utf8":
        yield Found("note", f"the locale's encoding is {encoding}",
                    "names and the lines of `slurmkit tui` are shown as question marks",
                    "export LC_ALL=C.UTF-8", "~/.profile")  # fmt: skip
    term = os.environ.get("TERM", "")
    if sys.stdout.isatty() and term in ("", "dumb"):
        yield Found("note", f"TERM={term or 'is not set'}", "no colours, and no `slurmkit tui`",
                    "export TERM=xterm-256color", "~/.profile")  # fmt: skip


CHECKS = (
    Check("commands", "Slurm's commands are on the PATH", commands),
    Check("configuration", "slurmkit's configuration is right", configuration),
    Check("extras", "every extra of slurmkit is installed", extras),
    Check("pyslurm", "PySlurm can send many jobs at once", pyslurm),
    Check("ledger", "the ledger can be read", ledger),
    Check("shared-files", "nodes see the current directory", shared),
    Check("terminal", "the terminal shows names and colours", terminal),
)
