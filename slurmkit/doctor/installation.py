"""Checks of this machine and of slurmkit's installation."""

from __future__ import annotations

import grp
import locale
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from slurmkit.config.check import inspect_configuration
from slurmkit.config.extras import EXTRAS, install_command
from slurmkit.config.files import load_section
from slurmkit.config.paths import filesystem_type
from slurmkit.doctor.case import Check, CheckContext, CheckFinding
from slurmkit.errors import LedgerError, ServiceError, SlurmkitError
from slurmkit.jobs.backends.pyslurm_usable import check_pyslurm
from slurmkit.state.associations import current_user

_COMMANDS = (
    "sbatch squeue scontrol scancel sacct sacctmgr srun sinfo sprio sshare sdiag sreport".split()
)
_USE_OF_EXTRA = {
    "tui": "slurmkit tui",
    "accounting": "slurmkit ledger and report",
    "ssh": "submitting from a laptop over SSH",
    "gpu-exporter": "slurmkit gpu-exporter on GPU nodes",
    "postgres": "a ledger in PostgreSQL",
}
_LEDGER_READ = "slurmkit_accounting.read"  # by name: the package is optional
_LEDGER_CONFIG = "slurmkit_accounting.config"
_MAIL_PROGRAM = "slurmkit-mail"
SHARED_FILESYSTEMS = tuple(
    "nfs lustre gpfs beegfs ceph glusterfs afs wekafs panfs orangefs pvfs2 cifs smb3 9p"
    " fuse.sshfs fuse.ceph fuse.juicefs".split()
)
"""Types of file systems that other machines can mount, as in /proc/self/mountinfo."""


def check_commands(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that Slurm's commands are on the PATH."""
    del case
    if missing := [name for name in _COMMANDS if shutil.which(name) is None]:
        yield CheckFinding(
            "error" if {"sbatch", "squeue", "scontrol"} & set(missing) else "warning",
            f"not on the PATH: {', '.join(missing)}",
            "everything in slurmkit that needs them fails",
            "install Slurm's client commands, or load the site's Slurm module",
            "on this machine",
        )


def check_configuration(case: CheckContext) -> Iterator[CheckFinding]:
    """Check every configuration file for unknown keys and wrong values."""
    del case
    for problem in inspect_configuration().problems:
        yield CheckFinding(
            "error",
            str(problem),
            "commands that need this section end with an error",
            "slurmkit config check",
            problem.file,
        )


def check_extras(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that slurmkit's optional parts are installed."""
    del case
    for extra, modules in EXTRAS.items():
        if missing := [name for name in modules if find_spec(name) is None]:
            yield CheckFinding("note", f"the extra {extra} is not installed ({', '.join(missing)})",
                        f"no {_USE_OF_EXTRA[extra]}", install_command(extra),
                        sys.prefix)  # fmt: skip


def check_pyslurm_usable(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that a process can submit many jobs without starting sbatch for each."""
    if find_spec("pyslurm") is not None:
        case.require_controller()  # a PySlurm that is there is compared with slurmctld's release
    found = check_pyslurm(case.slurm)
    if found.why_not:
        yield CheckFinding(
            "warning" if found.version else "note",
            f"PySlurm is not used: {found.why_not}",
            "many jobs at once start one sbatch each",
            found.fix,
            sys.prefix,
        )


def check_ledger(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that the ledger can be read: SLURMKIT_DB, the site's service, or your own."""
    del case
    if any(find_spec(name) is None for name in EXTRAS["accounting"]):
        raise SlurmkitError("the extra accounting is not installed")
    read = import_module(_LEDGER_READ)
    try:
        with read.ledger() as ledger:
            # A service is asked only now; it answers at once about a cluster that nobody has.
            read.past_waits(ledger, "-")
            return
    except ServiceError as error:
        yield CheckFinding(
            "error",
            str(error),
            "no reports, balances and settings of mails on this host",
            "systemctl status slurmkit-ledger; here, compare [ledger.service] url, user and auth",
            "on the service's host",
        )
        return
    except LedgerError as error:
        message = str(error)
    named = bool(os.environ.get("SLURMKIT_DB"))
    yield CheckFinding("warning" if named else "note", message,
                "no reports of GPU-hours from this account", "slurmkit ledger ingest",
                "as the account that owns the ledger")  # fmt: skip


def check_mail_program(case: CheckContext) -> Iterator[CheckFinding]:
    """Check what sends the mails about jobs, and whether the service can get Slurm's events."""
    program = case.config.get("MailProg", "")
    spool = _configured_spool()
    if Path(program).name == _MAIL_PROGRAM:
        if not _is_the_service():
            yield CheckFinding(
                "ok",
                f"MailProg={program} hands mails about jobs to the ledger's service; only root and"
                " the service's account can check the spool",
            )
        elif not spool:
            yield CheckFinding(
                "error" if current_user() == service_user() else "note",  # root is on each host
                f"MailProg={program}, but [job_mail] spool is not set here",
                "nobody sends mails about jobs, if this is the service's host",
                '[job_mail] spool = "/var/spool/slurmkit/mail"',
                "in the configuration of the ledger's service",
            )
        else:
            yield from _check_spool(program, Path(spool), case.config.get("SlurmUser", ""))
        return
    if spool:
        yield CheckFinding(
            "warning",
            f"[job_mail] spool is set, but MailProg={program or '(null)'}",
            "the ledger's service gets no events, and sends no mails about jobs",
            f"MailProg=/etc/slurm/{_MAIL_PROGRAM}",
        )
    elif Path(program).name in {"", "true", "false"}:
        yield CheckFinding(
            "note",
            f"MailProg={program or '(null)'}: nobody gets the mails asked for with --mail-type",
            "people do not hear that their jobs have ended",
            f"MailProg=/etc/slurm/{_MAIL_PROGRAM}, as docs/service.md describes",
        )
    else:
        yield CheckFinding("ok", f"MailProg={program} sends Slurm's own mails, a subject line each")


def _configured_spool() -> str:
    """Return `[job_mail] spool` of this machine; empty if the service is elsewhere or not there."""
    if any(find_spec(name) is None for name in EXTRAS["accounting"]):
        return ""
    section = import_module(_LEDGER_CONFIG).JobMailSection
    return str(load_section("job_mail", section).spool)


def service_user() -> str:
    """Return the account of the service; empty without the accounting extra."""
    return _service_setting("user")


def asks_by_munge() -> bool:
    """Return whether this host asks the service with credentials of MUNGE."""
    return _service_setting("auth") == "munge" and not _service_setting("url").startswith("unix:")


def asks_by_token() -> bool:
    """Return whether this host asks the service with tokens of Slurm."""
    return _service_setting("auth") == "jwt" and _service_setting("url").startswith("https:")


def _service_setting(name: str) -> str:
    if any(find_spec(extra) is None for extra in EXTRAS["accounting"]):
        return ""
    section = import_module(_LEDGER_CONFIG).ServiceSection
    return str(getattr(load_section("ledger.service", section), name))


def _is_the_service() -> bool:
    """Return whether this account is the service's, or root; others may not see the spool."""
    return os.geteuid() == 0 or current_user() == service_user()


def _check_spool(program: str, spool: Path, slurm_user: str) -> Iterator[CheckFinding]:
    """Check that slurmctld can write the spool, and that the service can read its events."""
    writer, reader = slurm_user.partition("(")[0] or "slurm", service_user()
    make = f"install -d -o {writer} -g {_group_of(reader)} -m 2770 {spool}"
    try:
        found = spool.stat()
    except OSError:
        trouble = f"the spool {spool} does not exist here"
        where = "as root, on the hosts of slurmctld and of the service"
    else:
        trouble = _spool_trouble(spool, found, writer, reader)
        where = "as root; it changes nothing in the folder"
    if trouble:
        yield CheckFinding(
            "error",
            f"MailProg={program}, but {trouble}",
            "mails about jobs are not sent",
            make,
            where,
        )


def _spool_trouble(spool: Path, found: os.stat_result, writer: str, reader: str) -> str:
    """Return why events cannot get from slurmctld to the service; empty if they can."""
    mode = stat.filemode(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return f"the spool {spool} is no folder"
    if found.st_mode & stat.S_IWOTH:
        return f"everybody can write the spool {spool} ({mode}): anybody could have mails sent"
    if not _may_use(found, reader):
        return f"the service's account {reader} cannot read and write the spool {spool} ({mode})"
    if not _may_use(found, writer):
        return f"slurmctld ({writer}) cannot write the spool {spool} ({mode})"
    if not found.st_mode & stat.S_ISGID and found.st_gid not in _primary_group(writer):
        return (
            f"the spool {spool} ({mode}) has no setgid bit: events get slurmctld's group, and the"
            f" service's account {reader} cannot read them"
        )
    return ""


def _may_use(found: os.stat_result, name: str) -> bool:
    """Return whether a user has all rights in a folder; True for one that is not known here."""
    try:
        user = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except KeyError:
        return True
    if user.pw_uid == 0:
        return True
    if user.pw_uid == found.st_uid:
        return found.st_mode & stat.S_IRWXU == stat.S_IRWXU
    in_group = found.st_gid in os.getgrouplist(user.pw_name, user.pw_gid)
    return in_group and found.st_mode & stat.S_IRWXG == stat.S_IRWXG


def _primary_group(name: str) -> tuple[int, ...]:
    try:
        return (pwd.getpwnam(name).pw_gid,)
    except KeyError:
        return ()


def _group_of(name: str) -> str:
    """Return the name of a user's primary group, or the user's own."""
    try:
        return grp.getgrgid(_primary_group(name)[0]).gr_name
    except (IndexError, KeyError):
        return name


def check_shared_folder(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that nodes can see the current directory."""
    del case
    here = Path.cwd()
    kind = filesystem_type(here)
    if not kind.startswith(SHARED_FILESYSTEMS):
        yield CheckFinding(
            "note",
            f"{here} is on {kind or 'an unknown filesystem'}: nodes may not see it",
            "a job that starts here may not find its files",
            f"srun ls -d {here}",
            "to find out; else submit from a folder that all nodes mount",
        )


def check_terminal(case: CheckContext) -> Iterator[CheckFinding]:
    """Check that the terminal can show names, colours and `slurmkit tui`."""
    del case
    encoding = locale.getencoding()
    if encoding.lower().replace("-", "") != "utf8":
        yield CheckFinding("note", f"the locale's encoding is {encoding}",
                    "names and the lines of `slurmkit tui` are shown as question marks",
                    "export LC_ALL=C.UTF-8", "~/.profile")  # fmt: skip
    term = os.environ.get("TERM", "")
    if sys.stdout.isatty() and term in ("", "dumb"):
        yield CheckFinding(
            "note",
            f"TERM={term}" if term else "TERM is not set",
            "no colours, and no `slurmkit tui`",
            "export TERM=xterm-256color",
            "~/.profile",
        )


CHECKS = (
    Check("commands", "Slurm's commands are on the PATH", check_commands),
    Check("configuration", "slurmkit's configuration is right", check_configuration),
    Check("extras", "every extra of slurmkit is installed", check_extras),
    Check("pyslurm", "PySlurm can submit many jobs at once", check_pyslurm_usable),
    Check("ledger", "the ledger can be read", check_ledger),
    Check("mail-program", "MailProg hands mails about jobs to the service", check_mail_program),
    Check("shared-files", "nodes see the current directory", check_shared_folder),
    Check("terminal", "the terminal shows names and colours", check_terminal),
)
