"""`slurmkit ledger serve`: the site's ledger as a service."""

from __future__ import annotations

import click

from slurmkit_accounting.cli import db_option


@click.command("serve")
@db_option
def serve_command(db: str | None) -> None:
    """Keep the site's books and answer whoever may ask, until SIGTERM.

    Ingest, people, budgets, closing and mail run at the times of [ledger.schedule], one at a
    time; what was missed while the service was down runs once after its start. Queries are
    answered where [ledger.service] listen says: everybody sees their own runs, PIs those of their
    groups, operators everything; munged vouches for who asks. /health and /metrics are shown
    where `monitor` says. It can be stopped and killed at any time: nothing is lost.

    \b
    Examples:
      slurmkit ledger serve
      slurmkit ledger serve --db postgresql+psycopg://slurmkit@db/slurmkit
      curl http://127.0.0.1:6831/health
    """
    from slurmkit_accounting.service.serve import serve  # noqa: PLC0415

    serve(db)
