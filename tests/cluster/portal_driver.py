"""Runs on the ledger's host: serves the pages alone, with the ledger and settings of the service.

python portal_driver.py TOML; prints `ready`, and serves until standard input ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from slurmkit_accounting.calendar import find_zone
from slurmkit_accounting.config import ServiceSection
from slurmkit_accounting.ledger.database import open_for_reading, open_for_writing
from slurmkit_accounting.portal.listener import portal_doors
from slurmkit_accounting.service.log import make_log
from slurmkit_accounting.service.permissions import Permissions
from slurmkit_accounting.service.server import ServiceParts, serving_all

from slurmkit.config.files import load_section
from slurmkit.slurm.commands import LocalSlurmCommands

folder = Path(tempfile.mkdtemp())
(folder / "portal.toml").write_text(sys.argv[1], "utf-8")
os.environ |= {"SLURMKIT_CONFIG": str(folder / "portal.toml"), "XDG_STATE_HOME": str(folder)}
log = make_log("text")
permissions = Permissions(load_section("ledger.service", ServiceSection), LocalSlurmCommands(), log)
parts = ServiceParts(open_for_reading, open_for_writing, permissions, find_zone("UTC"), log)
with portal_doors(parts) as doors, serving_all(doors):
    print("ready", flush=True)
    sys.stdin.read()
