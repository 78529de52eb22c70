"""Ways to talk to slurmctld about jobs."""
