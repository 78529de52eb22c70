"""The `slurmkit` command: one file for each family of subcommands."""
