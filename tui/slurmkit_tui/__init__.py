"""The Textual app of slurmkit."""
