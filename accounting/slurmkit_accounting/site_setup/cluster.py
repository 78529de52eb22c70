"""What Slurm and this host say about a site's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurmkit.doctor.case import CheckContext
from slurmkit.errors import BadInput, SlurmkitError
from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.site_setup.config_text import ProposedValue

POSTGRES_SOCKETS = (
    Path("/run/postgresql/.s.PGSQL.5432"),
    Path("/var/run/postgresql/.s.PGSQL.5432"),
    Path("/tmp/.s.PGSQL.5432"),  # noqa: S108 - where PostgreSQL's own build puts it
)
SERVICE_FILE = Path("/var/lib/slurmkit/ledger.db")
"""The default ledger of the systemd units. Commands of the same account have another default."""
MAIL_SPOOL = Path("/var/spool/slurmkit/mail")
_MAIL_PROGRAM = "slurmkit-mail"
_LISTEN = "0.0.0.0:6830"


def propose_ledger(account: str) -> Iterator[ProposedValue]:
    """Propose the database, the address of the service and its time zone, from this host.

    Args:
        account: account that the service runs as.
    """
    if socket := next((path for path in POSTGRES_SOCKETS if path.exists()), None):
        folder = "" if socket.parent.name == "postgresql" else f"?host={socket.parent}"
        url = f"postgresql+psycopg://{account}@/ledger{folder}"
        yield ProposedValue("ledger", "db", url, f"PostgreSQL's socket {socket}; database `ledger`")
    else:
        why = "the service's file, for all commands; there is no socket of PostgreSQL here"
        yield ProposedValue("ledger", "db", f"sqlite:///{SERVICE_FILE}", why)
    why = "all addresses of this host; let only the cluster's hosts reach the port"
    yield ProposedValue("ledger.service", "listen", _LISTEN, why)
    try:
        zone = find_zone()
    except BadInput:  # a zone without a name
        return
    if not zone.name.startswith("/"):
        yield ProposedValue("ledger.schedule", "timezone", zone.name, "time zone of this host")


def propose_job_mail(case: CheckContext) -> Iterator[ProposedValue]:
    """Propose the spool of mails about jobs, if Slurm's MailProg leaves events in one."""
    program = case.config.get("MailProg", "")
    if Path(program).name == _MAIL_PROGRAM and MAIL_SPOOL.is_dir():
        why = f"MailProg={program} in scontrol show config, and the folder is there"
        yield ProposedValue("job_mail", "spool", str(MAIL_SPOOL), why)


def account_names(case: CheckContext) -> set[str]:
    """Return the names of Slurm's accounts, without root; none if slurmdbd does not answer."""
    try:
        rows = case.accounting("account", ("account",))
    except SlurmkitError:  # the check of slurmdbd says why
        return set()
    return {row["account"] for row in rows} - {"root", ""}
