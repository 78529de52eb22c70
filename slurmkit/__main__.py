"""Run the `slurmkit` command with `python -m slurmkit`."""

from slurmkit.cli.main import main

main()
