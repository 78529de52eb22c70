"""`python -m slurmkit` is the `slurmkit` command."""

from slurmkit.cli import main

main()
