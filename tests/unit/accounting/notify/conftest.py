"""A spool, a mail server, and a directory that knows alice and bob."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from entries import person
from job_mail_lab import PRICES, Lab
from mail_lab import Inbox, smtp
from slurmkit_accounting.ledger.database import Ledger
from slurmkit_accounting.people.model import Directory
from slurmkit_accounting.people.sync import PeopleData, sync_people


@pytest.fixture
def lab(ledger: Ledger, tmp_path: Path, configure: Callable[[str], None]) -> Iterator[Lab]:
    spool = tmp_path / "spool"
    spool.mkdir()
    people = person("alice", uid=10011), person("bob", uid=10012)
    sync_people(ledger, PeopleData(Directory(people, ())), now=1)
    inbox = Inbox()
    with smtp(inbox) as port:
        configure(
            f'[mail]\nhost = "127.0.0.1"\nport = {port}\nsecurity = "none"\n'
            f'sender = "slurm@lab.example"\n[job_mail]\nspool = "{spool}"\n{PRICES}'
        )
        yield Lab(ledger, spool, inbox)
