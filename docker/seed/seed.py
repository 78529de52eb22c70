#!/usr/bin/env python3
"""Applies people.toml to the cluster: `seed.py people` (LDAP, homes), `seed.py accounts` (Slurm).

Runs in the cluster's containers on Python's standard library alone. Applying it again changes
only what differs.
"""

import os
import subprocess
import sys
from pathlib import Path

import directory
import homes
import model
import slurm

SEED = Path(__file__).with_name("people.toml")


def main(arguments: list[str]) -> int:
    """Apply the part of the seed that is named; returns the exit status."""
    try:
        seed = model.read(SEED)
        match arguments:
            case ["people"]:
                print(f"LDAP: {directory.apply(seed)} entries changed", flush=True)
                print(f"homes: {homes.apply(seed)} made", flush=True)
            case ["accounts"]:
                print(f"Slurm: {slurm.apply(seed, os.environ['CLUSTER'])} changes", flush=True)
            case _:
                print("usage: seed.py people|accounts", file=sys.stderr)
                return 2
    except (model.SeedError, OSError, subprocess.SubprocessError) as error:
        print(f"seed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
