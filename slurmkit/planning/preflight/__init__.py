"""The bandwidth check that runs before a job's command."""
