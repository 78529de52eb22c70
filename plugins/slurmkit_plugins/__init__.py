"""First-party plugins of slurmkit."""
