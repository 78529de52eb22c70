"""The Textual app of slurmkit: what `slurmkit tui` shows."""
